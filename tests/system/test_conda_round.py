"""A round of conda on this machine: plan, the modules, a fresh read, and nothing left to do (the lab's conda, a simulation)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda import install as conda_install
from ansible_collections.gpu.provision.plugins.module_utils.conda import make_environment
from ansible_collections.gpu.provision.plugins.module_utils.conda import probe as conda_probe
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree
from provision.catalog import load_catalog
from provision.facts import Conda, Facts
from provision.parts.check import Expect
from provision.parts.conda import checks as conda_checks
from provision.parts.conda.desired import CondaConfig
from provision.parts.conda.plan import conda_expectation, conda_spec
from provision.parts.conda.resolve import CondaDecision, resolve_conda
from provision.parts.decision import Decision, Target
from tests.lab.conda import Server
from tests.system.condalab import Place, make_user, needs_root, remove_user, web_folder
from tests.unit.hosts import host

__all__ = ["web_folder"]
pytestmark = needs_root
DRIVER = Decision(target=Target("ubuntu", "580", "580.126.20", "open", "signed", "headless"))


@pytest.fixture
def place(web_folder, monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    # Not below /dev, where other tests may lie: a plan puts no prefix there.
    folder = Path(tempfile.mkdtemp(prefix="gpu-provision-conda-round-", dir="/tmp"))
    folder.chmod(0o755)
    user = make_user(folder / "home")
    try:
        with Server(web_folder) as web:
            yield Place(folder, user, folder / "home", web)
    finally:
        remove_user(user)
        shutil.rmtree(folder)


def wanted(place: Place, **environment: Any) -> CondaConfig:
    installer = place.installer()
    return CondaConfig.from_vars(
        {
            "miniconda_installer_url": installer["url"],
            "miniconda_installer_sha256": installer["sha256"],
            "miniconda_channels": [f"{place.web.url}/conda-forge"],
            "miniconda_wheel_index_url": f"{place.web.url}/whl",
            "miniconda_rebuild": environment.pop("rebuild", False),
            "miniconda_environments": [{"name": "py311cu124", "user": place.user, "python": "3.11", **environment}],
        }
    )


def read(config: CondaConfig) -> Facts:
    facts = host(["H100"])
    conda = conda_probe.read(host_tree.HostTree(), config.prefix_paths())
    # What else of conda lies on this machine is not this test's.
    mine = conda["looked"]
    conda["prefixes"] = [prefix for prefix in conda["prefixes"] if prefix["path"] in mine]
    conda["environments"] = [env for env in conda["environments"] if env["prefix"] in mine]
    return facts.model_copy(update={"conda": Conda.model_validate(conda)})


def plan(config: CondaConfig) -> tuple[dict[str, Any], CondaDecision, Facts]:
    facts = read(config)
    decision = resolve_conda(config, facts, load_catalog(), DRIVER)
    assert not decision.blockers, decision.blockers
    return conda_spec(config, facts, decision)[0], decision, facts


def carry_out(place: Place, spec: dict[str, Any]) -> None:
    for item in spec["prefixes"]:
        conda_install.run({**item, "cache_dir": str(place.folder / "cache"), "timeout": 120}, False)
    for item in spec["environments"]:
        make_environment.run({**item, "export_to": str(place.folder / "exports"), "timeout": 120}, False)


def test_a_second_run_changes_nothing_and_verify_passes(place):
    config = wanted(place, torch="2.6.0", cuda="12.4")
    spec, _, _ = plan(config)
    assert [item["action"] for item in spec["prefixes"] + spec["environments"]] == ["install", "create"]
    carry_out(place, spec)
    spec, decision, facts = plan(config)
    assert spec == {"prefixes": [], "environments": []}
    env = next(env for env in facts.conda.environments if env.path == f"{place.prefix}/envs/py311cu124")
    assert (env.builds, env.cuda, env.changed, env.owner) == ({"torch": "cuda"}, "12.4", False, place.user)
    found = [check(facts, Expect(conda=conda_expectation(config, decision))) for check in conda_checks.CHECKS]
    assert {check.level for check in found} == {"pass"}, found


def test_another_wish_is_made_only_when_that_is_allowed(place):
    carry_out(place, plan(wanted(place))[0])
    other = wanted(place, torch="2.6.0", cuda="12.4")
    refused = resolve_conda(other, read(other), load_catalog(), DRIVER)
    assert [issue.code for issue in refused.blockers] == ["conda.environment_differs"]
    allowed = wanted(place, torch="2.6.0", cuda="12.4", rebuild=True)
    spec, _, _ = plan(allowed)
    assert [item["action"] for item in spec["environments"]] == ["rebuild"]
    carry_out(place, spec)
    assert plan(allowed)[0] == {"prefixes": [], "environments": []}
