"""Keeping the plan of a host to the lock: which variables become exact, which contradict it, which packages are pinned.

Pure but for ``find``, which reads the file. What a lock holds are versions; what is wanted at all stays the inventory's
word. A kernel is never moved by a plan, so what the lock says of kernels is for drift alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version
from ansible_collections.gpu.provision.plugins.plugin_utils import lockfile
from provision.errors import Issue
from provision.facts import Facts
from provision.lock.model import VARIABLE, HostLock, Lock, LockedHost, LockError, load
from provision.parts.candidates import Candidates
from provision.parts.desired import Desired
from provision.parts.registry import by_name, in_locks

_MOVE_ON = "provision lock --update accepts what the inventory asks for; --no-lock plans without the lock"


# --- which lock ---------------------------------------------------------------------------------------------------------


def path_of(values: Mapping[str, Any]) -> Path | None:
    """The lock's file: the one that is named, else the inventory's own; None where there is none.

    values: with ``inventory_dir``, and ``inventory_source`` as ``lockfile.source_of`` returns it. A file that is named and
    missing is returned anyway: reading it says what is wrong.
    """
    named = str(values.get(VARIABLE) or "").strip()
    if named == "none":
        return None
    if named:
        return Path(str(values.get("inventory_dir") or "."), named).expanduser()
    source = values.get("inventory_source")
    return lockfile.find(source) if source else None


def place(values: Mapping[str, Any]) -> Path:
    """The lock of an inventory: where it is, else where a new one belongs: not where another inventory's is."""
    found, places = path_of({**values, VARIABLE: ""}), lockfile.places(values["inventory_source"])
    return found or next((path for path in places if not path.is_file()), places[0])


def read(path: Path, values: Mapping[str, Any]) -> Lock:
    """Read a lock of the inventory of these values. Raises LockError, also for the lock of another inventory."""
    stat = path.stat() if path.is_file() else None
    lock = _loaded(path, stat and (stat.st_mtime_ns, stat.st_size))
    source = values.get("inventory_source")
    if lock.inventory and source and not lockfile.is_for(path, lock.inventory, source):
        other = lock.inventory if "," in lock.inventory else (path.parent / lock.inventory).resolve()
        raise LockError(
            [
                Issue(
                    code="lock.other_inventory",
                    message=f"{path} is the lock of another inventory",
                    because=[f"it was written for {other}", f"this inventory is {source}"],
                    hint=f"if the inventory was renamed, write inventory: {lockfile.relative(path, source)} into the lock; "
                    "else leave --lock out, or plan with --no-lock",
                )
            ]
        )
    return lock


def find(values: Mapping[str, Any]) -> tuple[Lock, str] | None:
    """The lock for hosts with these values and its path. Raises LockError for a file that cannot be used."""
    path = path_of(values)
    if path is None:
        return None
    return read(path, values), str(path)


@lru_cache(maxsize=4)
def _loaded(path: Path, _state: tuple[int, int] | None) -> Lock:
    """Read once for a whole fleet; again after a change."""
    return load(path)


def lock_of(name: str, facts: Facts, values: Mapping[str, Any]) -> tuple[HostLock | None, Issue | None]:
    """The lock of a host: by its name, else by the one group that is like it; or why there is none (a warning)."""
    found = find(values)
    if found is None:
        return None, None
    lock, path = found
    listed = lock.for_host(name, path)
    if listed:
        return listed, None
    like = alike(lock, facts)
    if len(like) == 1:
        return HostLock(name, like[0], lock.groups[like[0]], LockedHost(group=like[0]), False, path), None
    hint = "provision lock adds it once it is verified"
    if like:
        hint = f"say which one: add {name}: {{group: {like[0]}}} under hosts in {path}"
    because = [f"groups like it: {', '.join(like)}"] if like else ["no group in it is of this Ubuntu and these cards"]
    return None, Issue(
        code="lock.not_listed",
        host=name,
        message=f"{name} is not in the lock, and its versions are not held",
        because=because,
        hint=hint,
    )


def alike(lock: Lock, facts: Facts) -> list[str]:
    """Groups for a host that the file does not name: of its Ubuntu and architecture, with hosts that have its cards."""
    cards = {gpu.device for gpu in facts.gpus}
    fitting = []
    for name, group in lock.groups.items():
        if (group.ubuntu, group.arch) != (facts.host.os.version_id, facts.host.arch):
            continue
        known = {gpu.device for member in lock.members(name) for gpu in lock.hosts[member].gpus}
        if bool(group.driver) == bool(cards) and cards <= known:
            fitting.append(name)
    return fitting


