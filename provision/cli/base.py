"""What every command of the command line shares: the app, the global options, the fleet, the end.

Global options are taken before and after the name of the command.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from provision.errors import Exit, ProvisionError, UsageError

if TYPE_CHECKING:
    from provision import inventory
    from provision.documents import Document
    from provision.render import Renderer
    from provision.runs.fleet import Fleet

_GLOBAL = "Global options"
_HOSTS = "Hosts"
_CODES = (
    "Exit codes: 0 done · 1 a host failed · 2 changes pending · 3 a check failed · 4 unreachable · 5 refused · "
    "6 reboot needed · 64 wrong usage or inventory · 130 interrupted"
)

_FIRST = """[bold]First steps[/bold]

[dim]$[/dim] provision init gpu01 gpu02   write inventory/hosts.yml for your servers

[dim]$[/dim] provision scan               what is installed

[dim]$[/dim] provision plan               what would change, and why

[dim]$[/dim] provision apply              change the hosts, and test the result

[dim]$[/dim] provision diagnose           what is broken, why, and the smallest repair

This machine itself: provision -i localhost, scan"""


def _as_switches(params: list[Any]) -> list[Any]:
    """Have the help show options that take no value without the type of one."""
    for option in params:
        if getattr(option, "is_flag", False) or getattr(option, "count", False):
            option.metavar = ""
    return params


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _as_switches(super().get_params(ctx))


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _as_switches(super().get_params(ctx))


app = typer.Typer(
    name="provision",
    cls=_Group,
    help="Sets up, tests and repairs NVIDIA drivers, CUDA, containers and conda on Ubuntu hosts.",
    epilog=_FIRST + "\n\n" + _CODES,
    no_args_is_help=False,
    # the command completion names the shell; typer's own options guess it
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# ---- options that every command has ------------------------------------------------------------------------------


def _hosts_and_groups(ctx: typer.Context, incomplete: str) -> list[str]:
    from provision.cli.shells import hosts_and_groups

    return hosts_and_groups(ctx, incomplete)


@dataclass
class Settings:
    """The global options of one call."""

    inventory: list[str] = field(default_factory=list)
    limit: str | None = None
    extra_vars: list[str] = field(default_factory=list)
    forks: int | None = None
    ask_become_pass: bool = False
    ask_vault_pass: bool = False
    vault_id: list[str] = field(default_factory=list)
    catalog: Path | None = None
    run_dir: Path | None = None
    json: bool = False
    verbose: int = 0

    def merged(self, later: dict[str, Any]) -> Settings:
        """Return these settings with those that stood after the command's name: lists add up, others replace."""
        values = dict(vars(self))
        for name, value in later.items():
            if isinstance(values[name], list):
                values[name] = [*values[name], *(value or [])]
            elif name == "verbose":
                values[name] += value
            elif value not in (None, False):
                values[name] = value
        return Settings(**values)


