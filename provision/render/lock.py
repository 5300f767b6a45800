"""lock for people: what the file says now, and what changed in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from provision.commands.lock import LockDocument
from provision.lock.compare import Change
from provision.render.words import clean, hosts_in_words, listed, plural

_SHOWN = 4


def view(document: LockDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what is to be printed: groups with their hosts, then the changes."""
    locked: dict[str, list[str]] = {}
    for name, host in document.hosts.items():
        if host.group:
            locked.setdefault(host.group, []).append(name)
    for group, hosts in locked.items():
        yield Text.assemble((clean(group), "bold"), f"  {clean(hosts_in_words(hosts))}")
        for line in _of_group(document, group, verbosity):
            yield Padding(line, (0, 0, 0, 2), expand=False)
    for group in dict.fromkeys(change.group for change in document.changes if change.group not in locked):
        yield Text.assemble((clean(group), "bold"))
        for line in _of_group(document, group, verbosity):
            yield Padding(line, (0, 0, 0, 2), expand=False)
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
        text = Text(clean(f"new: {new}" if change.new else f"gone: {old}"))
    else:
        text = Text.assemble((clean(f"{what}: "), ""), (clean(old), "red"), " -> ", (clean(new), "green"))
    if change.because:
        text.append(clean(f"  {change.because}"), "dim")
    return text


def _last(document: LockDocument) -> str:
    refused = [name for name, host in document.hosts.items() if host.status != "locked"]
    tail = f"; {plural(len(refused), 'host')} left out: {', '.join(refused)}" if refused else ""
    if document.written:
        return clean(f"wrote {document.path}{tail}")
    if not document.existed:
        return clean(f"nothing was written{tail}")
    return clean(f"{document.path} is up to date: nothing changes{tail}")
