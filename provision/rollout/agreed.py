"""What somebody agreed to, and whether a later plan asks for more than that. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from provision.parts.plan import HostPlan

_WITH_PACKAGES = ("packages", "hold", "boot")


def beyond(agreed: Sequence[HostPlan], now: HostPlan) -> list[str]:
    """Return what a later plan would do that no agreed one said, as text; empty: nothing.

    agreed: the plans of one host, of each session of a run. Less than what was agreed to is no surprise: part of it is done.
    """
    found = []
    said = {(change.action, change.name, change.version) for plan in agreed for change in plan.packages}
    for change in now.packages:
        if (change.action, change.name, change.version) not in said:
            found.append(" ".join(filter(None, (change.action, change.name, change.version))))
    if now.reboot.needed and not any(plan.reboot.needed for plan in agreed):
        found.append("reboot: " + "; ".join(now.reboot.because))
    steps: Counter[tuple[str, str]] = Counter()
    for plan in agreed:
        steps |= Counter((step.part, step.id) for step in plan.steps)
    details = {(step.part, step.id, line) for plan in agreed for step in plan.steps for line in step.details}
    # Packages that change bring these along: a host that is half-way may show them as steps of their own.
    implied = {(part, id_) for part, step_id in steps if step_id == "packages" for id_ in _WITH_PACKAGES}
    for step in now.steps:
        kind = (step.part, step.id)
        if kind in implied:
            continue
        if steps[kind] <= 0:
            if step.id != "reboot":
                found.append(step.title)
        else:
            steps[kind] -= 1
            found += [line for line in step.details if (*kind, line) not in details]
    if now.steps and now.summary not in {plan.summary for plan in agreed}:
        found.append(f"what it leads to: {now.summary}, where {agreed[-1].summary} was agreed to")
    return list(dict.fromkeys(found))
