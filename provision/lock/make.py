"""A lock from hosts: what each has, which are of one kind, and which of a kind are not alike.

Pure. Hosts are of one kind by what a person would choose (Ubuntu, channel, series, flavour, build, toolkits, …); within a
kind every version must be equal, and a host that differs is named, never averaged away.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names, openpgp
from provision.catalog import Catalog
from provision.errors import Issue, ProvisionError
from provision.facts import Facts, Gpu
from provision.lib.text import natural
from provision.lock.model import Lock, LockedGpu, LockedGroup, LockedHost, LockedKernel, LockedRepository
from provision.parts.base import Host
from provision.parts.decision import kernel_flavours
from provision.parts.desired import Desired
from provision.parts.registry import decide, in_locks

Kind = tuple[Any, ...]
# The catalog's repositories that a lock names.
REPOSITORIES = ("cuda", "ppa", "container_toolkit")


@dataclass(frozen=True)
class Seen:
    """A host as it was read, or as it will be. more: packages that belong to its toolkits beyond what is known by Depends."""

    name: str
    facts: Facts
    values: Mapping[str, Any]
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """What the lock would say of one host. kind: hosts with equal ones make a group."""

    name: str
    group: LockedGroup
    host: LockedHost
    kind: Kind = ()


@dataclass
class Made:
    """A lock and why some hosts are not in it as they are."""

    lock: Lock
    issues: list[Issue] = field(default_factory=list)


def entry(seen: Seen, catalog: Catalog) -> Entry:
    """Say what a host has, by the parts that its inventory manages. Raises ProvisionError where that cannot be determined."""
    facts = seen.facts
    if not (facts.host.os.version_id and facts.host.arch):
        raise ProvisionError(
            "lock.no_release",
            "the release or the architecture of the host is not known",
            because=facts.refused[:4],
            hint="provision scan shows what could not be read",
        )
    host = Host(facts, catalog, Desired(seen.values))
    decide(host)
    asked = [part for part in in_locks() if part.is_asked(host.desired, facts)]
    entries = {part.name: part.entry(host, host.decisions[part.name], seen.more) for part in asked}
    group = LockedGroup(
        ubuntu=facts.host.os.version_id,
        arch=facts.host.arch,
        repositories=_repositories(facts, host.desired, catalog),
        **entries,
    )
    driver, own = group.driver, [part.own(host, host.decisions[part.name]) for part in asked]
    locked = LockedHost(
        group="",
        driver=facts.module.loaded.version if facts.module.loaded and not driver else None,
        memory=gib(facts),
        kernel=_kernel(facts),
        gpus=[_gpu(gpu, facts, catalog) for gpu in facts.gpus],
        sources=sorted({source.file for source in facts.apt.sources if source.enabled}),
        environments={path: digest for one in own for path, digest in one.items()},
    )
    flavours = tuple(kernel_flavours(facts)) if driver and driver.build == "signed" else ()
    return Entry(seen.name, group, locked, (*kind_of(group), flavours))


def kind_of(group: LockedGroup) -> Kind:
    """What makes hosts of one kind, as far as a lock's group says it."""
    return (group.ubuntu, group.arch, *(part.kind(getattr(group, part.name, None)) for part in in_locks()))


def _belongs_to(name: str, kernel: str) -> bool:
    """Modules of that kernel, and the metapackages that lead to those of the newest; older kernels come and go."""
    package = driver_names.parse(name)
    if package is None or not package.base.startswith("linux-"):
        return False
    return package.kernel == kernel or not str(package.kernel)[:1].isdigit()


def _kernel(facts: Facts) -> LockedKernel | None:
    boots = facts.kernels.next or facts.kernels.running
    if not boots or not facts.kernels.installed:
        # what boots comes from outside: nothing of it is a package here
        return None
    own = {
        name: row.version
        for name, row in facts.packages.items()
        if row.installed and (_belongs_to(name, boots) or (name in facts.kernels.metapackages and row.held))
    }
    return LockedKernel(release=boots, packages=own)


def _gpu(gpu: Gpu, facts: Facts, catalog: Catalog) -> LockedGpu:
    seen = next((card for card in facts.smi.gpus if card.bus_id and short(card.bus_id) == short(gpu.slot)), None)
    return LockedGpu(
        slot=gpu.slot,
        device=gpu.device,
        name=catalog.gpu_by_id(gpu.device).name,
        uuid=seen.uuid if seen else None,
        width=gpu.pcie.width if gpu.pcie else None,
        speed=gpu.pcie.speed if gpu.pcie else None,
        mig=seen.mig if seen else None,
        numa=gpu.numa_node,
    )


def gib(facts: Facts) -> int | None:
    """Memory of a machine in GiB; a container shows that of the machine which carries it."""
    memory = None if facts.host.container else facts.host.memory
    return None if memory is None else round(memory / 1024)


def short(slot: str) -> str:
    """0000:1b:00.0 and 00000000:1B:00.0 are one function: domain (4 digits), bus, device, function."""
    domain, _, rest = slot.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _repositories(facts: Facts, desired: Desired, catalog: Catalog) -> dict[str, LockedRepository]:
    """The repositories that our own files name, with the fingerprint that their key was checked against."""
    found = {}
    for kind in REPOSITORIES:
        path = apt_files.sources_path(kind.replace("_", "-"))
        own = next((source for source in facts.apt.sources if source.file == path and source.enabled), None)
        if own is not None and own.uris:
            found[kind] = LockedRepository(
                uri=own.uris[0],
                suite=" ".join(own.suites),
                components=" ".join(own.components),
                key=_fingerprint(kind, facts, desired, catalog),
            )
    return found


