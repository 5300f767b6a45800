"""plan: for each host at one glance what, from where and why, then what changes. Equal hosts are shown once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType

from provision.documents import PlanDocument
from provision.errors import Issue
from provision.parts.plan import HostPlan, PackageChange, Reason, Step
from provision.render.base import Text, columns, headline, indented, text
from provision.render.text import format_counts, grouped, listed, plural, size, unnamed

_ORDER = (
    ("changes", "to change"),
    ("converged", "as wanted"),
    ("blocked", "blocked"),
    ("unreachable", "unreachable"),
    ("failed", "failed"),
    ("left_out", "left out"),
)
# Choices that the one-line summary tells already; their reasons come with -v.
_MINOR = ("version", "variant")
_ACTIONS = {"install": "new", "upgrade": "upgraded", "downgrade": "downgraded", "remove": "removed"}
_POLICIES = {
    "when_idle": "only while no process uses the GPUs",
    "always": "also under running jobs",
    "never": "left to you",
}
_SHOWN_PACKAGES = 2
_SHOWN_NAMES = 5


def view(document: PlanDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what to print of a plan: hosts that change first in full, the others a line each."""
    groups = grouped(document.hosts.items(), _same)
    for names, plan in groups:
        if plan.status == "changes" or verbosity:
            yield from _in_full(names, plan, verbosity)
            yield Text("")
    for names, plan in groups:
        if plan.status != "changes" and not verbosity:
            yield from _in_short(names, plan)
    if not verbosity and any(host.steps for host in document.hosts.values()):
        yield Text("-v tells every choice and every package", style="dim")
    for names, why in grouped(document.left_out.items(), lambda why: why):
        yield headline(names, "left_out", why)
    statuses = [*(host.status for host in document.hosts.values()), *("left_out" for _ in document.left_out)]
    yield Text(f"plan: {plural(len(statuses), 'host')}: {format_counts(statuses, _ORDER)}", style="bold")


def _same(plan: HostPlan) -> object:
    """What two plans must have in common to be shown as one."""
    shown = plan.model_dump(exclude={"host", "spec"})
    for issue in (*shown["blockers"], *shown["warnings"]):
        issue["host"] = None
    if plan.status == "changes":
        return shown
    return (
        plan.status,
        plan.gpus,
        plan.summary,
        shown["warnings"],
        [unnamed(blocker.message, plan.host) for blocker in plan.blockers],
    )


def _in_short(names: Sequence[str], plan: HostPlan) -> Iterable[RenderableType]:
    messages = [blocker.message for blocker in plan.blockers]
    if len(names) > 1:
        messages = [unnamed(message, plan.host) for message in messages]
    shown = "; ".join(messages) or plan.summary
    yield headline(names, plan.status, "; ".join(filter(None, (", ".join(plan.gpus), shown))))
    for warning in plan.warnings:
        yield from issue(warning)


def _in_full(names: Sequence[str], plan: HostPlan, verbosity: int) -> Iterable[RenderableType]:
    yield headline(names, plan.status, ", ".join(plan.gpus), everything=bool(verbosity))
    if plan.summary:
        yield indented(Text(plan.summary, style="bold"), 2)
    reasons = [reason for reason in plan.decisions if verbosity or not _goes_without_saying(reason)]
    if reasons:
        yield columns([_reason(r.what, r.value, r.because) for r in reasons], 4)
    for step in plan.steps:
        yield from _step(step, plan, verbosity)
    if plan.packages and not any(step.id == "packages" for step in plan.steps):
        yield indented(Text(package_line(plan.packages)), 2)
        yield from _packages(plan.packages, verbosity)
    if plan.reboot.needed and not any(step.id == "reboot" for step in plan.steps):
        yield from _step(Step(id="reboot", title="reboot", because="; ".join(plan.reboot.because)), plan, verbosity)
    if plan.reboot.blocked_by and plan.status == "changes":
        yield indented(text("in use now: ", listed(plan.reboot.blocked_by, _SHOWN_NAMES), styles=("yellow", "")), 2)
    for warning in plan.warnings:
        yield from issue(warning)
    for blocker in plan.blockers:
        yield indented(text(f"{plan.status}: ", blocker.message, styles=("red", "red")), 2)


def _goes_without_saying(reason: Reason) -> bool:
    """What the summary tells already, and what is there and stays."""
    return reason.what in _MINOR or reason.because.startswith("it is installed; ")


