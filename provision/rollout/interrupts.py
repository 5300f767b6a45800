"""Ctrl-C, SIGTERM and a terminal that is closed, in a run that owes somebody something."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# A closed terminal and a service manager's stop mean what Ctrl-C means: end in order, hosts resumed.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns signals into KeyboardInterrupt; while something has to be finished, the first one waits.

    note: says a line to the person at the terminal. Outside of the main thread signals are somebody else's business.
    """

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self._note = note
        self._doing: str | None = None
        self._pending = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Catch signals for as long as this lasts; those that are ignored (nohup) stay so."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {}
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._take)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._doing is None or self._pending:
            self._pending = False
            raise KeyboardInterrupt
        self._pending = True
        self._note(f"{self._doing} is finished first; once more ends it at once, and leaves hosts drained")

    @contextmanager
    def later(self, doing: str) -> Iterator[None]:
        """Put the first signal off until ``check``; a second one is a KeyboardInterrupt at once."""
        before, self._doing = self._doing, doing
        try:
            yield
        finally:
            self._doing = before

    def check(self) -> None:
        """Raise KeyboardInterrupt where a signal was put off."""
        if self._pending and self._doing is None:
            self._pending = False
            raise KeyboardInterrupt
