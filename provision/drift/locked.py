"""Packages, kernel, sources and conda of a host against its lock. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, deb_version, driver_names
from provision.catalog import Catalog
from provision.drift.item import Item
from provision.facts import CondaEnvironment, Facts
from provision.lock.hold import hold
from provision.lock.make import locked_environment
from provision.lock.model import HostLock, LockedEnvironment
from provision.planning import PARTS

_OWN_SOURCES = apt_files.sources_path("")[: -len(".sources")]
_BACK = "provision apply brings it back; provision lock --update takes it over"


def against_lock(facts: Facts, values: Mapping[str, Any], lock: HostLock, catalog: Catalog) -> list[Item]:
    """Items of a host that the lock knows, or that is like one of its groups."""
    held = hold(lock, values, facts, list(PARTS))
    items = [
        Item(
            code="lock.contradicts",
            what="the inventory",
            expected="what the lock says",
            found=issue.message,
            against="lock",
            hint=issue.hint,
        )
        for issue in held.issues
    ]
    for part, pins in held.pins.items():
        items += _packages(facts, part, pins)
    if "driver" in held.pins:
        items += _beside(facts, held.pins["driver"])
    if lock.listed:
        items += _loaded(facts, lock)
        items += _kernel(facts, lock)
        items += _sources(facts, lock)
    items += _conda(facts, lock)
    return items


def _version(facts: Facts, name: str) -> str | None:
    package = facts.packages.get(name)
    return package.version if package is not None and package.status[1] not in "nc" else None


def _packages(facts: Facts, part: str, pins: Mapping[str, str]) -> list[Item]:
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
                code=f"packages.{code}",
                what=_several(moved),
                expected=expected,
                found=found,
                against="lock",
                hint=_BACK,
            )
        )
    return items


def _several(moved: list[str]) -> str:
    rest = f" and {len(moved) - 2} more" if len(moved) > 2 else ""
    return ", ".join(sorted(moved)[:2]) + rest


def _beside(facts: Facts, pins: Mapping[str, str]) -> list[Item]:
    """Driver packages that the lock does not have, and that carry the driver's version: somebody added them."""
    extra = sorted(
        name
        for name, row in facts.packages.items()
        if row.installed
        and driver_names.is_version_locked(name)
        and name not in pins
        and not driver_names.parse(name).base.startswith("linux-")
        and cuda_names.parse(name) is None
    )
    return (
        [
            Item(
                code="packages.extra",
                what=_several(extra),
                expected="not installed",
                found=facts.packages[extra[0]].version,
                against="lock",
                hint="provision lock --update takes them over; apt-get remove takes them away",
            )
        ]
        if extra
        else []
    )


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
            hint="wanted: provision lock --update takes it over; else bring the old one back",
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
                hint="wanted: provision apply, then provision lock --update; else boot the locked one and remove the new one",
            )
        )
    for name, version in sorted(locked.packages.items()):
        have = _version(facts, name)
        # A kernel that moved has other modules and metapackages: that is told once.
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
            hint="remove it, or provision lock --update takes it over",
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
            hint=_BACK,
        )
        for path in lock.host.sources
        if path not in now and not _is_ours(path)
    ]
    return items


def _is_ours(path: str) -> bool:
    return path.startswith(_OWN_SOURCES)


def _conda(facts: Facts, lock: HostLock) -> list[Item]:
    prefixes = {prefix.path: prefix for prefix in facts.conda.prefixes}
    environments = {env.path: env for env in facts.conda.environments}
    items = []
    for path, locked in lock.group.conda.items():
        prefix = prefixes.get(path)
        if prefix is None:
            items.append(_conda_item("missing", path, f"{locked.distribution} {locked.version}", "not there"))
            continue
        if (prefix.version or "") != locked.version:
            items.append(_conda_item("version", path, locked.version, prefix.version or "unknown"))
        for env_path, wanted in locked.environments.items():
            items += _environment(environments.get(env_path), env_path, wanted, lock.host.environments.get(env_path))
    return items


def _environment(
    env: CondaEnvironment | None, path: str, wanted: LockedEnvironment, digest: str | None
) -> Iterable[Item]:
    if env is None or env.state != "whole":
        yield _conda_item("missing", path, "an environment", "not there" if env is None else env.state)
        return
    have = locked_environment(env)
    moved = [
        f"{name} {a or 'none'} -> {b or 'none'}"
        for name, a, b in [
            ("python", wanted.python, have.python),
            *_pairs(wanted.packages, have.packages),
            *_pairs(wanted.pip, have.pip),
        ]
        if a != b
    ]
    if moved:
        yield _conda_item("packages", path, "the builds of the lock", "; ".join(moved[:4]))
    elif digest and env.digest and digest != env.digest:
        yield _conda_item(
            "changed", path, "the packages of the lock", "others: something was installed or removed in it"
        )


def _pairs(one: Mapping[str, str], other: Mapping[str, str]) -> list[tuple[str, str | None, str | None]]:
    return [(name, one.get(name), other.get(name)) for name in sorted({*one, *other})]


def _conda_item(code: str, what: str, expected: str, found: str) -> Item:
    return Item(
        code=f"conda.{code}",
        what=what,
        expected=expected,
        found=found,
        against="lock",
        hint="provision lock --update --only conda takes it over; remove the environment and apply to make it anew",
    )
