"""plan: what apply would do, and why. Reads only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from provision import remote
from provision.catalog import load_catalog
from provision.commands.fleet import Fleet, Silent, Talk, ask_all
from provision.documents import PlanDocument
from provision.errors import Exit, ProvisionError
from provision.inventory import Host
from provision.plan import HostPlan
from provision.planning import failed_plan, plan_host


def run(
    fleet: Fleet,
    talk: Talk | None = None,
    *,
    on_change: Callable[[], None] = lambda: None,
    keep: Callable[[HostPlan], bool] = lambda plan: False,
) -> PlanDocument:
    """Plan every host. Exit code by the worst of them: 2 changes, 5 blocked, 4 unreachable, 0 nothing to do.

    on_change: called once, from a thread, as soon as one host will probably have to change (apt is asked).
    keep: see fleet.ask_all.
    """
    catalog = load_catalog()
    first = threading.Lock()

    def ask(host: Host, session: remote.Session) -> HostPlan:
        def call(program: str, args: dict[str, Any]) -> Any:
            if program == "aptquery" and first.acquire(blocking=False):
                on_change()
            return session.call(program, args)

        return plan_host(host.name, call, dict(fleet.values[host.name]), catalog)

    answers = ask_all(fleet, fleet.hosts, "planning", ask, talk or Silent(), keep=keep)
    document = PlanDocument()
    codes: list[Exit] = []
    for name, answer in answers.items():
        failed = isinstance(answer, ProvisionError)
        plan: HostPlan = failed_plan(name, answer) if isinstance(answer, ProvisionError) else answer
        document.hosts[name] = plan
        document.errors += plan.blockers
        codes.append(answer.exit_code if failed else plan.exit_code)
    return document.conclude(codes)
