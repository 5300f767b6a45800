"""The driver in its layers: loaded module, module on the disk, libraries, packages, other installers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.diagnose import queries
from provision.diagnose.candidates import moved_words
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, Rule
from provision.facts.diagnostics import ConfLine
from provision.parts import checks
from provision.parts.driver.removed import removed_driver

_HOLDERS = (
    "when nobody works on the GPUs: stop what holds the modules, unload nvidia_uvm, nvidia_drm, "
    "nvidia_modeset and nvidia, "
    "load them again; a reboot does the same"
)


def _disk_version(case: Case) -> str | None:
    """The one version of everything on the disk for the running kernel; None where it is not one, or nothing is there."""
    running = queries.modules_of(case, case.facts.kernels.running)
    versions = {module.version for module in running[:1] if module.version}
    versions |= {library.version for library in case.facts.libraries if library.version}
    versions |= set(queries.installed(case).versions)
    return versions.pop() if len(versions) == 1 else None


def _stale_module(case: Case) -> Iterator[Found]:
    loaded, disk = case.facts.module.loaded, _disk_version(case)
    if loaded is None or not loaded.version or disk is None or loaded.version == disk or queries.in_container(case):
        return
    running = case.facts.kernels.running
    has_module = bool(queries.modules_of(case, running))
    if not has_module and not queries.kernels_that_matter(case):
        # kernels come from outside: what is on the disk here says nothing
        has_module = True
    evidence = [
        f"/sys/module/nvidia/version: {loaded.version}",
        *(queries.module_words(module) for module in queries.modules_of(case, running)[:1]),
        *queries.library_words(case),
        *(f"packages: {version}" for version in queries.installed(case).versions),
        *queries.log_block(case, r"API mismatch", 2),
        *(row for row in _smi_words(case)),
        *moved_words(case),
    ]
    users = _holders(case)
    busy = bool(users) or case.facts.desktop
    if not has_module:
        repair = queries.reboot("reboot, after the next kernel's module is there")
    elif busy:
        evidence += users
        repair = queries.reboot("reboot when the work on the GPUs has ended: the modules are in use")
    else:
        repair = Repair(action="module.reload", words=_HOLDERS)
    yield Found(
        f"the loaded module is {loaded.version}, everything on the disk is {disk}: it was updated and not loaded since",
        queries.clip(evidence),
        (repair,),
        reboot=repair.action == "reboot",
    )


def _smi_words(case: Case) -> list[str]:
    return [f"nvidia-smi: {case.facts.smi.error.splitlines()[0]}"] if case.facts.smi.error else []


def _holders(case: Case) -> list[str]:
    """Who keeps the modules from being unloaded, beside services that are simply stopped."""
    rows = [
        f"pid {user.pid} ({user.comm}, {user.user or 'unknown user'}) has {', '.join(user.devices[:2])} open"
        for user in case.facts.gpu_users
    ]
    for module in queries.boot(case).modules:
        own = module.uses or 0
        if module.name.startswith("nvidia") and own > len(module.holders) and rows:
            rows.append(
                f"/proc/modules: {module.name} is used {own} times, by modules {', '.join(module.holders) or 'none'}"
            )
    return rows


def _module_in_use(case: Case) -> Iterator[Found]:
    """A reload is wanted, and something holds the modules."""
    if not any(True for _ in _stale_module(case)):
        return
    users = [
        f"pid {user.pid}: {user.comm} ({user.user or 'unknown user'}): {', '.join(user.devices[:3])}"
        for user in case.facts.gpu_users
    ]
    counts = [
        f"{module.name} is used {module.uses} times" + (f", by {', '.join(module.holders)}" if module.holders else "")
        for module in queries.boot(case).modules
        if module.name.startswith("nvidia") and module.uses
    ]
    held = [
        module.name
        for module in queries.boot(case).modules
        if module.name.startswith("nvidia") and (module.uses or 0) > len(module.holders)
    ]
    daemons = [
        name
        for name in ("nvidia-persistenced", "nvidia-fabricmanager")
        if case.facts.services.get(name) and case.facts.services[name].running
    ]
    if not users and not held and not (case.facts.desktop and queries.boot(case).display_manager):
        return
    who = (
        f"{len(users)} processes use the GPUs"
        if len(users) > 1
        else "1 process uses the GPUs"
        if users
        else "they are in use"
    )
    if case.facts.desktop and queries.boot(case).display_manager:
        counts.append(f"display manager: {queries.boot(case).display_manager}")
    counts += [f"{name} runs: it is stopped and started again" for name in daemons]
    yield Found(
        f"the modules cannot be unloaded now: {who}",
        queries.clip(users + counts),
        (queries.reboot("wait for the work to end, or reboot with the users' consent; jobs are never ended for it"),),
    )


def _mixed(case: Case) -> Iterator[Found]:
    """Packages of several versions."""
    if queries.in_container(case) or _has_two_installers(case):
        return
    locked = queries.locked_packages(case)
    libraries = {library.version for library in case.facts.libraries if library.version}
    versions = set(queries.driver_packages(case).values())
    if len(versions) < 2:
        return
    evidence = []
    for version in sorted(versions):
        having = sorted(name for name, has in locked.items() if has == version)
        evidence.append(
            f"{version}: {', '.join(having[:6])}" + (f" and {len(having) - 6} more" if len(having) > 6 else "")
        )
    evidence += queries.library_words(case)
    held = sum(case.facts.packages[name].held for name in locked if name in case.facts.packages)
    if held and held < len(locked):
        evidence.append(f"{held} of {len(locked)} of these packages are held, so that the others moved alone")
    evidence += moved_words(case)
    told = ", ".join(sorted(versions | libraries))
    yield Found(
        f"parts of the driver on the disk are of different versions: {told}",
        queries.clip(evidence),
        (queries.realign("bring every package of the driver to one version, in one transaction, and hold them"),),
    )


def _libraries_differ(case: Case) -> Iterator[Found]:
    """What the loader finds is not of the packages' version, and no second installer explains it."""
    if queries.in_container(case) or _has_two_installers(case):
        return
    packages = set(queries.driver_packages(case).values())
    libraries = {library.version for library in case.facts.libraries if library.version}
    if len(libraries) < 2 and (len(packages) != 1 or libraries <= packages):
        return
    if len(packages) > 1 and libraries <= packages:
        # the packages themselves are of several versions
        return
    told = ", ".join(sorted(libraries))
    yield Found(
        f"the libraries that programs find are {told}"
        + (f", the packages are {', '.join(sorted(packages))}" if packages else ""),
        queries.clip(
            [
                *queries.library_words(case),
                *(f"packages: {version}" for version in sorted(packages)),
                queries.loaded_words(case),
            ]
        ),
        (queries.apply("install the library package again at its version and run ldconfig"),)
        if packages
        else (queries.manual("remove the older library, or the link that leads to it, and run ldconfig"),),
    )


