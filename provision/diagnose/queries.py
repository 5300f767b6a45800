"""What several rules ask of a host's facts. Pure; everything tolerates absent knowledge."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, driver_names
from provision.catalog import Gpu as CatalogGpu
from provision.diagnose.finding import Repair
from provision.diagnose.rule import Case
from provision.facts import DiskModule, Facts, Gpu, GpuUser, Kernel, Package
from provision.facts.diagnostics import BootDiagnostics, ModuleRow
from provision.lib.text import plural
from provision.parts.driver import installed as installed_now
from provision.parts.driver.installed import InstalledDriver, installed_driver
from provision.parts.driver.removed import removed_driver

_NO_DIAGNOSTICS = BootDiagnostics()


# --- repairs -----------------------------------------------------------------------------------------------------


def apply(words: str, *parts: str) -> Repair:
    """The roles do it; parts: driver, cuda, conda, containers."""
    return Repair(action="apply", words=words, args={"parts": list(parts or ("driver",))})


def build_here(case: Case, words: str, by_hand: str) -> Repair:
    """A module that has to be built or installed: by the roles, or by hand where the driver is not from apt."""
    return apply(words) if installed(case).packages and case.driver_managed else manual(by_hand)


def realign(words: str, *parts: str) -> Repair:
    """As apply, where versions of one family have to move."""
    return Repair(action="realign", words=words, args={"parts": list(parts or ("driver",))})


def manual(words: str) -> Repair:
    return Repair(action="manual", words=words)


def again(case: Case, names: Sequence[str], then: str = "") -> Repair:
    """By hand, where files of packages are gone that dpkg has as installed: a plan compares versions and finds nothing to do."""
    known = case.facts.packages
    # dpkg's owner of a file is not always among the packages that the probe lists
    packages = " ".join(f"{name}={known[name].version}" if name in known else name for name in names)
    return manual(
        f"by hand, because dpkg has what is gone as installed: apt-get install --reinstall {packages}"
        + (f", then {then}" if then else "")
    )


def hardware(case: Case, words: str) -> Repair:
    """By hand on the machine itself; in a container or a virtual machine on what hands the card over."""
    host = case.facts.host
    return manual(installed_now.where_to_look(case.facts) if host.container or host.virtual or host.world else words)


def reboot(words: str = "reboot") -> Repair:
    return Repair(action="reboot", words=words)


# --- the host ----------------------------------------------------------------------------------------------------


def boot(case: Case) -> BootDiagnostics:
    """What only diagnose reads; empty where it was not asked for."""
    return case.facts.trouble.boot if case.facts.trouble else _NO_DIAGNOSTICS


def installed(case: Case) -> InstalledDriver:
    """The driver that dpkg knows of."""
    return installed_driver(case.facts)


def own_gpus(case: Case) -> list[Gpu]:
    """The GPUs that this host's driver is to drive: those handed to virtual machines are not."""
    return installed_now.own_gpus(case.facts)


def in_container(case: Case) -> bool:
    """A container without kernels of its own: module and boot are its machine's."""
    return bool(case.facts.host.container) and not case.facts.kernels.installed


def library_version(case: Case) -> str | None:
    """Version of the user-space driver: by libcuda and NVML as the loader finds them, else by its packages."""
    for library in case.facts.libraries:
        if library.version:
            return library.version
    return installed(case).version


def modules_of(case: Case, kernel: str) -> list[DiskModule]:
    """The nvidia modules on disk for one kernel, the one that depmod prefers first (updates/ beats kernel/)."""
    return installed_now.modules_of(case.facts, kernel)


def kernel_row(facts: Facts, release: str) -> Kernel | None:
    return next((kernel for kernel in facts.kernels.installed if kernel.release == release), None)


def kernels_that_matter(case: Case) -> list[str]:
    """The kernel that runs and the one that boots next, each once; none in a container without kernels."""
    kernels = case.facts.kernels
    if not kernels.installed or in_container(case):
        return []
    return list(dict.fromkeys(release for release in (kernels.running, kernels.next) if release))


def wants_driver(case: Case) -> bool:
    """A driver is to be here: one is installed or loaded, or the inventory's owner lets us manage it on GPUs."""
    return has_driver(case) or (case.driver_managed and bool(own_gpus(case)))


def has_driver(case: Case) -> bool:
    """Some driver is on this host, from wherever."""
    facts = case.facts
    return bool(
        installed(case).packages
        or facts.module.loaded
        or facts.module.on_disk
        or facts.libraries
        or facts.runfile.uninstaller
        or boot(case).dkms
    )


def brought_in(case: Case) -> bool:
    """A module is loaded that nothing on this host's disk brings: a driver container, a network root, an owner's own way."""
    facts = case.facts
    here = facts.module.on_disk or installed(case).packages or boot(case).dkms or facts.runfile.uninstaller
    foreign = boot(case).driver_container or not (here or removed_driver(facts))
    return facts.module.loaded is not None and foreign


