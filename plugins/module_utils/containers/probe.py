# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read the container runtimes of a host: docker, containerd, podman, CDI specifications, containers that run.

``read`` returns provision.facts.Containers as a dict. Part of the probe: files are read, no program is started; a
docker daemon that runs on the live host is asked one question over its socket, for at most ``ANSWER_S`` seconds.
Texts of configuration files stay on the host (they may hold passwords): only the keys that matter here are reported.

Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.apt import trusted_keys
from ansible_collections.gpu.provision.plugins.module_utils.containers import (
    cdi_spec,
    containerd_config,
    daemon_flags,
    daemon_json,
    docker_host,
    docker_proxy,
)
from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re, own_state
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import integer, json_object

ANSWER_S = 3.0
TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
_PACKAGES = {
    "docker": ("docker.io", "docker-ce", "moby-engine", "docker-engine"),
    "containerd": ("containerd.io", "containerd", "moby-containerd"),
    "podman": ("podman",),
}
_PODMANS = ("/usr/bin/podman", "/usr/local/bin/podman")
# Keys of daemon.json that this tool compares; the others are named and not shown.
_KEYS = (
    "runtimes",
    "default-runtime",
    "features",
    "default-shm-size",
    "exec-opts",
    "live-restore",
    "cgroup-parent",
    "cdi-spec-dirs",
)
# What this tool may write, with any value: tells which of it the file's text would refuse.
_TRIALS = {
    "runtimes": (("runtimes", "nvidia", "path"), "x"),
    "default-runtime": (("default-runtime",), "x"),
    "features": (("features", "cdi"), True),
    "default-shm-size": (("default-shm-size",), "1G"),
    "exec-opts": (("exec-opts",), []),
}
# Folders of running containers, by containerd's namespace (source: containerd's runtime v2 shim, bundle folders).
_BUNDLES = (
    "/run/containerd/io.containerd.runtime.v2.task",
    "/run/docker/containerd/daemon/io.containerd.runtime.v2.task",
    "/var/run/docker/containerd/daemon/io.containerd.runtime.v2.task",
    "/run/containerd/io.containerd.runtime.v1.linux",
)
_NAMESPACES = {"moby": "docker"}
_MOST_CONTAINERS = 256
_MOST_ENTRIES = 64
_GPU_OPTIONS = lazy_re.compile(
    rb"nvidia-container-runtime-hook|nvidia-cdi-hook|/dev/nvidia(?:[0-9]+|ctl|-uvm)|nvidia-container-toolkit\""
)
_ID = lazy_re.compile(r"(?:^|[/-])([0-9a-f]{64})(?:\.scope)?(?=/|$)")


def read(tree, packages, gpu_users=()):
    """facts.Containers as a dict.

    packages: of the probe, by name. gpu_users: [facts.GpuUser]; their processes tell which containers have a GPU open.
    """
    docker = read_docker(tree, packages)
    specs, version = cdi_spec.read(tree), cdi_spec.driver(tree)
    nodes, caps = cdi_spec.gpu_nodes(tree), cdi_spec.mig_nodes(tree)
    return {
        "docker": docker,
        "containerd": read_containerd(tree, packages),
        "podman": {
            "package": _package("podman", packages)[0],
            "version": _package("podman", packages)[1],
            "path": next((path for path in _PODMANS if tree.exists(path)), None),
        },
        "toolkit": read_toolkit(tree),
        "cdi": [dict(spec, stale=cdi_spec.stale(spec, version, nodes, caps)) for spec in specs],
        "cdi_units": cdi_units(tree),
        "cgroups": read_cgroups(tree),
        "running": read_running(tree, gpu_users, docker["data_root"]),
        "device_links_missing": containers_files.device_links_missing(tree),
        "old_keys": read_old_keys(tree),
        "pending": _pending(tree, docker["pid"]),
        "users": sorted(docker_host.users(tree)),
    }


def _package(kind, packages):
    """(name, upstream version) of the package that brings a runtime, (None, None) without one."""
    for name in _PACKAGES[kind]:
        row = packages.get(name)
        if row and row["status"][1] not in "nc":
            return name, upstream(row["version"])
    return None, None


