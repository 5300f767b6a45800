# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Bring the container runtimes of a host to what is asked for: docker, rootless docker, containerd, CDI, device links.

Refuses before anything is changed where it can, changes least, restarts only with consent, and a second run does nothing.
Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.containers import cdi as containers_cdi
from ansible_collections.gpu.provision.plugins.module_utils.containers import (
    containerd,
    daemon_flags,
    docker_api,
    docker_host,
)
from ansible_collections.gpu.provision.plugins.module_utils.containers import docker as containers_docker
from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from ansible_collections.gpu.provision.plugins.module_utils.containers import host as containers_host
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree

ContainerError = containers_host.ContainerError
# Keys of the argument docker that a rootless daemon gets as well: who is in a group, and cgroups, are root's business.
_FOR_USERS = ("runtime", "default_runtime", "cdi", "shm_size")
_CONFIG = "/etc/nvidia-container-runtime/config.toml"


def apply(params, check=False, host=None):
    """Carry out the module's arguments; returns its result. Raises ContainerError.

    params: {docker, rootless, containerd, cdi, device_links, restart, backup}, see the module container_runtime.
    """
    host = host or containers_host.Host(host_tree.HostTree("/"), check, params.get("backup") or containers_files.BACKUP)
    policy = params.get("restart") or "when_idle"
    docker, users = params.get("docker"), list(params.get("rootless") or ())
    daemons = _daemons(host, policy, docker, users)
    # What keeps GPUs in running containers comes first.
    if params.get("device_links"):
        containers_cdi.ensure_device_links(host)
    elif params.get("device_links") is False:
        # Links that were made do no harm and go with the next boot.
        host.remove_own(containers_files.UDEV_RULE)
    for daemon, desired in daemons:
        daemon.ensure(desired)
    if users:
        _without_cgroups(host, docker)
    if docker:
        _join_group(host, docker.get("users") or ())
    if params.get("containerd") is not None:
        containerd.Containerd(host, policy).ensure(params["containerd"])
    if params.get("cdi"):
        containers_cdi.ensure_cdi(host)
    elif params.get("cdi") is False:
        containers_cdi.drop_units(host)
    if docker:
        _warn_reload(host)
    return {
        "changed": bool(host.done),
        "done": host.done,
        "diff": host.diff,
        "notes": host.warnings,
        "backups": host.backups,
        "restart_required": bool(host.restart_because),
        "restart_because": host.restart_because,
        "in_the_way": [dict(row, title=_title(row)) for row in host.in_the_way],
    }


def _title(row):
    """A container as messages name it."""
    what = [row["runtime"], row.get("image"), "uses a GPU" if row.get("gpu") else None]
    return "%s (%s)" % (row.get("name") or row["id"], ", ".join(word for word in what if word))


def _daemons(host, policy, docker, users):
    """[(daemon, desired)], every one found before the first is changed."""
    found = docker_host.inspect(host.tree) if docker or users else None
    daemons = []
    if docker:
        refusal = docker_host.refusal(found)
        # A daemon that runs from elsewhere (/opt) is one as well.
        if refusal and daemon_flags.find_process(host.tree) is None and not _may_come(host, found):
            message, because, hint = refusal
            host.fail("containers.no_docker", message, hint, because)
        for words in docker_host.warnings(found):
            host.warn(words)
        for user in docker.get("users") or ():
            if user not in _accounts(host):
                host.fail(
                    "containers.no_user",
                    "there is no user %s on this host" % user,
                    "create the user first, or leave it out",
                )
        daemons.append((containers_docker.Docker(host, policy), docker))
    desired = {key: value for key, value in (docker or {"runtime": True}).items() if key in _FOR_USERS}
    for user in users:
        row = found["rootless"].get(user)
        if row is None:
            host.fail(
                "containers.no_rootless",
                "%s has no rootless docker" % user,
                "as %s: dockerd-rootless-setuptool.sh install, then run again" % user,
            )
        daemons.append((containers_docker.UserDocker(host, policy, user, row), desired))
    return daemons


def _may_come(host, found):
    """In check mode a docker of the archive may be on its way: its package was not installed then."""
    if not host.check or found["snap"] or found["podman"]:
        return False
    host.warn("docker is not installed: this is what would be done if it comes in the same run")
    return True


def _without_cgroups(host, docker):
    """A rootless daemon may not write device cgroups; the setting is one for the whole host (source: NVIDIA's guide)."""
    text = host.tree.read(_CONFIG) or ""
    if any(line.split("#")[0].replace(" ", "") == "no-cgroups=true" for line in text.splitlines()):
        return
    if docker:
        host.warn(
            "no-cgroups stays off in %s, because the system's docker needs it: rootless containers get GPUs through CDI "
            "(--device nvidia.com/gpu=all)" % _CONFIG
        )
        return
    host.command(
        ["nvidia-ctk", "config", "--set", "nvidia-container-cli.no-cgroups", "--in-place"],
        "set no-cgroups in " + _CONFIG,
        "containers.no_cgroups",
        "nvidia-ctk config prints what it reads",
    )


def _join_group(host, users):
    """Put accounts into the group docker; whoever is in it can become root."""
    members = docker_host.members(host.tree, "docker") or ()
    for user in users:
        if user not in members:
            host.command(
                ["usermod", "-a", "-G", "docker", user],
                "put %s into the group docker (takes effect at the next login)" % user,
                "containers.group",
                "getent group docker: docker's package makes the group",
            )


def _accounts(host):
    return {line.split(":")[0] for line in (host.tree.read("/etc/passwd") or "").splitlines()}


def _warn_reload(host):
    """Name the containers that a systemctl daemon-reload would take the GPUs from (systemd's cgroups, no device links)."""
    if daemon_flags.find_process(host.tree) is None or not containers_files.device_links_missing(host.tree):
        return
    client = docker_api.Client()
    try:
        if client.info()["cgroup_driver"] != "systemd":
            return
        names = [row["name"] for row in client.running(containers_docker.gpu_containers(host.tree)) if row["gpu"]]
    except docker_api.DockerError:
        return
    if names:
        host.warn(
            "systemctl daemon-reload would take the GPUs from %s: container_toolkit_device_links: true makes the links "
            "that keep them" % ", ".join(names)
        )
