"""The manual page provision(1), made from the help of the command line: ``make docs`` writes docs/man/provision.1."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from provision import __version__
from provision.cli.base import app

_HEAD = f'.TH PROVISION 1 "" "gpu-provision {__version__}" "User Commands"'


def page() -> str:
    """Return the page as roff."""
    root: Any = get_command(app)
    shared = {param.name for param in root.params}
    lines = [_HEAD, ".SH NAME", "provision \\- " + _text(root.help), ".SH SYNOPSIS"]
    lines += [".B provision", "[OPTION]... COMMAND [OPTION]...", ".SH DESCRIPTION", *_paragraphs(root.epilog)]
    lines += [".SH OPTIONS", "They stand before or after the name of the command.", *_options(root.params)]
    lines.append(".SH COMMANDS")
    for name, command in root.commands.items():
        arguments = " ".join(param.metavar or param.name.upper() for param in _arguments(command))
        lines += [f".SS provision {name} {_text(arguments)}".rstrip(), *_paragraphs(command.help)]
        lines += _options([param for param in command.params if param.name not in shared])
        lines += [".PP", "Examples:", ".nf", *(f"  {_text(line)}" for line in _examples(command)), ".fi"]
    lines += [
        ".SH FILES",
        ".TP",
        ".I inventory/hosts.yml",
        "the inventory, where none is named and ansible.cfg names none",
    ]
    lines += [".TP", ".I ~/.local/state/gpu-provision/runs", "plans, events, logs and results of runs"]
    lines += [".SH SEE ALSO", ".BR ansible-inventory (1),", ".BR apt-get (8),", ".BR nvidia-smi (1)"]
    return "\n".join(lines) + "\n"


def _arguments(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


def _options(params: list[Any]) -> Iterator[str]:
    for param in params:
        if param.param_type_name == "option" and not param.hidden:
            names = ", ".join(f"\\fB{_text(name)}\\fR" for name in param.opts)
            metavar = f" \\fI{_text(param.metavar)}\\fR" if param.metavar else ""
            yield from (".TP", names + metavar, _text(param.help or ""))


def _paragraphs(text: str | None) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", _plain(text or "")):
        yield from (".PP", _text(" ".join(paragraph.split())))


def _examples(command: Any) -> list[str]:
    return [line.strip() for line in _plain(command.epilog).splitlines() if line.strip().startswith("$ ")]


def _plain(text: str) -> str:
    """Help without the marks of its renderer."""
    return re.sub(r"\[/?(?:bold|dim)\]", "", text)


def _text(text: str) -> str:
    """A text as roff takes it: no escape of its own, no hyphen that would break, no request at its begin."""
    found = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + found if found.startswith((".", "'")) else found
