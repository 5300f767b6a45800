"""What of a host decides about its container runtimes: which docker, its file and flags, versions. Pure."""

from __future__ import annotations

from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_flags, daemon_json, docker_host
from provision.catalog import Catalog
from provision.catalog.models.frameworks import MinRuntime
from provision.catalog.versions import key
from provision.errors import Issue
from provision.facts import DaemonFile, Facts
from provision.parts.containers.desired import ContainersConfig, ContainersDecision
from provision.parts.decision import join_and

LEAVE = "container_toolkit_runtimes: [] leaves containers on this host alone"
_KEY_OF = {"runtimes.nvidia": "runtimes", "runtimes.nvidia.path": "runtimes", "features.cdi": "features"}


def check_docker(config: ContainersConfig, facts: Facts, out: ContainersDecision) -> bool:
    """Judge which docker this is. Returns True where the archive's docker.io has to come; refusals are noted."""
    docker = facts.containers.docker
    found = dict(docker, rootless=[row.user for row in docker.rootless])
    for warning in docker_host.warnings(found):
        out.warn("containers.other_docker", warning, ["the daemon that is configured is another one than theirs"])
    refusal = docker_host.refusal(found)
    if refusal is None:
        return False
    message, because, hint = refusal
    # A snap takes the name and the socket; podman-docker cannot stand beside docker.io. The others can be joined.
    if config.install_docker and not found["snap"] and not found["podman"]:
        if found["desktop"]:
            out.warn(
                "containers.other_docker",
                f"docker of {join_and(found['desktop'])} goes to Docker Desktop",
                because,
                "docker context use default",
            )
        return True
    out.block("containers.no_docker", message, because or ["container_toolkit_runtimes lists docker"], hint)
    return False


def check_file(file: DaemonFile, whose: str, out: ContainersDecision) -> None:
    """Refuse a daemon.json that cannot be changed without losing something."""
    if file.unreadable:
        out.block(
            "containers.daemon_json_unreadable",
            f"{file.path} is not readable",
            [f"it is {whose}'s configuration and would be merged"],
            "run as root on the host: ansible_become: true",
        )
        return
    if file.error:
        error = file.error
        out.block(
            "containers.daemon_json",
            f"{file.path}, line {error.line}, column {error.column}: {error.message}",
            [
                f"{whose} would not start with it, or not with all of it",
                "it is never overwritten: its content would be lost",
            ],
            error.hint or "correct it by hand",
        )
    for warning in file.warnings:
        out.warn("containers.daemon_json", f"{file.path}: {warning}", ["it is kept as it is"])


def changes(config: dict[str, Any], file: DaemonFile) -> list[str]:
    """Dotted keys of a daemon.json that have to change."""
    found = daemon_json.wanted(config, file.value, lambda path: file.runtime_exists)
    return [".".join(path) for path, _ in found]


def check_places(keys: list[str], file: DaemonFile, out: ContainersDecision) -> None:
    """Refuse keys whose place in the text is not clear: there twice, or inside something of another kind."""
    for name in keys:
        error = file.refused.get(_KEY_OF.get(name, name))
        if error:
            out.block(
                "containers.daemon_json",
                f"{file.path}, line {error.line}, column {error.column}: {error.message}",
                [f"{name} has to be set there"],
                error.hint or "correct it by hand",
            )


def check_flags(keys: list[str], facts: Facts, out: ContainersDecision) -> None:
    """Refuse what would stand in the file and among dockerd's flags: it does not start then (field report L2)."""
    docker = facts.containers.docker
    in_file = {*docker.file.keys, *(_KEY_OF.get(name, name) for name in keys)}
    both = [flag for flag in docker.flags if flag.key in in_file]
    if not both:
        return
    first = both[0]
    new = first.key not in docker.file.keys
    says = "would be set" if new else "is set"
    out.block(
        "containers.flag_conflict",
        f"{first.key} {says} in {docker.file.path} and is a flag of dockerd: it would not start",
        [f"{flag.place}: {flag.text}" for flag in both[:6]],
        daemon_flags.way_out(first, docker.file.path, new),
    )