def upstream(version):
    """``5:28.2.2-1~ubuntu.24.04~noble`` and ``28.2.2-0ubuntu1`` give ``28.2.2``; ``4.9.3+ds1-1`` gives ``4.9.3``."""
    match = re.match(r"^[0-9]+(?:\.[0-9]+)*", version.split(":", 1)[-1])
    return match.group(0) if match else ""


# --- docker ------------------------------------------------------------------------------------------------


def read_docker(tree, packages):
    """facts.Docker: which docker this is, what is in its file and its flags, whether it runs."""
    found = docker_host.inspect(tree)
    package, version = _package("docker", packages)
    # Without a daemon nobody looks through the whole process table for one.
    flags = daemon_flags.read(tree) if found["engine"] else daemon_flags.Flags(None, daemon_flags.CONFIG, [])
    file = read_file(tree, flags.config)
    answer = _ask(tree, flags)
    group = docker_host.members(tree, "docker")
    conflicts = daemon_flags.conflicts(flags, dict.fromkeys(file["keys"]))
    return {
        "engine": found["engine"],
        "package": package if found["engine"] else None,
        "version": (answer or {}).get("version") or (version if found["engine"] else None),
        "snap": found["snap"],
        "podman": found["podman"],
        "desktop": list(found["desktop"]),
        "rootless": [
            {"user": user, "uid": row["uid"], "running": bool(row["running"]), "file": read_file(tree, row["config"])}
            for user, row in sorted(found["rootless"].items())
        ],
        "file": file,
        "flags": [
            {
                "key": flag.key,
                "text": _shown(flag),
                "value": flag.value if flag.key in _KEYS else "",
                "place": flag.place,
            }
            for flag in flags.flags[:_MOST_ENTRIES]
        ],
        "conflicts": [key for key, _ in conflicts],
        "pid": flags.pid,
        "file_is_newer": _is_newer(tree, flags),
        "hook_is_newer": daemon_flags.hook_is_newer(tree, flags.started),
        "info": answer,
        "proxy_elsewhere": docker_proxy.elsewhere(tree, flags, file["keys"]),
        "data_root": (answer or {}).get("data_root") or _data_root(tree, flags),
        "group": group and group[:_MOST_ENTRIES],
    }


def _shown(flag):
    """A flag without values that may be secret."""
    return flag.text if flag.key in _KEYS or flag.key == "hosts" else flag.text.split("=")[0].split(" ")[0]


def read_file(tree, path):
    """facts.DaemonFile: what is in a daemon.json that matters here, or line and column of why it cannot be read.

    present: it is there. error: it cannot be read, or dockerd would not take it. keys: names at its top. refused: of the
    keys that may be written, those whose place in the text is not clear, with the reason.
    """
    row = {
        "path": path,
        "present": False,
        "error": None,
        "warnings": [],
        "keys": [],
        "value": {},
        "refused": {},
        "runtime_exists": True,
    }
    data = tree.read_bytes(path, daemon_json.MAX_BYTES + 1)
    if data is None:
        row["unreadable"] = tree.is_noted(path)
        return row
    row["present"] = True
    try:
        document = daemon_json.parse(data)
        daemon_json.check_types(document)
    except daemon_json.DaemonJsonError as error:
        row["error"] = _error(error)
        return row
    value = document.value
    row["warnings"] = document.warnings[:8]
    row["keys"] = list(value)[:_MOST_ENTRIES]
    row["value"] = {key: _bounded(key, value[key]) for key in _KEYS if key in value}
    for key, (place, trial) in _TRIALS.items():
        try:
            document.set(place, trial)
        except daemon_json.DaemonJsonError as error:
            row["refused"][key] = _error(error)
    try:
        daemon_json.merge(document, {"runtime": True}, tree.exists)
    except daemon_json.DaemonJsonError as error:
        row["refused"].setdefault("runtimes", _error(error))
    entry = (row["value"].get("runtimes") or {}).get(daemon_json.RUNTIME) or {}
    program = entry.get("path") or ""
    row["runtime_exists"] = not program.startswith("/") or tree.exists(program)
    return row


def _bounded(key, value):
    """The part of a key that is compared: of runtimes their programs as paths, no arguments."""
    if key == "runtimes" and isinstance(value, dict):
        programs = {name: daemon_json.program_of(row) for name, row in list(value.items())[:_MOST_ENTRIES]}
        return {name: {"path": program} if program else {} for name, program in programs.items()}
    if key == "features" and isinstance(value, dict):
        return dict(list(value.items())[:_MOST_ENTRIES])
    return value


