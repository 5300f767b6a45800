"""apply: carry a plan out, then prove it by a fresh read: all hosts at once, or a few at a time.

What comes after what is in ``provision.rollout.loop``, how each thing is done in ``provision.commands.actions``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import provision.collection  # noqa: F401  (makes the collection importable)
from provision.commands.actions import Actions
from provision.documents import AppliedHost, AppliedWave, ApplyDocument, PlanDocument
from provision.errors import Exit, Issue, RefusedError, UsageError
from provision.lib import own_state
from provision.parts.plan import HostPlan
from provision.rollout import summary as rollout_summary
from provision.rollout.hooks import hooks_of
from provision.rollout.interrupts import Interrupts
from provision.rollout.loop import Outcome, Rollout
from provision.rollout.observers import RunObserver
from provision.rollout.options import RolloutOptions
from provision.rollout.state import (
    DONE,
    HostState,
    Process,
    RunState,
    Store,
    WaveState,
    Where,
    as_state,
    find,
    new_state,
    now,
    read,
)
from provision.rollout.waves import Kind, canaries, kind_of, parts, waves
from provision.runs import engine, left_behind
from provision.runs.fleet import Fleet, Silent, Talk, ask_all, release

# A transaction that compiles modules on a slow host; the role waits for it too, and would say so.
_SETTLE_SECONDS = 1800.0


@dataclass(frozen=True)
class Stages:
    """What will be done when: waves, then hosts that wait for idle GPUs.

    planned: the waves of the whole run. now: hosts of this session by the number of their wave, counted from 1.
    begun: as wanted now, and not proven yet. inserted: (after how many waves, how many) new ones stand among those of the run.
    """

    planned: list[WaveState] = field(default_factory=list)
    now: dict[int, list[str]] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)
    inserted: tuple[int, int] = (0, 0)

    @property
    def hosts(self) -> list[str]:
        """The hosts to change, in the order of their turn."""
        return [name for names in self.now.values() for name in names] + self.waiting


def to_change(plan: PlanDocument) -> list[str]:
    """Return the hosts that apply would change."""
    return [name for name, host in plan.hosts.items() if host.status == "changes"]


def can_wait(fleet: Fleet, options: RolloutOptions) -> set[str]:
    """Return the hosts whose GPUs may be in use when they are planned: they are waited for, or drained."""
    return {
        host.name for host in fleet.hosts if options.wait or "drain" in hooks_of(host.name, fleet.values[host.name])
    }


def stages(fleet: Fleet, plan: PlanDocument, options: RolloutOptions, resumed: RunState | None = None) -> Stages:
    """Say what will be done when.

    resumed: the run that is gone on with: its waves stay as they were planned, and its proven canaries are not chosen again.
    """
    names = to_change(plan)
    hooks = {name: hooks_of(name, fleet.values[name]) for name in names}
    # A host in use that no hook drains has its turn when it is idle, so that nobody waits behind it.
    waiting = [name for name in names if plan.hosts[name].reboot.blocked_by and "drain" not in hooks[name]]
    now_ = [name for name in names if name not in set(waiting)]
    kinds = {name: kind_of(plan.hosts[name]) for name in now_}
    total = resumed.total if resumed and resumed.total else len(names)
    size = options.batch_size(total)
    begun = [
        name
        for name, host in plan.hosts.items()
        if host.status == "converged" and resumed and resumed.hosts[name].began
    ]
    if resumed is not None and resumed.waves:
        return _stages_left(resumed, now_, kinds, size, waiting, begun)
    found = [as_state(wave) for wave in waves(now_, kinds, options.canary, size)]
    for wave in found:
        if wave.kind == "all" and options.staged:
            wave.kind = "batch"
    return Stages(found, {number: wave.hosts for number, wave in enumerate(found, start=1)}, waiting, begun)


def _stages_left(
    run: RunState, hosts: Sequence[str], kinds: Mapping[str, Kind], size: int, waiting: list[str], begun: list[str]
) -> Stages:
    """Put hosts into the waves that the run planned for them; those that have none into waves of their own."""
    planned = [wave.model_copy(deep=True) for wave in run.waves]
    home = {name: wave for wave in planned if wave.kind != "waited" for name in wave.hosts}
    again = [name for name in hosts if name in home and home[name].kind == "canary"]
    others = [name for name in hosts if name not in again]
    # In the place of canaries that cannot be changed now, others come before everything that is no canary.
    chosen = canaries(others, kinds, max(0, run.canaries_left() - len(again)))
    for name in chosen:
        if name in home:
            home.pop(name).hosts.remove(name)
    more = [WaveState(kind="canary", hosts=list(part)) for part in parts(chosen, size)]
    place = sum(wave.kind == "canary" for wave in planned)
    planned[place:place] = more
    new = [name for name in others if name not in home and name not in chosen]
    planned += [WaveState(kind="batch", hosts=list(part)) for part in parts(new, size)]
    left = set(hosts)
    now = {
        number: names
        for number, wave in enumerate(planned, start=1)
        if wave.kind != "waited" and (names := [name for name in wave.hosts if name in left])
    }
    return Stages(planned, now, waiting, begun, (place, len(more)))


def preview(stages: Stages, options: RolloutOptions, total: int) -> list[str]:
    """Return the waves in words, for somebody who is asked to agree; nothing where all is done at once."""
    if len(stages.planned) <= 1 and not stages.waiting:
        return []
    found = [(number, stages.planned[number - 1].kind, names) for number, names in stages.now.items()]
    return rollout_summary.preview(found, len(stages.planned), stages.waiting, options, options.may_fail(total))


def run(
    fleet: Fleet,
    plan: PlanDocument,
    talk: Talk | None = None,
    *,
    options: RolloutOptions | None = None,
    resumed: Store | None = None,
    where: Where | None = None,
    run_base: Path | None = None,
    check: bool = False,
    verbosity: int = 0,
    observers: Sequence[RunObserver] = (),
    planned_at: float | None = None,
    declined: bool = False,
) -> ApplyDocument:
    """Carry out a plan that was shown and agreed to.

    Hosts that are blocked, unreachable or failed stay untouched and are in the document; the others are done. With
    no host to change no playbook is started. check: ansible's check mode, nothing is changed or verified.
    options: how (all at once by default). resumed: the run to go on with (see reopen); plan has its hosts that are left.
    where: kept for --resume. planned_at: time.monotonic() of the plan; plans that are too old are made again.
    declined: somebody said no: nothing is changed, hosts that an earlier session left drained are resumed.
    """
    talk = talk or Silent()
    options = RolloutOptions() if check or options is None else options
    for name, values in fleet.values.items():
        # before anything is touched
        hooks_of(name, values)
    staged = stages(fleet, plan, options, resumed.state if resumed else None)
    if declined:
        staged = Stages(planned=resumed.state.waves if resumed else [])
    names = staged.hosts

    def end_left_behind() -> list[Issue]:
        return [] if check or declined else left_behind.end(fleet, left_behind.of_plan(plan), runs_folder(run_base))

    if resumed is None and not names:
        engine.dismiss()
        document = ApplyDocument(errors=list(plan.errors))
        document.warnings = end_left_behind()
        return _conclude(document, plan, {})
    store = resumed or _new_store(plan, options, staged, where or Where(), run_base, check)
    if resumed is not None:
        _go_on(resumed, plan, staged)
    before = _agreed_before(store, talk)
    own_state.write(store.folder / _plan_name(store.state.sessions), plan.to_json())
    agreed = {name: plan.hosts[name] for name in [*names, *staged.begun]}
    started = time.monotonic()
    interrupts = Interrupts(talk.note)
    actions = Actions(fleet, store, agreed, talk, check, verbosity)
    rollout = Rollout(
        actions,
        store,
        agreed,
        planned_at=planned_at or started,
        interrupts=interrupts,
        before=before,
        observers=observers,
        check=check,
    )
    try:
        with interrupts.caught():
            for observer in rollout.observers:
                observer.begin(store.folder)
            rollout.go(staged.now, staged.waiting, staged.begun)
    finally:
        release(fleet)
        engine.dismiss()
    document = ApplyDocument(errors=list(plan.errors), run_dir=str(store.folder))
    document.seconds = round(time.monotonic() - started, 1)
    document.warnings = end_left_behind()
    _finish(document, plan, store, rollout, declined)
    for observer in rollout.observers:
        observer.at_end(document)
    with store.change() as state:
        state.ended, state.exit_code, state.process = now(), document.exit_code, None
    own_state.write(store.folder / "result.json", document.to_json())
    return document


# ---- the run's folder ----------------------------------------------------------------------------------------------------


def runs_folder(run_base: Path | None) -> Path:
    """Return where runs are kept."""
    return run_base or engine.runs_folder()


def reopen(run: str, run_base: Path | None, talk: Talk) -> Store:
    """Return the state of a run to go on with: ``last``, a part of its name, or its folder.

    Raises UsageError for a run that is not known and RefusedError for one that still goes on. Waits for the
    ansible-playbook that a killed command left behind: what it does on hosts is not to be disturbed.
    """
    folder = find(run, runs_folder(run_base))
    state = read(folder)
    if state.process and state.process.pid != os.getpid() and state.process.alive():
        raise RefusedError(
            "run.active",
            f"{state.run} is still running (process {state.process.pid})",
            hint="wait for its end, or end it with Ctrl-C there",
        )
    if why := state.cut_off():
        talk.note(f"{state.run} was interrupted: {why}")
    if state.playbook and state.playbook.alive():
        talk.note(f"waiting for what is left of {state.run} to end (process {state.playbook.pid})")
        while state.playbook.alive():
            time.sleep(0.5)
    return Store(folder, state)


def part_of(fleet: Fleet, state: RunState, limit: str | None) -> Fleet:
    """Return the fleet with only the hosts of a run that are left, or that are still drained.

    Raises UsageError for hosts of the run that the inventory does not have (any more), unless limit leaves them out, and for
    variables that the run was given on its command line and this call was not.
    """
    missing = [name for name in state.where.extra_vars if name not in fleet.inventory.extra_vars]
    if missing:
        raise UsageError(
            "usage.resume",
            f"the run was given -e {', '.join(missing)}, and this call is not",
            because=["values that may be secrets are not kept"],
            hint=f"give them again: {state.again}",
        )
    wanted = dict.fromkeys([*state.left(), *state.owing()])
    have = {host.name for host in fleet.hosts}
    gone = [name for name in wanted if name not in have]
    if gone and not limit:
        raise UsageError(
            "usage.resume",
            f"the inventory does not have {rollout_summary.hosts(gone)}, of {state.run}",
            hint="give the inventory that has them (-i), or leave them out: -l 'all'",
        )
    hosts = [host for host in fleet.hosts if host.name in wanted]
    return replace(fleet, inventory=replace(fleet.inventory, hosts=hosts))


def settle(fleet: Fleet, state: RunState, talk: Talk) -> None:
    """Wait, host by host, for what a killed session left running: a host is not planned for in the middle of a transaction."""
    begun = {name for name in state.left() if state.hosts[name].began}
    hosts = [host for host in fleet.hosts if host.name in begun]
    if hosts:
        # A host that does not answer says so when it is planned for.
        ask_all(
            fleet,
            hosts,
            "waiting for changes to finish",
            lambda host, session: session.call(
                "apt.settle", {"timeout": _SETTLE_SECONDS}, timeout=_SETTLE_SECONDS + 30
            ),
            talk,
        )


def _plan_name(session: int) -> str:
    return "plan.json" if session == 1 else f"plan-{session}.json"


def _agreed_before(store: Store, talk: Talk) -> dict[str, list[HostPlan]]:
    """Return what was agreed to in earlier sessions, of the hosts that these began and did not end."""
    found: dict[str, list[HostPlan]] = {}
    begun = [name for name, host in store.state.hosts.items() if host.began]
    for session in range(1, store.state.sessions):
        path = store.folder / _plan_name(session)
        document = own_state.take(path, PlanDocument, talk.note) if begun else None
        hosts = document.hosts if document else {}
        for name in begun:
            if name in hosts:
                found.setdefault(name, []).append(hosts[name])
    return found


def _new_store(
    plan: PlanDocument, options: RolloutOptions, staged: Stages, where: Where, run_base: Path | None, check: bool
) -> Store:
    folder = engine.new_run_dir("apply", run_base)
    hosts = {}
    chosen = {name for wave in staged.planned if wave.kind == "canary" for name in wave.hosts}
    for name, host in plan.hosts.items():
        if host.status == "changes":
            hosts[name] = HostState(summary=host.summary, canary=name in chosen)
        else:
            outcome = rollout_summary.not_changed(host)
            hosts[name] = HostState(status=outcome.status, summary=outcome.applied.summary)
    state = new_state(folder.name, options, where, staged.planned, hosts)
    state.total += len(staged.waiting)
    state.left_out = plan.left_out
    store = Store(folder, state, keep=not check)
    with store.change():
        return store


def _go_on(store: Store, plan: PlanDocument, staged: Stages) -> None:
    """Write down that a run goes on: its waves as they were planned, and which of them have hosts that are left."""
    with store.change() as state:
        state.sessions += 1
        state.process, state.playbook = Process.of(os.getpid()), None
        state.stopped = state.ended = state.exit_code = None
        place, more = staged.inserted
        for host_state in state.hosts.values():
            if host_state.wave is not None and host_state.wave > place:
                host_state.wave += more
        state.waves = staged.planned
        for number, wave in enumerate(state.waves, start=1):
            if number in staged.now:
                wave.status = "waiting"
            elif wave.status == "running":
                wave.status = "stopped"
        chosen = {name for wave in state.waves if wave.kind == "canary" for name in wave.hosts}
        for name, host in plan.hosts.items():
            kept = state.hosts[name]
            kept.canary = kept.canary or name in chosen
            if host.status == "changes":
                kept.status, kept.summary = "waiting", host.summary
            elif name in staged.begun:
                kept.status = "running"
            elif kept.status not in DONE:
                outcome = rollout_summary.not_changed(host)
                kept.status, kept.summary = outcome.status, outcome.applied.summary


# ---- the document ----------------------------------------------------------------------------------------------------


def _finish(document: ApplyDocument, plan: PlanDocument, store: Store, rollout: Rollout, declined: bool) -> None:
    """Fill the document with what became of every host of the run, in the order of the run."""
    state = store.state
    outcomes = rollout.outcomes
    if declined:
        outcomes = {
            **{name: rollout_summary.not_begun(plan.hosts[name].summary) for name in to_change(plan)},
            **outcomes,
        }
    codes = [Exit.INTERRUPTED] if rollout.interrupted else []
    _conclude(document, plan, outcomes, codes)
    for name, host in state.hosts.items():
        if name not in document.hosts:
            # Of an earlier session, and none of this one's business (-l): it may not be done.
            status = {"waiting": "not_started", "running": "interrupted"}.get(host.status, host.status)
            document.hosts[name] = AppliedHost.model_validate(
                {"status": status, "summary": host.summary, "wave": host.wave}
            )
            document.conclude([Exit(document.exit_code), Exit.OK if host.status in DONE else Exit.CHANGES])
    document.hosts = {name: document.hosts[name] for name in state.hosts}
    for name, applied in document.hosts.items():
        applied.wave = state.hosts[name].wave
    for outcome in outcomes.values():
        document.errors += outcome.issues
        document.warnings += outcome.warnings
    document.errors += rollout.issues
    if rollout.interrupted and len(state.waves) > 1:
        with store.change():
            state.stopped = state.stopped or "interrupted"
    document.stopped = state.stopped
    left = {name: outcome.applied.because for name, outcome in outcomes.items()}
    ended = (
        rollout_summary.interruption(state, left, check=rollout.check)
        if rollout.interrupted
        else rollout_summary.stopped(state)
    )
    issues = [None if declined else rollout_summary.owing(state), ended]
    document.errors += [issue for issue in issues if issue]
    document.left_out = state.left_out
    if state.owing():
        document.conclude([Exit(document.exit_code), Exit.FAILED])
    document.waves = [_wave(wave) for wave in state.waves]


def _wave(wave: WaveState) -> AppliedWave:
    status = wave.status if wave.status in ("done", "stopped") else "not_begun"
    return AppliedWave.model_validate(
        {"kind": wave.kind, "hosts": wave.hosts, "status": status, "seconds": wave.seconds}
    )


def _conclude(
    document: ApplyDocument, plan: PlanDocument, outcomes: Mapping[str, Outcome], codes: Sequence[Exit] = ()
) -> ApplyDocument:
    found = list(codes)
    document.left_out = plan.left_out
    for name, host in plan.hosts.items():
        outcome = outcomes.get(name) or rollout_summary.not_changed(host)
        document.hosts[name] = outcome.applied
        found.append(outcome.code)
    if plan.exit_code != Exit.CHANGES:
        # it may say more than its hosts (64: values that cannot be used)
        found.append(Exit(plan.exit_code))
    return document.conclude(found)
