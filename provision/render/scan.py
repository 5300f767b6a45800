"""scan: a table of the fleet; one host, or -v, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable

import rich.text
from rich.console import RenderableType
from rich.table import Table

from provision.documents import ScanDocument, ScannedHost
from provision.layers.driver import layers
from provision.render.base import Text, columns, headline, stacked
from provision.render.text import format_hosts, grouped, unnamed

# Below this width a table of hosts becomes blocks of lines.
_TABLE_WIDTH = 90
_TITLES = ("host", "GPUs", "driver", "CUDA", "Ubuntu, kernel", "notes")


def view(document: ScanDocument, width: int, verbosity: int) -> Iterable[RenderableType]:
    """Return what to print of a scan."""
    hosts = document.hosts
    if verbosity or len(hosts) == 1:
        for number, (name, host) in enumerate(hosts.items()):
            yield from [Text("")] * bool(number)
            yield from _one(name, host)
        return
    read = [(name, host) for name, host in hosts.items() if host.status == "ok"]
    rows = [(names, _cells(host)) for names, host in grouped(read, _cells)]
    if rows:
        yield from [_table(rows)] if width >= _TABLE_WIDTH else _blocks(rows)
    unread = [(name, (host.status, host.summary)) for name, host in hosts.items() if host.status != "ok"]
    own = {name: unnamed(summary, name) for name, (_, summary) in unread}
    groups: dict[tuple[str, str], list[str]] = {}
    for name, (status, _) in unread:
        groups.setdefault((status, own[name]), []).append(name)
    for (state, shown), names in groups.items():
        yield headline(names, state, hosts[names[0]].summary if len(names) == 1 else shown)
    if rows:
        yield Text("layer by layer: provision scan -l HOST, or -v for all", style="dim")


def _one(name: str, host: ScannedHost) -> Iterable[RenderableType]:
    driver = _driver(host) or "no driver"
    shown = [", ".join(host.gpus) or "no NVIDIA GPU", driver, host.cuda or ""] if host.status == "ok" else []
    yield headline([name], host.status, "; ".join(filter(None, shown)) or host.summary)
    if host.facts is None:
        return
    if host.summary:
        yield columns([("notice", host.summary)], style="bold yellow")
    yield columns(
        [(title if first else "", line) for title, lines in layers(host.facts) for first, line in _first(lines)]
    )


def _first(lines: list[str]) -> list[tuple[bool, str]]:
    return [(number == 0, line) for number, line in enumerate(lines)]


def _cells(host: ScannedHost) -> tuple[str | tuple[str, ...], ...]:
    facts = host.facts
    system = f"{facts.host.os.version_id} {facts.kernels.running}".strip() if facts else ""
    driver = _driver(host) or "none"
    cuda = (host.cuda or "none").removeprefix("CUDA ")
    return (tuple(host.gpus) or "no NVIDIA GPU", driver, cuda, system, host.summary)


def _cell(shown: str | tuple[str, ...]) -> rich.text.Text:
    return Text(shown) if isinstance(shown, str) else stacked(shown)


def _driver(host: ScannedHost) -> str:
    """580.126.20 open, from the Ubuntu archive"""
    origin = host.origin and (host.origin if host.origin.startswith("not ") else f"from {host.origin}")
    return ", ".join(filter(None, (host.driver, origin)))


def _table(rows: list[tuple[list[str], tuple[str | tuple[str, ...], ...]]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    # A column in which no host has anything is left out.
    shown = [number for number in range(5) if any(cells[number] for _, cells in rows)]
    table.add_column("host", overflow="fold", no_wrap=all(len(format_hosts(names)) < 30 for names, _ in rows))
    for title in (_TITLES[number + 1] for number in shown):
        table.add_column(title, overflow="fold")
    for names, cells in rows:
        lines = [format_hosts(names), *(cells[number] for number in shown)]
        table.add_row(*(_cell(cell) for cell in lines))
    return table


def _blocks(rows: list[tuple[list[str], tuple[str | tuple[str, ...], ...]]]) -> Iterable[RenderableType]:
    for names, cells in rows:
        yield Text(format_hosts(names), style="bold")
        yield columns(
            [(title, _cell(cell)) for title, cell in zip(_TITLES[1:], cells, strict=True) if cell], style="dim"
        )
