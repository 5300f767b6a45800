# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Set a few keys of a .condarc and leave the rest of the file as it is, byte for byte.

What lies where in it: conda.read. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError


def merge(text, wanted, path=".condarc"):
    """Return the text with the wanted top-level keys set: {key: str, bool, int or list of str}.

    A key that already has the wanted value keeps its lines, however they are written. path is for error messages.
    Raises CondaError with the line of what cannot be understood: a file that cannot be read is never replaced.
    """
    lines = text.split("\n")
    blocks = _blocks(lines, path)
    for key in sorted(wanted):
        new = _render(key, wanted[key])
        if key not in blocks:
            while lines and not lines[-1].strip():
                lines.pop()
            lines += [*new, ""]
        elif conda_read.condarc_value(lines[slice(*blocks[key])]) != _plain(wanted[key]):
            lines[slice(*blocks[key])] = new
            blocks = _blocks(lines, path)
    return "\n".join(lines)


def _blocks(lines, path):
    found, odd = conda_read.condarc_blocks(lines)
    if odd is None:
        return found
    number, key = odd
    raise CondaError(
        "conda.condarc",
        "%s has the key %s twice" % (path, key) if key else "%s cannot be understood" % path,
        ["line %d: %s" % (number + 1, lines[number])],
        "remove one of them"
        if key
        else "correct that line (conda config --show-sources shows how conda reads it), or move the file away",
    )


def _plain(wanted):
    if isinstance(wanted, (list, tuple)):
        return [str(item) for item in wanted]
    return {True: "true", False: "false"}[wanted] if isinstance(wanted, bool) else str(wanted)


def _render(key, wanted):
    if isinstance(wanted, (list, tuple)):
        return ["%s: []" % key] if not wanted else [key + ":", *("  - " + _quoted(str(item)) for item in wanted)]
    return ["%s: %s" % (key, _plain(wanted) if isinstance(wanted, (bool, int)) else _quoted(str(wanted)))]


def _quoted(text):
    """The text as YAML; quoted where YAML would make something else of it."""
    if re.match(r"[A-Za-z/][\w./:@%+~-]*$", text) and not text.endswith(":"):
        plain = conda_read.condarc_scalar(text) == text and text.lower() not in ("true", "false", "null")
        return text if plain else '"%s"' % text
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')
