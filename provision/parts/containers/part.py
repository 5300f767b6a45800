"""Containers with GPUs as a part: what plans, checks, locks and drift ask of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from pydantic import Field

from provision.errors import ProvisionError
from provision.facts import Source
from provision.parts.apt import PartPlan
from provision.parts.base import Headline, Host, Part, headline
from provision.parts.check import ContainersExpect
from provision.parts.containers.checks import CHECKS
from provision.parts.containers.desired import TOOLKIT, ContainersDecision
from provision.parts.containers.packages import PATTERNS, installed_toolkit, is_toolkit_uri, toolkit_entries
from provision.parts.containers.plan import UNATTENDED, containers_expectation, plan_containers
from provision.parts.containers.preconditions import lost_at_reload
from provision.parts.containers.proofs import PROOFS
from provision.parts.containers.resolve import resolve_containers
from provision.parts.desired import Desired
from provision.parts.locked import Locked, Versions


class LockedContainers(Locked):
    """The container toolkit."""

    version: str
    packages: Versions = Field(default_factory=dict)


class ContainersPart(Part[ContainersDecision, LockedContainers]):
    name, role = "containers", "container_toolkit"
    title, one = "the container toolkit", "containers with GPUs"
    unattended = UNATTENDED
    checks = CHECKS
    proofs = PROOFS
    reasons = ("container toolkit", "replaced")
    locked, models = LockedContainers, (LockedContainers,)

    # --- plan

    def decide(self, host: Host) -> ContainersDecision:
        return resolve_containers(
            host.desired.containers, host.facts, host.catalog, host.candidates, host.driver, host.proxy
        )

    def asks(self, decision: ContainersDecision) -> Sequence[str]:
        return decision.asks

    def patterns(self, host: Host, sources: Collection[str]) -> list[str]:
        return list(PATTERNS) if host.desired.containers.wanted else []

    def omitted(self, host: Host, sources: Collection[str]) -> list[Source]:
        return toolkit_entries(host.facts) if self._replaces(host) else []

    def mends(self, host: Host, error: str) -> bool:
        """Entries of NVIDIA's container repositories that contradict each other give way to our own."""
        return self._replaces(host) and is_toolkit_uri(error)

    def _replaces(self, host: Host) -> bool:
        return host.desired.containers.wanted and host.desired.containers.remove_legacy

    def channel(self, host: Host, decision: ContainersDecision) -> str | None:
        return TOOLKIT if decision.target else None

    def plan(self, host: Host, decision: ContainersDecision, source: dict[str, Any] | None) -> PartPlan:
        plan = plan_containers(host.desired.containers, host.facts, decision, source)
        docker = (plan.spec["runtimes"] or {}).get("docker") or {}
        plan.reloads = docker.get("proxy") is not None and any(step.id == "restart" for step in plan.steps)
        plan.lost_at_reload = lost_at_reload(host.facts)
        return plan

    # --- verify

    def expect(self, host: Host, decision: ContainersDecision) -> ContainersExpect:
        return containers_expectation(host.desired.containers, host.facts, host.catalog, decision)

    # --- lock

    def exact(self, locked: LockedContainers, desired: Desired) -> tuple[dict[str, Any], list[str]]:
        asked, against = desired.containers.version, []
        if asked and asked.split("-")[0] != locked.version:
            against.append(f"container_toolkit_version asks for {asked}, the lock has {locked.version}")
        return {"container_toolkit_version": locked.version}, against

    def channel_of(self, locked: LockedContainers) -> str:
        return TOOLKIT

    def entry(self, host: Host, decision: ContainersDecision, more: Sequence[str] = ()) -> LockedContainers:
        have = installed_toolkit(host.facts, host.catalog)
        if not have.whole or have.version is None:
            raise ProvisionError(
                "lock.no_container_toolkit",
                "the container toolkit is not there as one version",
                because=have.versions,
                hint="provision apply makes it so; then lock",
            )
        return LockedContainers(version=have.version, packages=dict(have.packages))

    def headlines(self, old: LockedContainers | None, new: LockedContainers | None) -> Iterator[Headline]:
        yield headline("container toolkit", (old, new), lambda locked: locked.version)


PART = ContainersPart()
