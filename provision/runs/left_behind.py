"""What a run that was interrupted left on hosts that are as wanted: its lock goes, and its record is written in its place.

A host that is changed needs none of this: its new run takes the lock over. One that is not would keep it for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.run import record as run_record
from ansible_collections.gpu.provision.plugins.plugin_utils import runlock, runrecord
from provision import remote
from provision.documents import PlanDocument
from provision.errors import Issue, ProvisionError
from provision.facts import Package
from provision.inventory import Host
from provision.lib import own_state
from provision.planning import read_facts
from provision.runs import history, run_lock
from provision.runs.fleet import Fleet, Silent, ask_all

# From more hosts on, those with the same text are one line.
_NUMBERED = 4


def of_plan(plan: PlanDocument) -> set[str]:
    """Hosts of a plan that are as wanted, and have the lock of a run that has ended."""
    return {
        name
        for name, host in plan.hosts.items()
        if host.status == "converged" and any(warning.code == run_lock.LEFT for warning in host.warnings)
    }


def end(fleet: Fleet, names: Collection[str], base: Path) -> list[Issue]:
    """Remove the locks of ended runs from hosts that are as wanted; return what was done. base: folder of runs."""
    hosts = [host for host in fleet.hosts if host.name in names]
    if not hosts:
        return []

    def one(host: Host, session: remote.Session) -> tuple[Issue, dict[str, Any] | None] | None:
        lock = session.call("run.lock", {"op": "read"})
        was, why = lock["held"], lock["stale"] or runlock.proven(lock)
        if not was or not why:
            # somebody else has it meanwhile
            return None
        runs = session.call("run.record", {"op": "read"})["runs"]
        known = next((row for row in runs if row.get("run") == was["run"]), None)
        record = None
        if known is None:
            facts = read_facts(session.call, fleet.values[host.name])
            record = _record(host.name, was, facts.packages, base)
        answer = session.call("run.record", {"op": "leave", "record": record, "run": was["run"]})
        issue = run_lock.removed(host.name, was, why, _describe(record or known))
        issue.because += [answer["trouble"]] if answer["trouble"] else []
        return issue, record

    found: list[Issue] = []
    for name, answer in ask_all(
        fleet, hosts, "ending what an interrupted run left", one, Silent(), reads=False
    ).items():
        if isinstance(answer, ProvisionError):
            found.append(answer.issue.model_copy(update={"host": name}))
        elif answer is not None:
            found.append(answer[0])
            _keep(name, answer[1], base)
    return found


def still_running(fleet: Fleet, names: Collection[str]) -> dict[str, str]:
    """Ask hosts what goes on there although the run that began it was interrupted. With many hosts, processes are not numbered."""

    def one(host: Host, session: remote.Session) -> str:
        running = session.call("run.tasks", {})["running"]
        if not running:
            return "nothing of it runs there any more"
        if len(hosts) > _NUMBERED:
            running = [text.partition(" (")[0] for text in running]
        return f"{', '.join(running)} still runs there until it ends"

    hosts = [host for host in fleet.hosts if host.name in names]
    answers = ask_all(fleet, hosts, "asking what still runs", one, Silent()) if hosts else {}
    return {
        name: f"what runs there is not known: {answer.issue.message}" if isinstance(answer, ProvisionError) else answer
        for name, answer in answers.items()
    }


def _record(host: str, was: Mapping[str, Any], installed: Mapping[str, Package], base: Path) -> dict[str, Any]:
    """What a run did to a host before it was interrupted: of what it had planned, what is there now.

    Without the folder of that run, which is on the machine that it was started from, nobody knows what was planned.
    """
    about = {
        "run": was["run"],
        "command": was.get("command", ""),
        "who": was.get("who", ""),
        "git": was.get("git"),
        "started": was.get("since", ""),
        "inventory": None,
        "lock": None,
    }
    changed = []
    run = _run(host, was["run"], base)
    if run is not None:
        about.update(run.model_dump(include={"inventory", "lock"}))
        plans = history.plans_of(base / was["run"]) or []
        changed = history.merged([document.hosts[host] for document in plans if host in document.hosts])
        changed = history.present(changed, installed, whole=True)
    return {**runrecord.record(about, "interrupted", changed), "ended_by": runlock.who()}


def _run(host: str, name: str, base: Path) -> history.Run | None:
    """The run of this machine with that name, if it was to change the host: the name is the host's word."""
    run = history.read(base / name) if run_record.is_name(name) else None
    return run if run is not None and host in run.planned and not run.active else None


def _describe(record: Any) -> str:
    """What changed by a record, which may be one that the host gave."""
    try:
        return history.describe_changes(history.HostRecord.model_validate(record).packages)
    except ValidationError:
        return ""


def _keep(host: str, record: Mapping[str, Any] | None, base: Path) -> None:
    """Put the record into the run's own history too, where this machine has it."""
    run = _run(host, record["run"], base) if record else None
    if run is None or host in run.hosts:
        return
    run.hosts[host] = history.HostRecord.model_validate(record)
    own_state.write(base / run.run / history.FILE, run.model_dump_json(by_alias=True, indent=1))
