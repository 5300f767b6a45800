"""dossier: what the maker or the seller of a sick card asks for, as one file. Reads only.

Serial numbers, slot, firmware, errors with NVIDIA's actions, counters, what ``verify`` measures beside the card's own past and
its twins, repairs that were tried, the kernel's log, and the rules for a replacement that are met.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from provision.bundles.mask import Mask
from provision.catalog import load_catalog
from provision.commands.verify import memory_of, patient
from provision.diagnose import diagnose
from provision.diagnose.finding import Cause
from provision.documents import Document
from provision.errors import ProvisionError, UsageError
from provision.facts import Facts
from provision.facts.diagnostics import Diagnosed
from provision.inventory import Host
from provision.lib.findings import Check
from provision.lib.text import Answer, Line, Name, Number, PciSlot, answered
from provision.parts.driver import verdict, xid
from provision.planning import read_facts
from provision.planning.verification import CheckSelection, verify_host
from provision.remote import Session
from provision.runs import cards
from provision.runs.cards import Card, Memory, Seen, Tried
from provision.runs.fleet import Fleet, Silent, Talk, ask_all

# Uncorrectable errors after which a memory row was remapped: gpud (remapped-rows) asks for a replacement from here on.
_MOST_REMAPPED = 8
_GPUD = "gpud, remapped-rows: the card qualifies for a replacement"
_NVIDIA = "NVIDIA, GPU Memory Error Management"
_RULES = {
    "remapped_row_failure": f"a faulty memory row could not be remapped ({_NVIDIA}: row remapping failure)",
    "sram_threshold_exceeded": f"its SRAM exceeded the threshold of uncorrectable errors ({_NVIDIA}: SRAM)",
    "unrepairable_memory": f"faulty memory cannot be repaired any more ({_NVIDIA})",
}
_CHECKS = CheckSelection(only=("gpu.count", "gpu.compute", "gpu.health", "gpu.xid"))


class Machine(Answer):
    """What stands on the machine's labels. slots: PCI address -> name of the slot."""

    dmi: dict[Name, Line] = Field(default_factory=dict)
    slots: dict[Line, Line] = Field(default_factory=dict)


class _Errors(Answer):
    volatile_uncorrected: Number | None = None
    volatile_corrected: Number | None = None
    aggregate_uncorrected: Number | None = None
    aggregate_corrected: Number | None = None
    retired_pending: bool | None = None


class _Rows(Answer):
    corrected: Number = 0
    uncorrected: Number = 0
    pending: bool = False
    failed: bool = False


class _Card(Answer):
    """A card of NVML's, as far as the dossier tells it."""

    index: Number
    uuid: cards.Uuid
    bus_id: PciSlot
    recovery: Number | None = None
    flags: list[Name] = Field(default_factory=list)
    histogram: dict[Name, Number] | None = None
    sram_corrected: Number | None = None
    replays: Number | None = None
    ecc: _Errors = Field(default_factory=_Errors)
    remapped: _Rows | None = None


class DossierCard(BaseModel):
    """One card. rules: of a replacement that are met; sick: something stands against it."""

    name: str = ""
    uuid: str | None = None
    serial: str | None = None
    bus_id: str
    # of the board, as its firmware names it
    slot: str | None = None
    firmware: str | None = None
    sick: bool = False
    rules: list[str] = Field(default_factory=list)
    # what the driver and diagnose say of it
    findings: list[str] = Field(default_factory=list)
    counters: dict[str, str] = Field(default_factory=dict)
    # what was measured -> now, own median, median of twins
    numbers: dict[str, tuple[float | None, float | None, float | None]] = Field(default_factory=dict)
    # "48 times": how many runs and twins stand behind the medians
    runs: int = 0
    twins: int = 0
    errors: list[str] = Field(default_factory=list)
    tried: list[str] = Field(default_factory=list)


class DossierDocument(Document):
    """One host. made: UTC. path: the file that was written."""

    schema_id: str = Field(default="provision/dossier/1", alias="schema")
    host: str = ""
    made: str = ""
    anonymous: bool = False
    path: str | None = None
    machine: dict[str, str] = Field(default_factory=dict)
    # "ubuntu 24.04"
    system: str = ""
    kernel: str = ""
    driver: str = ""
    cards: list[DossierCard] = Field(default_factory=list)
    # errors and warnings of diagnose that are about no single card
    findings: list[str] = Field(default_factory=list)
    checks: list[Check] = Field(default_factory=list)
    log: list[str] = Field(default_factory=list)


