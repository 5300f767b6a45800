# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Whether a transaction fits on the disk. Standard library only, any Python from 3.8."""

from __future__ import annotations

import os

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names

# Free space that must remain, in bytes. A full /boot stops the next initramfs, a full /var stops dpkg itself.
RESERVE = {"/": 512 << 20, "/var": 256 << 20, "/boot": 64 << 20}
# A DKMS build of the NVIDIA modules unpacks and links in /var/lib/dkms (measured, 580 open: below 600 MB).
DKMS_BUILD = 700 << 20
# The fields of the error or issue, besides the lines of full().
REFUSED = {"code": "apt.disk_full", "message": "not enough free disk space", "hint": "free some space first"}


def reserve(mib=None):
    """Bytes that must stay free, by path; mib, when given, stands for all of them."""
    return dict(RESERVE) if mib is None else {path: int(mib) << 20 for path in RESERVE}


def needs(changes, download_bytes, disk_bytes, initrd):
    """Return {path: bytes} that a transaction needs at most while it runs. initrd: bytes of the largest one."""
    needed = {"/": max(0, disk_bytes), "/var": max(0, download_bytes), "/boot": 0}
    growing = [driver_names.parse(change["name"].split(":")[0]) for change in changes if change["action"] != "remove"]
    if any(package and package.base in ("nvidia-dkms", "nvidia-kernel-source") for package in growing):
        needed["/var"] += DKMS_BUILD
    if any(growing):
        # update-initramfs writes the new one before it drops the old one
        needed["/boot"] += initrd
    return needed


def problems(needed, reserves, statvfs=os.statvfs, device=lambda path: os.stat(path).st_dev):
    """Return lines that say which file system is too full. reserves: see reserve."""
    groups = {}
    for path in sorted(needed):
        groups.setdefault(device(path), []).append(path)
    lines = []
    for paths in groups.values():
        need = sum(needed[path] for path in paths)
        spare = max(reserves[path] for path in paths)
        state = statvfs(paths[0])
        free = state.f_bavail * state.f_frsize
        # A transaction that needs nothing is not stopped by a disk that was full before: it may be the cure.
        if need and free < need + spare:
            lines.append(
                "%s: %d MiB free, %d MiB needed, %d MiB must stay free"
                % (" and ".join(paths), free >> 20, -(-need >> 20), spare >> 20)
            )
    return lines


def full(answer, mib=None):
    """Lines that say where there is no room for what a simulation (apt.query) found. mib: see reserve."""
    needed = needs(answer["changes"], answer["download_bytes"], answer["disk_bytes"], largest_initrd())
    return problems({path: size for path, size in needed.items() if os.path.isdir(path)}, reserve(mib))


def largest_initrd():
    """Bytes; 0 where a plan is made by somebody who may not look: the transaction may."""
    try:
        sizes = [os.stat("/boot/" + name).st_size for name in os.listdir("/boot") if name.startswith("initrd.img")]
    except OSError:
        return 0
    return max(sizes) if sizes else 0
