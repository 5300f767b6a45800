"""The driver in its layers: loaded module, module on the disk, libraries, packages, other installers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.diagnose import queries
from provision.diagnose.candidates import moved_text
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case, Found, rule
from provision.facts import ConfLine
from provision.parts.driver.installed import RIVALS, stale_holds, stray_libraries, strays_text, unheld
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


@rule("driver.stale_module")
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
        *(queries.module_text(module) for module in queries.modules_of(case, running)[:1]),
        *queries.library_text(case),
        *(f"packages: {version}" for version in queries.installed(case).versions),
        *queries.log_block(case, r"API mismatch", 2),
        *(row for row in _smi_text(case)),
        *moved_text(case),
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
    why, first = "it was updated and not loaded since", []
    if queries.boot(case).module_before_boot:
        why = "this boot took the older one from its initramfs"
        text = f"build the initramfs of {running} again (update-initramfs -u -k {running}), or each boot loads the older module"
        first = [Repair(action="initramfs.build", words=text, args={"kernels": [running]})]
    yield Found(
        f"the loaded module is {loaded.version}, everything on the disk is {disk}: {why}",
        evidence,
        *first,
        repair,
        reboot=repair.action == "reboot",
    )


def _smi_text(case: Case) -> list[str]:
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


@rule("driver.module_in_use")
def _module_in_use(case: Case) -> Iterator[Found]:
    """A reload is wanted, and something holds the modules."""
    if not any(True for _ in _stale_module(case)):
        return
    users = [f"{queries.user_text(user)}: {', '.join(user.devices[:3])}" for user in case.facts.gpu_users]
    counts = [
        queries.uses_text(module)
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
        users + counts,
        queries.reboot("wait for the work to end, or reboot with the users' consent; rescue never ends jobs"),
    )


@rule("driver.mixed_versions")
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
        evidence.append(f"{version}: {queries.some(having, 6)}")
    evidence += queries.library_text(case)
    held = sum(case.facts.packages[name].held for name in locked if name in case.facts.packages)
    if held and held < len(locked):
        evidence.append(f"{held} of {len(locked)} of these packages are held, so only the others were updated")
    evidence += moved_text(case)
    listed = ", ".join(sorted(versions | libraries))
    yield Found(
        f"parts of the driver on the disk are of different versions: {listed}",
        evidence,
        queries.realign("bring every package of the driver to one version, in one transaction, and hold them"),
    )


@rule("driver.libraries_differ")
def _libraries_differ(case: Case) -> Iterator[Found]:
    """What the loader finds is not of the packages' version, and no second installer explains it."""
    if strays := stray_libraries(case.facts):
        yield Found(
            strays_text(strays),
            queries.library_text(case),
            queries.manual("remove that file, or its folder from /etc/ld.so.conf.d, and run ldconfig"),
        )
    if queries.in_container(case) or _has_two_installers(case):
        return
    packages = set(queries.driver_packages(case).values())
    libraries = {library.version for library in case.facts.libraries if library.version}
    if len(libraries) < 2 and (len(packages) != 1 or libraries <= packages):
        return
    if len(packages) > 1 and libraries <= packages:
        # the packages themselves are of several versions
        return
    listed = ", ".join(sorted(libraries))
    copies = [
        row for row in case.facts.libraries if row.package is None and row.version and row.version not in packages
    ]
    if not packages:
        repair = queries.manual("remove the older library, or the link that leads to it, and run ldconfig")
    elif copies:
        names = ", ".join(row.path for row in copies)
        repair = queries.manual(f"no package owns {names}: move it out of the loader's folders, then ldconfig")
    else:
        owners = sorted({row.package for row in case.facts.libraries if row.package and row.version not in packages})
        repair = queries.again(case, owners, "ldconfig")
    yield Found(
        f"the libraries that programs find are {listed}"
        + (f", the packages are {', '.join(sorted(packages))}" if packages else ""),
        [
            *queries.library_text(case),
            *(f"packages: {version}" for version in sorted(packages)),
            queries.loaded_text(case),
        ],
        repair,
    )


def _has_two_installers(case: Case) -> bool:
    return bool(case.facts.runfile.uninstaller or _foreign_files(case)) and bool(queries.driver_packages(case))


def _foreign_files(case: Case) -> list[str]:
    """Files of a driver that no package owns, beside logs and sources, which prove nothing, and what lies in /usr/local.

    NVIDIA's installer puts nothing there: a library there is somebody's copy.
    """
    elsewhere = ("/var/log/", "/usr/src/", "/var/lib/nvidia", "/usr/local/")
    return [path for path in case.facts.runfile.traces if not path.startswith(elsewhere)]


