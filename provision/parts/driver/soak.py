"""What minutes of load did to the cards of a host: wrong results, errors that were counted meanwhile, heat, clocks and power."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.prove import errors as prove_errors
from provision.parts.driver import health
from provision.parts.proof import Bounds, Row, Verdict, outcome

# A rate that falls by a tenth while neither heat nor the power limit says why is a fault; this project's judgement.
KEPT_SHARE = 0.9
_WRONG = "take the card out of use; provision dossier collects what its maker asks for"


def judge(found: Row, bounds: Bounds) -> Verdict:
    """Judge what prove.proofs measured for gpu.soak: a card's rounds, and NVML's counters before and after."""
    after = outcome(found["after"])
    counted = {card["index"]: card for card in after.result["cards"]} if after.ok else {}
    before = {card["index"]: card for card in found["cards"]}
    evidence, numbers = list[str](), dict[str, float]()
    rows: list[tuple[str, str, str | None]] = []
    for unit, answer in found["soaked"]:
        label, done = unit["label"], outcome(answer)
        if not done.ok:
            sentence, hint = prove_errors.ending(done, f"card {label}")
            rows.append(("fail", sentence, hint))
            evidence += done.lines(3)
            continue
        result, card = done.result, before[unit["index"]]
        said = (
            [("fail", f"{result['wrong_results']} wrong results: {result['wrong'][0]}", _WRONG)]
            if result["wrong"]
            else []
        )
        said += counters(card, counted.get(unit["index"]))
        said += health.under_load(card, result["load"])
        said += slowed(result)
        rows += [(status, f"card {label}: {text}", hint) for status, text, hint in said]
        evidence += [f"card {label}: {words}" for words in result["wrong"]]
        extremes = _extremes(result["load"])
        evidence.append(f"card {label}: {describe(result, extremes)}")
        numbers |= {f"gpu{label}_{name}": value for name, value in {**result["numbers"], **extremes}.items()}
    evidence += found["why"]
    bad = health.worst(rows, evidence, numbers)
    if bad:
        return bad
    many = len(found["soaked"])
    message = f"{found['seconds']:.0f} s of load, every result right on {many} of {many + len(found['why'])}"
    return "pass", message, evidence, None, numbers


def counters(card: Row, later: Row | None) -> list[tuple[str, str, str]]:
    """What NVML counted meanwhile: [(status, sentence, hint)]."""
    if later is None:
        return [("fail", "the driver has lost it under load", "dmesg | grep -e Xid -e NVRM")]
    found: list[tuple[str, str, str]] = []
    for name, status, text in (
        ("volatile_uncorrected", "fail", "uncorrected memory errors under load"),
        ("volatile_corrected", "warn", "corrected memory errors under load"),
    ):
        more = (later["ecc"][name] or 0) - (card["ecc"][name] or 0)
        if more > 0:
            found.append((status, f"{more} {text}", "see gpu.health; nvidia-smi -q -d ECC,ROW_REMAPPER"))
    return found


def slowed(result: Row) -> list[tuple[str, str, str]]:
    """Rates that fell from the first round to the last, where no limit of heat or power explains it."""
    reasons = 0
    for row in result["load"]:
        reasons |= row["reasons"] or 0
    if reasons & (health.POWER_CAP | health.SW_THERMAL | health.HW_THERMAL | health.HW_SLOWDOWN | health.POWER_BRAKE):
        return []
    numbers = result["numbers"]
    return [
        (
            "warn",
            f"{name} fell from {first:.0f} to {numbers['last_' + name]:.0f} under load, and no limit explains it",
            "nvidia-smi -q -d PERFORMANCE,CLOCK; something else may have used the card",
        )
        for name, first in numbers.items()
        if not name.startswith("last_") and numbers["last_" + name] < KEPT_SHARE * first
    ]


def _extremes(load: Sequence[Row]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for name, field, choose in (
        ("soak_hottest_c", "temperature", max),
        ("soak_most_power_w", "power_w", max),
        ("soak_lowest_sm_mhz", "sm_mhz", min),
    ):
        values = [row[field] for row in load if row[field] is not None]
        if values:
            found[name] = choose(values)
    return found


def describe(result: Row, extremes: Mapping[str, float]) -> str:
    """One line of a card: rounds, rates, heat, power, clocks."""
    text = [f"{result['rounds']} rounds in {result['seconds']:.0f} s"]
    numbers = result["numbers"]
    text += [
        f"{what} {numbers[name]:.0f} to {numbers['last_' + name]:.0f} {unit}"
        for name, what, unit in (("fp16_tflops", "FP16", "TFLOP/s"), ("memory_gb_per_s", "memory", "GB/s"))
        if name in numbers
    ]
    for name, words in (
        ("soak_hottest_c", "up to {:.0f} C"),
        ("soak_most_power_w", "{:.0f} W"),
        ("soak_lowest_sm_mhz", "never below {:.0f} MHz"),
    ):
        if name in extremes:
            text.append(words.format(extremes[name]))
    return ", ".join(text)
