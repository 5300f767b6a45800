# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Which docker a host has: the engine of a package, a snap, Docker Desktop, a rootless one, podman in its clothes.

By files alone. Who configures the wrong daemon sees no error, only containers without GPUs.
Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import integer, json_object

_ENGINES = ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd")
# uid; system accounts have no docker of their own
_FIRST_USER = 1000


def inspect(tree):
    """{engine, snap, podman, desktop: [users], rootless: {user: {home, uid, gid, config, running}}}.

    engine: path of the system's dockerd, or None; snap: docker comes as a snap; podman: /usr/bin/docker is podman's.
    desktop: users whose docker command goes to Docker Desktop; rootless: users who have a daemon of their own.
    """
    desktop, rootless = [], {}
    for name, row in users(tree).items():
        context = _context(tree, row["home"])
        if context.startswith("desktop"):
            desktop.append(name)
        unit = row["home"] + "/.config/systemd/user/docker.service"
        running = tree.exists("/run/user/%d/docker.sock" % row["uid"])
        if context == "rootless" or running or tree.exists(unit):
            rootless[name] = dict(row, config=row["home"] + "/.config/docker/daemon.json", running=running)
    return {
        "engine": next((path for path in _ENGINES if tree.exists(path)), None),
        "snap": tree.exists("/snap/bin/docker") or tree.is_dir("/var/snap/docker"),
        "podman": _is_podman(tree),
        "desktop": desktop,
        "rootless": rootless,
    }


def users(tree):
    """{name: {uid, gid, home}} of accounts that people have."""
    found = {}
    for line in (tree.read("/etc/passwd") or "").splitlines():
        fields = line.split(":")
        uid, gid = [integer(field) for field in fields[2:4]] if len(fields) == 7 else (None, None)
        if None not in (uid, gid) and fields[5].startswith("/") and (_FIRST_USER <= uid < 60000 or uid == 0):
            found[fields[0]] = {"uid": uid, "gid": gid, "home": fields[5].rstrip("/") or "/"}
    return found


def members(tree, name):
    """Members of a group by /etc/group, None where there is no such group."""
    for line in (tree.read("/etc/group") or "").splitlines():
        fields = line.split(":")
        if fields[0] == name and len(fields) == 4:
            return [member for member in fields[3].split(",") if member]
    return None


def refusal(found):
    """(message, because, hint) where the docker of this host cannot be configured; None where it can."""
    if found["engine"]:
        return None
    if found["snap"]:
        return (
            "docker is a snap on this host",
            [
                "the snap keeps its configuration in /var/snap/docker and cannot see NVIDIA's runtime outside its confinement"
            ],
            "snap remove docker, then container_toolkit_install_docker: true (images do not move with it)",
        )
    if found["desktop"]:
        return (
            "docker is Docker Desktop on this host (%s)" % ", ".join(found["desktop"]),
            ["its daemon runs in a virtual machine of its own, which has no NVIDIA GPU on Linux"],
            "docker context use default, then container_toolkit_install_docker: true",
        )
    if found["podman"]:
        return (
            "docker is podman on this host (podman-docker)",
            ["there is no daemon to configure; podman takes GPUs through CDI"],
            "container_toolkit_runtimes: [podman]",
        )
    if found["rootless"]:
        return (
            "there is no system-wide docker on this host, only the rootless one of %s"
            % ", ".join(sorted(found["rootless"])),
            [],
            "container_toolkit_rootless_users: [%s]" % ", ".join(sorted(found["rootless"])),
        )
    return ("docker is not installed", [], "container_toolkit_install_docker: true installs the archive's docker.io")


def warnings(found):
    """Words about what will not reach the daemon that is configured."""
    said = []
    if found["engine"] and found["snap"]:
        said.append("docker is installed as a snap too: whoever calls /snap/bin/docker gets containers without GPUs")
    if found["engine"] and found["desktop"]:
        said.append("docker of %s goes to Docker Desktop: docker context use default" % ", ".join(found["desktop"]))
    return said


def _context(tree, home):
    """The docker context that a user has chosen, or ""."""
    data = json_object(tree.read(home + "/.docker/config.json", 65536)) or {}
    return str(data.get("currentContext") or "")


def _is_podman(tree):
    target = tree.link("/usr/bin/docker") or ""
    return "podman" in target or b"podman" in (tree.read_bytes("/usr/bin/docker", 256, head=True) or b"")
