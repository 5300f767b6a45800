"""The checks of CUDA, from a table: file trees are read by the probe, what it says is judged (tests/cases/checks_cuda.yml)."""

import copy

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.collection import ROOT
from provision.facts import Facts
from provision.lib import yaml_reader
from provision.parts import checks
from provision.parts.check import Expect
from provision.parts.cuda import checks as cuda_checks
from provision.parts.cuda import library_checks
from tests.unit import cudatrees, trees

TABLE = yaml_reader.load((ROOT / "tests/cases/checks_cuda.yml").read_text(encoding="utf-8"))
OWN = {check.code for check in (*cuda_checks.CHECKS, *library_checks.CHECKS)}


def merged(base, change):
    """Return base with change laid over it: dictionaries are joined, lists too, everything else is replaced."""
    result = copy.deepcopy(base)
    for key, value in (change or {}).items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = {**result[key], **value}
        elif isinstance(value, list) and isinstance(result.get(key), list) and key != "toolkits":
            result[key] = result[key] + value
        else:
            result[key] = value
    return result


def judged(case, where):
    """Verdicts by id of a case."""
    base = TABLE["hosts"][case.get("host", "nothing")]
    tree = cudatrees.expand(merged(base.get("tree", {}), case.get("tree")))
    found = probe_facts.collect(root=str(trees.build(where / "host", tree)))
    found["module"]["loaded"] = {
        "version": case.get("driver", "580.159.04"),
        "flavour": "open",
        "refcount": None,
        "holders": [],
    }
    found["smi"]["gpus"] = [{"index": 0, "name": case.get("gpu", "NVIDIA H100 80GB HBM3")}]
    found["smi"]["cuda_version"] = case.get("carries", "13.0")
    facts = Facts.model_validate(found)
    config = {} if case.get("config") is False else {**base.get("config", {}), **case.get("config", {})}
    if config:
        config.setdefault("needs", TABLE["needs"])
        rows = [row.split() for row in tree["packages"]]
        config.setdefault(
            "names", [name for name, _, status in rows if status == "hi" and not name.startswith("cuda-compat")]
        )
    verdicts = checks.run(facts, Expect.model_validate({"cuda": config or {"needs": TABLE["needs"]}}))
    return {verdict.code: verdict.model_dump() for verdict in verdicts if verdict.code in OWN}


@pytest.mark.parametrize("case", TABLE["cases"], ids=lambda case: case["name"])
def test_host(case, tmp_path):
    verdicts = judged(case, tmp_path)
    for check, (status, *words) in case["expect"].items():
        verdict = verdicts[check]
        assert verdict["status"] == status, verdict
        said = " ".join([verdict["message"], *verdict["evidence"], verdict["hint"] or ""])
        for word in map(str, words):
            assert (word[1:] not in said) if word.startswith("!") else (word in said), (word, said)
        assert status in ("pass", "skip") or verdict["hint"], "what is wrong comes with a way out"
    others = [v for check, v in verdicts.items() if check not in case["expect"]]
    assert not [v for v in others if v["status"] in ("warn", "fail")], others


@pytest.mark.parametrize("name", list(TABLE["hosts"]))
def test_a_healthy_host_is_told_so(name, tmp_path):
    verdicts = judged({"host": name, **TABLE["hosts"][name].get("case", {})}, tmp_path)
    assert not [v for v in verdicts.values() if v["status"] in ("warn", "fail")]
    skipped = {check for check, v in verdicts.items() if v["status"] == "skip"}
    assert skipped == set(TABLE["hosts"][name].get("skips", []))


def test_a_tree_without_its_fault_is_another_case():
    """Cases are told apart by their names; each names what it expects."""
    names = [case["name"] for case in TABLE["cases"]]
    assert len(names) == len(set(names))
    assert all(case["expect"] for case in TABLE["cases"])
