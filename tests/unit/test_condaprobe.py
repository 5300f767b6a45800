"""What the probe says of conda on recorded and described hosts (tests/cases/conda_probe.yml)."""

import os

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.conda import environment as conda_environment
from ansible_collections.gpu.provision.plugins.module_utils.conda import probe as conda_probe
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.collection import ROOT
from provision.facts import Conda
from provision.lib import yaml_reader
from tests.unit import condatrees
from tests.unit.test_probe import pick

CASES = yaml_reader.load((ROOT / "tests/cases/conda_probe.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_conda_on_a_host(case, tmp_path, monkeypatch):
    root = condatrees.build(tmp_path / "host", case["tree"])
    if "owners" in case:
        monkeypatch.setattr(conda_environment, "owner", lambda *_: case["owners"][0])
    facts = conda_probe.read(HostTree(root), case.get("wanted", ()))
    Conda.model_validate(facts, strict=True)
    for path, wanted in case["expect"].items():
        value = pick(facts, path)
        if isinstance(wanted, dict) and "length" in wanted:
            assert len(value) == wanted["length"], (path, value)
        else:
            assert value == wanted, path


def test_the_read_of_a_host_has_it(tmp_path):
    root = condatrees.build(tmp_path / "host", {"prefixes": [{"path": "/data/c"}]})
    assert probe_facts.collect(root)["conda"]["prefixes"] == []
    asked = probe_facts.main({"root": root, "conda_prefixes": ["/data/c"]})
    assert asked["conda"]["prefixes"][0]["state"] == "whole"


def test_owner_is_told_by_name(tmp_path):
    uid = os.getuid()
    passwd = f"carol:x:{uid}:{uid}::/home/carol:/bin/bash\n"
    root = condatrees.build(tmp_path / "host", {"files": {"/etc/passwd": passwd}, "prefixes": [{"path": "/opt/c"}]})
    wanted = "carol" if uid == 0 or uid >= 1000 else str(uid)
    assert conda_probe.read(HostTree(root))["prefixes"][0]["owner"] == wanted


def test_digest_changes_with_the_packages_and_only_with_them(tmp_path):
    environment = {"path": "/e", "packages": ["zlib-1.3-h1_0"], "pip": ["torch-2.6.0+cu124"]}
    root = condatrees.build(tmp_path / "one", {"environments": [environment]})
    before = conda_environment.digest(root + "/e")
    assert before == conda_environment.read_environment(HostTree(root), "/e")["digest"]
    (tmp_path / "one/e/conda-meta/gpu-provision").write_text("{}")
    (tmp_path / "one/e/conda-meta/history").write_text("more")
    assert conda_environment.digest(root + "/e") == before
    (tmp_path / "one/e/lib/python3.11/site-packages/numpy-2.1.0.dist-info").mkdir()
    after_pip = conda_environment.digest(root + "/e")
    (tmp_path / "one/e/conda-meta/zlib-1.3-h1_0.json").unlink()
    assert len({before, after_pip, conda_environment.digest(root + "/e")}) == 3


@pytest.mark.parametrize(
    ("name", "real", "kept"),
    [
        ("11.0", "11.8.89", True),
        ("11.0", "12.0.1", False),
        ("12", "12.4.127", True),
        ("12", "11.8.89", False),
        ("10.1", "10.1.243", True),
        ("10.1", "10.2.89", False),
        ("10.2.89", "10.2.89", True),
        ("11.2", "11.2.152", True),
        ("11.2", "11.8.89", False),
        ("13", "13.0.96", True),
        ("9.0", "9.0.176", True),
    ],
)
def test_what_a_name_of_libcudart_promises(name, real, kept):
    assert conda_environment.keeps_promise(name, real) is kept


def test_many_environments_are_read_without_opening_their_packages(tmp_path, monkeypatch):
    environments = [
        {"path": f"/opt/c/envs/e{n}", "packages": ["pytorch-2.3.1-py3.11_cuda12.1_cudnn8.9.2_0"]} for n in range(30)
    ]
    root = condatrees.build(tmp_path / "host", {"prefixes": [{"path": "/opt/c"}], "environments": environments})
    tree, opened = HostTree(root), []
    read_bytes = tree.read_bytes
    monkeypatch.setattr(tree, "read_bytes", lambda path, *limits: opened.append(path) or read_bytes(path, *limits))
    facts = conda_probe.read(tree)
    assert [e["cuda"] for e in facts["environments"]] == ["12.1"] * 30
    assert [path for path in opened if path.endswith(".json")] == ["/opt/c/conda-meta/conda-26.5.3-py313_0.json"]
