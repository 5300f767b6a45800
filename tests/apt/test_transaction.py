"""apt_transaction with real apt and dpkg."""

from __future__ import annotations

import pytest

from .rootfs import Repo, Root

pytestmark = pytest.mark.rootfs
OLD, NEW = "550.163.01-0ubuntu1", "580.126.20-0ubuntu1"


def driver(repo: Repo, branch: str, version: str, **scripts: str) -> None:
    """A small driver of one branch with the archive's relations: equal versions, and a conflict over the name."""
    same = f"(= {version})"
    repo.add(f"libnvidia-compute-{branch}", version, Provides="libnvidia-compute", Conflicts="libnvidia-compute")
    repo.add(f"nvidia-kernel-common-{branch}", version, Provides="nvidia-kernel-common", Conflicts="nvidia-kernel-common")
    repo.add(
        f"nvidia-dkms-{branch}-open", version, Depends=f"nvidia-kernel-common-{branch} {same}",
        Provides="nvidia-dkms-kernel", Conflicts="nvidia-dkms-kernel", scripts=dict(scripts),
    )  # fmt: skip
    repo.add(
        f"nvidia-utils-{branch}", version, Depends=f"libnvidia-compute-{branch} {same}, lab-tool",
        Provides="nvidia-utils", Conflicts="nvidia-utils",
    )  # fmt: skip


NAMES = ["nvidia-dkms-{}-open", "nvidia-kernel-common-{}", "nvidia-utils-{}", "libnvidia-compute-{}"]


def names(branch: str) -> list[str]:
    return sorted(name.format(branch) for name in NAMES)


def pinned(branch: str, version: str) -> list[str]:
    return [f"{name}={version}" for name in names(branch)]


@pytest.fixture
def host(root: Root, repo: Repo) -> Root:
    """Branch 550 is installed and held, 580 is offered beside it."""
    repo.add("lab-tool", "1.0")
    driver(repo, "550", OLD)
    driver(repo, "580", NEW)
    repo.publish()
    made = root.module("apt_sources", **repo.spec())
    assert made["changed"], made
    first = root.module("apt_transaction", install=pinned("550", OLD), family_version="550.163.01", update_cache=True, reserve_mib=1)
    assert first.get("changed"), first
    return root


def test_branch_switch_in_one_transaction(host: Root) -> None:
    assert {name: host.selections()[name] for name in names("550")} == dict.fromkeys(names("550"), f"hi {OLD}")
    result = host.module(
        "apt_transaction", install=pinned("580", NEW), remove=names("550"), family_version="580.126.20", reserve_mib=1
    )
    assert result.get("changed"), result
    assert result["held"] == names("580")
    assert result["unheld"] == names("550")
    now = host.selections()
    assert {name: now[name] for name in names("580")} == dict.fromkeys(names("580"), f"hi {NEW}")
    assert now["lab-tool"] == "ii 1.0"
    assert not any(name in now and now[name][1] == "i" for name in names("550"))
    log = host.read(result["log"])
    assert log.count("Setting up nvidia-dkms-580-open") == 1
