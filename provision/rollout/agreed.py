"""What somebody agreed to, and whether a later plan asks for more than that. Pure."""

from __future__ import annotations

from collections import Counter

from provision.plan import HostPlan


def beyond(agreed: HostPlan, now: HostPlan) -> list[str]:
    """Return what a later plan would do that the agreed one did not say, in a person's words; empty: nothing.

    Less than what was agreed to is no surprise: part of it is done already.
    """
    found = []
    said = {(change.action, change.name, change.version) for change in agreed.packages}
    for change in now.packages:
        if (change.action, change.name, change.version) not in said:
            found.append(" ".join(filter(None, (change.action, change.name, change.version))))
    if now.reboot.needed and not agreed.reboot.needed:
        found.append("reboot: " + "; ".join(now.reboot.because))
    steps = Counter((step.part, step.id) for step in agreed.steps)
    details = {(step.part, step.id, line) for step in agreed.steps for line in step.details}
    for step in now.steps:
        kind = (step.part, step.id)
        if steps[kind] <= 0:
            if step.id != "reboot":
                found.append(step.title)
        else:
            steps[kind] -= 1
            found += [line for line in step.details if (*kind, line) not in details]
    if now.summary != agreed.summary and now.steps:
        found.append(f"what it leads to: {now.summary}, where {agreed.summary} was agreed to")
    return list(dict.fromkeys(found))
