"""Role variables: unknown, wrong, converted; from a table, and with a role made up for the other types."""

from pathlib import Path

import pytest

from provision.catalog import load_catalog
from provision.collection import ROOT
from provision.facts import Facts
from provision.inventory import PREFIXES, Host, cards, variables
from provision.lib import yaml_reader
from provision.parts.hardware import cards_of

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/variables.yml").read_text())
ROLE = """
argument_specs:
  main:
    options:
      cuda_toolkit_versions: {type: list, elements: str, default: []}
      cuda_toolkit_parts: {type: list, elements: str, choices: [a, b], default: []}
      cuda_toolkit_ratio: {type: float, default: 0.5}
      cuda_toolkit_prefix: {type: path, default: ""}
      miniconda_environments:
        type: list
        elements: dict
        default: []
        options:
          name: {type: str, required: true}
          python: {type: str, default: "3.12"}
          gpu: {type: bool, default: true}
      cuda_toolkit_extra: {type: dict, default: {}}
"""


@pytest.fixture
def roles(tmp_path):
    folder = tmp_path / "made_up/meta"
    folder.mkdir(parents=True)
    (folder / "argument_specs.yml").write_text(ROLE)
    (tmp_path / "made_up/defaults").mkdir()
    (tmp_path / "made_up/defaults/main.yml").write_text("cuda_toolkit_ratio: 0.75\n")
    return tmp_path


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_variables_of_our_roles(case):
    host = Host(name="gpu01", vars=case["vars"], origins=dict.fromkeys(case["vars"], "group gpus"))
    if "want" in case:
        found = variables.effective(host)
        assert {name: found[name] for name in case["want"]} == case["want"]
        assert all(name.startswith(PREFIXES) for name in found)
        return
    code, message, hint = case["refused"]
    with pytest.raises(variables.VariablesError) as caught:
        variables.effective(host)
    issue = caught.value.issue
    assert (caught.value.exit_code, issue.code, issue.host) == (64, code, "gpu01")
    assert message in issue.message
    assert "(group gpus)" in issue.message
    assert hint in issue.hint


def test_cards_are_expected_by_every_name_that_init_writes():
    for device in yaml_reader.load((ROOT / "provision/catalog/data/gpus.yml").read_text())["devices"]:
        text = cards_of(Facts.model_validate({"gpus": [{"slot": "0000:01:00.0", "device": device}]}), load_catalog())
        cards.check(text)


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        ("cuda_toolkit_versions", "12.4, 11.8", ["12.4", "11.8"]),
        ("cuda_toolkit_versions", [12.4, "11.8"], ["12.4", "11.8"]),
        ("cuda_toolkit_versions", 12.4, ["12.4"]),
        ("cuda_toolkit_parts", ["a"], ["a"]),
        ("cuda_toolkit_ratio", "0.25", 0.25),
        ("cuda_toolkit_prefix", "~/x", str(Path("~/x").expanduser())),
        ("cuda_toolkit_extra", {"k": 1}, {"k": 1}),
        ("miniconda_environments", [{"name": "a", "gpu": "no"}], [{"name": "a", "gpu": False, "python": "3.12"}]),
    ],
)
def test_conversions(roles, name, value, want):
    assert variables.effective(Host(name="gpu01", vars={name: value}), roles)[name] == want


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("cuda_toolkit_parts", ["c"], "'c' is not one of a, b"),
        ("cuda_toolkit_versions", {"a": 1}, "is not a list"),
        ("cuda_toolkit_versions", True, "is not a list"),
        ("cuda_toolkit_extra", "x", "is not a mapping"),
        ("cuda_toolkit_ratio", "much", "is not a number"),
        ("miniconda_environments", [{"nmae": "a"}], "unknown key nmae, did you mean name?"),
        ("miniconda_environments", [{"python": "3.12"}], "name is missing"),
        ("miniconda_environments", [{"name": None}], "name is missing"),
        ("miniconda_environments", [{"name": "a", "gpu": "x"}], "gpu: 'x' is not true or false"),
        ("miniconda_environments", ["a"], "'a' is not a mapping"),
    ],
)
def test_refusals(roles, name, value, text):
    with pytest.raises(variables.VariablesError) as caught:
        variables.effective(Host(name="gpu01", vars={name: value}), roles)
    assert text in caught.value.issue.message


def test_defaults_file_is_the_default(roles):
    assert variables.effective(Host(name="gpu01"), roles)["cuda_toolkit_ratio"] == 0.75


def test_a_groups_variable_is_wrong_once(roles):
    hosts = [
        Host(
            name=f"gpu{n}",
            vars={"cuda_toolkit_version": "12", "gpu_verify_x": 1},
            origins={"cuda_toolkit_version": "group gpus"},
        )
        for n in range(6)
    ]
    with pytest.raises(variables.VariablesError) as caught:
        variables.effective_all(hosts, roles)
    assert len(caught.value.issues) == 2
    assert caught.value.issues[0].because[-1] == "hosts: gpu0, gpu1, gpu2, gpu3 and 2 more"


def test_a_variable_of_another_program_is_looked_at_once_for_all_hosts(monkeypatch):
    """Whether hosts or groups have it: a fleet of a thousand with twenty of them took three seconds."""
    asked = []
    monkeypatch.setattr(variables, "unknown", lambda name, origin, known: asked.append(name))
    hosts = [
        Host(name=f"gpu{n}", vars={"rack": n, "room": 1}, origins={"rack": f"host gpu{n}", "room": "group all"})
        for n in range(50)
    ]
    variables.effective_all(hosts)
    assert asked == ["rack", "room"]
