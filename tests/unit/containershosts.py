"""Made-up hosts with container runtimes, and the way from a case of tests/cases/containers.yml to a decision and a plan."""

from __future__ import annotations

import json
from typing import Any

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.containers import cdi_spec, daemon_json, docker_proxy
from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from provision.catalog import load_catalog
from provision.facts import DaemonFile, Facts
from provision.inventory.proxy import HostProxy
from provision.inventory.variables import convert, known
from provision.parts.apt import PartPlan
from provision.parts.candidates import Candidate, Candidates
from provision.parts.containers.desired import ContainersConfig, ContainersDecision, ContainersTarget
from provision.parts.containers.plan import plan_containers
from provision.parts.containers.resolve import resolve_containers
from provision.parts.decision import Decision, DriverConfig
from provision.parts.driver.resolve import resolve_driver
from tests.unit.hosts import host

# The names are typed here, so that a wrong catalog fails.
SET = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")
URI = "https://nvidia.github.io/libnvidia-container/stable/deb/amd64/"
SOURCE = {
    "name": "container-toolkit",
    "uris": URI,
    "suites": "/",
    "components": "",
    "key": None,
    "key_url": "https://nvidia.github.io/libnvidia-container/gpgkey",
    "fingerprint": "C95B321B61E88C1809C4F759DDCAE044F796ECB0",
}
VERSIONS = ["1.20.0", "1.19.1", "1.19.0", "1.18.2", "1.18.1", "1.18.0", "1.17.8", "1.17.7", "1.7.0"]
DRIVER = "580-server 580.126.20 open signed"


def toolkit_candidates(
    versions: list[str], lacks: dict[str, list[str]] | None = None, errors: list[str] | None = None
) -> Candidates:
    """The repository with these versions, newest first; lacks: version -> packages of the set that are not there."""
    gone = lacks or {}
    rows = {
        name: [
            Candidate(
                name,
                v if "-" in v else f"{v}-1",
                uri=URI,
                origin="https://nvidia.github.io/libnvidia-container/stable/deb",
            )
            for v in versions
            if name not in gone.get(v, [])
        ]
        for name in SET
    }
    return Candidates({name: found for name, found in rows.items() if found}, errors or [])


ARCHIVE = {
    "24.04": {"docker.io": "28.2.2-0ubuntu1~24.04.1", "podman": "4.9.3+ds1-1ubuntu0.2"},
    "22.04": {"docker.io": "28.2.2-0ubuntu1~22.04.1", "podman": "3.4.4+ds1-1ubuntu1.22.04.3"},
    "26.04": {"docker.io": "29.1.3-0ubuntu1", "podman": "5.7.0+ds2-3ubuntu1"},
}


def archive_candidates(ubuntu: str) -> Candidates:
    return Candidates(
        {
            name: [Candidate(name, version, uri="http://archive.ubuntu.com/ubuntu", origin="Ubuntu")]
            for name, version in ARCHIVE[ubuntu].items()
        }
    )


def case_host(case: dict[str, Any]) -> Facts:
    """Facts of a case. toolkit: version of all four packages (or "VERSION unheld"); packages: name -> "version [status]"."""
    ubuntu = str(case.get("ubuntu", "24.04"))
    rows: dict[str, dict[str, str]] = {}
    if case.get("toolkit"):
        version, *rest = str(case["toolkit"]).split()
        status = "ii" if "unheld" in rest else "hi"
        rows = {name: {"version": version if "-" in version else f"{version}-1", "status": status} for name in SET}
    for name, text in case.get("packages", {}).items():
        version, *state = str(text).split()
        rows[name] = {"version": version, "status": state[0] if state else "ii"}
    os = {"id": "ubuntu", "version_id": ubuntu, **case.get("os", {})}
    facts = host(
        case.get("gpus", ["H100"]),
        case.get("driver", DRIVER) or None,
        containers=case.get("containers", {}),
        host={"os": os, "arch": case.get("arch", "amd64")},
        apt=case.get("apt", {}),
        own_files=case.get("own_files", {}),
    )
    more = Facts.model_validate({"packages": rows}).packages
    return facts.model_copy(update={"packages": {**facts.packages, **more}})


def case_config(case: dict[str, Any]) -> ContainersConfig:
    """Its variables with their types and choices, as those of an inventory."""
    variables = {name: value for k, value in case.get("config", {}).items() for name in [f"container_toolkit_{k}"]}
    return ContainersConfig.from_vars({name: convert(known()[name], value) for name, value in variables.items()})