_OPTIONS: dict[str, tuple[Any, Any]] = {
    "inventory": (
        Annotated[
            list[str] | None,
            typer.Option(
                "-i",
                "--inventory",
                metavar="INVENTORY",
                rich_help_panel=_HOSTS,
                help="Ansible inventory: file, folder, or hosts with a comma (gpu01, or localhost,). Repeatable. "
                "Default: ansible.cfg's, then inventory/hosts.yml.",
            ),
        ],
        None,
    ),
    "limit": (
        Annotated[
            str | None,
            typer.Option(
                "-l",
                "--limit",
                metavar="PATTERN",
                rich_help_panel=_HOSTS,
                help="Only these hosts: gpu01, a group, 'gpu*:!gpu03', @file.",
                autocompletion=_hosts_and_groups,
            ),
        ],
        None,
    ),
    "extra_vars": (
        Annotated[
            list[str] | None,
            typer.Option(
                "-e",
                "--extra-vars",
                metavar="VARS",
                rich_help_panel=_HOSTS,
                help="Variables over the inventory's: key=value, JSON, or @file. Repeatable.",
            ),
        ],
        None,
    ),
    "forks": (
        Annotated[
            int | None,
            typer.Option("--forks", min=1, metavar="N", rich_help_panel=_HOSTS, help="Hosts at a time (default 64)."),
        ],
        None,
    ),
    "ask_become_pass": (
        Annotated[
            bool, typer.Option("-K", "--ask-become-pass", rich_help_panel=_HOSTS, help="Ask for the sudo password.")
        ],
        False,
    ),
    "ask_vault_pass": (
        Annotated[bool, typer.Option("--ask-vault-pass", rich_help_panel=_HOSTS, help="Ask for the vault password.")],
        False,
    ),
    "vault_id": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--vault-password-file",
                "--vault-id",
                metavar="FILE",
                rich_help_panel=_HOSTS,
                help="File or script with the vault password; LABEL@FILE for one of several vaults.",
            ),
        ],
        None,
    ),
    "catalog": (
        Annotated[
            Path | None,
            typer.Option(
                "--catalog",
                metavar="DIR",
                rich_help_panel=_GLOBAL,
                help="Facts of this folder instead of the program's own (or $GPU_PROVISION_CATALOG).",
            ),
        ],
        None,
    ),
    "run_dir": (
        Annotated[
            Path | None,
            typer.Option(
                "--run-dir",
                metavar="DIR",
                rich_help_panel=_GLOBAL,
                help="Where runs keep plan, events and logs (default: the user's state folder).",
            ),
        ],
        None,
    ),
    "json": (
        Annotated[
            bool, typer.Option("--json", rich_help_panel=_GLOBAL, help="Print one JSON object; never ask anything.")
        ],
        False,
    ),
    "verbose": (
        Annotated[
            int,
            typer.Option(
                "-v",
                "--verbose",
                count=True,
                show_default=False,
                rich_help_panel=_GLOBAL,
                help="Say more: every fact, choice and package. Repeatable.",
            ),
        ],
        0,
    ),
}


def _signature(own: Sequence[inspect.Parameter], extra: Sequence[inspect.Parameter]) -> inspect.Signature:
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]
    return inspect.Signature([*extra, *own, *shared])


