"""What a rollout says: outcomes with their reasons and hints, and lines for people. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from provision.documents import AppliedHost
from provision.errors import Exit, Issue
from provision.parts.plan import HostPlan
from provision.rollout.options import RolloutOptions
from provision.rollout.state import DONE, UNTOUCHED, RunState
from provision.rollout.waves import WaveKind

if TYPE_CHECKING:
    from provision.rollout.loop import Outcome

_SHOWN = 8
# It was reached, and did not answer in time.
_TOO_SLOW = ("host.slow", "host.timeout")
_STATUS_TEXTS = {
    "unchanged": "as requested",
    "reboot_needed": "waiting for a reboot",
    "restart_needed": "waiting for a restart",
    "check_failed": "with failed checks",
    "not_started": "not begun",
    "busy": "in use",
    "waiting": "later",
    "skipped": "not drained",
}
# How a plan's status reads once nothing is done about the host.
_UNTOUCHED = {"converged": "unchanged", "blocked": "blocked", "unreachable": "unreachable", "failed": "failed"}


# ---- lines ------------------------------------------------------------------------------------------------------------


def hosts(names: Sequence[str], *, whole: bool = False) -> str:
    """Return ``gpu01, gpu02 and 5 more``; whole: with their number, ``gpu01, gpu02 (2 hosts)``."""
    shown = names if len(names) <= _SHOWN + 1 else names[:_SHOWN]
    text = ", ".join(shown) + (f" and {len(names) - len(shown)} more" if len(shown) < len(names) else "")
    return f"{text} ({len(names)} hosts)" if whole and len(names) > 1 else text


def wave(number: int, count: int, kind: WaveKind) -> str:
    """Return ``wave 2 of 5``, with what it is where that is not a batch."""
    what = {"canary": " (canary)", "waited": " (was in use)"}.get(kind, "")
    return f"wave {number} of {count}{what}"


def counts(statuses: Sequence[str]) -> str:
    """Return ``2 done, 1 failed``."""
    seen = Counter(statuses)
    return ", ".join(f"{number} {_STATUS_TEXTS.get(status, status)}" for status, number in seen.items())


def waits(users: dict[str, list[str]]) -> str:
    """Return who is waited for."""
    shown = [f"{name}: {', '.join(who[:2])}" for name, who in list(users.items())[:_SHOWN]]
    more = f"; and {len(users) - _SHOWN} more" if len(users) > _SHOWN else ""
    return f"waiting for GPUs that are in use: {'; '.join(shown)}{more}"


def duration(seconds: float) -> str:
    """Return ``2 h``, ``1 h 30 min``, ``90 s``."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes = whole // 60
    hours, minutes = divmod(minutes, 60)
    return " ".join([*([f"{hours} h"] if hours else []), *([f"{minutes} min"] if minutes else [])])


# ---- outcomes -----------------------------------------------------------------------------------------------------------


def _outcome(status: str, summary: str, code: Exit, *issues: Issue) -> Outcome:
    from provision.rollout.loop import Outcome

    untouched = status not in ("interrupted", "unchanged")
    applied = AppliedHost.model_validate({"status": status, "summary": summary, "untouched": untouched})
    return Outcome(applied, code, list(issues))


def not_changed(plan: HostPlan) -> Outcome:
    """A host that its plan leaves alone: as wanted, blocked, not reached."""
    shown = "; ".join(blocker.message for blocker in plan.blockers) or plan.summary
    issues = [issue.model_copy(update={"host": plan.host}) for issue in plan.blockers]
    if is_busy(plan):
        who = [line for issue in plan.blockers for line in issue.because]
        found = _outcome("busy", f"the GPUs are in use: {', '.join(who[:3])}", plan.exit_code, *issues)
        found.applied.because = who
        return found
    return _outcome(_UNTOUCHED[plan.status], shown, plan.exit_code, *issues)


def is_busy(plan: HostPlan) -> bool:
    """True for a host that only work on its GPUs keeps from its change."""
    return plan.status == "blocked" and {issue.code for issue in plan.blockers} == {"gpu.in_use"}


def busy(plan: HostPlan, users: Sequence[str], waited: float) -> Outcome:
    """A host that was left alone because its GPUs are in use."""
    after = f" after {duration(waited)} of waiting" if waited else ""
    issue = Issue(
        code="gpu.in_use",
        host=plan.host,
        message=f"the GPUs are in use{after}, and the change would disturb them",
        because=list(users)[:8],
        hint="wait longer (--wait), stop them, or have a drain hook do it (gpu_rollout_drain); nvidia_driver_reboot: always "
        "goes ahead anyway",
    )
    found = _outcome("busy", f"the GPUs are in use: {', '.join(list(users)[:3])}", Exit.REFUSED, issue)
    found.applied.because = list(users)
    return found


