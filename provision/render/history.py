"""history: a table of runs, one run in detail, or what hosts say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import RenderableType
from rich.table import Table

from provision.commands.history import HistoryDocument, HostHistory
from provision.render.base import Text, columns, headline, indented
from provision.render.text import STATUS_TEXTS, STYLES, format_hosts, grouped, listed, plural
from provision.runs.history import HostRecord, InventoryState, Judged, LockState, Run, Session, describe_changes

# What the states of a run are called for people.
_CALLED = {"cut off": "not finished", "at work": "running"}
_STATES = {"done": "green", "failed": "bold red", "interrupted": "yellow", "cut off": "yellow", "at work": "cyan"}


def view(document: HistoryDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what to print of a history."""
    if document.asked and len(document.runs) == 1:
        yield from _one(document.runs[0], verbosity)
    elif document.hosts:
        for number, (name, host) in enumerate(document.hosts.items()):
            yield from [Text("")] * bool(number)
            yield from _host(name, host, {run.run for run in document.runs})
    elif document.runs:
        yield _table(document.runs)
        yield Text(f"one run: provision history {short(document.runs[0].run)}", style="dim")
    elif not (document.warnings or document.errors):
        yield Text(f"no run yet in {document.folder}")


def _table(runs: Sequence[Run]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "UTC", "who", "hosts", "what changed"):
        table.add_column(title, overflow="fold", no_wrap=title in ("run", "UTC"))
    for run in runs:
        state = Text(_counted(run), style=_STATES.get(run.state, ""))
        table.add_row(*(Text(cell) for cell in (short(run.run), when(run.started), run.who)), state, Text(_what(run)))
    return table


def short(run: str) -> str:
    """The part of a run's name by which it can be called: apply-f9038c."""
    return run.split("-", 1)[-1]


def when(time: str) -> str:
    """2026-11-28T09:53:20Z as 2026-11-28 09:53."""
    return time[:16].replace("T", " ")


def _counted(run: Run) -> str:
    statuses = [record.status for record in run.hosts.values()] + list(run.left_alone.values())
    shown = [f"{statuses.count(s)} {STATUS_TEXTS.get(s, s)}" for s in dict.fromkeys(statuses)]
    rest = len(set(run.planned) - {*run.hosts, *run.left_alone})
    if rest and run.ended is None:
        shown.append(f"{rest} {'to do' if run.active else 'not done'}")
    state = _CALLED.get(run.state, run.state)
    return ", ".join([*([state] if run.ended is None else []), *shown]) or state


def _what(run: Run) -> str:
    shown = list(dict.fromkeys(describe_changes(record.packages) for record in run.hosts.values()))
    parts = ["back before another run"] if "--rollback" in run.command else []
    parts += [*filter(None, shown[:2]), *([f"{len(run.sessions)} sessions"] if len(run.sessions) > 1 else [])]
    return "; ".join([*parts, *(["and more"] if len(shown) > 2 else [])])


def _one(run: Run, verbosity: int) -> Iterable[RenderableType]:
    yield Text.assemble((run.run, "bold"), "  ", (_CALLED.get(run.state, run.state), _STATES.get(run.state, "")))
    git = f" ({run.git})" if run.git else ""
    rows = [
        ("command", run.command),
        ("who", f"{run.who}{git}"),
        ("when", f"{when(run.started)} to {when(run.ended) if run.ended else '?'} UTC"),
        ("inventory", _inventory(run.inventory)),
        ("lock", _lock(run.lock)),
        ("folder", run.folder or ""),
    ]
    yield columns([(word, shown) for word, shown in rows if shown])
    if len(run.sessions) > 1:
        yield columns([_session(number, session, run) for number, session in enumerate(run.sessions, 1)])
    for names, record in grouped(run.hosts.items(), _alike):
        yield from _record(names, record, verbosity)
    for names, status in grouped(run.left_alone.items(), lambda status: status):
        yield headline(names, status, "not changed")
    changed = any(record.packages for record in run.hosts.values())
    if run.cut_off:
        yield Text(f"it was interrupted: {run.cut_off}", style="dim")
    elif run.active:
        yield Text("it is running on this machine", style="dim")
    if changed and not verbosity:
        yield Text(f"packages: provision history {short(run.run)} -v", style="dim")
    if run.again:
        yield Text(f"to continue: {run.again}", style="dim")
    if run.ended is not None and changed:
        yield Text(f"to go back to the state before it: provision apply --rollback {short(run.run)}", style="dim")


