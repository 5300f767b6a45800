"""For programs and notebooks: the reading commands as functions that return their documents.

    from provision import api

    fleet = api.inventory("fleet.yml", limit="lab")
    for name, host in api.plan(fleet).hosts.items():
        print(name, host.status, host.summary)

Nothing here prints, asks or changes a host. A document is what the command prints with --json (docs/json.md): ``to_json()`` gives
that text. What is wrong with single hosts stands in the document; what makes the whole call impossible is raised as a
ProvisionError (``error.issue`` has code, message, because and hint). These names and parameters stay as they are within a major
version; the rest of the package may move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from provision.errors import Issue, ProvisionError

if TYPE_CHECKING:
    from provision.commands.diagnose import DiagnoseDocument
    from provision.commands.drift import DriftDocument
    from provision.documents import PlanDocument, ScanDocument, VerifyDocument
    from provision.runs.fleet import Fleet

__all__ = ["Issue", "ProvisionError", "diagnose", "drift", "inventory", "plan", "scan", "verify"]


def inventory(
    *sources: str,
    limit: str | None = None,
    variables: Mapping[str, Any] | None = None,
    vault_ids: Sequence[str] = (),
    vault_password: str | None = None,
    become_password: str | None = None,
    forks: int | None = None,
) -> Fleet:
    """Read an Ansible inventory, as the command's -i, -l, -e and --vault-id do; without sources ansible.cfg's.

    forks: hosts at a time. Raises UsageError for an inventory, a limit or variables that cannot be used.
    """
    from provision import inventory
    from provision.runs.fleet import fleet_of

    found = inventory.load(
        list(sources) or None,
        limit,
        dict(variables or {}),
        vault_password=vault_password,
        vault_ids=vault_ids,
        become_password=become_password,
    )
    return fleet_of(found, forks)


def scan(fleet: Fleet) -> ScanDocument:
    """What is there, host by host: facts, and what a person should notice of them."""
    from provision.commands import scan

    return scan.run(fleet)


def plan(fleet: Fleet) -> PlanDocument:
    """What apply would change, and why, or why it would not."""
    from provision.commands import plan

    return plan.run(fleet)


def verify(fleet: Fleet, checks: Sequence[str] = (), deep: bool = False) -> VerifyDocument:
    """Check the hosts. checks: only these, such as ``gpu.*``; deep: most of each card's memory, and longer."""
    from provision.commands import verify
    from provision.planning.verification import CheckSelection

    return verify.run(fleet, selection=CheckSelection(tuple(checks), deep))


def drift(fleet: Fleet) -> DriftDocument:
    """Where hosts differ from the inventory, their lock, similar hosts and their earlier hardware."""
    from provision.commands import drift

    return drift.run(fleet)


def diagnose(fleet: Fleet) -> DiagnoseDocument:
    """What is broken, why, and the smallest repair."""
    from provision.commands import diagnose

    return diagnose.run(fleet)
