"""What a scan says of one host in words, layer by layer: pure functions of facts, nothing but what facts hold.

A layer is (title, lines). The order is that in which a person looks for a fault: hardware, kernel module, packages,
libraries, what the driver itself says; then what decides about the next boot, then CUDA and containers.
"""

from __future__ import annotations

from collections.abc import Callable

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.catalog import load_catalog
from provision.facts import DiskModule, Facts
from provision.layers.conda import conda_lines
from provision.layers.containers import container_lines
from provision.layers.cuda import cuda_lines, cudnn_lines, nccl_lines
from provision.lib.text import plural
from provision.parts.decision import CHANNELS
from provision.parts.driver.installed import RIVALS, installed_driver, is_cuda_uri, is_ppa_uri, stale_holds, unheld

Layer = tuple[str, list[str]]


def layers(facts: Facts) -> list[Layer]:
    """Return every layer of a host that has something to say."""
    titled: list[tuple[str, Callable[[Facts], list[str]]]] = [
        ("machine", _machine),
        ("GPUs", _gpus),
        ("module", _loaded),
        ("on disk", _on_disk),
        ("packages", _packages),
        ("libraries", _libraries),
        ("nvidia-smi", _smi),
        ("devices", _devices),
        ("in use by", _users),
        ("services", _services),
        ("outside apt", _outside),
        ("kernels", _kernels),
        ("Secure Boot", _secure_boot),
        ("reboot", _reboot),
        ("apt", _apt),
        ("CUDA", cuda_lines),
        ("cuDNN", cudnn_lines),
        ("NCCL", nccl_lines),
        ("conda", conda_lines),
        ("containers", container_lines),
        ("disk", _disk),
        ("not read", lambda facts: facts.unreadable),
    ]
    return [(title, lines) for title, describe in titled if (lines := describe(facts))]


def describe_origin(facts: Facts) -> str | None:
    """Return where the driver came from: a channel of apt, or ``not from apt``; None without a driver."""
    have = installed_driver(facts)
    if have.packages:
        return CHANNELS[have.channel] if have.channel else None
    if facts.module.loaded or facts.runfile.uninstaller or any(lib.version for lib in facts.libraries):
        return "not from apt"
    return None


# ---- hardware and module -----------------------------------------------------------------------------------------


def _machine(facts: Facts) -> list[str]:
    host = facts.host
    parts = [host.os.pretty or f"{host.os.id} {host.os.version_id}", host.arch]
    if host.container:
        parts.append(f"inside a container ({host.container})")
    elif host.virtual:
        parts.append(f"virtual ({host.virtual})")
    if not host.systemd:
        parts.append("no systemd")
    if host.python:
        parts.append(f"Python {host.python}")
    if facts.desktop:
        parts.append("with a desktop")
    return [", ".join(parts)]


def _gpus(facts: Facts) -> list[str]:
    catalog = load_catalog()
    groups: dict[tuple[str, str, str], list[str]] = {}
    for gpu in facts.gpus:
        key = (catalog.gpu_by_id(gpu.device).name, gpu.device, gpu.driver or "nothing")
        groups.setdefault(key, []).append(gpu.slot)
    lines = [
        f"{len(slots)} x {name} (10de:{device}), bound to {driver}: {', '.join(slots)}"
        for (name, device, driver), slots in groups.items()
    ] or ["no NVIDIA GPU on the PCI bus"]
    if facts.nvswitches:
        lines.append(f"{len(facts.nvswitches)} NVSwitches: {', '.join(facts.nvswitches)}")
    if facts.nvlink5_switch:
        lines.append("an NVLink 5 switch")
    return lines


def _loaded(facts: Facts) -> list[str]:
    loaded = facts.module.loaded
    if loaded is None:
        lines = ["nvidia is not loaded"]
    else:
        users = f", held by {', '.join(loaded.holders)}" if loaded.holders else ""
        lines = [f"nvidia {loaded.version} is loaded, {loaded.flavour or 'of a flavour that is not known'}{users}"]
    if facts.module.nouveau_loaded:
        lines.append("nouveau is loaded")
    if facts.module.nova_loaded:
        lines.append("nova is loaded")
    blocked = [name for name in RIVALS if name in facts.modprobe.blacklisted]
    if blocked:
        lines.append(f"blocked by modprobe.d: {', '.join(blocked)}")
    return lines


