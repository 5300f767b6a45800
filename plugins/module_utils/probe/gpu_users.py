# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Who works on the GPUs of a host, and which machine and boot it is: what is asked again and again, and before a reboot."""

from __future__ import annotations

import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree, integer

# They hold GPU devices open on every host and are no work that a reboot would end.
# Monitors (DCGM and its exporter) watch day and night: counted as work, they would put off every reboot for ever.
# So does the Kubernetes device plugin with its companion.
NOT_USERS = frozenset(
    [
        "nvidia-persiste",
        "nv-fabricmanage",
        "nvidia-smi",
        "nv-hostengine",
        "dcgm-exporter",
        "dcgmi",
        "nvidia-imex",
        "nvidia-device-p",
        "gpu-feature-dis",
    ]
)

_GPU_DEVICE = lazy_re.compile(
    r"^/dev/(?:nvidia[0-9]+|nvidiactl|nvidia-uvm|nvidia-uvm-tools|nvidia-modeset|nvidia-caps/.*)$"
)


def read_gpu_users(tree):
    """[facts.GpuUser]: processes that have a GPU device open, by name and user; command lines stay unread."""
    if not any(name.startswith("nvidia") for name in tree.names("/dev")):
        return []
    found, users = [], None
    for pid in tree.names("/proc"):
        if integer(pid) is None:
            continue
        base = "/proc/%s/fd" % pid
        try:
            handles = os.listdir(tree.real(base))
        except PermissionError:
            tree.note("/proc/*/fd")
            continue
        except OSError:
            # the process has ended
            continue
        devices = set()
        for handle in handles:
            target = tree.link("%s/%s" % (base, handle))
            if target and target.startswith("/dev/nvidia") and _GPU_DEVICE.match(target):
                devices.add(target)
        comm = tree.word("/proc/%s/comm" % pid) if devices else None
        if not comm or comm[:15] in NOT_USERS:
            continue
        if users is None:
            users = _users(tree)
        owner = tree.stat("/proc/" + pid)
        uid = _status_uid(tree, pid) if not tree.live else (owner.st_uid if owner else None)
        found.append(
            {
                "pid": integer(pid),
                "comm": comm,
                "user": None if uid is None else users.get(uid, "uid %d" % uid),
                "devices": sorted(devices),
            }
        )
    return sorted(found, key=lambda row: row["pid"])


def _status_uid(tree, pid):
    match = re.search(r"^Uid:\s+([0-9]+)", tree.read("/proc/%s/status" % pid) or "", re.M)
    return integer(match.group(1)) if match else None


def _users(tree):
    """{uid: name} of /etc/passwd: directory services are not asked, they may hang."""
    rows = (line.split(":") for line in (tree.read("/etc/passwd") or "").splitlines())
    return {integer(row[2]): row[0] for row in rows if len(row) > 3}


def main(args):
    """Return {"gpu_users", "boot_id", "machine_id"}. args: "root" for a recorded host."""
    return inspect(HostTree(args.get("root", "/")))


def inspect(tree):
    """Return {"gpu_users": [facts.GpuUser], "boot_id", "machine_id"}; the ids are None where the host tells none."""
    return {
        "gpu_users": read_gpu_users(tree),
        "boot_id": tree.word("/proc/sys/kernel/random/boot_id"),
        "machine_id": tree.word("/etc/machine-id"),
    }


OWN_MACHINE = "it is the machine that this runs on"


def same_machine(one, other):
    """True where two looks were taken at the same boot of the same machine.

    One kernel has one boot_id: a controller in a container sees that of the machine it would lose. The machine-id decides
    only where a boot_id is missing, since images are copied with theirs.
    """
    for key in ("boot_id", "machine_id"):
        if one.get(key) and other.get(key):
            return one[key] == other[key]
    return False


def reasons(host, controller, policy):
    """Why a host must not be rebooted now, as texts; empty where it may. host, controller: of inspect()."""
    found = []
    if same_machine(host, controller):
        found.append(OWN_MACHINE)
    if policy == "when_idle":
        found += [
            "its GPUs are in use: %s (pid %s%s)"
            % (user["comm"], user["pid"], ", " + user["user"] if user["user"] else "")
            for user in host["gpu_users"][:8]
        ]
    return found
