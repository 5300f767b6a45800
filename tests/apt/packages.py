"""The small driver that these tests install: real names and relations, no content."""

from __future__ import annotations

from .rootfs import Repo

OLD, NEW = "550.163.01-0ubuntu1", "580.126.20-0ubuntu1"
_NAMES = ["nvidia-dkms-{}-open", "nvidia-kernel-common-{}", "nvidia-utils-{}", "libnvidia-compute-{}"]


def driver(repo: Repo, branch: str, version: str, everywhere: dict[str, str] | None = None, **scripts: str) -> None:
    """Add one branch with the archive's relations: equal versions inside, conflicts with every other branch.

    scripts: maintainer scripts of the DKMS package; everywhere: those of all packages.
    """
    same, every = f"(= {version})", everywhere or {}
    repo.add(
        f"libnvidia-compute-{branch}",
        version,
        Provides="libnvidia-compute",
        Conflicts="libnvidia-compute",
        scripts=every,
    )
    repo.add(
        f"nvidia-kernel-common-{branch}",
        version,
        Provides="nvidia-kernel-common",
        Conflicts="nvidia-kernel-common",
        scripts=every,
    )
    repo.add(
        f"nvidia-dkms-{branch}-open",
        version,
        Depends=f"nvidia-kernel-common-{branch} {same}",
        Provides="nvidia-dkms-kernel",
        Conflicts="nvidia-dkms-kernel",
        scripts=every | scripts,
    )
    repo.add(
        f"nvidia-utils-{branch}",
        version,
        Depends=f"libnvidia-compute-{branch} {same}, lab-tool",
        Provides="nvidia-utils",
        Conflicts="nvidia-utils",
        scripts=every,
    )


def names(branch: str) -> list[str]:
    """Names of the packages of a branch, sorted."""
    return sorted(name.format(branch) for name in _NAMES)


def pinned(branch: str, version: str) -> list[str]:
    """What to install for a branch at a version."""
    return [f"{name}={version}" for name in names(branch)]
