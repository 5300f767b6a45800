"""drift: what a host has that is not what inventory, lock, peers or its own hardware before say. Pure functions of facts.

``judge_host`` looks at one host, ``peers.compare`` at hosts of one kind together, ``metrics`` writes the answer for
Prometheus.
"""

from __future__ import annotations

from typing import Any

from provision.catalog import Catalog
from provision.drift.hardware import against_hardware
from provision.drift.inventory import against_inventory
from provision.drift.item import Item, without_echoes
from provision.drift.locked import against_lock
from provision.facts import Facts
from provision.lock.model import HostLock, Lock
from provision.lock.pin import find, lock_of

__all__ = ["Item", "judge_host"]


def judge_host(name: str, facts: Facts, values: dict[str, Any], catalog: Catalog) -> tuple[list[Item], HostLock | None]:
    """Return what of a host drifted, the gravest first, and the lock that it was held against.

    values: effective role variables with ``inventory_dir``. Raises LockError for a lock that cannot be used, UsageError and
    RefusedError for variables that cannot be judged.
    """
    lock, _ = lock_of(name, facts, values)
    found = find(values)
    items: list[Item] = []
    if found is not None and (lock is None or not lock.listed):
        items += _unlisted(name, facts, found[0], known=lock is not None)
    items += against_hardware(facts, lock)
    if lock:
        items += against_lock(facts, values, lock, catalog)
    items += against_inventory(name, facts, values, catalog)
    return without_echoes(items), lock


def _unlisted(name: str, facts: Facts, lock: Lock, *, known: bool) -> list[Item]:
    """The item of a host that the lock does not name; one whose cards another name has was renamed.

    known: it is held to a group that is like it. Then nothing is amiss but a name, by which its own hardware is found.
    """
    cards = {gpu.uuid for gpu in facts.smi.gpus if gpu.uuid}
    before = [other for other, host in lock.hosts.items() if cards & {gpu.uuid for gpu in host.gpus if gpu.uuid}]
    if before:
        return [
            Item(
                code="lock.renamed",
                what="its name",
                expected=before[0],
                found=name,
                against="lock",
                hint=f"the lock has these cards as {before[0]}: rename it there, or provision lock again",
            )
        ]
    if known:
        return []
    return [
        Item(
            code="lock.not_listed",
            what="the lock",
            expected="every host in it",
            found=f"{name} is not",
            against="lock",
            hint="provision lock adds it once it is verified",
        )
    ]