def _has_two_installers(case: Case) -> bool:
    return bool(case.facts.runfile.uninstaller or _foreign_files(case)) and bool(queries.driver_packages(case))


def _foreign_files(case: Case) -> list[str]:
    """Files of a driver that no package owns, beside logs and sources, which prove nothing."""
    return [
        path for path in case.facts.runfile.traces if not path.startswith(("/var/log/", "/usr/src/", "/var/lib/nvidia"))
    ]


def _two_installers(case: Case) -> Iterator[Found]:
    runfile = case.facts.runfile
    foreign = _foreign_files(case)
    if not _has_two_installers(case) or not (runfile.uninstaller or foreign):
        return
    locked = queries.locked_packages(case)
    if not locked:
        return
    loaded = case.facts.module.loaded
    owned = {library.path for library in case.facts.libraries if library.package}
    shadowed = [library for library in case.facts.libraries if library.package is None and library.version]
    versions = set(queries.installed(case).versions) | {lib.version for lib in case.facts.libraries if lib.version}
    if loaded and loaded.version:
        versions.add(loaded.version)
    evidence = [
        *([f"{runfile.uninstaller}: a runfile's own uninstaller"] if runfile.uninstaller else []),
        *foreign[:5],
        *queries.library_words(case),
        queries.loaded_words(case),
    ]
    evidence += [f"packages of apt's: {', '.join(sorted(locked)[:4])} {', '.join(queries.installed(case).versions)}"]
    evidence += queries.log_block(case, r"API mismatch", 2) + _smi_words(case)
    works = queries.smi_works(case) and not shadowed and len(versions) < 2 and bool(owned)
    repairs = []
    if runfile.uninstaller:
        repairs.append(
            Repair(
                action="runfile.uninstall",
                words=f"remove the runfile's driver with its own uninstaller ({runfile.uninstaller})",
            )
        )
    else:
        repairs.append(
            Repair(action="purge", words="remove every trace of the driver by exact names: there is no uninstaller")
        )
    repairs.append(queries.apply("install the driver from apt alone"))
    yield Found(
        "a driver from outside apt and apt's packages lie over each other"
        + (f": {', '.join(sorted(versions))}" if len(versions) > 1 else ""),
        queries.clip(evidence),
        tuple(repairs),
        level="warning" if works else "error",
        reboot=True,
    )


