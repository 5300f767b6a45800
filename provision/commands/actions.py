"""How a rollout does things: Ansible changes, the fast read plans and proves, hooks drain and resume."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.run import hook as run_hook
from provision import remote
from provision.collection import ROOT
from provision.commands import plan as planning
from provision.commands import verify
from provision.commands.outcomes import host_outcome, show_event
from provision.documents import PlanDocument
from provision.errors import Exit, Issue, ProvisionError
from provision.inventory import Host
from provision.lib import own_state
from provision.parts import registry
from provision.parts.plan import HostPlan
from provision.rollout import summary as rollout_summary
from provision.rollout.hooks import SPARE_SECONDS, Hook, failed, hooks_of, judge
from provision.rollout.loop import HookResult, Outcome
from provision.rollout.state import Process, Store
from provision.runs import engine, left_behind
from provision.runs.fleet import Fleet, Talk
from provision.runs.following import following

_PLAYBOOK = ROOT / "playbooks/site.yml"
# Tag of its tasks that only plain Ansible needs: the host's lock and the proof are this command's own work.
_OWN = "alone"


def idle_roles(plans: Iterable[HostPlan]) -> list[str]:
    """Roles of site.yml with nothing to do on any of these hosts: each of their tasks would cost every host a process.

    The driver's role is always played: what the parts have in common, the packages and the reboot, is done there. So is a role
    of which a plan says nothing.
    """
    specs = [plan.spec.get("parts", {}) for plan in plans]
    roles = [part.role for part in registry.PARTS if part.name != "driver"]
    return [role for role in roles if all(role in spec and not any(spec[role].values()) for spec in specs)]


def stays_up(plan: HostPlan) -> bool:
    """True for a host that changes without a reboot: its session will do for the proof."""
    return plan.status == "changes" and not plan.reboot.needed


class Actions:
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
        return planning.run(part, Titled(self.talk, "looking again"), keep=stays_up, waits=set(hosts)).hosts

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
            sizes = {name: plan.download_bytes for name, plan in plans.items()}
            with following(self.fleet, self.talk, lambda event: show_event(self.talk, event), sizes) as on_event:
                result = engine.run_playbook(
                    _PLAYBOOK,
                    self.fleet.inventory,
                    names,
                    {"gpu_provision_plan_file": str(plan_file), "gpu_provision_run": self.store.state.run},
                    folder,
                    on_event,
                    forks=self.fleet.forks,
                    check=self.check,
                    verbosity=self.verbosity,
                    pythons={name: plans[name].spec.get("python", {}) for name in names},
                    skip_tags=[_OWN, *idle_roles(plans.values())],
                    on_start=self._started,
                )
        finally:
            self.talk.end()
        with self.store.change() as state:
            state.playbook = None
        again = self.store.state.again
        outcomes = {name: host_outcome(name, result.hosts[name], plans[name], self.check, again) for name in names}
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
        verified = verify.run(self.fleet, Titled(self.talk, title), hosts, keep=True)
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


class Titled:
    """A Talk with another title."""

    def __init__(self, talk: Talk, title: str) -> None:
        self._talk, self._title, self.live = talk, title, talk.live

    def begin(self, title: str, hosts: Sequence[str]) -> None:
        self._talk.begin(self._title, hosts)

    def host(self, name: str, text: str, *, state: str = "running") -> None:
        self._talk.host(name, text, state=state)

    def note(self, text: str) -> None:
        self._talk.note(text)

    def end(self) -> None:
        self._talk.end()
