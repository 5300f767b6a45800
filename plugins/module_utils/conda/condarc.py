# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Set a few keys of a .condarc and leave the rest of the file as it is, byte for byte.

The file is YAML, and hosts have no YAML reader in their standard library: what is needed is the block of one top-level
key (``channels:`` with its list), which is found by its lines. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError

_KEY = re.compile(r"""(?P<quote>["']?)(?P<key>[A-Za-z_][\w.-]*)(?P=quote)\s*:(?:\s+(?P<value>.*))?$""")


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
        elif _value(lines[slice(*blocks[key])]) != _plain(wanted[key]):
            lines[slice(*blocks[key])] = new
            blocks = _blocks(lines, path)
    return "\n".join(lines)


def value(text, key, path=".condarc"):
    """Return what a key has: a text, a list of texts, or None when the key is not there."""
    lines = text.split("\n")
    span = _blocks(lines, path).get(key)
    return _value(lines[slice(*span)]) if span else None


def _blocks(lines, path):
    """Where each top-level key lies: {key: (first line, line after its last)}; trailing comments are not its own."""
    found, key = {}, None
    for number, line in enumerate(lines):
        bare = line.split(" #")[0].rstrip() if not line.lstrip().startswith("#") else ""
        if not bare.strip() or bare in ("---", "..."):
            continue
        if line[0] in " \t" or (key and re.match(r"-(\s|$)", line)):
            if key is None:
                raise _unreadable(path, number, line)
            found[key] = (found[key][0], number + 1)
            continue
        match = _KEY.match(bare)
        if not match:
            raise _unreadable(path, number, line)
        key = match.group("key")
        if key in found:
            raise CondaError(
                "conda.condarc",
                "%s has the key %s twice" % (path, key),
                ["line %d: %s" % (number + 1, line)],
                "remove one of them",
            )
        found[key] = (number, number + 1)
    return found


def _unreadable(path, number, line):
    return CondaError(
        "conda.condarc",
        "%s cannot be understood" % path,
        ["line %d: %s" % (number + 1, line)],
        "correct that line (conda config --show-sources shows how conda reads it), or move the file away",
    )


def _value(lines):
    """The value of a block, as a text or a list of texts; None for what is neither (a mapping, a block text)."""
    first = _KEY.match(_no_comment(lines[0])).group("value")
    rest = [_no_comment(line) for line in lines[1:]]
    rest = [line for line in rest if line.strip()]
    if first and not rest:
        if first.startswith("[") and first.endswith("]"):
            return [_scalar(item) for item in first[1:-1].split(",") if item.strip()]
        return None if first[0] in "{|>&*!" else _scalar(first)
    if not first and rest and all(re.match(r"\s*-\s+\S", line) for line in rest):
        return [_scalar(line.strip()[1:]) for line in rest]
    return "" if not first and not rest else None


def _no_comment(line):
    return "" if line.lstrip().startswith("#") else re.split(r"\s#", line)[0].rstrip()


def _scalar(text):
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    lower = text.lower()
    # YAML 1.1, which conda reads: yes and on are true.
    return "true" if lower in ("true", "yes", "on") else "false" if lower in ("false", "no", "off") else text


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
        return text if _scalar(text) == text and text.lower() not in ("true", "false", "null") else '"%s"' % text
    return '"%s"' % text.replace("\\", "\\\\").replace('"', '\\"')
