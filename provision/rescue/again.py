"""Which repairs of a sick card were tried before: none of them is offered a second time. Pure.

A reset or a reboot that did not last does not last the next time either, and each costs its users a card. So the second time the
next repair has its turn, and when none is left it is hardware. This is of cards alone: a driver may need a reboot every month.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.plugin_utils import runrecord
from provision.diagnose.finding import Cause, Diagnosis, Repair
from provision.facts import Facts
from provision.parts.driver.xid import bare
from provision.rescue.model import Round
from provision.runs.cards import Memory, Tried

# An error that comes after so long is another one.
_DAYS = 30
_OF_CARDS = frozenset({"gpu.reset", "reboot", "power.cycle"})
_WORDS = {"gpu.reset": "reset", "reboot": "rebooted", "power.cycle": "to be power-cycled"}


def without_tried(diagnosis: Diagnosis, facts: Facts, tried: Sequence[Tried], host: str) -> Diagnosis:
    """Return the diagnosis without repairs of cards that were tried before; of what is left the first is the next level."""
    since = f"{datetime.now(UTC) - timedelta(days=_DAYS):%Y-%m-%dT%H:%M:%SZ}"
    recent = [one for one in tried if one.when >= since]
    findings = [_left(finding, facts, recent, host) if finding.cards else finding for finding in diagnosis.findings]
    return diagnosis.model_copy(update={"findings": findings})


def _left(finding: Cause, facts: Facts, tried: Iterable[Tried], host: str) -> Cause:
    mine = [
        one for one in tried if one.finding == finding.code and any(_about(one, facts, c, host) for c in finding.cards)
    ]
    done = {one.action for one in mine}
    repairs = [_named(repair, host) for repair in finding.repairs if repair.action not in done]
    if not mine:
        return finding.model_copy(update={"repairs": repairs})
    # Two kinds of repair did not last, or nothing is left: it is the card.
    if len(done) > 1 or not repairs:
        text = f"hardware: {_listed(mine)} did not last; provision dossier {host} writes the report for the vendor"
        repairs = [Repair(action="manual", words=text)]
    evidence = [f"tried before: {_WORDS[one.action]} {one.when[:16].replace('T', ' ')} UTC" for one in mine]
    return finding.model_copy(update={"repairs": repairs, "evidence": [*finding.evidence, *dict.fromkeys(evidence)]})


def _listed(tried: Sequence[Tried]) -> str:
    words = {"gpu.reset": "a reset", "reboot": "a reboot", "power.cycle": "a power cycle"}
    return " and ".join(dict.fromkeys(words[one.action] for one in tried))


def _named(repair: Repair, host: str) -> Repair:
    return repair.model_copy(
        update={"words": repair.words.replace("provision dossier HOST", f"provision dossier {host}")}
    )


def _about(one: Tried, facts: Facts, bus_id: str, host: str) -> bool:
    """A card that was exchanged is another one; one that does not answer is known by its slot."""
    uuid = uuid_of(facts, bus_id)
    if one.uuid and uuid:
        return one.uuid == uuid
    return one.host == host and bare(one.slot) == bare(bus_id)


def uuid_of(facts: Facts, bus_id: str) -> str | None:
    """Return the UUID of the card in a slot, as nvidia-smi says it."""
    return next(
        (gpu.uuid for gpu in facts.smi.gpus if gpu.uuid and gpu.bus_id and bare(gpu.bus_id) == bare(bus_id)), None
    )


def past_of(memory: Memory, host: str, facts: Facts, findings: Iterable[Cause]) -> list[Tried]:
    """Return what this machine remembers of the repairs of a host's sick cards."""
    found: list[Tried] = []
    for bus_id in {bus_id for finding in findings for bus_id in finding.cards}:
        uuid = uuid_of(facts, bus_id)
        card = memory.read(uuid) if uuid else memory.at(host, bus_id)
        found += card.tried if card else []
    return found


def tries(
    host: str, facts: Facts, found: Iterable[Cause], rounds: Iterable[Round], left: Iterable[Cause]
) -> list[Tried]:
    """Return the repairs of cards that a rescue carried out, and those that it left to a person.

    facts, found: of the beginning; left: findings of the end.
    """
    cards: dict[str, list[str]] = {}
    for finding in found:
        cards.setdefault(finding.code, []).extend(finding.cards)
    rows: list[tuple[str, str, bool | None, tuple[str, ...]]] = [
        (step.finding, step.action, step.ok, tuple(map(str, step.args.get("cards") or cards.get(step.finding) or ())))
        for one in rounds
        for step in one.steps
        # What could not be tried, because somebody uses the card, was not tried.
        if step.action in _OF_CARDS and (step.ok or step.code == "gpu.reset_failed")
    ]
    rows += [
        (one.code, "power.cycle", None, tuple(one.cards))
        for one in left
        if one.cards and one.repairs and one.repairs[0].action == "power.cycle"
    ]
    when = runrecord.now()
    return [
        Tried(
            when=when,
            host=host,
            finding=code,
            action=action,
            ok=ok,
            uuid=uuid_or_none(facts, bus_id),
            slot=_slot(bus_id),
        )
        for code, action, ok, mine in dict.fromkeys(rows)
        for bus_id in mine
    ]


def uuid_or_none(facts: Facts, bus_id: str) -> str | None:
    """The UUID of the card in a slot, where it is one that its memory can be found by."""
    return Tried.of_host(
        {"when": "", "finding": "x", "action": "x", "uuid": uuid_of(facts, bus_id), "slot": _slot(bus_id)}
    ).uuid


def _slot(bus_id: str) -> str:
    return bus_id if "." in bus_id else f"{bus_id}.0"
