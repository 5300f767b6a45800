"""Cards that are quietly sick, from a table: one healthy card, changed in one way at a time."""

from types import SimpleNamespace

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import nvml
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


@pytest.mark.parametrize(
    "kind, version",
    # NVML_STRUCT_VERSION of nvml.h: the size and the number of the version
    [(nvml._SramErrors, 0x1000068), (nvml._Repair, 0x100000C), (nvml._Margin, 0x1000008)],
)
@pytest.mark.parametrize("code", [0, 3, 13, 25])
def test_a_structure_that_a_driver_does_not_have_is_none(kind, version, code):
    asked = []

    def function(card, pointer):
        asked.append(pointer._obj.version)
        return code

    library = SimpleNamespace(nvmlErrorString=lambda code: b"error", **({} if code == 13 else {"f": function}))
    driver = nvml.Nvml.__new__(nvml.Nvml)
    driver.library = library
    value = driver.structure("f", None, kind)
    assert (value is None) == (code != 0)
    assert asked in ([], [version])
