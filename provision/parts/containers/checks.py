"""The checks of containers, by facts alone: the toolkit's packages, runtimes, CDI, shared memory, what stops a daemon.

Where nothing is asked for (``expect.containers.manage``), damage is still found, and what somebody may have meant is left
alone.
"""

from __future__ import annotations

from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_json
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, driver_names
from provision.facts import Docker, Facts
from provision.lib.findings import Check
from provision.parts.check import Expect, check, failed, passed, skipped, warned
from provision.parts.containers.packages import CGROUP_V2

# What docker gives a container that asks for nothing (source: docker's reference), and what several processes on several
# cards need at least: NCCL alone takes some 10 MB a pair of cards and channel.
SHM_DEFAULT, SHM_LEAST = "64M", 1 << 30
SET = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools", "libnvidia-container1")
_APPLY = "provision apply does it"


def _bytes(text: object) -> int:
    return int(daemon_json.size_of(text) or 0)


@check("container.packages")
def packages(facts: Facts, expect: Expect) -> Check:
    """The toolkit's packages are installed, of one version and held, and no obsolete package is installed."""
    want, rows = expect.containers, {name: row for name, row in facts.packages.items() if row.there}
    wanted = want.names or SET
    here = {name: rows[name] for name in wanted if name in rows}
    evidence = [f"{name} {row.version}{', held' if row.held else ''}" for name, row in sorted(here.items())]
    old = [name for name in want.legacy if name in rows]
    evidence += [f"{name} {rows[name].version}, obsolete" for name in old]
    if not here:
        if want.manage:
            return failed("the container toolkit is not installed", evidence, _APPLY)
        return skipped("no container toolkit, and none is asked for", evidence)
    bad = failed if want.manage else warned
    versions = sorted({row.version for row in here.values()}, key=deb_version.key)
    missing = [name for name in wanted if name not in here]
    if len(versions) > 1:
        return bad(
            f"its packages are of different versions: {', '.join(versions)}",
            evidence,
            f"they belong together at one version: {_APPLY if want.manage else 'apt-get install all of them'}",
        )
    version = driver_names.upstream(versions[0])
    if facts.containers.cgroups == "v2" and deb_version.compare(version, CGROUP_V2) < 0:
        return bad(
            f"container toolkit {version} cannot work with cgroup v2",
            evidence,
            f"{CGROUP_V2} is the first that can ('cgroup subsystem devices not found'); check where it comes from",
        )
    if missing and want.manage:
        return failed(f"{missing[0]} is not installed", evidence, _APPLY)
    unfinished = [name for name, row in here.items() if row.status[1] != "i"]
    if unfinished:
        return bad(f"{unfinished[0]} is not set up", evidence, "dpkg --configure -a shows why")
    if want.version and version != want.version:
        return failed(f"version is {version}, wanted is {want.version}", evidence, _APPLY)
    loose = [name for name, row in here.items() if not row.held]
    if want.hold and loose:
        return failed(
            f"{len(loose)} of {len(here)} packages are not held",
            evidence,
            "an update can move them apart: provision apply holds them",
        )
    if old and want.manage:
        return warned(
            f"{old[0]} (obsolete) is still installed", evidence, "container_toolkit_remove_legacy: true removes it"
        )
    return passed(f"{version}, {len(here)} packages{'' if loose else ', all held'}", evidence)


