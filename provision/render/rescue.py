"""rescue: what is broken, what is done about it round by round, and what came of it. Equal hosts are shown once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.text import Text as RichText

from provision.diagnose.finding import Cause
from provision.parts.plan import PackageChange, Step
from provision.render.base import Text, columns, headline, indented, text
from provision.render.plan import package_line
from provision.render.results import alike_as_one, counted, in_part, proven
from provision.render.text import clean, format_counts, format_task, grouped, listed, plural
from provision.rescue.model import OfflineDocument, RescuedHost, RescueDocument, RescueStep, Round

_STATUSES = (
    ("rescued", "rescued and proven"),
    ("rescued_in_part", "rescued, not all of it proven"),
    ("undone", "undone"),
    ("well", "well"),
    ("planned", "to rescue"),
    ("left", "still broken"),
    ("check_failed", "with failed checks"),
    ("reboot_needed", "waiting for a reboot"),
    ("blocked", "blocked"),
    ("failed", "failed"),
    ("unreachable", "unreachable"),
    ("interrupted", "interrupted"),
)
_SHOWN_EVIDENCE = 2
# lines of what a step said; all of them are in the document
_SHOWN_SAID = 2
_SHOWN_PACKAGES = 4


def view(document: RescueDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what to print of a rescue, before a round as well as at the end."""
    for names, host in grouped(document.hosts.items(), lambda host: host.model_dump(exclude={"snapshot"})):
        yield headline(names, host.status, host.summary, everything=bool(verbosity))
        yield from _host(host, verbosity)
    counts = format_counts((in_part(host) for host in document.hosts.values()), _STATUSES)
    seconds = f" in {document.seconds:.0f} s" if document.seconds else ""
    yield Text(f"rescue: {plural(len(document.hosts), 'host')}{seconds}: {counts}", style="bold")
    yield from proven({name: host.checks for name, host in document.hosts.items()})


def offline(document: OfflineDocument) -> Iterable[RenderableType]:
    """Return what to print of scripts that were written to files; one that was not is data, printed as it is."""
    for name, host in document.hosts.items():
        if host.path:
            yield Text(f"wrote {host.path} for {name}")
            if host.source:
                yield indented(text("versions: ", host.source, styles=("dim", "")), 2)


def _host(host: RescuedHost, verbosity: int) -> Iterable[RenderableType]:
    """Before a round: what is broken now, and the round. At the end: what was found, every round, what came of it."""
    planned = host.status == "planned"
    findings = host.left if planned else host.found
    mended = {step.finding for one in host.rounds for step in one.steps}
    stays = {finding.code for finding in host.left}
    others = 0
    for finding in findings:
        if finding.level == "warning" and finding.code not in mended and not verbosity:
            others += 1
            continue
        yield from _finding(finding, verbosity, short=not planned and finding.code not in stays)
    if others:
        yield indented(Text(f"{plural(others, 'warning')} more", style="dim"), 2)
    rounds = list(enumerate(host.rounds, 1))
    counted_ = len(host.rounds) > 1 and (planned or verbosity)
    for number, one in _to_agree(rounds) if planned else rounds:
        yield from _round(one, number if counted_ else 0, verbosity, alone=len(findings) == 1)
    if not planned:
        yield from _end(host, verbosity)


def _to_agree(rounds: list[tuple[int, Round]]) -> list[tuple[int, Round]]:
    """The round that comes next, and what was passed over for it since the last one that was carried out."""
    shown = rounds[-1:]
    for number, one in reversed(rounds[:-1]):
        if any(step.ok for step in one.steps):
            break
        shown.insert(0, (number, one))
    return shown


def _finding(finding: Cause, verbosity: int, *, short: bool) -> Iterable[RenderableType]:
    style = "bold red" if finding.level == "error" else "yellow"
    yield _row(finding.level, style, text(finding.code, f"  {finding.message}", styles=("bold",)))
    if short and not verbosity:
        return
    # Most messages quote what was read.
    new = [line for line in finding.evidence if verbosity or line not in finding.message]
    shown = new if verbosity else new[:_SHOWN_EVIDENCE]
    more = len(new) - len(shown)
    for line in [*shown, *([f"and {more} more (-v)"] if more else [])]:
        yield _row("", "", text(line, styles=("dim",)))
    if finding.folded and verbosity:
        yield _row("explains", "dim", text(", ".join(f.code for f in finding.folded), styles=("dim",)))


