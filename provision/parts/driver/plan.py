"""What has to change for the driver: the difference between a host and the decision of resolve, as steps and a spec.

Pure. The spec is what roles/nvidia_driver carries out, field by field; the steps and reasons are what people read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.facts import Facts
from provision.parts.apt import AptPart, PartPlan
from provision.parts.decision import CHANNELS, Decision, DriverConfig, Target, kernel_flavours, wants_fabric
from provision.parts.driver.installed import (
    RIVALS,
    InstalledDriver,
    driver_packages,
    installed_driver,
    is_cuda_uri,
    modules_of,
    next_boot_problems,
    nvidia_sources,
    stale_holds,
    unheld,
)
from provision.parts.plan import Reboot, Step

MODPROBE_PATH = "/etc/modprobe.d/gpu-provision.conf"
MODPROBE_TEXT = """\
# written by gpu-provision: keeps nouveau and nova away from the GPUs
blacklist nouveau
blacklist nova_core
blacklist nova
options nouveau modeset=0
"""
PERSISTENCE_PATH = "/etc/systemd/system/nvidia-persistenced.service.d/gpu-provision.conf"
# Ubuntu's unit starts the daemon with --no-persistence-mode, which keeps device files open and switches nothing on, and
# lets systemd stop it; it is static, so a boot does not start it by itself. Source: nvidia-compute-utils' unit, 2023-2026.
PERSISTENCE_TEXT = """\
# written by gpu-provision: persistence mode on, from every boot on
[Unit]
StopWhenUnneeded=false
[Service]
ExecStart=
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --persistence-mode --verbose
"""
FABRIC_PATH = "/etc/modules-load.d/gpu-provision.conf"
# Source: Fabric Manager user guide, HGX B200 and B300; nothing else loads it (docs: catalog traps, fabric manager).
FABRIC_MODULE = "ib_umad"
FABRIC_TEXT = f"""\
# written by gpu-provision: fabric manager reaches the NVLink 5 switches through it
{FABRIC_MODULE}
"""
# Ended repositories of NVIDIA; their content moved to the CUDA repository (source: catalog/data/repositories.yml).
LEGACY_NVIDIA_PATH = "/compute/machine-learning/repos/"
LEGACY_URIS = [f".*{LEGACY_NVIDIA_PATH}"]
NOT_FROM_NVIDIA = "the driver of this host does not come from NVIDIA's repository"


def plan_driver(
    config: DriverConfig, facts: Facts, decision: Decision, source: dict[str, Any] | None, nvidia_source: bool = False
) -> PartPlan:
    """Return what has to change for a decided driver.

    source: the repository that the channel needs as apt.query's SourceSpec, None for the Ubuntu archive. nvidia_source:
    another part of the plan brings NVIDIA's repository to this host.
    """
    target = decision.target
    if target and not target.installed and not facts.package_problems and is_there(facts, decision, target):
        # Asked for again (an update, a variant) and already so: nothing of apt's has to change.
        target = replace(target, installed=True)
    spec: dict[str, Any] = {
        "boot": {
            "build": [],
            "files": [],
            "initramfs": False,
            "modules": [],
            "units": [],
            "restart": [],
            "start": True,
            "wanted": False,
        },
        "reboot": {"needed": False, "policy": config.reboot, "timeout": config.reboot_timeout},
    }
    if target is None:
        return PartPlan(spec, _of_others(facts, nvidia_source), [], reboot=Reboot(policy=config.reboot))
    steps: list[Step] = []
    apt = AptPart()
    if target.installed:
        _module_of_next_kernel(facts, decision, target, spec, steps)
    _apt_files(config, facts, target, source, apt, nvidia_source)
    _packages(facts, decision, target, apt, steps)
    _hold(config, facts, target, apt, steps)
    held = [n for n in kernel_metapackages(facts, target) if n in facts.packages and facts.packages[n].held]
    if held and not holds_kernel(config, target):
        # Ours of an earlier run, or the owner's own: not told apart, so not lifted.
        decision.warn(
            "kernel.held",
            "the kernel is on hold, and nothing here needs that",
            held,
            f"apt-mark unhold {' '.join(held)} lets security updates of the kernel in again",
        )
    _boot(facts, spec, steps)
    _services(config, facts, target, spec, steps)
    reboot = _reboot(config, facts, target, spec, steps, moves=bool(apt.install))
    spec["boot"]["wanted"] = bool(apt.install or apt.remove) or any(step.id == "boot" for step in steps)
    return PartPlan(spec, apt, steps, reboot=reboot)


def _of_others(facts: Facts, nvidia_source: bool) -> AptPart | None:
    """A driver that is not ours to change: NVIDIA's repository, where it comes for the toolkits, must not replace it."""
    if not nvidia_source or installed_driver(facts).channel == "cuda":
        return None
    return AptPart(preferences=_not_from_nvidia(), preferences_because=NOT_FROM_NVIDIA)