def world(case: Case) -> str | None:
    """Whose kernel, driver or card it is where they are not this host's own: a key of ELSEWHERE, or None."""
    facts, diagnostics = case.facts, boot(case)
    if facts.host.world in ("wsl", "jetson"):
        return facts.host.world
    if diagnostics.card_off and not any(gpu.driver == "nvidia" for gpu in own_gpus(case)):
        return "off"
    if diagnostics.driver_container and not installed(case).packages:
        return "operator"
    if in_container(case) and has_driver(case):
        return "container"
    guest = any(gpu.virtualization == "VGPU" for gpu in facts.smi.gpus)
    return "vgpu" if guest or facts.host.world == "vgpu" else None


_MODULE = frozenset({"secureboot", "kernel", "driver", "nouveau", "gpus", "fabric", "mig", "boot", "reboot"})
# World -> areas and codes of findings that are no faults there: what they look for is somebody else's, or was switched off.
ELSEWHERE: dict[str, frozenset[str]] = {
    "wsl": _MODULE,
    "jetson": _MODULE | {"desktop"},
    "off": frozenset(
        {
            "gpus.missing",
            "gpus.unbound",
            "driver.blacklisted",
            "driver.load_pending",
            "driver.not_loaded",
            "driver.persistence_off",
            "driver.persistenced_fails",
            "driver.smi_fails",
            "nouveau",
        }
    ),
    "operator": frozenset({"driver", "nouveau", "gpus.no_device_nodes"}),
    "container": frozenset(),
    "vgpu": frozenset({"fabric"}),
}


def newest(releases: Iterable[str]) -> list[str]:
    """Releases, the newest first."""
    return sorted(releases, key=deb_version.natural_key, reverse=True)


def driver_origin(case: Case) -> str:
    """How kernel modules get here: "signed" (prebuilt packages), "dkms", "runfile", "none"."""
    driver = installed(case)
    if driver.build:
        return driver.build
    if any(name.startswith("nvidia-headless-no-dkms") for name in driver.packages):
        return "signed"
    origins = {module.origin for module in case.facts.module.on_disk}
    if "dkms" in origins or boot(case).dkms:
        # of a runfile too, where it was told to use DKMS
        return "dkms"
    if case.facts.runfile.uninstaller or case.facts.runfile.traces:
        return "runfile"
    return "signed" if "prebuilt" in origins else "none"


# --- GPUs and the catalog ----------------------------------------------------------------------------------------


def catalog_gpu(case: Case, gpu: Gpu) -> CatalogGpu:
    """What the catalog says of a card; a nameless one where the bus gave no id."""
    try:
        return case.catalog.gpu_by_id(gpu.device, gpu.subsystem)
    except ValueError:
        return CatalogGpu(ids=(), name="GPU")


def title(case: Case, gpu: Gpu) -> str:
    """``Tesla P4 (0000:03:00.0, 10de:1bb3, Pascal)``."""
    found = catalog_gpu(case, gpu)
    words = [gpu.slot, f"10de:{gpu.device}"] + ([found.architecture] if found.architecture else [])
    return f"{found.name or 'GPU'} ({', '.join(words)})"


def driver_now(case: Case) -> tuple[str | None, str | None]:
    """(version, flavour) of the driver that is loaded, else of the module that would be, else of the packages."""
    loaded = case.facts.module.loaded
    if loaded and loaded.version:
        return loaded.version, loaded.flavour
    for kernel in (case.facts.kernels.running, case.facts.kernels.next):
        for module in modules_of(case, kernel) if kernel else ():
            if module.version:
                return module.version, module.flavour
    driver = installed(case)
    return driver.version, driver.flavour


# --- the kernel's log --------------------------------------------------------------------------------------------


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.I)


def log_lines(case: Case, *patterns: str) -> list[str]:
    """Lines of this boot's kernel log that match one of the patterns (without case)."""
    return [line for line in boot(case).log if any(_compiled(pattern).search(line) for pattern in patterns)]


def log_block(case: Case, pattern: str, lines: int = 4) -> list[str]:
    """The lines from a match on: the driver breaks its messages over several."""
    log = boot(case).log
    for number, line in enumerate(log):
        if _compiled(pattern).search(line):
            return log[number : number + lines]
    return []


def slots_in(lines: Sequence[str]) -> set[str]:
    """PCI addresses (without domain) that lines name."""
    found = set()
    for line in lines:
        for match in re.finditer(r"\b(?:[0-9a-f]{4,8}:)?([0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-9a-f])?\b", line, re.I):
            found.add(match.group(1).lower())
    return found


def bare_slot(slot: str) -> str:
    """``1b:00`` of 0000:1b:00.0 and of 00000000:1B:00.0."""
    return ":".join(slot.lower().split(".")[0].split(":")[-2:])


def smi_sees(case: Case, gpu: Gpu) -> bool:
    """nvidia-smi lists this card."""
    wanted = bare_slot(gpu.slot)
    return any(seen.bus_id and bare_slot(seen.bus_id) == wanted for seen in case.facts.smi.gpus)


