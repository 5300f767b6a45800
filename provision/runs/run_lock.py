"""Two people at once: a run takes the lock of every host that it changes, keeps it, and gives it back.

    locks = HostLocks(fleet, "provision apply", run_dir.name, talk)
    refused = locks.take(names)                     # host -> error: somebody else's run is at work there
    with locks.kept():                              # leases are renewed while this lasts
        engine.run_playbook(…, {"gpu_provision_run": run_dir.name, …}, …)
    locks.give_back(records)                        # with a short record of the run for each host

What the lock is, and when one is stale: plugins/module_utils/run/lock.py, in one place.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock
from ansible_collections.gpu.provision.plugins.plugin_utils import runlock
from provision import remote
from provision.errors import Issue, ProvisionError, RefusedError
from provision.facts import Facts
from provision.inventory import Host
from provision.lib.text import answered
from provision.runs import engine
from provision.runs.fleet import Fleet, Silent, Talk, ask_all

RENEW_EVERY = 120.0
LEFT = "host.lock_stale"
_JOIN_SECONDS = 5.0


class HostLocks:
    """The locks of one run, on as many hosts as it changes.

    command: as a person typed it, without values. run: the run's name, the same on controller and hosts. force: take locks
    of others too (--break-lock). ``notes`` says whose lock was taken over, and why that was right.
    """

    def __init__(self, fleet: Fleet, command: str, run: str, talk: Talk | None = None, *, force: bool = False) -> None:
        self.fleet, self.run, self.force = fleet, run, force
        self.taken: set[str] = set()
        self.notes: list[Issue] = []
        # host -> record of the run whose lock was taken over
        self.took: dict[str, dict[str, Any]] = {}
        self._command, self._talk = command, talk or Silent()

    def take(self, names: Sequence[str]) -> dict[str, ProvisionError]:
        """Take the locks of these hosts, in parallel; return why not, for hosts that must be left alone.

        RefusedError with the code ``host.locked``: another run is at work there. Other errors: the host cannot be reached or
        written to. Locks that were taken are given back by give_back alone.
        """
        engine.make_ready(self.fleet.inventory)
        processes = [os.getpid(), *engine.processes()]
        me = runlock.holder(self._command, self.run, processes, folder_of(self.fleet))
        kept = set(self.fleet.kept)
        args = {"op": "acquire", "holder": me, "lease": runlock.LEASE, "force": self.force}

        def take(host: Host, session: remote.Session) -> tuple[str, dict[str, Any]]:
            answer = answered(session.call("run.lock", args), taken=bool)
            why = runlock.proven(answer)
            if why:
                answer = answered(session.call("run.lock", {**args, "over": answer["held"]["run"]}), taken=bool)
                answer["why"] = why
            return host.name, answer

        def keep(result: tuple[str, dict[str, Any]]) -> bool:
            return result[0] in kept

        wanted = set(names)
        hosts = [host for host in self.fleet.hosts if host.name in wanted]
        refused: dict[str, ProvisionError] = {}
        for name, answer in ask_all(self.fleet, hosts, "locking", take, self._talk, keep=keep, reads=False).items():
            if isinstance(answer, ProvisionError):
                answer.issue.host = name
                refused[name] = answer
            elif not answer[1]["taken"]:
                refused[name] = locked(name, answer[1]["held"])
            else:
                self.taken.add(name)
                if answer[1]["replaced"]:
                    self.took[name] = answer[1]["replaced"]
                    self.notes.append(took_issue(name, answer[1]["replaced"], answer[1]["why"]))
        return refused

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the leases of the locks that are held, from a thread, for as long as this lasts."""
        done = threading.Event()
        keeper = threading.Thread(target=self._renew_until, args=(done,), name="host locks", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            done.set()
            keeper.join(timeout=_JOIN_SECONDS)

    def _renew_until(self, done: threading.Event) -> None:
        while not done.wait(RENEW_EVERY):
            names = set(self.taken)
            # A host that does not answer (it may be rebooting) keeps its lock until the lease is over.
            remote.for_each(
                [host for host in self.fleet.hosts if host.name in names], self._renew, forks=self.fleet.forks
            )

    def _renew(self, host: Host) -> None:
        with contextlib.closing(remote.open_session(host)) as session:
            session.call("run.lock", {"op": "renew", "run": self.run}, timeout=30)

    def give_back(
        self, records: Mapping[str, Mapping[str, Any]] | None = None, names: Sequence[str] | None = None
    ) -> list[Issue]:
        """Give locks back (all that are held, or those of names), and leave each host its record of the run.

        A host that cannot be reached keeps the lock: the next run sees that this process has ended. Returns what a person
        should know; nothing here makes a run fail.
        """
        wanted = self.taken & set(names) if names is not None else set(self.taken)
        hosts = [host for host in self.fleet.hosts if host.name in wanted]
        if not hosts:
            return []

        def leave(host: Host, session: remote.Session) -> dict[str, Any]:
            record = (records or {}).get(host.name)
            args = {"op": "leave", "record": record and dict(record), "run": self.run}
            return answered(session.call("run.record", args, timeout=30))

        found: list[Issue] = []
        for name, answer in ask_all(self.fleet, hosts, "recording", leave, Silent(), reads=False).items():
            self.taken.discard(name)
            if isinstance(answer, ProvisionError):
                found.append(not_given_back(name, answer.issue))
            elif answer["held"]:
                found.append(lost_issue(name, answer["held"]))
            elif answer["trouble"]:
                found.append(
                    Issue(
                        code="history.not_written",
                        host=name,
                        message="the host has no record of this run",
                        because=[answer["trouble"]],
                        hint="the run's folder on this machine has all of it",
                    )
                )
        return found


def folder_of(fleet: Fleet) -> Path:
    """The folder of the fleet's inventory; the current one where the inventory is no file."""
    sources = [Path(source) for source in fleet.inventory.sources if "," not in source]
    first = next((source for source in sources if source.exists()), None)
    return Path.cwd() if first is None else first if first.is_dir() else first.parent


# ---- what people are told -----------------------------------------------------------------------------------------------


def left_behind(host: str, facts: Facts) -> Issue | None:
    """Say that a run which has certainly ended left its lock on a host."""
    was = runlock.record_of(facts.run_lock or "")
    at = {"renewed": was.get("renewed"), "uptime": facts.host.uptime_s, "boot_id": facts.host.boot_id}
    known = at if facts.host.uptime_s is not None else None
    why = run_lock.stale(was, known, run_lock.controller()) if was else None
    if not why:
        return None
    return Issue(
        code=LEFT,
        host=host,
        message=f"a run that has ended left its lock: {run_lock.describe(was)}",
        because=[why],
        hint="provision apply removes it, and leaves the host a record of that run",
    )


def removed(host: str, was: Mapping[str, Any], why: str, changed: str) -> Issue:
    """Whose lock was removed from a host that is as wanted; changed: what that run did there, as text."""
    return Issue(
        code=LEFT,
        host=host,
        message=f"removed the lock of a run that has ended: {run_lock.describe(was)}",
        because=[why, f"it changed {changed}" if changed else "what it changed is not known here"],
        hint=f"provision history {was['run']}",
    )


def locked(host: str, lock: Mapping[str, Any]) -> RefusedError:
    """Another run is at work on a host."""
    issue = runlock.refused(lock)
    return RefusedError(issue["code"], issue["message"], host=host, because=issue["because"], hint=issue["hint"])


def took_issue(host: str, was: Mapping[str, Any], why: str | None) -> Issue:
    """Whose lock this run has taken over; why: the proof that it was stale, None where it was broken."""
    return Issue(host=host, **runlock.took(was, why))


def lost_issue(host: str, lock: Mapping[str, Any]) -> Issue:
    """Somebody took the lock away while this run was at work."""
    return Issue(
        code="host.lock_lost",
        host=host,
        message=f"during this run the lock was taken by {run_lock.describe(lock)}",
        hint="ask them what they changed, then run: provision verify",
    )


def not_given_back(host: str, issue: Issue) -> Issue:
    """The lock could not be removed from the host at the end of this run."""
    return Issue(
        code="host.lock_left",
        host=host,
        message=f"the lock was left on the host: {issue.message}",
        because=issue.because,
        hint="the next run from this machine sees that this one has ended; from elsewhere, "
        f"the lock is stale {run_lock.span(runlock.LEASE)} after it was last renewed",
    )
