"""Docker, containerd, NVIDIA's container toolkit: what keeps GPUs out of containers, or a daemon from starting."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_json
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, driver_names
from provision.diagnose import queries
from provision.diagnose.candidates import candidate
from provision.diagnose.finding import Level, Repair
from provision.diagnose.held import level_of, user, verdict
from provision.diagnose.rule import Case, Found, Rule
from provision.parts.containers import checks as containers_checks

_SET = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
_ENGINES = ("docker-ce", "docker.io", "moby-engine", "docker-engine")
_LEGACY = ("nvidia-docker2", "nvidia-docker", "nvidia-container-runtime")


def _managed(case: Case) -> bool:
    return bool(containers_checks.wish_of(case.expect)["manage"])


def _has_toolkit(case: Case) -> bool:
    return (
        any(name in case.facts.packages and case.facts.packages[name].installed for name in _SET)
        or case.facts.containers.toolkit.program
    )


def _mend(case: Case, words: str) -> Repair:
    return queries.apply(words, "containers") if _managed(case) else queries.manual(words)


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
            queries.clip([f"{file.path}, line {error.line}, column {error.column}: {error.message}{runs}", *copies]),
            (
                queries.manual(
                    f"{file.path}, line {error.line}: {error.hint or 'mend it there'}; dockerd --validate tells when it is right"
                ),
            ),
            level="error" if docker.engine or file is not docker.file else "warning",
        )

    yield from _byte_order_mark(case)


def _byte_order_mark(case: Case) -> Iterator[Found]:
    """The mark that dockerd refuses before 23.0 (moby#44777); a note where dockerd takes it."""
    docker = case.facts.containers.docker
    if daemon_json.BOM_WARNING not in docker.file.warnings or docker.file.error is not None:
        return
    engines = [case.facts.packages[name] for name in _ENGINES if name in case.facts.packages]
    version = next((driver_names.upstream(row.version) for row in engines if row.installed and row.version), None)
    old = version is not None and deb_version.compare(version, "23.0") < 0
    yield Found(
        f"{docker.file.path} begins with a byte order mark"
        + (f": docker {version} cannot start again with it" if old else ", which dockerd takes from 23.0 on"),
        (f"{docker.file.path}, line 1, column 1: EF BB BF", f"docker: {version or 'version not known'}"),
        (queries.manual(f"{docker.file.path}: save it as UTF-8 without the mark; nothing else in it changes"),),
        level="error" if old and docker.engine else "note" if version else "warning",
    )


def _flag_conflict(case: Case) -> Iterator[Found]:
    docker = case.facts.containers.docker
    both = [flag for flag in docker.flags if flag.key in docker.file.keys and flag.key in docker.conflicts]
    if docker.engine and both:
        runs = " (it still runs with what it read before)" if docker.pid else ""
        yield Found(
            f"docker cannot start again: {both[0].key} is a flag and in {docker.file.path}",
            queries.clip(f"{flag.place}: {flag.text}{runs}" for flag in both),
            (queries.manual(f"take it out of one of them: {both[0].place}, or {docker.file.path}"),),
        )


def _doubled_key(case: Case) -> Iterator[Found]:
    file = case.facts.containers.docker.file
    twice = [row for row in file.warnings if row != daemon_json.BOM_WARNING]
    if twice and file.error is None:
        yield Found(
            f"{file.path}: {twice[0]}", queries.clip(twice), (queries.manual(f"leave one of them in {file.path}"),)
        )


def _replaced(case: Case) -> Iterator[Found]:
    docker, trouble = case.facts.containers.docker, user(case)
    if not (docker.engine or docker.file.present):
        return
    lost = [copy for copy in trouble.daemon_copies if copy.lost and not copy.path.endswith(".gpu-provision-disabled")]
    only_runtimes = docker.file.present and set(docker.file.keys) <= {"runtimes", "default-runtime"}
    roots = [
        path for path in trouble.data_roots if "data-root" not in docker.file.keys and "graph" not in docker.file.keys
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
        queries.clip(evidence),
        (
            queries.manual(
                f"put {what} back into {docker.file.path}"
                + (f" from {lost[0].path}" if lost else "")
                + "; provision merges single keys"
            ),
        ),
    )


def _reload(case: Case) -> Iterator[Found]:
    said = verdict(case, containers_checks.links)
    level = level_of(said)
    if level:
        wish = containers_checks.wish_of(case.expect)
        repair = queries.apply(said["hint"], "containers") if wish["device_links"] else queries.manual(said["hint"])
        yield Found(said["message"], queries.clip(said["evidence"]), (repair,), level=level)


def _wrong_daemon(case: Case) -> Iterator[Found]:
    docker = case.facts.containers.docker
    if docker.snap:
        alone = not docker.engine
        level: Level = (
            "error" if alone and (_has_toolkit(case) or _managed(case)) else "warning" if not alone else "note"
        )
        yield Found(
            "docker is a snap on this host" if alone else "docker is installed as a snap beside the system's",
            queries.clip(
                [
                    "/snap/bin/docker",
                    "its configuration: /var/snap/docker/current/config/daemon.json",
                    f"system's daemon: {docker.engine or 'none'}",
                    f"{docker.file.path}: {'there, and the snap does not read it' if docker.file.present else 'not there'}",
                ]
            ),
            (
                queries.manual(
                    "snap remove docker (its images go with it), and docker from a package: container_toolkit_install_docker: true"
                ),
            ),
            level=level,
        )
    if docker.desktop:
        yield Found(
            f"docker of {', '.join(docker.desktop)} goes to Docker Desktop, whose virtual machine has no GPU",
            queries.clip(f"~{name}/.docker/config.json: currentContext is desktop" for name in docker.desktop),
            (queries.manual("docker context use default (as that user)"),),
            level="warning" if docker.engine else "note",
        )
    if docker.podman and _managed(case) and "docker" in containers_checks.wish_of(case.expect)["runtimes"]:
        yield Found(
            "the program docker is podman's",
            ("/usr/bin/docker: of podman-docker",),
            (
                queries.manual(
                    "container_toolkit_runtimes: [podman]; podman takes GPUs by CDI (--device nvidia.com/gpu=all)"
                ),
            ),
        )


def _toolkit_old(case: Case) -> Iterator[Found]:
    rows = {
        name: case.facts.packages[name]
        for name in _SET
        if name in case.facts.packages and case.facts.packages[name].installed
    }
    if case.facts.containers.cgroups != "v2":
        return
    if not rows:
        yield from _would_be_old(case)
        return
    old = {
        name: row.version
        for name, row in rows.items()
        if deb_version.compare(driver_names.upstream(row.version), containers_checks.CGROUP_V2) < 0
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
        queries.clip(evidence),
        (
            _mend(
                case,
                f"the four packages from NVIDIA's repository, {containers_checks.CGROUP_V2} or newer; "
                "a preference for that origin where a pin takes others",
            ),
        ),
    )


def _would_be_old(case: Case) -> Iterator[Found]:
    """Not installed, and what apt would take is too old: a pin keeps the distribution's own in front."""
    taken = candidate(case, "nvidia-container-toolkit")
    wanted = case.facts.containers.docker.engine or _managed(case)
    if taken and wanted and deb_version.compare(driver_names.upstream(taken.version), containers_checks.CGROUP_V2) < 0:
        by = f" by {taken.pin.file}" if taken.pin else ""
        yield Found(
            f"apt would install container toolkit {driver_names.upstream(taken.version)}, which cannot work with cgroup v2",
            (
                f"nvidia-container-toolkit: {taken.version} from {taken.origin}, priority {taken.priority}{by}",
                "/sys/fs/cgroup: cgroup v2",
            ),
            (_mend(case, "a preference for NVIDIA's repository for the four packages of the toolkit"),),
            level="warning",
        )


def _toolkit_versions(case: Case) -> Iterator[Found]:
    rows = {
        name: case.facts.packages[name]
        for name in _SET
        if name in case.facts.packages and case.facts.packages[name].installed
    }
    versions = sorted({row.version for row in rows.values()}, key=deb_version.key)
    if len(versions) > 1:
        yield Found(
            f"the container toolkit's packages are of different versions: {', '.join(versions)}",
            queries.clip(f"{name} {row.version}{', held' if row.held else ''}" for name, row in rows.items()),
            (_mend(case, "all four at one version in one transaction, and hold them"),),
        )


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
            (_mend(case, "nvidia-ctk runtime configure --runtime=docker, then systemctl restart docker"),),
            level="error",
        )
    elif docker.engine and registered and not file.runtime_exists:
        yield Found(
            f"{file.path} registers a runtime nvidia whose program is gone",
            (f"{file.path}: runtimes.nvidia", "nvidia-container-runtime: not there"),
            (_mend(case, "install nvidia-container-toolkit-base, or take the runtime out of the file"),),
            level="error" if wants_nvidia else "warning",
        )
    elif said["status"] == "fail" and not docker.snap:
        yield Found(
            said["message"], queries.clip(said["evidence"]), (queries.apply(said["hint"], "containers"),), level="error"
        )
    elif docker.engine and not file.error and not registered and not have.podman.path and (_has_toolkit(case) or left):
        # --gpus needs no registration (the hook is found by its name); --runtime=nvidia does.
        yield Found(
            "docker has no runtime nvidia, though "
            + ("the container toolkit is installed" if _has_toolkit(case) else f"{left[0]} was here"),
            queries.clip(
                [
                    f"{file.path}: {', '.join(file.keys) or 'empty' if file.present else 'not there'}",
                    "nvidia-container-runtime: " + ("there" if have.toolkit.program else "not there"),
                ]
            ),
            (_mend(case, "nvidia-ctk runtime configure --runtime=docker, then systemctl restart docker"),),
            level="warning" if file.present and not file.keys else "note",
        )


