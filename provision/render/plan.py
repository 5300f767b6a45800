"""plan: what changes, each thing once with the hosts that it is about; totals and what interrupts work come last.

``-v`` (``plan --why``) shows every choice, reason and package, host by host; ``--diff`` the contents of files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rich.console import RenderableType
from rich.table import Table

from provision.documents import PlanDocument
from provision.errors import Issue
from provision.parts.plan import HostPlan, PackageChange, Reason, Step
from provision.render.base import Text, columns, headline, indented, text
from provision.render.text import format_counts, format_hosts, grouped, listed, plural, runs, same_issues, size, unnamed

_ORDER = (
    ("changes", "to change"),
    ("converged", "as requested"),
    ("blocked", "blocked"),
    ("unreachable", "unreachable"),
    ("failed", "failed"),
    ("left_out", "left out"),
)
# Choices that the one-line summary tells already; their reasons come with -v.
_MINOR = ("version", "variant")
# Choices that have an alternative; all others are explained with -v.
_CHOICES = ("branch", "lock", "version", "replaced", "pins", "docker")
_GIVEN = ("asked for", "locked", "as installed", "it is installed", "the newest of ")
_ACTIONS = {"install": "new", "upgrade": "upgraded", "downgrade": "downgraded", "remove": "removed"}
_LOSSES = {"downgrade", "remove"}
_POLICIES = {
    "when_idle": "by apply, only while no process uses the GPUs",
    "always": "by apply, also under running jobs",
    "never": "left to you",
}
_SIGNS = {"+": "green", "~": "yellow", "-": "bold red", "!": "bold yellow", "": ""}
# Kinds of steps in the order of their lines.
_STEPS = ("packages", "conda", "environments", "hold", "boot", "environment", "containers", "sources", "files")
_FILE = re.compile(r"(?:write|remove) (/\S+)")
# step -> whose files they are
_FILES = {"sources": "apt", "boot": "boot", "environment": "shells and loader", "containers": "containers"}
# What is listed value by value, and what is between the values
_LISTS = {"hold": ", ", "boot": ", ", "docker": "; "}
# Which CUDA it is, is told in the line of CUDA.
_OF_CUDA, _AND_CUDA = re.compile(r" and CUDA [0-9.]+"), " and their CUDA"
_SHOWN_PACKAGES = 2
_SHOWN_NAMES = 5
# More hosts than this are counted.
_FEW = 4
_EXCEPTIONS = 2
# A longer list of hosts is not said again on the next line.
_LONG = 24


@dataclass
class Line:
    """A line of the plan at a glance: what happens, and on which hosts. counts: of each host that has some."""

    sign: str
    what: str
    value: str
    rank: tuple[int, int]
    hosts: list[str] = field(default_factory=list)
    counts: list[Counter[str]] = field(default_factory=list)


def view(document: PlanDocument, width: int, verbosity: int) -> Iterable[RenderableType]:
    """Return what to print of a plan: what changes, then hosts that stay as they are, warnings, and the totals."""
    plans = changing(document)
    if verbosity:
        for names, plan in grouped(document.hosts.items(), _same):
            yield from _in_full(names, plan, verbosity)
            yield Text("")
    elif plans:
        yield from _hardware(plans)
        yield _table(lines(plans), list(plans), width)
    if not verbosity:
        rest = [(name, plan) for name, plan in document.hosts.items() if plan.status != "changes"]
        for names, plan in grouped(rest, _same):
            yield from _in_short(names, plan)
        for hosts, warning in same_issues(warnings(document)):
            why = f": {'; '.join(warning.because)}" if warning.because else ""
            where = f"{among(hosts, list(document.hosts))}: " if len(document.hosts) > 1 else ""
            yield text("warning: ", where, warning.message, why, styles=("yellow", "bold", "yellow"))
            if warning.hint:
                yield indented(text("hint: ", warning.hint, styles=("cyan", "")), 2)
    for names, why in grouped(document.left_out.items(), lambda why: why):
        yield headline(names, "left_out", why)
    yield from totals(document)
    if verbosity and document.catalog:
        yield Text(f"facts of {document.catalog}: provision catalog check says how old each is", style="dim")
    if plans and not verbosity:
        yield Text("reasons and packages: -v; one host: -l HOST; contents of files: provision plan --diff", style="dim")


def changing(document: PlanDocument) -> dict[str, HostPlan]:
    """Return the plans of the hosts that have something to do, by host."""
    return {name: plan for name, plan in document.hosts.items() if plan.status == "changes"}


def kinds(plans: dict[str, HostPlan]) -> list[tuple[list[str], HostPlan]]:
    """Return the hosts of each kind of hardware, with the plan of one of them."""
    return grouped(plans.items(), lambda plan: (plan.gpus, plan.ubuntu))


def warnings(document: PlanDocument) -> list[Issue]:
    return [warning for plan in document.hosts.values() for warning in plan.warnings]


def _hardware(plans: dict[str, HostPlan]) -> Iterator[RenderableType]:
    """Return a line for hosts of one kind of hardware."""
    for names, plan in kinds(plans):
        yield text(format_hosts(names), "  ", hardware(plan), styles=("bold",))


def hardware(plan: HostPlan) -> str:
    """Return ``8 x H100 SXM5 80GB, Ubuntu 24.04``."""
    return ", ".join([*plan.gpus, *([f"Ubuntu {plan.ubuntu}"] if plan.ubuntu else [])])


# ---- at a glance -----------------------------------------------------------------------------------------------------


def lines(plans: dict[str, HostPlan]) -> list[Line]:
    """Return what changes on some hosts, each thing once; in the order of the steps, interruptions last."""
    found: dict[tuple[str, str, str], Line] = {}
    of_hosts = {name: _of_host(plan) for name, plan in plans.items()}
    values = {line.value for of_host in of_hosts.values() for line in of_host}
    for name, of_host in of_hosts.items():
        for line in of_host:
            # What holds for hosts and their CUDA holds for hosts that have none.
            if line.value + _AND_CUDA in values:
                line.value += _AND_CUDA
            known = found.setdefault((line.sign, line.what, line.value), line)
            known.hosts.append(name)
            if known is not line:
                known.counts += line.counts
    return _joined(sorted(found.values(), key=lambda line: line.rank))


def _of_host(plan: HostPlan) -> list[Line]:
    found: list[Line] = []
    files: Counter[str] = Counter()
    for step in plan.steps:
        named = [one for one in step.details if _FILE.match(one)]
        if named and step.sign != "-":
            files[_FILES.get(step.id, step.id)] += len(named)
        if step.value or not named:
            found.append(_of_one_step(step, plan))
    if files:
        found.append(Line("~", "files", "", (_STEPS.index("files"), 0), counts=[files]))
    if any(line.what == "driver" for line in found):
        choices = [reason for reason in plan.decisions if _is_choice(reason)]
        found += [Line("", one.what, _OF_CUDA.sub(_AND_CUDA, f"{one.value}: {one.because}"), (0, 1)) for one in choices]
    if any(line.sign == "+" and line.what == "CUDA" for line in found):
        # The toolkits' own line names the default.
        found = [line for line in found if line.what != "CUDA paths"]
    found += _losses(plan)
    if plan.reboot.needed and not any(step.id == "reboot" for step in plan.steps):
        found.append(Line("!", "reboot", "; ".join(plan.reboot.because), (99, 0)))
    if plan.reboot.blocked_by:
        found.append(Line("!", "in use now", listed(plan.reboot.blocked_by, _SHOWN_NAMES), (100, 0)))
    return [replace(line, value=value, hosts=[]) for line in found for value in _values(line)]


def _of_one_step(step: Step, plan: HostPlan) -> Line:
    order = ["driver", "cuda", "containers", "conda"]
    part = order.index(step.part) * 10 if step.part in order else 0
    kind = 90 if step.sign == "!" else _STEPS.index(step.id) if step.id in _STEPS else len(_STEPS)
    if step.id == "containers" and step.sign != "!":
        # What happens to docker is read with the packages that it is for, mostly on the same hosts.
        kind, part = _STEPS.index("packages"), part + 5
    value = step.value or f"{step.title}: {step.because}"
    counts = [_actions(_of_step(step, plan))] if step.id == "packages" else []
    return Line(step.sign, step.what or step.part, value, (kind, part), counts=counts)


def _values(line: Line) -> list[str]:
    """What is on hold, at boot or of docker, one by one: most of it is the same on unlike hosts."""
    return line.value.split(_LISTS[line.what]) if line.what in _LISTS else [line.value]


def _joined(found: Sequence[Line]) -> list[Line]:
    """Join lines of one kind that are about the same hosts."""
    joined: dict[object, Line] = {}
    for number, line in enumerate(found):
        key: object = (line.sign, line.what, *line.hosts) if line.what in _LISTS else number
        if key in joined:
            joined[key].value += f"{_LISTS[line.what]}{line.value}"
        else:
            joined[key] = line
    return list(joined.values())


def _actions(changes: Iterable[PackageChange]) -> Counter[str]:
    return Counter(change.action for change in changes)


def _losses(plan: HostPlan) -> Iterator[Line]:
    """Packages that go or go back, where no step says so."""
    told = {step.part for step in plan.steps if step.id == "packages" and step.sign == "-"}
    for action in ("downgrade", "remove"):
        names = [c.name for c in plan.packages if c.action == action and not (action == "remove" and c.part in told)]
        if names:
            parts = {c.part for c in plan.packages if c.name in names}
            new = {c.part for c in plan.packages if c.action == "install" and c.part}
            replaced = "; replaced" if action == "remove" and parts <= new else ""
            yield Line("-", _ACTIONS[action], listed(names, _SHOWN_PACKAGES) + replaced, (0, 2))


def _is_choice(reason: Reason) -> bool:
    return reason.what in _CHOICES and not reason.because.startswith(_GIVEN)


def _table(shown: Sequence[Line], every: Sequence[str], width: int) -> Table:
    """Return the lines as columns: sign, what, value with counts, and hosts where not all lines are about all that change."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold", ratio=1)
    table.add_column(overflow="fold", max_width=max(16, width * 35 // 100))
    for line, where in zip(shown, _places(shown, every), strict=True):
        style = "dim" if not line.sign else "bold red" if line.sign == "-" else ""
        cell = text(line.value, styles=(style,))
        for number, (part, loss) in enumerate(counted(line)):
            cell.append(", " if number else "  " * bool(line.value)).append(part, "bold red" if loss else "dim")
        before = Text(f"  {line.sign}" if line.sign else "", style=_SIGNS[line.sign])
        table.add_row(before, Text(line.what, style="" if line.sign else "dim"), cell, Text(where, style="cyan"))
    return table


def _places(shown: Sequence[Line], every: Sequence[str]) -> Iterator[str]:
    """Return for each line its hosts; many that were named before are ``the same`` as above, or ``as containers (19)``."""
    before: list[str] = []
    times = Counter(line.what for line in shown)
    named: dict[tuple[str, ...], str] = {}
    # Where most lines are about all hosts, these go without saying.
    everywhere = [set(line.hosts) == set(every) for line in shown]
    alike = sum(everywhere) * 2 > len(shown)
    for line, whole in zip(shown, everywhere, strict=True):
        where = ("" if alike else "all") if whole else among(line.hosts, every)
        if len(where) > _LONG:
            known = named.get(tuple(line.hosts))
            if times[line.what] == 1:
                named.setdefault(tuple(line.hosts), line.what)
            if line.hosts == before:
                where = "the same"
            elif known:
                where = f"as {known} ({len(line.hosts)})"
        before = line.hosts
        yield where


def among(names: Sequence[str], every: Sequence[str]) -> str:
    """Return some of the hosts that change as text: ``gpu01..gpu12, ml3 (13)``, ``all but gpu40``."""
    others = [name for name in every if name not in set(names)]
    if not others:
        return "both hosts" if len(every) == 2 else f"all {len(every)} hosts" if len(every) > 1 else every[0]
    # Of many exceptions nobody finds out who is meant.
    return min(_short(names), f"all but {_short(others)}", key=len) if len(others) <= _EXCEPTIONS else _short(names)


def _short(names: Sequence[str]) -> str:
    count = f" ({len(names)})" if len(names) > _FEW else ""
    return ", ".join(runs(names, "..")) + count


def counted(line: Line) -> list[tuple[str, bool]]:
    """Return ``83 new``, ``11 to 12 removed`` with whether it is a loss; hosts that have none count as none."""
    kinds = dict.fromkeys([*_ACTIONS, *(kind for counts in line.counts for kind in counts)])
    found = []
    for kind in kinds:
        numbers = [counts[kind] for counts in line.counts]
        if not any(numbers):
            continue
        low, high = min(numbers), max(numbers)
        number = str(high) if low == high else f"{low} to {high}"
        found.append((f"{number} {_ACTIONS[kind]}" if kind in _ACTIONS else f"{kind} {number}", kind in _LOSSES))
    return found


# ---- totals ----------------------------------------------------------------------------------------------------------


def totals(document: PlanDocument) -> Iterator[Text]:
    """Return how many hosts change, what that costs, and last what interrupts work: reboots, restarts, removals."""
    statuses = [*(host.status for host in document.hosts.values()), *("left_out" for _ in document.left_out)]
    yield Text(f"plan: {plural(len(statuses), 'host')}: {format_counts(statuses, _ORDER)}", style="bold")
    plans = changing(document)
    if not plans:
        return
    counts = _actions([change for plan in plans.values() for change in plan.packages])
    sizes = [plan.download_bytes for plan in plans.values()]
    disk = sum(plan.disk_bytes for plan in plans.values())
    packages = text("  packages: " if counts else "")
    for number, (action, word) in enumerate((a, w) for a, w in _ACTIONS.items() if counts[a]):
        packages.append(", " if number else "").append(
            f"{counts[action]} {word}", "bold red" if action in _LOSSES else ""
        )
    if any(sizes):
        each = f", at most {size(max(sizes))} a host" if len(sizes) > 1 else ""
        # Only conda's solver, on the host, knows what it will fetch.
        conda = any(step.part == "conda" and step.sign == "+" for plan in plans.values() for step in plan.steps)
        packages.append(f"; {size(sum(sizes))} to download{each}{', without conda' if conda else ''}")
    if disk:
        packages.append(f"; {size(abs(disk))} {'more' if disk > 0 else 'less'} on disk")
    if packages.plain:
        yield packages
    for word, names, rest in dangers(plans):
        yield text(
            "  ! ", f"{word}: ", among(names, list(plans)), rest, styles=("bold yellow", "bold yellow", "", "dim")
        )


def dangers(plans: dict[str, HostPlan]) -> Iterator[tuple[str, list[str], str]]:
    """Return what interrupts work: a word, the hosts, and what that means there."""
    reboots = [name for name, plan in plans.items() if plan.reboot.needed]
    for policy in dict.fromkeys(plans[name].reboot.policy for name in reboots):
        names = [name for name in reboots if plans[name].reboot.policy == policy]
        limit = max(_timeout(plans[name]) for name in names) // 60
        away = f"; each is away until it answers, for {limit} min at most" if limit and policy != "never" else ""
        yield plural(len(names), "reboot"), names, f"; {_POLICIES.get(policy, policy)}{away}"
    down = [name for name in reboots if _moves_driver(plans[name])]
    if down:
        yield "driver down", down, "; new GPU programs fail until the reboot"
    restarts: dict[str, list[str]] = {}
    for name, plan in plans.items():
        for step in plan.steps:
            if step.id == "restart" and step.sign == "!":
                restarts.setdefault(step.title, []).append(name)
    for title, names in restarts.items():
        yield title, names, ""


def _moves_driver(plan: HostPlan) -> bool:
    """True where the libraries of an installed driver change: the module that is loaded then is of another version."""
    return any(s.id == "packages" and s.what == "driver" and s.sign == "~" and " -> " in s.value for s in plan.steps)


def _timeout(plan: HostPlan) -> int:
    """Seconds for which a reboot is waited for; 0: the plan does not say."""
    return int(plan.spec.get("parts", {}).get("nvidia_driver", {}).get("reboot", {}).get("timeout", 0))


# ---- one host in full ------------------------------------------------------------------------------------------------


def _same(plan: HostPlan) -> object:
    """What two plans must have in common to be shown as one."""
    shown = plan.model_dump(exclude={"host", "spec"})
    for issue in (*shown["blockers"], *shown["warnings"]):
        issue["host"] = None
    if plan.status == "changes":
        return shown
    return (plan.status, plan.gpus, plan.summary, [unnamed(blocker.message, plan.host) for blocker in plan.blockers])


def _in_short(names: Sequence[str], plan: HostPlan) -> Iterable[RenderableType]:
    messages = [blocker.message for blocker in plan.blockers]
    if len(names) > 1:
        messages = [unnamed(message, plan.host) for message in messages]
    shown = "; ".join(messages) or plan.summary
    yield headline(names, plan.status, "; ".join(filter(None, (", ".join(plan.gpus), shown))))


def _in_full(names: Sequence[str], plan: HostPlan, verbosity: int) -> Iterable[RenderableType]:
    yield headline(names, plan.status, hardware(plan), everything=bool(verbosity))
    if plan.summary:
        yield indented(Text(plan.summary, style="bold"), 2)
    if plan.decisions:
        yield columns([_reason(r.what, r.value, r.because) for r in plan.decisions], 4)
    for step in plan.steps:
        yield from _step(step, plan)
    if plan.packages and not any(step.id == "packages" for step in plan.steps):
        yield indented(Text(package_line(plan.packages)), 2)
        yield from _packages(plan.packages)
    if plan.reboot.needed and not any(step.id == "reboot" for step in plan.steps):
        step = Step(id="reboot", sign="!", title="reboot", because="; ".join(plan.reboot.because))
        yield from _step(step, plan)
    if plan.reboot.blocked_by and plan.status == "changes":
        yield indented(text("in use now: ", ", ".join(plan.reboot.blocked_by), styles=("yellow", "")), 2)
    for warning in plan.warnings:
        yield from issue(warning)
    for blocker in plan.blockers:
        yield indented(text(f"{plan.status}: ", blocker.message, styles=("red", "red")), 2)


def _reason(what: str, value: str, because: str) -> tuple[Text, Text]:
    return text(what, styles=("dim",)), text(value, f": {because}", styles=("bold", ""))


def _step(step: Step, plan: HostPlan) -> Iterable[RenderableType]:
    title = step.title
    if step.id == "reboot" and title == "reboot":
        title = f"reboot, {_POLICIES.get(plan.reboot.policy, plan.reboot.policy)}"
    row = (Text(step.sign, style=_SIGNS[step.sign]), text(title, f": {step.because}", styles=("bold", "")))
    yield columns([row], 2, style="", gap=1)
    if step.id == "packages" and plan.packages:
        changes = _of_step(step, plan)
        yield indented(Text(package_line(changes)), 4)
        yield from _packages(changes)
        return
    if step.details:
        yield columns([("", text(_details(step.details), styles=("dim",)))], 3, gap=1)


def _details(details: Sequence[str]) -> str:
    """Names of packages with commas; sentences one after the other."""
    sentences = any(" " in detail for detail in details)
    return "; ".join(_merged(details)) if sentences else ", ".join(details)


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


def _packages(changes: Sequence[PackageChange]) -> Iterable[RenderableType]:
    """Packages by what happens to them and by version: names that share a version stand together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for action in _ACTIONS:
        for change in changes:
            if change.action == action:
                groups.setdefault((action, _version(change)), []).append(change.name)
    rows: list[tuple[str | Text, str | Text]] = []
    before = ""
    for (action, version), names in groups.items():
        shown = text(version, "  ", ", ".join(names), styles=("", "", "dim"))
        style = "bold red" if action in _LOSSES else ""
        rows.append((text("" if action == before else _ACTIONS[action], styles=(style,)), shown))
        before = action
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