def _not_from_nvidia() -> str:
    """One text, whoever plans: the driver's role and the toolkits' must not write over each other's."""
    return str(apt_files.render_preferences(driver_names.PIN_PATTERNS, "release o=NVIDIA", NOT_FROM_NVIDIA))


def _module_of_next_kernel(
    facts: Facts, decision: Decision, target: Target, spec: dict[str, Any], steps: list[Step]
) -> None:
    """Every package is there and still the next boot would find no usable module: build it, or say so."""
    problems = next_boot_problems(facts, target.version)
    if not problems:
        return
    boots = facts.kernels.next
    if target.build == "dkms":
        spec["boot"]["build"] = [boots]
        title = f"build the module for kernel {boots}"
        steps.append(Step(id="boot", title=title, because="; ".join(problems), sign="+", what="module", value=title))
        return
    owner = driver_names.prebuilt_modules(target.series, target.flavour, str(boots))
    decision.block(
        "driver.next_boot",
        "every package is installed and the next boot would have no usable module",
        problems,
        f"apt-get install --reinstall {owner} puts the module back; do not reboot before",
    )


def is_there(facts: Facts, decision: Decision, target: Target) -> bool:
    """True when every package of the target is installed at its version, and nothing that it replaces."""
    have = {name: package.version for name, package in facts.packages.items() if package.installed}
    pinned = target.pinning is None or target.pinning[0] in have
    return (
        pinned
        and all(have.get(name) == version for name, version in target.packages.items())
        and not leftovers(decision, target)
    )


def cuda_entries(facts: Facts) -> list[Any]:
    """Enabled apt entries of NVIDIA's repository that are not in our own file."""
    own = apt_files.sources_path("cuda")
    return [
        entry
        for entry in facts.apt.sources
        if entry.enabled
        and entry.file != own
        and "deb" in entry.types
        and any(is_cuda_uri(uri) or LEGACY_NVIDIA_PATH in uri for uri in entry.uris)
    ]


def conflicting(facts: Facts) -> bool:
    """True when apt cannot read its sources because entries of NVIDIA's repository contradict each other."""
    return bool(facts.apt.errors) and len(cuda_entries(facts)) > 0 and any(is_cuda_uri(e) for e in facts.apt.errors)


def _apt_files(
    config: DriverConfig, facts: Facts, target: Target, source: dict[str, Any] | None, apt: AptPart, nvidia_source: bool
) -> None:
    if source:
        spec = {**source, "legacy_uris": LEGACY_URIS}
        apt.repositories.append((spec, f"the driver comes from {CHANNELS[target.channel]}"))
        apt.omitted = cuda_entries(facts) if source["name"] == "cuda" else []
    apt.preferences = preferences(facts, target, nvidia_source)
    apt.preferences_because = (
        "the archive and NVIDIA's repository carry packages of the same names: one of them must win"
    )
    if config.hold:
        apt.unattended = list(driver_names.UNATTENDED_PATTERNS)
        apt.unattended_because = "unattended-upgrades must not update the driver; it still updates everything else"
    else:
        apt.unattended_because = "nvidia_driver_hold is false: updates may move the driver"


def preferences(facts: Facts, target: Target, nvidia_source: bool = False) -> str | None:
    """Return the preferences text that keeps the two origins apart, None where only one is there (scenario F7)."""
    if target.channel == "cuda":
        because = "the driver of this host comes from NVIDIA's repository"
        return str(apt_files.render_preferences(driver_names.PIN_PATTERNS, "release o=Ubuntu", because))
    if nvidia_source or nvidia_sources(facts):
        return _not_from_nvidia()
    return None


