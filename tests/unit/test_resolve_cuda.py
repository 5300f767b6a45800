"""resolve, from a table: which CUDA toolkits, or why not."""

from pathlib import Path

import pytest

from provision.lib import yaml_reader
from tests.unit.candidates import CANDIDATES as DRIVER_CANDIDATES
from tests.unit.cudacandidates import CANDIDATES
from tests.unit.cudahosts import case_candidates, case_config, case_driver, case_host, resolved

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/cuda.yml").read_text())
KNOWN = {
    "ask",
    "blocker",
    "default",
    "cudnn",
    "has",
    "holds",
    "installed",
    "lacks",
    "lacks_words",
    "nccl",
    "no_warnings",
    "not_held",
    "not_removed",
    "nothing",
    "packages",
    "packages_include",
    "reason",
    "releases",
    "removes",
    "some_removed",
    "versions",
    "warning_words",
    "warnings",
    "words",
}


def test_the_table_is_large_and_says_nothing_twice():
    names = [case["name"] for case in CASES]
    assert len(names) >= 100
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_resolve_cuda(case):
    expect = case["expect"]
    assert set(expect) <= KNOWN
    facts, config, available = case_host(case), case_config(case), case_candidates(case)
    archive = case.get("archive", "drivers")
    named = {"drivers": DRIVER_CANDIDATES["noble"], None: None}
    has = named[archive] if archive in named else CANDIDATES[archive]
    decision = resolved(config, facts, available, case_driver(case, facts, config), has)
    codes = [issue.code for issue in decision.warnings]
    if "blocker" in expect:
        refused(decision, expect)
        return
    assert not decision.blockers, decision.blockers
    assert decision.ask == expect.get("ask")
    if "ask" in expect or expect.get("nothing"):
        assert decision.target is None
        return
    target = decision.target
    assert target is not None
    assert set(expect.get("warnings", [])) <= set(codes), codes
    assert not set(expect.get("no_warnings", [])) & set(codes), codes
    told = " ".join(" ".join([i.message, *i.because, i.hint or ""]) for i in decision.warnings)
    assert all(word in told for word in expect.get("warning_words", [])), told
    have = {f"{name}={version}" for name, version in target.packages.items()}
    assert set(expect.get("has", [])) <= have, have
    assert not set(expect.get("lacks", [])) & set(target.packages)
    assert expect.get("packages_include", {}).items() <= target.packages.items()
    if "packages" in expect:
        assert target.packages == expect["packages"]
    assert set(expect.get("holds", [])) <= set(target.names)
    assert not set(expect.get("not_held", [])) & set(target.names)
    if "removes" in expect:
        assert list(target.remove) == expect["removes"]
    assert set(expect.get("some_removed", [])) <= set(target.remove)
    assert not set(expect.get("not_removed", [])) & set(target.remove)
    if "reason" in expect:
        what, part = expect["reason"]
        assert any(r.what == what and part in f"{r.value} {r.because}" for r in decision.reasons), decision.reasons
    for name in ("default", "cudnn", "nccl", "installed", "releases"):
        if name in expect:
            assert getattr(target, name) == expect[name], name
    if "versions" in expect:
        assert list(target.versions) == expect["versions"]
    assert {f"CUDA {minor}" for minor in target.versions} | {"default"} <= {r.what for r in decision.reasons}


def refused(decision, expect):
    assert decision.blockers
    first = decision.blockers[0]
    assert first.code == expect["blocker"], decision.blockers
    said = " ".join([first.message, *first.because, first.hint or ""])
    assert all(word in said for word in expect.get("words", [])), said
    assert not any(word in said for word in expect.get("lacks_words", [])), said
    assert all(issue.hint and issue.because for issue in decision.blockers), (
        "every refusal says why and names a way out"
    )
    assert decision.target is None
