"""The checks of containers, from a table; and that they agree with the plan."""

from pathlib import Path

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from provision.catalog import load_catalog
from provision.lib import yaml_reader
from provision.parts.check import Expect
from provision.parts.containers import checks as containers_checks
from provision.parts.containers.plan import containers_expectation
from provision.parts.containers.resolve import resolve_containers
from tests.sample import share
from tests.unit.containershosts import carried_out, case_driver, case_host, decided
from tests.unit.test_resolve_containers import CASES as RESOLVE
from tests.unit.test_resolve_containers import ready

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/containers_checks.yml").read_text())
IDS = ["packages", "runtime", "cdi", "shm", "group", "flags", "links"]


def run(facts, want):
    expect = Expect.model_validate({"containers": want})
    return {
        check.code.removeprefix("container."): check(facts, expect).model_dump() for check in containers_checks.CHECKS
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_checks_of_containers(case):
    loaded = case.get("loaded", "580.126.20")
    host = {
        **case,
        "gpus": ["H100"] * case.get("gpus", 1),
        "containers": case.get("containers") or {},
        "driver": f"580-server {loaded} open signed" if loaded else "",
    }
    facts = case_host(host)
    facts.devices = ["/dev/nvidia0"]
    verdicts = run(facts, case.get("want", {}))
    assert list(verdicts) == IDS
    for name, (status, *words) in case["expect"].items():
        verdict = verdicts[name]
        said = " ".join([verdict["message"], *verdict["evidence"], verdict["hint"] or ""])
        assert verdict["status"] == status, verdict
        assert all(word in said for word in words), said
    for verdict in verdicts.values():
        assert verdict["hint"] or verdict["status"] in ("pass", "skip"), "what is wrong has a way out"


@pytest.mark.parametrize("case", share(RESOLVE, 3), ids=lambda case: case["name"])
def test_what_is_carried_out_passes(case):
    """Checks and plan agree: after a plan was carried out nothing of what was asked for fails."""
    case = ready(case)
    config, facts, decision = decided(case)
    if decision.target is None:
        return
    after = carried_out(facts, decision.target)
    after.containers.toolkit.program = True
    again = resolve_containers(config, after, load_catalog(), {}, case_driver(case, after))
    want = containers_expectation(config, after, load_catalog(), again)
    verdicts = run(after, want)
    assert {v["id"]: v for v in verdicts.values() if v["status"] == "fail"} == {}
    assert verdicts["packages"]["status"] in ("pass", "warn")


@pytest.mark.parametrize("case", share(RESOLVE[1:], 3), ids=lambda case: case["name"])
def test_what_the_plan_would_change_does_not_pass(case):
    case = ready(case)
    config, facts, decision = decided(case)
    if decision.target is None or facts.containers.docker.file.error:
        return
    before = resolve_containers(config, facts, load_catalog(), {}, case_driver(case, facts))
    verdicts = run(facts, containers_expectation(config, facts, load_catalog(), before))
    if decision.target.packages and not config.update:
        assert {"fail", "warn"} & {v["status"] for v in verdicts.values()}
    if "runtimes.nvidia" in decision.target.keys:
        assert verdicts["runtime"]["status"] == "fail"


def test_a_refusal_is_a_failure():
    case = {"config": {"runtimes": ["docker"]}, "containers": {"docker": {"snap": True}}, "toolkit": "1.20.0"}
    config, facts, decision = decided(case)
    verdicts = run(facts, containers_expectation(config, facts, load_catalog(), decision))
    assert verdicts["runtime"]["status"] == "fail" and "snap" in verdicts["runtime"]["message"]


@pytest.mark.parametrize(
    "config",
    [
        {"cdi": "always"},
        {"default_runtime": "nvidia"},
        {"shm_size": "8G"},
        {"version": "1.18.0"},
        {"docker_users": ["ann"]},
    ],
    ids=str,
)
def test_a_host_that_names_no_runtime_is_held_to_nothing(config):
    """The settings of a group reach hosts without containers, too: the role does nothing there, so verify asks for nothing."""
    case = {"config": config, "containers": {"docker": {"engine": "/usr/bin/dockerd"}}}
    config, facts, decision = decided(case)
    assert decision.target is None and not decision.blockers
    verdicts = run(facts, containers_expectation(config, facts, load_catalog(), decision))
    assert {v["id"]: v["message"] for v in verdicts.values() if v["status"] == "fail"} == {}
