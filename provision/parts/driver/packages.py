"""Which packages make a driver: modules, headers, fabric manager, and what goes along with them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.errors import Issue
from provision.facts import Facts
from provision.parts.candidates import Candidates, closure, relations
from provision.parts.decision import CHANNELS, DriverConfig, kernel_flavours
from provision.parts.driver.installed import InstalledDriver

_CARRIERS = ("nvidia-driver", "nvidia-headless", "nvidia-headless-no-dkms", "nvidia-kernel-source")


@dataclass
class Choice:
    """One version that could be taken: fabric manager for it, how its modules come, packages for them."""

    version: str
    fabric: dict[str, str] = field(default_factory=dict)
    build: str = ""
    modules: dict[str, str] = field(default_factory=dict)


class DriverPackages:
    """Chooses packages for one host."""

    def __init__(self, config: DriverConfig, facts: Facts, installed: InstalledDriver) -> None:
        self.config, self.facts, self.installed = config, facts, installed

    def of(self, channel: str, available: Candidates, series: str, flavour: str, choice: Choice) -> dict[str, str]:
        """Exact Debian versions of what apt is asked for, for one version of a series."""
        variant, version = self.variant(), choice.version
        top = driver_names.top_packages(channel, series, flavour, choice.build, variant) + [
            driver_names.module_package(channel, series, flavour)
        ] * (choice.build == "dkms")
        skip = frozenset({"nvidia-dkms"}) if choice.build == "signed" else frozenset()
        packages = closure(top, available, version, skip) | choice.fabric | choice.modules
        return packages | self.carried_along(channel, available, series, version, variant, packages)

    def carried_along(
        self, channel: str, available: Candidates, series: str, version: str, variant: str, chosen: dict[str, str]
    ) -> dict[str, str]:
        """Libraries and tools that are installed beyond what is asked for (video, GL, 32-bit, …) in the new version.

        Left where they are they would not fit the driver any more; removed they would be missed.
        """
        found = {}
        for name in self.installed.packages:
            package = driver_names.parse(name)
            desktop = package.base == "xserver-xorg-video-nvidia" and variant == "headless"
            if not driver_names.is_carried_along(package) or desktop:
                continue
            architecture = "".join(name.partition(":")[1:])
            for new in driver_names.in_series(package.base, channel, series):
                candidate = available.at(new, version)
                if candidate is not None and new + architecture not in chosen:
                    found[new + architecture] = candidate.version
                    if not architecture:
                        found.update(closure([new], available, version, frozenset({"nvidia-dkms", *_CARRIERS})))
                if candidate is not None:
                    break
        return {name: version for name, version in found.items() if name not in chosen}

    def variant(self) -> str:
        if self.config.variant != "auto":
            return self.config.variant
        return self.installed.variant or ("desktop" if self.facts.desktop else "headless")

    def build(self, choice: Choice, channel: str, available: Candidates, series: str, flavour: str) -> Issue | None:
        """Set how the modules of a version come to the host, and the packages for it; or say why they cannot."""
        config = self.config.build
        signed = self._signed_packages(available, series, flavour, choice.version) if channel == "ubuntu" else None
        have = self.installed
        stays = config == "auto" and have.build == "dkms" and have.branch == series.split("-")[0]
        unsigned = self._why_no_dkms(channel, available, series, choice.version)
        if signed and config != "dkms" and not (stays and unsigned is None):
            choice.build, choice.modules = "signed", signed
            return None
        if config == "signed":
            return Issue(
                code="driver.no_signed_modules",
                message="signed modules are asked for and not offered",
                because=[
                    f"{CHANNELS[channel]} has none of {series} {choice.version} for every kernel that matters here"
                ],
                hint="",
            )
        if unsigned is None:
            choice.build, choice.modules = "dkms", self._headers(available)
        return unsigned

    def _why_no_dkms(self, channel: str, available: Candidates, series: str, version: str) -> Issue | None:
        """Why modules that DKMS builds on this host would not be there, or would not be loaded, after the next boot."""
        secure = self.facts.secure_boot
        if secure.enabled and not secure.mok_enrolled:
            make = "" if secure.mok_key else "update-secureboot-policy --new-key, "
            enroll = (
                f"enroll a key at the console ({make}mokutil --import /var/lib/shim-signed/mok/MOK.der, reboot, "
                "confirm), or switch Secure Boot off"
            )
            return Issue(
                code="driver.secure_boot_unsigned",
                message="Secure Boot is on and these modules would not be signed by an enrolled key",
                because=[
                    f"{series} {version} from {CHANNELS[channel]} is built by DKMS on the host",
                    "no Machine Owner Key of this host is enrolled",
                ],
                hint=enroll,
            )
        kernels = self.facts.kernels
        boots = kernels.next or kernels.running
        kernel = next((kernel for kernel in kernels.installed if kernel.release == boots), None)
        if not boots or (kernel and kernel.headers) or available.versions(f"linux-headers-{boots}"):
            return None
        return Issue(
            code="driver.no_headers",
            message=f"no modules can be built for kernel {boots}, which boots next",
            because=[f"linux-headers-{boots} is neither installed nor in any repository of this host"],
            hint="have a kernel boot that the repositories still carry, or install the headers of this one",
        )

    def _headers(self, available: Candidates) -> dict[str, str]:
        """Headers for DKMS: of the running and the next kernel, and the metapackages that bring those of later ones."""
        headers = {}
        for kernel in self.kernels_that_matter():
            candidates = available.versions(f"linux-headers-{kernel.release}")
            if candidates and not kernel.headers:
                headers[candidates[0].name] = candidates[0].version
        for flavour_name in kernel_flavours(self.facts):
            candidates = available.versions(f"linux-headers-{flavour_name}")
            if candidates and not self.has(f"linux-headers-{flavour_name}"):
                headers[candidates[0].name] = candidates[0].version
        return headers

    def _signed_packages(self, available: Candidates, series: str, flavour: str, version: str) -> dict[str, str] | None:
        """Signed modules for every kernel that matters, or None where one has none at that driver version."""
        packages: dict[str, str] = {}
        for kernel in self.kernels_that_matter():
            name = driver_names.prebuilt_modules(series, flavour, kernel.release)
            candidate = next((c for c in available.versions(name) if _fits_driver(c.depends, version)), None)
            if candidate is None:
                return None
            packages[name] = candidate.version
            for group in relations(candidate.depends):
                for relation in group:
                    part = driver_names.parse(relation.name)
                    if part and part.base.startswith("linux-") and relation.op == "=" and relation.version:
                        packages[relation.name] = relation.version
        stands_in = False
        for flavour_name in kernel_flavours(self.facts):
            # The metapackage leads to the archive's newest kernel: only where that kernel is here already, since a new
            # kernel is nothing that a driver plan may bring along.
            name = driver_names.prebuilt_modules(series, flavour, flavour_name)
            here = {
                driver_names.prebuilt_modules(series, flavour, kernel.release)
                for kernel in self.facts.kernels.installed
            }
            candidate = next(
                (
                    c
                    for c in available.versions(name)
                    if _fits_driver(c.depends, version) and _leads_to(c.depends) <= here
                ),
                None,
            )
            if candidate is not None:
                packages[name] = candidate.version
                stands_in = True
        # The full driver asks for the DKMS package, in whose place only the metapackage of the modules can stand.
        if self.variant() == "desktop" and not stands_in:
            return None
        return packages or None

    def kernels_that_matter(self) -> list[Any]:
        kernels = self.facts.kernels
        wanted = {kernels.running, kernels.next}
        return [kernel for kernel in kernels.installed if kernel.release in wanted]

    def fabric_packages(self, channel: str, available: Candidates, series: str, version: str) -> dict[str, str]:
        """Fabric manager and its query library at exactly that version; empty where there is none for that series."""
        for manager, query in driver_names.fabric_packages(channel, series.split("-")[0]):
            candidate = available.at(manager, version)
            if candidate is None:
                continue
            # The archive's one is built for one series: it depends on nvidia-kernel-common-580-server-<exact version>.
            other = {
                package.series
                for group in relations(candidate.depends)
                for relation in group
                if (package := driver_names.parse(relation.name))
                and package.base == "nvidia-kernel-common"
                and package.series
            }
            if other and series not in other:
                continue
            packages = {manager: candidate.version}
            library = available.at(query, version)
            if library is not None:
                packages[query] = library.version
            return packages
        return {}

    def has(self, name: str) -> bool:
        package = self.facts.packages.get(name)
        return package is not None and package.installed


def _fits_driver(depends: str, version: str) -> bool:
    """A signed module package names the driver it was built with: nvidia-kernel-common-580 (>= VER)."""
    bounds = [
        relation.version
        for group in relations(depends)
        for relation in group
        if relation.name.startswith("nvidia-kernel-common-") and relation.op == ">=" and relation.version
    ]
    return all(driver_names.upstream(bound + "-0") == version or bound == version for bound in bounds)


def _leads_to(depends: str) -> set[str]:
    """The per-kernel module packages that a module metapackage depends on."""
    return {
        relation.name
        for group in relations(depends)
        for relation in group
        if (package := driver_names.parse(relation.name)) and package.base == "linux-modules-nvidia"
    }
