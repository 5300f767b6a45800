"""lock for people: what the file says now, and what changed in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType

from provision.commands.lock import LockDocument
from provision.lock.compare import Change
from provision.render.base import Text, indented, text
from provision.render.text import format_hosts, listed, plural

_SHOWN = 4


def view(document: LockDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what is to be printed: groups with their hosts, then the changes."""
    locked: dict[str, list[str]] = {}
    for name, host in document.hosts.items():
        if host.group:
            locked.setdefault(host.group, []).append(name)
    for group, hosts in locked.items():
        yield text(group, f"  {format_hosts(hosts)}", styles=("bold", ""))
        for line in _of_group(document, group, verbosity):
            yield indented(line, 2)
    for group in dict.fromkeys(change.group for change in document.changes if change.group not in locked):
        yield Text(group, style="bold")
        for line in _of_group(document, group, verbosity):
            yield indented(line, 2)
    yield Text(_last(document))


def _of_group(document: LockDocument, group: str, verbosity: int) -> Iterator[Text]:
    if not document.existed:
        return
    for change in document.changes:
        if change.group == group:
            yield _line(change, verbosity)


def _line(change: Change, verbosity: int) -> Text:
    what = change.what
    if change.packages:
        shown = len(change.packages) if verbosity else _SHOWN
        what = listed(change.packages, shown)
    old, new = change.old or "none", change.new or "none"
    if change.what == "group" and change.part == "hosts":
        line = Text(f"new: {new}" if change.new else f"gone: {old}")
    else:
        line = text(f"{what}: ", old, " -> ", new, styles=("", "red", "", "green"))
    if change.because:
        line.append(f"  {change.because}", "dim")
    return line


def _last(document: LockDocument) -> str:
    refused = [name for name, host in document.hosts.items() if host.status != "locked"]
    tail = f"; {plural(len(refused), 'host')} left out: {', '.join(refused)}" if refused else ""
    if document.written:
        groups = {host.group for host in document.hosts.values() if host.group}
        count = len(document.hosts) - len(refused)
        return f"wrote {document.path}: {plural(count, 'host')} in {plural(len(groups), 'group')}{tail}"
    if not document.existed:
        return f"nothing was written{tail}"
    return f"{document.path} is up to date: nothing changes{tail}"
