"""init: what was written, and what the look at the hosts has shown."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from provision.documents import InitDocument, InitGroup
from provision.render.base import Text, columns
from provision.render.text import format_hosts, listed


def view(document: InitDocument) -> Iterable[RenderableType]:
    """Return what to print of an inventory that was written."""
    yield Text(f"wrote {document.path}")
    if document.groups:
        rows = [(name, f"{_hosts(group)}: {_what(group)}") for name, group in document.groups.items()]
        yield columns(rows)
    if document.unreached:
        yield columns([("unreached", format_hosts(list(document.unreached)))], style="bold red")
    if document.left_out:
        yield Text(f"left out, no NVIDIA GPU: {listed(document.left_out, 8)}", style="dim")


def _hosts(group: InitGroup) -> str:
    return format_hosts(group.hosts)


def _what(group: InitGroup) -> str:
    if not group.cards:
        return "no NVIDIA GPU"
    shown = [group.cards]
    if group.branches:
        first, last = group.branches[0], group.branches[-1]
        span = str(first) if first == last else f"{first} to {last}"
        shown.append(f"driver branches {span}, recommended {group.recommended} where it is offered")
    if group.trouble:
        shown.append(f"no driver can be chosen for {listed(list(group.trouble), 3)}")
    return "; ".join(shown)
