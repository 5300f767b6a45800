"""rescue: the command that mends what diagnose names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from provision.cli.base import Settings, agreed, command, finish, open_fleet, refuse_json, with_values
from provision.errors import UsageError

# see plugins/module_utils/rescue/snapshot.py
_SNAPSHOT = re.compile(r"^[0-9]{8}T[0-9]{6}Z(?:-[0-9a-f]{6})?$")


@command(
    "provision rescue gpu01",
    "provision rescue gpu01 gpu02 --yes",
    "provision rescue gpu01 --dry-run",
    "provision rescue gpu01 --purge",
    "provision rescue gpu01 --undo",
    "provision rescue gpu01 --offline-script -o rescue-gpu01.py",
)
def rescue(
    settings: Settings,
    hosts: Annotated[list[str] | None, typer.Argument(metavar="HOST...", help="Hosts or groups, as with -l.")] = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done first; change nothing.")] = False,
    stop_holders: Annotated[
        bool,
        typer.Option(
            "--stop-holders",
            help="Stop services that hold the kernel modules (a display, DCGM) for a moment, instead of a reboot.",
        ),
    ] = False,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge",
            help="The last resort: remove every trace of the driver by exact names, then install by the inventory.",
        ),
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Go back to what was there before a rescue, as far as apt allows.")
    ] = False,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", metavar="ID", help="Of --undo: which one (default: the newest).")
    ] = None,
    offline_script: Annotated[
        bool,
        typer.Option(
            "--offline-script",
            help="Write the same steps as one Python file, for the console of a host that ssh cannot reach. Contacts no host.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Of --offline-script: where to (default: stdout)."),
    ] = None,
    no_reboot: Annotated[bool, typer.Option("--no-reboot", help="Leave needed reboots to you (exit code 6).")] = False,
    break_lock: Annotated[
        bool, typer.Option("--break-lock", help="Take over the lock of another run on a host.")
    ] = False,
) -> int:
    """Repair broken hosts with the smallest fixes, round by round, and test the result.

    Each round names the cause, shows what it would do, and asks. No other package changes its version.
    docs/rescue.md lists what rescue does, in which order, and what it never does.
    """
    if purge + undo + offline_script > 1:
        raise UsageError(
            "usage.options", "--purge, --undo and --offline-script exclude each other", hint="give one of them"
        )
    # rescue gpu01 --offline-script rescue.py; a host may be called gpu.example.py
    last = hosts[-1] if hosts else ""
    alone = not (hosts and hosts[1:] or settings.limit or "/" in last or last.count(".") == 1)
    if offline_script and hosts and output is None and last.endswith((".py", ".sh")) and not alone:
        *hosts, name = hosts
        output = Path(name)
    if undo and hosts and snapshot is None and _SNAPSHOT.match(hosts[-1]):
        # rescue gpu01 --undo 20261128T093012Z-1f2e3d
        *hosts, snapshot = hosts
    if snapshot is not None and not undo:
        raise UsageError(
            "usage.options", "--snapshot belongs to --undo", hint="provision rescue HOST --undo --snapshot ID"
        )
    refuse_json(settings, yes or dry_run or offline_script)
    if hosts:
        settings = replace(settings, limit=",".join([*([settings.limit] if settings.limit else []), *hosts]))
    settings = with_values(settings, no_reboot and {"nvidia_driver_reboot": "never"})
    fleet, renderer = open_fleet(settings, "rescue")
    from provision.commands import rescue as command
    from provision.rescue.model import RescueDocument

    refused = False

    def agree(document: RescueDocument) -> bool:
        nonlocal refused
        if not renderer.as_json:
            renderer.show(document)
        count = sum(host.status == "planned" for host in document.hosts.values())
        if yes or agreed(renderer, count):
            return True
        refused = document.run_dir is None
        renderer.say("nothing was changed" if refused else "nothing more was changed")
        return False

    if offline_script:
        return finish(settings, command.offline(fleet, output, settings.run_dir), renderer)
    options = command.Options(
        mode="purge" if purge else "undo" if undo else "mend",
        snapshot=snapshot,
        stop_holders=stop_holders,
        dry_run=dry_run,
        break_lock=break_lock,
        run_base=settings.run_dir,
        verbosity=settings.verbose,
    )
    document = command.run(fleet, renderer.progress(), options, agree)
    # What was refused was shown a moment ago.
    return document.exit_code if refused and not renderer.as_json else finish(settings, document, renderer)
