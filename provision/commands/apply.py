"""apply: carry a plan out, then prove it by a fresh read. The only command of these that changes hosts."""

from __future__ import annotations

from pathlib import Path

from provision import engine
from provision.collection import ROOT
from provision.commands import verify
from provision.commands.fleet import Fleet, Silent, Talk, release
from provision.documents import AppliedHost, ApplyDocument, PlanDocument
from provision.engine import Event, HostOutcome
from provision.errors import Exit, Issue
from provision.plan import HostPlan

_PLAYBOOK = ROOT / "playbooks/site.yml"
# How a plan's status reads once nothing is done about the host.
_UNTOUCHED = {
    "converged": "unchanged",
    "blocked": "blocked",
    "unreachable": "unreachable",
    "failed": "failed",
}


def to_change(plan: PlanDocument) -> list[str]:
    """Return the hosts that apply would change."""
    return [name for name, host in plan.hosts.items() if host.status == "changes"]


def stays_up(plan: HostPlan) -> bool:
    """True for a host that changes without a reboot: its session will do for the proof."""
    return plan.status == "changes" and not plan.reboot.needed


def run(
    fleet: Fleet, plan: PlanDocument, talk: Talk | None = None, *, run_base: Path | None = None, check: bool = False,
    verbosity: int = 0,
) -> ApplyDocument:  # fmt: skip
    """Carry out a plan that was shown and agreed to.

    Hosts that are blocked, unreachable or failed stay untouched and are in the document; the others are done. With
    no host to change no playbook is started. check: ansible's check mode, nothing is changed or verified.
    """
    talk = talk or Silent()
    document = ApplyDocument(errors=list(plan.errors))
    codes: list[Exit] = []
    for name, host in plan.hosts.items():
        if host.status != "changes":
            told = "; ".join(blocker.message for blocker in host.blockers) or host.summary
            document.hosts[name] = AppliedHost.model_validate(
                {"status": _UNTOUCHED[host.status], "summary": told}
            )
            codes.append(host.exit_code)
    names = to_change(plan)
    if plan.exit_code != Exit.CHANGES:
        codes.append(Exit(plan.exit_code))  # it may say more than its hosts (64: values that cannot be used)
    if not names:
        engine.dismiss()
        return document.conclude(codes)
    run_dir = engine.new_run_dir("apply", run_base)
    document.run_dir = str(run_dir)
    plan_file = run_dir / "plan.json"
    engine.write_private(plan_file, plan.to_json())
    talk.begin("checking (nothing is changed)" if check else "applying", names)
    try:
        result = engine.run_playbook(
            _PLAYBOOK, fleet.inventory, names, {"gpu_provision_plan_file": str(plan_file)}, run_dir,
            lambda event: tell(talk, event), forks=fleet.forks, check=check, verbosity=verbosity,
            pythons={name: plan.hosts[name].spec.get("python", {}) for name in names},
        )  # fmt: skip
    except BaseException:
        release(fleet)
        raise
    finally:
        talk.end()
    document.seconds = round(result.seconds, 1)
    for name in names:
        outcome = result.hosts[name]
        document.hosts[name] = _applied(outcome, plan.hosts[name].summary, check)
        if outcome.issue is not None:
            document.errors.append(outcome.issue)
        elif document.hosts[name].status == "reboot_needed":
            document.errors.append(reboot_issue(name, plan.hosts[name].reboot.because))
        elif document.hosts[name].status == "restart_needed":
            document.errors.append(restart_issue(name, outcome.restart_required or []))
        codes.append(
            Exit.CHECK_FAILED if document.hosts[name].status == "check_failed" else outcome.exit_code
        )
    if result.interrupted:
        codes.append(Exit.INTERRUPTED)
    elif not check:
        codes += _prove(fleet, document, talk)
    release(fleet)
    document.hosts = {name: document.hosts[name] for name in plan.hosts}
    document.conclude(codes)
    engine.write_private(run_dir / "result.json", document.to_json())
    return document


def _applied(outcome: HostOutcome, summary: str, check: bool) -> AppliedHost:
    status: str = outcome.status
    if outcome.issue is not None and outcome.issue.code == "verify.failed":
        status = "check_failed"
    if status in ("ok", "changed"):
        left = "reboot_needed" if outcome.reboot_required else "restart_needed"
        waits = outcome.reboot_required or outcome.restart_required is not None
        status = "checked" if check else left if waits else "done"
    return AppliedHost.model_validate(
        {"status": status, "summary": summary, "changed": outcome.changed, "failed_task": outcome.failed_task}
    )


def _prove(fleet: Fleet, document: ApplyDocument, talk: Talk) -> list[Exit]:
    """Read the hosts that are done again and judge them: success is what verify says."""
    hosts = [host for host in fleet.hosts if document.hosts[host.name].status == "done"]
    if not hosts:
        return []
    verified = verify.run(fleet, talk, hosts)
    document.errors += verified.errors
    codes = [Exit(verified.exit_code)]
    for name, result in verified.hosts.items():
        applied = document.hosts[name]
        applied.checks = result.checks
        if result.status == "fail":
            applied.status = "check_failed"
        elif result.status in ("unreachable", "failed"):
            applied.status = "unreachable" if result.status == "unreachable" else "failed"
    return codes


def reboot_issue(host: str, because: list[str]) -> Issue:
    """What is left to the owner of a host whose reboot is not ours to do."""
    return Issue(
        code="reboot.needed", host=host, message="done, and a reboot is needed", because=because,
        hint="reboot it when it suits, then run: provision verify",
    )  # fmt: skip


def restart_issue(host: str, because: list[str]) -> Issue:
    """What is left to the owner of a host whose containers a restart would end."""
    return Issue(
        code="restart.needed", host=host, message="done, and a daemon has to be restarted", because=because,
        hint="when these containers have ended, run apply again: it restarts then, unless container_toolkit_restart is "
        "never, which leaves it to you; always does it at once",
    )  # fmt: skip


def tell(talk: Talk, event: Event) -> None:
    """Say what an event of the run means for its host."""
    kind, host = event["event"], event.get("host")
    if host is None:
        return
    if kind == "host_start":
        rebooting = str(event.get("action", "")).endswith("reboot")
        talk.host(host, "rebooting" if rebooting else event["task"])
    elif kind == "ok" and event["changed"]:
        talk.host(host, event["task"], state="changed")
    elif kind == "unreachable" or (kind == "failed" and not event.get("ignored")):
        talk.host(host, f"{event['task']}: {first_line(event.get('message'))}", state="failed")


def first_line(text: object) -> str:
    lines = str(text or "failed").strip().splitlines()
    return lines[0] if lines else "failed"
