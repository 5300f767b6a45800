"""Cards that are quietly sick, from a table: one healthy card, changed in one way at a time."""

import pytest

import provision.collection  # noqa: F401
from provision.parts.driver import health
from tests.unit.provecases import card, says, table

SAMPLE = {
    "sm_mhz": 1980,
    "memory_mhz": 2619,
    "reasons": 0,
    "temperature": 50,
    "power_w": 440.0,
    "generation": 5,
    "width": 16,
}


@pytest.mark.parametrize("case", table("health"), ids=lambda case: case["name"])
def test_health(case):
    cards = [card(0, **case.get("change", {}))]
    if "twin" in case:
        cards.append(card(1, **case["twin"]))
    busy = [dict(SAMPLE, **case.get("load", {})) for _ in range(4)]
    load = [dict(sample, **case.get("first", {})) for sample in busy[:2]] + busy[2:]
    samples = {row["index"]: load for row in cards} if case.get("loaded", True) else {}
    status, message, evidence, hint, numbers = health.judge(cards, case.get("lost", []), samples)
    assert status == case["expect"][0], (message, evidence)
    says(case["expect"][1:], message, evidence, hint or "")
    assert hint or status == "pass", "what is wrong comes with a way out"
    assert all(isinstance(value, (int, float)) for value in numbers.values())


def test_numbers_have_their_units_in_their_names():
    numbers = health.measured(card(), [SAMPLE])
    assert numbers["load_power_w"] == 440.0
    assert numbers["load_sm_mhz"] == 1980
    assert "load_power_w" not in health.measured(card(), [])
