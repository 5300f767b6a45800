"""The checks of conda, from a table."""

from pathlib import Path

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from provision.catalog import load_catalog
from provision.facts import Facts
from provision.lib import yaml_reader
from provision.parts.check import Expect
from provision.parts.conda import checks as conda_checks
from provision.parts.conda.plan import conda_expectation
from provision.parts.conda.resolve import resolve_conda
from tests.unit.test_resolve_conda import CASES as RESOLVE
from tests.unit.test_resolve_conda import given

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/conda_checks.yml").read_text())


def run(facts, want):
    expect = Expect.model_validate({"conda": want})
    return {check.code: check(facts, expect).model_dump() for check in conda_checks.CHECKS}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_checks_of_conda(case):
    gpus = [{"slot": "0000:1b:00.0", "device": "2330"}] * case.get("gpus", 1)
    facts = Facts.model_validate({"gpus": gpus, "conda": case["conda"]})
    verdicts = run(facts, case.get("want", {}))
    assert list(verdicts) == [
        "conda.prefix",
        "conda.environments",
        "conda.cpu_build",
        "conda.libcudart",
        "conda.channels",
    ]
    for name, (status, *words) in case["expect"].items():
        verdict = verdicts[name]
        said = " ".join([verdict["message"], *verdict["evidence"], verdict["hint"] or ""])
        assert verdict["status"] == status, verdict
        assert all(word in said for word in words), said
        assert verdict["hint"] or status in ("pass", "skip"), "what is wrong has a way out"


@pytest.mark.parametrize("case", RESOLVE, ids=lambda case: case["name"])
def test_what_resolve_leaves_as_it_is_passes(case):
    """Checks and plan agree: an environment that the plan leaves alone is no failure of verify, one that it makes is."""
    config, facts, driver = given(case)
    decision = resolve_conda(config, facts, load_catalog(), driver)
    verdict = run(facts, conda_expectation(config, decision))["conda.environments"]
    todo = [env for env in decision.environments if env.action]
    if decision.blockers or todo:
        assert verdict["status"] == "fail"
    elif decision.environments and all(e.builds or e.pip for e in facts.conda.environments):
        assert verdict["status"] == "pass", verdict
