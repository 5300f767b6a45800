"""The order of a rollout: wave after wave, each host drained, changed, proven and resumed; what stops it; what is reported.

``Rollout`` knows what comes after what and writes it down; how hosts are read and changed is ``Actions``, which the
command fills with the real thing and tests with a made-up fleet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from provision.documents import AppliedHost
from provision.errors import Exit, Issue
from provision.parts.plan import HostPlan
from provision.rollout import summary as rollout_summary
from provision.rollout.agreed import beyond
from provision.rollout.interrupts import Interrupts
from provision.rollout.observers import RunObserver
from provision.rollout.state import DONE, FAILURES, Store, WaveState
from provision.rollout.waves import WaveKind

# A plan that is older than this is made again before it is carried out.
FRESH_SECONDS = 300.0
# How often hosts are asked whether their GPUs are idle: soon at first, then less and less often.
FIRST_POLL, LONGEST_POLL = 2.0, 30.0


@dataclass
class Outcome:
    """What became of a host."""

    applied: AppliedHost
    code: Exit
    issues: list[Issue] = field(default_factory=list)
    # it did not come back from its reboot
    lost: bool = False
    warnings: list[Issue] = field(default_factory=list)

    @property
    def status(self) -> str:
        return self.applied.status


@dataclass
class HookResult:
    """What became of a hook on one host; issue says why it did not do."""

    issue: Issue | None = None


class Actions(Protocol):
    """How things are done. Nothing here decides what comes next."""

    def drains(self, host: str) -> bool:
        """True for a host with a drain hook."""
        ...

    def hook(self, phase: str, hosts: Sequence[str], wave: int) -> dict[str, HookResult]:
        """Run the hook of these hosts, at the same time. phase: drain or resume. Never raises for a host's failure."""
        ...

    def plan(self, hosts: Sequence[str]) -> dict[str, HostPlan]:
        """Read hosts again and plan for them as if their GPUs were idle; who uses them is in reboot.blocked_by."""
        ...

    def users(self, hosts: Sequence[str]) -> dict[str, list[str] | None]:
        """Who uses the GPUs of hosts; None for a host that does not say."""
        ...

    def play(self, wave: int, title: str, plans: Mapping[str, HostPlan]) -> tuple[dict[str, Outcome], bool]:
        """Carry plans out; return what became of each host, and whether the user interrupted it."""
        ...

    def prove(self, title: str, outcomes: Mapping[str, Outcome]) -> None:
        """Read hosts again and judge them, in their outcomes: success is what verify says."""
        ...

    def prepare(self) -> None:
        """Begin what the next play will need, while hosts are read and drained."""
        ...

    def waiting(self, hosts: Sequence[str]) -> AbstractContextManager[Callable[[Mapping[str, list[str]], float], None]]:
        """Show that hosts are waited for; what it returns is called with who uses their GPUs, and how many seconds are left."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def note(self, text: str) -> None:
        """Say a line to the person at the terminal."""
        ...


class Rollout:
    """One session of a run: from its first wave to its last, or to what stops it.

    agreed: the plans that somebody agreed to, of every host in waves and waiting. planned_at: when they were made
    (time.monotonic()). before: what was agreed to in earlier sessions, of hosts that these began. check: nothing is
    changed, so there are no hooks, no proof and no second look.
    """

    def __init__(
        self,
        actions: Actions,
        store: Store,
        agreed: Mapping[str, HostPlan],
        *,
        planned_at: float,
        interrupts: Interrupts,
        before: Mapping[str, Sequence[HostPlan]] | None = None,
        observers: Sequence[RunObserver] = (),
        check: bool = False,
    ) -> None:
        self.actions, self.store, self.agreed = actions, store, dict(agreed)
        self.observers = [] if check else list(observers)
        self.interrupts, self.check = interrupts, check
        self.outcomes: dict[str, Outcome] = {}
        # of hosts that this session has nothing else to say of
        self.issues: list[Issue] = []
        self.interrupted = False
        self._planned_at = planned_at
        self._before = dict(before or {})
        self._first = True
        self._deferred: list[str] = []
        # in this session: what failed once is reported, not tried again and again
        self._resumed: set[str] = set()
        # numbers of the waves that this session began
        self._carried_out: set[int] = set()
        self._allowed = store.state.options.may_fail(store.state.total)

    # ---- the order of things -------------------------------------------------------------------------------------------

    def go(self, waves: Mapping[int, Sequence[str]], waiting: Sequence[str] = (), begun: Sequence[str] = ()) -> None:
        """Carry out waves of the state, then change the hosts that wait for idle GPUs.

        waves: the hosts of this session, by the number of their wave (counted from 1).
        begun: hosts that a session before this one began and that are as wanted now: they are proven first.
        """
        try:
            # Drained by a session before this one, and nothing is to be done there now.
            self._resume([name for name in self.store.state.owing() if name not in self.agreed], wave=0)
            self._prove_begun(begun)
            for number, hosts in waves.items():
                if self._stopped():
                    break
                self._wave(number, hosts)
            self._wait([*waiting, *self._deferred])
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            self._resume([name for name in self.store.state.owing() if name not in self._resumed], wave=0)
            self._close()

    def _stopped(self) -> bool:
        """True when no further wave may begin; says and writes down why, once."""
        self.interrupts.check()
        if self.store.state.stopped is None:
            why = self._why_stop()
            if why is None:
                return False
            with self.store.change() as state:
                state.stopped = why
        return True

    def _why_stop(self) -> str | None:
        lost = [name for name, outcome in self.outcomes.items() if outcome.lost]
        if lost:
            return f"{rollout_summary.hosts(lost)} did not come back from the reboot"
        failed = [name for name, outcome in self.outcomes.items() if outcome.status in FAILURES]
        if self._allowed is None or len(failed) <= self._allowed:
            return None
        may = f"{self._allowed} may" if self._allowed else "none may"
        return f"{len(failed)} failed, {may} ({rollout_summary.hosts(failed)})"

    def _prove_begun(self, hosts: Sequence[str]) -> None:
        if not hosts:
            return
        hosts = self._admit(0, hosts)
        outcomes = {name: done(self.agreed[name].summary) for name in hosts}
        try:
            self.actions.prove("proving what was begun", outcomes)
            self._take(outcomes, wave=None)
        finally:
            self._resume([name for name in hosts if self.store.host(name).owes_resume], wave=0)
            self._leave(hosts)

    def _wave(self, number: int, todo: Sequence[str]) -> None:
        wave = self.store.state.waves[number - 1]
        self._carried_out.add(number)
        begun = time.monotonic()
        with self.store.change() as state:
            state.waves[number - 1].status = "running"
            for name in todo:
                state.hosts[name].wave = number
        title = rollout_summary.wave(number, self._count(), wave.kind)
        if not self.check and self._count() > 1:
            self.actions.note(f"{title}: {rollout_summary.hosts(todo, whole=True)}")
        admitted: list[str] = []
        ended = False
        try:
            admitted = self._admit(number, todo)
            hosts = self._drain(number, admitted)
            plans = self._plans(number, hosts)
            if plans:
                self._play(number, title, plans)
            ended = True
        finally:
            self._resume([name for name in admitted if self.store.host(name).owes_resume], wave=number)
            self._end_wave(number, wave, todo, begun, ended)
            self._leave(admitted)

    def _play(self, number: int, title: str, plans: Mapping[str, HostPlan]) -> None:
        if not self.check:
            self.store.mark(list(plans), "running", began=True)
        self._first = False
        prefix = f"{title}, " if self._count() > 1 else ""
        outcomes, interrupted = self.actions.play(number, prefix, plans)
        # Written down before the proof: a change that was made is not forgotten, whatever comes in between.
        self._take({name: o for name, o in outcomes.items() if o.status != "done"}, wave=number)
        if interrupted:
            # What was changed to the end is not proven: the next session does that.
            for outcome in outcomes.values():
                if outcome.status == "done":
                    outcome.applied.status, outcome.code = "interrupted", Exit.INTERRUPTED
            self._take(outcomes, wave=number)
            raise KeyboardInterrupt
        if not self.check:
            self.actions.prove(f"{prefix}verifying", outcomes)
        self._take(outcomes, wave=number)

    def _count(self) -> int:
        return len(self.store.state.waves)

    # ---- one wave ------------------------------------------------------------------------------------------------------

    def _admit(self, number: int, hosts: Sequence[str]) -> list[str]:
        """Ask the observers; hosts that must not be touched are out."""
        left = list(hosts)
        for observer in self.observers:
            refused = observer.before_wave(number, left)
            self._take(
                {name: rollout_summary.refused(self.agreed[name], issue) for name, issue in refused.items()}, wave=None
            )
            left = [name for name in left if name not in refused]
        return left

    def _leave(self, hosts: Sequence[str]) -> None:
        for name in hosts:
            outcome = self.outcomes.get(name)
            # Deferred hosts have a wave of their own to come, and are let go meanwhile.
            result = outcome.applied if outcome else AppliedHost(status="not_started")
            for observer in self.observers:
                observer.after_host(name, result)

    def _drain(self, number: int, hosts: Sequence[str]) -> list[str]:
        """Drain hosts that have a hook; hosts that could not be drained are out (and resumed by the wave)."""
        with_hook = [name for name in hosts if self.actions.drains(name)]
        if self.check or not with_hook:
            return list(hosts)
        self.actions.prepare()
        # Drained by a session that was killed before it could resume: once is enough.
        todo = [
            name for name in with_hook if self.store.host(name).drain != "ok" or not self.store.host(name).owes_resume
        ]
        with self.store.change() as state:
            for name in todo:
                state.hosts[name].drain, state.hosts[name].resume = "tried", "due"
        with self.interrupts.later("draining"):
            results = self.actions.hook("drain", todo, number) if todo else {}
            with self.store.change() as state:
                for name, result in results.items():
                    state.hosts[name].drain = "failed" if result.issue else "ok"
        failed = {name: result.issue for name, result in results.items() if result.issue}
        self._take(
            {name: rollout_summary.skipped(self.agreed[name], issue) for name, issue in failed.items()}, wave=None
        )
        self.interrupts.check()
        return [name for name in hosts if name not in failed]

    def _resume(self, hosts: Sequence[str], wave: int) -> None:
        """Resume hosts: whatever happened, once their drain hook was tried. What fails is reported, and still due."""
        if not hosts:
            return
        self._resumed.update(hosts)
        with self.interrupts.later("resuming"):
            results = self.actions.hook("resume", hosts, wave)
            with self.store.change() as state:
                for name, result in results.items():
                    state.hosts[name].resume = "failed" if result.issue else "ok"
        for name, result in results.items():
            if name not in self.outcomes and name in self.agreed:
                self._take(self._unfinished(name), wave=None)
            if name in self.outcomes:
                rollout_summary.resumed(self.outcomes[name], result.issue)
            elif result.issue:
                self.issues.append(result.issue)

    def _plans(self, number: int, hosts: Sequence[str]) -> dict[str, HostPlan]:
        """Return the plans to carry out: those that were agreed to, made again where the host may have changed since."""
        drained = any(self.store.host(name).drain == "ok" for name in hosts)
        old = time.monotonic() - self._planned_at > FRESH_SECONDS
        if not hosts or self.check or (self._first and not drained and not old):
            return {name: self.agreed[name] for name in hosts}
        self.actions.prepare()
        ready, busy = self._sort(self.actions.plan(hosts))
        if not busy:
            return ready
        patient = [name for name in busy if self.actions.drains(name) and self._wait_seconds]
        later = [name for name in busy if name not in patient and self._wait_seconds and not self._waits(number)]
        self._deferred += later
        self._busy({name: users for name, users in busy.items() if name not in patient and name not in later})
        if patient:
            idle, still = self._until_idle({name: busy[name] for name in patient}, self._deadline())
            self._busy(still)
            # The others have waited with them: their plans are as old.
            settled = [name for name in hosts if name in ready or name in idle]
            ready, once_more = self._sort(self.actions.plan(settled)) if settled else ({}, {})
            self._busy(once_more)
        return {name: ready[name] for name in hosts if name in ready}

    def _waits(self, number: int) -> bool:
        return self.store.state.waves[number - 1].kind == "waited"

    def _sort(self, fresh: Mapping[str, HostPlan]) -> tuple[dict[str, HostPlan], dict[str, list[str]]]:
        """Return (plans that can be carried out, who uses the GPUs of the others); the rest has its outcome now."""
        ready: dict[str, HostPlan] = {}
        busy: dict[str, list[str]] = {}
        for name, plan in fresh.items():
            if plan.status == "converged" and self.store.host(name).began:
                # An earlier session changed it, and it came up meanwhile: that is still to be proven.
                outcomes = {name: done(plan.summary)}
                self.actions.prove("proving what was begun", outcomes)
                self._take(outcomes, wave=None)
                continue
            if plan.status != "changes":
                self._take({name: rollout_summary.not_changed(plan)}, wave=None)
                continue
            more = beyond([*self._before.get(name, ()), self.agreed[name]], plan)
            if more:
                self._take({name: rollout_summary.differs(plan, more, self.store.state.again)}, wave=None)
            elif plan.reboot.blocked_by:
                busy[name] = plan.reboot.blocked_by
            else:
                ready[name] = plan
        return ready, busy

    def _end_wave(self, number: int, wave: WaveState, todo: Sequence[str], begun: float, ended: bool) -> None:
        seconds = round(time.monotonic() - begun, 1)
        with self.store.change():
            wave.status = "done" if ended else "stopped"
            # of all sessions that worked on it
            wave.seconds = round((wave.seconds or 0) + seconds, 1)
        if not self.check and self._count() > 1:
            states = [self.outcomes[name].status if name in self.outcomes else "waiting" for name in todo]
            self.actions.note(
                f"{rollout_summary.wave(number, self._count(), wave.kind)}: {rollout_summary.counts(states)} in {seconds:.0f} s"
            )

    # ---- GPUs that are in use ------------------------------------------------------------------------------------------

    @property
    def _wait_seconds(self) -> float:
        return self.store.state.options.wait

    def _deadline(self) -> float:
        return time.monotonic() + self._wait_seconds

    def _busy(self, users: Mapping[str, list[str]]) -> None:
        self._take(
            {name: rollout_summary.busy(self.agreed[name], who, self._wait_seconds) for name, who in users.items()},
            wave=None,
        )

    def _wait(self, waiting: Sequence[str]) -> None:
        """Change the hosts that were in use, as they become idle, a batch at a time, until the time is over."""
        left = list(waiting)
        deadline = self._deadline()
        state = self.store.state
        while left and not self._stopped():
            idle, still = self._until_idle({name: self.agreed[name].reboot.blocked_by for name in left}, deadline)
            if not idle:
                self._busy(still)
                return
            wave = idle[: state.options.batch_size(state.total)]
            kind: WaveKind = "waited"
            with self.store.change() as changed:
                changed.waves.append(WaveState(kind=kind, hosts=wave))
            self._wave(self._count(), wave)
            # A job may have begun between the look and the plan: such a host waits on.
            again = [name for name in wave if self.outcomes.get(name) and self.outcomes[name].status == "busy"]
            if time.monotonic() >= deadline:
                again = []
            for name in again:
                del self.outcomes[name]
            left = [name for name in left if name not in wave or name in again]

    def _until_idle(self, users: Mapping[str, list[str]], deadline: float) -> tuple[list[str], dict[str, list[str]]]:
        """Wait until a host's GPUs are idle (until all are, for hosts that are drained), or the time is over.

        Returns (idle hosts, who uses the GPUs of the others).
        """
        together = all(self.store.host(name).drain == "ok" for name in users)
        pause = FIRST_POLL
        known = dict(users)
        noted: dict[str, list[str]] = {}
        with self.actions.waiting(list(users)) as show:
            while True:
                seen = self.actions.users(list(users))
                known.update({name: who for name, who in seen.items() if who is not None})
                idle = [name for name in users if seen[name] == []]
                still = {name: known[name] or ["it does not answer"] for name in users if name not in idle}
                left = deadline - time.monotonic()
                if not still or (idle and not together) or left <= 0:
                    return idle, still
                if still != noted:
                    self.actions.note(rollout_summary.waits(still))
                    noted = still
                show(still, left)
                self.actions.sleep(min(pause, max(0.1, left)))
                self.interrupts.check()
                pause = min(pause * 1.5, LONGEST_POLL)

    # ---- writing down --------------------------------------------------------------------------------------------------

    def _take(self, outcomes: Mapping[str, Outcome], *, wave: int | None) -> None:
        if not outcomes:
            return
        self.outcomes.update(outcomes)
        with self.store.change() as state:
            for name, outcome in outcomes.items():
                host = state.hosts[name]
                host.status, host.summary = outcome.status, outcome.applied.summary
                if wave is not None:
                    host.wave = wave
                outcome.applied.wave = host.wave

    def _summary(self, name: str) -> str:
        return self.agreed[name].summary if name in self.agreed else self.store.host(name).summary

    def _unfinished(self, name: str) -> dict[str, Outcome]:
        """The word on a host that was interrupted, or that was not begun."""
        if self.store.host(name).status == "running":
            return {name: rollout_summary.interrupted(self._summary(name))}
        return {name: rollout_summary.not_begun(self._summary(name))}

    def _close(self) -> None:
        """Give every host its outcome: those that were cut off, those that were not begun."""
        for name in self.agreed:
            if name not in self.outcomes:
                self._take(self._unfinished(name), wave=None)
        for name, outcome in self.outcomes.items():
            host = self.store.host(name)
            outcome.applied.drain = host.drain if host.drain in ("ok", "failed") else None
        with self.store.change() as state:
            for number, wave in enumerate(state.waves, start=1):
                if wave.status == "waiting":
                    wave.status = "not_begun"
                # Its hosts may be as wanted by now without it, or were cut off by an earlier session and are proven now.
                if number not in self._carried_out and all(state.hosts[name].status in DONE for name in wave.hosts):
                    wave.status = "done"


def done(summary: str) -> Outcome:
    """The outcome of a host whose change is made; the proof is to come."""
    return Outcome(AppliedHost(status="done", summary=summary), Exit.OK)
