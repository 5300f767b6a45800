"""Which hosts are changed when: canaries first, unlike each other, then batches. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from provision.parts.plan import HostPlan

WaveKind = Literal["all", "canary", "batch", "waited"]


@dataclass(frozen=True)
class Kind:
    """What makes two hosts alike: their hardware, and what is to be done there."""

    # "2 x H100 PCIe"
    hardware: str
    # of the plan: the same text, the same work
    work: str


@dataclass(frozen=True)
class Wave:
    """Hosts that are changed at the same time."""

    kind: WaveKind
    hosts: tuple[str, ...]


def kind_of(plan: HostPlan) -> Kind:
    """Return what a host is, for the choice of canaries."""
    changes = sorted(f"{p.action} {p.name} {p.version}" for p in plan.packages)
    steps = sorted(f"{step.part} {step.id} {step.title}" for step in plan.steps)
    work = "\n".join([plan.summary, str(plan.reboot.needed), *steps, *changes])
    return Kind(", ".join(plan.gpus), hashlib.sha256(work.encode()).hexdigest()[:16])


def canaries(hosts: Sequence[str], kinds: Mapping[str, Kind], count: int) -> list[str]:
    """Choose up to count hosts that are as unlike as can be; the same answer for the same hosts.

    One of each hardware before a second of any, one of each work within a hardware before a second of that; the
    hardware that most hosts have first, since it proves most. hosts: in the order of the inventory.
    """
    many = Counter(kinds[name].hardware for name in hosts)
    order = {name: number for number, name in enumerate(hosts)}
    chosen: list[str] = []
    hardware: Counter[str] = Counter()
    work: Counter[Kind] = Counter()
    left = list(hosts)
    while left and len(chosen) < count:
        best = min(
            left,
            key=lambda name: (
                hardware[kinds[name].hardware],
                work[kinds[name]],
                -many[kinds[name].hardware],
                order[name],
            ),
        )
        left.remove(best)
        chosen.append(best)
        hardware[kinds[best].hardware] += 1
        work[kinds[best]] += 1
    return chosen


def waves(hosts: Sequence[str], kinds: Mapping[str, Kind], canary: int, size: int) -> list[Wave]:
    """Return the waves of hosts: every host in one of them, canaries first, none with more than size hosts.

    hosts: in the order of the inventory. canary: number of canaries, 0 for none. size: hosts of a wave at most.
    """
    if not hosts:
        return []
    first = canaries(hosts, kinds, canary)
    rest = [name for name in hosts if name not in set(first)]
    if not first and len(rest) <= size:
        return [Wave("all", tuple(rest))]
    return [
        *(Wave("canary", part) for part in parts(first, size)),
        *(Wave("batch", part) for part in parts(rest, size)),
    ]


def parts(hosts: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """Return hosts in batches of at most size."""
    return [tuple(hosts[start : start + size]) for start in range(0, len(hosts), size)]