@check("container.runtime")
def runtime(facts: Facts, expect: Expect) -> Check:
    """NVIDIA's runtime is registered with every runtime that is asked for, and the daemons know it."""
    want, have, docker = expect.containers, facts.containers, facts.containers.docker
    problems, evidence, hint = list(want.refused), [], None
    if problems:
        hint = "provision plan says why, and what would work"
    by_flag = any(flag.key == "runtimes" and flag.value.startswith("nvidia=") for flag in docker.flags)
    in_file = _registered(docker.file.value)
    listed = docker.info is not None and "nvidia" in docker.info.runtimes
    if docker.engine:
        state = "runs" if docker.pid else "does not run"
        where = "lists it" if listed else "in its file" if in_file else "by a flag" if by_flag else "not there"
        evidence.append(f"docker {docker.version or '?'} {state}; runtime nvidia: {where}")
    if "docker" in want.runtimes and not problems:
        if not docker.engine:
            problems.append("docker is not installed")
        elif not (in_file or by_flag):
            problems.append("docker has no runtime nvidia")
        elif docker.info and not listed:
            problems.append(f"docker did not load the runtime that is in {docker.file.path}")
            hint = "systemctl reload docker has it read its file again"
        elif have.pending:
            problems.append(f"{', '.join(have.pending)} did not load what was written")
            hint = "a restart waits for you: systemctl restart docker, when its containers are done"
        elif docker.hook_is_newer:
            problems.append("docker was started before the toolkit was installed and does not know --gpus")
            hint = "systemctl restart docker, when its containers are done"
        elif want.default_runtime and _default(docker) != want.default_runtime:
            problems.append(f"docker's default runtime is {_default(docker)}, wanted is {want.default_runtime}")
        if docker.engine and not problems and not docker.pid:
            return warned("docker does not run", evidence, "systemctl status docker says why")
    for user in want.rootless:
        row = next((row for row in docker.rootless if row.user == user), None)
        if row is None or not _registered(row.file.value):
            problems.append(f"docker of {user} has no runtime nvidia")
    if "containerd" in want.runtimes:
        if not have.containerd.path:
            problems.append("containerd is not installed")
        elif not have.containerd.runtime:
            problems.append("containerd has no runtime nvidia")
        else:
            evidence.append(f"containerd {have.containerd.version or '?'}: runtime nvidia is registered")
    if "podman" in want.runtimes:
        if not (have.podman.path or have.podman.package):
            problems.append("podman is not installed")
        else:
            evidence.append(f"podman {have.podman.version or '?'}: takes GPUs by CDI, see container.cdi")
    if problems:
        return failed(f"not as asked for: {'; '.join(problems)}", evidence, hint or _APPLY)
    if not want.manage:
        return skipped("no container runtime is asked for", evidence)
    if want.runtimes and (facts.gpus or have.toolkit.config) and not have.toolkit.program:
        return failed(
            "nvidia-container-runtime is not there",
            evidence,
            "apt-get install --reinstall nvidia-container-toolkit-base puts it back",
        )
    return passed(", ".join([*want.runtimes, *(f"docker of {user}" for user in want.rootless)]), evidence)


def _registered(value: dict[str, Any]) -> bool:
    """A daemon.json has NVIDIA's runtime."""
    runtimes = value.get("runtimes")
    return isinstance(runtimes, dict) and bool(runtimes.get("nvidia"))


def _flag(docker: Docker, key: str, default: str) -> str:
    """What the last flag of dockerd sets."""
    return ([flag.value for flag in docker.flags if flag.key == key] or [default])[-1]


def _default(docker: Docker) -> object:
    own = docker.info.default_runtime if docker.info else ""
    return own or docker.file.value.get("default-runtime") or _flag(docker, "default-runtime", "runc")


@check("container.cdi")
def cdi(facts: Facts, expect: Expect) -> Check:
    """The CDI specification matches the loaded driver and the installed cards, and a unit keeps it current."""
    want, specs, units, loaded = (
        expect.containers,
        facts.containers.cdi,
        facts.containers.cdi_units,
        facts.module.loaded,
    )
    evidence = [f"{spec.path}: driver {', '.join(spec.versions) or '?'}, {len(spec.gpus)} GPUs" for spec in specs]
    if units:
        keepers = {
            "toolkit": "the toolkit's units keep it current",
            "ours": "units of gpu-provision keep it current",
            "masked": "the toolkit's units that keep it current are masked",
        }
        evidence.append(keepers[units])
    if not loaded:
        return skipped("no driver is loaded", evidence)
    remake = "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"
    if units == "toolkit":
        remake = "systemctl restart nvidia-cdi-refresh.service"
    elif units == "ours":
        remake = "systemctl restart gpu-provision-cdi.service"
    stale = [spec for spec in specs if spec.stale]
    if stale:
        fresh = len(stale) < len(specs)
        # /var/run/cdi wins over /etc/cdi where both know a device, so an old file there alone does no harm yet.
        harmless = fresh and all(spec.path.startswith("/etc/cdi/") for spec in stale)
        hint = f"rm {stale[0].path}: another one beside it fits" if harmless else remake
        if stale[0].path.startswith("/etc/cdi/") and not harmless:
            hint = f"rm {stale[0].path}, then {remake}"
        say = warned if harmless or not (want.manage or facts.containers.podman.path) else failed
        return say(f"the CDI specification is stale: {stale[0].stale}", evidence, hint)
    if not specs:
        if want.cdi:
            return failed("there is no CDI specification", evidence, remake)
        return skipped("no CDI specification, and none is asked for", evidence)
    if want.cdi and units not in ("toolkit", "ours"):
        return warned(
            "nothing keeps the CDI specification current",
            evidence,
            f"the next driver makes it stale: {_APPLY}"
            if units is None
            else "systemctl unmask nvidia-cdi-refresh.service nvidia-cdi-refresh.path",
        )
    return passed(f"driver {loaded.version}, {specs[-1].path}", evidence)


