"""What a part of a host is: the one protocol by which plans, checks, locks and drift treat driver, CUDA, conda, containers.

A part is a folder with an object in ``part.py`` and a line in ``registry.py``. What a part does not have, it leaves out: the
methods here answer for "nothing".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from provision.catalog import Catalog
from provision.facts import Facts, Source
from provision.inventory.proxy import HostProxy
from provision.parts.apt import PartPlan
from provision.parts.candidates import Candidates
from provision.parts.check import Judge
from provision.parts.decision import Decision
from provision.parts.desired import Desired
from provision.parts.proof import Judging

# What decide returns: ``blockers``, ``warnings``, ``reasons``; with ``target`` where the part has packages.
D = TypeVar("D")
# The part's entry in a group of the lock.
L = TypeVar("L")


@dataclass
class Host:
    """A host as its parts decide about it.

    candidates: what apt has, by channel, as far as it was asked. decisions: of the parts so far. channels: part -> where its
    packages come from with this plan. proxy: the one that programs of the host are to use.
    """

    facts: Facts
    catalog: Catalog
    desired: Desired
    candidates: dict[str, Candidates] = field(default_factory=dict)
    proxy: HostProxy = HostProxy()
    decisions: dict[str, Any] = field(default_factory=dict)
    channels: dict[str, str | None] = field(default_factory=dict)

    @property
    def driver(self) -> Decision:
        """The first part's decision: every other part has to work with that driver."""
        decision: Decision = self.decisions["driver"]
        return decision


class Difference(NamedTuple):
    """Where a host is not as locked, beside the versions of packages. code: ``area.what``."""

    code: str
    what: str
    expected: str
    found: str
    hint: str


class Headline(NamedTuple):
    """One thing of a lock that people follow. reason: what a plan's reason for it is about (Reason.what), the best first."""

    what: str
    old: str | None
    new: str | None
    reason: Sequence[str]


def headline(what: str, pair: Sequence[L | None], value: Callable[[L], str | None], *reason: str) -> Headline:
    """The headline of one value of an entry. pair: old and new."""
    old, new = (value(locked) if locked is not None else None for locked in pair)
    return Headline(what, old, new, reason or (what,))


class Part(Generic[D, L]):
    """One part of a host. name: of the plan's steps, of the lock's entries; role: carries it out, and begins its variables."""

    # decide, plan and expect have no answer for "nothing", nor has entry where something is locked: those are the part's own.
    name: str
    role: str
    # "the driver", as drift calls it; "a driver", as something that is asked for
    title: str
    one: str
    # its packages come through apt: decided while apt is asked, held to the lock
    apt = True
    # what unattended-upgrades leaves alone
    unattended: Sequence[str] = ()
    checks: tuple[Judge, ...] = ()
    # of its checks that run something: code -> judge of what the host measured
    proofs: Mapping[str, Judging] = MappingProxyType({})
    # what its decision's reasons are about: the beginnings of Reason.what
    reasons: tuple[str, ...] = ()
    # type of its entry in a lock, None where nothing of it is locked; and the models that it is made of
    locked: Any = None
    models: tuple[type[BaseModel], ...] = ()

    def config(self, desired: Desired) -> Any:
        """The part's own variables; with ``update`` where newer packages can be asked for."""
        return getattr(desired, self.name)

    def is_asked(self, desired: Desired, facts: Facts) -> bool:
        """Something of it is wanted on this host, so that a lock has to have it."""
        return bool(self.config(desired).wanted)

    # --- plan

    def decide(self, host: Host) -> D:
        """What the host should have, by the desired state, the facts, and apt's candidates so far."""
        raise NotImplementedError

    def asks(self, decision: Any) -> Sequence[str]:
        """Channels whose candidates the decision waits for."""
        return [decision.ask] if decision.ask else []

    def patterns(self, host: Host, sources: Collection[str]) -> list[str]:
        """Names of packages that apt is asked about. sources: names of the repositories that are added for it."""
        return []

    def omitted(self, host: Host, sources: Collection[str]) -> list[Source]:
        """Entries of the host's sources that give way to our own."""
        return []

    def mends(self, host: Host, error: str) -> bool:
        """apt's complaint about the host's sources goes away with what is omitted."""
        return False

    def channel(self, host: Host, decision: D) -> str | None:
        """The channel whose repository the host has by this plan."""
        return None

    def plan(self, host: Host, decision: D, source: dict[str, Any] | None) -> PartPlan:
        """What has to change. source: the repository of ``channel`` as apt.query's SourceSpec."""
        raise NotImplementedError

    def owns(self, package: str) -> bool:
        """The package is this part's, whoever it comes with."""
        return False

    def group_of(self, package: str) -> str:
        """What a package is shown under: "CUDA 12.4"."""
        return ""

    # --- verify

    def expect(self, host: Host, decision: D) -> BaseModel:
        """What checks hold the host to, as the part's field of Expect."""
        raise NotImplementedError

    # --- lock

    def exact(self, locked: L, desired: Desired) -> tuple[dict[str, Any], list[str]]:
        """(role variables as the lock has them, sentences where the inventory's contradict it)."""
        return {}, []

    def pins(self, locked: L, desired: Desired) -> dict[str, str]:
        """Package -> locked version, of what is wanted."""
        return dict(getattr(locked, "packages", {}))

    def channel_of(self, locked: L) -> str:
        """The channel that locked packages come from."""
        return self.name

    def pin(self, target: Any, pins: Mapping[str, str], missing: Mapping[str, str]) -> Any:
        """The decided target with exactly the locked packages. missing: of the pins, what the host does not have so."""
        packages = dict(sorted({**target.packages, **missing}.items()))
        return replace(target, packages=packages, names=tuple(sorted({*target.names, *pins})))

    def entry(self, host: Host, decision: D, more: Sequence[str] = ()) -> L:
        """What a lock says of a host that is asked for it. more: packages that belong to it beyond what is known by Depends.

        Raises ProvisionError where it cannot be locked as it is.
        """
        raise NotImplementedError

    def own(self, host: Host, decision: D) -> dict[str, str]:
        """What a lock says of this host alone: path -> digest."""
        return {}

    def kind(self, locked: L | None) -> Any:
        """What makes hosts of one kind."""
        return locked is not None

    def name_parts(self, locked: L) -> list[str]:
        """For the name of a group."""
        return [self.name]

    def flat(self, locked: L) -> dict[str, str]:
        """What must be equal on all hosts of a group beside packages, by what it is called."""
        return {}

    def headlines(self, old: L | None, new: L | None) -> Iterator[Headline]:
        """What people follow from one lock to the next."""
        yield from ()

    def differences(self, facts: Facts, locked: L, own: Mapping[str, str]) -> Iterable[Difference]:
        """What drifted beside the versions of packages. own: of the lock, for this host alone."""
        return ()