@rule("driver.two_installers")
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
        *queries.library_text(case),
        queries.loaded_text(case),
    ]
    evidence += [f"packages of apt's: {', '.join(sorted(locked)[:4])} {', '.join(queries.installed(case).versions)}"]
    evidence += queries.log_block(case, r"API mismatch", 2) + _smi_text(case)
    works = queries.smi_works(case) and not shadowed and len(versions) < 2 and bool(owned)
    if runfile.uninstaller:
        text = f"remove the runfile's driver with its own uninstaller ({runfile.uninstaller})"
        removal = Repair(action="runfile.uninstall", words=text)
    else:
        text = "remove every trace of the driver by exact names: there is no uninstaller"
        removal = Repair(action="purge", words=text)
    yield Found(
        "a driver from outside apt and apt's packages overwrite each other"
        + (f": {', '.join(sorted(versions))}" if len(versions) > 1 else ""),
        evidence,
        removal,
        queries.apply("install the driver from apt alone"),
        level="warning" if works else "error",
        reboot=True,
    )


@rule("driver.container_libraries")
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
    listed = ", ".join(sorted(versions))
    yield Found(
        f"the libraries in this container are {listed}, the module of its machine is {loaded.version}",
        [f"/proc/driver/nvidia/version: {loaded.version}", *queries.library_text(case), *_smi_text(case)],
        queries.manual(
            f"install the libraries {loaded.version} in the container, or none: the container runtime mounts the machine's"
        ),
    )


@rule("driver.library_missing")
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
    evidence += queries.package_text(case, compute) or ["no package libnvidia-compute-* is installed"]
    evidence.append(queries.loaded_text(case))
    yield Found(
        f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing: the driver's libraries are not installed"
        + (" as a whole" if compute else ""),
        evidence + _smi_text(case),
        queries.again(case, compute, "ldconfig")
        if compute
        else queries.apply("install the driver's library package of the same version"),
    )


@rule("driver.missing")
def _missing(case: Case) -> Iterator[Found]:
    """GPUs, and no driver at all."""
    facts = case.facts
    removed = removed_driver(facts)
    if not queries.own_gpus(case) or (queries.has_driver(case) and not removed) or queries.in_container(case):
        return
    if any(gpu.driver in RIVALS for gpu in queries.own_gpus(case)) and not case.driver_managed:
        return
    evidence = [f"GPU {queries.title(case, gpu)}: bound to {gpu.driver or 'nothing'}" for gpu in queries.own_gpus(case)]
    gone = sorted(n for n, p in facts.packages.items() if p.status[1] == "c" and driver_names.is_driver_package(n))
    if gone:
        evidence.append(
            f"removed, with their configuration left: {', '.join(gone[:5])}" + (", …" if len(gone) > 5 else "")
        )
    evidence += [
        "packages: none of the driver",
        *([removed.source, queries.loaded_text(case)] if removed else []),
        "/usr/bin/nvidia-smi: not there" if not facts.smi.path else f"{facts.smi.path} is there alone",
    ]
    yield Found(
        f"{queries.counted(queries.own_gpus(case), 'NVIDIA GPU')} and no driver: "
        + ("apt removed it while its module was loaded" if removed else "it was never installed, or removed"),
        evidence,
        queries.apply("install the driver that the inventory asks for"),
        level=None if case.driver_managed else "note",
        reboot=any(gpu.driver in RIVALS for gpu in queries.own_gpus(case)),
    )


# What the driver says when it was loaded well. Source: the driver's own words, branches 470 to 620.
_LOADED = re.compile(r"NVRM: loading NVIDIA UNIX")


@rule("driver.load_pending")
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
        r"unavailable key|Key was rejected|Required key not available",
        r"nvidia.*(?:error|failed)",
        r"Unknown symbol",
    )
    loaded = [line for line in tried if _LOADED.search(line)]
    if len(tried) > len(loaded) or _blacklisting(case) or (facts.secure_boot.enabled and not _trusted(case)):
        return
    evidence = [
        f"on the disk: {queries.module_text(running[0])}",
        "/proc/modules: no nvidia",
        *queries.library_text(case),
        *loaded,
    ]
    yield Found(
        "the module was loaded since this boot, without an error, and somebody unloaded it"
        if loaded
        else "the driver is installed and was not loaded yet: nothing tried since this boot",
        evidence,
        Repair(action="module.reload", words="load the module: modprobe nvidia; a reboot does the same"),
    )


def _trusted(case: Case) -> bool:
    running = queries.modules_of(case, case.facts.kernels.running)
    return (
        bool(running)
        and running[0].signed
        and not (running[0].origin == "dkms" and case.facts.secure_boot.mok_enrolled is False)
    )


