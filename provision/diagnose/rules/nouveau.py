"""nouveau and nova: the kernel's own drivers that take the GPU first."""

from __future__ import annotations

from collections.abc import Iterator

from provision.diagnose import queries
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.facts import Gpu
from provision.parts.driver.installed import RIVALS


def _taken(case: Case) -> list[Gpu]:
    return [gpu for gpu in case.facts.gpus if gpu.driver in RIVALS]


def _is_blocked(case: Case) -> bool:
    """True when every driver that took a card is blocked; without one, when nouveau is."""
    taken = {gpu.driver for gpu in _taken(case) if gpu.driver} or {"nouveau"}
    return taken <= set(case.facts.modprobe.blacklisted)


def _who(case: Case) -> str:
    """The drivers that took cards, as text."""
    return " and ".join(sorted({gpu.driver for gpu in _taken(case) if gpu.driver})) or "nouveau"


def _rows(case: Case) -> list[str]:
    rows = [f"GPU {queries.title(case, gpu)}: bound to {gpu.driver}" for gpu in _taken(case)]
    for module in queries.boot(case).modules:
        if module.name in ("nouveau", "nova", "nova_core", "nova_drm"):
            rows.append(f"/proc/modules: {module.name}, used {module.uses} times")
    if case.facts.module.nouveau_loaded and not any("/proc/modules" in row for row in rows):
        rows.append("/sys/module/nouveau: loaded")
    return rows


def _blocks(case: Case) -> list[str]:
    return [row.place for row in queries.boot(case).modprobe if "nouveau" in row.text or "nova" in row.text]


def _old_initrds(case: Case) -> list[str]:
    return [initrd.kernel for initrd in case.facts.initrds if initrd.newer_than_blacklist is False]


@rule("nouveau.initramfs_stale")
def _initramfs_stale(case: Case) -> Iterator[Found]:
    old = _old_initrds(case)
    matter = [kernel for kernel in old if kernel in queries.kernels_that_matter(case)]
    if not _is_blocked(case) or not matter or not queries.own_gpus(case) or not queries.wants_driver(case):
        return
    taken = _taken(case)
    if not taken and not case.facts.module.nouveau_loaded and not case.driver_managed:
        return
    fresh = [initrd.kernel for initrd in case.facts.initrds if initrd.newer_than_blacklist]
    evidence = _blocks(case) + [f"/boot/initrd.img-{kernel}: older than the block" for kernel in old] + _rows(case)
    if fresh:
        evidence.append(f"built since: {', '.join(fresh)} (update-initramfs -u without -k all makes one of them)")
    yield Found(
        f"nouveau is blocked in modprobe.d, and the initramfs of {', '.join(matter)} was built before that",
        evidence,
        Repair(action="initramfs.build", words="update-initramfs -u -k all", args={"kernels": old}),
        *([queries.reboot()] if taken else []),
        level="error" if taken else "warning",
        reboot=bool(taken),
    )


@rule("nouveau.not_blocked")
def _not_blocked(case: Case) -> Iterator[Found]:
    taken = _taken(case)
    if not taken or _is_blocked(case) or not queries.wants_driver(case) or queries.in_container(case):
        return
    if not case.driver_managed and not queries.has_driver(case):
        return
    uses = [module.uses or 0 for module in queries.boot(case).modules if module.name in RIVALS]
    evidence = [*_rows(case), f"modprobe.d and the kernel's command line: no block of {_who(case)}"]
    evidence += queries.log_block(case, r"NVIDIA probe routine was not called", 3)
    if uses and uses[0]:
        evidence.append("it cannot be unloaded while the console or a desktop uses it: a reboot does it")
    yield Found(
        f"{_who(case)} has taken {len(taken)} of {len(case.facts.gpus)} GPUs, and nothing blocks it",
        evidence,
        queries.apply(
            "block nouveau and nova, build every initramfs"
            + ("" if queries.has_driver(case) else ", install the driver")
        )
        if case.driver_managed
        else queries.manual(
            "write 'blacklist nouveau' and 'blacklist nova_core' into a file of /etc/modprobe.d, then update-initramfs -u -k all"
        ),
        queries.reboot(),
        reboot=True,
    )


@rule("nouveau.still_loaded")
def _still_loaded(case: Case) -> Iterator[Found]:
    """Blocked, every initramfs is newer, and it is loaded since before."""
    taken = _taken(case)
    if not taken or not _is_blocked(case) or queries.in_container(case):
        return
    if any(kernel in queries.kernels_that_matter(case) for kernel in _old_initrds(case)) or not queries.wants_driver(
        case
    ):
        return
    evidence = _rows(case) + _blocks(case) + queries.log_block(case, r"NVIDIA probe routine was not called", 3)
    built = [initrd.kernel for initrd in case.facts.initrds if initrd.newer_than_blacklist]
    evidence.append(f"initramfs with the block: {', '.join(built) or 'none is used here'}")
    yield Found(
        f"nouveau is blocked for the next boot and still drives {queries.counted(taken, 'GPU')}: it was loaded before",
        evidence,
        queries.reboot(
            "reboot: nouveau often cannot be unloaded while the console uses it, and nvidia is never loaded beside it"
        ),
        reboot=True,
    )