def _container_libraries(case: Case) -> Iterator[Found]:
    """A container with libraries of its own that are not of its machine's module."""
    loaded = case.facts.module.loaded
    versions = {library.version for library in case.facts.libraries if library.version}
    if (
        not queries.in_container(case)
        or loaded is None
        or not loaded.version
        or not versions
        or loaded.version in versions
    ):
        return
    if not case.facts.devices and not case.facts.smi.ran:
        # no GPU was given to it
        return
    told = ", ".join(sorted(versions))
    yield Found(
        f"the libraries in this container are {told}, the module of its machine is {loaded.version}",
        queries.clip(
            [f"/proc/driver/nvidia/version: {loaded.version}", *queries.library_words(case), *_smi_words(case)]
        ),
        (
            queries.manual(
                f"install the libraries {loaded.version} in the container, or none: the container runtime mounts the machine's"
            ),
        ),
    )


def _library_missing(case: Case) -> Iterator[Found]:
    facts = case.facts
    if queries.in_container(case) or not (queries.installed(case).packages or facts.module.loaded):
        return
    if (not queries.own_gpus(case) and not facts.module.loaded) or queries.brought_in(case) or removed_driver(facts):
        return
    have = {library.soname for library in facts.libraries}
    missing = [soname for soname in ("libcuda.so.1", "libnvidia-ml.so.1") if soname not in have]
    if not missing:
        return
    compute = sorted(name for name in queries.installed(case).packages if name.startswith("libnvidia-compute"))
    evidence = [f"{soname}: in none of the loader's folders" for soname in missing]
    evidence += queries.package_words(case, compute) or ["no package libnvidia-compute-* is installed"]
    evidence.append(queries.loaded_words(case))
    yield Found(
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: the driver's libraries are not installed"
        + (" as a whole" if compute else ""),
        queries.clip(evidence + _smi_words(case)),
        (
            queries.apply(
                "install the driver's library package of the same version"
                if not compute
                else f"install {compute[0]} again, at the version that it has"
            ),
        ),
    )


def _missing(case: Case) -> Iterator[Found]:
    """GPUs, and no driver at all."""
    facts = case.facts
    removed = removed_driver(facts)
    if not queries.own_gpus(case) or (queries.has_driver(case) and not removed) or queries.in_container(case):
        return
    if any(gpu.driver in checks.RIVALS for gpu in queries.own_gpus(case)) and not case.driver_managed:
        return
    evidence = [f"GPU {queries.title(case, gpu)}: bound to {gpu.driver or 'nothing'}" for gpu in queries.own_gpus(case)]
    gone = sorted(n for n, p in facts.packages.items() if p.status[1] == "c" and driver_names.is_driver_package(n))
    if gone:
        evidence.append(
            f"removed, with their configuration left: {', '.join(gone[:5])}" + (", …" if len(gone) > 5 else "")
        )
    evidence += [
        "packages: none of the driver",
        *([removed.told, queries.loaded_words(case)] if removed else []),
        "/usr/bin/nvidia-smi: not there" if not facts.smi.path else f"{facts.smi.path} is there alone",
    ]
    yield Found(
        f"{queries.counted(queries.own_gpus(case), 'NVIDIA GPU')} and no driver: "
        + ("apt removed it while its module was loaded" if removed else "it was never installed, or removed"),
        queries.clip(evidence),
        (queries.apply("install the driver that the inventory asks for"),),
        level=None if case.driver_managed else "note",
        reboot=any(gpu.driver in checks.RIVALS for gpu in queries.own_gpus(case)),
    )


# What the driver says when it was loaded well. Source: the driver's own words, branches 470 to 620.
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")


def _load_pending(case: Case) -> Iterator[Found]:
    """All is in place and nothing loaded the module."""
    facts = case.facts
    if facts.module.loaded or not queries.own_gpus(case) or queries.in_container(case):
        return
    running = queries.modules_of(case, facts.kernels.running)
    if not running or any(gpu.driver for gpu in queries.own_gpus(case)):
        return
    libraries = queries.library_version(case)
    if libraries and running[0].version and running[0].version != libraries:
        return
    tried = queries.log_lines(
        case,
        r"NVRM",
        r"failed to load module",
        r"unsigned module",
        r"signature",
        r"nvidia.*(?:error|failed)",
        r"Unknown symbol",
    )
    loaded = [line for line in tried if _LOADED.search(line)]
    if len(tried) > len(loaded) or _blacklisting(case) or (facts.secure_boot.enabled and not _trusted(case)):
        return
    evidence = [
        f"on the disk: {queries.module_words(running[0])}",
        "/proc/modules: no nvidia",
        *queries.library_words(case),
        *loaded,
    ]
    yield Found(
        "the module was loaded since this boot, without an error, and somebody unloaded it"
        if loaded
        else "the driver is installed and was not loaded yet: nothing tried since this boot",
        queries.clip(evidence),
        (Repair(action="module.reload", words="load the module: modprobe nvidia; a reboot does the same"),),
    )


