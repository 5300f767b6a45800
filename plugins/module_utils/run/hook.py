# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Runs one command of the owner's (a drain or resume hook): a list, never a shell, with a limit of time.

On the controller it is imported; on a host it is sent over the fast read's session, or run by the module rollout_hook.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time

# What a hook may say; the end of it is where errors are.
_KEPT = 4000
# Between asking a command to end and making it.
_GRACE = 5.0


def main(args):
    """args: command, environment, timeout. See run."""
    return run(args["command"], args.get("environment") or {}, float(args["timeout"]))


def run(command, environment, timeout):
    """Run a command; return {"rc", "output", "timed_out", "seconds"}.

    command: list of words. environment: added to this process's. timeout: seconds; then the command and what it
    started in its group is ended. rc is None where it could not be started (output says why) or ran out of time.
    """
    begun = time.time()
    # A file, not a pipe: what the command leaves running in the background must not keep us waiting.
    with tempfile.TemporaryFile() as out:
        try:
            process = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(os.environ, **{str(key): str(value) for key, value in environment.items()}),
                start_new_session=True,
            )
        except OSError as error:
            return {"rc": None, "output": "%s: %s" % (command[0], error.strerror), "timed_out": False, "seconds": 0.0}
        timed_out = False
        try:
            process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            timed_out = True
            _end(process)
        size = out.seek(0, os.SEEK_END)
        out.seek(max(0, size - _KEPT))
        output = out.read().decode("utf-8", "replace")
    return {
        "rc": None if timed_out else process.returncode,
        "output": output,
        "timed_out": timed_out,
        "seconds": round(time.time() - begun, 1),
    }


def _end(process):
    for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            # it ended by itself in between
            pass
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            continue
        return