def case_candidates(case: dict[str, Any]) -> dict[str, Candidates]:
    """offer: null (apt was not asked), versions, or {versions, lacks, errors}; the archive is there where apt was asked."""
    named = case.get("offer", VERSIONS)
    if named is None:
        return {}
    toolkit = toolkit_candidates(**named) if isinstance(named, dict) else toolkit_candidates(list(named))
    archive = case.get("archive", True)
    # false, or what apt said of repositories
    without = Candidates(errors=archive if isinstance(archive, list) else [])
    found = archive_candidates(str(case.get("ubuntu", "24.04"))) if archive is True else without
    return {"container_toolkit": toolkit, "ubuntu": found}


def case_driver(case: dict[str, Any], facts: Facts) -> Decision:
    """The driver is not managed here unless the case says so: what is there, is there."""
    return resolve_driver(DriverConfig(manage=bool(case.get("manage_driver"))), facts, load_catalog(), {})


def decided(case: dict[str, Any]) -> tuple[ContainersConfig, Facts, ContainersDecision]:
    facts, config = case_host(case), case_config(case)
    candidates = case_candidates(case)
    proxy = HostProxy.from_vars(case.get("proxy", {}))
    return (
        config,
        facts,
        resolve_containers(config, facts, load_catalog(), candidates, case_driver(case, facts), proxy),
    )


def planned(case: dict[str, Any]) -> tuple[ContainersDecision, PartPlan]:
    config, facts, decision = decided(case)
    return decision, plan_containers(config, facts, decision, SOURCE if decision.target else None)


def carried_out(facts: Facts, target: ContainersTarget) -> Facts:
    """The host after apt and the module did what a target asks for, with every daemon that took it up."""
    data = facts.model_dump()
    for name in target.remove:
        data["packages"].pop(name)
    for name, version in target.packages.items():
        data["packages"][name] = {"version": version, "status": "hi" if name in SET else "ii"}
    for row in (data["packages"][name] for name in target.names):
        row["status"] = "hi"
    have, spec = data["containers"], target.spec
    docker = have["docker"]
    if spec["docker"]:
        docker["file"] = merged(docker["file"], spec["docker"], bool(docker["flags"]))
        docker["group"] = [*(docker["group"] or []), *spec["docker"]["users"]]
        docker["engine"] = docker["engine"] or "/usr/bin/dockerd"
        docker["version"] = docker["version"] or target.runtimes["docker"]
        docker["info"], docker["hook_is_newer"] = None, False
        if spec["docker"]["proxy"] is not None:
            text = docker_proxy.render(spec["docker"]["proxy"])
            data["own_files"].pop(docker_proxy.PATH, None)
            data["own_files"].update({docker_proxy.PATH: apt_files.sha256(text)} if text else {})
    for row in docker["rootless"]:
        if row["user"] in spec["rootless"]:
            row["file"] = merged(row["file"], spec["docker"] or {"runtime": True}, False)
            have["toolkit"]["no_cgroups"] = spec["docker"] is None
    if spec["containerd"] is not None:
        default = spec["containerd"]["default_runtime"] or have["containerd"]["default_runtime"]
        have["containerd"].update(runtime=True, default_runtime=default, path="/usr/bin/containerd")
    if "podman" in target.runtimes:
        have["podman"].update(path="/usr/bin/podman", version=target.runtimes["podman"])
    files = data["own_files"]
    if spec["cdi"]:
        have["cdi"] = [{"path": cdi_spec.OUTPUT, "versions": [DRIVER.split()[1]]}]
        have["cdi_units"] = "ours" if target.version < "1.18" else "toolkit"
        if have["cdi_units"] == "ours":
            files.update({path: apt_files.sha256(text) for path, text in containers_files.CDI_UNITS.items()})
    elif spec["cdi"] is False:
        for path in containers_files.CDI_UNITS:
            files.pop(path, None)
    if spec["device_links"]:
        files[containers_files.UDEV_RULE] = apt_files.sha256(containers_files.UDEV_TEXT)
    else:
        files.pop(containers_files.UDEV_RULE, None)
    have.update(device_links_missing=[], pending={})
    return Facts.model_validate(data)


def merged(file: dict[str, Any], config: dict[str, Any], by_flag: bool) -> dict[str, Any]:
    """A daemon.json as daemonjson.merge leaves it, in the probe's words."""
    config = {**config, "runtime": not by_flag}
    document, _ = daemon_json.merge(
        daemon_json.parse(json.dumps(file["value"]).encode()), config, lambda path: file["runtime_exists"]
    )
    keys = list(dict.fromkeys([*file["keys"], *document.value]))
    return DaemonFile(path=file["path"], present=True, keys=keys, value=document.value).model_dump()
