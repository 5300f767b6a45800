"""resolve and plan of containers, from a table: which toolkit, which docker, what changes, or why not."""

from pathlib import Path

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import trusted_keys
from ansible_collections.gpu.provision.plugins.module_utils.containers import docker_proxy
from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from provision.catalog import load_catalog
from provision.inventory.proxy import HostProxy
from provision.inventory.variables import known
from provision.lib import yaml_reader
from provision.parts.containers.desired import ContainersConfig
from provision.parts.containers.plan import plan_containers
from provision.parts.containers.resolve import resolve_containers
from tests.unit.containershosts import (
    SET,
    SOURCE,
    carried_out,
    case_candidates,
    case_config,
    case_driver,
    decided,
    planned,
)

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/containers.yml").read_text())
KNOWN = {
    "ask",
    "blocker",
    "details",
    "disturbed",
    "has",
    "keys",
    "lacks",
    "lacks_words",
    "no_todo",
    "no_warnings",
    "nothing",
    "omitted",
    "packages",
    "reason",
    "remove",
    "restart",
    "spec",
    "titles",
    "todo",
    "untrusted",
    "version",
    "warning_words",
    "warnings",
    "words",
}
PROXY = apt_files.sha256(
    docker_proxy.render(
        {"http": "http://proxy:3128", "https": "http://proxy:3128", "no_proxy": "localhost,127.0.0.1,::1,.corp"}
    )
)
RULE = apt_files.sha256(containers_files.UDEV_TEXT)


def ready(case):
    """The case with the hash of our rule in the place of its name."""
    named = {"RULE": RULE, "PROXY": PROXY}
    files = {path: named.get(text, text) for path, text in case.get("own_files", {}).items()}
    return {**case, "own_files": files}


def words_of(issues):
    return " ".join(" ".join([issue.message, *issue.because, issue.hint or ""]) for issue in issues)


