"""completion: what a shell needs to complete this command line, names of hosts and groups included."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

import typer

from provision.cli.base import Settings, command
from provision.errors import Exit


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@command("provision completion bash", "provision completion zsh", "provision completion fish")
def completion(
    settings: Settings, shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]
) -> int:
    """Print the script that completes commands, options, hosts and groups in a shell.

    Put it where your shell reads it: /etc/bash_completion.d/provision, /usr/share/zsh/vendor-completions/_provision,
    ~/.config/fish/completions/provision.fish.
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="provision", complete_var="_PROVISION_COMPLETE", shell=shell.value))
    return int(Exit.OK)


def hosts_and_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """What may follow -l: a pattern whose last name is begun. Nothing where the inventory cannot be read without asking."""
    from provision import inventory
    from provision.errors import ProvisionError

    asked: list[str] = []
    one: typer.Context | None = ctx
    while one is not None:
        asked = [*(one.params.get("inventory") or []), *asked]
        one = one.parent  # type: ignore[assignment]
    try:
        found = inventory.load(asked or None)
    except ProvisionError:
        return []
    begun, last = re.fullmatch(r"(.*[,:&!])?(.*)", incomplete).groups("")  # type: ignore[union-attr]
    names = sorted({host.name for host in found.hosts} | set(found.groups))
    return [begun + name for name in names if name.startswith(last)]
