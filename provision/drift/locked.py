"""Packages, kernel, sources and conda of a host against its lock. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version
from provision.catalog import Catalog
from provision.drift.item import Item
from provision.facts import Facts
from provision.lock.model import HostLock
from provision.lock.pin import pin
from provision.parts.locked import several
from provision.parts.registry import roles

_OWN_SOURCES = apt_files.sources_path("")[: -len(".sources")]
_BACK = "provision apply restores it; provision lock --update moves the group to the newest versions"


def against_lock(facts: Facts, values: Mapping[str, Any], lock: HostLock, catalog: Catalog) -> list[Item]:
    """Items of a host that the lock knows, or that is like one of its groups."""
    pinned = pin(lock, values, facts, roles())
    items = [
        Item(
            code="lock.contradicts",
            what="the inventory",
            expected="what the lock says",
            found=issue.message,
            against="lock",
            hint=issue.hint,
        )
        for issue in pinned.issues
    ]
    for pins in pinned.pins.values():
        items += _packages(facts, pins)
    items += _others(facts, lock, apt=True, parts=pinned.pins)
    if lock.listed:
        items += _loaded(facts, lock)
        items += _kernel(facts, lock)
        items += _sources(facts, lock)
    return items + _others(facts, lock, apt=False)


def _others(facts: Facts, lock: HostLock, *, apt: bool, parts: Collection[str] | None = None) -> list[Item]:
    """What parts find beside the versions of packages. parts: only these."""
    return [
        Item(against="lock", **found._asdict())
        for part, entry in lock.group.entries(apt=apt)
        if parts is None or part.name in parts
        for found in part.differences(facts, entry, lock.host.environments)
    ]


def _version(facts: Facts, name: str) -> str | None:
    package = facts.packages.get(name)
    return package.version if package is not None and package.status[1] not in "nc" else None


def _packages(facts: Facts, pins: Mapping[str, str]) -> list[Item]:
    """One item for all packages that moved from one version to another: a driver is one thing, not nine."""
    moves: dict[tuple[str, str], list[str]] = {}
    for name, version in pins.items():
        have = _version(facts, name)
        if have != version:
            moves.setdefault((version, have or ""), []).append(name)
    items = []
    for (expected, have), moved in sorted(moves.items(), key=lambda one: (-len(one[1]), one[0])):
        if not have:
            code, found = "missing", "not installed"
        else:
            ahead = deb_version.compare(have, expected) > 0
            code, found = ("ahead" if ahead else "behind"), have
        items.append(
            Item(
                code=f"packages.{code}", what=several(moved), expected=expected, found=found, against="lock", hint=_BACK
            )
        )
    return items


def _loaded(facts: Facts, lock: HostLock) -> list[Item]:
    """A driver that is not ours to manage, and that somebody changed."""
    loaded = facts.module.loaded.version if facts.module.loaded else "none"
    if lock.host.driver in (None, loaded):
        return []
    return [
        Item(
            code="packages.loaded",
            what="the loaded driver",
            expected=str(lock.host.driver),
            found=loaded,
            against="lock",
            hint="if intended: provision lock accepts it; else restore the old one",
        )
    ]


def _kernel(facts: Facts, lock: HostLock) -> list[Item]:
    locked, boots = lock.host.kernel, facts.kernels.next or facts.kernels.running
    if locked is None or not boots:
        return []
    items = []
    if boots != locked.release:
        items.append(
            Item(
                code="boot.kernel",
                what="the kernel that boots next",
                expected=locked.release,
                found=boots,
                against="lock",
                hint="if intended: provision apply, then provision lock; else boot the locked one and remove the new one",
            )
        )
    for name, version in sorted(locked.packages.items()):
        have = _version(facts, name)
        # A kernel that moved has other modules and metapackages: that is reported once.
        if have != version and boots == locked.release:
            items.append(
                Item(
                    code="packages.kernel",
                    what=name,
                    expected=version,
                    found=have or "not installed",
                    against="lock",
                    hint=_BACK,
                )
            )
    return items


def _sources(facts: Facts, lock: HostLock) -> list[Item]:
    """Files of sources that came since the lock; those of the lock that are gone. Ours follow the inventory, not the lock."""
    if lock.host.sources is None:
        return []
    now = {source.file: source for source in facts.apt.sources if source.enabled and not _is_ours(source.file)}
    items = [
        Item(
            code="sources.added",
            what=path,
            expected="not there",
            found=", ".join(source.uris[:2]) or "a file of sources",
            against="lock",
            hint="remove it, or provision lock accepts it",
        )
        for path, source in now.items()
        if path not in lock.host.sources
    ]
    items += [
        Item(
            code="sources.gone",
            what=path,
            expected="a file of apt's sources",
            found="not there, or switched off",
            against="lock",
            hint="put it back, or provision lock accepts it",
        )
        for path in lock.host.sources
        if path not in now and not _is_ours(path)
    ]
    return items


def _is_ours(path: str) -> bool:
    return path.startswith(_OWN_SOURCES)
