"""Roots with real apt, made new for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import packages, rootfs


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rootfs.Key]:
    made = rootfs.Key(tmp_path_factory.mktemp("gpg") / "home", "lab")
    yield made
    made.close()


@pytest.fixture(scope="session")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rootfs.Key]:
    made = rootfs.Key(tmp_path_factory.mktemp("gpg") / "other", "other")
    yield made
    made.close()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The base with our code inside, prepared once."""
    try:
        rootfs.base()
    except rootfs.NoBase as reason:
        pytest.skip(str(reason))
    made = rootfs.Root(tmp_path_factory.mktemp("template") / "root")
    made.unmount()
    yield made.path
    made.close()


@pytest.fixture
def root(template: Path, tmp_path: Path) -> Iterator[rootfs.Root]:
    made = rootfs.Root(tmp_path / "root", template)
    yield made
    made.close()


@pytest.fixture
def repo(root: rootfs.Root, key: rootfs.Key) -> rootfs.Repo:
    return rootfs.Repo(root, key)


@pytest.fixture
def host(root: rootfs.Root, repo: rootfs.Repo) -> rootfs.Root:
    """Branch 550 is installed and held, 580 is offered beside it."""
    repo.add("lab-tool", "1.0")
    packages.driver(repo, "550", packages.OLD)
    packages.driver(repo, "580", packages.NEW)
    repo.publish()
    made = root.module("apt_sources", **repo.spec())
    assert made["changed"], made
    first = root.module(
        "apt_transaction",
        install=packages.pinned("550", packages.OLD),
        family_version="550.163.01",
        update_cache=True,
        reserve_mib=1,
    )
    assert first.get("changed"), first
    return root