# --- what it makes of the variables --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pinned:
    """A host pinned by its lock. values: role variables with exact versions; issues: variables that contradict the lock.

    pins: part -> {package: Debian version}, of the parts that are planned for and wanted.
    """

    lock: HostLock
    values: dict[str, Any]
    issues: list[Issue] = field(default_factory=list)
    pins: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """As reasons name it."""
        return f"{self.lock.path}, group {self.lock.group_name}"

    @property
    def everything(self) -> dict[str, str]:
        """All pins, with the signed modules of kernels that the lock knows."""
        kernel = self.lock.host.kernel
        own = {n: v for n, v in (kernel.packages if kernel else {}).items() if kernel and n.endswith(kernel.release)}
        found = dict(own) if "driver" in self.pins else {}
        for part in self.pins.values():
            found.update(part)
        return found

    def channel(self, part: str) -> str:
        """The channel that a part's packages come from, as planning calls it."""
        return by_name(part).channel_of(getattr(self.lock.group, part))

    def missing(self, facts: Facts, part: str) -> dict[str, str]:
        """Pins of a part that the host does not have at that version."""
        return {name: v for name, v in self.pins.get(part, {}).items() if _version(facts, name) != v}


def pin(host: HostLock, values: Mapping[str, Any], facts: Facts, parts: Collection[str]) -> Pinned:
    """Make the variables of a host exact by its lock, for the parts that are planned for."""
    group, found, issues = host.group, dict(values), []
    pins: dict[str, dict[str, str]] = {}
    where = f"{host.path}, group {host.group_name}"
    if (group.ubuntu, group.arch) != (facts.host.os.version_id, facts.host.arch):
        issues.append(
            _issue(
                host,
                "lock.other_system",
                f"the lock is for Ubuntu {group.ubuntu} {group.arch}, the host is "
                f"Ubuntu {facts.host.os.version_id} {facts.host.arch}",
                where,
            )
        )
        return Pinned(host, found, issues, pins)
    desired = Desired(values)
    for part in in_locks():
        if part.name not in parts or not part.apt or not part.is_asked(desired, facts):
            continue
        locked, against = getattr(group, part.name, None), list[str]()
        if values.get(f"{part.role}_update"):
            against.append(f"{part.role}_update asks for newer versions, the lock for its own")
        elif locked is None:
            against.append(f"the inventory asks for {part.one}, the lock has none")
        else:
            exact, against = part.exact(locked, desired)
            found.update(exact)
            pins[part.name] = part.pins(locked, Desired(found))
        issues += [_issue(host, "lock.contradicts", message, where) for message in against]
    return Pinned(host, found, issues, pins)


def _issue(host: HostLock, code: str, message: str, where: str) -> Issue:
    return Issue(code=code, host=host.name, message=message, because=[f"locked in {where}"], hint=_MOVE_ON)


# --- what it makes of candidates and decisions --------------------------------------------------------------------------


def restrict(available: Candidates, pins: Mapping[str, str]) -> Candidates:
    """What apt has, of pinned packages in the locked version alone; untouched where that is not among it."""
    packages = {}
    for name, candidates in available.packages.items():
        only = [candidate for candidate in candidates if candidate.version == pins.get(name)]
        packages[name] = only or candidates
    return replace(available, packages=packages)


def not_available(
    pinned: Pinned, facts: Facts, part: str, available: Mapping[str, Collection[str]], errors: Collection[str]
) -> Issue | None:
    """The blocker of a part of which locked versions are gone from the repositories. available: package -> versions."""
    gone = {
        name: version
        for name, version in pinned.missing(facts, part).items()
        if version not in available.get(name.split(":")[0], ())
    }
    if not gone:
        return None
    lines = [
        f"{name} {version}: {_nearest(available.get(name.split(':')[0], ()), version)}"
        for name, version in sorted(gone.items())
    ]
    more = [f"and {len(lines) - 6} more"] if len(lines) > 6 else []
    one = "1 locked version" if len(gone) == 1 else f"{len(gone)} locked versions"
    return Issue(
        code="lock.not_offered",
        host=pinned.lock.name,
        message=f"the repositories of this host no longer have {one}",
        because=[*list(errors)[:3], f"locked in {pinned.where}", *lines[:6], *more],
        hint="provision lock --update updates the lock; provision mirror keeps what a lock needs, for good",
    )


def _nearest(there: Collection[str], version: str) -> str:
    """The nearest versions that are available, the newer one and the older one."""
    if not there:
        return "none is available"
    ordered = sorted(there, key=deb_version.key)
    older = [one for one in ordered if deb_version.compare(one, version) < 0][-1:]
    newer = [one for one in ordered if deb_version.compare(one, version) > 0][:1]
    return f"the nearest is {' and '.join([*newer, *older])}"


def _version(facts: Facts, name: str) -> str | None:
    package = facts.packages.get(name)
    return package.version if package is not None and package.installed else None
