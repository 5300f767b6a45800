"""What must be true of whatever is asked of conda: no config raises, every refusal has a way out, a plan settles."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from provision.catalog import load_catalog
from provision.inventory import variables
from provision.lib import yaml_reader
from provision.parts.conda.desired import CondaConfig
from provision.parts.conda.file import read_file
from provision.parts.conda.plan import conda_spec
from provision.parts.conda.resolve import resolve_conda
from provision.parts.decision import Decision, Target
from tests.unit.hosts import host

ROLE = Path(__file__).parents[2] / "roles/miniconda"
CATALOG = load_catalog()
TORCH = st.sampled_from([*CATALOG.frameworks.torch.releases, "2", "2.6", "2.6.0+cu124", "1.12.1+cu113", "9.9", "x", ""])
CUDA = st.sampled_from(["", "11.3", "11.8", "12", "12.1", "12.4", "12.7", "13.0", "13.2", "13.9", "none", "1", "a"])
PYTHON = st.sampled_from(["", "3.7", "3.9", "3.10", "3.11", "3.14", "3.1", "2.7", "3.11.9", "snake"])
ENVIRONMENT = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "b", "py311", "base", "-x"]),
        "python": PYTHON,
        "cuda": CUDA,
        "torch": TORCH,
        "torch_from": st.sampled_from(["auto", "pytorch", "wheels"]),
        "tensorflow": st.sampled_from(["", "", "2.10", "2.12", "2.16.1", "2.18", "2.21", "3"]),
        "jax": st.sampled_from(["", "", "0.4.35", "x"]),
        "cudnn": st.sampled_from(["", "", "8", "8.9.7", "9", "9.99"]),
        "packages": st.sampled_from([[], ["ipykernel"], ["-y"]]),
        "pip": st.sampled_from([[], ["transformers"]]),
    }
)
HOST = st.tuples(
    st.lists(st.sampled_from(["K80", "V100", "A100", "H100", "RTX 5090", "unknown"]), max_size=2),
    st.sampled_from([None, "470.256.02", "550.163.01", "580.126.20", "620.70.06", "999.1.1"]),
    st.sampled_from(["amd64", "arm64"]),
)


def decide(environments, gpus, driver, arch):
    config = CondaConfig.from_vars({"miniconda_environments": environments})
    facts = host(gpus, host={"arch": arch, "os": {"id": "ubuntu", "version_id": "24.04"}})
    target = Target("ubuntu", "x", driver, "open", "signed", "headless") if driver else None
    return config, facts, resolve_conda(config, facts, CATALOG, Decision(target=target))


@given(st.lists(ENVIRONMENT, min_size=1, max_size=3), HOST)
def test_whatever_is_asked_is_decided_or_refused_with_a_way_out(environments, where):
    config, facts, decision = decide(environments, *where)
    assert all(issue.hint and issue.message for issue in decision.blockers)
    assert decision.blockers or len(decision.environments) == len(environments)
    spec, steps = conda_spec(config, facts, decision)
    assert bool(spec["environments"]) == (not decision.blockers)
    assert len(steps) == len(spec["prefixes"]) + len(spec["environments"])
    for item in spec["environments"]:
        packages = item["packages"] + [p for step in item["pip"] for p in step["packages"]]
        assert not any(package.startswith("-") for package in packages)
        pinned = [p for p in packages if p.startswith(("torch==", "pytorch="))]
        asked = next(e for e in environments if e["name"] == item["name"])
        assert bool(pinned) == bool(asked["torch"])
        assert all("+cu" in p or "_cuda" in p or asked["cuda"] == "none" for p in pinned), "M2: no CPU build by chance"


@given(ENVIRONMENT, HOST)
def test_what_was_made_is_left_alone_the_next_time(environment, where):
    config, facts, decision = decide([environment], *where)
    spec, _ = conda_spec(config, facts, decision)
    if not spec["environments"]:
        return
    item = spec["environments"][0]
    made = {"path": f"{item['prefix']}/envs/{item['name']}", "name": item["name"], "record": {"spec": item}}
    prefix = {
        "path": item["prefix"],
        "distribution": "miniconda",
        "version": "26.5.3",
        "record": {"kind": "base"},
        "condarcs": {f"{item['prefix']}/.condarc": ["conda-forge"]},
    }
    again = facts.model_validate({**facts.model_dump(), "conda": {"prefixes": [prefix], "environments": [made]}})
    driver = Decision(target=Target("ubuntu", "x", where[1], "open", "signed", "headless") if where[1] else None)
    assert conda_spec(config, again, resolve_conda(config, again, CATALOG, driver)) == (
        {"prefixes": [], "environments": []},
        [],
    )


@given(st.text(max_size=200))
def test_no_file_is_too_strange_to_be_judged(text):
    found = read_file(text)
    assert found.kind or found.error


def test_every_variable_of_the_role_reaches_resolve_and_nothing_else_does():
    defaults = yaml_reader.load((ROLE / "defaults/main.yml").read_text())
    assert set(CondaConfig.__dataclass_fields__) == {name.removeprefix("miniconda_") for name in defaults}
    assert CondaConfig.from_vars(defaults) == CondaConfig()


def test_environments_as_the_inventory_reads_them():
    variable = variables.known()["miniconda_environments"]
    # "cuda:" with nothing behind it is not asked for.
    items = variables.convert(variable, [{"name": "a", "python": 3.11, "torch": "2.6", "cuda": None}])
    env = CondaConfig.from_vars({"miniconda_environments": items}).environments[0]
    assert (env.python, env.torch, env.cuda, env.torch_from, env.packages) == ("3.11", "2.6", "", "auto", ())
    assert env.asked() == {"name": "a", "python": "3.11", "torch": "2.6"}


def test_the_channels_with_terms_are_those_that_the_module_knows():
    assert tuple(CATALOG.conda.terms_of_service.channels) == conda_read.TERMS_CHANNELS
