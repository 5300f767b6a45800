"""One host of a rescue: read it, diagnose it, plan its next round. Changes nothing.

``call(program, args)`` is as in planning: over the fast read's session for the command, through modules for plain Ansible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import provision.collection  # noqa: F401  (makes the collection importable)
from provision.catalog import Catalog
from provision.diagnose import diagnose
from provision.diagnose.finding import Cause, Diagnosis, Repair
from provision.errors import Issue, ProvisionError
from provision.facts import Facts
from provision.facts.diagnostics import Diagnosed
from provision.parts.desired import Desired
from provision.parts.driver.installed import next_boot_problems
from provision.parts.driver.removed import removed_driver
from provision.parts.driver.resolve import resolve_driver
from provision.parts.plan import HostPlan
from provision.parts.registry import roles
from provision.planning import Call, plan_from_facts, read_facts
from provision.rescue.again import without_tried
from provision.rescue.model import History, RescueStep, Round
from provision.rescue.narrow import narrowed, parts_of
from provision.rescue.purge import read_purge
from provision.rescue.rounds import Limits, next_round
from provision.rescue.undo import read_undo
from provision.runs.cards import Tried

Mode = Literal["mend", "purge", "undo"]
Past = Callable[[Diagnosis, Facts], Sequence[Tried]]
# stands for symptoms that no rule explains
UNKNOWN = "unknown"
# stands for what a person asked for
PURGE = "purge"


@dataclasses.dataclass
class Inspection:
    """A host as it was read, and what comes next.

    shown: the diagnosis, with symptoms that no rule explains as a finding. round: None where nothing may be done.
    """

    facts: Facts
    diagnosis: Diagnosis
    shown: Diagnosis
    round: Round | None

    @property
    def errors(self) -> list[Cause]:
        return self.shown.errors


def inspect_host(
    name: str,
    call: Call,
    values: dict[str, Any],
    catalog: Catalog,
    history: History,
    limits: Limits,
    mode: Mode = "mend",
    snapshot: str | None = None,
    past: Past = lambda diagnosis, facts: [],
) -> Inspection:
    """Read a host and plan its next round; rounds that turn out to have nothing to do go into the history.

    past: which repairs of its sick cards were tried before this rescue, asked where a card is sick. mode: purge removes every
    trace of the driver first, then installs by the inventory; undo goes back to a snapshot (its id, None for the newest).
    Raises UnreachableError or HostFailedError from ``call``.
    """
    facts = read_facts(call, values, Diagnosed)
    diagnosis = diagnose(facts, values, catalog)
    if facts.host.boot_id and facts.host.boot_id not in history.boots[-1:]:
        history.boots.append(facts.host.boot_id)
    if any(finding.cards for finding in diagnosis.findings):
        diagnosis = without_tried(diagnosis, facts, past(diagnosis, facts), name)
    seen = with_unknown(diagnosis, facts, values)
    history.broken = history.broken or bool(seen.errors)
    if mode == "undo":
        return Inspection(facts, diagnosis, seen, _undo(name, call, history, snapshot))
    while (
        found := _asked(mode, name, call, facts, history, limits) or next_round(seen, history, facts, limits)
    ) is not None:
        if found.kind == "apply":
            purged = any(step.finding == PURGE for step in found.steps)
            # What is still loaded of a driver that apt removed is no driver that somebody else put there. Nothing can be
            # started beside it; that it has to go, the next look says.
            gone = removed_driver(facts)
            orphan = facts.module.loaded is not None and (purged or gone is not None)
            known = facts.model_copy(update={"module": facts.module.model_copy(update={"loaded": None})})
            before = gone.before(facts) if gone and not purged else facts
            found.plan = _plan(name, known if orphan else facts, call, values, catalog, found.steps, before)
            if orphan and found.plan.status == "changes" and roles()["driver"] in found.plan.spec["parts"]:
                found.plan.spec["parts"][roles()["driver"]]["boot"]["start"] = False
            _judge_plan(found, {PURGE, *(finding.code for finding in seen.errors)})
        elif found.kind == "restart":
            _judge_restart(found, facts, values, catalog, limits)
        elif found.kind == "mend":
            _complete(found, facts, values, catalog)
        if found.blockers or any(step.ok is None for step in found.steps):
            break
        # nothing of it can be done: on to what is larger
        history.rounds.append(found)
    return Inspection(facts, diagnosis, seen, found)


# --- only when asked for -----------------------------------------------------------------------------------------


def _asked(mode: Mode, name: str, call: Call, facts: Facts, history: History, limits: Limits) -> Round | None:
    """The rounds of --purge: remove every trace, then install what the inventory asks for."""
    done = [step.action for one in history.rounds for step in one.steps if step.finding == PURGE]
    if mode != "purge" or "apply" in done:
        return None
    if "purge" in done:
        args = {"parts": ["driver"]}
        text = "install the driver that the inventory asks for"
        return Round(kind="apply", steps=[RescueStep(finding=PURGE, action="apply", words=text, args=args)])
    plan = read_purge(name, call)
    step = RescueStep(finding=PURGE, action="purge", words="remove every trace of the driver, by exact names")
    if plan.nothing:
        step.ok, step.said = False, ["there is no trace of a driver"]
    found = Round(kind="purge", steps=[step], purge=plan, blockers=list(plan.blockers))
    if facts.gpu_users and limits.reboot != "always":
        found.blockers.append(_in_use(facts, "the GPUs are in use, and a purge takes their driver away"))
    return found


def _undo(name: str, call: Call, history: History, snapshot: str | None) -> Round | None:
    if history.rounds:
        return None
    plan = read_undo(name, call, snapshot)
    if plan.nothing:
        return None
    step = RescueStep(finding="undo", action="undo", words=f"go back to the state of {plan.made}")
    return Round(kind="undo", steps=[step], undo=plan, blockers=list(plan.blockers))


def _in_use(facts: Facts, message: str) -> Issue:
    users = [f"{u.comm} (pid {u.pid}{', ' + u.user if u.user else ''})" for u in facts.gpu_users]
    return Issue(
        code="gpu.in_use",
        message=message,
        because=users[:8],
        hint="wait for them or stop them; nvidia_driver_reboot: always goes ahead anyway",
    )


def limits_of(values: Mapping[str, Any], *, local: bool, stop_holders: bool) -> Limits:
    """What the owner of a host allows."""
    return Limits(str(values.get("nvidia_driver_reboot") or "when_idle"), local, stop_holders)


def environment_of(values: Mapping[str, Any]) -> dict[str, str]:
    """The host's proxy, for steps that fetch something."""
    return Desired(values).proxy.environment


