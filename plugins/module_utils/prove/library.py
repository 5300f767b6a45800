# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Which file a library's name leads to, as a program of a login loads it and as the loader alone would.

Job ``which`` (run in a child) loads one.
"""

from __future__ import annotations

import ctypes


class NotThere(Exception):
    """None of the names leads to a library. The message names them."""


def load(names, mode=ctypes.DEFAULT_MODE):
    """Load the first of several names that is there; raises NotThere, or OSError for one that cannot be loaded."""
    for name in names:
        try:
            return ctypes.CDLL(name, mode)
        except OSError as error:
            # glibc: "NAME: cannot open shared object file: No such file or directory", also for what NAME needs.
            if not (str(error).startswith(name + ":") and "No such file" in str(error)):
                raise
    raise NotThere("the loader finds no %s" % " and no ".join(names))


def mapped(start, maps="/proc/self/maps"):
    """Path of the first mapped file whose name begins with start, or None."""
    with open(maps) as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if path.rpartition("/")[2].startswith(start):
                return "/" + path
    return None


def which(args, say):
    """Job: {"name", "path"} of the first of args["names"] that loads; raises NotThere or OSError."""
    for name in args["names"]:
        say("loading %s" % name)
        try:
            load((name,))
        except NotThere:
            continue
        return {"name": name, "path": mapped(name.split(".so")[0] + ".so")}
    raise NotThere("the loader finds no %s" % " and no ".join(args["names"]))