def _on_disk(facts: Facts) -> list[str]:
    lines = []
    kernels = [kernel.release for kernel in facts.kernels.installed]
    kernels += [module.kernel for module in facts.module.on_disk if module.kernel not in kernels]
    for release in dict.fromkeys(kernels):
        modules = [module for module in facts.module.on_disk if module.kernel == release]
        titled = "; ".join(map(_module, modules)) or "no nvidia module"
        lines.append(f"{release}{_role(facts, release)}: {titled}")
    return lines or ["no nvidia module on disk for any kernel"]


def _module(module: DiskModule) -> str:
    parts = [" ".join(filter(None, (module.version or "version not known", module.flavour)))]
    parts.append(f"signed by {module.signer}" if module.signer else "signed" if module.signed else "not signed")
    where = {"prebuilt": "prebuilt", "dkms": "built by DKMS", "other": "of other origin"}[module.origin]
    parts.append(f"{where}, {module.package}" if module.package else where)
    return ", ".join(parts)


def _role(facts: Facts, release: str) -> str:
    kernels = facts.kernels
    roles = ["running"] * (release == kernels.running) + ["boots next"] * (release == kernels.next)
    return f" ({', '.join(roles)})" if roles else ""


# ---- packages, libraries, what the driver says -------------------------------------------------------------------


def _packages(facts: Facts) -> list[str]:
    have, lines = installed_driver(facts), []
    if have.packages:
        loose = unheld(facts)
        held = (
            "all held" if not loose else "none held" if len(loose) == len(have.packages) else f"{len(loose)} not held"
        )
        series = f" ({', '.join(have.all_series)})" if have.all_series else ""
        flavour = f" {have.flavour}" if have.flavour else ""
        where = f", from {CHANNELS[have.channel]}" if have.channel else ""
        lines.append(
            f"{len(have.packages)} of the driver, {' and '.join(have.versions)}{flavour}{series}{where}, {held}"
        )
        lines += [f"not held: {_some(loose)}"] if loose and len(loose) < len(have.packages) else []
    else:
        lines.append("none of a driver")
    others = sorted(
        name
        for name, package in facts.packages.items()
        if package.held and package.installed and name not in have.packages
    )
    cuda = [name for name in others if cuda_names.is_cuda_package(name, facts.packages[name].version)]
    others = [name for name in others if name not in cuda]
    lines += [f"held besides: {len(cuda)} of CUDA"] if cuda else []
    lines += [f"held besides: {_some(others)}"] if others else []
    stale = stale_holds(facts)
    lines += [f"held, and not installed: {_some(stale)}"] if stale else []
    unfinished = sorted(
        {*facts.package_problems, *(name for name, package in facts.packages.items() if package.broken)}
    )
    lines += [f"left unfinished by dpkg: {_some(unfinished)}"] if unfinished else []
    return lines


def _libraries(facts: Facts) -> list[str]:
    return [
        f"{lib.soname} {lib.version or 'version not known'}, {lib.path} ({lib.package or 'of no package'})"
        for lib in facts.libraries
    ]


def _smi(facts: Facts) -> list[str]:
    smi = facts.smi
    if not smi.path:
        return ["not installed"]
    if smi.timed_out:
        return [f"{smi.path} did not answer in time"]
    if smi.rc or smi.error:
        said = (smi.error or "").strip().splitlines()
        return [f"{smi.path} fails with exit code {smi.rc}", *said[:4]]
    if not smi.ran:
        return [f"{smi.path}, not asked"]
    lines = [f"{smi.path}: driver {smi.driver_version or '?'}, carries CUDA {smi.cuda_version or '?'}"]
    for gpu in smi.gpus:
        parts = [f"{gpu.index} {gpu.name}"]
        parts += [f"{gpu.memory_mib} MiB"] if gpu.memory_mib is not None else []
        parts += [f"persistence {'on' if gpu.persistence else 'off'}"] if gpu.persistence is not None else []
        parts += [f"MIG {gpu.mig.lower()}"] if gpu.mig else []
        parts += [f"ECC {gpu.ecc.lower()}"] if gpu.ecc else []
        lines.append(", ".join(parts))
    return lines


def _devices(facts: Facts) -> list[str]:
    return [", ".join(facts.devices)] if facts.devices else []


def _users(facts: Facts) -> list[str]:
    return [f"{user.comm}, pid {user.pid}{', ' + user.user if user.user else ''}" for user in facts.gpu_users[:12]]