def _error(error):
    return {"line": error.line, "column": error.column, "message": error.message, "hint": error.hint}


def _ask(tree, flags):
    """What a running daemon says of itself, None where it does not run, may not be asked, or does not answer."""
    if not tree.live or flags.pid is None:
        return None
    # Here, because most hosts have no daemon to ask, and what it imports takes longer than the whole read.
    from ansible_collections.gpu.provision.plugins.module_utils.containers import docker_api

    try:
        if os.access(flags.socket, os.R_OK | os.W_OK):
            return docker_api.Client(flags.socket, ANSWER_S).info()
    except docker_api.DockerError:
        pass
    tree.note(flags.socket)
    return None


def _is_newer(tree, flags):
    """True when daemon.json was written after dockerd started: it may not know it all. None where that is not known."""
    found = tree.stat(flags.config)
    since = daemon_flags.since_epoch(tree, flags.started)
    return None if found is None or since is None else found.st_mtime > since


def _data_root(tree, flags):
    given = [flag.value for flag in flags.of("data-root")]
    if given:
        return given[-1]
    try:
        value = daemon_json.parse(tree.read_bytes(flags.config, daemon_json.MAX_BYTES + 1) or b"").value
    except daemon_json.DaemonJsonError:
        return "/var/lib/docker"
    root = value.get("data-root") or value.get("graph")
    return root if isinstance(root, str) and root.startswith("/") else "/var/lib/docker"


# --- containerd, the toolkit, CDI --------------------------------------------------------------------------


def read_containerd(tree, packages):
    """facts.Containerd: by its files, as far as they say it in one line a key."""
    package, version = _package("containerd", packages)
    program = next((path for path in containerd_config.PROGRAMS if tree.exists(path)), None)
    text = tree.read(containerd_config.CONFIG)
    registered = containerd_config.registered_in(tree)
    return {
        "path": program,
        "package": package,
        "version": version,
        "config_version": containerd_config.version_of(text or ""),
        "imports": list(containerd_config.imports_of(text or "") or ())[:_MOST_ENTRIES],
        "runtime": registered["runtime"],
        "default_runtime": registered["default"],
        "cri_disabled": containerd_config.is_cri_disabled(containerd_config.sections(text or "")),
        "pid": daemon_flags.find_process(tree, "/run/containerd/containerd.pid", "containerd") if program else None,
    }


def read_toolkit(tree):
    """facts.ToolkitConfig: what nvidia-container-runtime's own configuration says."""
    text = tree.read(TOOLKIT_CONFIG)
    found = containerd_config.sections(text or "")

    def word(section, key):
        return found.get(section, {}).get(key, "").split("#")[0].strip().strip("\"'")

    root = word(("nvidia-container-cli",), "root")
    return {
        "config": TOOLKIT_CONFIG if text is not None else None,
        "root_gone": root if root.startswith("/") and not tree.is_dir(root) else None,
        "mode": word(("nvidia-container-runtime",), "mode") or None,
        "no_cgroups": word(("nvidia-container-cli",), "no-cgroups") == "true",
        "program": tree.exists("/usr/bin/nvidia-container-runtime"),
        "ctk": tree.exists(containers_files.CTK),
    }


def cdi_units(tree):
    """Who keeps the CDI specification current: ``toolkit``, ``ours``, or None; ``masked`` where somebody forbade it."""
    if containers_files.has_toolkit_units(tree):
        masked = [
            unit for unit in containers_files.TOOLKIT_UNITS if tree.link("/etc/systemd/system/" + unit) == "/dev/null"
        ]
        return "masked" if masked else "toolkit"
    return "ours" if all(tree.exists(path) for path in containers_files.CDI_UNITS) else None


def read_cgroups(tree):
    """``v2``, ``hybrid``, ``v1``, or None where no control groups are mounted."""
    base = "/sys/fs/cgroup"
    if tree.exists(base + "/cgroup.controllers"):
        return "v2"
    if tree.is_dir(base + "/unified"):
        return "hybrid"
    return "v1" if tree.is_dir(base + "/devices") or tree.is_dir(base + "/systemd") else None


