"""The command line: what a person types, turned into calls of provision.commands, and their exit codes.

``base`` has what all commands share; each other module here registers some of them. Nothing here decides about hosts and
nothing prints results: commands return documents, render prints them.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any

# The commands register themselves, in the order in which --help lists them.
# isort: off
from provision.cli import everyday, diagnosis, rescue, fleet, report, shells  # noqa: F401

# isort: on
from provision.cli.base import ACTIVE, app, forget_plays, interrupted
from provision.errors import Exit, ProvisionError, UsageError


def run(arguments: Sequence[str]) -> int:
    """Run a command line; return its exit code. Every error is printed as what, why and a way out."""
    ACTIVE.clear()
    forget_plays()
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return _run(arguments)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(arguments: Sequence[str]) -> int:
    if "_PROVISION_COMPLETE" in os.environ:
        # a shell asks for what may come next
        from typer._completion_classes import completion_init

        completion_init()
    try:
        if not arguments:
            app(args=["--help"], prog_name="provision", standalone_mode=False)
            return int(Exit.USAGE)
        code = app(args=list(arguments), prog_name="provision", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except KeyboardInterrupt:
        return _fail(interrupted(), arguments)
    except ProvisionError as error:
        return _fail(error, arguments)
    except BrokenPipeError:
        # The reader of our output went away (head, less): nothing to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(Exit.INTERRUPTED)
    except OSError as error:
        if error.errno != errno.EIO:
            return _fail(_defect(error), arguments, error)
        # The terminal was closed: what ran on hosts was told to end and is recorded; nobody is left to read of it.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return int(Exit.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - the last line of defence: no traceback for people
        if type(error).__name__ == "Abort":
            return _fail(interrupted(), arguments)
        usage = _usage_error(error, arguments)
        if usage is not None:
            return _fail(usage, arguments)
        return _fail(_defect(error), arguments, error)


def _interrupt(number: int, frame: Any) -> None:
    """A polite end from outside is handled as Ctrl-C: what runs on hosts is told and waited for."""
    raise KeyboardInterrupt


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

    settings = ACTIVE.get("settings")
    # Before the options were read (a mistyped one), what was typed must do.
    as_json = settings.json if settings else "--json" in arguments
    verbose = settings.verbose if settings else 0
    Renderer(as_json=as_json or "--json" in arguments, verbosity=verbose).document(error_document(error))
    cause = cause or error.__cause__
    if cause is not None and (
        verbose and error.issue.code == "internal.error" or os.environ.get("PROVISION_TRACEBACK")
    ):
        import traceback

        from provision.lib.clean import clean

        for line in "".join(traceback.format_exception(cause)).split("\n"):
            sys.stderr.write(clean(line) + "\n")
    return int(error.exit_code)


def _usage_error(error: Exception, arguments: Sequence[str]) -> UsageError | None:
    """Return what the parser of the command line complained about, reworded; None for anything else.

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
            "usage.command",
            f"no such command: {named['name']}",
            hint=_nearest(named["name"], list(getattr(command, "commands", {})), "provision --help"),
        )
    option = getattr(error, "option_name", None)
    if option and message.startswith("No such option"):
        owners = [name for name, one in getattr(command, "commands", {}).items() if _has(one, option)]
        if owners:
            owner = next((word for word in arguments if word in owners), owners[0])
            others = f" (also of {', '.join(owners[1:])})" if owner not in arguments and owners[1:] else ""
            return UsageError(
                "usage.option",
                f"{option} is an option of {owner}{others}, and must precede the command",
                hint=f"write it after the word {owner}: provision {owner} {option}",
            )
        params = [param for one in (command, *getattr(command, "commands", {}).values()) for param in one.params]
        known = [name for param in params for name in param.opts]
        return UsageError("usage.option", f"no such option: {option}", hint=_nearest(option, known, f"{path} --help"))
    text = (message[:1].lower() + message[1:].rstrip(".")).replace("Value error, ", "")
    extra = re.search(r"unexpected extra arguments? ?\((?P<words>[^()]+)\)", text.replace("(s)", "s"))
    limits = any("--limit" in getattr(param, "opts", []) for param in getattr(command, "params", []))
    if extra and limits:
        hosts = extra["words"].replace(" ", ",")
        return UsageError("usage.arguments", text, hint=f"hosts are named with -l: {path} -l {hosts}")
    return UsageError("usage.arguments", text, hint=f"{path} --help")


def _has(command: Any, option: str) -> bool:
    return any(option in (*param.opts, *param.secondary_opts) for param in command.params)


def _nearest(word: str, known: list[str], else_: str) -> str:
    nearest = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean {nearest[0]}?" if nearest else f"see {else_}"
