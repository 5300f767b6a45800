"""Is a card quietly sick? Pure functions on what NVML says of the cards, at rest and while they work.

Cards are those of prove.nvml.survey, samples those of its Watch, taken under gpu.compute's load: at rest a card lowers its
clocks and its PCIe link on purpose, so that those are judged under load only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provision.catalog import load_catalog
from provision.parts.driver import verdict
from provision.parts.proof import Row, Verdict

# status, sentence, hint
_Sick = tuple[str, str, str]
# nvmlClocksEventReasons (nvml.h): what holds a card's clocks down.
POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x04, 0x08, 0x20, 0x40, 0x80
# Clocks under load below this share of the most, with no limit that explains it, are a fault.
CLOCK_SHARE = 0.5
# More than these are told. Sources: rows remapped after uncorrectable errors, by which gpud (remapped-rows) asks for a
# replacement; corrected errors and retired pages, gcm (check_nvidia_smi.py); of SRAM, Azure (azure_gpu_ecc.nhc).
# This project's judgement: a sound link repeats none in the seconds of a check.
MOST_REPLAYS = 8
MOST_REMAPPED, MOST_CORRECTED, MOST_SRAM_CORRECTED, MOST_RETIRED = 8, 50_000_000, 10_000, 10


def judge(cards: Sequence[Row], lost: Sequence[Row], samples: Mapping[int, Sequence[Row]]) -> Verdict:
    """Return (status, message, evidence, hint, numbers).

    samples: {index of card: [samples under load]}; a card without samples was not loaded, and is reported so.
    """
    rows: list[_Sick] = []
    evidence: list[str] = []
    numbers: dict[str, float] = {}
    for row in lost:
        rows.append(("fail", f"card {row['index']} does not answer: {row['error']}", _OFF_BUS))
    for card in cards:
        index = card["index"]
        found = at_rest(card)
        load = samples.get(index) or []
        found += under_load(card, load)
        rows += [(status, f"card {index}: {text}", hint) for status, text, hint in found]
        evidence.append(f"card {index}: {describe(card, load)}")
        numbers.update((f"gpu{index}_{name}", value) for name, value in measured(card, load).items())
    rows += mismatches(cards)
    evidence = [text for _, text, _ in rows] + evidence
    bad = worst(rows, evidence, numbers)
    if bad:
        return bad
    loaded = sum(1 for card in cards if samples.get(card["index"]))
    message = f"{loaded} of {len(cards)} cards healthy at rest and at work"
    if loaded < len(cards):
        message = f"{len(cards)} cards healthy at rest, {loaded} of them also at work"
    return "pass", message, evidence, None, numbers


def worst(
    rows: Sequence[tuple[str, str, str | None]], evidence: list[str], numbers: dict[str, float]
) -> Verdict | None:
    """The verdict of what fails, or else of what warns; None where nothing does. rows: [(status, sentence, hint)]."""
    for status in ("fail", "warn"):
        bad = [row for row in rows if row[0] == status]
        if bad:
            return status, "; ".join(text for _, text, _ in bad[:4]), evidence, bad[0][2], numbers
    return None


_NO_ROWS: Row = {"uncorrected": 0, "pending": False, "failed": False}
_WATCH = "watch it, and replace it when uncorrectable errors occur: nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT"
_OFF_BUS = "dmesg | grep -e Xid -e NVRM; often only a power cycle helps"
_RESET = "reset it or reboot while nobody uses it: nvidia-smi --gpu-reset"


def at_rest(card: Row) -> list[_Sick]:
    """[(status, sentence, hint)] from counters and states, the driver's own word first."""
    ecc, remapped = card["ecc"], card["ecc"]["remapped"] or _NO_ROWS
    histogram = card.get("histogram") or {}
    said = (("remapped_row_failure", remapped["failed"]), ("remapped_row_pending", remapped["pending"]))
    flags = [*card.get("flags", ()), *(name for name, yes in said if yes)]
    flags += ["pending_retirement"] if ecc["retired_pending"] else []
    said_so = verdict.judge(card.get("recovery"), flags, card["bus_id"], load_catalog().xids)
    found: list[_Sick] = [(status, text, hint) for status, text, hint, _ in said_so]

    def add(status: str, text: str, hint: str) -> None:
        found.append((status, text, hint))

    if ecc["volatile_uncorrected"]:
        add(
            "fail",
            f"{ecc['volatile_uncorrected']} uncorrected memory errors since the driver was loaded",
            _RESET + "; a card that does it again needs replacing",
        )
    if remapped["uncorrected"] >= MOST_REMAPPED and not remapped["failed"]:
        add("warn", f"{remapped['uncorrected']} memory rows were remapped after uncorrectable errors", _WATCH)
    if histogram.get("none"):
        add("warn", f"{histogram['none']} banks of its memory have no spare row left", _WATCH)
    for count, most, text in (
        (ecc["volatile_corrected"], MOST_CORRECTED, "corrected memory errors since the driver was loaded"),
        (card.get("sram_corrected"), MOST_SRAM_CORRECTED, "corrected errors of its SRAM ever"),
        (sum(pages or 0 for pages in ecc["retired_pages"]), MOST_RETIRED, "memory pages are retired"),
    ):
        if count and count > most:
            add("warn", f"{count} {text}, more than {most}", _WATCH)
    memory, hottest = card["temperature"].get("memory"), card["temperature"].get("memory_maximum")
    if memory and hottest and memory > hottest:
        add("fail", f"its memory has {memory} C, {hottest} is the most it is made for", "cooling")
    if ecc["on"] is not None and ecc["on"] != ecc["pending"]:
        add("warn", f"ECC is {_switch(ecc['on'])} and will be {_switch(ecc['pending'])}", _RESET)
    mig = card["mig"]
    if mig and mig["current"] != mig["pending"]:
        # What was asked for is not there yet: the host is not done.
        add("fail", f"MIG is {_switch(mig['current'])} and {_switch(mig['pending'])} after a reset or reboot", _RESET)
    fabric = card["fabric"]
    if fabric and fabric["state"] != "not supported":
        if fabric["state"] != "completed":
            add(
                "fail",
                f"the NVLink fabric is not ready: {fabric['state']}",
                "see service.fabric_manager; CUDA fails with error 802 until then",
            )
        elif fabric["status"]:
            add(
                "fail",
                f"the NVLink fabric failed with status {fabric['status']}",
                "see service.fabric_manager and its log",
            )
    if card["compute_mode"] == 2:
        add("warn", "compute mode is Prohibited: no program may use the card", "nvidia-smi -c 0")
    return found


