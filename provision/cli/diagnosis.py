"""The commands for a host that does not work: diagnose, and dossier for its cards."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import redact
from ansible_collections.gpu.provision.plugins.plugin_utils import runrecord
from provision.cli.base import Settings, again, command, finish, open_fleet
from provision.errors import UsageError


@command(
    "provision diagnose",
    "provision diagnose -l gpu01",
    "provision diagnose --explain driver.stale_module",
    "provision diagnose --text 'RmInitAdapter failed'",
    "provision diagnose --bundle nvidia-bug-report.log.gz",
    "provision diagnose -l gpu01 --export case.tar",
    "journalctl -k -b | provision diagnose --text -",
)
def diagnose(
    settings: Settings,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="CODE", help="Explain one code. Contacts no host.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text", metavar="TEXT", help="Find the codes for an error text; - reads a log. Contacts no host."
        ),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            "--bundle",
            metavar="FILE",
            help="Read nvidia-bug-report.log(.gz), a sosreport or an exported case as a host. Contacts no host.",
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="FILE",
            help="Write one host to a file for a report: no names, addresses, serials, tokens.",
        ),
    ] = None,
) -> int:
    """Name the cause of what is broken, with the evidence and the smallest repair. Changes nothing.

    Causes are listed in the order of their repair, with their consequences below them. rescue carries out the repair.
    """
    if sum(given is not None for given in (explain, text, bundle, export)) > 1:
        raise UsageError(
            "usage.arguments",
            "--explain, --text, --bundle and --export are different questions",
            hint="give one of them; only --export asks a host",
        )
    if explain is not None:
        from provision.commands import diagnose as command

        return finish(settings, command.explain(explain))
    if text is not None:
        from provision.commands import diagnose as command

        return finish(settings, command.by_text(redact.text(_given(text))))
    if bundle is not None:
        from provision.commands import diagnose as command
        from provision.inventory import variables

        defaults = {name: variable.default for name, variable in variables.known().items()}
        return finish(settings, command.of_bundle(bundle, defaults))
    fleet, renderer = open_fleet(settings, "diagnose", dial=True)
    from provision.commands import diagnose as command

    if export is not None:
        return finish(settings, command.export(fleet, export, renderer.progress()), renderer)
    return finish(settings, command.run(fleet, renderer.progress(), again(settings, limit=False)), renderer)


def _given(text: str) -> str:
    """Return the text of --text; of stdin for ``-``."""
    if text != "-":
        return text
    if sys.stdin.isatty():
        sys.stderr.write("reading the text from the terminal; end it with Ctrl-D\n")
    from provision.diagnose import paste

    return paste.read(sys.stdin.buffer)


_DOSSIER_HINT = "name a file in a folder that you can write: -o FILE"


@command("provision dossier gpu01", "provision dossier gpu01 --anonymous -o card.md", "provision dossier gpu01 --json")
def dossier(
    settings: Settings,
    host: Annotated[str, typer.Argument(metavar="HOST", help="One host.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="File to write (default: dossier-HOST.md; none with --json)."
        ),
    ] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Leave out names, addresses, serial numbers and UUIDs.")
    ] = False,
) -> int:
    """Write the report that a vendor asks for when a card is faulty, as one file. Changes nothing.

    Serial numbers, slot, firmware, errors with NVIDIA's actions, counters, figures next to the card's past and identical cards,
    repairs that were tried, and the rules for a replacement that are met. Cards that nobody uses are loaded for some seconds.
    """
    from provision.lib import files

    path = output or (None if settings.json else Path(f"dossier-{host.replace('/', '_')}.md"))
    if path:
        files.check_writable(path, _DOSSIER_HINT)
    limit = ",".join([*([settings.limit] if settings.limit else []), host])
    fleet, renderer = open_fleet(replace(settings, limit=limit), "dossier")
    from provision.commands import dossier as command

    document = command.run(fleet, settings.run_dir, runrecord.now(), renderer.progress(), anonymous=anonymous)
    if path:
        from provision.render.dossier import markdown

        files.write(path, markdown(document).encode(), _DOSSIER_HINT, 0o600)
        document.path = str(path)
    return finish(settings, document, renderer)
