"""The command line: what a person types, turned into calls of provision.commands, and their exit codes.

Global options are taken before and after the name of the command. Nothing here decides about hosts and nothing
prints results: commands return documents, render prints them.
"""

from __future__ import annotations

import difflib
import errno
import importlib
import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from provision.errors import Exit, ProvisionError, UsageError

if TYPE_CHECKING:
    from provision import inventory
    from provision.commands.fleet import Fleet
    from provision.documents import Document
    from provision.render import Renderer

_GLOBAL = "Global options"
_HOSTS = "Hosts"
_CODES = (
    "Exit codes: 0 done · 1 a host failed · 2 changes pending · 3 a check failed · 4 unreachable · 5 refused · "
    "6 reboot needed · 64 wrong usage or inventory · 130 interrupted"
)

_FIRST = """[bold]First steps[/bold]

[dim]$[/dim] provision init gpu01 gpu02   write inventory/hosts.yml for your servers

[dim]$[/dim] provision scan               what is there

[dim]$[/dim] provision plan               what would be done, and why

[dim]$[/dim] provision apply              do it, and prove it

This machine itself: provision -i localhost, scan"""

app = typer.Typer(
    name="provision",
    help="Takes Ubuntu machines with NVIDIA GPUs from any state to a working one, proves it, and keeps them there.",
    epilog=_FIRST + "\n\n" + _CODES,
    no_args_is_help=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# ---- options that every command has ------------------------------------------------------------------------------


@dataclass
class Settings:
    """The global options of one call."""

    inventory: list[str] = field(default_factory=list)
    limit: str | None = None
    extra_vars: list[str] = field(default_factory=list)
    forks: int | None = None
    ask_become_pass: bool = False
    ask_vault_pass: bool = False
    vault_password_file: list[str] = field(default_factory=list)
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
                "-i", "--inventory", metavar="INVENTORY", rich_help_panel=_HOSTS,
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
                "-l", "--limit", metavar="PATTERN", rich_help_panel=_HOSTS,
                help="Only these hosts: gpu01, a group, 'gpu*:!gpu03', @file.",
            ),
        ],
        None,
    ),
    "extra_vars": (
        Annotated[
            list[str] | None,
            typer.Option(
                "-e", "--extra-vars", metavar="VARS", rich_help_panel=_HOSTS,
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
            bool,
            typer.Option("-K", "--ask-become-pass", metavar="", rich_help_panel=_HOSTS, help="Ask for the sudo password."),
        ],
        False,
    ),
    "ask_vault_pass": (
        Annotated[
            bool,
            typer.Option("--ask-vault-pass", metavar="", rich_help_panel=_HOSTS, help="Ask for the vault password."),
        ],
        False,
    ),
    "vault_password_file": (
        Annotated[
            list[str] | None,
            typer.Option(
                "--vault-password-file", metavar="FILE", rich_help_panel=_HOSTS, help="File or script with the vault password."
            ),
        ],
        None,
    ),
    "run_dir": (
        Annotated[
            Path | None,
            typer.Option(
                "--run-dir", metavar="DIR", rich_help_panel=_GLOBAL,
                help="Where runs keep plan, events and logs (default: the user's state folder).",
            ),
        ],
        None,
    ),
    "json": (
        Annotated[
            bool,
            typer.Option("--json", metavar="", rich_help_panel=_GLOBAL, help="Print one JSON object; never ask anything."),
        ],
        False,
    ),
    "verbose": (
        Annotated[
            int,
            typer.Option(
                "-v", "--verbose", count=True, metavar="", show_default=False, rich_help_panel=_GLOBAL,
                help="Say more: every fact, choice and package. Repeatable.",
            ),
        ],
        0,
    ),
}  # fmt: skip


def _signature(own: Sequence[inspect.Parameter], extra: Sequence[inspect.Parameter]) -> inspect.Signature:
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in _OPTIONS.items()
    ]
    return inspect.Signature([*extra, *own, *shared])


