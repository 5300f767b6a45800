# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Sizes of messages between cards, and how they are called."""

from __future__ import annotations

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def size_text(size):
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return "%d%s" % (size // unit, name)
    return "%dB" % size
