"""What driver a host has now, read from facts: series, version, flavour, build, channel, variant."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.facts import DiskModule, Facts, Gpu, Library

# Kernel drivers that take a GPU away from the nvidia module.
RIVALS = ("nouveau", "nova_core", "nova")
# Kernel drivers that hold a card for a virtual machine: somebody set that up, it never happens by itself.
# vfio-pci, nvgrace-gpu-vfio-pci, xen-pciback, …
_PASSTHROUGH_DRIVERS = ("vfio", "pci-stub", "pciback")
# cuda-repo-ubuntu2404-12-8-local_*.deb and nvidia-driver-local-repo-*.deb lay a whole repository down in /var.
_LOCAL_REPOSITORY = re.compile(r"^(?:file|copy):.*/(?:cuda-repo-|nvidia-driver-local-repo-)")
_CARRIES_FLAVOUR = {
    "nvidia-dkms",
    "nvidia-driver",
    "nvidia-headless",
    "nvidia-headless-no-dkms",
    "nvidia-kernel-source",
    "nvidia-open",
    "linux-modules-nvidia",
    "linux-objects-nvidia",
    "cuda-drivers",
}


@dataclass(frozen=True)
class InstalledDriver:
    """The driver that dpkg knows of; empty fields where there is none or where its packages disagree."""

    # every installed driver package: Debian version
    packages: dict[str, str] = field(default_factory=dict)
    # upstream versions of the version-locked ones, one when whole
    versions: tuple[str, ...] = ()
    all_series: tuple[str, ...] = ()
    flavour: str | None = None
    build: str | None = None
    channel: str | None = None
    variant: str | None = None

    @property
    def version(self) -> str | None:
        """The upstream version, None when there is no driver or its packages are of several versions."""
        return self.versions[0] if len(self.versions) == 1 else None

    @property
    def series(self) -> str | None:
        return self.all_series[0] if len(self.all_series) == 1 else None

    @property
    def branch(self) -> str | None:
        return driver_names.branch(self.version) if self.version else None


def installed_driver(facts: Facts) -> InstalledDriver:
    """Return what the dpkg rows of a host say about its driver."""
    rows = _there(facts)
    parsed = {name: driver_names.parse(name) for name in rows}
    # dpkg that was interrupted while it unpacked a new package leaves a record without a version.
    locked = {name: version for name, version in rows.items() if version and driver_names.is_version_locked(name)}
    if not locked:
        # companions alone (libxnvctrl0, nvidia-prime, …) are no driver
        return InstalledDriver()
    versions = tuple(sorted({driver_names.upstream(version) for version in locked.values()}))
    series = {parsed[name].series or driver_names.branch(version) for name, version in locked.items()}
    carriers = [package for package in parsed.values() if package.base in _CARRIES_FLAVOUR]
    bases = {package.base for package in parsed.values()}
    build = None
    if "linux-modules-nvidia" in bases:
        build = "signed"
    elif "nvidia-dkms" in bases:
        build = "dkms"
    # Fabric manager carries the branch without -server in the archive: it says nothing about the series.
    series -= {s for s in series if s + "-server" in series and _only_fabric(parsed, s)}
    return InstalledDriver(
        packages=rows,
        versions=versions,
        all_series=tuple(sorted(series)),
        flavour=None if not carriers else "open" if _is_open(carriers) else "proprietary",
        build=build,
        channel=channel_of(facts, locked),
        variant="desktop" if bases & driver_names.DESKTOP else "headless",
    )


def _there(facts: Facts) -> dict[str, str]:
    return {
        name: package.version
        for name, package in facts.packages.items()
        if package.there and driver_names.is_driver_package(name)
    }


def driver_packages(facts: Facts) -> dict[str, str]:
    """{name: Debian version} of every installed driver package; companions alone are no driver."""
    found = _there(facts)
    return found if any(driver_names.is_version_locked(name) for name in found) else {}


def unheld(facts: Facts) -> list[str]:
    """Installed driver packages that are not held, sorted; nvidia-prime, Ubuntu's script that chooses a card, is none."""
    return sorted(name for name in driver_packages(facts) if not facts.packages[name].held and name != "nvidia-prime")


def stale_holds(facts: Facts) -> list[str]:
    """Driver packages that are on hold and not installed: they make the next install fail, sorted."""
    return sorted(
        name
        for name, package in facts.packages.items()
        if package.held and not package.there and driver_names.is_driver_package(name)
    )


def is_passthrough(driver: str | None) -> bool:
    """True for a card that is handed to a virtual machine: no driver of this host is to have it."""
    return any(word in (driver or "") for word in _PASSTHROUGH_DRIVERS)


_POWER = "check power, seating and the BIOS; lspci -d 10de: shows what the bus sees"
_LOOK = {
    "wsl": "WSL2 has the card and the driver of Windows: nvidia-smi there and here shows it",
    "jetson": "the GPU of a Jetson is not on the PCI bus; JetPack brings its driver",
}


def where_to_look(facts: Facts) -> str:
    """What to look at where a card is not seen or does not answer: never at cables that this host cannot have."""
    host = facts.host
    if host.world in _LOOK:
        return _LOOK[host.world]
    if host.container:
        return "check the machine of this container, and what it passes in"
    if host.virtual or host.world:
        return (
            "check the virtual machine's definition and its hypervisor's log, then stop the machine and start it again "
            "(a reboot from inside does not give the card back); lspci -d 10de: shows what the bus sees"
        )
    return _POWER


