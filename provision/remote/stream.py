"""One running command, as bytes in and bytes out: a process here, or a channel of an ssh connection."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol, cast


class Stream(Protocol):
    """stdout and stderr arrive together: whatever speaks before the server does is an explanation."""

    def send(self, data: memoryview, timeout: float) -> int:
        """Send some of data and return how much; TimeoutError when nothing can be sent."""
        ...

    def recv(self, timeout: float) -> bytes:
        """Return what arrived, b"" at the end; TimeoutError when nothing does."""
        ...

    def status(self) -> int:
        """Exit status, after the end; -1 when it is not known."""
        ...

    def close(self) -> None: ...


class ProcessStream:
    """A local process, in a session of its own: a Ctrl-C typed here is not its business."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, on_close: Callable[[], None] | None = None
    ) -> None:
        self._on_close = on_close
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
            bufsize=0,
        )
        self._in = cast("IO[bytes]", self._process.stdin)
        self._out = cast("IO[bytes]", self._process.stdout)
        os.set_blocking(self._in.fileno(), False)

    def send(self, data: memoryview, timeout: float) -> int:
        _, ready, _ = select.select([], [self._in], [], max(0.0, timeout))
        if not ready:
            raise TimeoutError
        return os.write(self._in.fileno(), data)

    def recv(self, timeout: float) -> bytes:
        ready, _, _ = select.select([self._out], [], [], max(0.0, timeout))
        if not ready:
            raise TimeoutError
        return os.read(self._out.fileno(), 65536)

    def status(self) -> int:
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return -1

    def close(self) -> None:
        # it ended before it read everything
        with contextlib.suppress(OSError):
            self._in.close()
        try:
            self._process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._out.close()
        if self._on_close is not None:
            self._on_close()
            self._on_close = None
