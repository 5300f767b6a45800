# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What a started program writes, kept up to a limit: one that writes without end is ended like one that does not end.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time

MOST_BYTES = 64 << 20
# How long a program that was killed is waited for: in the driver it may not end before the machine does (ps: state D), and what it
# started in another session may hold its pipes.
LAST_S = 5


class Output(object):
    """The pipes of a subprocess.Popen. wait() is its communicate(), and may be called again after a TimeoutExpired."""

    def __init__(self, process, data=None, most=MOST_BYTES):
        self.process, self.data, self.left = process, memoryview(data or b""), most
        self.parts = {pipe: [] for pipe in (process.stdout, process.stderr) if pipe}
        # Not epoll: its descriptor would be closed whenever the collector comes, in a forked process too.
        self.open = selectors.PollSelector()
        for pipe in self.parts:
            self.open.register(pipe, selectors.EVENT_READ)
        if process.stdin:
            os.set_blocking(process.stdin.fileno(), False)
            self.open.register(process.stdin, selectors.EVENT_WRITE)

    def wait(self, timeout=None):
        """Return (output, errors) as bytes; raise subprocess.TimeoutExpired when the time (seconds) is over.

        A program that writes more than the limit raises it too. Its end is the caller's, as with communicate; what it
        writes until then is thrown away.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.open.get_map():
            rest = None if deadline is None else deadline - time.monotonic()
            if rest is not None and rest <= 0:
                raise subprocess.TimeoutExpired(self.process.args, timeout)
            for key, _ in self.open.select(rest):
                ended = self._write() if key.fileobj is self.process.stdin else self._read(key.fileobj)
                if ended:
                    self.open.unregister(key.fileobj)
                    key.fileobj.close()
        self.process.wait(None if deadline is None else max(0.001, deadline - time.monotonic()))
        return self.text(self.process.stdout), self.text(self.process.stderr)

    def end(self, timeout, grace=20):
        """As wait; when the time is over the session gets TERM, and after grace KILL: (output, errors, timed_out)."""
        try:
            return (*self.wait(timeout), False)
        except subprocess.TimeoutExpired:
            signal_session(self.process, signal.SIGTERM)
        try:
            return (*self.wait(grace), True)
        except subprocess.TimeoutExpired:
            return (*self.kill(), True)

    def kill(self):
        """Kill the session and return what the program wrote; it is waited for, but not longer than LAST_S."""
        signal_session(self.process, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(LAST_S)
        if self.process.returncode is None:
            # It dies as soon as it can.
            self.process.returncode = -signal.SIGKILL
        for key in list(self.open.get_map().values()):
            self.open.unregister(key.fileobj)
            key.fileobj.close()
        return self.text(self.process.stdout), self.text(self.process.stderr)

    def text(self, pipe):
        """What came through a pipe until now, as bytes."""
        return b"".join(self.parts.get(pipe, ()))

    def _read(self, pipe):
        part = os.read(pipe.fileno(), 65536)
        if self.left > 0:
            self.parts[pipe].append(part[: self.left])
            self.left -= len(part)
            if self.left <= 0:
                raise subprocess.TimeoutExpired(self.process.args, 0)
        return not part

    def _write(self):
        try:
            self.data = self.data[os.write(self.process.stdin.fileno(), self.data[:65536]) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            return True
        return not self.data


def signal_session(process, number):
    """Send a signal to all of a program's session; that it has ended is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def ask(command, timeout, most=MOST_BYTES, env=None):
    """Start a program that only reads: (exit code, output as bytes), or None where it is not there or does not end."""
    try:
        process = subprocess.Popen(  # noqa: S603 - a list, no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=dict(env or os.environ, LC_ALL="C"),
        )
    except OSError:
        return None
    output = Output(process, most=most)
    try:
        out = output.wait(timeout)[0]
    except subprocess.TimeoutExpired:
        output.kill()
        return None
    return process.returncode, out
