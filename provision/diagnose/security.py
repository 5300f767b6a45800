"""Security updates that a hold keeps away from a host, by the lists that its apt has. Pure."""

from __future__ import annotations

from pydantic import BaseModel

from provision.diagnose.candidates import order
from provision.facts import Facts


class HeldUpdate(BaseModel):
    """A package on hold, of which a list of security updates has a newer version. suite: ``noble-security``."""

    package: str
    version: str
    available: str
    suite: str


def held_security_updates(facts: Facts) -> list[HeldUpdate] | None:
    """Return what holds keep away; None where no list of security updates was read, so that nothing is known.

    facts: of the host program ``probe.diagnostics``. Ubuntu's suites of security updates, those of ESM too, end in
    ``-security``; NVIDIA's repository does not tell security updates from others.
    """
    apt = facts.trouble.apt if facts.trouble else None
    suites = (
        {row.prefix: row.suite for row in apt.lists if row.there and row.suite.endswith("-security")} if apt else {}
    )
    if apt is None or not suites:
        return None
    newest: dict[str, HeldUpdate] = {}
    for offer in apt.offers:
        have = facts.packages.get(offer.name)
        if offer.list not in suites or have is None or not have.held or not have.there:
            continue
        before = newest[offer.name].available if offer.name in newest else have.version
        if order(offer.version, before) > 0:
            newest[offer.name] = HeldUpdate(
                package=offer.name, version=have.version, available=offer.version, suite=suites[offer.list]
            )
    return [newest[name] for name in sorted(newest)]
