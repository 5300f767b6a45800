# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The checks of containers, by facts alone: the toolkit's packages, runtimes, CDI, shared memory, what stops a daemon.

Pure functions, as those of ``checks``. ``expect["containers"]`` says what the inventory asks for (see WISH). Where it asks for
nothing, damage is still found, and what somebody may have meant is left alone. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_json
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, driver_names
from provision.parts import verdicts

# manage: containers are asked for. runtimes, rootless: docker, containerd, podman; users with a docker of their own. names: the
# toolkit's packages. legacy: those of the old days. version: exact, or None. cdi: a CDI specification is to be there.
# docker_cdi: the docker that is there takes GPUs by CDI. users: to be in the group docker. refused: sentences, what is asked
# for and cannot be.
WISH = {
    "manage": False,
    "runtimes": [],
    "rootless": [],
    "names": [],
    "legacy": [],
    "version": None,
    "hold": False,
    "default_runtime": "",
    "shm_size": "",
    "users": [],
    "cdi": False,
    "docker_cdi": False,
    "device_links": False,
    "refused": [],
}
# First toolkit that works with cgroup v2 (field report L7).
CGROUP_V2 = "1.8.0"
# What docker gives a container that asks for nothing (source: docker's reference), and what several processes on several
# cards need at least: NCCL alone takes some 10 MB a pair of cards and channel (field report J4).
SHM_DEFAULT, SHM_LEAST = "64M", 1 << 30
_NONE = {
    "docker": None,
    "containerd": None,
    "podman": None,
    "toolkit": {},
    "cdi": [],
    "cdi_units": None,
    "cgroups": None,
    "running": [],
    "device_links_missing": [],
    "pending": {},
}
_SET = (
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
_APPLY = "provision apply does it"
_verdict = verdicts.verdict


def wish_of(want):
    """What expect asks for of containers, whole: see WISH."""
    return dict(WISH, **(want.get("containers") or {}))


def containers_of(facts):
    """facts.Containers, also of a host that was read by an older probe."""
    found = dict(_NONE, **(facts.get("containers") or {}))
    for part in ("docker", "containerd", "podman"):
        found[part] = found[part] or {}
    return found


def _file(docker):
    return docker.get("file") or {"path": "/etc/docker/daemon.json", "keys": [], "value": {}, "error": None}


def _bytes(text):
    return daemon_json.size_of(text) or 0


def packages(facts, want):
    """The toolkit's packages are there, of one version, held, and nothing of the old days stands beside them."""
    check, wish = "container.packages", wish_of(want)
    rows = facts["packages"]
    wanted = wish["names"] or _SET
    here = {name: rows[name] for name in wanted if name in rows and rows[name]["status"][1] not in "nc"}
    evidence = [
        "%s %s%s" % (name, row["version"], ", held" if row["status"][0] == "h" else "")
        for name, row in sorted(here.items())
    ]
    old = [name for name in wish["legacy"] if name in rows and rows[name]["status"][1] not in "nc"]
    evidence += ["%s %s, of the old days" % (name, rows[name]["version"]) for name in old]
    if not here:
        if wish["manage"]:
            return _verdict(check, "fail", "the container toolkit is not installed", evidence, _APPLY)
        return _verdict(check, "skip", "no container toolkit, and none is asked for", evidence)
    bad = "fail" if wish["manage"] else "warn"
    versions = sorted({row["version"] for row in here.values()}, key=deb_version.key)
    missing = [name for name in wanted if name not in here]
    if len(versions) > 1:
        return _verdict(
            check,
            bad,
            "its packages are of different versions: %s" % ", ".join(versions),
            evidence,
            "they belong together at one version: %s" % (_APPLY if wish["manage"] else "apt-get install all of them"),
        )
    version = driver_names.upstream(versions[0])
    if containers_of(facts)["cgroups"] == "v2" and deb_version.compare(version, CGROUP_V2) < 0:
        return _verdict(
            check,
            bad,
            "container toolkit %s cannot work with cgroup v2" % version,
            evidence,
            "%s is the first that can ('cgroup subsystem devices not found'); look where it comes from" % CGROUP_V2,
        )
    if missing and wish["manage"]:
        return _verdict(check, "fail", "%s is not installed" % missing[0], evidence, _APPLY)
    unfinished = [name for name, row in here.items() if row["status"][1] != "i"]
    if unfinished:
        return _verdict(check, bad, "%s is not set up" % unfinished[0], evidence, "dpkg --configure -a shows why")
    if wish["version"] and version != wish["version"]:
        return _verdict(check, "fail", "version is %s, wanted is %s" % (version, wish["version"]), evidence, _APPLY)
    loose = [name for name, row in here.items() if row["status"][0] != "h"]
    if wish["hold"] and loose:
        return _verdict(
            check,
            "fail",
            "%d of %d packages are not held" % (len(loose), len(here)),
            evidence,
            "an update can move them apart: provision apply holds them",
        )
    if old and wish["manage"]:
        return _verdict(
            check,
            "warn",
            "%s of the old days is still installed" % old[0],
            evidence,
            "container_toolkit_remove_legacy: true removes it",
        )
    return _verdict(check, "pass", "%s, %d packages%s" % (version, len(here), "" if loose else ", all held"), evidence)


def runtime(facts, want):
    """NVIDIA's runtime is registered with every runtime that is asked for, and the daemons know it."""
    check, wish, have = "container.runtime", wish_of(want), containers_of(facts)
    problems, evidence, hint = list(wish["refused"]), [], None
    if problems:
        hint = "provision plan says why, and what would work"
    docker, info = have["docker"], have["docker"].get("info")
    by_flag = any(
        flag["key"] == "runtimes" and flag["value"].startswith("nvidia=") for flag in docker.get("flags") or ()
    )
    in_file = bool((_file(docker)["value"].get("runtimes") or {}).get("nvidia"))
    if docker.get("engine"):
        state = "runs" if docker.get("pid") else "does not run"
        where = (
            "lists it"
            if info and "nvidia" in info["runtimes"]
            else "in its file"
            if in_file
            else "by a flag"
            if by_flag
            else "not there"
        )
        evidence.append("docker %s %s; runtime nvidia: %s" % (docker.get("version") or "?", state, where))
    if "docker" in wish["runtimes"] and not problems:
        if not docker.get("engine"):
            problems.append("docker is not installed")
        elif not (in_file or by_flag):
            problems.append("docker has no runtime nvidia")
        elif info and "nvidia" not in info["runtimes"]:
            problems.append("docker did not take up the runtime that is in %s" % _file(docker)["path"])
            hint = "systemctl reload docker has it read its file again"
        elif have["pending"]:
            problems.append("%s did not take up what was written" % ", ".join(have["pending"]))
            hint = "a restart waits for you: systemctl restart docker, when its containers are done"
        elif docker.get("hook_is_newer"):
            problems.append("docker was started before the toolkit was installed and does not know --gpus")
            hint = "systemctl restart docker, when its containers are done"
        elif wish["default_runtime"] and _default(docker) != wish["default_runtime"]:
            problems.append(
                "docker's default runtime is %s, wanted is %s" % (_default(docker), wish["default_runtime"])
            )
        if docker.get("engine") and not problems and not docker.get("pid"):
            return _verdict(check, "warn", "docker does not run", evidence, "systemctl status docker says why")
    for user in wish["rootless"]:
        row = next((row for row in docker.get("rootless") or () if row["user"] == user), None)
        if row is None or not (row["file"]["value"].get("runtimes") or {}).get("nvidia"):
            problems.append("docker of %s has no runtime nvidia" % user)
    containerd, podman = have["containerd"], have["podman"]
    if "containerd" in wish["runtimes"]:
        if not containerd.get("path"):
            problems.append("containerd is not installed")
        elif not containerd["runtime"]:
            problems.append("containerd has no runtime nvidia")
        else:
            evidence.append("containerd %s: runtime nvidia is registered" % (containerd.get("version") or "?"))
    if "podman" in wish["runtimes"]:
        if not (podman.get("path") or podman.get("package")):
            problems.append("podman is not installed")
        else:
            evidence.append("podman %s: takes GPUs by CDI, see container.cdi" % (podman.get("version") or "?"))
    if problems:
        return _verdict(check, "fail", "not as asked for: %s" % "; ".join(problems), evidence, hint or _APPLY)
    if not wish["manage"]:
        return _verdict(check, "skip", "no container runtime is asked for", evidence)
    if wish["runtimes"] and (facts["gpus"] or have["toolkit"].get("config")) and not have["toolkit"].get("program"):
        return _verdict(
            check,
            "fail",
            "nvidia-container-runtime is not there",
            evidence,
            "apt-get install --reinstall nvidia-container-toolkit-base puts it back",
        )
    names_ = list(wish["runtimes"]) + ["docker of %s" % user for user in wish["rootless"]]
    return _verdict(check, "pass", ", ".join(names_), evidence)


def _default(docker):
    info = docker.get("info")
    flags = [flag["value"] for flag in docker.get("flags") or () if flag["key"] == "default-runtime"]
    return (
        (info and info["default_runtime"]) or _file(docker)["value"].get("default-runtime") or (flags or ["runc"])[-1]
    )


def cdi(facts, want):
    """The CDI specification is of the loaded driver and of the cards that are there, and somebody keeps it so."""
    check, wish, have = "container.cdi", wish_of(want), containers_of(facts)
    loaded = facts["module"]["loaded"]
    evidence = [
        "%s: driver %s, %d GPUs" % (spec["path"], ", ".join(spec["versions"]) or "?", len(spec["gpus"]))
        for spec in have["cdi"]
    ]
    keeper = {
        "toolkit": "the toolkit's units keep it current",
        "ours": "units of gpu-provision keep it current",
        "masked": "the toolkit's units that keep it current are masked",
    }.get(have["cdi_units"])
    evidence += [keeper] if keeper else []
    if not loaded:
        return _verdict(check, "skip", "no driver is loaded", evidence)
    remake = (
        "systemctl restart nvidia-cdi-refresh.service"
        if have["cdi_units"] == "toolkit"
        else "systemctl restart gpu-provision-cdi.service"
    )
    if have["cdi_units"] not in ("toolkit", "ours"):
        remake = "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml"
    stale = [spec for spec in have["cdi"] if spec["stale"]]
    if stale:
        fresh = len(stale) < len(have["cdi"])
        # /var/run/cdi wins over /etc/cdi where both know a device, so an old file there alone does no harm yet.
        harmless = fresh and all(spec["path"].startswith("/etc/cdi/") for spec in stale)
        hint = "rm %s: another one beside it fits" % stale[0]["path"] if harmless else remake
        if stale[0]["path"].startswith("/etc/cdi/") and not harmless:
            hint = "rm %s, then %s" % (stale[0]["path"], remake)
        status = "warn" if harmless or not (wish["manage"] or have["podman"].get("path")) else "fail"
        return _verdict(check, status, "the CDI specification is stale: %s" % stale[0]["stale"], evidence, hint)
    if not have["cdi"]:
        if wish["cdi"]:
            return _verdict(check, "fail", "there is no CDI specification", evidence, remake)
        return _verdict(check, "skip", "no CDI specification, and none is asked for", evidence)
    if wish["cdi"] and have["cdi_units"] not in ("toolkit", "ours"):
        return _verdict(
            check,
            "warn",
            "nobody keeps the CDI specification current",
            evidence,
            "the next driver makes it stale: %s" % _APPLY
            if have["cdi_units"] is None
            else "systemctl unmask nvidia-cdi-refresh.service nvidia-cdi-refresh.path",
        )
    return _verdict(check, "pass", "driver %s, %s" % (loaded["version"], have["cdi"][-1]["path"]), evidence)


def shm(facts, want):
    """Docker gives containers the shared memory that processes on several cards need (field report J4)."""
    check, wish, docker = "container.shm", wish_of(want), containers_of(facts)["docker"]
    if not docker.get("engine"):
        return _verdict(check, "skip", "no docker")
    flags = [flag["value"] for flag in docker.get("flags") or () if flag["key"] == "default-shm-size"]
    size = _file(docker)["value"].get("default-shm-size") or (flags or [SHM_DEFAULT])[-1]
    evidence = ["default-shm-size: %s" % size, "GPUs: %d" % len(facts["gpus"])]
    if wish["shm_size"] and _bytes(size) != _bytes(wish["shm_size"]):
        return _verdict(
            check, "fail", "default-shm-size is %s, wanted is %s" % (size, wish["shm_size"]), evidence, _APPLY
        )
    if len(facts["gpus"]) < 2:
        return _verdict(check, "skip", "fewer than two GPUs", evidence)
    if _bytes(size) < SHM_LEAST:
        return _verdict(
            check,
            "warn",
            "containers get %s of shared memory, too little for work on several GPUs" % size,
            evidence,
            "container_toolkit_shm_size: 8G for all, or docker run --ipc=host, or --shm-size=8G for one",
        )
    return _verdict(check, "pass", str(size), evidence)


def group(facts, want):
    """Accounts that are to use docker are in its group."""
    check, wish, docker = "container.group", wish_of(want), containers_of(facts)["docker"]
    members = docker.get("group")
    if not wish["users"]:
        return _verdict(check, "skip", "no account is asked for")
    missing = [user for user in wish["users"] if user not in (members or ())]
    evidence = ["in the group docker: %s" % (", ".join(members or ()) or "nobody")]
    if missing:
        what = "there is no group docker" if members is None else "not in the group docker: %s" % ", ".join(missing)
        return _verdict(
            check, "fail", what, evidence, "provision apply puts them there; it counts from their next login"
        )
    return _verdict(check, "pass", ", ".join(wish["users"]), evidence)


def flags(facts, want):
    """Docker can start again: its file can be read, and says nothing that a flag says too."""
    check, docker = "container.flags", containers_of(facts)["docker"]
    file = _file(docker)
    if not docker.get("engine"):
        return _verdict(check, "skip", "no docker")
    more = " (it still runs with what it read before)" if docker.get("pid") else ""
    # One with warnings alone (a key twice) is read by dockerd as it is.
    if file.get("error"):
        error = file["error"]
        return _verdict(
            check,
            "fail",
            "docker cannot start again with %s" % file["path"],
            ["line %d, column %d: %s%s" % (error["line"], error["column"], error["message"], more)],
            error["hint"] or "mend it by hand",
        )
    both = [flag for flag in docker.get("flags") or () if flag["key"] in file["keys"]]
    if both:
        return _verdict(
            check,
            "fail",
            "docker cannot start again: %s is a flag and in %s" % (both[0]["key"], file["path"]),
            ["%s: %s%s" % (flag["place"], flag["text"], more) for flag in both],
            "take it out of one of them: %s, or %s" % (both[0]["place"], file["path"]),
        )
    if not file.get("present"):
        return _verdict(check, "pass", "no %s" % file["path"])
    return _verdict(check, "pass", file["path"], file.get("warnings") or [])


def links(facts, want):
    """A systemctl daemon-reload takes no GPU from running containers (field report L3)."""
    check, wish, have = "container.links", wish_of(want), containers_of(facts)
    info = have["docker"].get("info") or {}
    missing = have["device_links_missing"]
    users = [row for row in have["running"] if row["gpu"]]
    if not have["docker"].get("engine") and not wish["manage"]:
        return _verdict(check, "skip", "no docker")
    evidence = ["no link in /dev/char: %s" % ", ".join(missing[:8])] if missing else []
    evidence += ["%s %s" % (row["runtime"], row["name"] or row["id"]) for row in users[:8]]
    own_cgroups = info.get("cgroup_driver") == "cgroupfs"
    if own_cgroups:
        return _verdict(check, "pass", "docker keeps cgroups itself (cgroupfs)", evidence)
    if missing and (users or wish["device_links"]):
        hint = (
            "provision apply makes the links"
            if wish["device_links"]
            else "nvidia-ctk system create-dev-char-symlinks --create-all"
        )
        what = "%d devices have no link in /dev/char" % len(missing)
        if users:
            what = "systemctl daemon-reload would take the GPUs from running containers (%d)" % len(users)
        return _verdict(check, "warn", what, evidence, hint + " ('Failed to initialize NVML: Unknown Error')")
    if missing or not facts["devices"]:
        return _verdict(check, "skip", "no container has a GPU" if missing else "no device of NVIDIA's", evidence)
    return _verdict(check, "pass", "every device has its link", evidence)


CHECKS = (packages, runtime, cdi, shm, group, flags, links)