def _command(*examples: str) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Register a command ``fn(settings, ...own options)``; its docstring is its help, with examples below."""

    def register(fn: Callable[..., int]) -> Callable[..., int]:
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in list(inspect.signature(fn, eval_str=True).parameters.values())[1:]
        ]
        context = inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)

        def call(ctx: typer.Context, **values: Any) -> int:
            later = {name: values.pop(name) for name in _OPTIONS}
            settings = ctx.obj.merged(later)
            _ACTIVE["settings"] = settings
            try:
                return fn(settings, **values)
            except KeyboardInterrupt:
                raise _interrupted() from None  # typer would end without a word

        signature = _signature(own, [context])
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
        call.__doc__ = inspect.getdoc(fn)
        name = fn.__name__.rstrip("_")
        shown = "\n\n".join(f"[dim]$[/dim] {example}" for example in examples)
        app.command(name, epilog=f"[bold]Examples[/bold]\n\n{shown}")(call)
        return fn

    return register


# What an error outside of a command needs to know: how to print it.
_ACTIVE: dict[str, Settings] = {}


def _show_version(wanted: bool) -> None:
    if wanted:
        from provision import __version__

        typer.echo(f"provision {__version__}")
        raise typer.Exit


def _root(ctx: typer.Context, version: bool = False, **values: Any) -> None:
    ctx.obj = _ACTIVE["settings"] = Settings().merged(values)


_VERSION = Annotated[
    bool,
    typer.Option(
        "--version",
        metavar="",
        rich_help_panel=_GLOBAL,
        help="Print the version.",
        is_eager=True,
        callback=_show_version,
    ),
]
_root.__signature__ = _signature(  # type: ignore[attr-defined]
    [inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_VERSION)],
    [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)],
)
_root.__annotations__ = {name: p.annotation for name, p in _root.__signature__.parameters.items()}  # type: ignore[attr-defined]
app.callback()(_root)


# ---- commands ----------------------------------------------------------------------------------------------------


@_command(
    "provision init gpu01 gpu02",
    "provision init 'gpu[01:40]' --user ubuntu -o fleet.yml",
    "provision init localhost",
)
def init(
    settings: Settings,
    hosts: Annotated[
        list[str], typer.Argument(metavar="HOST...", help="Names or addresses; ranges as gpu[01:40].")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="File to write.")] = Path(
        "inventory/hosts.yml"
    ),
    user: Annotated[
        str | None, typer.Option("-u", "--user", metavar="NAME", help="User to log in as.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Overwrite the file if it is there.")
    ] = False,
) -> int:
    """Write a commented starter inventory for the named hosts."""
    from provision.commands import init as command

    return _finish(settings, command.run(hosts, output, user=user, force=force))


_PRUNE = "Remove CUDA toolkits of apt's that are installed and not listed."


def _with(settings: Settings, values: dict[str, Any] | Literal[False]) -> Settings:
    """Settings with variables of this run alone."""
    if not values:
        return settings
    return replace(settings, extra_vars=[*settings.extra_vars, json.dumps(values)])


@_command("provision scan", "provision -i localhost, scan", "provision scan -l 'gpu*:!gpu03' --json")
def scan(settings: Settings) -> int:
    """Show what is there: GPUs, the driver in its layers, holds, kernels, sources, CUDA. Changes nothing.

    A fleet is a table; one host (-l gpu01), or -v, is told layer by layer.
    """
    fleet, renderer = _fleet(settings, "scan")
    from provision.commands import scan as command

    return _finish(settings, command.run(fleet, renderer.progress()), renderer)


@_command("provision envs", "provision envs -l gpu01 --no-size", "provision envs --json")
def envs(
    settings: Settings,
    no_size: Annotated[
        bool, typer.Option("--no-size", metavar="", help="Do not measure: much faster on slow disks.")
    ] = False,
) -> int:
    """Show every conda and its environments: Python, framework, CUDA, build for GPU or CPU, size. Changes nothing.

    Homes on network file systems are looked at only where the inventory names their users.
    """
    fleet, renderer = _fleet(settings, "envs")
    from provision.commands import envs as command

    return _finish(settings, command.run(fleet, renderer.progress(), sizes=not no_size), renderer)


@_command("provision plan", "provision plan -l gpu01 -v", "provision plan -e nvidia_driver_branch=580")
def plan(
    settings: Settings,
    prune: Annotated[bool, typer.Option("--prune", metavar="", help=_PRUNE)] = False,
) -> int:
    """Show what apply would do: packages, download, restarts, reboots, and the reason of each. Changes nothing."""
    settings = _with(settings, prune and {"cuda_toolkit_prune": True})
    fleet, renderer = _fleet(settings, "plan")
    from provision.commands import plan as command

    return _finish(settings, command.run(fleet, renderer.progress()), renderer)


@_command(
    "provision apply",
    "provision apply -l gpu01 --yes",
    "provision apply --no-reboot",
    "provision apply --check",
)
def apply(
    settings: Settings,
    yes: Annotated[bool, typer.Option("-y", "--yes", metavar="", help="Do not ask.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", metavar="", help="Ansible's check mode: say what would change, change nothing."
        ),
    ] = False,
    no_reboot: Annotated[
        bool, typer.Option("--no-reboot", metavar="", help="Leave needed reboots to you (exit code 6).")
    ] = False,
    prune: Annotated[bool, typer.Option("--prune", metavar="", help=_PRUNE)] = False,
) -> int:
    """Plan, ask, change the hosts that need it, reboot where that is allowed, and prove the result by a fresh read.

    Hosts that are as wanted are left alone. A run that was cut off is finished by the next one.
    """
    settings = _with(settings, no_reboot and {"nvidia_driver_reboot": "never"})
    settings = _with(settings, prune and {"cuda_toolkit_prune": True})
    fleet, renderer = _fleet(settings, "apply")
    from provision import engine
    from provision.commands import apply as command
    from provision.commands import plan as planning

    planned = planning.run(
        fleet,
        renderer.progress(),
        on_change=lambda: engine.make_ready(fleet.inventory),
        keep=command.stays_up,
    )
    names = command.to_change(planned)
    if names and not renderer.as_json:
        renderer.show(planned)
    if names and not (yes or check) and not _agreed(renderer, len(names)):
        engine.dismiss()
        renderer.errors(planned.errors)
        renderer.say("nothing was changed")
        return planned.exit_code
    done = command.run(
        fleet,
        planned,
        renderer.progress(),
        run_base=settings.run_dir,
        check=check,
        verbosity=settings.verbose,
    )
    return _finish(settings, done, renderer)


@_command(
    "provision verify",
    "provision verify -l gpu01 -v",
    "provision verify --check 'gpu.*' --deep",
    "provision verify --junit results.xml",
)
def verify(
    settings: Settings,
    check: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="PATTERN", help="Only these checks: cuda.nvcc, 'gpu.*'. Repeatable."),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", metavar="", help="Test most of each card's memory; measure longer.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the results as JUnit XML, for CI.")
    ] = None,
) -> int:
    """Check every host and print pass, warn, fail or skip with the evidence. Changes nothing, leaves nothing behind.

    docs/checks.md and docs/prove.md say what each check means and what to do.
    """
    fleet, renderer = _fleet(settings, "verify")
    from provision.commands import verify as command
    from provision.verify import Look

    document = command.run(fleet, renderer.progress(), look=Look(tuple(check or ()), deep))
    if junit:
        command.write_junit(document, junit)
    return _finish(settings, document, renderer)


@_command(
    "provision compat --gpu 'RTX 3090' --cuda 12.4",
    "provision compat --gpu H100 --torch 2.6 --ubuntu 24.04",
    "provision compat --gpu V100 --gpu 'RTX 4090' --driver 580 --json",
    "provision compat --image-cuda 12.1 --driver 535",
)
def compat(
    settings: Settings,
    gpu: Annotated[
        list[str] | None, typer.Option("--gpu", metavar="NAME", help="GPU by name or PCI id; repeatable.")
    ] = None,
    driver: Annotated[str | None, typer.Option("--driver", metavar="580", help="Branch or version.")] = None,
    cuda: Annotated[str | None, typer.Option("--cuda", metavar="12.4", help="CUDA toolkit.")] = None,
    cudnn: Annotated[str | None, typer.Option("--cudnn", metavar="9", help="cuDNN.")] = None,
    torch: Annotated[str | None, typer.Option("--torch", metavar="2.6", help="PyTorch.")] = None,
    tensorflow: Annotated[
        str | None, typer.Option("--tensorflow", metavar="2.18", help="TensorFlow.")
    ] = None,
    ubuntu: Annotated[str | None, typer.Option("--ubuntu", metavar="24.04", help="Ubuntu release.")] = None,
    modules: Annotated[
        str | None, typer.Option("--modules", metavar="FLAVOUR", help="Kernel modules: open or proprietary.")
    ] = None,
    image_cuda: Annotated[
        str | None, typer.Option("--image-cuda", metavar="12.1", help="CUDA inside a container image.")
    ] = None,
) -> int:
    """Answer from the catalog alone what fits together, what does not, and why. Asks no host."""
    from provision.commands import compat as command
    from provision.compat import Wishes

    wishes = Wishes(
        gpu=tuple(gpu or ()), driver=driver, cuda=cuda, cudnn=cudnn, torch=torch, tensorflow=tensorflow, ubuntu=ubuntu,
        modules=modules, image_cuda=image_cuda,
    )  # fmt: skip
    return _finish(settings, command.run(wishes))


def _agreed(renderer: Renderer, count: int) -> bool:
    if renderer.as_json or not sys.stdin.isatty():
        raise UsageError(
            "apply.not_confirmed",
            "nobody can be asked here, so nothing was changed",
            because=["--json never asks" if renderer.as_json else "stdin is not a terminal"],
            hint="look at the plan, then say --yes",
        )
    return renderer.confirm(f"Change {count} host{'' if count == 1 else 's'}?")


def _fleet(settings: Settings, command: str) -> tuple[Fleet, Renderer]:
    """Read the inventory while the rest of the program loads; return the fleet and what prints."""
    loading = _start(settings)
    # Half a second of Ansible in a process of its own: meanwhile this one loads all that the command will need.
    importlib.import_module(f"provision.commands.{command}")
    importlib.import_module("provision.remote.client")
    from provision.commands.fleet import fleet_of, warm_up
    from provision.render import Renderer

    renderer = Renderer(as_json=settings.json, verbosity=settings.verbose)
    warm_up()
    inventory = loading.result()
    if not settings.json:
        renderer.warnings(inventory.warnings)
    return fleet_of(inventory, settings.forks), renderer


def _start(settings: Settings) -> inventory.Loading:
    from provision import inventory

    return inventory.start(
        settings.inventory or None, settings.limit, settings.extra_vars,
        vault_password=_password(settings, "Vault password: ") if settings.ask_vault_pass else None,
        vault_password_files=settings.vault_password_file,
        become_password=_password(settings, "sudo password: ") if settings.ask_become_pass else None,
    )  # fmt: skip


def _password(settings: Settings, prompt: str) -> str:
    if settings.json:
        raise UsageError(
            "usage.no_prompt", "--json never asks for a password",
            hint="put it in a vault (ansible_become_password) and give --vault-password-file",
        )  # fmt: skip
    import getpass

    return getpass.getpass(prompt, stream=sys.stderr)


def _finish(settings: Settings, document: Document, renderer: Renderer | None = None) -> int:
    if renderer is None:
        from provision.render import Renderer

        renderer = Renderer(as_json=settings.json, verbosity=settings.verbose)
    renderer.document(document)
    return document.exit_code


# ---- the edge ------------------------------------------------------------------------------------------------------


def run(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code. Every error is printed as what, why and a way out."""
    _ACTIVE.clear()
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return _run(arguments)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(arguments: Sequence[str]) -> int:
    try:
        if not arguments:
            app(args=["--help"], prog_name="provision", standalone_mode=False)
            return int(Exit.USAGE)
        code = app(args=list(arguments), prog_name="provision", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except KeyboardInterrupt:
        return _fail(_interrupted(), arguments)
    except ProvisionError as error:
        return _fail(error, arguments)
    except BrokenPipeError:
        # The reader of our output went away (head, less): nothing to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.INTERRUPTED)
    except OSError as error:
        if error.errno != errno.EIO:
            return _fail(_defect(error), arguments, error)
        # The terminal was closed: what ran on hosts was told to end and is recorded; nobody is left to tell.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return int(Exit.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback for people
        if type(error).__name__ == "Abort":
            return _fail(_interrupted(), arguments)
        usage = _usage_error(error, arguments)
        if usage is not None:
            return _fail(usage, arguments)
        return _fail(_defect(error), arguments, error)


def _interrupt(number: int, frame: Any) -> None:
    """A polite end from outside is handled as Ctrl-C: what runs on hosts is told and waited for."""
    raise KeyboardInterrupt


def _interrupted() -> ProvisionError:
    error = ProvisionError(
        "run.interrupted", "interrupted", hint="run the command again: it goes on where it was cut off"
    )
    error.exit_code = Exit.INTERRUPTED
    return error


def _defect(error: BaseException) -> ProvisionError:
    return ProvisionError(
        "internal.error",
        f"unexpected {type(error).__name__}: {error}",
        because=["this is a defect of gpu-provision"],
        hint="PROVISION_TRACEBACK=1 or -v shows the traceback; please report it",
    )


def _fail(error: ProvisionError, arguments: Sequence[str], cause: BaseException | None = None) -> int:
    from provision.documents import error_document
    from provision.render import Renderer

    settings = _ACTIVE.get("settings")
    # Before the options were read (a mistyped one), what was typed must do.
    as_json = settings.json if settings else "--json" in arguments
    verbose = settings.verbose if settings else 0
    Renderer(as_json=as_json or "--json" in arguments, verbosity=verbose).document(error_document(error))
    cause = cause or error.__cause__
    if cause is not None and (
        verbose and error.issue.code == "internal.error" or os.environ.get("PROVISION_TRACEBACK")
    ):
        import traceback

        traceback.print_exception(cause, file=sys.stderr)
    return int(error.exit_code)


def _usage_error(error: Exception, arguments: Sequence[str]) -> UsageError | None:
    """Return what the parser of the command line complained about in our words; None for anything else.

    By what the exceptions carry, not by their classes: typer has brought its own click since 0.20.
    """
    if getattr(error, "exit_code", None) != 2 or not hasattr(error, "format_message"):
        return None
    context = getattr(error, "ctx", None)
    command = getattr(context, "command", None)
    path = getattr(context, "command_path", "provision")
    message = str(error.format_message()).strip()
    named = re.match(r"No such command ['\"](?P<name>[^'\"]*)['\"]", message)
    if named:
        return UsageError(
            "usage.command", f"no such command: {named['name']}",
            hint=_nearest(named["name"], list(getattr(command, "commands", {})), "provision --help"),
        )  # fmt: skip
    option = getattr(error, "option_name", None)
    if option and message.startswith("No such option"):
        known = [name for param in getattr(command, "params", []) for name in getattr(param, "opts", [])]
        return UsageError(
            "usage.option", f"no such option: {option}", hint=_nearest(option, known, f"{path} --help")
        )
    return UsageError("usage.arguments", message[:1].lower() + message[1:].rstrip("."), hint=f"{path} --help")


def _nearest(word: str, known: list[str], else_: str) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]}?" if near else f"see {else_}"
