"""What the commands share: the fleet with its wishes, sessions with it, and how they say what they are doing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from provision import remote, variables
from provision.catalog import load_catalog
from provision.errors import ProvisionError
from provision.inventory import Host, Inventory

T = TypeVar("T")


class Talk(Protocol):
    """Progress, for people: what is going on, host by host. Nothing in it is data."""

    def begin(self, title: str, hosts: Sequence[str]) -> None: ...

    def host(self, name: str, text: str, *, state: str = "running") -> None:
        """Say what a host does. state: running, ok, changed, failed; unread: its error is in the document."""
        ...

    def end(self) -> None: ...


class Silent:
    """A Talk that says nothing."""

    def begin(self, title: str, hosts: Sequence[str]) -> None:
        return

    def host(self, name: str, text: str, *, state: str = "running") -> None:
        return

    def end(self) -> None:
        return


@dataclass(frozen=True)
class Fleet:
    """The hosts that were asked for, what the inventory wants of each, and how many to do at a time."""

    inventory: Inventory
    values: Mapping[str, dict[str, Any]] = field(repr=False)  # host name -> role variables, with defaults
    forks: int | None = None

    @property
    def hosts(self) -> list[Host]:
        return self.inventory.hosts


def fleet_of(inventory: Inventory, forks: int | None = None) -> Fleet:
    """Return the fleet; VariablesError (exit 64) when a role variable is unknown or wrong."""
    return Fleet(inventory, variables.effective_all(inventory.hosts), forks)


def warm_up() -> None:
    """Read the parts of the catalog that every plan asks for, before threads do it at the same time."""
    catalog = load_catalog()
    catalog.gpu_by_id("2330")
    for part in ("branches", "drivers", "cuda_data", "ubuntu_data", "repositories", "architectures"):
        getattr(catalog, part)


@contextmanager
def session(host: Host) -> Iterator[remote.Session]:
    """A session that is closed at the end."""
    opened = remote.open_session(host)
    try:
        yield opened
    finally:
        opened.close()


def ask_all(
    fleet: Fleet, hosts: Sequence[Host], title: str, ask: Callable[[Host, remote.Session], T], talk: Talk
) -> dict[str, T | ProvisionError]:
    """Open a session with each host in parallel and return what ask makes of it, or the error, by host name."""

    def one(host: Host) -> T:
        with session(host) as opened:
            return ask(host, opened)

    def done(host: Host, result: T | ProvisionError) -> None:
        if isinstance(result, ProvisionError):
            talk.host(host.name, result.issue.message, state="unread")
        else:
            talk.host(host.name, "read", state="ok")

    talk.begin(title, [host.name for host in hosts])
    try:
        return remote.for_each(hosts, one, forks=fleet.forks, on_done=done)
    finally:
        talk.end()
        remote.close_shared()