def check_versions(
    config: ContainersConfig, facts: Facts, catalog: Catalog, versions: dict[str, str], out: ContainersDecision
) -> None:
    """Refuse runtimes that are too old for GPUs at all."""
    for feature, runtime in (("docker --gpus", "docker"), ("podman CDI", "podman")):
        needed = next(
            (getattr(row, runtime) for row in catalog.container_toolkit.min_runtime_versions if row.feature == feature),
            None,
        )
        version = versions.get(runtime, "")
        if runtime in config.runtimes and needed and version and key(version) < key(needed):
            others = [name for name in config.runtimes if name != runtime]
            out.block(
                "containers.runtime_too_old",
                f"{runtime} {version} cannot give GPUs to containers",
                [f"{feature} begins with {needed}"],
                f"upgrade {runtime}, or container_toolkit_runtimes: [{', '.join(others) or 'docker'}]",
            )


def needs_feature(
    config: ContainersConfig, catalog: Catalog, version: str, fresh: bool, out: ContainersDecision
) -> bool | None:
    """What features.cdi of daemon.json has to be; None leaves it alone.

    Docker has it from 25.0 on, switched off until 28.3 (source: catalog, min_runtime_versions). It takes a restart, so
    "auto" sets it only where CDI is asked for, or where docker comes with this plan.
    """
    row = _cdi_row(catalog)
    if config.docker_cdi == "auto":
        asked = config.cdi == "always" or fresh
        return True if asked and version and _has_cdi(row, version) and not _is_cdi_default(row, version) else None
    if config.docker_cdi == "always" and version and not _has_cdi(row, version):
        out.warn(
            "containers.no_docker_cdi",
            f"docker {version} has no CDI",
            [f"it begins with {row.docker}"] if row else [],
            "docker run --gpus works without",
        )
    return config.docker_cdi == "always"


def has_docker_cdi(facts: Facts, catalog: Catalog) -> bool:
    """Whether the docker of a host takes --device nvidia.com/gpu=all, by its version and its file."""
    docker, row = facts.containers.docker, _cdi_row(catalog)
    if not docker.version or not _has_cdi(row, docker.version):
        return False
    features = docker.file.value.get("features")
    asked = features.get("cdi") if isinstance(features, dict) else None
    return asked if isinstance(asked, bool) else _is_cdi_default(row, docker.version)


def _cdi_row(catalog: Catalog) -> MinRuntime | None:
    """What the catalog says of CDI in docker; a catalog of somebody's own may say nothing."""
    return next((row for row in catalog.container_toolkit.min_runtime_versions if row.feature == "docker CDI"), None)


def _has_cdi(row: MinRuntime | None, version: str) -> bool:
    return row is not None and key(version) >= key(str(row.docker))


def _is_cdi_default(row: MinRuntime | None, version: str) -> bool:
    return row is not None and row.default_from is not None and key(version) >= key(row.default_from)


def own_file_is(facts: Facts, path: str, text: str) -> bool:
    """True when a file of ours is as it should be."""
    return bool(facts.own_files.get(path) == apt_files.sha256(text))


def lost_at_reload(facts: Facts) -> Issue | None:
    """Name the running containers that lose their GPUs when systemd reads its units again (field report L3).

    Those whose control groups systemd keeps, while NVIDIA's devices have no links in /dev/char.
    """
    containers = facts.containers
    info = containers.docker.info
    spared = {"docker"} if info and info.cgroup_driver not in ("", "systemd") else set()
    users = [row.title for row in containers.running if row.gpu and row.runtime not in spared]
    if not users or not containers.device_links_missing:
        return None
    return Issue(
        code="containers.daemon_reload",
        message=f"running containers may lose their GPUs: {join_and(users[:6])}",
        because=["systemd reads its units again in this plan, and devices without a link in /dev/char are lost then"],
        hint="make the links before: nvidia-ctk system create-dev-char-symlinks --create-all, where it is there; or apply "
        "when the containers are done",
    )