_BLOCKS = re.compile(
    r"^(?:blacklist\s+nvidia([_-]\w+)?|install\s+nvidia([_-]\w+)?\s+(?:/usr)?(?:/bin/)?(?:true|false|:)|"
    r"alias\s+(?:nvidia([_-]\w+)?|pci:v000010DE\S*)\s+off)\s*(?:#.*)?$"
)


def _blocking_lines(case: Case) -> list[ConfLine]:
    """Of nvidia itself: a site that keeps nvidia_drm and nvidia_modeset out means it, and CUDA needs neither."""
    found = ((row, _BLOCKS.match(row.text)) for row in queries.boot(case).modprobe)
    return [row for row, match in found if match and not any(match.groups())]


def _blacklisting(case: Case) -> list[str]:
    """What keeps the nvidia module from being loaded, with file and line."""
    rows = [row.place for row in _blocking_lines(case)]
    match = re.search(r"\S*blacklist=(?:\S*,)?nvidia(?:,\S*)?(?=\s|$)", queries.boot(case).cmdline)
    return rows + ([f"kernel command line: {match.group(0)}"] if match else [])


def _display_kept_out(case: Case) -> list[str]:
    """What keeps nvidia_drm from being loaded, with file and line: a desktop draws through it."""
    rows = [
        row.place
        for row in queries.boot(case).modprobe
        if (match := _BLOCKS.match(row.text)) and {"-drm", "_drm"} & set(match.groups())
    ]
    match = re.search(r"\S*blacklist=(?:\S*,)?nvidia[_-]drm(?:,\S*)?(?=\s|$)", queries.boot(case).cmdline)
    return rows + ([f"kernel command line: {match.group(0)}"] if match else [])


@rule("driver.blacklisted")
def _blacklisted(case: Case) -> Iterator[Found]:
    rows = _blacklisting(case)
    if not rows and case.facts.desktop and queries.own_gpus(case) and (kept := _display_kept_out(case)):
        yield Found(
            "nvidia_drm is kept out, and this host has a desktop",
            kept,
            queries.manual("nothing, if the desktop uses another card; otherwise remove the line"),
            level="note",
        )
    if not rows or not queries.own_gpus(case) or not queries.has_driver(case) or queries.in_container(case):
        return
    files = sorted({row.file for row in _blocking_lines(case)})
    prime = (
        any("nvidia-prime" in path or path.endswith("blacklist-nvidia.conf") for path in files)
        and "nvidia-prime" in case.facts.packages
    )
    only = [path for path in files if _only_blocks(case, path)]
    if prime:
        repairs = [queries.manual("prime-select nvidia (it was switched to the other card), then reboot")]
    elif files and set(only) == set(files):
        repairs = [
            Repair(action="file.aside", words=f"put {', '.join(files)} aside", args={"paths": files}),
            Repair(
                action="initramfs.build",
                words="build the initramfs again, without the block",
                args={"kernels": queries.kernels_that_matter(case)},
            ),
        ]
    elif files:
        repairs = [queries.manual(f"remove the lines from {', '.join(files)}, then update-initramfs -u -k all")]
    else:
        text = "remove the block from the kernel's command line (/etc/default/grub), update-grub, reboot"
        repairs = [queries.manual(text)]
    loaded = case.facts.module.loaded is not None
    yield Found(
        "the nvidia module is blocked by configuration"
        + ("; it is loaded now, and will not be after the next boot" if loaded else ""),
        rows + [queries.loaded_text(case)],
        *repairs,
        level="warning" if loaded else None,
    )


def _only_blocks(case: Case, path: str) -> bool:
    """A file whose lines about these modules are all blocks of nvidia: putting it aside takes nothing else away."""
    rows = [row for row in queries.boot(case).modprobe if row.file == path]
    return all(_BLOCKS.match(row.text) for row in rows)


@rule("driver.module_parameters")
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
        lines + options,
        queries.manual(f"remove the parameter from {', '.join(files) or 'modprobe.d'}"),
        level="error" if refused else None,
    )


_SERVICES = {
    "nvidia-cdi-refresh": "containers that take GPUs by CDI get an old list of files and devices",
    "nvidia-imex": "memory of cards is not shared between machines of one NVLink domain",
    "nvidia-gridd": "no licence is fetched for this vGPU",
    "nvidia-dcgm": "DCGM measures nothing",
    "dcgm": "DCGM measures nothing",
    "nvidia-powerd": "Dynamic Boost of a laptop is off",
    "nvidia-persistenced": "every first program initialises the cards again",
    **dict.fromkeys(("nvidia-suspend", "nvidia-resume", "nvidia-hibernate"), "video memory is not kept over a suspend"),
}


