"""scan: a table of the fleet; one host, or -v, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from provision.commands.layers import layers
from provision.documents import ScanDocument, ScannedHost
from provision.render.base import columns, headline, indented
from provision.render.words import STATUS_WORDS, clean, grouped, hosts_in_words, plural

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
    rows = [(names, host, _cells(host)) for names, host in grouped(hosts.items(), _cells)]
    if width >= _TABLE_WIDTH:
        yield _table(rows)
    else:
        yield from _blocks(rows)
    if any(host.status == "ok" for host in hosts.values()):
        yield Text("layer by layer: provision scan -l HOST, or -v for all", style="dim")


def _one(name: str, host: ScannedHost) -> Iterable[RenderableType]:
    driver = _driver(host) or "no driver"
    told = [", ".join(host.gpus) or "no NVIDIA GPU", driver, host.cuda or ""] if host.status == "ok" else []
    yield headline([name], host.status, "; ".join(filter(None, told)) or host.summary)
    if host.facts is None:
        return
    if host.summary:
        yield columns([("notice", host.summary)], style="bold yellow")
    yield columns([
        (title if first else "", line) for title, lines in layers(host.facts) for first, line in _first(lines)
    ])  # fmt: skip


def _first(lines: list[str]) -> list[tuple[bool, str]]:
    return [(number == 0, line) for number, line in enumerate(lines)]


def _cells(host: ScannedHost) -> tuple[str, ...]:
    if host.status != "ok":
        return ("", "", "", "", f"{STATUS_WORDS.get(host.status, host.status)}: {host.summary}")
    facts = host.facts
    system = f"{facts.host.os.version_id} {facts.kernels.running}".strip() if facts else ""
    driver = _driver(host) or "none"
    cuda = (host.cuda or "none").removeprefix("CUDA ")
    return ("\n".join(host.gpus) or "no NVIDIA GPU", driver, cuda, system, host.summary)


def _driver(host: ScannedHost) -> str:
    """580.126.20 open, from the Ubuntu archive"""
    origin = host.origin and (host.origin if host.origin.startswith("not ") else f"from {host.origin}")
    return ", ".join(filter(None, (host.driver, origin)))


def _table(rows: list[tuple[list[str], ScannedHost, tuple[str, ...]]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    # A column in which no host has anything is left out.
    shown = [number for number in range(5) if any(cells[number] for _, _, cells in rows)]
    for title in ("host", *(_TITLES[number + 1] for number in shown)):
        table.add_column(title, overflow="fold")
    for names, host, cells in rows:
        style = "" if host.status == "ok" else "red"
        told = [hosts_in_words(names), *(cells[number] for number in shown)]
        table.add_row(*(Text(clean(cell), style=style) for cell in told))
    return table


def _blocks(rows: list[tuple[list[str], ScannedHost, tuple[str, ...]]]) -> Iterable[RenderableType]:
    for names, host, cells in rows:
        yield Text(clean(hosts_in_words(names)), style="bold" if host.status == "ok" else "bold red")
        told = [(title, cell) for title, cell in zip(_TITLES[1:], cells, strict=True) if cell]
        yield columns(told, style="dim") if told else indented(Text(plural(len(names), "host")), 2)
