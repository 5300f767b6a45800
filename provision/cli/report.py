"""The command for the page of a fleet: report, written once or served while it is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from provision.cli.base import LOCK, NO_LOCK, Settings, command, finish, open_fleet, with_lock
from provision.errors import UsageError

_PAGE = Path("fleet.html")
_HINT = "name a file in a folder that you can write: -o FILE"


@command(
    "provision report",
    "provision report -l lab -o /srv/www/fleet.html",
    "provision report --serve 8080",
    "provision report --json",
)
def report(
    settings: Settings,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help=f"File to write (default: {_PAGE}; none with --json)."),
    ] = None,
    serve: Annotated[
        str | None,
        typer.Option(
            "--serve", metavar="[ADDR:]PORT", help="Serve the page until Ctrl-C, and keep it current (ADDR: 127.0.0.1)."
        ),
    ] = None,
    lock: LOCK = None,
    no_lock: NO_LOCK = False,
) -> int:
    """Write a page of the fleet: one HTML file with a tile for each host, versions, findings, differences, runs. Changes nothing.

    Reads each host once. The file needs no network and no server. Codes 4 and 1: a host could not be read; the page says why.
    """
    if serve is not None and (settings.json or output):
        raise UsageError("usage.arguments", "--serve writes no file and prints no JSON", hint="leave --json and -o out")
    from provision.lib import files

    path = output or (None if settings.json or serve is not None else _PAGE)
    if path:
        files.check_writable(path, _HINT)
    fleet, renderer = open_fleet(with_lock(settings, lock, no_lock), "report", dial=True)
    from provision.cli.serving import read, serve_page

    if serve is not None:
        serve_page(fleet, settings, renderer, serve)
    document = read(fleet, settings, renderer)
    if path:
        from provision.render.report import html

        files.write(path, html(document), _HINT)
        document.path = str(path)
    return finish(settings, document, renderer)
