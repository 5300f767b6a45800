"""plan for conda: the modules' arguments and the steps, for the cases of the resolve table and a few of its own."""

import re

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from provision.catalog import load_catalog
from provision.collection import ROOT
from provision.lib import yaml_reader
from provision.parts.check import PrefixExpect
from provision.parts.conda.plan import EXPORTS, conda_expectation, conda_spec, conda_summary
from provision.parts.conda.resolve import resolve_conda
from provision.planning.verification import expect_of, interpreters
from tests.unit.hosts import host
from tests.unit.test_resolve_conda import CASES, given

# The contract with plugins/modules/conda_install.py and conda_environment.py.
INSTALL = {
    "prefix",
    "action",
    "distribution",
    "version",
    "installer",
    "url",
    "file",
    "sha256",
    "owner",
    "group",
    "umask",
    "condarc",
    "accept_tos",
    "profile",
    "shell_init",
}
ENVIRONMENT = {
    "name",
    "prefix",
    "action",
    "owner",
    "group",
    "umask",
    "channels",
    "packages",
    "pip",
    "file_kind",
    "file_content",
    "pip_index_url",
    "override_cuda",
    "library_path",
    "lib64_link",
    "export_to",
    "wish",
}


def planned(case):
    config, facts, driver = given(case)
    decision = resolve_conda(config, facts, load_catalog(), driver)
    return decision, *conda_spec(config, facts, decision)


def case_named(start):
    return next(case for case in CASES if case["name"].startswith(start))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_items_are_the_modules_arguments_and_each_has_its_step(case):
    decision, spec, steps = planned(case)
    assert all(set(item) == INSTALL for item in spec["prefixes"])
    assert all(set(item) == ENVIRONMENT for item in spec["environments"])
    assert [s.id for s in steps] == ["conda"] * len(spec["prefixes"]) + ["environments"] * len(spec["environments"])
    assert all(step.because and step.title for step in steps)
    if decision.blockers:
        assert not steps, "nothing of a refused host is touched"
    for item in spec["prefixes"]:
        if item["action"] in ("install", "repair", "update"):
            assert bool(item["url"]) != bool(item["file"])
            assert item["sha256"] or item["version"] == "latest"
        assert not item["accept_tos"] or case["config"].get("accept_tos"), "M1: never accepted in silence"
    for item in spec["environments"]:
        assert item["channels"]
        assert bool(item["file_content"]) != bool(item["packages"]) or item["wish"].keys() == {"name"}


def test_a_fresh_host():
    _, spec, steps = planned(case_named("two environments on two CUDA versions"))
    assert [item["name"] for item in spec["environments"]] == ["py311cu118", "py311cu121"]
    assert spec["environments"][0]["wish"] == {"name": "py311cu118", "python": "3.11", "cuda": "11.8", "torch": "2.3.1"}
    assert [step.title for step in steps] == [
        "install Miniconda 26.5.3-1 in /opt/miniconda3",
        "make environment py311cu118",
        "make environment py311cu121",
    ]
    assert "torch 2.3.1+cu118" in steps[1].details


def test_a_second_run_changes_nothing():
    """What the modules note when they are done, read again, leaves nothing to do."""
    case = case_named("two environments on two CUDA versions")
    _, spec, _ = planned(case)
    case = dict(
        case,
        conda={
            "prefixes": [
                {
                    "path": "/opt/miniconda3",
                    "distribution": "miniconda",
                    "version": "26.5.3",
                    "record": {"kind": "base"},
                    "condarcs": {"/opt/miniconda3/.condarc": spec["prefixes"][0]["condarc"]["channels"]},
                }
            ],
            "environments": [
                {"path": f"/opt/miniconda3/envs/{item['name']}", "name": item["name"], "record": {"spec": item}}
                for item in spec["environments"]
            ],
        },
    )
    decision, spec, steps = planned(case)
    assert spec == {"prefixes": [], "environments": []}
    assert steps == []
    assert conda_summary(decision) == "conda in /opt/miniconda3, 2 environments"