def with_unknown(diagnosis: Diagnosis, facts: Facts, values: Mapping[str, Any]) -> Diagnosis:
    """The diagnosis, with symptoms that no rule explains as a finding: loading the module is worth a try."""
    managed = bool(values.get("nvidia_driver_manage", True))
    if not diagnosis.unknown or diagnosis.errors or not managed or not facts.gpus:
        return diagnosis
    repairs = [
        Repair(action="module.reload", words="load the module that is on the disk"),
        Repair(action="apply", words="bring the driver to what the inventory asks for", args={"parts": ["driver"]}),
    ]
    finding = Cause(code=UNKNOWN, level="error", message=diagnosis.unknown[0], repairs=repairs)
    return diagnosis.model_copy(update={"findings": [*diagnosis.findings, finding]})


# --- levels 3 and 4 ----------------------------------------------------------------------------------------------


def _plan(
    name: str,
    facts: Facts,
    call: Call,
    values: dict[str, Any],
    catalog: Catalog,
    steps: list[RescueStep],
    before: Facts,
) -> HostPlan:
    """The plan of the narrowest variables that change something; where none do, the plan of the last ones.

    before: the facts that say what driver is kept.
    """
    parts = parts_of(steps)
    blocked: HostPlan | None = None
    plan: HostPlan | None = None
    for config in narrowed(values, before, steps):
        plan = _only(plan_from_facts(name, facts, call, config, catalog, parts), parts)
        if plan.status == "changes":
            return plan
        blocked = plan if plan.status == "blocked" else blocked
    assert plan is not None  # noqa: S101 - there is always one
    return plan if plan.status != "converged" or blocked is None else blocked


