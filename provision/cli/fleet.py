"""The commands for a fleet that stays alike: lock, drift, and their neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from provision.cli.base import LOCK, NO_LOCK, Settings, command, finish, open_fleet, with_lock


@command("provision lock", "provision lock -l 'gpu*' -o fleet.lock.yml", "provision lock --update --only driver")
def lock(
    settings: Settings,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write (default: the inventory's own, beside it)."),
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Update the lock to the newest versions, and show what changes and why.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PART", help="Of --update: driver, cuda, containers or conda. Repeatable."),
    ] = None,
) -> int:
    """Write the exact versions of verified hosts to fleet.lock.yml; apply installs them, and drift compares with them.

    Hosts of one kind are a group; a host that differs from its group is listed. Changes no host.
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
            "--metrics", metavar="FILE", help="Write the answer for Prometheus' node_exporter (textfile collector)."
        ),
    ] = None,
    lock: LOCK = None,
    no_lock: NO_LOCK = False,
) -> int:
    """Show how hosts differ from the inventory, the lock, similar hosts and their earlier hardware. Changes nothing.

    Reads each host once, without apt. Exit code 2 if a host drifted.
    """
    fleet, renderer = open_fleet(with_lock(settings, lock, no_lock), "drift", dial=True)
    from provision.commands import drift as command

    if metrics:
        command.check_metrics(metrics)
    document = command.run(fleet, renderer.progress())
    if metrics:
        command.write_metrics(document, metrics)
    return finish(settings, document, renderer)


@command(
    "provision mirror /srv/mirror",
    "provision mirror /srv/mirror --on gpu01 --sign new",
    "provision mirror /srv/mirror --verify",
    "provision mirror /srv/mirror --serve 10.0.0.1:8080",
    goes_on=True,
)
def mirror(
    settings: Settings,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder of the mirror; created if missing.")],
    lock: Annotated[
        Path | None, typer.Option("--lock", metavar="FILE", help="The lock (default: the inventory's own, beside it).")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="HOST", help="Fill DIR on this host, which has internet (default: this machine)."),
    ] = None,
    sign: Annotated[
        str | None,
        typer.Option(
            "--sign",
            metavar="KEY",
            help="Sign with this key of your GnuPG, or 'new' for a new key. Default: keep the original signatures.",
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            "--also", metavar="PACKAGE", help="An additional package, with its dependencies: docker.io. Repeatable."
        ),
    ] = None,
    wheels: Annotated[
        str,
        typer.Option(
            "--wheels", metavar="FOLDER", help="Wheels on this machine to put into its index: what gpu_pull installs."
        ),
    ] = "",
    archive: Annotated[
        str,
        typer.Option(
            "--archive",
            metavar="URL",
            help="Ubuntu's archive (default: where the locked hosts have it on Ubuntu's own servers).",
        ),
    ] = "",
    archive_key: Annotated[
        str,
        typer.Option(
            "--archive-key",
            metavar="FILE|FINGERPRINT",
            help="Key of an archive of your own, a file here or its fingerprint (default: Ubuntu's own keys).",
        ),
    ] = "",
    prune: Annotated[bool, typer.Option("--prune", help="Remove what the lock no longer needs.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Fetch nothing: compare every file with its checksum.")
    ] = False,
    serve: Annotated[
        str | None,
        typer.Option("--serve", metavar="[ADDR]:PORT", help="Fetch nothing: serve DIR over http until Ctrl-C."),
    ] = None,
) -> int:
    """Fetch everything that the lock needs into one folder, for hosts without internet (gpu_mirror_url).

    Every file is verified; a second run fetches what is missing, also after one that was interrupted.
    """
    from provision.errors import UsageError

    if serve is not None:
        from provision.commands import mirror as command
        from provision.mirror.serve import address, server
        from provision.render import Renderer

        command.manifest_of(Path(folder))
        with server(Path(folder).expanduser().resolve(), address(serve)) as running:
            host, port = running.server_address[:2]
            Renderer(as_json=settings.json).say(f"serving {folder} on http://{host!s}:{port}/ until Ctrl-C")
            running.serve_forever()
    if verify and on is None:
        from provision.commands import mirror as command

        return finish(settings, command.verify(folder))
    if verify and (sign or prune or also or archive):
        raise UsageError("usage.arguments", "--verify goes with DIR and --on alone", hint="provision mirror --help")
    fleet, renderer = open_fleet(settings, "mirror")
    from provision.commands import mirror as command

    order = command.Order(folder, lock, on, sign, prune, archive, archive_key, tuple(also or ()), wheels)
    document = command.verify_on(fleet, order) if verify else command.run(fleet, order, renderer.progress())
    return finish(settings, document, renderer)


@command(
    "provision history",
    "provision history last",
    "provision history apply-f9038c -v",
    "provision history gpu01",
    "provision history --on-hosts --json",
)
def history(
    settings: Settings,
    what: Annotated[
        str | None,
        typer.Argument(metavar="[RUN|HOST]", help="A run: last, or a part of its name. A host or group: what it says."),
    ] = None,
    on_hosts: Annotated[
        bool, typer.Option("--on-hosts", help="Ask the hosts too: they also know runs from other machines.")
    ] = False,
    newest: Annotated[int, typer.Option("-n", "--newest", min=1, metavar="N", help="Number of the newest runs.")] = 20,
) -> int:
    """Show who changed what, when, with which inventory and lock. Changes nothing.

    Without arguments: the runs of this machine. docs/history.md says where they are kept, and how to go back.
    """
    from provision.commands import history as command
    from provision.errors import UsageError

    base = settings.run_dir
    if what is None and not on_hosts:
        return finish(settings, command.of_runs(base, newest))
    failure = None
    if what is not None and not on_hosts:
        try:
            found = command.one_run(what, base)
        except UsageError as error:
            # more than one run: perhaps it is a host
            found, failure = None, error
        if found is not None:
            return finish(settings, found)
    from dataclasses import replace

    try:
        fleet, renderer = open_fleet(replace(settings, limit=what or settings.limit), "history")
    except UsageError as error:
        if what is None or error.issue.code not in ("inventory.missing", "inventory.no_match", "inventory.empty"):
            raise
        raise failure or command.nothing(what, base) from error
    return finish(settings, command.of_hosts(fleet, base, renderer.progress(), newest=newest), renderer)