def own_gpus(facts: Facts) -> list[Gpu]:
    """The GPUs that this host's driver is to drive."""
    return [gpu for gpu in facts.gpus if not is_passthrough(gpu.driver)]


def modules_of(facts: Facts, kernel: str) -> list[DiskModule]:
    """The nvidia modules on disk for one kernel, the one that depmod prefers first (updates/ beats kernel/)."""
    found = [module for module in facts.module.on_disk if module.kernel == kernel]
    return sorted(found, key=lambda module: ("/updates/" not in module.path, module.path))


def library_version(facts: Facts) -> str | None:
    """Version of the user-space driver: by libcuda and NVML as the loader finds them, else by package."""
    for library in facts.libraries:
        if library.version:
            return library.version
    packages = driver_packages(facts).items()
    found = [driver_names.upstream(v) for name, v in packages if name.startswith("libnvidia-compute")]
    return found[0] if found else None


def stray_libraries(facts: Facts) -> list[Library]:
    """Libraries that the loader finds in the place of the driver's: a driver's file carries its version in its name.

    Where no library has one (WSL, Jetson), none is a stray.
    """
    strays = [library for library in facts.libraries if not library.version]
    return strays if len(strays) < len(facts.libraries) else []


def strays_text(strays: Sequence[Library]) -> str:
    """What is wrong with such libraries, for verify and diagnose alike."""
    return f"{', '.join(library.path for library in strays)}: not the driver's, and found before it"


def next_boot_problems(facts: Facts, version: str | None = None) -> list[str]:
    """Return what would go wrong if the host booted now, as sentences; empty when the next boot is safe.

    version: upstream version that the module must have, None for that of the installed libraries.
    """
    kernel = facts.kernels.next
    if kernel is None or not facts.kernels.installed:
        return []
    candidates = modules_of(facts, kernel)
    if not candidates:
        have = ", ".join(sorted({module.kernel for module in facts.module.on_disk}))
        others = f" (there is one for {have})" if have else ""
        return [f"kernel {kernel} boots next and has no nvidia module{others}"]
    module, problems = candidates[0], []
    version = version or library_version(facts)
    if version and module.version and module.version != version:
        problems.append(f"kernel {kernel} boots next and its module is {module.version}, the libraries are {version}")
    if facts.secure_boot.enabled:
        if not module.signed:
            problems.append(f"Secure Boot is on and the module of kernel {kernel} is not signed")
        elif module.origin == "dkms" and facts.secure_boot.mok_enrolled is False:
            signer = module.signer or "DKMS's own"
            problems.append(
                f"Secure Boot is on and the key that signed the module of kernel {kernel} ({signer}) is not enrolled"
            )
    return problems


def _is_open(carriers: list[driver_names.DriverPackage]) -> bool:
    return any(package.open or package.base == "nvidia-open" for package in carriers)


def _only_fabric(parsed: dict[str, driver_names.DriverPackage], series: str) -> bool:
    own = {package.base for package in parsed.values() if package.series == series}
    return own <= {"nvidia-fabricmanager", "nvidia-fabricmanager-dev", "libnvidia-nscq", "nvidia-imex"}


def channel_of(facts: Facts, locked: dict[str, str]) -> str | None:
    """Return the channel that installed driver packages came from, by their versions and names.

    Archive: ``-0ubuntu0.24.04.1``, ``-0ubuntu1.24.04.1``, and ``-0ubuntu1``, ``-0ubuntu2``, … in what a release came
    with; PPA: ``-0ubuntu0~gpu24.04.1``; NVIDIA's repository: ``-0ubuntu1`` before 590, ``-1ubuntu1`` and ``-1`` after.
    Where ``-0ubuntu1`` could be both, names tell (only the archive has -server and signed modules), then whether
    NVIDIA's repository is configured here. Source: version strings of all three, 2026.
    """
    if not locked:
        return None
    revisions = {version.rsplit("-", 1)[-1] for version in locked.values()}
    if any("~gpu" in revision for revision in revisions):
        return "ppa"
    driver = [driver_names.parse(name) for name, package in facts.packages.items() if package.there]
    series = {package.series for package in driver if package is not None and package.base == "linux-modules-nvidia"}
    if any(package.server or package.series in series for package in map(driver_names.parse, locked)):
        return "ubuntu"
    if not revisions <= {"0ubuntu1", "1ubuntu1", "1"}:
        return "ubuntu"
    if not any(package.branch for package in map(driver_names.parse, locked)):
        # no branch in any name: NVIDIA's own from 590 on
        return "cuda"
    return "cuda" if nvidia_sources(facts) else "ubuntu"


def nvidia_sources(facts: Facts) -> list[Any]:
    """Enabled apt entries of NVIDIA's driver and CUDA repository: the real one, mirrors, local ones, our own file."""
    own = apt_files.sources_path("cuda")
    return [
        entry
        for entry in facts.apt.sources
        if entry.enabled and "deb" in entry.types and (entry.file == own or any(map(is_cuda_uri, entry.uris)))
    ]


def is_cuda_uri(uri: str) -> bool:
    """True for NVIDIA's CUDA repository, for mirrors that keep its path, and for its local form on a disk."""
    return "/compute/cuda/repos/" in uri or _LOCAL_REPOSITORY.search(uri) is not None


def is_ppa_uri(uri: str) -> bool:
    """True for the graphics-drivers PPA and for mirrors that keep its path."""
    return "/graphics-drivers/ppa/" in uri