def _trusted(case: Case) -> bool:
    running = queries.modules_of(case, case.facts.kernels.running)
    return (
        bool(running)
        and running[0].signed
        and not (running[0].origin == "dkms" and case.facts.secure_boot.mok_enrolled is False)
    )


_BLOCKS = re.compile(
    r"^(?:blacklist\s+nvidia(?:[_-]\w+)?|install\s+nvidia(?:[_-]\w+)?\s+(?:/usr)?(?:/bin/)?(?:true|false|:)|"
    r"alias\s+(?:nvidia(?:[_-]\w+)?|pci:v000010DE\S*)\s+off)\s*(?:#.*)?$"
)
# Blocks of helpers that are no driver of the GPU are meant: nvidiafb takes the console, i2c needs none.
_HARMLESS = re.compile(r"^\w+\s+(?:nvidiafb|nvidia[_-](?:uvm[_-]none|fs|peermem|wmi\w*|cspmu))\b")


def _blocking_lines(case: Case) -> list[ConfLine]:
    return [row for row in queries.boot(case).modprobe if _BLOCKS.match(row.text) and not _HARMLESS.match(row.text)]


def _blacklisting(case: Case) -> list[str]:
    """What keeps the nvidia module from being loaded, with file and line."""
    rows = [row.place for row in _blocking_lines(case)]
    match = re.search(r"\S*(?:blacklist)=\S*\bnvidia\b\S*", queries.boot(case).cmdline)
    return rows + ([f"kernel command line: {match.group(0)}"] if match else [])


def _blacklisted(case: Case) -> Iterator[Found]:
    rows = _blacklisting(case)
    if not rows or not queries.own_gpus(case) or not queries.has_driver(case) or queries.in_container(case):
        return
    files = sorted({row.file for row in _blocking_lines(case)})
    prime = (
        any("nvidia-prime" in path or path.endswith("blacklist-nvidia.conf") for path in files)
        and "nvidia-prime" in case.facts.packages
    )
    only = [path for path in files if _only_blocks(case, path)]
    repairs: tuple[Repair, ...]
    if prime:
        repairs = (queries.manual("prime-select nvidia (it was switched to the other card), then reboot"),)
    elif files and set(only) == set(files):
        repairs = (
            Repair(action="file.aside", words=f"put {', '.join(files)} aside", args={"paths": files}),
            Repair(
                action="initramfs.build",
                words="build the initramfs again, without the block",
                args={"kernels": queries.kernels_that_matter(case)},
            ),
        )
    elif files:
        repairs = (queries.manual(f"take the lines out of {', '.join(files)}, then update-initramfs -u -k all"),)
    else:
        repairs = (
            queries.manual("take the block off the kernel's command line (/etc/default/grub), update-grub, reboot"),
        )
    loaded = case.facts.module.loaded is not None
    yield Found(
        "the nvidia module is blocked by configuration"
        + ("; it is loaded now, and will not be after the next boot" if loaded else ""),
        queries.clip(rows + [queries.loaded_words(case)]),
        repairs,
        level="warning" if loaded else None,
    )


def _only_blocks(case: Case, path: str) -> bool:
    """A file whose lines about these modules are all blocks of nvidia: putting it aside takes nothing else away."""
    rows = [row for row in queries.boot(case).modprobe if row.file == path]
    return all(_BLOCKS.match(row.text) for row in rows)


def _parameters(case: Case) -> Iterator[Found]:
    lines = queries.log_lines(
        case,
        r"nvidia\w*: unknown parameter '",
        r"nvidia\w*: `[^']*' invalid for parameter",
        r"Unknown symbol .*nvidia|nvidia\w*: Unknown symbol",
    )
    if not lines:
        return
    options = [row.place for row in queries.boot(case).modprobe if row.text.startswith("options nvidia")]
    files = sorted({row.file for row in queries.boot(case).modprobe if row.text.startswith("options nvidia")})
    refused = any("invalid for parameter" in line for line in lines) and case.facts.module.loaded is None
    yield Found(
        "the nvidia module is given a parameter that it does not know",
        queries.clip(lines + options),
        (queries.manual(f"take the parameter out of {', '.join(files) or 'modprobe.d'}"),),
        level="error" if refused else None,
    )


