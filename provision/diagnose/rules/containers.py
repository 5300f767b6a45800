"""Docker, containerd, NVIDIA's container toolkit: what keeps GPUs out of containers, or a daemon from starting."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_json
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, driver_names
from provision.diagnose import queries
from provision.diagnose.candidates import candidate
from provision.diagnose.checks import level_of, user, verdict
from provision.diagnose.finding import Level, Repair
from provision.diagnose.rule import Case, Found, rule
from provision.parts.containers import checks as containers_checks
from provision.parts.containers.packages import CGROUP_V2

_SET = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
_ENGINES = ("docker-ce", "docker.io", "moby-engine", "docker-engine")
_LEGACY = ("nvidia-docker2", "nvidia-docker", "nvidia-container-runtime")


def _managed(case: Case) -> bool:
    return case.expect.containers.manage


def _has_toolkit(case: Case) -> bool:
    return bool(queries.present(case, _SET)) or case.facts.containers.toolkit.program


def _mend(case: Case, text: str) -> Repair:
    return queries.apply(text, "containers") if _managed(case) else queries.manual(text)


@rule("containers.daemon_json_unreadable")
def _unreadable(case: Case) -> Iterator[Found]:
    docker = case.facts.containers.docker
    files = [(docker.file, "docker")] if docker.engine or docker.file.present else []
    files += [(row.file, f"docker of {row.user}") for row in docker.rootless]
    for file, who in files:
        if file.error is None:
            continue
        error = file.error
        runs = " (it still runs with what it read before)" if docker.pid and file is docker.file else ""
        copies = [f"{copy.path}: can be read, keys {', '.join(copy.keys[:6])}" for copy in user(case).daemon_copies]
        yield Found(
            f"{who} cannot start again with {file.path}: line {error.line}, column {error.column}: {error.message}",
            [f"{file.path}, line {error.line}, column {error.column}: {error.message}{runs}", *copies],
            queries.manual(
                f"{file.path}, line {error.line}: {error.hint or 'correct it there'}; dockerd --validate checks it"
            ),
            level="error" if docker.engine or file is not docker.file else "warning",
        )

    yield from _byte_order_mark(case)


def _byte_order_mark(case: Case) -> Iterator[Found]:
    """The mark that dockerd refuses before 23.0 (moby#44777); a note where dockerd takes it."""
    docker = case.facts.containers.docker
    if daemon_json.BOM_WARNING not in docker.file.warnings or docker.file.error is not None:
        return
    engines = queries.present(case, _ENGINES).values()
    version = next((driver_names.upstream(row.version) for row in engines if row.version), None)
    old = version is not None and deb_version.compare(version, "23.0") < 0
    yield Found(
        f"{docker.file.path} begins with a byte order mark"
        + (f": docker {version} cannot start again with it" if old else ", which dockerd takes from 23.0 on"),
        (f"{docker.file.path}, line 1, column 1: EF BB BF", f"docker: {version or 'version not known'}"),
        queries.manual(f"{docker.file.path}: save it as UTF-8 without the mark; nothing else in it changes"),
        level="error" if old and docker.engine else "note" if version else "warning",
    )


@rule("containers.flag_conflict")
def _flag_conflict(case: Case) -> Iterator[Found]:
    docker = case.facts.containers.docker
    both = [flag for flag in docker.flags if flag.key in docker.file.keys and flag.key in docker.conflicts]
    if docker.engine and both:
        runs = " (it still runs with what it read before)" if docker.pid else ""
        yield Found(
            f"docker cannot start again: {both[0].key} is a flag and in {docker.file.path}",
            [f"{flag.place}: {flag.text}{runs}" for flag in both],
            queries.manual(f"remove it from one of them: {both[0].place}, or {docker.file.path}"),
        )


@rule("containers.doubled_key")
def _doubled_key(case: Case) -> Iterator[Found]:
    file = case.facts.containers.docker.file
    twice = [row for row in file.warnings if row != daemon_json.BOM_WARNING]
    if twice and file.error is None:
        yield Found(f"{file.path}: {twice[0]}", twice, queries.manual(f"leave one of them in {file.path}"))


@rule("containers.daemon_json_replaced")
def _replaced(case: Case) -> Iterator[Found]:
    docker, diagnostics = case.facts.containers.docker, user(case)
    if not (docker.engine or docker.file.present):
        return
    lost = [
        copy for copy in diagnostics.daemon_copies if copy.lost and not copy.path.endswith(".gpu-provision-disabled")
    ]
    only_runtimes = docker.file.present and set(docker.file.keys) <= {"runtimes", "default-runtime"}
    roots = [
        path
        for path in diagnostics.data_roots
        if "data-root" not in docker.file.keys and "graph" not in docker.file.keys
    ]
    roots = [path for path in roots if not (docker.info and docker.info.data_root == path)]
    roots = [path for path in roots if not any(flag.key == "data-root" for flag in docker.flags)]
    if not roots and not (lost and only_runtimes):
        return
    evidence = [f"{docker.file.path}: {', '.join(docker.file.keys) or 'empty' if docker.file.present else 'not there'}"]
    evidence += [f"{copy.path}: also {', '.join(copy.lost)}" for copy in lost]
    evidence += [f"{path}: images and containers of a docker, and no data-root leads there" for path in roots]
    what = ", ".join(dict.fromkeys(key for copy in lost for key in copy.lost)) or "data-root"
    yield Found(
        f"{docker.file.path} lost settings that it had: {what}",
        evidence,
        queries.manual(
            f"put {what} back into {docker.file.path}"
            + (f" from {lost[0].path}" if lost else "")
            + "; provision merges single keys"
        ),
    )


@rule("containers.reload_takes_gpus")
def _reload(case: Case) -> Iterator[Found]:
    said = verdict(case, containers_checks.links)
    level = level_of(said)
    if level:
        ours = case.expect.containers.device_links
        repair = queries.apply(said.way_out, "containers") if ours else queries.manual(said.way_out)
        yield Found(said.message, said.evidence, repair, level=level)


@rule("containers.wrong_daemon")
def _wrong_daemon(case: Case) -> Iterator[Found]:
    docker = case.facts.containers.docker
    if docker.snap:
        alone = not docker.engine
        level: Level = (
            "error" if alone and (_has_toolkit(case) or _managed(case)) else "warning" if not alone else "note"
        )
        yield Found(
            "docker is a snap on this host" if alone else "docker is installed as a snap beside the system's",
            [
                "/snap/bin/docker",
                "its configuration: /var/snap/docker/current/config/daemon.json",
                f"system's daemon: {docker.engine or 'none'}",
                f"{docker.file.path}: {'there, and the snap does not read it' if docker.file.present else 'not there'}",
            ],
            queries.manual(
                "snap remove docker (its images go with it), and docker from a package: container_toolkit_install_docker: true"
            ),
            level=level,
        )
    if docker.desktop:
        yield Found(
            f"docker of {', '.join(docker.desktop)} goes to Docker Desktop, whose virtual machine has no GPU",
            [f"~{name}/.docker/config.json: currentContext is desktop" for name in docker.desktop],
            queries.manual("docker context use default (as that user)"),
            level="warning" if docker.engine else "note",
        )
    if docker.podman and _managed(case) and "docker" in case.expect.containers.runtimes:
        yield Found(
            "the program docker is podman's",
            ("/usr/bin/docker: of podman-docker",),
            queries.manual(
                "container_toolkit_runtimes: [podman]; podman takes GPUs by CDI (--device nvidia.com/gpu=all)"
            ),
        )


@rule("containers.toolkit_too_old")
def _toolkit_old(case: Case) -> Iterator[Found]:
    rows = queries.present(case, _SET)
    if case.facts.containers.cgroups != "v2":
        return
    if not rows:
        yield from _would_be_old(case)
        return
    old = {
        name: row.version
        for name, row in rows.items()
        if deb_version.compare(driver_names.upstream(row.version), CGROUP_V2) < 0
    }
    if not old:
        return
    evidence = [f"{name} {version}" for name, version in old.items()] + ["/sys/fs/cgroup: cgroup v2"]
    for name in old:
        taken = candidate(case, name)
        if taken:
            evidence.append(
                f"apt would take {taken.version} from {taken.origin}, priority {taken.priority}"
                + (f" by {taken.pin.file}" if taken.pin else "")
            )
    pins = [
        row
        for row in case.facts.apt.preferences
        if any(re.search(r"nvidia-container|^\*$", word) for word in row.package.split()) and row.priority > 500
    ]
    evidence += [f"{row.file}: {row.package}, {row.pin}, {row.priority}" for row in pins]
    name, version = next(iter(old.items()))
    yield Found(
        f"container toolkit {driver_names.upstream(version)} cannot work with cgroup v2",
        evidence,
        _mend(
            case,
            f"the four packages from NVIDIA's repository, {CGROUP_V2} or newer; "
            "a preference for that origin where a pin takes others",
        ),
    )


def _would_be_old(case: Case) -> Iterator[Found]:
    """Not installed, and what apt would take is too old: a pin keeps the distribution's own in front."""
    taken = candidate(case, "nvidia-container-toolkit")
    wanted = case.facts.containers.docker.engine or _managed(case)
    if taken and wanted and deb_version.compare(driver_names.upstream(taken.version), CGROUP_V2) < 0:
        by = f" by {taken.pin.file}" if taken.pin else ""
        yield Found(
            f"apt would install container toolkit {driver_names.upstream(taken.version)}, which cannot work with cgroup v2",
            (
                f"nvidia-container-toolkit: {taken.version} from {taken.origin}, priority {taken.priority}{by}",
                "/sys/fs/cgroup: cgroup v2",
            ),
            _mend(case, "a preference for NVIDIA's repository for the four packages of the toolkit"),
            level="warning",
        )


@rule("containers.toolkit_versions_differ")
def _toolkit_versions(case: Case) -> Iterator[Found]:
    rows = queries.present(case, _SET)
    versions = sorted({row.version for row in rows.values()}, key=deb_version.key)
    if len(versions) > 1:
        yield Found(
            f"the container toolkit's packages are of different versions: {', '.join(versions)}",
            [f"{name} {row.version}{', held' if row.held else ''}" for name, row in rows.items()],
            _mend(case, "all four at one version in one transaction, and hold them"),
        )


@rule("containers.runtime_missing")
def _runtime(case: Case) -> Iterator[Found]:
    have = case.facts.containers
    docker = have.docker
    said = verdict(case, containers_checks.runtime)
    file = docker.file
    wants_nvidia = file.value.get("default-runtime") == "nvidia"
    runtimes = file.value.get("runtimes")
    registered = (
        isinstance(runtimes, dict)
        and "nvidia" in runtimes
        or any(flag.key == "runtimes" and flag.value.startswith("nvidia=") for flag in docker.flags)
    )
    left = [name for name in _LEGACY if name in case.facts.packages]
    if docker.engine and wants_nvidia and not registered:
        yield Found(
            f"docker cannot start again: {file.path} makes nvidia the default runtime and registers none",
            (f"{file.path}: default-runtime nvidia, no runtimes.nvidia",),
            _mend(case, "nvidia-ctk runtime configure --runtime=docker, then systemctl restart docker"),
            level="error",
        )
    elif docker.engine and registered and not file.runtime_exists:
        yield Found(
            f"{file.path} registers a runtime nvidia whose program is gone",
            (f"{file.path}: runtimes.nvidia", "nvidia-container-runtime: not there"),
            _mend(case, "install nvidia-container-toolkit-base, or remove the runtime from the file"),
            level="error" if wants_nvidia else "warning",
        )
    elif said.level == "error" and not docker.snap:
        yield Found(said.message, said.evidence, queries.apply(said.way_out, "containers"), level="error")
    elif docker.engine and not file.error and not registered and not have.podman.path and (_has_toolkit(case) or left):
        # --gpus needs no registration (the hook is found by its name); --runtime=nvidia does.
        yield Found(
            "docker has no runtime nvidia, though "
            + ("the container toolkit is installed" if _has_toolkit(case) else f"{left[0]} was here"),
            [
                f"{file.path}: {', '.join(file.keys) or 'empty' if file.present else 'not there'}",
                "nvidia-container-runtime: " + ("there" if have.toolkit.program else "not there"),
            ],
            _mend(case, "nvidia-ctk runtime configure --runtime=docker, then systemctl restart docker"),
            level="warning" if file.present and not file.keys else "note",
        )


@rule("containers.legacy_packages")
def _legacy(case: Case) -> Iterator[Found]:
    rows = {name: case.facts.packages[name] for name in _LEGACY if name in case.facts.packages}
    rows = {name: row for name, row in rows.items() if not (name == "nvidia-container-runtime" and row.installed)}
    if rows:
        state = "installed" if any(row.installed for row in rows.values()) else "removed but not purged"
        yield Found(
            f"{next(iter(rows))} (obsolete) is {state}: it owns /etc/docker/daemon.json",
            [f"{name} {row.version} (dpkg: {row.status})" for name, row in rows.items()],
            _mend(case, f"copy daemon.json aside, purge {' '.join(rows)}, put the file back"),
            level="warning" if any(row.installed for row in rows.values()) else "note",
        )


@rule("containers.cdi_stale")
def _cdi(case: Case) -> Iterator[Found]:
    said = verdict(case, containers_checks.cdi)
    level = level_of(said)
    if level and "stale" in said.message:
        yield Found(said.message, said.evidence, _mend(case, said.way_out), level=level)


@rule("containers.toolkit_config")
def _toolkit_config(case: Case) -> Iterator[Found]:
    found = case.facts.containers
    config = found.toolkit.config
    if config and found.toolkit.root_gone:
        yield Found(
            f"{config} looks for the driver in {found.toolkit.root_gone}, which is not there",
            [f"{config}: [nvidia-container-cli] root = {found.toolkit.root_gone}"],
            queries.manual(
                f"remove root from {config}, where the driver is this host's own; running containers are not affected"
            ),
        )
    elif config and found.toolkit.mode == "cdi" and not found.cdi:
        yield Found(
            f"{config} asks for CDI, and there is no CDI specification of the cards",
            [
                f'{config}: [nvidia-container-runtime] mode = "cdi"',
                "/etc/cdi, /var/run/cdi: no specification of nvidia.com/gpu",
            ],
            queries.manual('nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; or mode = "auto"'),
        )


@rule("containers.small_shm")
def _shm(case: Case) -> Iterator[Found]:
    said = verdict(case, containers_checks.shm)
    level = level_of(said)
    if level:
        asked = level == "error"
        repair = queries.apply(said.way_out, "containers") if asked else queries.manual(said.way_out)
        # 64 MB is docker's own default, and most containers have one process a card.
        yield Found(said.message, said.evidence, repair, level="error" if asked else "note")
