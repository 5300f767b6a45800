"""What boots: an initramfs for the kernel that starts next."""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.facts import Disk

_MEGA = 1_000_000
# bytes: no initramfs of Ubuntu's is smaller
_SMALLEST = 1_000_000


def _separate_boot(case: Case) -> Disk | None:
    """The file system of /boot where it is one of its own."""
    disks = {disk.path: disk for disk in case.facts.disks}
    boot, root = disks.get("/boot"), disks.get("/")
    if boot is None or root is None or (boot.size, boot.free) == (root.size, root.free):
        return None
    return boot


def _bad_initrds(case: Case) -> dict[str, str]:
    """{release: what is wrong} of the kernels that matter; nothing on hosts whose kernels have no initramfs at all."""
    kernels = case.facts.kernels
    with_image = [kernel for kernel in kernels.installed if kernel.image]
    sizes = queries.boot(case).initrds
    if not with_image or not sizes:
        return {}
    wrong = {}
    for kernel in with_image:
        if kernel.release not in (kernels.running, kernels.next):
            continue
        size = sizes.get(kernel.release)
        if not kernel.initrd and len(with_image) > 1 and (kernel.release != kernels.running or _needs_initrd(case)):
            wrong[kernel.release] = f"/boot/initrd.img-{kernel.release}: not there"
        elif size is not None and size == 0:
            wrong[kernel.release] = f"/boot/initrd.img-{kernel.release}: 0 bytes"
        elif size is not None and _cut_off(size, [other for name, other in sizes.items() if name != kernel.release]):
            wrong[kernel.release] = (
                f"/boot/initrd.img-{kernel.release}: {size} bytes, the others have {max(sizes.values())}"
            )
    return wrong


def _needs_initrd(case: Case) -> bool:
    """The kernel that runs was told its root in a way that only an initramfs understands (a UUID, a label, LVM)."""
    return bool(re.search(r"\broot=(?:UUID=|LABEL=|/dev/mapper/|ZFS=)", queries.boot(case).cmdline))


def _cut_off(size: int, others: list[int]) -> bool:
    """Far smaller than those of the other kernels, and than any that Ubuntu makes: writing it was cut off."""
    return size < _SMALLEST and bool(others) and max(others) > 10 * _SMALLEST


@rule("boot.initramfs_broken")
def _initramfs(case: Case) -> Iterator[Found]:
    wrong = _bad_initrds(case)
    if not wrong:
        return
    kernels = case.facts.kernels
    boots = kernels.next in wrong
    good = [
        kernel.release
        for kernel in kernels.installed
        if kernel.image
        and kernel.release not in wrong
        and queries.boot(case).initrds.get(kernel.release, int(kernel.initrd))
    ]
    evidence = [*wrong.values(), *(f"{path}: unfinished" for path in queries.boot(case).boot_leftovers)]
    evidence.append(
        f"boots next: {kernels.next or 'not known'}" + (f" ({kernels.next_because})" if kernels.next_because else "")
    )
    if good:
        evidence.append(f"with a whole initramfs: {', '.join(good)}")
    disk = _separate_boot(case)
    if disk is not None:
        evidence.append(f"/boot: {disk.free // _MEGA} MB free")
    named = " and ".join(wrong)
    yield Found(
        f"kernel {named} has no usable initramfs"
        + (": the machine would not come back from a reboot" if boots else ""),
        evidence,
        Repair(
            action="initramfs.build",
            words=f"build the initramfs of {named} (update-initramfs -c -k {next(iter(wrong))})",
            args={"kernels": sorted(wrong)},
        ),
        level=None if boots else "warning",
    )


@rule("boot.initramfs_unpacking")
def _log_initramfs(case: Case) -> Iterator[Found]:
    lines = queries.log_lines(case, r"Initramfs unpacking failed")
    if lines and not _bad_initrds(case):
        yield Found(
            "the kernel could not unpack its initramfs at this boot",
            lines,
            Repair(
                action="initramfs.build",
                words=f"build the initramfs of {case.facts.kernels.running} again",
                args={"kernels": [case.facts.kernels.running]},
            ),
        )
