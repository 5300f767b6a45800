"""What changes from one lock to the next: old -> new and why, group by group. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from pydantic import BaseModel

from provision.lib.text import natural
from provision.lock.model import Lock, LockedGroup, LockedHost
from provision.parts.registry import in_locks


class Change(BaseModel):
    """One thing of a lock that changes. old, new: None where it was not or will not be there; packages: names that move."""

    group: str
    # driver, cuda, containers, conda, hosts
    part: str
    what: str
    old: str | None = None
    new: str | None = None
    because: str = ""
    packages: list[str] = []


def changes(old: Lock | None, new: Lock, because: Mapping[str, Mapping[str, str]] | None = None) -> list[Change]:
    """Every change from old to new. because: host -> what ("version", "CUDA 12.8", …) -> why, as plans say it."""
    before = old or Lock()
    found: list[Change] = []
    for name in sorted({*before.groups, *new.groups}, key=natural):
        one, other = before.groups.get(name), new.groups.get(name)
        reasons = _reasons(new, name, because or {})
        if one is None or other is None:
            there = ", ".join((new if other else before).members(name))
            found.append(
                Change(
                    group=name, part="hosts", what="group", new=there if other else None, old=None if other else there
                )
            )
        origin = one or before.groups.get(_origin(before, new, name))
        if origin is None or other is None:
            continue
        found += _of_group(name, origin, other, reasons)
    return found + _of_hosts(before, new, {change.group for change in found if change.what == "driver"})


def _origin(before: Lock, new: Lock, group: str) -> str:
    """The group that most hosts of a new one were in; empty where there is none."""
    were = Counter(before.hosts[name].group for name in new.members(group) if name in before.hosts)
    return next((name for name, _ in were.most_common(1)), "")


def _reasons(lock: Lock, group: str, because: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    members = [name for name in lock.members(group) if name in because]
    return dict(because[members[0]]) if members else {}


def _of_group(name: str, one: LockedGroup, other: LockedGroup, because: Mapping[str, str]) -> list[Change]:
    found = [
        Change(
            group=name,
            part=part.name,
            what=line.what,
            old=line.old,
            new=line.new,
            because=next((because[key] for key in line.reason if because.get(key)), ""),
        )
        for part in in_locks()
        for line in part.headlines(getattr(one, part.name, None), getattr(other, part.name, None))
        if line.old != line.new
    ]
    return [*found, *_packages(name, one, other), *_others(name, one, other)]


def _packages(name: str, one: LockedGroup, other: LockedGroup) -> list[Change]:
    """Packages that move, by part and by the pair of versions: one line for all that go from one version to another."""
    found: list[Change] = []
    before, after = one.by_part, other.by_part
    for part in (part.name for part in in_locks() if part.apt):
        a, b = before.get(part, {}), after.get(part, {})
        moves: dict[tuple[str | None, str | None], list[str]] = {}
        for package in sorted({*a, *b}, key=natural):
            if a.get(package) != b.get(package):
                moves.setdefault((a.get(package), b.get(package)), []).append(package)
        for (old, new), packages in moves.items():
            found.append(Change(group=name, part=part, what="packages", old=old, new=new, packages=packages))
    return found


def _others(name: str, one: LockedGroup, other: LockedGroup) -> list[Change]:
    """What parts have that comes by no package of apt's."""
    found = []
    for part in (part for part in in_locks() if not part.apt):
        a, b = (
            {k: v for p, entry in group.entries() if p is part for k, v in p.flat(entry).items()}
            for group in (one, other)
        )
        found += [
            Change(group=name, part=part.name, what=key, old=a.get(key), new=b.get(key))
            for key in sorted({*a, *b}, key=natural)
            if a.get(key) != b.get(key)
        ]
    return found


def _of_hosts(before: Lock, new: Lock, moved: set[str]) -> list[Change]:
    """What changes for single hosts. moved: groups whose driver changes, and with it the modules of every kernel."""
    found = []
    for name in sorted({*before.hosts, *new.hosts}, key=natural):
        one, other = before.hosts.get(name), new.hosts.get(name)
        group = (other or one or LockedHost(group="")).group
        for what, old, now in (
            ("group", one.group if one else None, other.group if other else None),
            ("kernel", _kernel(one), _kernel(other)),
            ("cards", _cards(one), _cards(other)),
            ("memory", _memory(one), _memory(other)),
        ):
            if what == "group" and now not in before.groups:
                # reported with the group
                continue
            if old != now and one is not None and other is not None:
                found.append(Change(group=group, part="hosts", what=f"{name} {what}", old=old, new=now))
        if one and other and _kernel(one) == _kernel(other) and group not in moved:
            found += _kernel_packages(name, group, one, other)
        if (one is None) != (other is None) and group in before.groups and group in new.groups:
            there = f"{name} in it"
            found.append(
                Change(group=group, part="hosts", what=name, old=there if one else None, new=there if other else None)
            )
    return found


def _kernel_packages(name: str, group: str, one: LockedHost, other: LockedHost) -> list[Change]:
    a, b = (host.kernel.packages if host.kernel else {} for host in (one, other))
    return [
        Change(group=group, part="hosts", what=f"{name} {package}", old=a.get(package), new=b.get(package))
        for package in sorted({*a, *b}, key=natural)
        if a.get(package) != b.get(package)
    ]


def _kernel(host: LockedHost | None) -> str | None:
    return host.kernel.release if host and host.kernel else None


def _memory(host: LockedHost | None) -> str | None:
    return f"{host.memory} GiB" if host and host.memory else None


def _cards(host: LockedHost | None) -> str | None:
    if host is None:
        return None
    return ", ".join(f"{gpu.slot} {gpu.name}" for gpu in host.gpus) or None