@check("container.shm")
def shm(facts: Facts, expect: Expect) -> Check:
    """Docker gives containers the shared memory that processes on several cards need."""
    wanted, docker, count = expect.containers.shm_size, facts.containers.docker, len(facts.gpus)
    if not docker.engine:
        return skipped("no docker")
    size = docker.file.value.get("default-shm-size") or _flag(docker, "default-shm-size", SHM_DEFAULT)
    evidence = [f"default-shm-size: {size}", f"GPUs: {count}"]
    if wanted and _bytes(size) != _bytes(wanted):
        return failed(f"default-shm-size is {size}, wanted is {wanted}", evidence, _APPLY)
    if count < 2:
        return skipped("fewer than two GPUs", evidence)
    if _bytes(size) < SHM_LEAST:
        return warned(
            f"containers get {size} of shared memory, too little for work on several GPUs",
            evidence,
            "container_toolkit_shm_size: 8G for all, or docker run --ipc=host, or --shm-size=8G for one",
        )
    return passed(str(size), evidence)


@check("container.group")
def group(facts: Facts, expect: Expect) -> Check:
    """Accounts that are to use docker are in its group."""
    users, members = expect.containers.users, facts.containers.docker.group
    if not users:
        return skipped("no account is asked for")
    missing = [user for user in users if user not in (members or ())]
    evidence = [f"in the group docker: {', '.join(members or ()) or 'nobody'}"]
    if missing:
        what = "there is no group docker" if members is None else f"not in the group docker: {', '.join(missing)}"
        return failed(what, evidence, "provision apply puts them there; it takes effect at their next login")
    return passed(", ".join(users), evidence)


@check("container.flags")
def flags(facts: Facts, expect: Expect) -> Check:
    """Docker can start again: its file can be read, and says nothing that a flag says too."""
    docker, file = facts.containers.docker, facts.containers.docker.file
    if not docker.engine:
        return skipped("no docker")
    more = " (it still runs with what it read before)" if docker.pid else ""
    # One with warnings alone (a key twice) is read by dockerd as it is.
    if file.error:
        return failed(
            f"docker cannot start again with {file.path}",
            [f"line {file.error.line}, column {file.error.column}: {file.error.message}{more}"],
            file.error.hint or "correct it by hand",
        )
    both = [flag for flag in docker.flags if flag.key in file.keys]
    if both:
        return failed(
            f"docker cannot start again: {both[0].key} is a flag and in {file.path}",
            [f"{flag.place}: {flag.text}{more}" for flag in both],
            f"remove it from one of them: {both[0].place}, or {file.path}",
        )
    if not file.present:
        return passed(f"no {file.path}")
    return passed(file.path, file.warnings)


@check("container.links")
def links(facts: Facts, expect: Expect) -> Check:
    """A systemctl daemon-reload takes no GPU from running containers."""
    want, have, missing = expect.containers, facts.containers, facts.containers.device_links_missing
    users = [row for row in have.running if row.gpu]
    if not have.docker.engine and not want.manage:
        return skipped("no docker")
    evidence = [f"no link in /dev/char: {', '.join(missing[:8])}"] if missing else []
    evidence += [f"{row.runtime} {row.name or row.id}" for row in users[:8]]
    if have.docker.info and have.docker.info.cgroup_driver == "cgroupfs":
        return passed("docker keeps cgroups itself (cgroupfs)", evidence)
    if missing and (users or want.device_links):
        hint = (
            "provision apply makes the links"
            if want.device_links
            else "nvidia-ctk system create-dev-char-symlinks --create-all"
        )
        what = f"{len(missing)} devices have no link in /dev/char"
        if users:
            what = f"systemctl daemon-reload would take the GPUs from running containers ({len(users)})"
        return warned(what, evidence, hint + " ('Failed to initialize NVML: Unknown Error')")
    if missing or not facts.devices:
        return skipped("no container has a GPU" if missing else "no device of NVIDIA's", evidence)
    return passed("every device has its link", evidence)


CHECKS = (packages, runtime, cdi, shm, group, flags, links)
