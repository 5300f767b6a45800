"""Roots with real apt, made new for every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from . import rootfs


@pytest.fixture(scope="session")
def key(tmp_path_factory: pytest.TempPathFactory) -> rootfs.Key:
    return rootfs.Key(tmp_path_factory.mktemp("gpg") / "home", "lab")


@pytest.fixture(scope="session")
def other_key(tmp_path_factory: pytest.TempPathFactory) -> rootfs.Key:
    return rootfs.Key(tmp_path_factory.mktemp("gpg") / "other", "other")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[rootfs.Root]:
    try:
        rootfs.base()
    except rootfs.NoBase as reason:
        pytest.skip(str(reason))
    made = rootfs.Root(tmp_path / "root")
    yield made
    made.close()


@pytest.fixture
def repo(root: rootfs.Root, key: rootfs.Key) -> rootfs.Repo:
    return rootfs.Repo(root, key)