def smi_works(case: Case) -> bool:
    """nvidia-smi answers and sees every card of this host (in a container: at least one)."""
    smi, count = case.facts.smi, len(own_gpus(case))
    if smi.timed_out or smi.rc != 0 or not smi.gpus:
        return False
    return in_container(case) or len(smi.gpus) >= count


# --- texts -------------------------------------------------------------------------------------------------------


def module_text(module: DiskModule) -> str:
    """``/lib/modules/…/nvidia.ko: 550.107.02 open, signed by …``."""
    sign = f", signed by {module.signer or 'an unknown key'}" if module.signed else ", not signed"
    return f"{module.path}: {module.version or 'no version'} {module.flavour or ''}".rstrip() + sign


def loaded_text(case: Case) -> str:
    loaded = case.facts.module.loaded
    if loaded is None:
        return "no nvidia module is loaded"
    return f"loaded module: {loaded.version} {loaded.flavour or ''}".rstrip()


def library_text(case: Case) -> list[str]:
    return [
        f"{library.path}: {library.version or 'no version in its name'}"
        + (f" (package {library.package})" if library.package else " (of no package)")
        for library in case.facts.libraries
    ]


def package_text(case: Case, wanted: Iterable[str]) -> list[str]:
    """``nvidia-dkms-570 570.133.07-0ubuntu0.22.04.1 (dpkg: iF)``."""
    rows = []
    for name in wanted:
        package = case.facts.packages.get(name)
        if package:
            rows.append(f"{name} {package.version} (dpkg: {package.status})")
    return rows


def present(case: Case, names: Iterable[str]) -> dict[str, Package]:
    """Those of the named packages that are installed."""
    found = ((name, case.facts.packages.get(name)) for name in names)
    return {name: package for name, package in found if package and package.installed}


def user_text(user: GpuUser) -> str:
    """``pid 4711: python3 (alice)``."""
    return f"pid {user.pid}: {user.comm} ({user.user or 'unknown user'})"


def uses_text(module: ModuleRow) -> str:
    """``nvidia_drm is used 4 times, by nvidia_modeset``."""
    return f"{module.name} is used {module.uses} times" + (
        f", by {', '.join(module.holders)}" if module.holders else ""
    )


def some(names: Sequence[str], most: int) -> str:
    """``a, b and 3 more``."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def locked_packages(case: Case) -> dict[str, str]:
    """{name: upstream version} of the installed driver packages that must all be of one version."""
    return {
        name: driver_names.upstream(version)
        for name, version in installed(case).packages.items()
        if version and driver_names.is_version_locked(name)
    }


def counted(things: Sequence[object], noun: str) -> str:
    """``1 GPU``, ``3 GPUs``."""
    return plural(len(things), noun)


def driver_packages(case: Case) -> dict[str, str]:
    """As locked_packages, without fabric manager and its library, which have rules of their own."""
    return {
        name: version
        for name, version in locked_packages(case).items()
        if driver_names.parse(name).base not in driver_names.FABRIC
    }


def sources_read(case: Case) -> list[str]:
    """Everything that decides about the driver, as it was found: what is shown when nothing explains a symptom."""
    facts, diagnostics = case.facts, boot(case)
    rows = [loaded_text(case)]
    for kernel in kernels_that_matter(case):
        found = modules_of(case, kernel)
        which = "runs" if kernel == facts.kernels.running else "boots next"
        rows.append(
            f"kernel {kernel} ({which}): " + (module_text(found[0]) if found else "no nvidia module on the disk")
        )
    rows += library_text(case) or ["no libcuda.so.1 and no libnvidia-ml.so.1 in the loader's folders"]
    driver = installed(case)
    rows.append(
        f"packages: {len(driver.packages)} of the driver, {' and '.join(driver.versions)}"
        if driver.packages
        else "packages: none of the driver"
    )
    rows += [f"dpkg: {problem}" for problem in facts.package_problems[:4]]
    rows += [f"GPU {title(case, gpu)}: bound to {gpu.driver or 'nothing'}" for gpu in facts.gpus] or [
        "no NVIDIA GPU on the bus"
    ]
    secure = {True: "on", False: "off", None: "not known"}[facts.secure_boot.enabled]
    rows.append(f"Secure Boot: {secure}; nouveau {'is' if facts.module.nouveau_loaded else 'is not'} loaded")
    rows.append("device nodes: " + (", ".join(facts.devices[:6]) or "none"))
    if facts.smi.path:
        answer = facts.smi.error or f"exit code {facts.smi.rc}, {len(facts.smi.gpus)} GPUs"
        rows.append(f"{facts.smi.path}: {answer}")
    else:
        rows.append("nvidia-smi: not found")
    if diagnostics.log_from:
        rows.append(f"kernel log ({', '.join(diagnostics.log_from)}): {len(diagnostics.log)} lines about the driver")
        rows += [f"  {line}" for line in diagnostics.log[-5:]]
    else:
        rows.append("kernel log: could not be read")
    rows += [f"failed unit: {unit}" for unit in diagnostics.failed_units or ()]
    return rows
