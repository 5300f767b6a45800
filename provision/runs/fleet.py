"""What the commands share: the fleet with its variables, sessions with it, and progress messages."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ansible_collections.gpu.provision.plugins.plugin_utils import lockfile
from provision import remote
from provision.catalog import load_catalog
from provision.errors import ProvisionError, UnreachableError
from provision.inventory import Host, Inventory, variables
from provision.lib import load

T = TypeVar("T")
# Sessions that wait for the end of a change: how many, and for how long.
_KEEP_SESSIONS = 32
_KEEP_SECONDS = 60.0
# a host answers in one; a connection that is gone never does
_RESUMED_SECONDS = 10.0
# Of a connection that broke: one more try is made, after a pause.
_BROKEN = frozenset({"connect.closed", "connect.lost"})
_PAUSE_SECONDS = 1.0
# A login that takes longer is reported: the host is slow, or this machine.
_SLOW_SECONDS = 10.0
_SHOWN_SLOW = 5


class Talk(Protocol):
    """Progress, for people: what is going on, host by host. Nothing in it is data.

    live: what a host is at is shown as it goes on, so that it is worth asking for.
    """

    live: bool

    def begin(self, title: str, hosts: Sequence[str]) -> None: ...

    def host(self, name: str, text: str, *, state: str = "running") -> None:
        """Say what a host does.

        state: running, ok, changed, failed; unread: its error is in the document; step: how far it is with what it does.
        """
        ...

    def note(self, text: str) -> None:
        """Say something that stays on the terminal: which wave of hosts begins, who is waited for."""
        ...

    def end(self) -> None: ...


class Silent:
    """A Talk that says nothing."""

    live = False

    def begin(self, title: str, hosts: Sequence[str]) -> None:
        return

    def host(self, name: str, text: str, *, state: str = "running") -> None:
        return

    def note(self, text: str) -> None:
        return

    def end(self) -> None:
        return


@dataclass(frozen=True)
class Fleet:
    """The hosts that were asked for, what the inventory wants of each, and how many to do at a time."""

    inventory: Inventory
    # host name -> role variables, with defaults
    values: Mapping[str, dict[str, Any]] = field(repr=False)
    forks: int | None = None
    # see ask_all
    kept: dict[str, tuple[remote.Session, float]] = field(default_factory=dict, repr=False)
    # see dial
    dialled: dict[str, queue.SimpleQueue[remote.Session | BaseException]] = field(default_factory=dict, repr=False)

    @property
    def hosts(self) -> list[Host]:
        return self.inventory.hosts


def fleet_of(inventory: Inventory, forks: int | None = None) -> Fleet:
    """Return the fleet; VariablesError (exit 64) when a role variable is unknown or wrong."""
    values = variables.effective_all(inventory.hosts)
    beside = {"inventory_dir": _folder(inventory.sources), "inventory_source": lockfile.source_of(inventory.sources)}
    if lockfile.VARIABLE in inventory.extra_vars:
        beside[lockfile.VARIABLE] = inventory.extra_vars[lockfile.VARIABLE]
    return Fleet(inventory, {name: {**found, **beside} for name, found in values.items()}, forks)


def _folder(sources: Sequence[str]) -> str:
    """Where files that the inventory names are looked for: beside it; the current folder without a file."""
    paths = [Path(source) for source in sources if "," not in source and Path(source).exists()]
    return str((paths[0] if paths[0].is_dir() else paths[0].parent).resolve()) if paths else str(Path.cwd())


def dial(fleet: Fleet) -> None:
    """Begin to log in to the hosts that the next ask_all asks first, while the program loads: it takes over what comes of it."""

    def one(host: Host, answer: queue.SimpleQueue[remote.Session | BaseException]) -> None:
        try:
            answer.put(remote.open_session(host))
        except BaseException as error:  # noqa: BLE001 - it is raised where the session is asked for
            answer.put(error)

    for host in fleet.hosts[: fleet.forks or remote.MAX_FORKS]:
        answer = fleet.dialled[host.name] = queue.SimpleQueue()
        threading.Thread(target=one, args=(host, answer), name=f"dial-{host.name}", daemon=True).start()


def warm_up() -> None:
    """Read the parts of the catalog that every plan asks for, before threads do it at the same time."""
    catalog = load_catalog()
    catalog.gpu_by_id("2330")
    for part in ("branches", "drivers", "cuda_data", "ubuntu_data", "repositories", "architectures"):
        getattr(catalog, part)


class _Resumed:
    """A session that was kept open; where it is no good any more, a new one takes its place."""

    def __init__(self, host: Host, kept: remote.Session) -> None:
        self.host, self._session, self._tried = host, kept, False

    def call(self, module: str, args: dict[str, Any], *, timeout: float = 60) -> Any:
        if self._tried:
            return self._session.call(module, args, timeout=timeout)
        self._tried = True
        try:
            return self._session.call(module, args, timeout=min(timeout, _RESUMED_SECONDS))
        except ProvisionError:
            # The reason does not matter: a new session either works or says what is wrong.
            self._session.close()
            self._session = remote.open_session(self.host)
            return self._session.call(module, args, timeout=timeout)

    def close(self) -> None:
        self._session.close()


def _open(fleet: Fleet, host: Host) -> remote.Session:
    """Open a session, or take one that was kept or is being opened."""
    dialled = fleet.dialled.pop(host.name, None)
    if dialled is not None:
        answer = dialled.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer
    kept = fleet.kept.pop(host.name, None)
    if kept is None:
        return remote.open_session(host)
    if time.monotonic() - kept[1] < _KEEP_SECONDS:
        return _Resumed(host, kept[0])
    # Firewalls forget connections that nothing goes over.
    kept[0].close()
    return remote.open_session(host)


def ask_all(
    fleet: Fleet,
    hosts: Sequence[Host],
    title: str,
    ask: Callable[[Host, remote.Session], T],
    talk: Talk,
    *,
    keep: Callable[[T], bool] = lambda result: False,
    shown: Callable[[T], str] = lambda result: "read",
    reads: bool = True,
) -> dict[str, T | ProvisionError]:
    """Open a session with each host in parallel and return what ask makes of it, or the error, by host name.

    A connection that broke is tried once more: always where it broke before ask began, and where ask only reads (reads).
    keep: true for hosts that will be asked again at once: their sessions stay open in fleet.kept, for the next
    ask_all or for release. shown: what is shown of a host as soon as it has answered.
    """

    slow: dict[str, float] = {}

    def one(host: Host) -> T:
        begun: list[bool] = []
        try:
            return once(host, begun)
        except UnreachableError as error:
            if error.issue.code not in _BROKEN or (begun and not reads):
                raise
        time.sleep(_PAUSE_SECONDS)
        return once(host, begun)

    def once(host: Host, begun: list[bool]) -> T:
        start = time.monotonic()
        opened = _open(fleet, host)
        if (seconds := time.monotonic() - start) > _SLOW_SECONDS:
            slow[host.name] = seconds
        begun.append(True)
        stays = False
        try:
            result = ask(host, opened)
            stays = keep(result) and len(fleet.kept) < _KEEP_SESSIONS
        finally:
            if not stays:
                opened.close()
        if stays:
            fleet.kept[host.name] = (opened, time.monotonic())
        return result

    def done(host: Host, result: T | ProvisionError) -> None:
        if isinstance(result, ProvisionError):
            talk.host(host.name, result.issue.message, state="unread")
        else:
            talk.host(host.name, shown(result), state="ok")

    talk.begin(title, [host.name for host in hosts])
    try:
        return remote.for_each(hosts, one, forks=fleet.forks, on_done=done)
    finally:
        talk.end()
        remote.close_shared()
        if slow:
            talk.note(_slow(slow))


def _slow(seconds: Mapping[str, float]) -> str:
    """Return who answered slowly, the slowest first."""
    names = sorted(seconds, key=lambda name: -seconds[name])
    shown = ", ".join(f"{name} ({seconds[name]:.0f} s)" for name in names[:_SHOWN_SLOW])
    more = f" and {len(names) - _SHOWN_SLOW} more" if len(names) > _SHOWN_SLOW else ""
    return f"slow to log in: {shown}{more}; {load.described()}"


def release(fleet: Fleet) -> None:
    """Close the sessions that were kept open."""
    while fleet.kept:
        fleet.kept.popitem()[1][0].close()
