"""apply: carry a plan out, then prove it by a fresh read: all hosts at once, or a few at a time.

What comes after what is in ``provision.rollout.loop``; here is how it is done: Ansible, the fast read, hooks.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.run import hook as run_hook
from provision import remote
from provision.collection import ROOT
from provision.commands import plan as planning
from provision.commands import verify
from provision.documents import AppliedHost, AppliedWave, ApplyDocument, PlanDocument
from provision.errors import Exit, Issue, ProvisionError, RefusedError, UsageError
from provision.inventory import Host
from provision.lib import own_state
from provision.parts.plan import HostPlan
from provision.rollout import summary as rollout_summary
from provision.rollout.hooks import SPARE_SECONDS, Hook, failed, hooks_of, judge
from provision.rollout.interrupts import Interrupts
from provision.rollout.loop import HookResult, Outcome, Rollout
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
from provision.runs.engine import Event, HostOutcome
from provision.runs.fleet import Fleet, Silent, Talk, ask_all, release

_PLAYBOOK = ROOT / "playbooks/site.yml"
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


def stays_up(plan: HostPlan) -> bool:
    """True for a host that changes without a reboot: its session will do for the proof."""
    return plan.status == "changes" and not plan.reboot.needed


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
    actions = _Actions(fleet, store, agreed, talk, check, verbosity)
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
            f"{state.run} still goes on (process {state.process.pid})",
            hint="wait for its end, or end it with Ctrl-C there",
        )
    if why := state.cut_off():
        talk.note(f"{state.run} was cut off: {why}")
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
            "waiting for what was begun",
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


# ---- how things are done -------------------------------------------------------------------------------------------------


class _Actions:
    """The real thing for a Rollout: Ansible, the fast read, the hooks."""

    def __init__(
        self, fleet: Fleet, store: Store, agreed: Mapping[str, HostPlan], talk: Talk, check: bool, verbosity: int
    ) -> None:
        self.fleet, self.store, self.agreed, self.talk = fleet, store, agreed, talk
        self.check, self.verbosity = check, verbosity
        self._hooks = {name: hooks_of(name, values) for name, values in fleet.values.items()}

    def drains(self, host: str) -> bool:
        return "drain" in self._hooks[host]

    def note(self, text: str) -> None:
        self.talk.note(text)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    @contextlib.contextmanager
    def waiting(self, hosts: Sequence[str]) -> Iterator[Callable[[Mapping[str, list[str]], float], None]]:
        def show(users: Mapping[str, list[str]], left: float) -> None:
            for name in hosts:
                if name in users:
                    self.talk.host(name, f"in use by {', '.join(users[name])}; {rollout_summary.duration(left)} left")
                else:
                    self.talk.host(name, "idle", state="ok")

        self.talk.begin("waiting for idle GPUs", hosts)
        try:
            yield show
        finally:
            self.talk.end()

    def prepare(self) -> None:
        engine.make_ready(self.fleet.inventory)

    def _of(self, names: Sequence[str]) -> list[Host]:
        wanted = set(names)
        return [host for host in self.fleet.hosts if host.name in wanted]

    # -- hooks

    def hook(self, phase: str, hosts: Sequence[str], wave: int) -> dict[str, HookResult]:
        having = [host for host in self._of(hosts) if phase in self._hooks[host.name]]
        title = "draining" if phase == "drain" else "resuming"
        self.talk.begin(title, [host.name for host in having])

        def one(host: Host) -> Issue | None:
            self.talk.host(host.name, title)
            return self._run_hook(phase, host, self._hooks[host.name][phase], wave)

        def report(host: Host, result: Issue | None | ProvisionError) -> None:
            issue = result.issue if isinstance(result, ProvisionError) else result
            if issue is None:
                self.talk.host(host.name, "drained" if phase == "drain" else "resumed", state="ok")
            else:
                self.talk.host(host.name, issue.message, state="failed")

        try:
            results = remote.for_each(having, one, forks=self.fleet.forks, on_done=report)
        finally:
            self.talk.end()
        # without this hook there is nothing to fail
        found = {name: HookResult() for name in hosts}
        for name, result in results.items():
            if isinstance(result, ProvisionError):
                hook = self._hooks[name][phase]
                because = [result.issue.message, *result.issue.because][:6]
                result = failed(phase, name, hook, "could not be run", because, self.store.state.again)
            found[name] = HookResult(result)
        return found

    def _run_hook(self, phase: str, host: Host, hook: Hook, wave: int) -> Issue | None:
        args: dict[str, Any] = {
            "command": list(hook.command),
            "timeout": hook.timeout,
            "environment": hook.environment(phase, host.name, self.store.state.run, wave),
        }
        if hook.on == "controller":
            answer = run_hook.run(args["command"], args["environment"], args["timeout"])
        else:
            with contextlib.closing(remote.open_session(host)) as session:
                answer = session.call("run.hook", args, timeout=hook.timeout + SPARE_SECONDS)
        return judge(phase, host.name, hook, answer, self.store.state.again)

    # -- reading

    def plan(self, hosts: Sequence[str]) -> dict[str, HostPlan]:
        part = replace(self.fleet, inventory=replace(self.fleet.inventory, hosts=self._of(hosts)))
        return planning.run(part, _Titled(self.talk, "looking again"), keep=stays_up, waits=set(hosts)).hosts

    def users(self, hosts: Sequence[str]) -> dict[str, list[str] | None]:
        def ask(host: Host) -> list[str]:
            with contextlib.closing(remote.open_session(host)) as session:
                return planning.described(session.call("probe.gpu_users", {})["gpu_users"])

        answers = remote.for_each(self._of(hosts), ask, forks=self.fleet.forks)
        return {name: None if isinstance(answer, ProvisionError) else answer for name, answer in answers.items()}

    # -- changing

    def play(self, wave: int, title: str, plans: Mapping[str, HostPlan]) -> tuple[dict[str, Outcome], bool]:
        names = list(plans)
        folder, plan_file = self._folder(wave, plans)
        self.talk.begin(f"{title}checking (nothing is changed)" if self.check else f"{title}applying", names)
        try:
            result = engine.run_playbook(
                _PLAYBOOK,
                self.fleet.inventory,
                names,
                {"gpu_provision_plan_file": str(plan_file), "gpu_provision_run": self.store.state.run},
                folder,
                lambda event: show_event(self.talk, event),
                forks=self.fleet.forks,
                check=self.check,
                verbosity=self.verbosity,
                pythons={name: plans[name].spec.get("python", {}) for name in names},
                on_start=self._started,
            )
        finally:
            self.talk.end()
        with self.store.change() as state:
            state.playbook = None
        again = self.store.state.again
        outcomes = {name: _outcome(name, result.hosts[name], plans[name], self.check, again) for name in names}
        if result.interrupted:
            middle = [name for name in names if outcomes[name].status == "interrupted"]
            for name, still in left_behind.still_running(self.fleet, middle).items():
                outcomes[name].applied.because.append(still)
        return outcomes, result.interrupted

    def _started(self, pid: int) -> None:
        with self.store.change() as state:
            state.playbook = Process.of(pid)

    def _folder(self, wave: int, plans: Mapping[str, HostPlan]) -> tuple[Path, Path]:
        """Return (where this wave's log and events go, the file of its plans): the run's own folder for its only wave."""
        state, folder = self.store.state, self.store.folder
        if len(state.waves) > 1 or state.sessions > 1:
            again = f"-session-{state.sessions}" if state.sessions > 1 else ""
            folder = folder / f"wave-{wave:02d}{again}"
            folder.mkdir(mode=0o700, exist_ok=True)
        if folder == self.store.folder and all(plan is self.agreed[name] for name, plan in plans.items()):
            return folder, folder / "plan.json"
        plan_file = folder / "wave.json"
        own_state.write(plan_file, PlanDocument(hosts=dict(plans)).to_json())
        return folder, plan_file

    def prove(self, title: str, outcomes: Mapping[str, Outcome]) -> None:
        hosts = self._of([name for name, outcome in outcomes.items() if outcome.status == "done"])
        if not hosts:
            return
        verified = verify.run(self.fleet, _Titled(self.talk, title), hosts, keep=True)
        for name, result in verified.hosts.items():
            outcome = outcomes[name]
            outcome.applied.checks = result.checks
            outcome.issues += [issue for issue in verified.errors if issue.host == name]
            if result.status == "fail":
                outcome.applied.status, outcome.code = "check_failed", Exit.CHECK_FAILED
            elif result.status == "unreachable":
                outcome.applied.status, outcome.code = "unreachable", Exit.UNREACHABLE
            elif result.status == "failed":
                outcome.applied.status, outcome.code = "failed", Exit.FAILED


class _Titled:
    """A Talk with another title."""

    def __init__(self, talk: Talk, title: str) -> None:
        self._talk, self._title = talk, title

    def begin(self, title: str, hosts: Sequence[str]) -> None:
        self._talk.begin(self._title, hosts)

    def host(self, name: str, text: str, *, state: str = "running") -> None:
        self._talk.host(name, text, state=state)

    def note(self, text: str) -> None:
        self._talk.note(text)

    def end(self) -> None:
        self._talk.end()


def _outcome(name: str, outcome: HostOutcome, plan: HostPlan, check: bool, again: str) -> Outcome:
    """Return what a play did on one host, as the document says it. again: the command that goes on with the run."""
    status: str = outcome.status
    code, issues, lost = outcome.exit_code, [outcome.issue] if outcome.issue else [], False
    if outcome.status in ("interrupted", "not_started") and outcome.issue is not None:
        # What was interrupted is said once, of the whole run.
        issues = []
    elif outcome.issue is not None and outcome.issue.code == "verify.failed":
        status, code = "check_failed", Exit.CHECK_FAILED
    elif outcome.status == "failed" and outcome.issue is not None and did_not_come_back(outcome):
        status, code, lost = "unreachable", Exit.UNREACHABLE, True
        issues = [not_back_issue(name, outcome.issue, plan, again)]
    elif outcome.issue is not None and status in ("failed", "unreachable") and not check:
        issues = [_go_on_after(outcome.issue, outcome.untouched, again)]
    if status in ("ok", "changed"):
        left = "reboot_needed" if outcome.reboot_required else "restart_needed"
        waits = outcome.reboot_required or outcome.restart_required is not None
        status = "checked" if check else left if waits else "done"
        if status == "reboot_needed":
            issues.append(reboot_issue(name, plan.reboot.because, outcome.reboot_because, again))
        elif status == "restart_needed":
            issues.append(restart_issue(name, outcome.restart_required or []))
    task = (outcome.running_task or "").rpartition(" : ")[2]
    applied = AppliedHost.model_validate(
        {
            "status": status,
            "summary": plan.summary,
            "changed": outcome.changed,
            "failed_task": outcome.failed_task,
            "untouched": outcome.untouched,
            "rebooted": outcome.rebooted,
            "because": [f"in {task!r}"] if task else [],
        }
    )
    return Outcome(applied, code, issues, lost, outcome.warnings)


def _go_on_after(issue: Issue, untouched: bool, again: str) -> Issue:
    """The error of a host that failed, with how to go on."""
    go_on = f"go on: {again}"
    because = [*issue.because, *(["nothing was changed on it this time"] if untouched else [])]
    return issue.model_copy(update={"because": because, "hint": f"{issue.hint}; then {go_on}" if issue.hint else go_on})


def did_not_come_back(outcome: HostOutcome) -> bool:
    """True where a reboot was begun and no other boot answered in time. Source: ansible.builtin.reboot compares boot_id."""
    action = (outcome.failed_action or "").rpartition(".")[2]
    return action == "reboot" and outcome.issue is not None and "Timed out waiting" in outcome.issue.message


def not_back_issue(host: str, issue: Issue, plan: HostPlan, again: str) -> Issue:
    """A host that was rebooted and did not come back within its time limit."""
    limit = ((plan.spec.get("parts") or {}).get("nvidia_driver") or {}).get("reboot", {}).get("timeout")
    within = f" within {limit} s (nvidia_driver_reboot_timeout)" if limit else ""
    return Issue(
        code="reboot.not_back",
        host=host,
        message=f"did not come back from its reboot{within}",
        because=[issue.message.partition(": ")[2] or issue.message, *issue.because][:4],
        hint=f"look at its console; when it is up, go on: {again}",
    )


def reboot_issue(host: str, because: list[str], why_left: Sequence[str] = (), again: str = "") -> Issue:
    """What is left to the owner of a host whose reboot is not ours to do. why_left: what kept us from it, if not the owner.

    again: the command that goes on with the run.
    """
    hint = "reboot it when it suits, then run: provision verify"
    if why_left:
        hint = f"reboot it when it suits, then go on: {again}"
    return Issue(
        code="reboot.needed",
        host=host,
        message="done, and a reboot is needed",
        because=[*why_left, *because],
        hint=hint,
    )


def restart_issue(host: str, because: list[str]) -> Issue:
    """What is left to the owner of a host whose containers a restart would end."""
    return Issue(
        code="restart.needed",
        host=host,
        message="done, and a daemon has to be restarted",
        because=because,
        hint="when these containers have ended, run apply again: it restarts then, unless container_toolkit_restart is "
        "never, which leaves it to you; always does it at once",
    )


def show_event(talk: Talk, event: Event) -> None:
    """Say what an event of the run means for its host."""
    kind, host = event["event"], event.get("host")
    if host is None:
        return
    if kind == "host_start":
        rebooting = engine.is_reboot(event)
        talk.host(host, "rebooting" if rebooting else event["task"])
    elif kind == "ok" and event["changed"]:
        talk.host(host, event["task"], state="changed")
    elif kind == "unreachable" or (kind == "failed" and not event.get("ignored")):
        talk.host(host, f"{event['task']}: {engine.said(event).splitlines()[0]}", state="failed")