def test_our_file_in_profile_d_is_written_once():
    case = case_named("M3: conda made reachable")
    text = conda_common.render_profile("/opt/miniconda3")
    case = dict(case, facts={"own_files": {"/etc/profile.d/gpu-provision-conda.sh": apt_files.sha256(text)}})
    assert planned(case)[2] == []


def test_an_export_is_saved_before_a_rebuild():
    _, spec, steps = planned(case_named("and made anew"))
    assert spec["environments"][0]["action"] == "rebuild"
    assert spec["environments"][0]["export_to"] == EXPORTS
    assert any(EXPORTS in line for line in steps[-1].details)


def test_the_plan_says_that_nothing_vouches_for_the_installer_of_the_day():
    _, spec, steps = planned(case_named("the installer of the day"))
    assert spec["prefixes"][0]["sha256"] == ""
    assert "not checked: unpinned" in steps[0].details


@pytest.mark.parametrize(("module", "ours"), [("conda_install", INSTALL), ("conda_environment", ENVIRONMENT)])
def test_the_modules_take_these_arguments(module, ours):
    text = (ROOT / f"plugins/modules/{module}.py").read_text()
    options = yaml_reader.load(re.search(r'DOCUMENTATION = r?"""(.*?)"""', text, re.DOTALL)[1])["options"]
    assert ours <= set(options)
    assert {name for name, option in options.items() if option.get("required")} <= ours
    actions = {"conda_install": {"install", "update", "repair", "configure"}}.get(
        module, {"create", "rebuild", "finish", "configure"}
    )
    assert actions <= set(options["action"]["choices"])


def test_the_interpreters_of_environments_that_are_asked_for_are_judged_by_themselves():
    base = "/opt/miniconda3/envs"
    there = [
        {"name": name, "path": f"{base}/{name}", "prefix": "/opt/miniconda3", "python": "3.11.9", "state": state}
        for name, state in (
            ("cuda", "whole"),
            ("plain", "whole"),
            ("cpu", "whole"),
            ("half", "partial"),
            ("other", "whole"),
        )
    ]
    facts = host(["H100"], conda={"prefixes": [{"path": "/opt/miniconda3"}], "environments": there})
    asked = [
        {"name": "cuda", "torch": "2.6.0", "cuda": "12.4"},
        {"name": "plain", "python": "3.11"},
        {"name": "cpu", "torch": "2.6.0", "cuda": "none"},
        {"name": "half", "torch": "2.6.0"},
        {"name": "gone", "torch": "2.6.0"},
    ]
    values = {"miniconda_environments": asked, "miniconda_rebuild": True, "gpu_verify_python": ["/opt/v/bin/python"]}
    found = interpreters(facts, values, expect_of(facts, values))
    assert found == ["/opt/v/bin/python", f"{base}/cuda/bin/python", f"{base}/plain/bin/python"]
    assert interpreters(facts, {}, expect_of(facts, {})) == []


def test_verify_holds_a_host_to_an_installation_that_the_plan_refuses():
    config, facts, driver = given(case_named("a partial one is refused"))
    decision = resolve_conda(config, facts, load_catalog(), driver)
    assert decision.blockers
    assert conda_expectation(config, decision).prefixes == [PrefixExpect(path="/opt/miniconda3", channels=None)]


def test_what_is_decided_for_two_users_alike_is_told_once():
    case = {"gpus": ["H100"], "driver": "580.126.20", "config": {"users": ["ann", "bea"], "profile": False}}
    decision, _, steps = planned(case)
    assert len(steps) == 2 and [reason.what for reason in decision.reasons] == ["conda channels"]


def test_an_installation_says_what_it_writes_for_logins():
    case = {"gpus": ["H100"], "driver": "580.126.20", "config": {"install": True, "profile": True}}
    assert "write /etc/profile.d/gpu-provision-conda.sh" in planned(case)[2][0].details