def _packages(facts: Facts, decision: Decision, target: Target, apt: AptPart, steps: list[Step]) -> None:
    broken = sorted(facts.package_problems)
    if target.installed and not broken:
        return
    if target.pinning and not (target.pinning[0] in facts.packages and facts.packages[target.pinning[0]].installed):
        apt.before_install = ["{}={}".format(*target.pinning)]
        # They stand in each other's way: the one for the old branch goes as the new one comes.
        apt.before_remove = sorted(n for n in decision.installed.packages if n.startswith("nvidia-driver-pinning-"))
    # What is to be installed, changed or kept in this transaction, exactly; and what of the old driver goes.
    apt.install = sorted(f"{name}={version}" for name, version in target.packages.items())
    apt.remove = [] if target.installed else leftovers(decision, target)
    apt.family = target.version
    have = decision.installed
    because, verb = _why_packages(have, target, apt.remove)
    if broken:
        left = f"dpkg left unfinished: {_some(broken)}"
        because = left if target.installed else f"{because}; {left}"
    title = f"{verb} driver {target.version}" if target.packages else "finish half-installed packages"
    old = " and ".join(have.versions)
    moves = bool(target.packages) and have.versions != (target.version,)
    signed = "signed" if target.build == "signed" else "DKMS"
    value = f"{target.version} {target.flavour}, {signed}, {CHANNELS[target.channel].removeprefix('the ')}"
    if not moves:
        value = f"{title}: {because}"
    elif old:
        value = f"{old} -> {value}"
    sign: Literal["+", "~"] = "~" if have.packages else "+"
    steps.append(Step(id="packages", title=title, because=because, sign=sign, what="driver", value=value))


def _why_packages(have: InstalledDriver, target: Target, gone: Sequence[str]) -> tuple[str, str]:
    """Return why packages have to change, and what that does to the driver: install, complete or change."""
    if not have.packages:
        return "no driver package is installed", "install"
    if have.versions != (target.version,):
        return f"installed is {' and '.join(have.versions) or 'a part of a driver'}", "install"
    # The version that is wanted is there: what is installed differs otherwise.
    missing = sorted(set(target.packages) - set(have.packages))
    other = sorted(name for name, version in target.packages.items() if have.packages.get(name, version) != version)
    why = [
        f"{word}: {_some(names)}"
        for names, word in (
            (missing, "not installed"),
            (other, "of another revision"),
            (sorted(gone), "of another kind of driver"),
        )
        if names
    ]
    return "; ".join(
        why
    ) or "not all of its packages are whole", "complete" if missing and not other and not gone else "change"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def leftovers(decision: Decision, target: Target) -> list[str]:
    """Installed driver packages that do not belong to the target: removed by exact name in the same transaction."""
    number = driver_names.branch(target.version)
    gone = []
    for name, version in decision.installed.packages.items():
        package = driver_names.parse(name)
        if (
            name in target.packages
            or package.base in driver_names.COMPANIONS
            or package.base.startswith("libnvidia-egl-")
        ):
            continue
        if package.base == "linux-signatures-nvidia":
            continue
        if package.base.startswith("nvidia-driver-pinning-"):
            if target.pinning is None or name != target.pinning[0]:
                gone.append(name)
            continue
        other_series = (
            package.branch is not None
            and package.series != target.series
            and not (package.base in driver_names.FABRIC and package.branch == number)
        )
        other_variant = target.variant == "headless" and package.base in driver_names.DESKTOP
        carries = package.base in (
            "nvidia-dkms",
            "nvidia-driver",
            "nvidia-headless",
            "nvidia-headless-no-dkms",
            "nvidia-kernel-source",
            "linux-modules-nvidia",
            "nvidia-open",
            "cuda-drivers",
        )
        other_flavour = carries and (package.open or package.base == "nvidia-open") != (target.flavour == "open")
        other_build = (target.build == "signed" and package.base == "nvidia-dkms") or (
            target.build == "dkms" and package.base in ("linux-modules-nvidia", "linux-objects-nvidia")
        )
        # What cannot move along would be of another version than the rest; from 590 on NVIDIA's names tell no branch.
        other_version = (driver_names.is_version_locked(name) or package.exact is not None) and (
            driver_names.upstream(version) != target.version
        )
        other_naming = (
            package.branch is None
            and driver_names.is_version_locked(name)
            and driver_names.has_variants(target.channel, target.series)
        )
        if other_series or other_flavour or other_build or other_version or other_naming or other_variant:
            gone.append(name)
    return sorted(gone)


