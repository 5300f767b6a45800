"""What is shown while hosts are asked or changed."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from provision.render.base import Text, put
from provision.render.text import clean, format_hosts, format_task, plural

_STYLES = {"failed": "red", "unread": "red", "ok": "green", "changed": "", "waiting": "dim"}


class Progress:
    """A live list of hosts on a terminal, a line an event elsewhere. Implements commands.fleet.Talk."""

    _ROWS = 20
    # Off a terminal: who has not answered by then is named, and from then on each host is shown as it answers.
    _LATE_SECONDS = 5.0

    def __init__(self, console: Console, *, silent: bool = False) -> None:
        self._console, self._silent = console, silent
        self._live: Live | None = None
        self._title = ""
        self._hosts: dict[str, tuple[str, str, float]] = {}
        self._done: dict[str, int] = {}
        self._started = 0.0
        self._timer: threading.Timer | None = None
        self._turn, self._late = threading.Lock(), False
        self.live = console.is_terminal and not silent

    def begin(self, title: str, hosts: Sequence[str]) -> None:
        self._title, self._started = title, time.monotonic()
        self._hosts = dict.fromkeys(hosts, ("waiting", "waiting", self._started))
        self._done = {}
        if self._silent:
            return
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._picture, refresh_per_second=8, transient=True)
            self._live.start()
        else:
            self._plain(f"{title}: {plural(len(hosts), 'host')}")
            self._late = False
            self._timer = threading.Timer(self._LATE_SECONDS, self._show_late)
            self._timer.daemon = True
            self._timer.start()

    def host(self, name: str, text: str, *, state: str = "running") -> None:
        shown = format_task(clean(text))
        with self._turn:
            before = self._hosts.get(name, ("", "", 0.0))
            if state == "step":
                # The seconds beside it are those of the whole task; one that has ended meanwhile stays ended.
                if before[0] == "running":
                    self._hosts[name] = ("running", shown, before[2])
                return
            self._hosts[name] = (state, shown, time.monotonic())
            late = self._late and state in ("ok", "unread")
        if late and not self._silent:
            self._plain(f"{name}: {shown}")
        if state == "changed":
            self._done[name] = self._done.get(name, 0) + 1
        if self._silent or state not in ("changed", "failed"):
            return
        # Only what ended, not every task that begins.
        line = f"{name}: {'failed: ' if state == 'failed' else 'done: '}{shown}"
        if self._live is None:
            self._plain(line)
        elif state == "failed":
            # Above the live list, so that it is still there when the list has gone.
            self._print(Text(line, style="red"))

    def note(self, text: str) -> None:
        """Say a line that stays: above the live list where there is one."""
        if not self._silent:
            self._print(Text(text, style="bold"))

    def _show_late(self) -> None:
        """Say who has answered what so far, and whom the others wait for."""
        with self._turn:
            if self._timer is None:
                return
            self._late = True
            shown = {name: text for name, (state, text, _) in self._hosts.items() if state in ("ok", "unread")}
            waiting = [name for name, (state, _, _) in self._hosts.items() if state == "waiting"]
            for name, text in shown.items():
                self._plain(f"{name}: {text}")
            if waiting:
                self._plain(f"{self._title}: waiting for {format_hosts(waiting)}")

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            with self._turn:
                self._timer, self._late = None, False
        live, self._live = self._live, None
        if live is None:
            return
        try:
            live.stop()
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            self._silent = True

    def _plain(self, text: str) -> None:
        self._print(Text(text))

    def _print(self, text: Text) -> None:
        """Print a line; a terminal that was closed ends the talk, not the work on the hosts and its record."""
        try:
            if self._console.is_terminal:
                put(self._console, text)
            else:
                self._console.print(text, soft_wrap=True)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            self._silent = True

    def _picture(self) -> Group:
        finished = sum(state in ("ok", "failed", "unread") for state, _, _ in self._hosts.values())
        now = time.monotonic()
        count = f"{finished} of {plural(len(self._hosts), 'host')}, " if finished else ""
        head = f"{self._title}  {count or plural(len(self._hosts), 'host') + ', '}{now - self._started:.0f} s"
        # The text gives way to the name, not the name to the text.
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True, max_width=max(10, self._console.width // 3), overflow="ellipsis")
        table.add_column(no_wrap=True, ratio=1, overflow="ellipsis")
        # Those that run first: with a long fleet the quiet ones are not drawn.
        order = {"failed": 0, "unread": 0, "running": 1, "changed": 1, "waiting": 2, "ok": 3}
        rows = sorted(self._hosts.items(), key=lambda item: order.get(item[1][0], 1))
        room = max(3, min(self._ROWS, self._console.height - 3))
        for name, (state, text, since) in rows[:room]:
            shown = f"{now - since:3.0f} s  {text}" if state in ("running", "changed") else text
            table.add_row(Text(name, style="bold"), Text(shown, style=_STYLES.get(state, "")))
        rest = len(rows) - room
        more = Text(f"... and {rest} more", style="dim") if rest > 0 else Text("")
        return Group(Text(head, style="bold"), table, more)
