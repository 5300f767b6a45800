"""plan: what apply would do, and why. Reads only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from provision import remote
from provision.catalog import Catalog, load_catalog
from provision.documents import PlanDocument
from provision.errors import Exit, ProvisionError
from provision.facts import Facts
from provision.inventory import Host
from provision.lock.pin import find
from provision.parts.plan import HostPlan
from provision.planning import Call, failed_plan, plan_host
from provision.runs.fleet import Fleet, Silent, Talk, ask_all


def run(
    fleet: Fleet,
    talk: Talk | None = None,
    *,
    on_change: Callable[[], None] = lambda: None,
    keep: Callable[[HostPlan], bool] = lambda plan: False,
    waits: Collection[str] = (),
    before: Callable[[str, Any], None] = lambda host, facts: None,
) -> PlanDocument:
    """Plan every host. Exit code by the worst of them: 2 changes, 5 blocked, 4 unreachable, 0 nothing to do.

    on_change: called once, from a thread, as soon as one host will probably have to change (apt is asked).
    keep: see fleet.ask_all. waits: hosts that are planned for as if their GPUs were idle, since they will be waited for or
    drained; who uses them now is in reboot.blocked_by.
    before: called with the facts of each host that has to change, from its thread.
    Raises LockError (exit 64) for a lock that cannot be used, before any host is read.
    """
    for values in list(fleet.values.values())[:1]:
        find(values)
    catalog = load_catalog()
    first = threading.Lock()

    def ask(host: Host, session: remote.Session) -> HostPlan:
        facts: list[Any] = []

        def call(program: str, args: dict[str, Any]) -> Any:
            if program == "apt.query" and first.acquire(blocking=False):
                on_change()
            answer = session.call(program, args)
            if program == "probe.facts" and not facts:
                facts.append(answer)
            return answer

        make = _as_if_idle if host.name in waits else plan_host
        plan = make(host.name, call, dict(fleet.values[host.name]), catalog)
        if plan.status == "changes" and facts:
            before(host.name, facts[0])
        if facts and facts[0].get("run_lock"):
            from provision.runs.run_lock import left_behind

            left = left_behind(host.name, Facts.of_host(facts[0]))
            if left is not None:
                running = session.call("run.tasks", {})["running"]
                left.because += [f"{text} still runs there until it ends" for text in running]
                plan.warnings.append(left)
        return plan

    answers = ask_all(fleet, fleet.hosts, "planning", ask, talk or Silent(), keep=keep)
    document = PlanDocument(catalog=catalog.day)
    codes: list[Exit] = []
    for name, answer in answers.items():
        failed = isinstance(answer, ProvisionError)
        plan: HostPlan = failed_plan(name, answer) if isinstance(answer, ProvisionError) else answer
        document.hosts[name] = plan
        document.errors += plan.blockers
        codes.append(answer.exit_code if failed else plan.exit_code)
    return document.conclude(codes)


def _as_if_idle(name: str, call: Call, values: dict[str, Any], catalog: Catalog) -> HostPlan:
    """Plan a host without regard to work on its GPUs; where the change would disturb it, blocked_by has who it is."""
    users: list[str] = []

    def idle(program: str, args: dict[str, Any]) -> Any:
        answer = call(program, args)
        if program != "probe.facts":
            return answer
        users.extend(described(answer["gpu_users"]))
        return {**answer, "gpu_users": []}

    plan = plan_host(name, idle, values, catalog)
    if plan.status == "changes" and disturbs(plan):
        plan.reboot.blocked_by = users
    return plan


def disturbs(plan: HostPlan) -> bool:
    """True where work on the GPUs keeps a host from its change: the rule of plan.driver, for a plan that did not see any."""
    moves = any(change.part == "driver" for change in plan.packages)
    policy = plan.reboot.policy
    return plan.reboot.needed and (policy == "when_idle" or (policy == "never" and moves))


def described(users: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return facts.GpuUser rows as text: ``python3 (pid 42, root)``."""
    return [f"{user['comm']} (pid {user['pid']}{', ' + user['user'] if user['user'] else ''})" for user in users]
