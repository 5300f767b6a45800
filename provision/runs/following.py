"""What apt does on hosts while a play changes their packages: asked beside the play, shown as the progress of each host."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping

from provision import remote
from provision.errors import ProvisionError
from provision.inventory import Host
from provision.lib.text import answered, size
from provision.runs import engine
from provision.runs.fleet import Fleet, Talk

_EVERY_SECONDS = 1.0
_ANSWER_SECONDS = 20.0
# Modules that change packages by one transaction: plugins/module_utils/apt/transaction.py
_CHANGES = frozenset({"apt_transaction", "host_packages"})
# See plugins/module_utils/apt/progress.py.
_LINE = re.compile(r"^(dlstatus|pmstatus|lock):([^:\n]{0,100}):([0-9]{1,3}(?:\.[0-9]+)?):([^\n]*)$")
_FILES = re.compile(r"file ([0-9]+) of ([0-9]+)")


@contextlib.contextmanager
def following(
    fleet: Fleet, talk: Talk, on_event: Callable[[engine.Event], None], sizes: Mapping[str, int] | None = None
) -> Iterator[Callable[[engine.Event], None]]:
    """Show how far hosts are with their packages, while this lasts; what it yields is the on_event of the play.

    sizes: bytes to download by host, where they are known. A host that cannot be asked is shown by its task alone.
    """
    hosts = {host.name: host for host in fleet.hosts}
    ends: dict[str, threading.Event] = {}

    def take(event: engine.Event) -> None:
        on_event(event)
        name = event.get("host")
        if not talk.live or name not in hosts:
            return
        if name in ends:
            ends.pop(name).set()
        if event["event"] == "host_start" and engine.module_of(event) in _CHANGES:
            ended = ends[name] = threading.Event()
            args = (hosts[name], ended, talk, (sizes or {}).get(name, 0))
            threading.Thread(target=_follow, args=args, name=f"following {name}", daemon=True).start()

    try:
        yield take
    finally:
        for ended in ends.values():
            ended.set()


def _follow(host: Host, ended: threading.Event, talk: Talk, total: int) -> None:
    begun = 0.0
    # Most transactions that change nothing are over by then.
    if ended.wait(_EVERY_SECONDS):
        return
    # The play itself tells of a host that is lost; here only the picture is.
    with contextlib.suppress(ProvisionError), contextlib.closing(remote.open_session(host)) as session:
        while not ended.wait(_EVERY_SECONDS):
            line = answered(session.call("apt.progress", {}, timeout=_ANSWER_SECONDS))["line"]
            begun = begun or time.monotonic()
            text = described(line or "", total, time.monotonic() - begun)
            if text and not ended.is_set():
                talk.host(host.name, text, state="step")


def described(line: str, total: int, seconds: float) -> str | None:
    """Return a status line as people read it; None for one that says nothing.

    total: bytes to download, 0 where that is not known. seconds: since the download was first seen.
    """
    match = _LINE.match(line)
    if match is None:
        return None
    kind, name, share, text = match[1], match[2], min(float(match[3]), 100.0), match[4]
    if kind == "lock":
        return f"waiting for apt's lock, which {name or 'another program'} has"
    if kind == "dlstatus":
        done = total * share / 100
        if done:
            rate = f", {size(int(done / seconds))}/s" if seconds > 1 else ""
            return f"downloading {size(int(done))} of {size(total)} ({share:.0f} %{rate})"
        files = _FILES.search(text)
        return f"downloading file {files[1]} of {files[2]} ({share:.0f} %)" if files else f"downloading ({share:.0f} %)"
    return f"{text[:1].lower()}{text[1:]} ({share:.0f} %)" if text.strip() else None