def _services(facts: Facts) -> list[str]:
    lines = []
    for name, service in facts.services.items():
        if service.present:
            start = "starts at boot" if service.enabled else "does not start at boot"
            lines.append(f"{name} {'runs' if service.running else 'does not run'}, {start}")
    return lines


def _outside(facts: Facts) -> list[str]:
    found = [path for path in (facts.runfile.uninstaller, *facts.runfile.traces) if path]
    return [f"traces of a driver that no package owns: {_some(list(dict.fromkeys(found)))}"] if found else []


# ---- the next boot -----------------------------------------------------------------------------------------------


def _kernels(facts: Facts) -> list[str]:
    kernels = facts.kernels
    lines = [f"running {kernels.running or 'not known'}"]
    because = f" ({kernels.next_because})" if kernels.next_because else ""
    lines.append(f"next {kernels.next or 'not known'}{because}")
    bare = [kernel.release for kernel in kernels.installed if not kernel.headers]
    if bare:
        lines.append(f"without headers: {', '.join(bare)}")
    if kernels.metapackages:
        lines.append(f"followed by {', '.join(kernels.metapackages)}")
    old = [initrd.kernel for initrd in facts.initrds if initrd.newer_than_blacklist is False]
    if old:
        lines.append(f"initramfs older than the block of nouveau: {', '.join(old)}")
    return lines


def _secure_boot(facts: Facts) -> list[str]:
    secure = facts.secure_boot
    if not secure.efi:
        return ["no EFI: this host starts without it"] if not facts.host.container else []
    state = {True: "on", False: "off", None: "could not be read"}[secure.enabled]
    if secure.mok_key is None:
        key = ""
    else:
        enrolled = {True: "enrolled", False: "not enrolled", None: "not known to be enrolled"}
        key = f"; DKMS' key {secure.mok_key} is {enrolled[secure.mok_enrolled]}"
    return [state + key]


def _reboot(facts: Facts) -> list[str]:
    if not facts.reboot_required.required:
        return []
    packages = facts.reboot_required.packages
    return ["pending" + (f", asked for by {_some(packages)}" if packages else "")]


# ---- apt, CUDA, containers -----------------------------------------------------------------------------------------


def _apt(facts: Facts) -> list[str]:
    apt, lines = facts.apt, []
    nvidia = [
        source
        for source in apt.sources
        if source.enabled and any(is_cuda_uri(uri) or is_ppa_uri(uri) for uri in source.uris)
    ]
    lines += [
        f"{', '.join(source.uris)} ({source.file}{f' line {source.line}' if source.line else ''}"
        f"{', Signed-By ' + source.signed_by if source.signed_by and len(source.signed_by) < 80 else ''})"
        for source in nvidia
    ]
    rest = sum(source.enabled for source in apt.sources) - len(nvidia)
    lines.append(f"{rest} {'other ' if nvidia else ''}entries{'' if nvidia else ', none of NVIDIA'}")
    lines += [f"pin {pin.priority} {pin.package}: {pin.pin} ({pin.file})" for pin in apt.preferences[:8]]
    lines += [f"and {len(apt.preferences) - 8} more pins"] if len(apt.preferences) > 8 else []
    if apt.unattended is not None:
        lines.append(f"unattended-upgrades {'on' if apt.unattended else 'off'}")
    if apt.lists_age_s is not None:
        lines.append(f"lists are {_age(apt.lists_age_s)} old")
    if apt.lock_holder:
        lines.append(f"locked by {apt.lock_holder}")
    return [*lines, *[f"error: {error}" for error in apt.errors]]


def _disk(facts: Facts) -> list[str]:
    free: dict[tuple[int, int], list[str]] = {}
    for disk in facts.disks:
        free.setdefault((disk.free, disk.size), []).append(disk.path)
    return (
        [", ".join(f"{' '.join(paths)}: {left / 1e9:.1f} GB free" for (left, _), paths in free.items())] if free else []
    )


# ---- small things --------------------------------------------------------------------------------------------------


def _age(seconds: float) -> str:
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= length:
            return plural(int(seconds // length), unit)
    return "less than a minute"


def _some(items: list[str]) -> str:
    return ", ".join(items) if len(items) <= 7 else f"{', '.join(items[:6])} and {len(items) - 6} more"
