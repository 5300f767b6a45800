# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Which file a library's name leads to, as a program of a login loads it and as the loader alone would.

Job ``which`` (run by proverun in a child) loads one; ``judge`` compares two such outcomes and what is installed.
"""

from __future__ import annotations

import ctypes
import re


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


def judge(what, login, plain, library_path, version, installed):
    """Return (status, [sentences], hint) about which file was loaded.

    what: "NCCL"; login, plain: Outcomes of ``which`` with the login's library path and without (plain None: there is
    no such path); version: what the loaded one says of itself, or None; installed: version that header or package say,
    or None. status: pass, skip (not there at all) or fail.
    """
    if not login.ok:
        message = login.message or ""
        if plain is not None and plain.ok:
            return (
                "fail",
                [
                    "%s does not load with the login's library path, and does without" % what,
                    message,
                    "LD_LIBRARY_PATH=%s; without it: %s" % (library_path, plain.result["path"]),
                ],
                "a broken or foreign file comes first: take its folder out of LD_LIBRARY_PATH",
            )
        if message.startswith("NotThere"):
            return "skip", [re.sub(r"^NotThere: | \(.*$", "", message)], None
        return ("fail", ["%s does not load" % what, message], "its package, or one that it needs, is incomplete")
    path = login.result["path"]
    sentences = ["%s is %s" % (" ".join(filter(None, [what, version])), path)]
    if plain is not None and plain.ok and plain.result["path"] != path:
        sentences.append("without LD_LIBRARY_PATH=%s it is %s" % (library_path, plain.result["path"]))
    if version and installed and _numbers(version) != _numbers(installed)[: len(_numbers(version))]:
        return (
            "fail",
            ["the %s that loads is %s, installed is %s: %s" % (what, version, installed, path)] + sentences,
            "another file comes first: look at LD_LIBRARY_PATH, /etc/ld.so.conf.d and ldconfig -p",
        )
    if len(sentences) > 1:
        return (
            "warn",
            ["the login's library path puts another %s first: %s" % (what, path)] + sentences,
            "do not export that folder for everyone: cuda-select or a modulefile sets it where it is needed",
        )
    return "pass", sentences, None


def when_it_failed(sentence, hint, library):
    """(sentence, hint) for a failed job: where the login's library path puts another file first, that comes first."""
    if library[0] == "warn":
        return "%s, and fails: %s" % (library[1][0], sentence), library[2]
    return sentence, hint


def _numbers(version):
    return [int(part) for part in re.findall(r"[0-9]+", version.split("-")[0].split("+")[0])]