def _legacy(case: Case) -> Iterator[Found]:
    rows = {name: case.facts.packages[name] for name in _LEGACY if name in case.facts.packages}
    rows = {name: row for name, row in rows.items() if not (name == "nvidia-container-runtime" and row.installed)}
    if rows:
        state = "installed" if any(row.installed for row in rows.values()) else "removed but not purged"
        yield Found(
            f"{next(iter(rows))} of the old days is {state}: it owns /etc/docker/daemon.json",
            queries.clip(f"{name} {row.version} (dpkg: {row.status})" for name, row in rows.items()),
            (_mend(case, f"copy daemon.json aside, purge {' '.join(rows)}, put the file back"),),
            level="warning" if any(row.installed for row in rows.values()) else "note",
        )


def _cdi(case: Case) -> Iterator[Found]:
    said = verdict(case, containers_checks.cdi)
    level = level_of(said)
    if level and "stale" in said["message"]:
        yield Found(said["message"], queries.clip(said["evidence"]), (queries.manual(said["hint"]),), level=level)


def _shm(case: Case) -> Iterator[Found]:
    said = verdict(case, containers_checks.shm)
    level = level_of(said)
    if level:
        asked = level == "error"
        repair = queries.apply(said["hint"], "containers") if asked else queries.manual(said["hint"])
        # 64 MB is docker's own default, and most containers have one process a card.
        yield Found(said["message"], queries.clip(said["evidence"]), (repair,), level="error" if asked else "note")