def _unheld(case: Case) -> Iterator[Found]:
    facts = case.facts
    if not case.driver_managed or case.values.get("nvidia_driver_hold", True) is not True:
        return
    packages = queries.installed(case).packages
    loose = sorted(name for name in packages if not facts.packages[name].held)
    held = sorted(set(packages) - set(loose))
    stale = sorted(
        name
        for name, package in facts.packages.items()
        if package.held and package.status[1] in "nc" and driver_names.is_driver_package(name)
    )
    guarded = any("nvidia" in entry for entry in facts.apt.blacklist)
    if not loose or not (held or stale or (facts.apt.unattended and not guarded)):
        return
    fabric = [name for name in loose if driver_names.parse(name).base in driver_names.FABRIC]
    evidence = [f"held: {', '.join(held[:4]) or 'none'}" + (f" and {len(held) - 4} more" if len(held) > 4 else "")]
    evidence += [f"not held: {name} {packages[name]}" for name in (fabric + [n for n in loose if n not in fabric])[:8]]
    if stale:
        evidence.append(
            f"on hold and not installed: {', '.join(stale[:4])}"
            + (f" and {len(stale) - 4} more" if len(stale) > 4 else "")
        )
    evidence.append(
        {
            True: f"unattended-upgrades is on, and NVIDIA's names are {'' if guarded else 'not '}in its blacklist",
            False: "unattended-upgrades is off",
            None: "unattended-upgrades: not known",
        }[facts.apt.unattended]
    )
    moved = moved_words(case)
    apart = bool(held or stale)
    yield Found(
        f"{len(loose)} of {len(packages)} driver packages are not held: the next update moves them "
        + ("apart from the rest" if apart else "under the module that is loaded"),
        queries.clip(evidence + moved),
        (queries.apply("hold every installed driver package by its exact name, and tell unattended-upgrades"),),
        # Without any hold this is Ubuntu as it is shipped: a wish of the fleet's, and no fault of this host yet.
        level=None if apart or moved else "note",
    )


def _hmm(case: Case) -> Iterator[Found]:
    """Known-bad versions whose CUDA may fail with error 3 where HMM does not start; only as a note."""
    version, flavour = queries.driver_now(case)
    loaded = case.facts.module.loaded
    if (
        loaded is None
        or not version
        or case.facts.nvswitches
        or queries.boot(case).parameters.get("nvidia_uvm.uvm_disable_hmm") in ("Y", "1")
    ):
        return
    if any("uvm_disable_hmm=1" in row.text for row in queries.boot(case).modprobe):
        return
    bad = [row for row in case.catalog.known_bad("driver", version, care=True) if "uvm_disable_hmm" in (row.fix or "")]
    if not bad:
        return
    yield Found(
        f"driver {version} is known for CUDA that fails with error 3 while nvidia-smi works, on some kernels",
        queries.clip(
            [
                queries.loaded_words(case),
                "modprobe.d: no option uvm_disable_hmm=1",
                f"no NVSwitch: fabric manager is not the reason ({bad[0].symptom})",
            ]
        ),
        (
            queries.manual(
                "only if CUDA fails so: 'options nvidia_uvm uvm_disable_hmm=1' in /etc/modprobe.d, then load "
                "nvidia_uvm again"
            ),
        ),
    )


def _cron_persistence(case: Case) -> Iterator[Found]:
    rows = [row.place for row in queries.boot(case).cron]
    log = queries.log_lines(case, r"Persistence mode is deprecated")
    if not rows:
        return
    yield Found(
        "persistence mode is switched on the old way, by nvidia-smi -pm from cron",
        queries.clip(rows + log),
        (queries.apply("let nvidia-persistenced keep it on; then take your own line out of the crontab"),),
    )


def _persistence_off(case: Case) -> Iterator[Found]:
    facts = case.facts
    off = [gpu for gpu in facts.smi.gpus if gpu.persistence is False]
    if (
        not off
        or facts.desktop
        or queries.in_container(case)
        or case.values.get("nvidia_driver_persistence", True) is not True
        or not case.driver_managed
    ):
        return
    daemon = facts.services.get("nvidia-persistenced")
    options = queries.boot(case).persistenced_options
    evidence = [f"GPU {gpu.index} {gpu.name}: persistence mode is off" for gpu in off[:4]]
    evidence.append(
        "nvidia-persistenced: "
        + ("not installed" if not daemon or not daemon.present else "running" if daemon.running else "not running")
    )
    if options and "--no-persistence-mode" in options:
        evidence.append("its unit starts it with --no-persistence-mode")
    yield Found(
        f"persistence is off on {queries.counted(off, 'GPU')} and no desktop keeps the driver up: first calls start the cards anew",
        queries.clip(evidence),
        (queries.apply("switch persistence on, through nvidia-persistenced"),),
    )


