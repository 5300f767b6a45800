"""Made-up fleets for rollouts: each host has a fate, every call is written down, and the controller can be killed anywhere."""

from __future__ import annotations

import re
from contextlib import contextmanager
from types import SimpleNamespace

from provision.commands import apply
from provision.documents import AppliedHost, ApplyDocument, PlanDocument
from provision.errors import Exit, Issue
from provision.parts.plan import HostPlan, PackageChange, Reboot, Step
from provision.rollout import loop
from provision.rollout.interrupts import Interrupts
from provision.rollout.loop import HookResult, Outcome, Rollout
from provision.rollout.observers import RunObserver
from provision.rollout.state import HostState, RunState, Store, Where, new_state


class KilledError(BaseException):
    """kill -9: nothing that comes after it happens."""


def plan(name, kind="A", version="1", users=()):
    return HostPlan(
        host=name,
        status="changes",
        gpus=[f"1 x {kind}"],
        summary="driver",
        spec={},
        packages=[PackageChange(action="install", name="driver", version=version)],
        steps=[Step(id="packages", title="install", because="because")],
        reboot=Reboot(needed=True, because=["because"], blocked_by=list(users)),
    )


class Memory(Store):
    """A store whose disk is a text; after a kill nothing reaches it any more."""

    def __init__(self, state):
        super().__init__(None, state, keep=False)
        self.killed, self.saved = False, state.model_dump_json(by_alias=True)

    @contextmanager
    def change(self):
        yield self.state
        if not self.killed:
            self.saved = self.state.model_dump_json(by_alias=True)


class World:
    """The hosts: what they are like, what was done to them, over all sessions of a run."""

    def __init__(self, hosts, drains=(), locked=()):
        self.fates, self.kinds = {}, {}
        for name, fate in hosts.items():
            self.fates[name], self.kinds[name] = fate if isinstance(fate, list) else (fate, "A")
        self.hooks = {name: name in drains for name in hosts}
        self.locked = set(locked)
        self.looks = dict.fromkeys(hosts, 0)
        self.converged = set()
        self.drained = set()
        # (kind, hosts)
        self.events = []
        self.now = 0.0
        # number of the event at which the controller is killed
        self.kill_at = None
        # (kind, N): at the Nth event of a kind
        self.kill_on = None

    def event(self, kind, hosts):
        self.events.append((kind, list(hosts)))
        assert len(self.events) < 10_000, "it does not end"
        count = sum(other == kind for other, _ in self.events)
        if self.kill_on == (kind, count) or (self.kill_at is not None and len(self.events) > self.kill_at):
            raise KilledError

    def users(self, name):
        """Who is on the GPUs at this look."""
        fate = self.fates[name]
        self.looks[name] += 1
        if fate == "busy":
            return ["python3 (pid 1)"]
        if fate.startswith("used at "):
            return ["python3 (pid 1)"] if str(self.looks[name]) in fate.split()[2:] else []
        match = re.fullmatch(r"busy(\d+)", fate)
        return ["python3 (pid 1)"] if match and self.looks[name] < int(match[1]) else []

    def plan(self, name, *, first):
        fate = self.fates[name]
        settled = fate == "settles" and any(kind == "play" for kind, _ in self.events) and not first
        if name in self.converged or settled or (fate == "converged" and not first):
            return HostPlan(host=name, status="converged", gpus=[f"1 x {self.kinds[name]}"], summary="driver")
        if fate == "away" or (not first and fate in ("gone", "blocked")):
            status = "blocked" if fate == "blocked" else "unreachable"
            issue = Issue(code="connect.refused" if status == "unreachable" else "apt.broken", message="m", hint="h")
            return HostPlan(host=name, status=status, blockers=[issue])
        if fate == "dies" and name in self.drained:
            issue = Issue(code="connect.refused", host=name, message="m", hint="h")
            return HostPlan(host=name, status="unreachable", blockers=[issue])
        version = "2" if fate == "changed" and not first else "1"
        return plan(name, self.kinds[name], version, self.users(name))

    def plans(self, hosts, options):
        """The document of a plan of the whole fleet, as the command makes it."""
        document = PlanDocument()
        codes = []
        for name in hosts:
            made = self.plan(name, first=True)
            if made.reboot.blocked_by and not (options.wait or self.hooks[name]):
                issue = Issue(code="gpu.in_use", host=name, message="in use", because=made.reboot.blocked_by)
                made = made.model_copy(update={"status": "blocked", "blockers": [issue], "steps": []})
                document.errors.append(issue)
            document.hosts[name] = made
            codes.append(made.exit_code)
        return document.conclude(codes)


