"""What this machine remembers of each card: what ``verify`` measured, its Xids, and which repairs were tried.

A file a card, by its UUID, in ``cards`` beside the records of runs. It is kept here and not on hosts because verify changes
nothing on a host, because a card's twins stand in other hosts, and because a card that moves or a host that is installed anew
keeps its past. Repairs that were carried out stand in the host's own record of the run too, see history.HostRecord: a rescue
from another machine has to know them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import provision.collection  # noqa: F401  (makes the collection importable)
from provision.catalog import load_catalog
from provision.errors import HostFailedError
from provision.lib import own_state
from provision.lib.findings import Check
from provision.lib.text import Answer, KernelRelease, Line, Name, PciSlot, Version
from provision.parts.driver import xid

FOLDER = "cards"
SCHEMA = "provision/card/1"
NAME = "gpu.trend"
_MOST_SAMPLES, _MOST_ERRORS, _MOST_TRIED = 60, 200, 100
# A host may say what it likes: no more cards than fit into one, and no more files than a large fleet has.
_MOST_OF_HOST, _MOST_FILES = 32, 50_000
# A card that lost so much is told; this project's judgement. Where a card's own figures spread wider, they are the measure.
LOST = 0.05
_SPREAD = 3.0
# So many earlier measurements, or twins, make a median.
_LEAST = 3
# Measured in the card alone: what the bus gives depends on who else uses it.
_JUDGED = {"gflops": "GFLOP/s", "memory_gb_per_s": "GB/s of memory"}
_KEPT = (*_JUDGED, "host_to_card_gb_per_s", "card_to_host_gb_per_s")
# What may have changed in between, as people call it.
_CHANGES = {"host": "host", "slot": "slot", "driver": "driver", "kernel": "kernel", "firmware": "firmware"}
_CHANGES |= {"power_limit_w": "power limit (W)", "max_sm_mhz": "highest clock (MHz)", "ecc": "ECC", "pcie": "PCIe"}

Uuid = Annotated[str, Field(pattern=r"^GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
Figure = Annotated[float, Field(ge=0, lt=1e12)]


class Sample(Answer):
    """One measurement of a card. when: UTC."""

    when: str = ""
    host: Line = ""
    slot: PciSlot | None = None
    driver: Version | None = None
    kernel: KernelRelease | None = None
    firmware: Line | None = None
    power_limit_w: Figure | None = None
    max_sm_mhz: Figure | None = None
    ecc: bool | None = None
    # generation and width that card and slot can do
    pcie: Name | None = None
    numbers: dict[Name, Figure] = Field(default_factory=dict)


class CardError(Answer):
    """One error that the kernel's log had. action: of NVIDIA's catalogue."""

    when: str
    host: Line = ""
    name: Line
    meaning: Line = ""
    action: Name = ""


class Tried(Answer):
    """One repair of a card: done (True), failed (False), or left to a person (None)."""

    when: Annotated[str, Field(max_length=40)]
    host: Line = ""
    finding: Name
    action: Name
    ok: bool | None = None
    uuid: Uuid | None = None
    slot: PciSlot


class Card(BaseModel):
    """Everything that is remembered of one card, the oldest first."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    schema_id: str = Field(default=SCHEMA, alias="schema")
    uuid: Uuid
    serial: Line | None = None
    name: Line = ""
    samples: list[Sample] = Field(default_factory=list)
    errors: list[CardError] = Field(default_factory=list)
    tried: list[Tried] = Field(default_factory=list)


class Seen(Answer):
    """A card as ``verify`` saw it just now."""

    uuid: Uuid
    serial: Line | None = None
    name: Line = ""
    sample: Sample = Field(default_factory=Sample)
    errors: list[CardError] = Field(default_factory=list)


