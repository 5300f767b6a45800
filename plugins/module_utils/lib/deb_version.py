# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Order of Debian version numbers, as dpkg has it.

Source of the rule: deb-version(7). Runs on the controller and, standard library only, on hosts with any
Python from 3.8.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re

_PART = lazy_re.compile(r"([^0-9]*)([0-9]*)")
# Compares below every text but ``~``, as the end of a version does.
_END = ((0,), (0, ""))


def split(version):
    """Return (epoch, upstream version, revision) of a version; epoch is an int, a missing revision is ``""``.

    Raises ValueError when the epoch is not a number or nothing follows it.
    """
    epoch, colon, rest = version.strip().partition(":")
    if not colon:
        epoch, rest = "0", epoch
    if not (epoch.isascii() and epoch.isdigit() and len(epoch) < 10 and rest):
        raise ValueError("not a Debian version: %r" % version)
    upstream, dash, revision = rest.rpartition("-")
    if not dash:
        upstream, revision = rest, ""
    return int(epoch), upstream, revision


def key(version):
    """Return a sort key: ``sorted(versions, key=debversion.key)``. Equal versions have equal keys.

    Raises ValueError as ``split`` does.
    """
    epoch, upstream, revision = split(version)
    return epoch, natural_key(upstream), natural_key(revision)


def compare(a, b):
    """Return -1, 0 or 1 as version a is lower than, equal to or higher than version b."""
    left, right = key(a), key(b)
    return (left > right) - (left < right)


def natural_key(text):
    """Sort key for anything numbered (kernel releases): the same order, without epoch and revision."""
    parts = [
        (tuple(_order(char) for char in other) + (0,), _number(digits))
        for at, (other, digits) in enumerate(_PART.findall(text))
        # The number that a part starts with counts as 0 where there is none.
        if other or digits or not at
    ]
    return tuple(parts) + (_END,)


def _number(digits):
    """Sort key of a number by its digits, however many: int() has a limit."""
    digits = digits.lstrip("0")
    return len(digits), digits


def _order(char):
    """``~`` sorts before the end of a part, letters before everything else."""
    if char == "~":
        return -1
    return ord(char) if char.isalpha() else ord(char) + 256
