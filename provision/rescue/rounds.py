"""Which repairs come next: the smallest that can do, in the order in which they may be carried out. Pure.

A finding's repairs stand from the smallest on. Each is tried once; the next one's turn comes when the finding is still
there after it. What is mended in place (levels 1 and 2) comes before what chooses packages (3 and 4), and a reload or a
reboot (0) comes after both: it is the smallest repair, but no host is restarted while packages are half done or the next
boot has no module. Uninstalling, purging and what only a person can do are never chosen here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from provision.diagnose.finding import ACTIONS, Cause, Diagnosis, Repair
from provision.facts import Facts
from provision.rescue.model import History, RescueStep, Round

# Room first, then what apt reads, then what it was doing, and images at the end, when everything is in its place.
_ORDER = (
    "boot.room",
    "sources.drop",
    "sources.rewrite",
    "sources.key",
    "lists.clean",
    "holds.clear",
    "file.aside",
    "dpkg.configure",
    "packages.install",
    "initramfs.build",
    "module.reload",
    "gpu.reset",
    "reboot",
    "apply",
    "realign",
)
# Never chosen: only suggested, or reported.
_NOT_OURS = frozenset({"runfile.uninstall", "purge", "manual", "power.cycle"})
_MENDS, _APPLIES, _RESTARTS = (1, 2), (3, 4), (0,)
# A step that failed may be tried once more after something larger was changed (headers came, now dpkg can configure).
_TIMES = 2
MOST_ROUNDS = 8
# A purge does not help against these.
_PASSING = frozenset(
    {
        "apt.fetch",
        "apt.key",
        "apt.key_unknown",
        "apt.no_release",
        "apt.expired",
        "apt.mirror_sync",
        "apt.sources",
        "apt.lock_timeout",
        "apt.disk_full",
        "gpu.in_use",
        "module.in_use",
        "connect.lost",
        "snapshot.write",
    }
)


@dataclass(frozen=True)
class Limits:
    """What the owner allows. reboot: nvidia_driver_reboot; local: the host is this machine; stop_holders: services too."""

    reboot: str = "when_idle"
    local: bool = False
    stop_holders: bool = False


def to_mend(diagnosis: Diagnosis) -> list[Cause]:
    """Findings that a rescue takes on: errors, and what the next ordinary event would break."""
    return [finding for finding in diagnosis.findings if finding.level in ("error", "warning")]


def next_repair(finding: Cause, history: History) -> Repair | None:
    """The smallest repair of a finding whose turn it is; None where nothing is left that a program may do."""
    for repair in finding.repairs:
        if repair.action in _NOT_OURS:
            break
        if _turn(finding, repair, history):
            return repair
    mine = [step for one in history.rounds for step in one.steps if step.finding == finding.code]
    ends = finding.reboot and any(step.ok for step in mine)
    if (ends or any(step.action == "module.reload" for step in mine)) and not _restarted_last(history):
        # It says that a reboot ends its repairs, which were carried out; or its modules could not be loaded anew. It is
        # still there.
        reboot = Repair(action="reboot", words="reboot")
        return reboot if _turn(finding, reboot, history) else None
    return None


def next_round(diagnosis: Diagnosis, history: History, facts: Facts, limits: Limits) -> Round | None:
    """Return what to do now, None where there is nothing that may be done. An apply round has no plan yet."""
    if len(history.rounds) >= MOST_ROUNDS:
        return None
    findings = to_mend(diagnosis)
    errors = [finding for finding in findings if finding.level == "error"]
    mend = _mend(findings, history)
    if mend:
        return Round(kind="mend", steps=mend)
    apply = _steps(errors, history, _APPLIES)
    if apply:
        return Round(kind="apply", steps=apply)
    restart = _steps(errors, history, _RESTARTS)
    if restart:
        return _restart(restart, history, facts, limits)
    # What only threatens, on a host that was broken: never at the price of moving a family, nor of a reboot.
    apply = _steps([f for f in findings if f.level == "warning"], history, (3,))
    if apply and history.broken and not errors:
        return Round(kind="apply", steps=apply)
    return None


def next_level(findings: Iterable[Cause], history: History) -> str:
    """What comes next for findings that stayed, as text; empty where nothing does."""
    suggested = []
    for finding in findings:
        if finding.level != "error":
            continue
        rest = [repair for repair in finding.repairs if repair.action in _NOT_OURS]
        suggested += [repair.words for repair in rest[:1]]
        if not rest and finding.repairs and next_repair(finding, history) is None and not _waits(finding, history):
            suggested.append("--purge removes every trace of the driver by exact names, then installs by the inventory")
    return "; ".join(dict.fromkeys(suggested))


def _waits(finding: Cause, history: History) -> bool:
    """True where what stopped a finding's repair passes by itself, or has nothing to do with the driver's packages."""
    steps = (step for one in history.rounds for step in one.steps if step.finding == finding.code)
    return any(not step.ok and step.code in _PASSING for step in steps)


def _mend(findings: Sequence[Cause], history: History) -> list[RescueStep]:
    chosen: list[RescueStep] = []
    for finding in findings:
        first = next_repair(finding, history)
        if first is None or first.level not in _MENDS:
            continue
        chosen.append(_step(finding, first))
        # What is no larger comes along: a file put aside, then the initramfs that held it. The same action again is
        # another way, for when the first one was not enough.
        taken = {first.action}
        for repair in finding.repairs[finding.repairs.index(first) + 1 :]:
            if repair.level not in _MENDS or repair.level > first.level or repair.action in taken:
                break
            if _turn(finding, repair, history):
                chosen.append(_step(finding, repair))
                taken.add(repair.action)
    return _once(chosen)


def _steps(findings: Sequence[Cause], history: History, levels: Sequence[int]) -> list[RescueStep]:
    """The next repair of every finding, where it is of these levels."""
    found = []
    for finding in findings:
        repair = next_repair(finding, history)
        if repair is not None and repair.level in levels:
            found.append(_step(finding, repair))
    return _once(found)


def _restart(steps: list[RescueStep], history: History, facts: Facts, limits: Limits) -> Round:
    """Either modules are loaded anew or the host reboots: a reboot makes a reload needless."""
    reboot = [step for step in steps if step.action == "reboot"]
    if reboot:
        return Round(kind="restart", steps=reboot, reboot=True)
    reload = any(step.action == "module.reload" for step in steps)
    return Round(kind="restart", steps=steps, stops=stops(facts, limits, reload=reload))


def stops(facts: Facts, limits: Limits, *, reload: bool = True) -> list[str]:
    """Services that a reload of the modules, or a reset of a card, stops for a moment, as text."""
    units = ("nvidia-persistenced", "nvidia-fabricmanager") if reload else ("nvidia-persistenced",)
    own: list[str] = [unit for unit in units if unit in facts.services and facts.services[unit].running]
    if limits.stop_holders and reload:
        own += [f"what {user.comm} (pid {user.pid}) belongs to, if it is a service" for user in facts.gpu_users]
    return own


def _step(finding: Cause, repair: Repair) -> RescueStep:
    return RescueStep(finding=finding.code, action=repair.action, words=repair.words, args=repair.args)


def _once(steps: Sequence[RescueStep]) -> list[RescueStep]:
    """Steps in the order of carrying them out; two findings that ask for the same get it once."""
    found: dict[str, RescueStep] = {}
    for step in sorted(steps, key=lambda step: _ORDER.index(step.action)):
        found.setdefault(f"{step.action} {sorted(step.args.items())!r}", step)
    return list(found.values())


def _turn(finding: Cause, repair: Repair, history: History) -> bool:
    """True where a repair was not tried yet, or failed before something larger was changed."""
    assert repair.action in ACTIONS  # noqa: S101 - the table's test holds rules to it
    same = RescueStep(finding=finding.code, action=repair.action, words="", args=repair.args)
    alike = [
        (number, step)
        for number, one in enumerate(history.rounds)
        for step in one.steps
        if (step.action, step.args) == (same.action, same.args) and (step.finding == finding.code or step.ok)
    ]
    mine = [(number, step) for number, step in alike if step.finding == finding.code]
    if not mine:
        # Done for another finding, and this one is still there: it was no help.
        return not any(step.ok and number == len(history.rounds) - 1 for number, step in alike)
    last, step = mine[-1]
    larger = any(one.changed and one.level > step.level for one in history.rounds[last + 1 :])
    return not step.ok and larger and len(mine) < _TIMES


def _restarted_last(history: History) -> bool:
    """True where nothing was changed since the last reboot of this rescue."""
    return bool(history.rounds) and history.rounds[-1].reboot
