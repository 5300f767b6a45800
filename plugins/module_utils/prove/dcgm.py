# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""NVIDIA's own diagnostic, where DCGM is installed: ``dcgmi diag``. What it says is judged elsewhere.

dcgmi only asks DCGM's host engine, which runs the tests: as nobody it can do no harm, whoever listens in its place. Where no host
engine answers, dcgmi diag would start one of its own (StartDiag in DCGM's dcgmi/Diag.cpp): it is asked before.

Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import os
import subprocess
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import run_as
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import json_object
from ansible_collections.gpu.provision.plugins.module_utils.prove import program

# Where NVIDIA's packages put it.
PROGRAM = "/usr/bin/dcgmi"
MOST_BYTES = 1 << 20
_ASK_S = 15.0
# On SIGTERM dcgmi has the host engine stop its tests.
_GRACE_S = 10.0


def missing():
    """Why there is nothing to run, or None."""
    if not os.access(PROGRAM, os.X_OK):
        return "DCGM is not installed"
    if run_as.strangers(PROGRAM):
        return "others than root may change %s" % PROGRAM
    return None


def run(level, timeout):
    """{"level", "timeout_s", "engine": what dcgmi discovery did, "diag": what dcgmi diag did, None without a host engine}.

    Each as program.run has it, or {"refused": why} where it could not be started; answer: the JSON that diag wrote, None for none.
    """
    deadline = time.monotonic() + timeout
    found = {
        "level": level,
        "timeout_s": timeout,
        "engine": _dcgmi(["discovery", "-l"], min(_ASK_S, timeout)),
        "diag": None,
    }
    if found["engine"].get("rc") == 0:
        found["diag"] = diag = _dcgmi(["diag", "-r", str(level), "-j"], max(1.0, deadline - time.monotonic()))
        diag["answer"] = json_object(diag.get("out"))
        if diag["answer"]:
            # once is enough
            diag["out"] = ""
    return found


def _dcgmi(words, timeout):
    user = run_as.NOBODY if os.geteuid() == 0 else None
    try:
        return program.run([PROGRAM] + words, timeout, MOST_BYTES, user=user, grace=_GRACE_S)
    except (OSError, subprocess.SubprocessError) as error:
        return {"refused": str(error)}
