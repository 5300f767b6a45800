"""The commands for a fleet that stays alike: lock, drift, and their neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from provision.cli.base import Settings, command, finish, open_fleet


@command(
    "provision lock",
    "provision lock -l 'gpu*' -o fleet.lock.yml",
    "provision lock --update --only driver",
)
def lock(
    settings: Settings,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="File to write (default: fleet.lock.yml beside the inventory).",
        ),
    ] = None,
    update: Annotated[
        bool,
        typer.Option(
            "--update", metavar="", help="Move the lock on to the newest, and show what changes and why."
        ),
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="PART", help="Of --update: driver, cuda, containers or conda. Repeatable."
        ),
    ] = None,
) -> int:
    """Write the exact versions of verified hosts to fleet.lock.yml, for apply and drift to hold every host to.

    Hosts are grouped by what they are; one that differs from the others of its kind is named. Changes no host.
    """
    fleet, renderer = open_fleet(settings, "lock")
    from provision.commands import lock as command

    document = command.run(fleet, output, renderer.progress(), update=update, only=only or ())
    return finish(settings, document, renderer)