def under_load(card: Row, load: Sequence[Row]) -> list[_Sick]:
    """[(status, sentence, hint)] from samples of a card at work; the first half is left for clocks to rise."""
    found: list[_Sick] = []
    busy = load[len(load) // 2 :]
    if not busy:
        return found
    held = 0
    for sample in busy:
        held |= sample["reasons"] or 0
    if held & (HW_THERMAL | HW_SLOWDOWN | POWER_BRAKE):
        causes = [
            name
            for bit, name in (
                (HW_THERMAL, "heat"),
                (POWER_BRAKE, "the power supply's brake"),
                (HW_SLOWDOWN, "a hardware slowdown"),
            )
            if held & bit
        ]
        found.append(
            (
                "fail",
                f"slowed down under load by {' and '.join(causes)}",
                "cooling, power cables and power supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
            )
        )
    elif held & SW_THERMAL:
        found.append(("warn", "slowed down under load by heat", "cooling: nvidia-smi -q -d TEMPERATURE"))
    hottest = max((sample["temperature"] for sample in busy if sample["temperature"] is not None), default=None)
    most = card["temperature"]["maximum"] or card["temperature"]["slowdown"]
    if hottest is not None and most and hottest >= most:
        found.append(("warn", f"{hottest} C under load, {most} is the most it is made for", "cooling"))
    clock = max((sample["sm_mhz"] for sample in busy if sample["sm_mhz"]), default=None)
    if clock and card["max_sm_mhz"] and clock < CLOCK_SHARE * card["max_sm_mhz"] and not held & ~0x1:
        found.append(
            (
                "warn",
                f"its clock stays at {clock} of {card['max_sm_mhz']} MHz under load, and no limit explains it",
                "nvidia-smi -q -d CLOCK,PERFORMANCE; nvidia-smi -rgc frees locked clocks",
            )
        )
    replays = [sample["replays"] for sample in load if sample.get("replays") is not None]
    if replays and replays[-1] - replays[0] > MOST_REPLAYS:
        text = f"{replays[-1] - replays[0]} PCIe transfers were repeated under load"
        found.append(
            ("warn", text, "reseat the card; riser, cable and slot: nvidia-smi -q -d PERFORMANCE and dmesg | grep AER")
        )
    pcie = card["pcie"]
    for name, most_name, text in (("generation", "max_generation", "generation"), ("width", "max_width", "width")):
        now = max((sample[name] for sample in load if sample[name]), default=None)
        if now and pcie[most_name] and now < pcie[most_name]:
            found.append(
                (
                    "warn",
                    f"PCIe {text} is {now} under load, card and slot can do {pcie[most_name]}",
                    "reseat the card; riser, cable and BIOS settings of the slot",
                )
            )
    return found


def mismatches(cards: Sequence[Row]) -> list[_Sick]:
    """[(status, sentence, hint)]: cards of one kind with different firmware, or with different MIG or ECC modes."""
    found: list[_Sick] = []
    kinds: dict[tuple[str, str], list[Row]] = {}
    for card in cards:
        kinds.setdefault((card["name"], card["pci_id"]), []).append(card)
    for (name, _), twins in sorted(kinds.items()):
        versions: dict[str | None, list[str]] = {}
        for card in twins:
            versions.setdefault(card["vbios"], []).append(str(card["index"]))
        if len(versions) > 1:
            text = "; ".join(f"{version} on {', '.join(where)}" for version, where in sorted(versions.items(), key=str))
            found.append(
                ("warn", f"{name} cards have different firmware: {text}", "the server's vendor has the updates")
            )
        # How many links a card should have depends on board and bridges; its twins tell.
        best = max(_links_up(card) for card in twins)
        for card in twins:
            if _links_up(card) < best:
                text = f"card {card['index']}: {_links_up(card)} NVLinks are up, identical cards have {best}"
                found.append(("warn", text, "nvidia-smi nvlink -s; reseat the bridge, or see the fabric manager's log"))
        modes = {card["ecc"]["on"] for card in twins}
        if len(modes) > 1:
            found.append(("warn", f"{name} cards differ in ECC", "nvidia-smi -e 1, then a reset"))
    return found


def measured(card: Row, load: Sequence[Row]) -> dict[str, float]:
    """Numbers of one card, units in the names."""
    numbers = {
        "temperature_c": card["temperature"]["now"],
        "ecc_volatile_uncorrected": card["ecc"]["volatile_uncorrected"],
        "ecc_aggregate_uncorrected": card["ecc"]["aggregate_uncorrected"],
        "memory_temperature_c": card["temperature"].get("memory"),
        "margin_temperature_c": card["temperature"].get("margin"),
        "pcie_replays": card["pcie"]["replays"],
    }
    for name, field in (("load_sm_mhz", "sm_mhz"), ("load_power_w", "power_w"), ("load_temperature_c", "temperature")):
        numbers[name] = max((sample[field] for sample in load if sample[field] is not None), default=None)
    return {name: value for name, value in numbers.items() if value is not None}


def describe(card: Row, load: Sequence[Row]) -> str:
    """One line about a card: what was read, and what is not there to be read."""
    ecc, pcie = card["ecc"], card["pcie"]
    ever = "?" if ecc["aggregate_uncorrected"] is None else ecc["aggregate_uncorrected"]
    text = [
        "ECC off" if ecc["on"] is False else "ECC not there" if ecc["on"] is None else f"ECC {ever} uncorrected ever"
    ]
    if ecc["remapped"]:
        text.append(f"{ecc['remapped']['corrected'] + ecc['remapped']['uncorrected']} rows remapped")
    if any(ecc["retired_pages"]):
        text.append(f"{sum(count or 0 for count in ecc['retired_pages'])} pages retired")
    if load:
        best = load[-1]
        text.append(
            f"at work {best['sm_mhz']} MHz, {best['power_w']} W, {best['temperature']} C, "
            f"PCIe {best['generation']} x{best['width']}"
        )
        if any((sample["reasons"] or 0) & POWER_CAP for sample in load):
            text.append("held by its power limit")
    else:
        text.append("not loaded")
    if pcie["card_generation"] and pcie["max_generation"] and pcie["max_generation"] < pcie["card_generation"]:
        text.append(f"its slot does PCIe {pcie['max_generation']}, the card could do {pcie['card_generation']}")
    if card["nvlinks"]:
        text.append(f"{_links_up(card)} of {len(card['nvlinks'])} NVLinks up")
    if card["vbios"]:
        text.append(f"firmware {card['vbios']}")
    return ", ".join(text)


def _links_up(card: Row) -> int:
    return sum(1 for row in card["nvlinks"] if row["active"])


def _switch(on: object) -> str:
    return "on" if on else "off"
