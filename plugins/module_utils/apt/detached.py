# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Run something in a process that no closed connection ends. Standard library only, any Python from 3.8."""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import traceback

from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_state

RESULT = own_state.FOLDER + "/transaction-result.json"
_RESULT = (
    {"error": {"code": str, "message": str, "because": (None, [str]), "hint": (None, str)}},
    {"moved": True},
    {"rc": int, "text": (None, str), "timed_out": (None, bool), "held": (None, [str])},
)


def detached(body, log, lock_file):
    """Run body() -> dict in a process that outlives this one, and wait for its result.

    The process has a session of its own, no terminal, and lets HUP, INT and TERM pass. When this process is
    killed, the work goes on to its end, holds included. It keeps lock_file locked until then. Raises AptError
    ``apt.worker`` when the process died without a result.
    """
    if os.path.isdir(RESULT):
        own_state.put_aside(own_state.Damaged(RESULT, "it is a folder"))
    elif os.path.lexists(RESULT):
        os.unlink(RESULT)
    sys.stdout.flush()
    sys.stderr.flush()
    alive, keep = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(alive)
        _detach(body, log, {log.fileno(), lock_file.fileno(), keep})
    os.close(keep)
    os.waitpid(child, 0)
    # The worker holds the other end: end of file means that it is gone, however it went.
    with os.fdopen(alive, "rb") as end:
        end.read()
    lines = []
    result = own_state.take(RESULT, _RESULT, lines, "what the process that changes packages said is lost")
    if result is None:
        raise AptError(
            "apt.worker",
            "the process that changes the packages was killed",
            because=lines,
            log=log.name,
            hint="run it again: the next run restores the holds and finishes",
        )
    os.unlink(RESULT)
    return result


def _detach(body, log, keep):
    """Never returns: becomes the worker, runs body, writes its result."""
    code = 1
    try:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        # Handlers, not SIG_IGN: a handler does not pass on to apt and the maintainer scripts.
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stay)
        os.chdir("/")
        _close_all(keep, log)
        result = body()
        own_state.write(RESULT, result)
        code = 0
    except BaseException:
        # Nothing above us to raise to: the log is what a person will read.
        log.write(traceback.format_exc().encode("utf-8"))
        log.flush()
    finally:
        os._exit(code)


def _stay(number, frame):
    """HUP, INT and TERM do not end the worker: it must hold again."""


def _close_all(keep, log):
    """Give up every file of the caller: an open pipe would keep the ssh connection waiting."""
    # A file of the caller that is collected later would close its number again, which is another file's by then.
    gc.freeze()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else map(str, range(256)):
        number = int(name)
        if number > 2 and number not in keep:
            try:
                os.close(number)
            except OSError as error:
                if error.errno != errno.EBADF:
                    raise