def run(
    fleet: Fleet, base: Path | None, made: str, talk: Talk | None = None, *, anonymous: bool = False
) -> DossierDocument:
    """Read one host and return its dossier; base: --run-dir; made: this moment. Raises UsageError for several hosts.

    Cards that nobody uses are loaded for some seconds, as by verify; others are left alone.
    """
    if len(fleet.hosts) != 1:
        raise UsageError("usage.arguments", "a dossier is about one host", hint="name it: provision dossier HOST")
    (host,), memory = fleet.hosts, memory_of(base)
    values = dict(fleet.values[host.name])

    def ask(host: Host, session: Session) -> tuple[DossierDocument, dict[str, list[str]]]:
        heard: dict[str, Any] = {}
        call = patient(session, heard)
        facts = read_facts(call, values, Diagnosed)
        checks = verify_host(call, values, load_catalog(), _CHECKS)
        answer = answered(call("probe.machine", {}), dmi=dict, slots=dict, own=dict)
        machine = Machine.of_host(answer)
        document = of_host(host.name, facts, values, checks, heard.get("prove.proofs"), machine, memory, made)
        return document, names_of(host, facts, answer["own"], document)

    (found,) = ask_all(fleet, fleet.hosts, "asking for the dossier", ask, talk or Silent()).values()
    if isinstance(found, ProvisionError):
        raise found
    document, own = found
    return masked(document, own) if anonymous else document


def of_host(
    name: str,
    facts: Facts,
    values: Mapping[str, object],
    checks: Sequence[Check],
    proofs: object,
    machine: Machine,
    memory: Memory,
    made: str,
) -> DossierDocument:
    """Return the dossier of one host from what it said. facts: of probe.diagnostics; proofs: what prove.proofs answered."""
    boot = facts.trouble.boot if facts.trouble else None
    document = DossierDocument(
        host=name,
        made=made,
        machine=machine.dmi,
        system=f"{facts.host.os.id} {facts.host.os.version_id}".strip(),
        kernel=facts.kernels.running or "",
        driver=facts.smi.driver_version or (facts.module.loaded.version if facts.module.loaded else None) or "",
        checks=list(checks),
        log=list(boot.log) if boot else [],
    )
    table = load_catalog().xids
    lines = [(line.boot, line.when, line.text) for line in boot.errors.lines] if boot else []
    errors = xid.read(lines, table, boot.errors.now if boot else None)
    found = diagnose(facts, dict(values), load_catalog()).findings
    document.findings = [_said(one) for one in found if not one.cards and one.level != "note"]
    seen = {
        xid.bare(one.sample.slot): one
        for one in cards.seen(name, proofs, facts.kernels.running, made)
        if one.sample.slot
    }
    raws = {xid.bare(raw.bus_id): raw for raw in _raws(proofs)}
    slots = {xid.bare(gpu.slot): gpu.slot for gpu in facts.gpus}
    titles = {xid.bare(gpu.slot): load_catalog().gpu_by_id(gpu.device).name for gpu in facts.gpus}
    slots |= {
        xid.bare(bus_id): bus_id for finding in found for bus_id in finding.cards if xid.bare(bus_id) not in slots
    }
    for place, bus_id in sorted(slots.items()):
        known = seen.get(place)
        smi = next((gpu for gpu in facts.smi.gpus if gpu.bus_id and xid.bare(gpu.bus_id) == place), None)
        past = memory.read(known.uuid) if known else memory.at(name, bus_id)
        card = DossierCard(
            name=known.name if known else smi.name if smi else past.name if past else titles.get(place, ""),
            uuid=known.uuid if known else smi.uuid if smi else past.uuid if past else None,
            serial=(known and known.serial) or (past.serial if past else None),
            bus_id=bus_id,
            slot=machine.slots.get(place),
            firmware=known.sample.firmware if known else past.samples[-1].firmware if past and past.samples else None,
            findings=[_said(one) for one in found if place in map(xid.bare, one.cards)],
            errors=[xid.describe(row) for row in errors if xid.bare(row.bus_id) == place],
            tried=[_of_try(one) for one in past.tried] if past else [],
        )
        _measured(card, known, past, [one for one in seen.values() if one is not known], memory)
        raw = raws.get(place)
        card.counters = counters(raw) if raw else {}
        card.rules = rules(raw, [*(smi.flags if smi else ())], past.tried if past else [])
        stand = any(row.status == "fail" for row in errors if xid.bare(row.bus_id) == place)
        card.sick = bool(card.rules or card.findings or stand)
        document.cards.append(card)
    return document


def _said(cause: Cause) -> str:
    return f"{cause.code}: {cause.message}"


def _raws(proofs: object) -> list[_Card]:
    found = []
    for raw in cards.surveyed(proofs):
        try:
            ecc = raw.get("ecc") or {}
            found.append(
                _Card.of_host(
                    {
                        **raw,
                        "uuid": str(raw["uuid"]),
                        "remapped": ecc.get("remapped"),
                        "replays": raw["pcie"]["replays"],
                    }
                )
            )
        except (ProvisionError, ValidationError, AttributeError, LookupError, TypeError):
            continue
    return found


