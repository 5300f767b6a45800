"""What the probe says of recorded and described hosts (tests/cases/probe.yml, probe_cuda.yml)."""

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.collection import ROOT
from provision.facts import Facts
from provision.lib import yaml_reader
from tests.unit import trees

CASES = [
    case
    for name in ("probe", "probe_cuda")
    for case in yaml_reader.load((ROOT / f"tests/cases/{name}.yml").read_text(encoding="utf-8"))
]


def pick(data, path):
    """Value at a dotted path; a part may hold dots itself (package names), the longest that exists is taken."""
    if not path:
        return data
    parts = path.split(".")
    for size in range(len(parts), 0, -1):
        name, rest = ".".join(parts[:size]), ".".join(parts[size:])
        if isinstance(data, list) and name.isdigit():
            return pick(data[int(name)], rest)
        if isinstance(data, dict) and name in data:
            return pick(data[name], rest)
    raise AssertionError(f"no {path} in {sorted(data) if isinstance(data, dict) else data}")


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_host_state(case, tmp_path):
    root = trees.build(tmp_path / "host", case["tree"])
    facts = probe_facts.collect(root=str(root), run=trees.runner(case["tree"]))
    Facts.model_validate(facts, strict=True)
    # that is diagnose's own
    assert set(facts) == set(Facts.model_fields) - {"trouble"}
    for path, wanted in case["expect"].items():
        value = pick(facts, path)
        if isinstance(wanted, dict) and "contains" in wanted:
            assert wanted["contains"] in value, path
        elif isinstance(wanted, dict) and "length" in wanted:
            assert len(value) == wanted["length"], (path, value)
        else:
            assert value == wanted, path


def test_empty_tree_guesses_nothing(tmp_path):
    facts = probe_facts.collect(root=str(tmp_path))
    parsed = Facts.model_validate(facts, strict=True)
    assert parsed.gpus == [] and parsed.module.loaded is None and parsed.kernels.next is None
    assert parsed.smi.path is None and parsed.secure_boot.enabled is False and parsed.packages == {}
    assert parsed.host.uptime_s is None and parsed.host.boot_id is None