def _reason(what: str, value: str, because: str) -> tuple[Text, Text]:
    return text(what, styles=("dim",)), text(value, f": {because}", styles=("bold", ""))


def _step(step: Step, plan: HostPlan, verbosity: int) -> Iterable[RenderableType]:
    style = "bold yellow" if step.id == "reboot" else "bold"
    title = step.title
    if step.id == "reboot" and title == "reboot":
        title = f"reboot, {_POLICIES.get(plan.reboot.policy, plan.reboot.policy)}"
    yield columns([("-", text(title, f": {step.because}", styles=(style, "")))], 2, style="dim", gap=1)
    if step.id == "packages" and plan.packages:
        changes = _of_step(step, plan)
        yield indented(Text(package_line(changes)), 4)
        yield from _packages(changes, verbosity)
        return
    if step.details:
        yield columns([("", text(_details(step.details, verbosity), styles=("dim",)))], 3, gap=1)


def _details(details: Sequence[str], verbosity: int) -> str:
    """Names of packages with commas, as few as tell what they are; sentences one after the other."""
    if not any(" " in detail for detail in details):
        return listed(details, len(details) if verbosity else _SHOWN_NAMES)
    return "; ".join(_merged(details))


def _merged(details: Sequence[str]) -> list[str]:
    """Join neighbours of one kind: 'kernel: a', 'kernel: b' -> 'kernel: a, b'."""
    lines: list[str] = []
    for detail in details:
        kind, colon, rest = detail.partition(": ")
        if colon and lines and lines[-1].startswith(kind + colon):
            lines[-1] += f", {rest}"
        else:
            lines.append(detail)
    return lines


def _of_step(step: Step, plan: HostPlan) -> list[PackageChange]:
    """The packages of one step: those of its part, and of its kind where a part has a step for removals."""
    steps = [other for other in plan.steps if other.id == "packages"]
    named = set(step.details) & {change.name for change in plan.packages}
    others = {name for other in steps if other is not step for name in other.details}
    found = []
    for change in plan.packages:
        if change.part == step.part and (change.name in named if named else change.name not in others):
            found.append(change)
    return found


def package_line(changes: Sequence[PackageChange]) -> str:
    """Return ``13 new, 10 removed, 310 MB to download, 1.2 GB more on disk``."""
    actions = [change.action for change in changes]
    parts = [f"{actions.count(action)} {word}" for action, word in _ACTIONS.items() if action in actions]
    download, disk = sum(c.download_bytes for c in changes), sum(c.disk_bytes for c in changes)
    if download:
        parts.append(f"{size(download)} to download")
    if disk:
        parts.append(f"{size(abs(disk))} {'more' if disk > 0 else 'less'} on disk")
    return ", ".join(parts)


def _packages(changes: Sequence[PackageChange], verbosity: int) -> Iterable[RenderableType]:
    """Packages by what happens to them and by version: names that share a version stand together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for action, word in _ACTIONS.items():
        for change in changes:
            if change.action == action:
                # A toolkit has seventy packages, most with a version of their own.
                key = change.group if change.group.startswith("CUDA") and not verbosity else _version(change)
                groups.setdefault((word, key), []).append(change.name)
    rows: list[tuple[str | Text, str | Text]] = []
    before = ""
    for (word, version), names in groups.items():
        shown = len(names) if verbosity else _SHOWN_PACKAGES
        lines = text(version, "  ", listed(names, shown), styles=("", "", "dim"))
        rows.append((text("" if word == before else word), lines))
        before = word
    yield columns(rows, 4)


def _version(change: PackageChange) -> str:
    if change.action == "remove":
        return change.from_version or ""
    return f"{change.from_version} -> {change.version}" if change.from_version else change.version or ""


def issue(warning: Issue, indent: int = 2, word: str = "warning") -> Iterable[RenderableType]:
    """Return a warning (or an error) with its reasons and its hint."""
    style = "yellow" if word == "warning" else "red"
    yield indented(text(f"{word}: ", warning.message, styles=(style, style)), indent)
    for reason in warning.because:
        yield indented(text("because: ", reason, styles=("dim", "")), indent + 2)
    if warning.hint:
        yield indented(text("hint: ", warning.hint, styles=("cyan", "")), indent + 2)