def _hold(config: DriverConfig, facts: Facts, target: Target, apt: AptPart, steps: list[Step]) -> None:
    apt.hold, apt.release = config.hold, not config.hold
    kernels = kernel_metapackages(facts, target) if holds_kernel(config, target) else []
    if config.hold:
        apt.extra_hold = kernels
    else:
        apt.extra_release = kernels
        here = {*names_of_driver(facts), *kernels} & set(facts.packages)
        held = sorted(name for name in here if facts.packages[name].held)
        if held and target.installed:
            title = f"release {len(held)} holds"
            because = "nvidia_driver_hold is false"
            steps.append(
                Step(id="hold", title=title, because=because, details=held, sign="-", what="hold", value=_some(held))
            )
        return
    loose = unheld(facts) if target.installed else []
    loose += [name for name in kernels if name in facts.packages and not facts.packages[name].held]
    stale = stale_holds(facts)
    if target.installed and not loose and not stale:
        return
    if not target.installed:
        title, details = "hold every driver package by its exact name", []
    else:
        title = (
            f"hold {len(loose)} packages" if loose else f"clear {len(stale)} holds on packages that are not installed"
        )
        details = [*loose, *[f"not installed: {name}" for name in stale]]
    because = "an update must not move parts of the driver"
    if kernels:
        because += (
            "; signed modules are built per kernel, so the kernel is held too and upgraded together with the driver"
        )
        details += [f"kernel: {name}" for name in kernels] if not target.installed else []
    value = _some(loose) or title if target.installed else ", ".join(["driver", *kernels])
    steps.append(Step(id="hold", title=title, because=because, details=details, what="hold", value=value))


def names_of_driver(facts: Facts) -> list[str]:
    """Names of the installed driver packages."""
    return list(driver_packages(facts))


def holds_kernel(config: DriverConfig, target: Target) -> bool:
    """Whether the kernel metapackages are held as well: see nvidia_driver_hold_kernel."""
    return config.hold_kernel == "always" or (config.hold_kernel == "auto" and target.build == "signed")


def kernel_metapackages(facts: Facts, target: Target) -> list[str]:
    """Metapackages that would bring a new kernel, installed or about to be: linux-generic, linux-headers-generic, …"""
    flavours = kernel_flavours(facts)
    wanted = {f"{prefix}{flavour}" for flavour in flavours for prefix in ("linux-", "linux-image-", "linux-headers-")}
    here = {name for name, package in facts.packages.items() if package.installed}
    return sorted(wanted & (here | set(target.packages)))


def _boot(facts: Facts, spec: dict[str, Any], steps: list[Step]) -> None:
    written = facts.own_files.get(MODPROBE_PATH) == apt_files.sha256(MODPROBE_TEXT)
    stale = sorted(initrd.kernel for initrd in facts.initrds if initrd.newer_than_blacklist is False)
    rebuild = bool(facts.initrds) and (not written or bool(stale))
    if written and not rebuild:
        return
    spec["boot"]["files"].append({"path": MODPROBE_PATH, "content": MODPROBE_TEXT})
    spec["boot"]["initramfs"] = rebuild
    details = ([] if written else [f"write {MODPROBE_PATH}"]) + (
        ["rebuild the initramfs of every kernel"] if rebuild else []
    )
    because = "nouveau and nova would take the GPUs" if not written else f"initramfs of {', '.join(stale)} is older"
    value = ", ".join(["block nouveau and nova"] * (not written) + ["rebuild the initramfs"] * rebuild)
    title = "keep nouveau and nova away"
    steps.append(Step(id="boot", title=title, because=because, details=details, what="boot", value=value))


def _services(config: DriverConfig, facts: Facts, target: Target, spec: dict[str, Any], steps: list[Step]) -> None:
    """Units that must run, now and at every boot; see plugins/modules/driver_boot.py."""
    if not facts.host.systemd:
        return
    units, because, details = [], [], []
    if config.persistence:
        written = facts.own_files.get(PERSISTENCE_PATH) == apt_files.sha256(PERSISTENCE_TEXT)
        off = any(gpu.persistence is False for gpu in facts.smi.gpus)
        if not (target.installed and written and not off and _runs_at_every_boot(facts, "nvidia-persistenced")):
            units.append("nvidia-persistenced")
            if off and _runs(facts, "nvidia-persistenced"):
                # Somebody switched it off under the running daemon, which sets it when it starts.
                spec["boot"]["restart"] = ["nvidia-persistenced"]
            because.append("GPUs keep their state between jobs; Ubuntu's own unit leaves persistence mode off")
            if not written:
                details.append(f"write {PERSISTENCE_PATH}")
                spec["boot"]["files"].append({"path": PERSISTENCE_PATH, "content": PERSISTENCE_TEXT})
    # Without a switch it ends as soon as it starts: installed where it is asked for, started where it has work.
    switch = bool(facts.nvswitches) or facts.nvlink5_switch
    fabric = "nvidia-fabricmanager"
    if wants_fabric(config, facts) and switch:
        lacks = facts.nvlink5_switch and facts.own_files.get(FABRIC_PATH) != apt_files.sha256(FABRIC_TEXT)
        if lacks or not (target.installed and _runs_at_every_boot(facts, fabric)):
            units.append(fabric)
            because.append("NVSwitch is there")
        if lacks:
            details.append(f"write {FABRIC_PATH}: {FABRIC_MODULE}, from every boot on")
            spec["boot"]["files"].append({"path": FABRIC_PATH, "content": FABRIC_TEXT})
            spec["boot"]["modules"] = [FABRIC_MODULE]
    if units:
        spec["boot"]["units"] = units
        title = f"start {' and '.join(units)}, now and at every boot"
        why, value = "; ".join(because), ", ".join(f"start {unit}" for unit in units)
        steps.append(Step(id="boot", title=title, because=why, details=details, what="boot", value=value))


