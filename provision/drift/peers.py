"""Hosts of one kind against each other: who is otherwise than more than half of them. Pure.

For what neither inventory nor lock says: the version of docker, Secure Boot, and, without a lock, everything that hosts of
one kind are expected to share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from provision.catalog import Catalog
from provision.drift.item import Item
from provision.facts import Facts
from provision.lock.model import HostLock
from provision.parts.driver.installed import installed_driver
from provision.planning import describe_gpus

# With fewer hosts nobody is the odd one.
_LEAST = 3


@dataclass(frozen=True)
class Peer:
    """What a host shares with others of its kind. kind: hosts with equal ones are peers; features: what -> (area, value)."""

    kind: tuple[str, ...]
    features: dict[str, tuple[str, str]] = field(default_factory=dict)


def peer_of(facts: Facts, lock: HostLock | None, catalog: Catalog) -> Peer:
    """A host as its peers see it. What a lock already says of it is left out."""
    listed = lock is not None and lock.listed
    features: dict[str, tuple[str, str | None]] = {
        "docker": ("containers", facts.containers.docker.version),
        "containerd": ("containers", facts.containers.containerd.version),
        "podman": ("containers", facts.containers.podman.version),
        "Secure Boot": ("firmware", _on_off(facts.secure_boot.enabled)),
        "unattended-upgrades": ("unattended", _on_off(facts.apt.unattended)),
    }
    if not listed:
        driver = installed_driver(facts)
        loaded = facts.module.loaded
        features |= {
            "driver": ("packages", driver.version or (loaded.version if loaded else None)),
            "kernel that boots next": ("boot", facts.kernels.next),
            "cards": ("hardware", ", ".join(describe_gpus(facts, catalog)) or "none"),
            "PCIe width": ("hardware", _widths(facts)),
            "MIG": ("hardware", ", ".join(sorted({gpu.mig for gpu in facts.smi.gpus if gpu.mig})) or None),
            "toolkits": ("packages", ", ".join(_toolkits(facts)) or "none"),
        }
    known = {what: (area, value) for what, (area, value) in features.items() if value}
    return Peer(_kind(facts, lock, catalog), known)


def _kind(facts: Facts, lock: HostLock | None, catalog: Catalog) -> tuple[str, ...]:
    if lock is not None:
        return ("group", lock.group_name)
    models = sorted({catalog.gpu_by_id(gpu.device).name for gpu in facts.gpus})
    return (facts.host.os.version_id, facts.host.arch, *models)


def _on_off(value: bool | None) -> str | None:
    return None if value is None else "on" if value else "off"


def _widths(facts: Facts) -> str | None:
    widths = sorted({gpu.pcie.width for gpu in facts.gpus if gpu.pcie and gpu.pcie.width})
    return ", ".join(f"x{width}" for width in widths) or None


def _toolkits(facts: Facts) -> list[str]:
    return [toolkit.release or toolkit.version for toolkit in facts.cuda.toolkits if toolkit.version]


def compare(peers: Mapping[str, Peer], reported: Mapping[str, set[str]]) -> dict[str, list[Item]]:
    """Return the items of hosts that differ from more than half of their kind.

    reported: host -> areas of the items that it has already: what inventory or lock say of it is not said again.
    """
    kinds: dict[tuple[str, ...], list[str]] = {}
    for name, peer in peers.items():
        kinds.setdefault(peer.kind, []).append(name)
    found: dict[str, list[Item]] = {}
    for members in kinds.values():
        if len(members) < _LEAST:
            continue
        for what in dict.fromkeys(what for name in members for what in peers[name].features):
            values = {n: peers[n].features[what][1] for n in members if what in peers[n].features}
            value, count = Counter(values.values()).most_common(1)[0]
            if 2 * count <= len(members):
                continue
            for name, own in values.items():
                area = peers[name].features[what][0]
                if own != value and area not in reported.get(name, set()):
                    found.setdefault(name, []).append(_item(area, what, value, own, count, len(members)))
    return found


def _item(area: str, what: str, expected: str, found: str, count: int, of: int) -> Item:
    return Item(
        code=f"{area}.peers",
        what=what,
        expected=f"{expected}, as {count} of {of} of its kind",
        found=found,
        against="peers",
        hint="make it like the others, or set the difference in the inventory",
    )