def test_the_table_says_nothing_twice():
    names = [case["name"] for case in CASES]
    assert len(names) >= 30 and len(set(names)) == len(names)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_resolve_containers(case):
    case, expect = ready(case), case["expect"]
    assert set(expect) <= KNOWN
    decision, plan = planned(case)
    if "blocker" in expect:
        assert decision.blockers and decision.target is None
        first = decision.blockers[0]
        assert first.code == expect["blocker"], decision.blockers
        assert all(word in words_of([first]) for word in expect.get("words", [])), words_of([first])
        assert all(issue.hint and issue.because for issue in decision.blockers), "a refusal says why, and a way out"
        assert plan.spec == {"runtimes": None} and plan.apt is None and not plan.steps
        return
    assert not decision.blockers, decision.blockers
    if "ask" in expect or expect.get("nothing"):
        assert list(decision.asks) == expect.get("ask", []) and decision.target is None
        assert plan.spec == {"runtimes": None} and plan.apt is None and not plan.steps
        return
    target = decision.target
    assert target is not None and not decision.asks
    codes = {issue.code for issue in decision.warnings}
    assert set(expect.get("warnings", [])) <= codes, codes
    assert not set(expect.get("no_warnings", [])) & codes, codes
    told = words_of(decision.warnings)
    assert all(word in told for word in expect.get("warning_words", [])), told
    if "version" in expect:
        assert target.version == expect["version"]
    if "packages" in expect:
        assert target.packages == expect["packages"]
    have = {f"{name}={version}" for name, version in target.packages.items()} | set(target.packages)
    assert set(expect.get("has", [])) <= have, have
    assert not set(expect.get("lacks", [])) & have
    if "remove" in expect:
        assert list(target.remove) == expect["remove"] == plan.apt.remove
    for name, value in expect.get("spec", {}).items():
        found = target.spec[name]
        if isinstance(value, dict):
            assert value.items() <= found.items(), found
        else:
            assert found == value, name
    if "keys" in expect:
        assert list(target.keys) == expect["keys"]
    for words in expect.get("todo", []):
        assert any(words in line for line in target.todo), target.todo
    if expect.get("no_todo"):
        assert not target.todo, target.todo
    if "restart" in expect:
        assert (expect["restart"] in target.restart) if expect["restart"] else target.restart == ""
    if "disturbed" in expect:
        assert list(target.disturbed) == expect["disturbed"]
    if "reason" in expect:
        what, part = expect["reason"]
        assert any(r.what == what and part in f"{r.value} {r.because}" for r in decision.reasons), decision.reasons
    titles = [step.title for step in plan.steps]
    for words in expect.get("titles", []):
        assert any(words in title for title in titles), titles
    details = [line for step in plan.steps for line in step.details]
    for words in expect.get("details", []):
        assert any(words in line for line in details), details
    said = " ".join([*titles, *details, *(f"{r.value} {r.because}" for r in decision.reasons), told])
    assert not any(word in said for word in expect.get("lacks_words", [])), said
    if "untrusted" in expect:
        assert plan.apt.old_keys == expect["untrusted"]
        asked = [spec["legacy_keys"] for spec, _ in plan.apt.repositories]
        assert asked == [[trusted_keys.CONTAINER_TOOLKIT] if expect["untrusted"] else []]
    if "omitted" in expect:
        assert [f"{entry.file}:{entry.line}" for entry in plan.apt.omitted] == expect["omitted"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_what_must_be_true_of_every_decision(case):
    """One version, no package twice, everything of the set held or released, and nothing carried out that is not said."""
    decision, plan = planned(ready(case))
    target = decision.target
    if target is None:
        return
    assert set(target.names) == set(SET)
    versions = {version for name, version in target.packages.items() if name in SET}
    assert len(versions) <= 1, "the packages belong together"
    assert all("=" in item for item in plan.apt.install)
    assert bool(plan.apt.extra_hold) != bool(plan.apt.extra_release)
    assert not set(target.remove) & {item.split("=")[0] for item in plan.apt.install}
    assert {step.part for step in plan.steps} <= {"containers"}
    carried = plan.spec["runtimes"]
    assert (carried is not None) == bool(target.todo or target.packages or target.remove)
    if carried is not None:
        assert set(carried) == {"docker", "rootless", "containerd", "cdi", "device_links", "restart"}
        assert carried["docker"] is None or set(carried["docker"]) == {
            "runtime",
            "default_runtime",
            "cdi",
            "shm_size",
            "cgroup_driver",
            "users",
            "proxy",
        }
    if target.disturbed:
        assert target.restart and any(step.id == "restart" for step in plan.steps)


def test_the_plan_is_what_the_module_takes():
    """Argument names and choices of plugins/modules/container_runtime.py."""
    text = (Path(__file__).parents[2] / "plugins/modules/container_runtime.py").read_text()
    options = yaml_reader.load(text.split('DOCUMENTATION = r"""')[1].split('"""')[0])["options"]
    case = {"config": {"runtimes": ["docker", "containerd"], "install_docker": True, "docker_users": []}}
    spec = planned(case)[1].spec["runtimes"]
    assert set(spec) | {"backup"} == set(options)
    assert set(spec["docker"]) == set(options["docker"]["suboptions"])
    assert set(spec["containerd"]) == set(options["containerd"]["suboptions"])
    assert spec["restart"] in options["restart"]["choices"]


def test_the_wish_is_the_roles_variables_and_their_defaults():
    prefix = "container_toolkit_"
    values = {name: variable.default for name, variable in known().items() if name.startswith(prefix)}
    assert {name.removeprefix(prefix) for name in values} == set(ContainersConfig.__dataclass_fields__)
    assert ContainersConfig.from_vars(values) == ContainersConfig() and not ContainersConfig().wanted


@pytest.mark.parametrize(
    "config", [{"runtimes": ["lxd"]}, {"cdi": True}, {"docker_cdi": False}, {"cgroup_driver": "v2"}]
)
def test_a_value_that_is_no_choice_does_not_reach_a_decision(config):
    with pytest.raises(ValueError, match="is not one of"):
        case_config({"config": config})


def test_a_driver_that_is_not_decided_yet_is_not_judged():
    case = {
        "config": {"runtimes": ["docker"]},
        "driver": "",
        "manage_driver": True,
        "offer": None,
        "containers": {"docker": {"engine": "/usr/bin/dockerd", "version": "28.2.2"}},
    }
    config, facts, decision = decided(case)
    assert case_driver(case, facts).ask and decision.asks == ("container_toolkit",) and not decision.blockers
    asked = resolve_containers(config, facts, load_catalog(), case_candidates({}), case_driver(case, facts))
    assert asked.target and asked.target.version == "1.20.0"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_second_run_finds_nothing_to_do(case):
    """And asks apt nothing: what was carried out is as it should be."""
    case = ready(case)
    config, facts, decision = decided(case)
    if decision.target is None:
        return
    after = carried_out(facts, decision.target)
    config = type(config)(**{**vars(config), "update": False})
    proxy = HostProxy.from_vars(case.get("proxy", {}))
    again = resolve_containers(config, after, load_catalog(), {}, case_driver(case, after), proxy)
    assert not again.blockers and again.target, (again.blockers, again.asks)
    plan = plan_containers(config, after, again, SOURCE)
    assert not again.target.todo and plan.spec == {"runtimes": None}
    assert [step.title for step in plan.steps if step.id != "hold" or config.hold] == []
    assert not again.target.keys and not again.target.restart


OTHER = (
    "The repository 'http://nvidia.example/libnvidia-container/stable/deb/amd64  Release' does not have a Release file."
)
OWN = "The repository 'http://archive.ubuntu.com/ubuntu noble Release' is not signed."
MAIN = {"file": "/etc/apt/sources.list", "uris": ["http://archive.ubuntu.com/ubuntu"], "components": ["main"]}
ALL = {**MAIN, "components": ["main", "universe"]}


@pytest.mark.parametrize(
    ("sources", "errors", "message", "because", "hint"),
    [
        (
            [MAIN],
            [OTHER],
            "archive of this host has no docker.io",
            "universe is not enabled",
            "enable the component universe",
        ),
        (
            [ALL],
            [OTHER],
            "archive of this host has no docker.io",
            "apt finds no such package there",
            "install docker by hand",
        ),
        ([ALL], [OTHER, OWN], "could not be refreshed", OWN, "fix the source"),
        (
            [],
            [OTHER],
            "archive of this host has no docker.io",
            "apt finds no such package there",
            "enable the component universe",
        ),
        ([], [OWN], "could not be refreshed", OWN, "fix the source"),
    ],
)
def test_why_there_is_no_docker_is_of_one_piece(sources, errors, message, because, hint):
    """Cause, evidence and hint are of the same thing: errors of other repositories are none of the archive's."""
    case = {
        "name": "docker",
        "config": {"runtimes": ["docker"], "install_docker": True},
        "archive": errors,
        "apt": {"sources": sources},
    }
    _, _, decision = decided(case)
    (issue,) = [issue for issue in decision.blockers if issue.code == "containers.no_docker"]
    assert message in issue.message and issue.hint.startswith(hint)
    assert because in issue.because[0] and OTHER not in issue.because
    assert ("universe" in issue.hint) is ("enable" in hint)
