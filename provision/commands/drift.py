"""drift: every host against inventory, lock, peers and its hardware before, from one read of each. Changes nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field

from provision import remote
from provision.catalog import load_catalog
from provision.documents import Document
from provision.drift import Item, judge_host, metrics
from provision.drift.peers import Peer, compare, peer_of
from provision.errors import Exit, ProvisionError
from provision.facts import Facts
from provision.inventory import Host
from provision.lock.pin import find, path_of
from provision.planning import read_facts
from provision.runs.fleet import Fleet, Silent, Talk, ask_all


class DriftedHost(BaseModel):
    """group: of the lock that the host is held to; items: what drifted, the gravest first."""

    status: Literal["clean", "drifted", "unreachable", "failed"]
    group: str | None = None
    items: list[Item] = Field(default_factory=list)


class DriftDocument(Document):
    """lock: path of the lock; None: there is none, and hosts are compared with inventory and peers alone."""

    schema_id: str = Field(default="provision/drift/1", alias="schema")
    hosts: dict[str, DriftedHost] = Field(default_factory=dict)
    lock: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Judged:
    """One host by itself, and what its peers need to know of it: facts of a whole fleet are not kept."""

    group: str | None
    items: list[Item]
    peer: Peer


def run(fleet: Fleet, talk: Talk | None = None) -> DriftDocument:
    """Read and judge every host. Exit code 2 where one drifted; 4, 1 or 5 where one could not be read or judged.

    Raises LockError (exit 64) for a lock that cannot be used.
    """
    begun = time.monotonic()
    document = DriftDocument(lock=lock_path(fleet))

    def ask(host: Host, session: remote.Session) -> Judged:
        values = dict(fleet.values[host.name])
        return judged(host.name, read_facts(session.call, values), values)

    answers = ask_all(fleet, fleet.hosts, "reading", ask, talk or Silent())
    found = compared({name: answer for name, answer in answers.items() if isinstance(answer, Judged)})
    codes: list[Exit] = []
    for name, answer in answers.items():
        if isinstance(answer, ProvisionError):
            document.hosts[name] = DriftedHost(status=answer.host_status)
            document.errors.append(answer.issue.model_copy(update={"host": name}))
            codes.append(answer.exit_code)
            continue
        document.hosts[name] = found[name]
        codes.append(Exit.CHANGES if found[name].items else Exit.OK)
    document.seconds = round(time.monotonic() - begun, 3)
    return document.conclude(codes)


def lock_path(fleet: Fleet) -> str | None:
    """Return the path of the fleet's lock, None without one. Raises LockError: once, before any host is asked."""
    for values in list(fleet.values.values())[:1]:
        find(values)
        path = path_of(values)
        return str(path) if path else None
    return None


def judged(name: str, facts: Facts, values: dict[str, Any]) -> Judged:
    """Judge one host; ``compared`` adds what only its peers tell."""
    catalog = load_catalog()
    items, lock = judge_host(name, facts, values, catalog)
    return Judged(lock.group_name if lock else None, items, peer_of(facts, lock, catalog))


def compared(hosts: Mapping[str, Judged]) -> dict[str, DriftedHost]:
    """Return what is said of hosts that were judged, with what differs from their peers."""
    areas = {name: {item.area for item in one.items} for name, one in hosts.items()}
    odd = compare({name: one.peer for name, one in hosts.items()}, areas)
    found = {}
    for name, one in hosts.items():
        items = [*one.items, *odd.get(name, [])]
        found[name] = DriftedHost(status="drifted" if items else "clean", group=one.group, items=items)
    return found


def check_metrics(path: Path) -> None:
    """Raise UsageError where write_metrics could not write."""
    metrics.check(path)


def write_metrics(document: DriftDocument, path: Path) -> None:
    """Write the document's metrics. Raises UsageError when the file cannot be written."""
    rows = {name: (host.status, host.group, host.items) for name, host in document.hosts.items()}
    metrics.write(metrics.render(rows, round(time.time(), 3), document.seconds or 0.0), path)