RULES = (
    Rule(
        code="containers.daemon_json_unreadable",
        level="error",
        title="daemon.json is not what dockerd can read",
        explain=(
            "A missing or trailing comma, two objects one after another, typographic quotes, an error page that curl "
            "saved: dockerd refuses to start. One that runs goes on with what it read before, so that the error comes "
            "with the next restart, update or boot. Docker before 23 even took several objects. An empty file is "
            "fine."
        ),
        breaks="docker does not start again; all its containers are gone at the next boot",
        repair="mend the file at the line and column that are told; it is never overwritten",
        prevent="dockerd --validate before a restart; provision merges single keys and validates",
        find=_unreadable,
        texts=(
            r"unable to configure the Docker daemon with file \S*daemon\.json: (?:invalid character|EOF|unexpected end|json:)",
            r"invalid character '.{1,6}' (?:looking for beginning|after (?:object|array|top-level)|in (?:string|literal))",
            r"unable to configure the Docker daemon with file \S*daemon\.json: (?!the following directives)",
        ),
        sources=("moby#44905", "scenario L2"),
    ),
    Rule(
        code="containers.flag_conflict",
        level="error",
        title="a setting is in daemon.json and on dockerd's command line",
        explain=(
            "dockerd refuses to start when a key of daemon.json is also given as a flag: an older guide's drop-in "
            "with --add-runtime is the usual one."
        ),
        breaks="docker does not start again",
        repair="take it out of one of them",
        prevent="settings in daemon.json only",
        find=_flag_conflict,
        texts=(r"the following directives are specified (?:both )?as a flag and in the configuration file",),
        sources=("scenario L2",),
    ),
    Rule(
        code="containers.doubled_key",
        level="note",
        title="a key stands twice in daemon.json",
        explain="dockerd takes the last one; what a program that merges the file makes of it is another matter.",
        breaks="nothing; one of the two has no effect",
        repair="leave one of them",
        prevent="one writer of the file",
        find=_doubled_key,
        sources=("scenario L2",),
    ),
    Rule(
        code="containers.daemon_json_replaced",
        level="warning",
        title="daemon.json was replaced: settings that it had are gone",
        explain=(
            "An installer wrote a file with the nvidia runtime only over one with data-root, log-opts or registry "
            "mirrors; a purge of nvidia-docker2 removes it altogether. With another data-root docker starts and sees "
            "no image and no container."
        ),
        breaks="images and containers are out of sight, logs grow without limit, private registries are refused",
        repair="put the lost keys back from the copy",
        prevent="merge single keys (nvidia-ctk runtime configure, provision), never copy a template over it",
        find=_replaced,
        texts=(r"purg(?:e|ing) .*nvidia-docker2",),
        after=("containers.daemon_json_unreadable",),
        sources=("scenario L1",),
    ),
    Rule(
        code="containers.reload_takes_gpus",
        level="warning",
        title="a systemctl daemon-reload takes the GPUs from running containers",
        explain=(
            "With systemd's cgroup driver, runc's device rules are applied again at every daemon-reload, and devices "
            "without a link in /dev/char are left out. Installing almost any package reloads systemd."
        ),
        breaks="containers that worked: 'Failed to initialize NVML: Unknown Error' until they are started anew",
        repair="nvidia-ctk system create-dev-char-symlinks --create-all (and a udev rule), or CDI; start the containers anew",
        prevent="container_toolkit_device_links, CDI, or native.cgroupdriver=cgroupfs",
        find=_reload,
        texts=(r"Failed to initialize NVML: Unknown Error",),
        sources=("NVIDIA: container toolkit, troubleshooting", "scenario L3"),
    ),
    Rule(
        code="containers.wrong_daemon",
        level="warning",
        title="users' docker is another daemon than the one that has the GPU runtime",
        explain=(
            "A snap's docker reads its own configuration and cannot see NVIDIA's runtime; Docker Desktop runs in a "
            "virtual machine without GPU; a rootless daemon has a file of its own. /etc/docker/daemon.json is right, "
            "and nobody reads it."
        ),
        breaks="docker run --gpus: 'could not select device driver \"\" with capabilities: [[gpu]]'",
        repair="remove the snap, or docker context use default",
        prevent="one docker a host, from a package",
        find=_wrong_daemon,
        texts=(
            r"could not select device driver \"(?:nvidia)?\" with capabilities: \[\[[^\]]*gpu[^\]]*\]\]",
            r"/var/snap/docker/",
        ),
        sources=("scenario L5",),
    ),
    Rule(
        code="containers.toolkit_too_old",
        level="error",
        title="the container toolkit is older than cgroup v2",
        explain=(
            "From 1.8 on the toolkit works with cgroup v2, which Ubuntu has used since 21.10. A distribution's own "
            "package (1.3.x), kept by a pin over NVIDIA's repository, does not."
        ),
        breaks="every container with a GPU: 'cgroup subsystem devices not found'",
        repair="the four packages from NVIDIA's repository, and a preference for that origin",
        prevent="look where the candidate comes from (apt-cache policy) before it is installed",
        find=_toolkit_old,
        texts=(r"cgroup subsystem devices not found", r"bpf_prog_query\(BPF_CGROUP_DEVICE\) failed"),
        sources=("scenario L7",),
    ),
    Rule(
        code="containers.toolkit_versions_differ",
        level="warning",
        title="the container toolkit's four packages are of different versions",
        explain="They are one program in four packages: joined by '=' from 1.18 on, and only by luck before.",
        breaks="containers with GPUs, from one version to the next",
        repair="all four at one version",
        prevent="hold all four",
        find=_toolkit_versions,
        texts=(
            r"(?:nvidia-container-toolkit|libnvidia-container)\S* ?: Depends: (?:lib)?nvidia-container\S* \(= [^)]+\) but",
        ),
        after=("containers.toolkit_too_old",),
    ),
    Rule(
        code="containers.runtime_missing",
        level="error",
        title="the runtime nvidia is not registered",
        explain=(
            "The toolkit's packages do not register themselves: nvidia-ctk writes runtimes.nvidia into daemon.json, "
            "and docker must read it. When nvidia-docker2 is purged, its daemon.json goes too."
        ),
        breaks="docker run --runtime=nvidia; with nvidia as default runtime every container",
        repair="nvidia-ctk runtime configure --runtime=docker; systemctl restart docker",
        prevent="container_toolkit_runtimes in the inventory",
        find=_runtime,
        texts=(
            r"unknown or invalid runtime name: nvidia",
            r"Unknown runtime specified nvidia",
            r"could not select device driver",
            r"exec: \"nvidia-container-runtime(?:-hook)?\": executable file not found",
        ),
        after=("containers.daemon_json_unreadable", "containers.flag_conflict"),
        symptom_of=("containers.wrong_daemon",),
        sources=("scenario L8",),
    ),
    Rule(
        code="containers.legacy_packages",
        level="warning",
        title="nvidia-docker2 or its like is still there",
        explain="It owns /etc/docker/daemon.json: a purge removes the file, and a package that brings one conflicts with it.",
        breaks="'trying to overwrite /etc/docker/daemon.json'; settings are lost at a purge",
        repair="copy daemon.json aside, purge the package, put the file back, register the runtime",
        prevent="container_toolkit_remove_legacy: true does it in this order",
        find=_legacy,
        texts=(r"trying to overwrite '/etc/docker/daemon\.json'",),
        sources=("scenario L8",),
    ),
    Rule(
        code="containers.cdi_stale",
        level="warning",
        title="the CDI specification is of another driver or other cards",
        explain=(
            "It names the driver's libraries by their versions and the cards' device nodes: a new driver makes it "
            "wrong until it is made anew."
        ),
        breaks="containers that take GPUs by CDI (podman, docker --device nvidia.com/gpu=…)",
        repair="nvidia-ctk cdi generate, or the toolkit's refresh unit",
        prevent="the toolkit's nvidia-cdi-refresh units (1.18 on), or container_toolkit_cdi",
        find=_cdi,
        texts=(r"unresolvable CDI devices nvidia\.com/gpu", r"failed to (?:inject|stat) CDI devices?"),
        after=("driver.stale_module", "driver.mixed_versions"),
    ),
    Rule(
        code="containers.small_shm",
        level="note",
        title="containers get too little shared memory for several GPUs",
        explain="docker gives 64 MB of /dev/shm. NCCL's shared memory transport, and data loaders with several workers, need more.",
        breaks="work on several GPUs in a container: 'No space left on device' for /dev/shm/nccl-…",
        repair="docker run --shm-size=8G or --ipc=host, or default-shm-size in daemon.json",
        prevent="container_toolkit_shm_size: 8G",
        find=_shm,
        texts=(
            r"Call to posix_fallocate failed ?: No space left on device",
            r"Error while creating shared memory segment /dev/shm/nccl-",
            r"shm/nccl-\w+.*(?:No space left|size \d+)",
            r"insufficient shared memory \(shm\)|DataLoader worker .* killed by signal: Bus error",
        ),
        sources=("scenario J4",),
    ),
)
