"""What driver a host has now, read from facts: series, version, flavour, build, channel, variant."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils import names
from provision.facts import Facts

_CARRIES_FLAVOUR = {
    "nvidia-dkms", "nvidia-driver", "nvidia-headless", "nvidia-headless-no-dkms", "nvidia-kernel-source", "nvidia-open",
    "linux-modules-nvidia", "linux-objects-nvidia", "cuda-drivers",
}  # fmt: skip


@dataclass(frozen=True)
class InstalledDriver:
    """The driver that dpkg knows of; empty fields where there is none or where its packages disagree."""

    packages: dict[str, str] = field(default_factory=dict)  # every installed driver package: Debian version
    versions: tuple[str, ...] = ()  # upstream versions of the version-locked ones, one when whole
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
        return names.branch(self.version) if self.version else None


def installed_driver(facts: Facts) -> InstalledDriver:
    """Return what the dpkg rows of a host say about its driver."""
    rows = {
        name: package.version
        for name, package in facts.packages.items()
        if package.status[1] not in "nc" and names.is_driver_package(name)
    }
    parsed = {name: names.parse(name) for name in rows}
    locked = {name: version for name, version in rows.items() if names.is_version_locked(name)}
    if not locked:
        return InstalledDriver()  # companions alone (libxnvctrl0, nvidia-prime, …) are no driver
    versions = tuple(sorted({names.upstream(version) for version in locked.values()}))
    series = {parsed[name].series or names.branch(version) for name, version in locked.items()}
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
        variant=None if not locked else "desktop" if _has_desktop_parts(bases) else "headless",
    )


def _is_open(carriers: list[names.DriverPackage]) -> bool:
    return any(package.open or package.base == "nvidia-open" for package in carriers)


def _only_fabric(parsed: dict[str, names.DriverPackage], series: str) -> bool:
    own = {package.base for package in parsed.values() if package.series == series}
    return own <= {"nvidia-fabricmanager", "nvidia-fabricmanager-dev", "libnvidia-nscq", "nvidia-imex"}


def _has_desktop_parts(bases: set[str]) -> bool:
    return bool(
        bases & {"nvidia-driver", "libnvidia-gl", "xserver-xorg-video-nvidia", "nvidia-open", "cuda-drivers"}
    )


def channel_of(facts: Facts, locked: dict[str, str]) -> str | None:
    """Return the channel that installed driver packages came from, by the revision of their versions.

    Archive: ``-0ubuntu0.24.04.1`` and ``-0ubuntu1.24.04.1``; PPA: ``-0ubuntu0~gpu24.04.1``; NVIDIA's repository:
    ``-0ubuntu1``, ``-1ubuntu1`` and ``-1``. The archive's development releases use ``-0ubuntu1`` too, so without a
    source of NVIDIA on the host that revision means the archive. Source: version strings of both, 2026.
    """
    if not locked:
        return None
    revision = next(iter(locked.values())).rsplit("-", 1)[-1]
    if "~gpu" in revision:
        return "ppa"
    if re.fullmatch(r"\d+ubuntu\d+\.\d\d\.\d\d(\.\d+)?|0ubuntu\d+\.\d+(\.\d+)*", revision):
        return "ubuntu"
    return (
        "cuda" if any(is_cuda_uri(uri) for source in facts.apt.sources for uri in source.uris) else "ubuntu"
    )


def is_cuda_uri(uri: str) -> bool:
    """True for NVIDIA's CUDA repository and for mirrors that keep its path."""
    return "/compute/cuda/repos/" in uri


def is_ppa_uri(uri: str) -> bool:
    """True for the graphics-drivers PPA and for mirrors that keep its path."""
    return "/graphics-drivers/ppa/" in uri