def command(*examples: str, goes_on: bool = False) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a command ``fn(settings, ...own options)``; its docstring is its help, with examples below.

    goes_on: it keeps what it has fetched when it is interrupted.
    """

    def register(fn: Callable[..., int]) -> Callable[..., int]:
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in list(inspect.signature(fn, eval_str=True).parameters.values())[1:]
        ]
        context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

        def call(ctx: typer.Context, **values: Any) -> int:
            later = {name: values.pop(name) for name in _OPTIONS}
            settings = ctx.obj.merged(later)
            ACTIVE["settings"] = settings
            # "catalog" itself compares the folder with the program's own.
            try:
                with _other_catalog(settings if fn.__name__ != "catalog_" else Settings()):
                    return fn(settings, **values)
            except KeyboardInterrupt:
                # typer would end without a word
                raise interrupted(goes_on) from None

        signature = _signature(own, [context])
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
        call.__doc__ = inspect.getdoc(fn)
        name = fn.__name__.rstrip("_")
        shown = "\n\n".join(f"[dim]$[/dim] {example}" for example in examples)
        app.command(name, cls=_Command, epilog=f"[bold]Examples[/bold]\n\n{shown}")(call)
        return fn

    return register


def _other_catalog(settings: Settings) -> contextlib.AbstractContextManager[None]:
    if settings.catalog is None:
        return contextlib.nullcontext()
    from provision.catalog import other_catalog

    return other_catalog(settings.catalog)


# What an error outside of a command needs to know: how to print it.
ACTIVE: dict[str, Settings] = {}


def _show_version(wanted: bool) -> None:
    if wanted:
        from provision import __version__

        typer.echo(f"provision {__version__}")
        raise typer.Exit


def _root(ctx: typer.Context, version: bool = False, **values: Any) -> None:
    ctx.obj = ACTIVE["settings"] = Settings().merged(values)


_VERSION = Annotated[
    bool,
    typer.Option(
        "--version", rich_help_panel=_GLOBAL, help="Print the version.", is_eager=True, callback=_show_version
    ),
]
_root.__signature__ = _signature(  # type: ignore[attr-defined]
    [inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_VERSION)],
    [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)],
)
_root.__annotations__ = {name: p.annotation for name, p in _root.__signature__.parameters.items()}  # type: ignore[attr-defined]
app.callback()(_root)


def forget_plays() -> None:
    """Begin to count what may have changed something: a program may call several command lines."""
    if "provision.runs.engine" in sys.modules:
        sys.modules["provision.runs.engine"].plays = 0  # type: ignore[attr-defined]


def interrupted(goes_on: bool = False) -> ProvisionError:
    """The error for Ctrl-C outside of a run: before anything was changed, or after the run had ended."""
    engine = sys.modules.get("provision.runs.engine")
    changed = goes_on or bool(engine and engine.plays)
    error = ProvisionError(
        "run.interrupted",
        "interrupted" if changed else "interrupted: nothing was changed",
        hint="run the command again" + (": it continues where it stopped" if changed else ""),
    )
    error.exit_code = Exit.INTERRUPTED
    return error


def with_values(settings: Settings, values: dict[str, Any] | Literal[False]) -> Settings:
    """Settings with variables of this run alone."""
    if not values:
        return settings
    return replace(settings, extra_vars=[*settings.extra_vars, json.dumps(values)])


# Which lock plan and apply hold hosts to.
LOCK = Annotated[
    Path | None,
    typer.Option(
        "--lock", metavar="FILE", help="Install the versions of this lock (default: the one beside the inventory)."
    ),
]
NO_LOCK = Annotated[bool, typer.Option("--no-lock", help="Ignore the lock.")]


def with_lock(settings: Settings, lock: Path | None, no_lock: bool) -> Settings:
    """Settings that name the lock of this run, for the command and for what Ansible plans."""
    return with_values(settings, lock_variables(lock, no_lock) or False)


def lock_variables(lock: Path | None, no_lock: bool) -> dict[str, str]:
    """The variable that names the lock of this run; UsageError for both options."""
    if lock and no_lock:
        raise UsageError("usage.lock", "--lock and --no-lock contradict each other", hint="leave one of them out")
    named = "none" if no_lock else str(lock.absolute()) if lock else ""
    return {"gpu_provision_lock": named} if named else {}


def refuse_json(settings: Settings, yes: bool) -> None:
    """Raise UsageError for --json without --yes, which could only plan and then refuse."""
    if settings.json and not yes:
        raise UsageError(
            "apply.not_confirmed",
            "--json never asks, so it needs --yes; nothing was changed",
            hint="check the plan first (provision plan), then add --yes",
        )


def agreed(renderer: Renderer, count: int) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "apply.not_confirmed",
            "there is no terminal for the question, so nothing was changed",
            because=["stdin is not a terminal"],
            hint="check the plan, then add --yes",
        )
    return renderer.confirm(f"Change {count} host{'' if count == 1 else 's'}?")


def open_fleet(settings: Settings, command: str, *, dial: bool = False) -> tuple[Fleet, Renderer]:
    """Read the inventory while the rest of the program loads; return the fleet and what prints.

    dial: the command asks every host at once. Where the inventory is at hand, the logins begin while the program loads.
    """
    loading = _start(settings)
    with _saying("" if settings.json else "reading the inventory"):
        # Half a second of Ansible in a process of its own: meanwhile this one loads all that the command will need. It stays, so
        # that no garbage is searched for in it.
        gc.disable()
        from provision.runs import fleet as runs

        importlib.import_module("provision.remote.client")
        fleet: Fleet | None = None
        if dial and loading.at_hand:
            fleet = runs.fleet_of(loading.result(), settings.forks)
            runs.dial(fleet)
        importlib.import_module(f"provision.commands.{command}")
        from provision.lib import scratch
        from provision.render import Renderer

        renderer = Renderer(as_json=settings.json, verbosity=settings.verbose)
        runs.warm_up()
        # What a killed command left: a command that makes no folder of its own would leave it there.
        scratch.remove_left_behind()
        gc.freeze()
        gc.enable()
        inventory = loading.result()
    if not settings.json:
        renderer.warnings(inventory.warnings)
    return fleet or runs.fleet_of(inventory, settings.forks), renderer


@contextlib.contextmanager
def _saying(text: str) -> Iterator[None]:
    """On a terminal, show a text while what is done takes longer than half a second.

    What prints otherwise (render) is not loaded yet. The text is written once: the program that a vault's password comes from may
    use the terminal meanwhile.
    """
    shown = threading.Event()

    def show() -> None:
        shown.set()
        with contextlib.suppress(OSError):
            print(text, end="", file=sys.stderr, flush=True)

    timer = threading.Timer(0.5, show)
    if text and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()
        if shown.is_set():
            with contextlib.suppress(OSError):
                print(f"\r{' ' * len(text)}\r", end="", file=sys.stderr, flush=True)


def open_this_machine(settings: Settings, command: str) -> tuple[Fleet, Renderer]:
    """The same for this machine alone, which a prolog has little time for: without Ansible and ssh where that can be."""
    from provision import inventory

    own = (
        not settings.inventory
        and not settings.vault_id
        and not settings.ask_vault_pass
        and not settings.ask_become_pass
    )
    found = inventory.this_machine(settings.extra_vars) if own and not settings.limit else None
    if found is None:
        return open_fleet(replace(settings, inventory=settings.inventory or ["localhost,"]), command)
    from provision.render import Renderer
    from provision.runs.fleet import fleet_of

    return fleet_of(found, settings.forks), Renderer(as_json=settings.json, verbosity=settings.verbose)


def _start(settings: Settings) -> inventory.Loading:
    from provision import inventory

    return inventory.start(
        settings.inventory or None,
        settings.limit,
        settings.extra_vars,
        vault_password=_password(settings, "Vault password: ") if settings.ask_vault_pass else None,
        vault_ids=settings.vault_id,
        become_password=_password(settings, "sudo password: ") if settings.ask_become_pass else None,
    )


def _password(settings: Settings, prompt: str) -> str:
    if settings.json:
        raise _nobody_to_ask("--json never asks for a password")
    import getpass
    import warnings

    with warnings.catch_warnings():
        # without a terminal it would read stdin, and show what is typed
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            return getpass.getpass(prompt, stream=sys.stderr)
        except (getpass.GetPassWarning, EOFError):
            asked = prompt.rstrip(": ")
            raise _nobody_to_ask(f"there is no terminal to ask for the {asked}") from None


def _nobody_to_ask(message: str) -> UsageError:
    return UsageError(
        "usage.no_prompt",
        message,
        hint="put the sudo password into a vault (ansible_become_password) and give --vault-password-file FILE",
    )


def finish(settings: Settings, document: Document, renderer: Renderer | None = None) -> int:
    if renderer is None:
        from provision.render import Renderer

        renderer = Renderer(as_json=settings.json, verbosity=settings.verbose)
    renderer.document(document)
    command = _next(settings, document)
    if command:
        renderer.say(f"next: {command}")
    return document.exit_code


def again(settings: Settings, *, limit: bool = True) -> list[str]:
    """The options of this call that another command needs for the same hosts. A value that may be a secret is left open."""
    from ansible_collections.gpu.provision.plugins.module_utils.lib import redact

    words = [word for source in settings.inventory for word in ("-i", source)]
    words += ["-l", settings.limit] if limit and settings.limit else []
    words += [
        word for given in settings.extra_vars for word in ("-e", given if redact.text(given) == given else "<secret>")
    ]
    words += [word for given in settings.vault_id for word in ("--vault-id", given)]
    words += ["--catalog", str(settings.catalog)] if settings.catalog else []
    return [*words, *["-K"] * settings.ask_become_pass, *["--ask-vault-pass"] * settings.ask_vault_pass]


def _next(settings: Settings, document: Document) -> str | None:
    """The command that comes next, as it can be typed; None where nothing is left, or where the document names it."""
    states = {name: getattr(host, "status", "") for name, host in document.hosts.items()}
    words: list[str] = []
    match document.schema_id:
        case "provision/plan/1" if "changes" in states.values():
            words = ["apply"]
        case "provision/apply/1" if any(host.checks for host in document.hosts.values()):
            words = ["verify", "-v"]
        case "provision/verify/1" if "fail" in states.values():
            words = ["diagnose"]
        case "provision/drift/1" if "drifted" in states.values():
            settings = replace(settings, limit=",".join(name for name, state in states.items() if state == "drifted"))
            words = ["plan"]
        case "provision/rescue/1" if planned := [name for name, state in states.items() if state == "planned"]:
            settings = replace(settings, limit=",".join(planned))
            rounds = [one for name in planned for one in document.hosts[name].rounds]
            mode = ["--purge" for one in rounds if one.purge] or ["--undo" for one in rounds if one.undo]
            words = ["rescue", *mode[:1]]
        case "provision/rescue/1" if any(host.checks for host in document.hosts.values()):
            words = ["verify", "-v"]
        case "provision/rescue/1" if any(host.status == "well" and host.found for host in document.hosts.values()):
            words = ["diagnose"]
        case "provision/locked/1" if getattr(document, "written", False):
            words = ["plan"]
    return shlex.join(["provision", *again(settings), *words]) if words else None
