"""What a play left on one host, as apply's document and its errors say it."""

from __future__ import annotations

from collections.abc import Sequence

from provision.documents import AppliedHost
from provision.errors import Exit, Issue
from provision.parts.plan import HostPlan
from provision.rollout.loop import Outcome
from provision.runs import engine
from provision.runs.engine import Event, HostOutcome
from provision.runs.fleet import Talk


def host_outcome(name: str, outcome: HostOutcome, plan: HostPlan, check: bool, again: str) -> Outcome:
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
    go_on = f"continue: {again}"
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
        hint=f"check its console; when it is up, continue: {again}",
    )


def reboot_issue(host: str, because: list[str], why_left: Sequence[str] = (), again: str = "") -> Issue:
    """What is left to the owner of a host whose reboot is not ours to do. why_left: what kept us from it, if not the owner.

    again: the command that goes on with the run.
    """
    hint = "reboot it when convenient, then run: provision verify"
    if why_left:
        hint = f"reboot it when convenient, then continue: {again}"
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