def refused(plan: HostPlan, issue: Issue) -> Outcome:
    """A host that somebody else has: its lock."""
    issue = issue.model_copy(update={"host": plan.host})
    if issue.code.startswith("connect."):
        return _outcome("unreachable", issue.message, Exit.UNREACHABLE, issue)
    if issue.code in _TOO_SLOW:
        return _outcome("failed", issue.message, Exit.FAILED, issue)
    return _outcome("blocked", issue.message, Exit.REFUSED, issue)


def differs(plan: HostPlan, more: Sequence[str], again: str) -> Outcome:
    """A host whose plan has become another one than was agreed to. again: the command that goes on with the run."""
    issue = Issue(
        code="apply.plan_changed",
        host=plan.host,
        message="its plan is no longer the confirmed one",
        because=[f"now also: {line}" for line in more[:6]] + ([f"and {len(more) - 6} more"] if len(more) > 6 else []),
        hint=f"check the new plan and confirm it: {again}",
    )
    return _outcome("blocked", issue.message, Exit.REFUSED, issue)


def skipped(plan: HostPlan, issue: Issue) -> Outcome:
    """A host that could not be drained: nothing was changed there."""
    found = _outcome("skipped", issue.message, Exit.REFUSED, issue)
    found.applied.drain = "failed"
    return found


def interrupted(summary: str) -> Outcome:
    """A host whose change was begun and is not proven."""
    return _outcome("interrupted", summary, Exit.INTERRUPTED)


def not_begun(summary: str) -> Outcome:
    return _outcome("not_started", summary, Exit.CHANGES)


def resumed(outcome: Outcome, issue: Issue | None) -> None:
    """Write what became of the resume hook into a host's outcome. That a host stays drained is a failure of the run."""
    outcome.applied.resume = "failed" if issue else "ok"
    if issue:
        outcome.issues.append(issue)


# ---- the end ------------------------------------------------------------------------------------------------------------


def stopped(state: RunState) -> Issue | None:
    """What is done, what is not, and what is half-way, where a rollout was stopped; None where it went to its end."""
    if state.stopped is None:
        return None
    groups: dict[str, list[str]] = {"done": [], "half-way": [], "not begun": []}
    for name, host in state.hosts.items():
        if host.status in DONE:
            groups["done"].append(name)
        elif host.status in UNTOUCHED and not host.began:
            if host.wave is not None or host.status == "not_started":
                groups["not begun"].append(name)
        elif host.began:
            groups["half-way"].append(name)
    because = [f"{word}: {hosts(names, whole=True)}" for word, names in groups.items() if names]
    return Issue(
        code="rollout.stopped",
        message=f"the rollout was stopped: {state.stopped}",
        because=because,
        hint=f"fix what failed, then continue with the rest: {state.again}",
    )


def interruption(state: RunState, left: Mapping[str, Sequence[str]], *, check: bool = False) -> Issue:
    """What is done, what is in the middle and what still runs there, and how to go on, after a run was interrupted.

    left: host -> where it was in its change, and what still runs.
    """
    groups: dict[str, list[str]] = {}
    for name, host in state.hosts.items():
        if host.status in ("running", "interrupted"):
            where = "; ".join(left.get(name) or ["its change was begun, and is not proven"])
            groups.setdefault(f"in the middle: {{}}: {where}", []).append(name)
        else:
            status = "not_started" if host.status == "waiting" else host.status
            groups.setdefault(f"{_STATUS_TEXTS.get(status, status)}: {{}}", []).append(name)
    changed = not check and any(host.began for host in state.hosts.values())
    return Issue(
        code="run.interrupted",
        message="interrupted" if changed else "interrupted: nothing was changed",
        because=[shown.replace("{}", hosts(names, whole=True), 1) for shown, names in groups.items()],
        hint="run the command again" if check else f"to continue: {state.again}",
    )


def owing(state: RunState) -> Issue | None:
    """Hosts that are still drained."""
    names = state.owing()
    if not names:
        return None
    return Issue(
        code="rollout.still_drained",
        message=f"still drained: {hosts(names, whole=True)}",
        because=["the resume hook failed there"],
        hint=f"resume them by hand, or have it tried again: {state.again}",
    )


def preview(
    waves: Sequence[tuple[int, WaveKind, Sequence[str]]],
    count: int,
    waiting: Sequence[str],
    options: RolloutOptions,
    may_fail: int | None,
) -> list[str]:
    """Return what will be done when, for somebody who is asked to agree. waves: number, kind and hosts; count: of the run."""
    lines = [f"{wave(number, count, kind)}: {hosts(names, whole=True)}" for number, kind, names in waves]
    if waiting:
        lines.append(
            f"then, when their GPUs are idle (waiting up to {duration(options.wait)}): {hosts(waiting, whole=True)}"
        )
    if count > 1 and may_fail is not None:
        lines.append(f"stops when more than {may_fail} fail" if may_fail else "stops when one fails")
    return lines