def _fingerprint(kind: str, facts: Facts, desired: Desired, catalog: Catalog) -> str | None:
    """Fingerprint of a repository's key by inventory and catalog; None where only a key without one was given and is unread."""
    spec = desired.source(kind, facts, catalog)
    if spec["fingerprint"] or not spec["key"]:
        return cast("str | None", spec["fingerprint"])
    return str(openpgp.primaries(spec["key"].encode("ascii"))[0])


# --- many hosts -----------------------------------------------------------------------------------------------------------


def make(entries: Sequence[Entry], old: Lock | None = None, *, update: bool = False) -> Made:
    """Put hosts together into a lock.

    old: the lock so far. Its hosts that are not among the entries stay as they are. Without update what it says is not
    changed: a host that is otherwise than locked is named. Names of its groups are kept.
    """
    made = Made(old.model_copy(deep=True) if old else Lock())
    kinds: dict[Kind, list[Entry]] = {}
    for one in entries:
        kinds.setdefault(one.kind, []).append(one)
    taken: set[str] = set()
    for members in kinds.values():
        name, locked = _old_group(members, old, taken)
        keep = locked if locked is not None and not update else None
        group, odd = _agree(members, keep)
        made.issues += _differing(members, group, odd, name, keep is not None)
        agreed_on = [one for one in members if one.name not in odd]
        if group is None or not agreed_on:
            continue
        name = name or _fresh(_name(group), {*made.lock.groups, *taken})
        taken.add(name)
        if not keep:
            others = set(made.lock.members(name)) - {one.name for one in members}
            if name in made.lock.groups and others and _core(made.lock.groups[name]) != _core(group):
                # hosts that were not read stay where they are
                name = _fresh(_name(group), {*made.lock.groups, *taken})
                taken.add(name)
            made.lock.groups[name] = group
        for one in agreed_on:
            made.lock.hosts[one.name] = one.host.model_copy(update={"group": name})
    used = {host.group for host in made.lock.hosts.values()}
    made.lock.groups = {name: group for name, group in made.lock.groups.items() if name in used}
    return made


def _core(group: LockedGroup) -> str:
    """What must be equal on all hosts of a group, as text: repositories may be mirrors of each other."""
    return json.dumps(group.model_dump(exclude={"repositories"}), sort_keys=True)


def _old_group(members: Sequence[Entry], old: Lock | None, taken: set[str]) -> tuple[str | None, LockedGroup | None]:
    """The group that these hosts were in, or that is of their kind."""
    if old is None:
        return None, None
    before = Counter(old.hosts[one.name].group for one in members if one.name in old.hosts)
    for name, _ in before.most_common():
        if name not in taken:
            return name, old.groups[name]
    kind = kind_of(members[0].group)
    like = [name for name, group in old.groups.items() if kind_of(group) == kind and name not in taken]
    return (like[0], old.groups[like[0]]) if len(like) == 1 else (None, None)


def _agree(members: Sequence[Entry], locked: LockedGroup | None) -> tuple[LockedGroup | None, list[str]]:
    """(what the group has, hosts that have something else): the locked one, else what more than half of them have."""
    texts = {one.name: _core(one.group) for one in members}
    if locked is not None:
        want = _core(locked)
        return locked, [name for name, text in texts.items() if text != want]
    text, count = Counter(texts.values()).most_common(1)[0]
    if 2 * count <= len(members):
        return None, list(texts)
    return next(one.group for one in members if texts[one.name] == text), [n for n, t in texts.items() if t != text]


def _differing(
    members: Sequence[Entry], group: LockedGroup | None, odd: Sequence[str], name: str | None, locked: bool
) -> list[Issue]:
    by_name = {one.name: one for one in members}
    if group is None:
        first, *rest = odd
        lines = [
            line for other in rest for line in differences(by_name[first].group, by_name[other].group, first, other)[:6]
        ]
        return [
            Issue(
                code="lock.hosts_differ",
                message=f"hosts of one kind have different versions: {', '.join(odd)}",
                because=lines,
                hint="provision apply makes them identical; or lock some of them: -l",
            )
        ]
    issues = []
    for host in odd:
        lines = differences(group, by_name[host].group, "locked" if locked else "the others", "here")
        more = [f"and {len(lines) - 8} more"] if len(lines) > 8 else []
        issues.append(
            Issue(
                code="lock.not_as_locked" if locked else "lock.hosts_differ",
                host=host,
                message=f"it differs from its group {name} in the lock"
                if locked
                else "it differs from the others of its kind",
                because=[*lines[:8], *more],
                hint="provision apply restores it; provision lock --update updates the lock"
                if locked
                else "provision apply makes it like them; or leave it out: -l 'all:!" + host + "'",
            )
        )
    return issues


def differences(one: LockedGroup, other: LockedGroup, left: str, right: str) -> list[str]:
    """Where two groups differ, as text: "libnccl2: locked 2.25.1-1+cuda12.8, here none"."""
    a, b = flat(one), flat(other)
    return [
        f"{key}: {left} {a.get(key, 'none')}, {right} {b.get(key, 'none')}"
        for key in sorted({*a, *b}, key=natural)
        if a.get(key) != b.get(key)
    ]


def flat(group: LockedGroup) -> dict[str, str]:
    """Everything of a group that must be equal on its hosts, by what it is called."""
    found = dict(group.packages)
    for part, entry in group.entries():
        found.update(part.flat(entry))
    return found


def _name(group: LockedGroup) -> str:
    """A name for a group that says what it is: ubuntu-24.04-amd64-580-open-signed-cuda-12.8-containers."""
    parts = [part_ for part, entry in group.entries() for part_ in part.name_parts(entry)]
    return "-".join([f"ubuntu-{group.ubuntu}", group.arch, *parts])


def _fresh(name: str, taken: set[str]) -> str:
    """The name, or with a number behind it where there is one already."""
    number, free = 2, name
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free
