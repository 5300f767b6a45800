"""What stops apt before it reads a package: locks, full disks, file systems that are read-only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.candidates import apt
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.facts import Kernels

# Updates of a slow machine take so long; what holds a lock longer waits for something that does not come.
_PATIENCE_S = 2 * 3600
# Daemons (packagekitd, aptd, unattended-upgrade-shutdown) live for days and hold a lock for seconds.
_SHORT_LIVED = frozenset({"apt", "apt-get", "aptitude", "dpkg"})
# apt's downloads and dpkg's unpacking of a driver need some hundred megabytes; below this every run fails.
_LEAST, _LEAST_FILES = 100 << 20, 500
# An initramfs of Ubuntu with little in it.
_LEAST_BOOT = 64 << 20


@rule("apt.locked")
def _locked(case: Case) -> Iterator[Found]:
    locks = apt(case).locks
    if not locks:
        if case.facts.apt.lock_holder:
            yield Found(
                f"apt is busy: {case.facts.apt.lock_holder} holds its lock",
                (case.facts.apt.lock_holder,),
                queries.manual("wait until it has ended, then try again"),
            )
        return
    first = max(locks, key=lambda lock: lock.age_s or 0)
    stuck = first.state == "T" or (first.comm in _SHORT_LIVED and (first.age_s or 0) > _PATIENCE_S)
    age = f", started {_span(first.age_s)} ago" if first.age_s is not None else ""
    stopped = ", stopped" if first.state == "T" else ""
    who = f"process {first.pid} ({first.comm}{stopped}{age})" if first.pid else "a process outside this container"
    evidence = [
        f"{lock.path}: process {lock.pid} ({lock.comm}{', stopped' if lock.state == 'T' else ''})" for lock in locks
    ]
    text = "wait until it has ended; never remove a lock file"
    if stuck:
        text = (
            f"see what it waits for (ps -fp {first.pid}, /var/log/apt/term.log), let it continue (kill -CONT) or end it "
            "(kill), then dpkg --configure -a; never remove a lock file"
        )
    yield Found(
        f"apt is busy: {who} holds its lock", evidence, queries.manual(text), level="error" if stuck else "warning"
    )


def _span(seconds: float) -> str:
    return (
        f"{seconds / 3600:.0f} h"
        if seconds >= 7200
        else f"{seconds / 60:.0f} min"
        if seconds >= 120
        else f"{seconds:.0f} s"
    )


@rule("disk.full")
def _full(case: Case) -> Iterator[Found]:
    tight, seen = [], set()
    for disk in apt(case).disks:
        # One file system is reported once, by the folder that stands first.
        if disk.path == "/boot" or disk.read_only or (disk.size, disk.free) in seen or not disk.size:
            continue
        seen.add((disk.size, disk.free))
        if disk.free < _LEAST:
            tight.append((disk.path, f"{disk.path}: {disk.free >> 20} MiB free of {disk.size >> 20} MiB"))
        elif disk.files_free is not None and disk.files_free < _LEAST_FILES:
            tight.append((disk.path, f"{disk.path}: room for {disk.files_free} files only (no inodes left)"))
    if tight:
        path = tight[0][0]
        yield Found(
            f"{' and '.join(where for where, _ in tight)} is full"
            if len(tight) == 1
            else f"{', '.join(w for w, _ in tight)} are full",
            tuple(line for _, line in tight),
            queries.manual(
                f"make room on {path}: apt-get clean; journalctl --vacuum-size=200M; "
                f"du -xhd2 {path} | sort -h shows what is large"
            ),
        )


@rule("disk.boot_full")
def _boot_full(case: Case) -> Iterator[Found]:
    diagnostics, kernels = apt(case), case.facts.kernels
    disks = {disk.path: disk for disk in diagnostics.disks}
    boot, root = disks.get("/boot"), disks.get("/")
    if boot is None or root is None or (boot.size, boot.free) == (root.size, root.free) or not kernels.installed:
        # no file system of its own: see disk.full
        return
    # A new initramfs is written beside the old one.
    needed = max(diagnostics.largest_initrd or 0, _LEAST_BOOT)
    if boot.free >= needed:
        return
    failed = [
        f"{row.name}: {line}"
        for row in diagnostics.unfinished
        for line in [row.reason or "", *row.context]
        if re.search(r"No space left|update-initramfs", line)
    ]
    keep = {kernels.running, kernels.next, kernels.installed[-1].release}
    old = [kernel.release for kernel in kernels.installed if kernel.release not in keep]
    parts = r"^linux-(?:image|modules|modules-extra|headers)-(?:unsigned-)?"
    packages = [
        name
        for release in old
        for name, package in sorted(case.facts.packages.items())
        if package.installed and re.match(parts + re.escape(release) + "$", name)
    ]
    files = [f"/boot/initrd.img-{release}" for release in old if not any(release in name for name in packages)]
    evidence = [f"/boot: {boot.free >> 20} MiB free of {boot.size >> 20} MiB; an initramfs takes {needed >> 20} MiB"]
    evidence += [f"kernel {kernel.release}{_why(kernels, kernel.release)}" for kernel in kernels.installed] + failed
    leftovers = list(queries.boot(case).boot_leftovers)
    evidence += [f"{path}: left by a build that was interrupted" for path in leftovers]
    repairs = []
    if leftovers:
        text = "move what a build that was interrupted left out of /boot"
        repairs.append(Repair(action="boot.room", words=text, args={"packages": [], "files": leftovers}))
    if packages or files:
        repairs.append(
            Repair(
                action="boot.room",
                words=f"remove {len(old)} old kernel{'s' if len(old) > 1 else ''}: {', '.join(old)}",
                args={"packages": packages, "files": files},
            )
        )
    if not repairs:
        text = "make room in /boot: du -ah /boot | sort -h; the kernel that runs and the one that boots next stay"
        repairs = [queries.manual(text)]
    yield Found(
        "/boot is full", evidence, *repairs, level="error" if failed or boot.free < _LEAST_BOOT // 2 else "warning"
    )


def _why(kernels: Kernels, release: str) -> str:
    if release == kernels.running:
        return " (runs)"
    return " (boots next)" if release == kernels.next else ""


@rule("disk.read_only")
def _read_only(case: Case) -> Iterator[Found]:
    rows = [disk for disk in apt(case).disks if disk.read_only and disk.path in ("/", "/var", "/boot")]
    if rows and not case.facts.host.container:
        yield Found(
            f"{rows[0].path} is mounted read-only",
            tuple(f"{disk.path}: read-only" for disk in rows),
            queries.manual(
                "journalctl -k | grep -iE 'ext4|xfs|I/O error' says why; check the disk, then mount -o remount,rw"
            ),
        )