def read_old_keys(tree):
    """{path: can be taken out} of files in which apt trusts NVIDIA's container key for every repository."""
    found = trusted_keys.find(tree, [trusted_keys.CONTAINER_TOOLKIT])
    return {one.path: one.rest is not None for one in found}


def _pending(tree, pid):
    """{daemon: keys} of what the module container_runtime wrote and a daemon did not take up yet; see containerhost.

    A docker that was started since has taken it up: it has no keys left.
    """
    try:
        found = own_state.read(tree.real(containers_files.PENDING), containers_files.MARKS) or {}
    except own_state.Damaged as damage:
        tree.note("%s: %s" % (containers_files.PENDING, damage.why))
        return {}
    keys = {name: list(row.get("keys") or ()) for name, row in sorted(found.items())}
    if "docker" in keys and (pid is None or daemon_flags.started(tree, pid) != found["docker"].get("started")):
        keys["docker"] = []
    return keys


# --- containers that run -----------------------------------------------------------------------------------


def read_running(tree, gpu_users, data_root):
    """[facts.RunningContainer]: by containerd's folders of running tasks, podman's control groups, users of GPUs.

    gpu: a GPU was given to it by hook or device, or one of its processes has a GPU open.
    """
    users = {}
    for user in gpu_users:
        match = _ID.search((tree.read("/proc/%d/cgroup" % user["pid"]) or "").strip())
        if match:
            users.setdefault(match.group(1), user)
    found = {}
    for base in _BUNDLES:
        for namespace in tree.names(base):
            for ident in tree.names("%s/%s" % (base, namespace)):
                if len(found) >= _MOST_CONTAINERS or ident in found or not re.match(r"^[\w.-]+$", ident):
                    continue
                row = _task(tree, "%s/%s/%s" % (base, namespace, ident), ident, namespace)
                if row:
                    found[ident] = row
    for ident in _podman_containers(tree)[:_MOST_CONTAINERS]:
        found.setdefault(ident, {"id": ident[:12], "runtime": "podman", "pid": None, "comm": None, "gpu": False})
    for ident, user in users.items():
        row = found.setdefault(
            ident,
            {
                "id": ident[:12],
                "runtime": _kind(tree, user["pid"]),
                "pid": user["pid"],
                "comm": user["comm"],
                "gpu": True,
            },
        )
        row["gpu"] = True
        row["comm"] = user["comm"]
    for ident, row in found.items():
        row["name"], row["image"] = _named(tree, data_root, ident) if row["runtime"] == "docker" else (None, None)
    return [found[ident] for ident in sorted(found, key=lambda one: (found[one]["runtime"], one))]


def _task(tree, folder, ident, namespace):
    """One running task of containerd, None where its process is gone, and for the pause containers of Kubernetes."""
    pid = tree.word(folder + "/init.pid")
    comm = tree.word("/proc/%s/comm" % pid) if integer(pid) is not None else None
    if comm is None or comm == "pause":
        return None
    config = tree.read_bytes(folder + "/config.json", 1 << 20) or b""
    return {
        "id": ident[:12],
        "runtime": _NAMESPACES.get(namespace, "containerd"),
        "pid": integer(pid),
        "comm": comm,
        "gpu": _GPU_OPTIONS.search(config) is not None,
    }


def _podman_containers(tree):
    names = [
        name
        for part in ("machine.slice", "systemd/machine.slice", "pids/machine.slice")
        for name in tree.names("/sys/fs/cgroup/" + part)
    ]
    found = [re.match(r"^libpod-([0-9a-f]{64})\.scope$", name) for name in names]
    return list(dict.fromkeys(match.group(1) for match in found if match))


def _kind(tree, pid):
    text = tree.read("/proc/%d/cgroup" % pid) or ""
    if "libpod" in text:
        return "podman"
    return "containerd" if re.search(r"kubepods|cri-containerd|/k8s\.io/|nerdctl", text) else "docker"


def _named(tree, data_root, ident):
    """(name, image) of a container of docker by the daemon's own records, each None where they do not say it."""
    record = json_object(tree.read("%s/containers/%s/config.v2.json" % (data_root, ident), 1 << 20)) or {}
    name, config = record.get("Name"), record.get("Config")
    image = config.get("Image") if isinstance(config, dict) else None
    return name.lstrip("/") if isinstance(name, str) else None, image if isinstance(image, str) else None
