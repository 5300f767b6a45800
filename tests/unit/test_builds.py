"""The one rule of what runs where: builds against drivers and GPUs, and the search for the smallest change that works."""

from __future__ import annotations

import pytest

from provision.catalog import Gpu, load_catalog
from provision.catalog.builds import Driver, WhyNot, choose_torch, of_tensorflow, of_toolkit, of_torch
from provision.lib.suggest import combined, suggest

CATALOG = load_catalog()


def gpu(text: str) -> Gpu:
    found = CATALOG.find_gpu(text).gpu
    assert found is not None, text
    return found


@pytest.mark.parametrize(
    ("version", "least", "enough"),
    [
        ("580", "580.65.06", True),
        ("580.65.06", "580.65.06", True),
        ("580.10", "580.65.06", False),
        ("575", "580.65.06", False),
        ("", "580.65.06", True),
    ],
)
def test_a_branch_counts_by_its_newest_driver(version: str, least: str, enough: bool) -> None:
    assert Driver(version).is_at_least(least) is enough


def test_ptx_needs_a_driver_that_knows_the_cuda() -> None:
    assert Driver("580", "13.0").knows("13.0.2")
    assert not Driver("580", "13.0").knows("13.1")
    assert Driver("580").knows("13.5")


@pytest.mark.parametrize(
    ("name", "tag", "driver", "why"),
    [
        ("V100", "cu130", Driver("580", "13.0"), "no_code"),
        ("10de:3fff", "cu130", Driver("575", "12.9"), "ptx"),
        ("10de:3fff", "cu130", Driver("580", "13.0"), None),
        ("H100", "cu130", Driver("570", "12.8"), "driver"),
        ("H100", "cu128", Driver("525.60.13", "12.0"), None),
        ("RTX 5090", "cu128", Driver("570.20", "12.8"), "driver"),
    ],
)
def test_why_wheels_of_torch_do_not_run(name: str, tag: str, driver: Driver, why: str | None) -> None:
    found = of_torch(CATALOG, "2.9.1", tag, "x86_64").why_not([gpu(name)], driver)
    assert (found.kind if found else None) == why


def test_the_oldest_driver_is_named() -> None:
    old = Driver("525.60.13", "12.0")
    assert of_toolkit(CATALOG, "13.0").why_not([gpu("H100")], old) == WhyNot("driver", least="580.65.06")
    assert of_torch(CATALOG, "2.9.1", "cu128", "x86_64").least([gpu("RTX 5090")]) == "570.26"
    assert of_tensorflow(CATALOG, CATALOG.tensorflow("2.14")).min_driver == "450.80.02"


@pytest.mark.parametrize(
    ("tags", "cudas", "name", "chosen"),
    [
        (["cu126", "cu128", "cu130"], [], "H100", "cu128"),
        (["cu126", "cu130"], [], "H100", "cu130"),
        (["cu126", "cu128", "cu130"], ["12.6"], "H100", "cu126"),
        (["cu126", "cu128", "cu130"], ["13.1"], "H100", "cu130"),
        (["cu128", "cu130"], ["13.0"], "10de:3fff", "cu130"),
    ],
)
def test_which_build_of_torch_is_taken(tags: list[str], cudas: list[str], name: str, chosen: str) -> None:
    builds = {tag: of_torch(CATALOG, "2.9.1", tag, "x86_64") for tag in tags}
    assert choose_torch(CATALOG.torch("2.9.1"), builds, [gpu(name)], cudas) == chosen


def test_the_smallest_change_that_works_is_found() -> None:
    singles = [("a", 1), ("a", 2), ("b", 1)]
    assert list(combined(singles)) == [{"a": 1}, {"a": 2}, {"b": 1}, {"a": 1, "b": 1}, {"a": 2, "b": 1}]
    assert suggest(combined(singles), lambda change: change.get("a") == 2 and "b" in change) == {"a": 2, "b": 1}
    assert suggest(combined(singles), lambda change: False) is None