def _session(number: int, session: Session, run: Run) -> tuple[str, str]:
    """A session of a run: when, by whom if not by the same person, and what it left hosts as."""
    at_work = run.active and number == len(run.sessions)
    ended = "" if session.ended else _CALLED["at work" if at_work else "cut off"]
    who = session.who if session.who != run.who else ""
    statuses: dict[str, list[str]] = {}
    for name, status in session.hosts.items():
        statuses.setdefault(STATUS_TEXTS.get(status, status), []).append(name)
    hosts = "; ".join(f"{status}: {format_hosts(names)}" for status, names in statuses.items())
    until = f" to {when(session.ended)}" if session.ended else ""
    return f"session {number}", ", ".join(filter(None, (f"{when(session.started)}{until}", who, ended, hosts)))


def _alike(record: HostRecord) -> object:
    verify = record.verify and (record.verify.fail, record.verify.failed)
    return (record.status, record.packages, record.rebooted, verify, record.took_lock_of, record.ended_by)


def _record(names: Sequence[str], record: HostRecord, verbosity: int) -> Iterable[RenderableType]:
    shown = [describe_changes(record.packages), "rebooted" if record.rebooted else ""]
    shown += [f"checks: {_judged(record.verify)}"] if record.verify else []
    yield headline(names, record.status, "; ".join(filter(None, shown)))
    rows: list[tuple[str | Text, str | Text]] = []
    if record.took_lock_of:
        rows.append(("lock of", f"{record.took_lock_of.get('who')}, run {record.took_lock_of.get('run')}"))
    if record.ended_by:
        rows.append(("interrupted", f"found and ended by {record.ended_by} at {when(record.ended)} UTC"))
    if rows:
        yield columns(rows, style="dim")
    if not verbosity:
        return
    moves: dict[tuple[str | None, str | None], list[str]] = {}
    for name, before, after in record.packages:
        moves.setdefault((before, after), []).append(name)
    rows = [(f"{before or 'none'} -> {after or 'none'}", ", ".join(found)) for (before, after), found in moves.items()]
    for move, found in rows:
        yield indented(Text(move, style="dim"), 2)
        yield indented(Text(found), 4)


def _judged(verify: Judged) -> str:
    shown = [
        f"{number} {word}"
        for word, number in (
            ("pass", verify.passed),
            ("warn", verify.warn),
            ("fail", verify.fail),
            ("skip", verify.skip),
        )
        if number
    ]
    failed = f": {listed(verify.failed, 6)}" if verify.failed else ""
    return ", ".join(shown) + failed


def _inventory(state: InventoryState | None) -> str:
    if state is None or not state.folder:
        return ""
    if not state.commit:
        return f"{state.folder} (not in git)"
    return f"{state.folder} at {state.commit[:12]}" + (", with changes that are not committed" if state.dirty else "")


def _lock(lock: LockState | None) -> str:
    return f"{lock.path} (sha256 {lock.sha256[:12]})" if lock else ""


def _host(name: str, host: HostHistory, mine: set[str]) -> Iterable[RenderableType]:
    runs = plural(len(host.runs), "run") if host.runs else "no run is known there"
    yield headline([name], host.status, runs if host.status == "ok" else "")
    if host.locked_by:
        who = f"{host.locked_by.get('who')}, {host.locked_by.get('command')}, since {host.locked_by.get('since')}"
        state = f" (stale: {host.stale})" if host.stale else ""
        yield indented(Text(f"running there now: {who}{state}", style="yellow"), 2)
    if not host.runs:
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for record in host.runs:
        status = Text(STATUS_TEXTS.get(record.status, record.status), style=STYLES.get(record.status, ""))
        elsewhere = "" if record.run in mine else "; run from elsewhere"
        shown = describe_changes(record.packages) or record.command
        table.add_row(Text(when(record.started)), Text(record.who), status, Text(f"{shown}{elsewhere}"))
    yield indented(table, 2)