def counters(card: _Card) -> dict[str, str]:
    """What the card counts, as people call it; what it does not count is left out."""
    rows, ecc = card.remapped, card.ecc
    found: dict[str, object] = {
        "uncorrected memory errors, ever": ecc.aggregate_uncorrected,
        "uncorrected memory errors, since the driver was loaded": ecc.volatile_uncorrected,
        "corrected memory errors, ever": ecc.aggregate_corrected,
        "corrected errors of the SRAM, ever": card.sram_corrected,
        "rows remapped after corrected errors": rows and rows.corrected,
        "rows remapped after uncorrectable errors": rows and rows.uncorrected,
        "PCIe transfers repeated": card.replays,
    }
    found |= {f"banks with {name} of their spare rows left": count for name, count in (card.histogram or {}).items()}
    found |= {f"nvidia-smi: {flag}": "Yes" for flag in card.flags if flag in verdict.FLAGS}
    return {name: str(value) for name, value in found.items() if value is not None}


def rules(card: _Card | None, flags: Iterable[str], tried: Sequence[Tried]) -> list[str]:
    """Return the rules for a replacement that a card meets, each with its source."""
    said = {*flags, *(card.flags if card else ())}
    rows = card.remapped if card else None
    if rows and rows.failed:
        said.add("remapped_row_failure")
    found = [text for flag, text in _RULES.items() if flag in said]
    if rows and rows.uncorrected >= _MOST_REMAPPED:
        found.append(
            f"{rows.uncorrected} rows were remapped after uncorrectable errors, {_MOST_REMAPPED} or more ({_GPUD})"
        )
    done = sorted({one.action for one in tried if one.ok is not False})
    if len(done) > 1:
        found.append(f"its error came back after {' and '.join(done)} (this project: two kinds of repair did not last)")
    return found


def _of_try(one: Tried) -> str:
    how = {True: "done", False: "could not be done", None: "left to a person"}[one.ok]
    return f"{one.when[:16].replace('T', ' ')} UTC {one.action} for {one.finding}: {how}"


def _measured(card: DossierCard, known: Seen | None, past: Card | None, others: Sequence[Seen], memory: Memory) -> None:
    """What the card measured beside its own median and its twins': cards of the same model that this machine knows."""
    own = past.samples if past else []
    twins = [one.sample for one in others if known and one.name == known.name]
    here = {one.uuid for one in others}
    twins += [
        one.samples[-1]
        for one in memory.everything()
        if one.name == card.name and one.samples and one.uuid not in here | {card.uuid}
    ]
    now = known.sample.numbers if known else {}
    card.runs, card.twins = sum(bool(one.numbers) for one in own), sum(bool(one.numbers) for one in twins)
    for key in dict.fromkeys([*now, *(key for one in own for key in one.numbers)]):
        mine = [one.numbers[key] for one in own if key in one.numbers]
        theirs = [one.numbers[key] for one in twins if key in one.numbers]
        card.numbers[key] = (now.get(key), median(mine) if mine else None, median(theirs) if theirs else None)


# --- without names -------------------------------------------------------------------------------------------


def names_of(host: Host, facts: Facts, own: Mapping[str, Any], document: DossierDocument) -> dict[str, list[str]]:
    """Return what names a host, its people and its parts; own: of probe.export.read_own, whatever the host made of it."""
    names = {
        kind: [word for word in own.get(kind) or () if isinstance(word, str)][:5000]
        for kind in ("hosts", "users", "addresses", "serials")
    }
    names["hosts"] += [host.name, facts.host.hostname]
    names["addresses"].append(host.connection.address)
    names["users"] += [user.user for user in facts.gpu_users if user.user]
    names["users"] += [host.connection.user] if host.connection.user else []
    names["serials"] += [card.serial for card in document.cards if card.serial]
    names["serials"] += [text for key, text in document.machine.items() if key.endswith("_serial")]
    return {kind: [word for word in words if word] for kind, words in names.items()}


def masked(document: DossierDocument, own: Mapping[str, Sequence[str]]) -> DossierDocument:
    """Return the dossier without names, addresses, serial numbers and UUIDs."""
    data = Mask(own).data(document.model_dump(mode="json", by_alias=True))
    # NVIDIA's serial numbers are digits alone, which may be anything elsewhere.
    digits = {
        word: f"serial-{number}" for number, word in enumerate(own["serials"], 1) if word.isdigit() and len(word) > 5
    }
    found = _replaced(data, digits)
    found |= {"host": "host", "anonymous": True}
    return DossierDocument.model_validate(found)


def _replaced(value: Any, words: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return re.sub(r"[0-9]{6,}", lambda match: words.get(match[0], match[0]), value)
    if isinstance(value, dict):
        return {key: _replaced(item, words) for key, item in value.items()}
    return [_replaced(item, words) for item in value] if isinstance(value, list) else value
