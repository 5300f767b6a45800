"""The commands for a fleet that stays alike: lock, drift, and their neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from provision.cli.base import (
    LOCK,
    NO_LOCK,
    Settings,
    command,
    finish,
    held_to,
    open_fleet,
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


@command(
    "provision drift",
    "provision drift -l gpu01 -v",
    "provision drift --metrics /var/lib/node_exporter/textfile/gpu_provision.prom",
)
def drift(
    settings: Settings,
    metrics: Annotated[
        Path | None,
        typer.Option(
            "--metrics",
            metavar="FILE",
            help="Write the answer for Prometheus' node_exporter (textfile collector).",
        ),
    ] = None,
    lock: LOCK = None,
    no_lock: NO_LOCK = False,
) -> int:
    """Show what of every host is not as inventory, lock, its peers and its hardware before say. Changes nothing.

    One read of each host, no apt. Exit code 2 when anything drifted.
    """
    fleet, renderer = open_fleet(held_to(settings, lock, no_lock), "drift")
    from provision.commands import drift as command

    document = command.run(fleet, renderer.progress())
    if metrics:
        command.write_metrics(document, metrics)
    return finish(settings, document, renderer)
