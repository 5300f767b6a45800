"""What init does between its command line and its document: where hosts come from, and where to write."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from provision.cli.base import Settings, finish, open_fleet
from provision.errors import UsageError
from provision.inventory.hostlists import SSH_CONFIG, from_file, from_ssh_config
from provision.lib import scratch

__all__ = ["SSH_CONFIG", "Request", "run"]

_DEFAULT = Path("inventory/hosts.yml")
_OVERLAY = "gpu_groups.yml"


@dataclass(frozen=True)
class Request:
    """What was asked of init. scan: None leaves it to where the hosts come from."""

    hosts: tuple[str, ...] = ()
    output: Path | None = None
    user: str | None = None
    force: bool = False
    file: Path | None = None
    ssh_config: Path | None = None
    inventory: bool = False
    scan: bool | None = None


def run(settings: Settings, request: Request) -> int:
    """Write the inventory. UsageError for sources that do not go together, or that name no host."""
    from provision.commands import init as command

    if request.inventory:
        return _from_inventory(settings, request)
    names, sources = list(request.hosts), []
    if request.hosts:
        sources.append("hosts that were named")
    if request.file:
        names += from_file(request.file, command.check_name)
        sources.append(str(request.file))
    if request.ssh_config:
        names += from_ssh_config(request.ssh_config, command.check_name)
        sources.append(str(request.ssh_config))
    if not names:
        raise UsageError(
            "usage.arguments",
            "no hosts were named",
            hint="provision init gpu01 gpu02; or --from-file, --from-ssh-config, --from-inventory",
        )
    output = request.output or _DEFAULT
    # What ssh reads anyway needs no word in the inventory.
    other = request.ssh_config and request.ssh_config.expanduser().resolve()
    other = None if other == SSH_CONFIG.expanduser().resolve() else other
    login = command.Login(request.user, other)
    listed = bool(request.file or request.ssh_config)
    if not (listed if request.scan is None else request.scan):
        return finish(settings, command.run(names, output, login=login, force=request.force))
    command.refuse_existing(output, request.force)
    with tempfile.TemporaryDirectory(prefix="init-", dir=scratch.folder()) as folder:
        # An inventory of names alone: Ansible carries ranges out, and ssh's own configuration says the rest.
        plain = Path(folder, "hosts.yml")
        command.run(names, plain, login=login)
        fleet, renderer = open_fleet(replace(settings, inventory=[str(plain)]), "init")
        source = command.Source(" and ".join(sources), leave_out=request.ssh_config is not None, login=login)
        document = command.run_scanned(fleet, output, source, renderer.progress(), force=request.force)
    return finish(settings, document, renderer)


def _from_inventory(settings: Settings, request: Request) -> int:
    """Groups beside an inventory that is there: it goes on to say how to log in."""
    from provision.commands import init as command

    if request.hosts or request.file or request.ssh_config or request.user or request.scan is False:
        raise UsageError(
            "usage.arguments",
            "--from-inventory goes with -i, -l and -o alone",
            because=["that inventory has the hosts and the login, and init reads the hosts"],
            hint="provision init -i INVENTORY --from-inventory",
        )
    fleet, renderer = open_fleet(settings, "init")
    sources = [_from_here(source) for source in fleet.inventory.sources]
    output = request.output or _beside(sources)
    source = command.Source(" and ".join(sources), overlay=tuple(sources))
    document = command.run_scanned(fleet, output, source, renderer.progress(), force=request.force)
    return finish(settings, document, renderer)


def _beside(sources: list[str]) -> Path:
    """In a folder, where it is read with the rest; else beside the file."""
    files = [Path(source) for source in sources if "," not in source]
    if not files:
        return _DEFAULT.with_name(_OVERLAY)
    return (files[0] if files[0].is_dir() else files[0].parent) / _OVERLAY


def _from_here(source: str) -> str:
    """A file as people would type it in this folder."""
    path = Path(source)
    return str(path.relative_to(Path.cwd())) if path.is_absolute() and path.is_relative_to(Path.cwd()) else source