@rule("driver.service_fails")
def _service_fails(case: Case) -> Iterator[Found]:
    """Where nvidia-smi works: what needs the driver fails with it, and says nothing new."""
    failed = queries.boot(case).failed_units or ()
    # A .path or a .timer that failed alone starts its service no more.
    lost = {
        unit: names for unit in _SERVICES if (names := [name for name in failed if name.rpartition(".")[0] == unit])
    }
    if not lost or not queries.own_gpus(case) or not queries.smi_works(case):
        return
    evidence = [
        line
        for unit, names in lost.items()
        for line in (
            *(f"{name}: failed ({_SERVICES[unit]})" for name in names),
            *queries.boot(case).unit_log.get(unit, [])[-4:],
        )
    ]
    unit, names = next(iter(lost.items()))
    yield Found(
        f"{queries.some([name for names in lost.values() for name in names], 3)} failed, and the driver works",
        evidence,
        queries.manual(
            f"systemctl reset-failed {' '.join(names)} && systemctl start {' '.join(names)}; where it fails again: "
            f"journalctl -b -u {unit}"
        ),
    )


@rule("driver.smi_not_found")
def _smi_not_found(case: Case) -> Iterator[Found]:
    """nvidia-headless does not depend on nvidia-utils."""
    packages = queries.installed(case).packages
    smi = case.facts.smi
    if smi.path or smi.ran or not case.facts.module.loaded or not queries.own_gpus(case) or queries.in_container(case):
        return
    for name, version in packages.items():
        tools = name.replace("libnvidia-compute-", "nvidia-utils-")
        if name != tools and tools not in packages:
            yield Found(
                "nvidia-smi is not there, and the driver is",
                [queries.loaded_text(case), f"{name} {version}", f"{tools}: not installed"],
                queries.manual(f"apt-get install {tools}={version}, as the rest of the driver is"),
                level="warning",
            )


@rule("driver.unheld")
def _unheld(case: Case) -> Iterator[Found]:
    facts = case.facts
    if not case.driver_managed or case.values.get("nvidia_driver_hold", True) is not True:
        return
    packages = queries.installed(case).packages
    loose, stale = [name for name in unheld(facts) if name in packages], stale_holds(facts)
    held = sorted(set(packages) - set(loose) - {"nvidia-prime"})
    guarded = any("nvidia" in entry for entry in facts.apt.blacklist)
    # NVIDIA's names in the blacklist show that they were to stay: apply writes it with the holds.
    if not loose or not (held or stale or guarded or facts.apt.unattended):
        return
    fabric = [name for name in loose if driver_names.parse(name).base in driver_names.FABRIC]
    evidence = [f"held: {queries.some(held, 4) or 'none'}"]
    evidence += [f"not held: {name} {packages[name]}" for name in (fabric + [n for n in loose if n not in fabric])[:8]]
    if stale:
        evidence.append(f"on hold and not installed: {queries.some(stale, 4)}")
    evidence.append(
        {
            True: f"unattended-upgrades is on, and NVIDIA's names are {'' if guarded else 'not '}in its blacklist",
            False: "unattended-upgrades is off",
            None: "unattended-upgrades: not known",
        }[facts.apt.unattended]
    )
    moved = moved_text(case)
    apart = bool(held or stale)
    yield Found(
        f"{len(loose)} of {len(loose) + len(held)} driver packages are not held: the next update moves them "
        + ("apart from the rest" if apart else "under the module that is loaded"),
        evidence + moved,
        queries.apply("hold every installed driver package by its exact name, and tell unattended-upgrades"),
        # Without any hold this is Ubuntu as it is shipped: what the fleet asks for, and no fault of this host yet.
        level=None if apart or moved else "note",
    )


@rule("driver.hmm")
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
        [
            queries.loaded_text(case),
            "modprobe.d: no option uvm_disable_hmm=1",
            f"no NVSwitch: fabric manager is not the reason ({bad[0].symptom})",
        ],
        queries.manual(
            "only if CUDA fails so: 'options nvidia_uvm uvm_disable_hmm=1' in /etc/modprobe.d, then load "
            "nvidia_uvm again"
        ),
    )


@rule("driver.persistence_from_cron")
def _cron_persistence(case: Case) -> Iterator[Found]:
    rows = [row.place for row in queries.boot(case).cron]
    log = queries.log_lines(case, r"Persistence mode is deprecated")
    if not rows:
        return
    yield Found(
        "persistence mode is switched on the old way, by nvidia-smi -pm from cron",
        rows + log,
        queries.apply("let nvidia-persistenced keep it on; then remove your own line from the crontab"),
    )


@rule("driver.persistence_off")
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
        f"persistence is off on {queries.counted(off, 'GPU')} and no desktop keeps the driver loaded: each first call is slow",
        evidence,
        queries.apply("switch persistence on, through nvidia-persistenced"),
    )
