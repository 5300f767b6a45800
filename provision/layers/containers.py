"""What scan says of containers: engines and their runtimes, the toolkit, CDI specifications, who may run docker, what runs."""

from __future__ import annotations

from provision.facts import Docker, Facts

_TOOLKIT = ("nvidia-container-toolkit", "libnvidia-container1")
_OLD = ("nvidia-docker2", "nvidia-docker", "nvidia-container-runtime")
_MOST = 6


def container_lines(facts: Facts) -> list[str]:
    """Each engine in a line with its runtimes, then what hands GPUs in, then who and what uses them."""
    have = facts.containers
    lines = _docker(have.docker)
    if have.containerd.path:
        nvidia = "has runtime nvidia" if have.containerd.runtime else ""
        default = f"default {have.containerd.default_runtime}" if have.containerd.default_runtime else ""
        lines.append(_line("containerd", have.containerd.version, nvidia, default))
    if have.podman.path or have.podman.package:
        lines.append(_line("podman", have.podman.version))
    versions = {name: facts.packages[name].version for name in _TOOLKIT if _there(facts, name)}
    if versions:
        held = "" if all(facts.packages[name].held for name in versions) else "not held"
        lines.append(_line("toolkit", " and ".join(dict.fromkeys(versions.values())), held))
    old = [name for name in _OLD if _there(facts, name)]
    lines += [f"obsolete: {', '.join(old)}"] if old else []
    lines += [f"NVIDIA's key trusted for every repository: {', '.join(sorted(have.old_keys))}"] if have.old_keys else []
    for spec in have.cdi:
        versions_of = f"driver {' and '.join(spec.versions)}" if spec.versions else "no driver in it"
        lines.append(_line(f"CDI {spec.path}:", versions_of, f"stale: {spec.stale}" if spec.stale else ""))
    if have.docker.group is not None:
        lines.append(f"group docker: {_some(have.docker.group) or 'nobody'}")
    using = [row.title for row in have.running if row.gpu]
    others = len(have.running) - len(using)
    if have.running:
        parts = [f"with GPUs {_some(using)}"] if using else []
        parts += [f"{others} without"] if others else []
        lines.append(f"running: {', '.join(parts)}")
    return lines


def _docker(docker: Docker) -> list[str]:
    lines = []
    if docker.engine:
        lines.append(_line("docker", docker.version, *_runtimes(docker)))
        lines += (
            [f"daemon.json cannot be read, line {docker.file.error.line}: {docker.file.error.message}"]
            if docker.file.error
            else []
        )
    lines += ["docker as a snap"] if docker.snap else []
    lines += ["docker is podman (podman-docker)"] if docker.podman else []
    lines += [f"Docker Desktop of {_some(docker.desktop)}"] if docker.desktop else []
    lines += [f"rootless docker of {_some([row.user for row in docker.rootless])}"] if docker.rootless else []
    return lines


def _runtimes(docker: Docker) -> list[str]:
    """What the daemon says of itself; of one that was not asked, what its file says."""
    if docker.info:
        names = sorted(name for name in docker.info.runtimes if not name.startswith("io.containerd."))
        return [f"runtimes {', '.join(names)}", f"default {docker.info.default_runtime}"]
    found = docker.file.value.get("runtimes")
    parts = [f"daemon.json: {', '.join(sorted(found))}"] if isinstance(found, dict) and found else []
    return [*parts, "does not run" if docker.pid is None else "not asked"]


def _there(facts: Facts, name: str) -> bool:
    return name in facts.packages and facts.packages[name].installed


def _line(name: str, version: str | None, *more: str) -> str:
    return ", ".join(filter(None, [f"{name} {version or ''}".strip(), *more]))


def _some(items: list[str]) -> str:
    rest = len(items) - _MOST
    return ", ".join(items[:_MOST]) + (f" and {rest} more" if rest > 0 else "")