_UPDATED = (
    "apt replaced the libraries and the module file; the running kernel still has the old module. New "
    "programs load the new library, "
    "which refuses to talk to it. Jobs that were running go on. Nothing on the disk is wrong: a reload or a "
    "reboot ends it, and "
    "nothing has to be installed again."
)
RULES = (
    Rule(
        code="driver.stale_module",
        level="error",
        title="the loaded module is of another version than everything on the disk",
        explain=_UPDATED
        + "\n\nThe usual culprit is unattended-upgrades, on a host whose driver packages were not all held: "
        "`apt-mark hold 'nvidia*'` misses every `libnvidia-*`.",
        breaks="every new program that uses a GPU, nvidia-smi first; running jobs go on",
        repair="load the new module (stop what holds it) or reboot; never purge or install again",
        prevent=(
            "hold every installed driver package by its exact name and keep unattended-upgrades from them "
            "(nvidia_driver_hold)"
        ),
        find=_stale_module,
        texts=(
            r"Failed to initialize NVML: Driver/library version mismatch",
            r"Impossible to initialize nvidia nvml\s*: Driver/library version mismatch",
            r"Driver/library version mismatch",
            r"NVML library version: [0-9.]+",
            r"NVRM: API mismatch: (?:the )?client",
            r"kernel module version [0-9.]+|this kernel module has the version",
        ),
        after=("kernel.no_module_for_next_boot", "kernel.build_failed", "kernel.headers_missing", "dpkg.unfinished"),
        symptom_of=("driver.mixed_versions", "driver.libraries_differ", "driver.two_installers"),
        sources=(
            "NVIDIA/open-gpu-kernel-modules and driver guides quoted in oddmario/NVIDIA-Ubuntu-Driver-Guide#4",
            "pando85/homelab#4110",
        ),
    ),
    Rule(
        code="driver.module_in_use",
        level="note",
        title="the modules cannot be unloaded: something holds them",
        explain=(
            "`rmmod` refuses a module that somebody uses: a job, a container, a display server (nvidia_drm "
            "with modeset), "
            "nvidia-persistenced, DCGM. The order is nvidia_uvm, nvidia_drm, nvidia_modeset, nvidia. The same"
            " clients refuse "
            "`nvidia-smi --gpu-reset`, also where nvidia-smi lists no process: then nvidia_drm holds the card."
        ),
        breaks="a reload without a reboot, and a reset of a GPU",
        repair=(
            "stop the display manager, nvidia-persistenced and DCGM, and let jobs end; otherwise a reboot. "
            "Jobs are never killed for it"
        ),
        prevent="multi-user.target on servers; monitoring that lets go of the cards when asked",
        find=_module_in_use,
        texts=(
            r"rmmod: ERROR: Module nvidia\w* is in use(?: by)?",
            r"NVIDIA kernel module 'nvidia\S*' appears to already be loaded",
            r"modprobe: FATAL: Module nvidia\w* is in use",
            r"The following GPUs could not be reset",
            r"GPU [0-9a-f:.]+: In use by another client",
        ),
        symptom_of=("driver.stale_module",),
        sources=("nvidia-smi --gpu-reset and rmmod texts of drivers 470 to 580",),
    ),
    Rule(
        code="driver.mixed_versions",
        level="error",
        title="parts of the driver on the disk are of different versions",
        explain=(
            "The driver is one thing in twenty packages. Where some of them were held, came from another "
            "repository, or were moved by "
            "another program, the rest went on: `libnvidia-compute` of one version beside `nvidia-utils` of "
            "another. From branch 590 on "
            "NVIDIA's repository has names without the branch, so that holds by '-580' stop matching and an "
            "upgrade mixes two branches."
        ),
        breaks="nvidia-smi and CUDA, now or after the next boot; apt may refuse every install",
        repair=(
            "one transaction that brings every package of the driver to one version, then hold the installed names"
        ),
        prevent=(
            "hold by exact names; one origin for all driver packages (a pin); never a driver through a CUDA metapackage"
        ),
        find=_mixed,
        texts=(
            r"nvidia-[\w-]+ : Depends: (?:lib)?nvidia-[\w-]+ \(",
            r"libnvidia-compute(?:-[0-9]+)? .*(?:conflicts|breaks).*libnvidia-cfg1",
        ),
        after=("dpkg.unfinished", "apt.signed_by_conflict"),
        symptom_of=("driver.two_installers",),
        sources=("NVIDIA driver installation guide 590, package names",),
    ),
    Rule(
        code="driver.libraries_differ",
        level="error",
        title="libcuda and NVML are not of the version of the packages",
        explain=(
            "The loader takes the first libcuda.so.1 that it finds. A link that was left behind, a library "
            "that was copied by hand, "
            "or an "
            "`ldconfig` that was not run leaves programs with a library of another version than the packages say."
        ),
        breaks="nvidia-smi and CUDA (driver/library version mismatch), while apt says that all is well",
        repair="the library package again at its version, then `ldconfig`",
        prevent="no driver library outside packages",
        find=_libraries_differ,
        after=("dpkg.unfinished",),
        symptom_of=("driver.two_installers", "driver.mixed_versions"),
    ),
    Rule(
        code="driver.two_installers",
        level="error",
        title="a runfile's driver and apt's packages lie over each other",
        explain=(
            "A `.run` installer (or an image, or a copied folder) put a driver there that dpkg does not know;"
            " later a package of apt's "
            "brought libraries of another version. Both write the same links. Whoever was last wins, file by file."
        ),
        breaks="nvidia-smi and CUDA (API mismatch), and every later update of either",
        repair=(
            "remove the runfile's driver with its own uninstaller, then install from apt alone; without an "
            "uninstaller, purge by exact names"
        ),
        prevent=(
            "one installer for the whole driver; with a driver from an image, nvidia_driver_manage: false and"
            " no NVIDIA library from apt"
        ),
        find=_two_installers,
        reboot=True,
        texts=(
            r"An alternate method of installing the NVIDIA driver was detected",
            r"installation of the NVIDIA driver was (?:performed|done) by (?:a different|another) method",
        ),
        after=("dpkg.unfinished",),
        sources=("aws-samples reports of g4dn images, driver 470",),
    ),
    Rule(
        code="driver.container_libraries",
        level="error",
        title="a container's own driver libraries are not of its machine's version",
        explain=(
            "A container shares the kernel and so the module of its machine. Libraries that were installed inside it (apt in an "
            "LXC container, a runfile with --no-kernel-module) must be of exactly that version, and are not any more after the "
            "machine's update."
        ),
        breaks="nvidia-smi and CUDA in that container (driver/library version mismatch); the machine itself is well",
        repair="libraries of the machine's version, or none of its own: NVIDIA's container runtime mounts the machine's",
        prevent="no driver libraries inside containers",
        find=_container_libraries,
    ),
    Rule(
        code="driver.library_missing",
        level="error",
        title="libcuda or NVML is missing",
        explain=(
            "The module may be loaded, but the user-space half of the driver is not there: "
            "`libnvidia-compute` was never installed (a "
            "`--no-install-recommends` too much), was removed by an autoremove, or its files were deleted by "
            "another installer."
        ),
        breaks=("nvidia-smi (couldn't find libnvidia-ml.so) and every CUDA program (no CUDA-capable device, CPU only)"),
        repair="install the library package at the driver's version",
        prevent="no autoremove on GPU hosts; hold the installed driver packages",
        find=_library_missing,
        texts=(
            r"couldn'?t find libnvidia-ml\.so library",
            r"libcuda\.so(?:\.1)?: cannot open shared object file",
            r"libnvidia-ml\.so\.1: cannot open shared object file",
            r"Could not load dynamic library 'libcuda\.so\.1'",
        ),
        after=("dpkg.unfinished",),
        symptom_of=("driver.two_installers",),
        sources=("nvidia-smi's own text",),
    ),
    Rule(
        code="driver.missing",
        level="error",
        title="there is a GPU and no driver",
        explain=(
            "No package, no module, no library of the driver is on this host. It was never installed, or "
            "something removed all of it."
        ),
        breaks="everything that uses a GPU",
        repair="`provision apply` installs what the inventory asks for",
        prevent="",
        find=_missing,
        texts=(
            r"nvidia-smi: (?:command )?not found",
            r"Found no NVIDIA driver on your system",
            r"Command 'nvidia-smi' not found",
        ),
        after=("dpkg.unfinished", "apt.signed_by_conflict"),
    ),
    Rule(
        code="driver.load_pending",
        level="error",
        title="the driver is installed and not loaded yet",
        explain=(
            "Everything is in place for the running kernel: module, libraries, signature. The driver was "
            "installed since the last boot and "
            "nothing loaded it. Services that need a device, as nvidia-persistenced, fail until then; that is"
            " their only fault."
        ),
        breaks="everything that uses a GPU, until the module is loaded",
        repair="load it (`modprobe nvidia`), or reboot",
        prevent="",
        find=_load_pending,
        after=("kernel.module_version", "driver.mixed_versions", "driver.libraries_differ"),
        symptom_of=(
            "driver.two_installers",
            "gpus.no_common_driver",
            "gpus.branch_wrong",
            "gpus.needs_proprietary",
            "gpus.needs_open",
        ),
    ),
    Rule(
        code="driver.blacklisted",
        level="error",
        title="the nvidia module is blocked by configuration",
        explain=(
            "A file in modprobe.d or the kernel's command line says `blacklist nvidia`, `install nvidia "
            "/bin/false` or `alias nvidia off`. "
            "Left by prime-select, bumblebee, a guide for passing the card to a virtual machine, or a "
            "mistyped block of nouveau."
        ),
        breaks="the GPUs: the module is not loaded at boot",
        repair=("put the file aside and build the initramfs again; where prime-select wrote it, `prime-select nvidia`"),
        prevent="",
        find=_blacklisted,
        reboot=True,
        texts=(r"install nvidia /bin/(?:false|true)", r"^\s*blacklist nvidia\s*$", r"module_blacklist=\S*nvidia"),
    ),
    Rule(
        code="driver.module_parameters",
        level="warning",
        title="the nvidia module is given a parameter that it does not know",
        explain=(
            "An `options nvidia …` line was written for another version or is mistyped. Unknown names are "
            "ignored with a line in the log; a bad value makes the kernel refuse the module."
        ),
        breaks="what the option was for; with a bad value the whole driver",
        repair="take the line out, or write it as this version has it (`modinfo -p nvidia`)",
        prevent="",
        find=_parameters,
        texts=(r"nvidia\w*: unknown parameter '[^']+' ignored", r"nvidia\w*: `[^']*' invalid for parameter"),
        symptom_of=("driver.mixed_versions", "driver.libraries_differ"),
    ),
    Rule(
        code="driver.unheld",
        level="warning",
        title="driver packages are not held",
        explain=(
            "Some packages of the installed driver are on hold and some are not, or none is while "
            "unattended-upgrades is on. A hold by "
            "pattern (`apt-mark hold 'nvidia*'`) misses `libnvidia-*`, `xserver-xorg-video-nvidia-*` and "
            "fabric manager, and puts holds on "
            "dozens of packages that are not installed, which make later installs fail."
        ),
        breaks=(
            "nothing yet; the next update moves a part of the driver, and every new GPU program fails until a reboot"
        ),
        repair="hold the installed closure by exact names (`provision apply` does)",
        prevent="nvidia_driver_hold: true",
        find=_unheld,
        texts=(r"^Upgrade: .*lib?nvidia-(?:common|compute|gl|cfg1)[\w-]*:", r"^Upgrade: .*nvidia-fabricmanager[\w-]*:"),
        symptom_of=("driver.mixed_versions",),
        sources=("illinois-scicomp/machine-shop-maintenance#70",),
    ),
    Rule(
        code="driver.hmm",
        level="note",
        title="a driver version whose CUDA may not start with HMM on some kernels",
        explain=(
            "On some kernels, seen on EL 9 and 10 and NixOS and hardly on Ubuntu's, `cuInit` fails with error"
            " 3 while nvidia-smi, the device "
            "nodes and the log look well, and there is no NVSwitch. The module nvidia_uvm does not get "
            "heterogeneous memory "
            "management to start. Where NVSwitches are, the same error means fabric manager instead."
        ),
        breaks="CUDA, where it happens at all",
        repair=(
            "`options nvidia_uvm uvm_disable_hmm=1` in /etc/modprobe.d, then load nvidia_uvm again; do not "
            "install fabric manager"
        ),
        prevent="",
        find=_hmm,
        texts=(
            r"CUDA_ERROR_NOT_INITIALIZED",
            r"cuda driver library init failure: 3",
            r"cuInit\(0\) failed",
            r"CUDA driver initialization failed, you might not have a CUDA gpu",
        ),
        sources=("NVIDIA/open-gpu-kernel-modules#797, #901, #947", "ollama/ollama#11593"),
    ),
    Rule(
        code="driver.persistence_from_cron",
        level="warning",
        title="persistence mode is switched on the old way",
        explain=(
            "`nvidia-smi -pm 1` from a crontab is the legacy way: the driver says that it will be removed, "
            "and it races with the start of the driver."
        ),
        breaks="nothing yet",
        repair="nvidia-persistenced; then the line can go. Only its owner takes it out",
        prevent="nvidia_driver_persistence: true",
        find=_cron_persistence,
        texts=(r"Persistence mode is deprecated and will be removed",),
        sources=("the driver's own message",),
    ),
    Rule(
        code="driver.persistence_off",
        level="note",
        title="persistence is off on a host without a desktop",
        explain=(
            "Without a client the driver shuts the cards down and starts them anew at every call: the first "
            "CUDA call takes seconds, on "
            "eight cards half a minute and more, and checks with short timeouts take that for a hang."
        ),
        breaks="nothing; first calls are slow, and counters and MIG layouts do not last",
        repair="nvidia-persistenced with persistence mode (`provision apply`)",
        prevent="nvidia_driver_persistence: true",
        find=_persistence_off,
        # libnvidia-container waits some seconds for the driver, which starts eight cards anew.
        texts=(r"initialization error: driver rpc error: timed out",),
        symptom_of=("driver.persistence_from_cron",),
    ),
)
