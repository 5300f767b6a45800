"""The difference between a host and its decision, from a table: steps, spec, reboot."""

import hashlib
from datetime import date
from pathlib import Path

import pytest

from provision.catalog import load_catalog
from provision.lib import yaml_reader
from provision.parts.apt import AptPart, combine
from provision.parts.decision import DriverConfig
from provision.parts.driver.plan import plan_driver
from provision.parts.driver.resolve import resolve_driver
from tests.unit import ownfiles
from tests.unit.candidates import CANDIDATES, CUDA_URI
from tests.unit.hosts import host

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/plan.yml").read_text())


def facts_of(case):
    spec = dict(case["host"])
    extra = {"own_files": ownfiles.hashes(*case.get("own", []))}
    facts = host(spec.pop("gpus"), spec.pop("installed", None), spec.pop("nvswitches", 0)).model_dump()
    facts.update(extra)
    for also in spec.pop("also", []):
        name, _, version = also.partition("=")
        facts["packages"][name] = {"version": version or "580.142-0ubuntu0.24.04.1", "status": "hi"}
    if "running" in spec:
        facts["kernels"]["running"] = spec.pop("running")
    if "gone" in spec:
        facts["kernels"]["installed"].append({"release": spec.pop("gone"), "headers": False})
    if "modules" in spec:
        there = spec.pop("modules")
        facts["module"]["on_disk"] = [row for row in facts["module"]["on_disk"] if row["kernel"] in there]
    facts["services"] = {
        "nvidia-persistenced": {"present": True, "enabled": spec.pop("at_boot", True), "running": True}
    }
    facts["initrds"] = spec.pop("initrds", [{"kernel": "6.8.0-48-generic", "newer_than_blacklist": True}])
    if "driver" in spec:
        facts["gpus"][0]["driver"] = spec.pop("driver")
    if "loaded" in spec:
        facts["module"]["loaded"] = spec.pop("loaded")
    if "stale" in spec:
        facts["packages"][spec.pop("stale")] = {"version": "", "status": "hn"}
    if "fabric" in spec:
        version = f"{spec.pop('fabric')}-0ubuntu0.24.04.1"
        facts["packages"]["nvidia-fabricmanager-580"] = {"version": version, "status": "hi"}
    if "sources" in spec:
        facts["apt"]["sources"] = spec.pop("sources")
    if spec.pop("fabric_runs", False):
        facts["services"]["nvidia-fabricmanager"] = {"present": True, "enabled": True, "running": True}
    facts["nvlink5_switch"] = spec.pop("nvlink5", False)
    facts["host"]["systemd"] = spec.pop("systemd", True)
    facts["smi"] = spec.pop("smi", {})
    facts["package_problems"] = spec.pop("problems", [])
    facts["gpu_users"] = spec.pop("users", [])
    assert not spec, spec
    return type(host([])).model_validate(facts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_plan(case):
    facts, config = facts_of(case), DriverConfig(**case.get("config", {}))
    candidates = {channel: CANDIDATES[name] for channel, name in case.get("offers", {}).items()}
    decision = resolve_driver(config, facts, load_catalog(), candidates, date(2026, 11, 28))
    assert decision.target, decision
    source = {"name": "cuda", "uris": CUDA_URI, "suites": "/", "components": ""} if case.get("source") else None
    plan = plan_driver(config, facts, decision, source)
    apt, configure = combine([plan.apt], facts, plan.steps, config.lock_timeout)
    spec, reboot, steps = plan.spec, plan.reboot, [*([configure] if configure else []), *plan.steps]
    expect = dict(case["expect"])
    if "steps" in expect:
        assert [step.id for step in steps] == expect.pop("steps"), steps
    said = "\n".join(detail for step in steps for detail in step.details)
    assert all(word in said for word in expect.pop("details", [])), said
    assert all(any(word in step.title for step in steps) for word in expect.pop("titles", []))
    assert [step.because for step in steps] == expect.pop("because", [step.because for step in steps])
    for word in (wanted := expect.pop("reboot", [])):
        assert any(word in reason for reason in reboot.because), reboot
    assert bool(wanted) == reboot.needed or "reboot" not in case["expect"]
    if "blocked_by" in expect:
        assert reboot.blocked_by == expect.pop("blocked_by")
    if "warning" in expect:
        assert expect.pop("warning") in [issue.code for issue in decision.warnings]
    for field in ("start", "initramfs", "units", "modules"):
        if field in expect:
            assert spec["boot"][field] == expect.pop(field), field
    if "transaction" in expect:
        assert expect.pop("transaction") is (apt is not None)
    assert set(expect.pop("removes", [])) <= set(plan.apt.remove), plan.apt.remove
    if "preferences" in expect:
        assert f"Pin: {expect.pop('preferences')}\n" in apt["configure"]["preferences"]
    for field, value in expect.items():
        assert getattr(plan.apt, field) == value, field
    assert all(step.because for step in steps), "every step says why"
    assert not [
        step for step in steps if step.title.startswith("install ") and step.because.endswith(step.title.split()[-1])
    ]


def test_what_is_written_is_what_a_converged_host_has():
    """The texts of own_files.yml, to the letter: what a first apply writes."""
    case = {"host": {"gpus": ["A100"]}, "config": {"branch": "580-server"}}
    facts, config = facts_of(case), DriverConfig(**case["config"])
    decision = resolve_driver(config, facts, load_catalog(), {"ubuntu": CANDIDATES["noble"]}, date(2026, 11, 28))
    plan = plan_driver(config, facts, decision, None, nvidia_source=True)
    written = {file["path"]: file["content"] for file in plan.spec["boot"]["files"]}
    assert written == dict(ownfiles.FILES[name] for name in ("modprobe", "persistence"))
    assert plan.apt.unattended == ownfiles.UNATTENDED_PATTERNS
    assert plan.apt.preferences == ownfiles.FILES["preferences"][1]


@pytest.mark.parametrize("armored", [True, False])
def test_a_source_of_ours_is_right_with_either_form_of_its_key(armored):
    """The key of a repository may be binary: sources name it .gpg then, and the next plan leaves the file as it is."""
    where = {"name": "cuda", "uris": CUDA_URI, "suites": "/", "components": ""}
    text = f"""\
# written by gpu-provision; changes here are overwritten
Types: deb
URIs: {CUDA_URI}
Suites: /
Signed-By: /etc/apt/keyrings/gpu-provision-cuda.{"asc" if armored else "gpg"}
"""
    path = "/etc/apt/sources.list.d/gpu-provision-cuda.sources"
    part = AptPart(repositories=[(where, "it is wanted")])
    there = host(own_files={path: hashlib.sha256(text.encode()).hexdigest()})
    assert combine([part], there, [], 0) == (None, None)
    _, step = combine([part], host(own_files={path: "00"}), [], 0)
    assert step.details == [f"write {path} for {CUDA_URI}"]
