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
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rootfs.Root]:
    """The base with our code inside, prepared once."""
    try:
        rootfs.base()
    except rootfs.NoBase as reason:
        pytest.skip(str(reason))
    made = rootfs.Root(tmp_path_factory.mktemp("template") / "root")
    made.unmount()
    yield made
    made.close()


@pytest.fixture(scope="module")
def installed(
    template: rootfs.Root, key: rootfs.Key, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[rootfs.Root, rootfs.Repo]]:
    """Branch 550 is installed and held, 580 is offered beside it: once a file, and every ``host`` is a layer over it."""
    made = rootfs.Root(tmp_path_factory.mktemp("installed") / "root", template)
    repo = rootfs.Repo(made, key)
    repo.add("lab-tool", "1.0")
    packages.driver(repo, "550", packages.OLD)
    packages.driver(repo, "580", packages.NEW)
    repo.publish()
    sources = made.module("apt_sources", **repo.spec())
    assert sources["changed"], sources
    first = made.module(
        "apt_transaction",
        install=packages.pinned("550", packages.OLD),
        family_version="550.163.01",
        update_cache=True,
        reserve_mib=1,
    )
    assert first.get("changed"), first
    made.unmount()
    yield made, repo
    made.close()


@pytest.fixture
def root(request: pytest.FixtureRequest, template: rootfs.Root, tmp_path: Path) -> Iterator[rootfs.Root]:
    """A host without a driver; of a test that also asks for ``host``, that host."""
    below = request.getfixturevalue("installed")[0] if "host" in request.fixturenames else template
    made = rootfs.Root(tmp_path / "root", below)
    yield made
    made.close()


@pytest.fixture
def repo(request: pytest.FixtureRequest, root: rootfs.Root, key: rootfs.Key) -> rootfs.Repo:
    made = rootfs.Repo(root, key)
    if "host" in request.fixturenames:
        made.stanzas += request.getfixturevalue("installed")[1].stanzas
    return made


@pytest.fixture
def host(root: rootfs.Root) -> rootfs.Root:
    """Branch 550 is installed and held, 580 is offered beside it."""
    return root