def _only(plan: HostPlan, parts: list[str]) -> HostPlan:
    """A plan without steps of roles that this round does not run."""
    plan.steps = [step for step in plan.steps if step.part in (*parts, "apt")]
    if plan.status == "changes" and not plan.steps:
        plan.status = "converged"
    return plan


def _judge_plan(found: Round, errors: set[str]) -> None:
    """Say of steps whose plan cannot be carried out why. errors: codes of what does not work today."""
    plan = found.plan
    assert plan is not None  # noqa: S101 - an apply round was planned before
    if plan.status == "blocked":
        # Work on the GPUs is waited for; anything else is no way: what is larger has its turn.
        if any(blocker.code == "gpu.in_use" for blocker in plan.blockers):
            found.blockers = plan.blockers
        for step in found.steps:
            first = plan.blockers[0]
            step.ok, step.code, step.hint = False, first.code, first.hint
            step.said = [first.message, *first.because[:6]]
    elif plan.status == "converged":
        for step in found.steps:
            step.ok, step.said = False, ["the inventory's roles find nothing to change"]
    elif plan.reboot.needed and not errors & {step.finding for step in found.steps}:
        for step in found.steps:
            step.ok, step.said = (False, ["it would take a reboot, and nothing is broken yet: provision apply does it"])
    found.reboot = plan.reboot.needed and plan.status == "changes"


# --- level 0 -----------------------------------------------------------------------------------------------------


def _judge_restart(found: Round, facts: Facts, values: dict[str, Any], catalog: Catalog, limits: Limits) -> None:
    """Say of a reload or a reboot that cannot be what stands in its way."""
    users = [f"{u.comm} (pid {u.pid}{', ' + u.user if u.user else ''})" for u in facts.gpu_users]
    if not found.reboot:
        for step in found.steps:
            if users and step.action == "gpu.reset":
                step.ok, step.code = False, "gpu.in_use"
                step.said = ["no card is reset while GPUs are in use", *users[:6]]
                step.hint = "wait for them or stop them, then run rescue again"
            elif users and not limits.stop_holders:
                step.ok, step.code = False, "module.in_use"
                step.said = ["the module cannot be unloaded: it is in use", *users[:6]]
                step.hint = "--stop-holders stops services that hold it; other processes are never ended"
        return
    if users and limits.reboot == "when_idle":
        found.blockers.append(_in_use(facts, "a reboot is the repair, and the GPUs are in use"))
    problems = _next_boot(facts, values, catalog)
    if problems:
        found.blockers.append(
            Issue(
                code="driver.next_boot",
                message="a reboot would end without a driver",
                because=problems,
                hint="provision plan says what installs the module for that kernel; do not reboot before",
            )
        )


def _next_boot(facts: Facts, values: dict[str, Any], catalog: Catalog) -> list[str]:
    """Why the kernel that boots next would have no module; empty where a driver is not ours or not there."""
    config = Desired(values, ["driver"]).driver
    if not config.manage or not facts.gpus or facts.host.container and not facts.kernels.installed:
        return []
    target = resolve_driver(config, facts, catalog, {}).target
    version = target.version if target else None
    return next_boot_problems(facts, version)


# --- levels 1 and 2 ----------------------------------------------------------------------------------------------


def _complete(found: Round, facts: Facts, values: dict[str, Any], catalog: Catalog) -> None:
    """Give steps what only the controller knows: a repository's address and key."""
    desired = Desired(values)
    for step in found.steps:
        if step.action != "sources.key" or "repository" in step.args:
            continue
        name = str(step.args["name"]).replace("-", "_")
        try:
            step.args = {**step.args, "repository": desired.source(name, facts, catalog)}
        except ProvisionError as error:
            step.ok, step.code, step.hint = False, error.issue.code, error.issue.hint
            step.said = [error.issue.message, *error.issue.because]


def roles_of(plan: HostPlan | None) -> list[str]:
    """Roles that carry a plan out, in the order of the parts."""
    named = plan.spec.get("roles", []) if plan else []
    return [role for role in roles().values() if role in named]