def _row(word: str, style: str, shown: RichText) -> RenderableType:
    """A word in a column of its own, and what is said of it."""
    return columns([(Text(f"{word:<8}", style=style), shown)], 2, style="", gap=1)


def _round(one: Round, number: int, verbosity: int, *, alone: bool) -> Iterable[RenderableType]:
    if number:
        yield indented(Text(f"round {number}", style="dim"), 2)
    for step in one.steps:
        yield _row(*_mark(step), _step(step, alone=alone))
    for hint in dict.fromkeys(step.hint for step in one.steps if step.ok is False and step.hint):
        yield _row("hint:", "cyan", Text(hint))
    for plan in (one.plan, one.purge, one.undo):
        if plan is not None:
            yield from _plan(plan.steps, details=bool(verbosity) or one.plan is None)
    if one.plan is not None and one.plan.packages:
        yield indented(text(package_line(one.plan.packages), styles=("",)), 13)
        yield from _packages(one.plan.packages, 13, verbosity)
    stays = [(row.path, row.why) for row in one.purge.left] if one.purge else []
    stays += [(row.what, row.why) for row in one.undo.left] if one.undo else []
    for what, why in stays:
        yield _row("stays", "dim", text(what, f": {why}", styles=("", "dim")))
    if one.stops:
        yield _row("stops", "yellow", text(", ".join(one.stops), " (for a moment)", styles=("", "dim")))
    for blocker in one.blockers:
        yield _row("waits", "red", text(blocker.message, styles=("red",)))


def _plan(steps: Sequence[Step], *, details: bool) -> Iterable[RenderableType]:
    """The steps of a plan; with their details where these are what a person agrees to."""
    rows: list[tuple[str | Text, str | Text]] = []
    for step in steps:
        rows.append(("", text(step.title, f": {step.because}" if step.because else "", styles=("bold", ""))))
        if details and step.details:
            rows.append(("", text(", ".join(step.details), styles=("dim",))))
    yield columns(rows, 11, gap=0)


def _mark(step: RescueStep) -> tuple[str, str]:
    if step.ok is None:
        return "repair", "green"
    return ("done", "green") if step.ok else ("not done", "yellow")


def _step(step: RescueStep, *, alone: bool) -> Text:
    """alone: it is for the one finding that is shown."""
    shown = text(step.words, "" if alone else f"  ({step.finding})", styles=("bold", "dim"))
    if step.ok is not None and step.said:
        shown.append(": " + format_task("; ".join(step.said[:_SHOWN_SAID])), style="")
    if step.ok is None and step.action == "reboot":
        shown.stylize("bold yellow", 0, len(clean(step.words)))
    return shown


def _packages(changes: Sequence[PackageChange], indent: int, verbosity: int) -> Iterable[RenderableType]:
    names = [_package(change) for change in changes]
    yield indented(text(listed(names, len(names) if verbosity else _SHOWN_PACKAGES), styles=("dim",)), indent)


def _package(change: PackageChange) -> str:
    if change.action == "remove":
        return f"{change.name} removed"
    return f"{change.name} {change.from_version + ' -> ' if change.from_version else ''}{change.version}"


def _end(host: RescuedHost, verbosity: int) -> Iterable[RenderableType]:
    if host.rounds:
        kept = f"; the earlier state is in {host.snapshot}" if verbosity else "; rescue --undo goes back"
        yield _row("changed", "dim", text(touched_text(host), kept if host.snapshot else "", styles=("", "dim")))
    if host.next and host.left:
        yield _row("next", "bold", Text(host.next))
    if host.checks and verbosity:
        yield _row("checks", "dim", Text(counted(host.checks).removeprefix("checks: ")))
    for check in alike_as_one(host.checks):
        if check.status in ("fail", "warn"):
            style = "bold red" if check.status == "fail" else "yellow"
            yield _row(check.status, style, text(check.code, f"  {check.message}", styles=("bold",)))
            if check.hint and (verbosity or check.status == "fail"):
                yield _row("hint:", "cyan", Text(check.hint))
    if host.packages and verbosity:
        yield from _packages(host.packages, 2, verbosity)


def touched_text(host: RescuedHost) -> str:
    """Return ``2 packages, 1 reboot``."""
    parts = [plural(len(host.packages), "package") if host.packages else "no package"]
    if host.configured:
        parts.append(f"{len(host.configured)} set up that dpkg had left unfinished")
    return ", ".join([*parts, plural(host.reboots, "reboot") if host.reboots else "no reboot"])
