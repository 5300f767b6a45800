"""A made-up host as apply leaves it, what happened to it since, and the lock that was made of it before."""

from __future__ import annotations

import copy
from typing import Any

from provision.catalog import load_catalog
from provision.facts import Facts
from provision.facts.diagnostics import Diagnosed
from provision.lock.make import Entry, Seen, entry, make
from provision.lock.model import Lock
from tests.unit import ownfiles
from tests.unit.hosts import host

VERSION = "580.142"
OWN = ownfiles.hashes("modprobe", "persistence", "unattended")


def healthy(name: str = "gpu01", gpus: int = 2, **facts: Any) -> Facts:
    """Two GeForce cards, the archive's driver with signed modules, held, persistence on, nothing pending."""
    cards = [
        {
            "index": i,
            "name": "NVIDIA GeForce RTX 4090",
            "uuid": f"GPU-{name}-{i}",
            "driver_version": VERSION,
            "bus_id": f"00000000:{0x10 + i:02X}:00.0",
            "persistence": True,
            "mig": None,
        }
        for i in range(gpus)
    ]
    made = host(
        ["RTX 4090"] * gpus,
        f"580 {VERSION} open signed",
        smi={"path": "/usr/bin/nvidia-smi", "ran": True, "rc": 0, "driver_version": VERSION, "gpus": cards},
        services={"nvidia-persistenced": {"present": True, "enabled": True, "running": True}},
        own_files=dict(OWN),
        modprobe={"blacklisted": ["nouveau", "nova", "nova_core"]},
        devices=["/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{i}" for i in range(gpus))],
        apt={
            "sources": [
                {
                    "file": "/etc/apt/sources.list.d/ubuntu.sources",
                    "format": "deb822",
                    "uris": ["http://archive.test/ubuntu/"],
                    "suites": ["noble"],
                }
            ],
            "unattended": True,
            "blacklist": list(ownfiles.UNATTENDED_PATTERNS),
        },
        **facts,
    )
    data = made.model_dump()
    for gpu in data["gpus"]:
        gpu["pcie"] = {"width": 16, "max_width": 16, "speed": 16.0, "max_speed": 16.0}
    return Facts.model_validate(data)


def changed(facts: Facts, change: dict[str, Any]) -> Facts:
    """Facts after a change: {path: value}; a path has / between its names, numbers are places; null takes it away."""
    data = copy.deepcopy(facts.model_dump())
    for path, value in change.items():
        *above, last = path.split("/")
        at: Any = data
        for word in above:
            at = at[int(word)] if isinstance(at, list) else at[word]
        key: Any = int(last) if isinstance(at, list) and last != "+" else last
        if last == "+":
            at.append(value)
        elif value is None:
            del at[key]
        elif isinstance(value, dict) and isinstance(at.get(key) if isinstance(at, dict) else at[key], dict):
            at[key] = {**at[key], **value}
        else:
            at[key] = value
    return (Diagnosed if data["trouble"] else Facts).model_validate(data)


def entry_of(name: str, facts: Facts, values: dict[str, Any] | None = None) -> Entry:
    return entry(Seen(name, facts, values or {}), load_catalog())


def lock_of_hosts(hosts: dict[str, Facts], values: dict[str, Any] | None = None) -> Lock:
    """The lock of some hosts, which are alike."""
    made = make([entry_of(name, facts, values) for name, facts in hosts.items()])
    assert not made.issues, made.issues
    return made.lock