class Memory:
    """The memory in a folder of runs. folder: where runs are kept, see engine.runs_folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def read(self, uuid: str) -> Card | None:
        """Return what is known of a card; None where that is nothing, or cannot be read."""
        return own_state.read_or_none(self._path(uuid), Card)

    def at(self, host: str, slot: str) -> Card | None:
        """Return the card that was last seen in a slot of a host: one that fell off the bus has no UUID to ask for."""
        found = [
            card
            for card in self.everything()
            if card.samples
            and card.samples[-1].host == host
            and xid.bare(card.samples[-1].slot or "") == xid.bare(slot)
        ]
        return max(found, key=lambda card: card.samples[-1].when, default=None)

    def everything(self) -> Iterator[Card]:
        """Every card that is known."""
        for path in sorted(self.folder.glob("GPU-*.json"))[:_MOST_FILES]:
            card = own_state.read_or_none(path, Card)
            if card is not None:
                yield card

    def keep(self, card: Card) -> None:
        """Write what is known of a card, without what is too old. Raises HostFailedError where it cannot be written."""
        card.samples, card.tried = card.samples[-_MOST_SAMPLES:], card.tried[-_MOST_TRIED:]
        card.errors = sorted(card.errors, key=lambda error: error.when)[-_MOST_ERRORS:]
        path = self._path(card.uuid)
        if not path.exists() and sum(1 for _ in self.folder.glob("GPU-*.json")) >= _MOST_FILES:
            raise HostFailedError(
                "state.full", f"{self.folder} has {_MOST_FILES} cards", hint="remove those that are gone"
            )
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        own_state.write(path, card.model_dump_json(by_alias=True, indent=1))

    def tried(self, tries: Iterable[Tried]) -> None:
        """Keep repairs with the cards that they were about."""
        for one in tries:
            if one.uuid is not None:
                card = self.read(one.uuid) or Card(uuid=one.uuid)
                card.tried.append(one)
                self.keep(card)

    def _path(self, uuid: str) -> Path:
        if not re.fullmatch(r"GPU-[0-9a-f-]{36}", uuid):
            raise ValueError("no UUID of a card")
        return self.folder / f"{uuid}.json"


def seen(host: str, proofs: object, kernel: object, when: str) -> list[Seen]:
    """Return the cards of a host's answer to ``prove.proofs``; what is not as it must be is left out.

    kernel: what the host says that it runs.
    """
    found = {row["id"]: row["found"] for row in _rows(proofs)}
    driver = _of(found.get("gpu.count"), "survey", "result", "driver")
    table = load_catalog().xids
    lines = _of(found.get("gpu.xid"), "outcome", "result", "lines")
    errors: dict[str, list[CardError]] = {}
    try:
        for row in xid.read([(line[0], line[1], line[2]) for line in lines or []], table):
            for moment in row.when:
                if moment is not None:
                    error = CardError(
                        when=_utc(moment), host=host, name=row.name, meaning=row.meaning, action=row.action.lower()
                    )
                    errors.setdefault(xid.bare(row.bus_id), []).append(error)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError):
        errors = {}
    cards: list[Seen] = []
    for raw in surveyed(proofs):
        try:
            cards.append(_seen(raw, host, when, driver, kernel, found, errors))
        except (ValidationError, AttributeError, LookupError, TypeError, HostFailedError):
            continue
    return cards


def surveyed(proofs: object) -> list[Any]:
    """What NVML said of the cards of a host, as it came: no item is known to be anything."""
    found = {row["id"]: row["found"] for row in _rows(proofs)}
    raws = _of(found.get("gpu.count"), "survey", "result", "cards")
    return raws[:_MOST_OF_HOST] if isinstance(raws, list) else []


def _seen(
    raw: Mapping[str, Any],
    host: str,
    when: str,
    driver: object,
    kernel: object,
    found: Mapping[str, Any],
    errors: Mapping[str, list[CardError]],
) -> Seen:
    numbers: dict[str, Any] = {}
    for unit, outcome in _of(found.get("gpu.compute"), "computed") or []:
        # an instance of a card that is divided is not the card
        done = outcome["result"]
        if unit["index"] == raw["index"] and not unit.get("mig") and done and not done["wrong"]:
            numbers = {key: done["numbers"].get(key) for key in _KEPT}
    pcie = raw["pcie"]
    sample = {
        "when": when,
        "host": host,
        "slot": raw["bus_id"],
        "driver": driver,
        "kernel": kernel,
        "firmware": raw["vbios"],
        "power_limit_w": raw["power_limit_w"],
        "max_sm_mhz": raw["max_sm_mhz"],
        "ecc": raw["ecc"]["on"],
        "pcie": f"{pcie['max_generation']}x{pcie['max_width']}",
        "numbers": {key: value for key, value in numbers.items() if value is not None},
    }
    return Seen(
        uuid=str(raw["uuid"]).lower().replace("gpu-", "GPU-", 1),
        serial=raw.get("serial"),
        name=raw["name"],
        sample=Sample.of_host(sample),
        errors=errors.get(xid.bare(raw["bus_id"]), []),
    )


def _rows(proofs: object) -> list[dict[str, Any]]:
    rows = proofs.get("measured") if isinstance(proofs, dict) else None
    return [
        row
        for row in (rows if isinstance(rows, list) else [])
        if isinstance(row, dict) and isinstance(row.get("id"), str) and isinstance(row.get("found"), dict)
    ]


def _of(data: Any, *keys: str) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _utc(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def compared(memory: Memory, hosts: Mapping[str, Sequence[Seen]]) -> dict[str, Check]:
    """Compare every host's cards with their own past and with their twins of this run, keep what was measured, and say
    what was lost: one check a host that has cards."""
    everybody = [one for cards in hosts.values() for one in cards]
    count: dict[str, int] = {}
    for one in everybody:
        count[one.uuid] = count.get(one.uuid, 0) + 1
    found: dict[str, Check] = {}
    for host, cards in hosts.items():
        lost, evidence, judged = list[str](), list[str](), 0
        for one in cards:
            if count[one.uuid] > 1:
                evidence.append(f"{one.uuid}: seen more than once in this run, so its history is not used")
                continue
            known = memory.read(one.uuid) or Card(uuid=one.uuid)
            twins = [other for other in everybody if other.uuid != one.uuid and _alike(one, other)]
            told, against = slower(one.sample, known.samples, [twin.sample for twin in twins])
            lost += [f"card {one.sample.slot}: {line}" for line in told]
            judged += against
            try:
                memory.keep(_with(known, one))
            except HostFailedError as error:
                evidence.append(f"not kept: {error.issue.message}")
        if cards:
            what = "nothing lost" if judged else "nothing to compare with yet"
            message = (
                "; ".join(lost[:2]) or f"{len(cards)} cards compared with their own past and identical cards: {what}"
            )
            hint = "gpu.health says why, where it is power, heat or the clock; provision dossier HOST has every figure"
            status: Literal["warn", "pass"] = "warn" if lost else "pass"
            found[host] = Check.model_validate(
                {"id": NAME, "status": status, "message": message, "evidence": [*lost, *evidence]}
            ).model_copy(update={"hint": hint if lost else None})
    return found


def _alike(one: Seen, other: Seen) -> bool:
    """The same model, allowed the same."""
    keys = ("power_limit_w", "max_sm_mhz", "ecc")
    return one.name == other.name and all(getattr(one.sample, key) == getattr(other.sample, key) for key in keys)


def _with(card: Card, one: Seen) -> Card:
    card.serial, card.name = one.serial or card.serial, one.name
    if one.sample.numbers or not card.samples or changes(card.samples[-1], one.sample):
        card.samples.append(one.sample)
    known = {(error.when, error.name) for error in card.errors}
    card.errors += [error for error in one.errors if (error.when, error.name) not in known]
    return card


def slower(now: Sample, past: Sequence[Sample], twins: Sequence[Sample]) -> tuple[list[str], int]:
    """(sentences about what a card lost against its own median and its twins', how many comparisons there were)."""
    told, judged = list[str](), 0
    for key, unit in _JUDGED.items():
        value = now.numbers.get(key)
        if value is None:
            continue
        own = [(one, one.numbers[key]) for one in past if key in one.numbers]
        share = lost(value, [figure for _, figure in own])
        judged += len(own) >= _LEAST
        if share:
            usual = median(figure for _, figure in own)
            # half of them are at the median or above
            sound = next(one for one, figure in reversed(own) if figure >= (1 - LOST) * usual)
            between = changes(sound, now)
            since = f"since {sound.when[:10]}: {'; '.join(between)}" if between else "nothing known changed in between"
            told.append(
                f"{value:.0f} {unit}, {100 * share:.1f} % below its own median of {len(own)} runs ({usual:.0f}); {since}"
            )
        others = [one.numbers[key] for one in twins if key in one.numbers]
        share = lost(value, others)
        judged += len(others) >= _LEAST
        if share:
            told.append(
                f"{value:.0f} {unit}, {100 * share:.1f} % below the median ({median(others):.0f}) of {len(others)} identical cards"
            )
    return told, judged


def lost(value: float, others: Sequence[float]) -> float | None:
    """Return the share that a value lies below the median of others, where that is a loss; None where it is none."""
    if len(others) < _LEAST or not (usual := median(others)):
        return None
    spread = _SPREAD * median(abs(one - usual) for one in others) / usual
    share = 1 - value / usual
    return share if share >= max(LOST, spread) else None


def changes(before: Sample, now: Sample) -> list[str]:
    """What is different between two measurements, as ``driver 580.126.20 -> 580.142``."""
    return [
        f"{words} {_word(old)} -> {_word(new)}"
        for key, words in _CHANGES.items()
        if (old := getattr(before, key)) != (new := getattr(now, key)) and old is not None and new is not None
    ]


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
