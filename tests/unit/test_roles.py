"""The roles keep their own promises: defaults, argument_specs, task files and READMEs agree."""

import re
from pathlib import Path

import pytest

from provision.errors import Issue
from provision.lib import yaml_reader
from provision.parts.conda.desired import CondaConfig
from provision.parts.cuda.resolve import CudaConfig
from provision.parts.decision import DriverConfig
from provision.parts.plan import HostPlan, PackageChange, Reboot, Step
from tools.role_readme import render

ROOT = Path(__file__).parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


def load(role, *parts):
    return yaml_reader.load((ROOT / "roles" / role).joinpath(*parts).read_text())


@pytest.mark.parametrize("role", ROLES)
def test_defaults_and_argument_specs_say_the_same(role):
    options = load(role, "meta", "argument_specs.yml")["argument_specs"]["main"]["options"]
    defaults = load(role, "defaults", "main.yml")
    assert {name: spec.get("default") for name, spec in options.items()} == defaults
    assert all(name.startswith(role + "_") for name in defaults)


@pytest.mark.parametrize("role", ROLES)
def test_readme_is_rendered_from_the_argument_specs(role):
    assert (ROOT / "roles" / role / "README.md").read_text() == render(ROOT / "roles" / role), "run: make docs"


@pytest.mark.parametrize("role", ROLES)
def test_main_is_a_table_of_contents(role):
    assert len((ROOT / "roles" / role / "tasks/main.yml").read_text().splitlines()) <= 40
    files = {path.name: path.read_text() for path in (ROOT / "roles" / role / "tasks").glob("*.yml")}
    included = {name for text in files.values() for name in re.findall(r"include_tasks: (\S+)", text)}
    assert included == set(files) - {"main.yml"}


@pytest.mark.parametrize(
    ("role", "config", "others"),
    [
        ("nvidia_driver", DriverConfig, {"toolkits": "cuda_toolkit_versions"}),
        ("cuda_toolkit", CudaConfig, {}),
        ("miniconda", CondaConfig, {}),
    ],
)
def test_every_variable_reaches_resolve_and_nothing_else_does(role, config, others):
    defaults = load(role, "defaults", "main.yml")
    fields = set(config.__dataclass_fields__) - set(others)
    assert fields == {name.removeprefix(f"{role}_") for name in defaults}
    plain = config.from_vars(defaults)
    assert config() == plain, "the config's own defaults are those of the role"


def test_playbooks_are_short():
    for path in (ROOT / "playbooks").glob("*.yml"):
        assert len(path.read_text().splitlines()) <= 35, path


@pytest.mark.parametrize(
    ("hint", "named"),
    [
        ("provision apply corrects it", ["site"]),
        ("provision -e nvidia_driver_update=true plan shows it, provision apply does it", ["plan", "site"]),
        ("provision rescue HOST --undo ID goes back", []),
        ("provision lock --update moves the group to the newest versions", []),
        ("see nvidia-smi", []),
        (None, []),
    ],
)
def test_plain_ansible_hears_of_playbooks(hint, named):
    from ansible_collections.gpu.provision.plugins.plugin_utils.advice import with_playbook

    assert re.findall(r"ansible-playbook gpu.provision.(\w+)", with_playbook(hint, {}) or "") == named
    assert with_playbook(hint, {"gpu_provision_run": "1"}) == hint, "the command shows it: it has commands"


def test_a_plan_as_lines_for_plain_ansible():
    step = Step(id="packages", title="packages", because="asked for", sign="+", what="driver", value="580 open")
    change = PackageChange(action="install", name="nvidia-driver-580")
    warning = Issue(code="x", message="lists are old")
    plan = HostPlan(host="a", status="changes", steps=[step], packages=[change], warnings=[warning])
    assert plan.lines() == ["+ driver: 580 open", "packages: 1 to install", "warning: lists are old"]
    plan.reboot = Reboot(needed=True, because=["the new driver"], blocked_by=["python3 (pid 42, ada)"])
    assert plan.lines()[2:4] == ["! reboot: the new driver", "! in use now: python3 (pid 42, ada)"]
    assert HostPlan(host="a", status="converged").lines() == ["nothing to change"]
