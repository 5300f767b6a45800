"""envs: installations and environments of each host, as a table; below a certain width as lines."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table

from provision.documents import EnvsDocument, EnvsHost, EnvsRow
from provision.render.base import Text, columns, headline
from provision.render.text import grouped, plural, size

_TABLE_WIDTH = 90
_TITLES = ("name", "path", "python", "framework", "CUDA", "size", "notes")


def view(document: EnvsDocument, width: int, verbosity: int) -> Iterable[RenderableType]:
    """Return what to print: hosts with the same conda are shown together."""
    hosts = list(document.hosts.items())
    for number, (names, host) in enumerate(grouped(hosts, lambda host: host.model_dump())):
        yield from [Text("")] * bool(number)
        installations = sum(row.kind == "conda" for row in host.rows)
        environments = len(host.rows) - installations
        shown = "no conda" if not host.rows else f"{installations} conda, {plural(environments, 'environment')}"
        yield headline(names, host.status, shown if host.status == "ok" else "", everything=bool(verbosity))
        if host.rows:
            yield _table(host) if width >= _TABLE_WIDTH else columns([(_name(row), _line(row)) for row in host.rows])


def _table(host: EnvsHost) -> Table:
    cells = [_cells(row) for row in host.rows]
    # A column in which nothing stands is left out.
    shown = [number for number in range(len(_TITLES)) if any(row[number] for row in cells)]
    table = Table(box=None, pad_edge=True, header_style="bold")
    for number in shown:
        table.add_column(_TITLES[number], overflow="fold", justify="right" if _TITLES[number] == "size" else "left")
    for row, lines in zip(host.rows, cells, strict=True):
        style = "bold" if row.kind == "conda" else ""
        table.add_row(*(Text(lines[number]) for number in shown), style=style)
    return table


def _name(row: EnvsRow) -> str:
    return row.name or row.path.rpartition("/")[2]


def _line(row: EnvsRow) -> str:
    """The cells in one line, without a head that says what a number is."""
    said = {"python": "python ", "CUDA": "CUDA "}
    cells = zip(_TITLES, _cells(row), strict=True)
    return ", ".join(said.get(title, "") + cell for title, cell in cells if cell and title != "name")


def _cells(row: EnvsRow) -> tuple[str, ...]:
    frameworks = ", ".join(f"{name} {version}" for name, version in row.frameworks.items())
    measured = size(row.size_bytes) if row.size_bytes is not None else ""
    notes = [*row.notes, *([f"owner {row.owner}"] if row.owner not in (None, "root") else [])]
    return (_name(row), row.path, row.python or "", frameworks, row.cuda or "", measured, "; ".join(notes))
