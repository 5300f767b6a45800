"""drift for people: a table of the fleet; one host, or -v, item by item."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table

from provision.commands.drift import DriftDocument, DriftedHost
from provision.drift.item import Item
from provision.render.base import Text, columns, headline, stacked, text
from provision.render.text import STYLES, format_counts, format_hosts, grouped, plural

_COUNTED = (
    ("drifted", "drifted"),
    ("clean", "as they should be"),
    ("unreachable", "unreachable"),
    ("failed", "could not be read"),
)
_FIRST = 2
_BY = {"inventory": "the inventory", "lock": "the lock", "peers": "its peers", "hardware": "what was there before"}


def view(document: DriftDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what is to be printed of a drift."""
    hosts = document.hosts
    if verbosity or len(hosts) == 1:
        for name, host in hosts.items():
            yield headline([name], host.status, _group(host))
            for hint, items in _by_hint(host.items):
                yield columns(
                    [*((item.code, _describe(item)) for item in items), *([("", f"hint: {hint}")] if hint else [])]
                )
    else:
        drifted = [(name, host) for name, host in hosts.items() if host.status == "drifted"]
        if drifted:
            yield _table(drifted)
        for status in ("clean", "unreachable", "failed"):
            names = [name for name, host in hosts.items() if host.status == status]
            if names:
                yield headline(names, status)
    counts = format_counts((host.status for host in hosts.values()), _COUNTED)
    against = f"against {document.lock}" if document.lock else "compared with inventory and peers: there is no lock"
    yield Text(f"drift: {plural(len(hosts), 'host')}: {counts}; {against}", style="bold")
    if len(hosts) > 1 and not verbosity and any(host.items for host in hosts.values()):
        yield Text("item by item: -v", style="dim")


def _by_hint(items: Iterable[Item]) -> Iterable[tuple[str | None, list[Item]]]:
    """Items with one way to put them right together: it is said once."""
    found: dict[str | None, list[Item]] = {}
    for item in items:
        found.setdefault(item.hint, []).append(item)
    return found.items()


def _group(host: DriftedHost) -> str:
    return f"group {host.group}" if host.group else ""


def _describe(item: Item) -> str:
    return f"{item.what}: {item.found}; by {_BY[item.against]}: {item.expected}"


def _table(drifted: list[tuple[str, DriftedHost]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("host", overflow="fold")
    table.add_column("items", justify="right")
    table.add_column("what drifted", overflow="fold")
    for names, host in grouped(drifted, lambda one: [(i.code, i.what, i.expected, i.found) for i in one.items]):
        lines = [item.message for item in host.items[:_FIRST]]
        more = len(host.items) - _FIRST
        lines += [f"and {more} more"] if more > 0 else []
        table.add_row(text(format_hosts(names), styles=[STYLES["changes"]]), Text(str(len(host.items))), stacked(lines))
    return table