class Fake:
    """Actions on a World."""

    def __init__(self, world, store):
        self.world, self.store = world, store
        self.notes, self.titles = [], []

    def _event(self, kind, hosts):
        if self.store.killed:
            raise KilledError
        try:
            self.world.event(kind, hosts)
        except KilledError:
            self.store.killed = True
            raise

    def drains(self, host):
        return self.world.hooks[host]

    def prepare(self):
        return

    def note(self, text):
        self.notes.append(text)

    @contextmanager
    def waiting(self, hosts):
        yield lambda users, left: None

    def sleep(self, seconds):
        self._event("sleep", [])
        self.world.now += seconds

    def hook(self, phase, hosts, wave):
        found = {}
        for name in hosts:
            self._event(phase, [name])
            bad = {"drain": "undrained", "resume": "stuck"}[phase] == self.world.fates[name]
            found[name] = HookResult(Issue(code=f"rollout.{phase}_failed", host=name, message="m") if bad else None)
            if phase == "drain":
                self.world.drained.add(name)
            elif not bad:
                self.world.drained.discard(name)
        return found

    def plan(self, hosts):
        self._event("plan", hosts)
        return {name: self.world.plan(name, first=False) for name in hosts}

    def users(self, hosts):
        self._event("users", hosts)
        return {name: self.world.users(name) for name in hosts}

    def play(self, wave, title, plans):
        self._event("play", list(plans))
        self.titles.append(title)
        found = {name: self._played(name) for name in plans}
        self._event("played", list(plans))
        return found, any(self.world.fates[name] == "stopped" for name in plans)

    def _played(self, name):
        fate = self.world.fates[name]
        status, code, lost = {
            "fails": ("failed", Exit.FAILED, False),
            "lost": ("unreachable", Exit.UNREACHABLE, True),
            "waits": ("reboot_needed", Exit.REBOOT_NEEDED, False),
        }.get(fate, ("done", Exit.OK, False))
        if status == "done":
            self.world.converged.add(name)
        return Outcome(AppliedHost(status=status, summary="driver"), code, [], lost)

    def prove(self, title, outcomes):
        hosts = [name for name, outcome in outcomes.items() if outcome.status == "done"]
        if not hosts:
            return
        self._event("prove", hosts)
        self.titles.append(title)
        for name in hosts:
            if self.world.fates[name] == "checks":
                outcomes[name].applied.status, outcomes[name].code = "check_failed", Exit.CHECK_FAILED


class Locks(RunObserver):
    def __init__(self, world):
        self.world, self.held, self.log = world, set(), []

    def before_wave(self, wave, hosts):
        refused = {n: Issue(code="host.locked", message="m") for n in hosts if n in self.world.locked}
        self.held |= {name for name in hosts if name not in refused}
        return refused

    def after_host(self, host, result):
        self.held.remove(host)
        self.log.append((host, result.status))


def session(world, options, saved=None, planned_ago=0.0):
    """Run one session: a new run, or one that goes on from a saved state. Returns (store, rollout, document).

    planned_ago: seconds between the plan that was agreed to and the first wave.
    """
    fleet = SimpleNamespace(
        values={
            name: {"gpu_rollout_drain": {"command": ["drain"]}, "gpu_rollout_resume": {"command": ["resume"]}}
            if has
            else {}
            for name, has in world.hooks.items()
        }
    )
    if saved is None:
        planned = world.plans(world.fates, options)
        staged = apply.stages(fleet, planned, options)
        hosts = {
            name: HostState(summary=host.summary)
            if host.status == "changes"
            else HostState(status=loop.rollout_summary.not_changed(host).status)
            for name, host in planned.hosts.items()
        }
        for wave in staged.planned:
            for name in wave.hosts if wave.kind == "canary" else ():
                hosts[name].canary = True
        state = new_state("run", options, Where(), staged.planned, hosts)
        state.total += len(staged.waiting)
        store = Memory(state)
    else:
        store = Memory(RunState.model_validate_json(saved))
        wanted = dict.fromkeys([*store.state.left(), *store.state.owing()])
        planned = world.plans([name for name in world.fates if name in wanted], options)
        staged = apply.stages(fleet, planned, options, store.state)
        apply._go_on(store, planned, staged)
    agreed = {name: planned.hosts[name] for name in [*staged.hosts, *staged.begun]}
    before, loop.time = loop.time, SimpleNamespace(monotonic=lambda: world.now)
    locks = Locks(world)
    rollout = Rollout(
        Fake(world, store),
        store,
        agreed,
        planned_at=world.now - planned_ago,
        interrupts=Interrupts(),
        observers=[locks],
    )
    try:
        rollout.go(staged.now, staged.waiting, staged.begun)
        assert not locks.held, "what before_wave gave is taken back"
    except KilledError:
        return store, rollout, None
    finally:
        loop.time = before
    document = ApplyDocument(errors=list(planned.errors))
    apply._finish(document, planned, store, rollout, False)
    return store, rollout, document
