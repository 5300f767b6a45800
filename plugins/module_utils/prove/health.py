# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Is a card quietly sick? Pure functions on what NVML says of the cards, at rest and while they work.

Cards are those of provenvml.survey, samples those of provenvml.Watch, taken under gpu.compute's load: at rest a card
lowers its clocks and its PCIe link on purpose, so that those are judged under load only.
"""

from __future__ import annotations

# nvmlClocksEventReasons (nvml.h): what holds a card's clocks down.
POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x04, 0x08, 0x20, 0x40, 0x80
# Clocks under load below this share of the most, with no limit that explains it, are a fault.
CLOCK_SHARE = 0.5


def judge(cards, lost, samples):
    """Return (status, message, evidence, hint, numbers).

    samples: {index of card: [samples under load]}; a card without samples was not loaded, and is told as such.
    """
    rows, evidence, numbers = [], [], {}
    for row in lost:
        rows.append(("fail", "card %d does not answer: %s" % (row["index"], row["error"]), _OFF_BUS))
    for card in cards:
        index = card["index"]
        found = at_rest(card)
        load = samples.get(index) or []
        found += under_load(card, load)
        rows += [(status, "card %d: %s" % (index, words), hint) for status, words, hint in found]
        evidence.append("card %d: %s" % (index, describe(card, load)))
        numbers.update(("gpu%d_%s" % (index, name), value) for name, value in measured(card, load).items())
    rows += mismatches(cards)
    evidence = [words for _, words, _ in rows] + evidence
    for status in ("fail", "warn"):
        bad = [row for row in rows if row[0] == status]
        if bad:
            return status, "; ".join(words for _, words, _ in bad[:4]), evidence, bad[0][2], numbers
    loaded = sum(1 for card in cards if samples.get(card["index"]))
    message = "%d of %d cards healthy at rest and at work" % (loaded, len(cards))
    if loaded < len(cards):
        message = "%d cards healthy at rest, %d of them also at work" % (len(cards), loaded)
    return "pass", message, evidence, None, numbers


_OFF_BUS = "dmesg | grep -e Xid -e NVRM; often only a power cycle helps"
_RESET = "reset it or reboot while nobody uses it: nvidia-smi --gpu-reset"


def at_rest(card):
    """[(status, sentence, hint)] from counters and states."""
    found, ecc = [], card["ecc"]

    def add(status, words, hint):
        found.append((status, words, hint))

    if ecc["volatile_uncorrected"]:
        add(
            "fail",
            "%d uncorrected memory errors since the driver was loaded" % ecc["volatile_uncorrected"],
            _RESET + "; a card that does it again needs replacing",
        )
    remapped = ecc["remapped"] or {}
    if remapped.get("failed"):
        add("fail", "a faulty memory row could not be remapped", "the card needs replacing")
    if remapped.get("pending"):
        add("fail", "faulty memory rows wait to be remapped", _RESET)
    if ecc["retired_pending"]:
        add("fail", "faulty memory pages wait to be retired", _RESET)
    if ecc["on"] is not None and ecc["on"] != ecc["pending"]:
        add("warn", "ECC is %s and will be %s" % (_switch(ecc["on"]), _switch(ecc["pending"])), _RESET)
    mig = card["mig"]
    if mig and mig["current"] != mig["pending"]:
        add("warn", "MIG is %s and will be %s" % (_switch(mig["current"]), _switch(mig["pending"])), _RESET)
    fabric = card["fabric"]
    if fabric and fabric["state"] != "not supported":
        if fabric["state"] != "completed":
            add(
                "fail",
                "the NVLink fabric is not ready: %s" % fabric["state"],
                "see service.fabric_manager; CUDA fails with error 802 until then",
            )
        elif fabric["status"]:
            add(
                "fail",
                "the NVLink fabric failed with status %d" % fabric["status"],
                "see service.fabric_manager and its log",
            )
    if card["compute_mode"] == 2:
        add("warn", "compute mode is Prohibited: no program may use the card", "nvidia-smi -c 0")
    return found


def under_load(card, load):
    """[(status, sentence, hint)] from samples of a card at work; the first half is left for clocks to rise."""
    found = []
    busy = load[len(load) // 2 :]
    if not busy:
        return found
    held = 0
    for sample in busy:
        held |= sample["reasons"] or 0
    if held & (HW_THERMAL | HW_SLOWDOWN | POWER_BRAKE):
        words = [
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
                "slowed down under load by %s" % " and ".join(words),
                "cooling, power cables and power supply: nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
            )
        )
    elif held & SW_THERMAL:
        found.append(("warn", "slowed down under load by heat", "cooling: nvidia-smi -q -d TEMPERATURE"))
    hottest = max((sample["temperature"] for sample in busy if sample["temperature"] is not None), default=None)
    most = card["temperature"]["maximum"] or card["temperature"]["slowdown"]
    if hottest is not None and most and hottest >= most:
        found.append(("warn", "%d C under load, %d is the most it is made for" % (hottest, most), "cooling"))
    clock = max((sample["sm_mhz"] for sample in busy if sample["sm_mhz"]), default=None)
    if clock and card["max_sm_mhz"] and clock < CLOCK_SHARE * card["max_sm_mhz"] and not held & ~0x1:
        found.append(
            (
                "warn",
                "its clock stays at %d of %d MHz under load, and no limit explains it" % (clock, card["max_sm_mhz"]),
                "nvidia-smi -q -d CLOCK,PERFORMANCE; nvidia-smi -rgc frees locked clocks",
            )
        )
    pcie = card["pcie"]
    for name, most_name, words in (("generation", "max_generation", "generation"), ("width", "max_width", "width")):
        now = max((sample[name] for sample in load if sample[name]), default=None)
        if now and pcie[most_name] and now < pcie[most_name]:
            found.append(
                (
                    "warn",
                    "PCIe %s is %d under load, card and slot can do %d" % (words, now, pcie[most_name]),
                    "reseat the card; riser, cable and BIOS settings of the slot",
                )
            )
    return found


def mismatches(cards):
    """[(status, sentence, hint)]: cards of one kind with different firmware, or with different MIG or ECC modes."""
    found, kinds = [], {}
    for card in cards:
        kinds.setdefault((card["name"], card["pci_id"]), []).append(card)
    for (name, _), twins in sorted(kinds.items()):
        versions = {}
        for card in twins:
            versions.setdefault(card["vbios"], []).append(str(card["index"]))
        if len(versions) > 1:
            words = "; ".join(
                "%s on %s" % (version, ", ".join(where)) for version, where in sorted(versions.items(), key=str)
            )
            found.append(
                ("warn", "%s cards have different firmware: %s" % (name, words), "the server's vendor has the updates")
            )
        # How many links a card should have depends on board and bridges; its twins tell.
        best = max(_links_up(card) for card in twins)
        for card in twins:
            if _links_up(card) < best:
                words = "card %d: %d NVLinks are up, its twins have %d" % (card["index"], _links_up(card), best)
                found.append(
                    ("warn", words, "nvidia-smi nvlink -s; reseat the bridge, or see the fabric manager's log")
                )
        modes = {card["ecc"]["on"] for card in twins}
        if len(modes) > 1:
            found.append(("warn", "%s cards differ in ECC" % name, "nvidia-smi -e 1, then a reset"))
    return found


def measured(card, load):
    """Numbers of one card, units in the names."""
    numbers = {
        "temperature_c": card["temperature"]["now"],
        "ecc_volatile_uncorrected": card["ecc"]["volatile_uncorrected"],
        "ecc_aggregate_uncorrected": card["ecc"]["aggregate_uncorrected"],
        "pcie_replays": card["pcie"]["replays"],
    }
    for name, field in (("load_sm_mhz", "sm_mhz"), ("load_power_w", "power_w"), ("load_temperature_c", "temperature")):
        numbers[name] = max((sample[field] for sample in load if sample[field] is not None), default=None)
    return {name: value for name, value in numbers.items() if value is not None}


def describe(card, load):
    """One line about a card: what was read, and what is not there to be read."""
    ecc, pcie = card["ecc"], card["pcie"]
    words = [
        "ECC %s"
        % (
            "off"
            if ecc["on"] is False
            else "not there"
            if ecc["on"] is None
            else "%s uncorrected ever"
            % (ecc["aggregate_uncorrected"] if ecc["aggregate_uncorrected"] is not None else "?")
        )
    ]
    if ecc["remapped"]:
        words.append("%d rows remapped" % (ecc["remapped"]["corrected"] + ecc["remapped"]["uncorrected"]))
    if any(ecc["retired_pages"]):
        words.append("%d pages retired" % sum(count or 0 for count in ecc["retired_pages"]))
    if load:
        best = load[-1]
        words.append(
            "at work %s MHz, %s W, %s C, PCIe %s x%s"
            % (best["sm_mhz"], best["power_w"], best["temperature"], best["generation"], best["width"])
        )
        if any((sample["reasons"] or 0) & POWER_CAP for sample in load):
            words.append("held by its power limit")
    else:
        words.append("not loaded")
    if pcie["card_generation"] and pcie["max_generation"] and pcie["max_generation"] < pcie["card_generation"]:
        words.append("its slot does PCIe %d, the card could do %d" % (pcie["max_generation"], pcie["card_generation"]))
    if card["nvlinks"]:
        words.append("%d of %d NVLinks up" % (_links_up(card), len(card["nvlinks"])))
    if card["vbios"]:
        words.append("firmware %s" % card["vbios"])
    return ", ".join(words)


def _links_up(card):
    return sum(1 for row in card["nvlinks"] if row["active"])


def _switch(on):
    return "on" if on else "off"
