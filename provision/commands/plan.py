"""plan: what apply would do, and why. Reads only."""

from __future__ import annotations

from provision.catalog import load_catalog
from provision.commands.fleet import Fleet, Silent, Talk, ask_all
from provision.documents import PlanDocument
from provision.errors import Exit, ProvisionError
from provision.plan import HostPlan
from provision.planning import failed_plan, plan_host


def run(fleet: Fleet, talk: Talk | None = None) -> PlanDocument:
    """Plan every host. Exit code by the worst of them: 2 changes, 5 blocked, 4 unreachable, 0 nothing to do."""
    catalog = load_catalog()
    answers = ask_all(
        fleet,
        fleet.hosts,
        "planning",
        lambda host, session: plan_host(host.name, session.call, dict(fleet.values[host.name]), catalog),
        talk or Silent(),
    )
    document = PlanDocument()
    codes: list[Exit] = []
    for name, answer in answers.items():
        failed = isinstance(answer, ProvisionError)
        plan: HostPlan = failed_plan(name, answer) if isinstance(answer, ProvisionError) else answer
        document.hosts[name] = plan
        document.errors += plan.blockers
        codes.append(answer.exit_code if failed else plan.exit_code)
    return document.conclude(codes)