def _runs(facts: Facts, unit: str) -> bool:
    service = facts.services.get(unit)
    return service is not None and service.running


def _runs_at_every_boot(facts: Facts, unit: str) -> bool:
    """Running is not enough: a run that was interrupted may have left it without its link, and the next boot without it."""
    return _runs(facts, unit) and facts.services[unit].enabled


def _reboot(
    config: DriverConfig, facts: Facts, target: Target, spec: dict[str, Any], steps: list[Step], moves: bool
) -> Reboot:
    because = reboot_reasons(facts, target)
    reboot = Reboot(needed=bool(because), because=because, policy=config.reboot)
    # The module of a host that waits for its reboot stays as it is: what runs on it must not lose it.
    spec["boot"]["start"] = not because
    spec["reboot"]["needed"] = reboot.needed
    spec["reboot"]["because"] = because
    loaded = facts.module.loaded
    # What runs keeps its libraries only as long as they are those of the loaded module; packages of the same version
    # (modules for another kernel, headers, fabric manager) disturb nobody. A reboot that is left to the owner is his.
    if because and (config.reboot == "when_idle" or (config.reboot == "never" and moves)):
        reboot.blocked_by = [
            f"{user.comm} (pid {user.pid}{', ' + user.user if user.user else ''})" for user in facts.gpu_users
        ]
    if target.installed and not loaded and not because:
        title, why = "load the nvidia module", "it is on disk and not loaded"
        steps.append(Step(id="boot", title=title, because=why, what="module", value=title))
    if because:
        left = "a reboot is needed, and left to you (nvidia_driver_reboot: never)"
        title = left if config.reboot == "never" else "reboot"
        why = "; ".join(because)
        steps.append(Step(id="reboot", title=title, because=why, sign="!", what="reboot", value=why))
    return reboot


def reboot_reasons(facts: Facts, target: Target) -> list[str]:
    """Why the driver can only come up after a reboot; empty where it can be loaded into the running kernel."""
    because = []
    loaded, running = facts.module.loaded, facts.kernels.running
    if loaded and loaded.version != target.version:
        tense = "is" if target.installed else "will be"
        because.append(f"the loaded module is {loaded.version}, the driver on disk {tense} {target.version}")
    elif loaded and loaded.flavour and loaded.flavour != target.flavour:
        because.append(f"the loaded module is the {loaded.flavour} one, wanted is the {target.flavour} one")
    rivals = sorted({gpu.driver for gpu in facts.gpus if gpu.driver in RIVALS})
    if rivals:
        because.append(f"{' and '.join(rivals)} has the GPUs")
    if not because and not loaded and facts.kernels.installed:
        because += _why_not_now(facts, target, running)
    return because


def _why_not_now(facts: Facts, target: Target, running: str) -> list[str]:
    """Why no module can be loaded into the running kernel; empty where it can, or where the next boot is no better."""
    kernel = next((kernel for kernel in facts.kernels.installed if kernel.release == running), None)
    if kernel is None:
        return [f"the running kernel {running} is no longer installed"]
    if facts.kernels.next in (None, running):
        return []
    if target.installed:
        there = bool(modules_of(facts, running))
    else:
        there = target.build == "signed" or kernel.headers or f"linux-headers-{running}" in target.packages
    return [] if there else [f"there is no module for the running kernel {running}; {facts.kernels.next} boots next"]
