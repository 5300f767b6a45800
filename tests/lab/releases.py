"""Ubuntu releases of the lab: names, kernels, and which kernels are published later."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """One kernel of the archive: ABI (``6.8.0-45``), package version, metapackage suffix."""

    abi: str
    version: str
    meta: str = "generic"
    # the metapackages of the first day point to it
    current: bool = False
    # comes with publish("kernel")
    published: bool = False

    @property
    def release(self) -> str:
        return self.abi + "-generic"


@dataclass(frozen=True)
class Release:
    """One Ubuntu release as hosts show it and as its archive is laid out."""

    version: str
    codename: str
    name: str
    kernels: tuple[Kernel, ...]

    def kernel(self, release: str) -> Kernel:
        """The kernel of a release string; KeyError names the known ones."""
        for kernel in self.kernels:
            if kernel.release == release:
                return kernel
        known = ", ".join(kernel.release for kernel in self.kernels)
        raise KeyError(f"the lab's archive of {self.version} has no kernel {release}; it has {known}")

    @property
    def default_kernel(self) -> str:
        return next(kernel.release for kernel in self.kernels if kernel.current)


RELEASES = {
    "24.04": Release(
        "24.04",
        "noble",
        "24.04.3 LTS (Noble Numbat)",
        (
            Kernel("6.8.0-44", "6.8.0-44.44"),
            Kernel("6.8.0-45", "6.8.0-45.45", current=True),
            Kernel("6.8.0-48", "6.8.0-48.48", published=True),
            Kernel("6.17.0-14", "6.17.0-14.14~24.04.1", "generic-hwe-24.04", current=True),
            Kernel("6.17.0-19", "6.17.0-19.19~24.04.2", "generic-hwe-24.04", published=True),
        ),
    ),
    "22.04": Release(
        "22.04",
        "jammy",
        "22.04.5 LTS (Jammy Jellyfish)",
        (
            Kernel("5.15.0-118", "5.15.0-118.128"),
            Kernel("5.15.0-119", "5.15.0-119.129", current=True),
            Kernel("5.15.0-122", "5.15.0-122.132", published=True),
            Kernel("6.8.0-45", "6.8.0-45.45~22.04.1", "generic-hwe-22.04", current=True),
            Kernel("6.8.0-48", "6.8.0-48.48~22.04.1", "generic-hwe-22.04", published=True),
        ),
    ),
    "26.04": Release(
        "26.04",
        "resolute",
        "26.04 LTS (Resolute Raccoon)",
        (
            Kernel("7.0.0-12", "7.0.0-12.12"),
            Kernel("7.0.0-14", "7.0.0-14.14", current=True),
            Kernel("7.0.0-15", "7.0.0-15.15", published=True),
        ),
    ),
}
