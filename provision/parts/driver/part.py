"""The driver as a part: what plans, checks, locks and drift ask of it, answered by the modules beside this one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from pydantic import Field

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, driver_names
from provision.errors import ProvisionError
from provision.facts import Facts, Flavour, Source
from provision.parts.apt import PartPlan
from provision.parts.base import Difference, Headline, Host, Part, headline
from provision.parts.check import DriverExpect
from provision.parts.decision import CHANNELS, Decision, Target, kernel_flavours, wants_fabric
from provision.parts.desired import Desired
from provision.parts.driver.checks import CHECKS
from provision.parts.driver.installed import installed_driver, is_cuda_uri
from provision.parts.driver.plan import cuda_entries, plan_driver
from provision.parts.driver.proofs import PROOFS
from provision.parts.driver.resolve import resolve_driver
from provision.parts.locked import Locked, Versions, several


class LockedDriver(Locked):
    """version: NVIDIA's. packages: Debian versions, without those that belong to one kernel (see LockedHost.kernel)."""

    version: str
    # "580", "580-server"
    series: str
    flavour: Flavour
    build: Literal["signed", "dkms"]
    channel: Literal["ubuntu", "cuda", "ppa"]
    variant: Literal["desktop", "headless"]
    fabric_manager: bool = False
    packages: Versions = Field(default_factory=dict)


class DriverPart(Part[Decision, LockedDriver]):
    name, role = "driver", "nvidia_driver"
    title, one = "the driver", "a driver"
    unattended = driver_names.UNATTENDED_PATTERNS
    checks = CHECKS
    proofs = PROOFS
    reasons = ("branch", "version", "channel", "series", "driver", "replaced")
    locked, models = LockedDriver, (LockedDriver,)

    # --- plan

    def decide(self, host: Host) -> Decision:
        decision = resolve_driver(host.desired.driver, host.facts, host.catalog, host.candidates)
        if not host.desired.plans(self.name):
            # the others need it, and it is not this plan's business
            decision.reasons, decision.warnings = [], []
        return decision

    def patterns(self, host: Host, sources: Collection[str]) -> list[str]:
        kernels = {kernel for kernel in (host.facts.kernels.running, host.facts.kernels.next) if kernel}
        return [
            r"(nvidia|libnvidia|xserver-xorg-video-nvidia|cuda-drivers|linux-modules-nvidia|linux-objects-nvidia"
            r"|linux-signatures-nvidia)(-.*)?",
            r"libnvsdm|nvlsm",
            *(f"linux-headers-{re.escape(one)}" for one in sorted({*kernel_flavours(host.facts), *kernels})),
        ]

    def omitted(self, host: Host, sources: Collection[str]) -> list[Source]:
        return cuda_entries(host.facts) if "cuda" in sources else []

    def mends(self, host: Host, error: str) -> bool:
        return is_cuda_uri(error)

    def channel(self, host: Host, decision: Decision) -> str | None:
        return decision.target.channel if decision.target else None

    def plan(self, host: Host, decision: Decision, source: dict[str, Any] | None) -> PartPlan:
        others = [channel for part, channel in host.channels.items() if part != self.name]
        plan = plan_driver(host.desired.driver, host.facts, decision, source, "cuda" in others)
        plan.summary = self._summary(host, decision)
        plan.reloads = any("/systemd/" in str(file["path"]) for file in plan.spec["boot"]["files"])
        return plan

    def _summary(self, host: Host, decision: Decision) -> str:
        target, loaded = decision.target, host.facts.module.loaded
        if target:
            signed = "signed" if target.build == "signed" else "DKMS"
            return f"driver {target.version} {target.flavour}, {signed} modules, from {CHANNELS[target.channel]}"
        if not host.facts.gpus:
            return "no NVIDIA GPU"
        if not host.desired.driver.manage and host.desired.plans(self.name):
            return f"driver not managed here ({loaded.version if loaded else 'none loaded'})"
        return ""

    def owns(self, package: str) -> bool:
        return driver_names.is_driver_package(package) or package.startswith(("linux-", "ocl-icd"))

    # --- verify

    def expect(self, host: Host, decision: Decision) -> DriverExpect:
        config, target = host.desired.driver, decision.target
        manage = config.manage and bool(decision.gpus)
        branch = None if config.branch == "recommended" or not config.manage else str(config.branch).split("-")[0]
        return DriverExpect(
            version=target.version if target else config.version or None,
            branch=driver_names.branch(target.version) if target else branch,
            flavour=target.flavour if target else config.modules if config.modules != "auto" else None,
            manage=manage,
            hold=manage and config.hold,
            persistence=config.persistence,
            fabric_manager=wants_fabric(config, host.facts),
            none=not config.manage,
        )

    # --- lock

    def is_asked(self, desired: Desired, facts: Facts) -> bool:
        return desired.driver.manage and bool(facts.gpus)

    def exact(self, locked: LockedDriver, desired: Desired) -> tuple[dict[str, Any], list[str]]:
        config, against = desired.driver, []
        branch = str(config.branch or "recommended")
        if branch != "recommended" and branch not in (locked.series, driver_names.branch(locked.version)):
            against.append(f"nvidia_driver_branch asks for {branch}, the lock has {locked.series}")
        exact: dict[str, Any] = {"nvidia_driver_branch": locked.series}
        for name, value in (
            ("version", locked.version),
            ("channel", locked.channel),
            ("modules", locked.flavour),
            ("build", locked.build),
            ("variant", locked.variant),
        ):
            asked = str(getattr(config, name) or "auto")
            if asked not in ("auto", value):
                against.append(f"nvidia_driver_{name} asks for {asked}, the lock has {value}")
            exact[f"nvidia_driver_{name}"] = value
        return exact, against

    def channel_of(self, locked: LockedDriver) -> str:
        return locked.channel

    def pin(self, target: Target, pins: Mapping[str, str], missing: Mapping[str, str]) -> Target:
        """What is installed stays where all of it is as locked."""
        if target.installed:
            return replace(target, packages=dict(missing), installed=False) if missing else target
        # The pinning package goes before, in a transaction of its own.
        exact = {name: v for name, v in pins.items() if not name.startswith("nvidia-driver-pinning-")}
        return replace(target, packages={**target.packages, **exact})

    def entry(self, host: Host, decision: Decision, more: Sequence[str] = ()) -> LockedDriver:
        facts = host.facts
        have = installed_driver(facts)
        if not (have.version and have.series and have.flavour and have.build and have.channel and have.variant):
            raise ProvisionError(
                "lock.no_driver",
                "the installed driver is not one whole driver",
                because=[f"versions: {', '.join(have.versions) or 'none'}"],
                hint="provision apply makes it one; then lock",
            )
        # Packages of single kernels are the host's own: linux-modules-nvidia-580-open-6.8.0-45-generic, …
        own = {
            name: version
            for name, version in have.packages.items()
            if not driver_names.parse(name).base.startswith("linux-") and facts.packages[name].installed
        }
        return LockedDriver(
            version=have.version,
            series=have.series,
            flavour=cast(Any, have.flavour),
            build=cast(Any, have.build),
            channel=cast(Any, have.channel),
            variant=cast(Any, have.variant),
            fabric_manager=any(driver_names.parse(name).base == "nvidia-fabricmanager" for name in own),
            packages=own,
        )

    def kind(self, locked: LockedDriver | None) -> Any:
        return locked and (
            locked.channel,
            locked.series,
            locked.flavour,
            locked.build,
            locked.variant,
            locked.fabric_manager,
        )

    def name_parts(self, locked: LockedDriver) -> list[str]:
        return [
            locked.series,
            locked.flavour,
            locked.build,
            *([locked.channel] if locked.build == "dkms" else []),
            *(["desktop"] if locked.variant == "desktop" else []),
            *(["fabric"] if locked.fabric_manager else []),
        ]

    def flat(self, locked: LockedDriver) -> dict[str, str]:
        return {"driver": f"{locked.version} {locked.flavour} {locked.build}"}

    def headlines(self, old: LockedDriver | None, new: LockedDriver | None) -> Iterator[Headline]:
        yield headline(
            "driver",
            (old, new),
            lambda locked: f"{locked.version} {locked.flavour}, {locked.build}, {locked.series}",
            "version",
            "branch",
        )

    def differences(self, facts: Facts, locked: LockedDriver, own: Mapping[str, str]) -> list[Difference]:
        """Packages that the lock does not have, and that carry the driver's version: somebody added them."""
        extra = sorted(
            name
            for name, row in facts.packages.items()
            if row.installed
            and driver_names.is_version_locked(name)
            and name not in locked.packages
            and not driver_names.parse(name).base.startswith("linux-")
            and cuda_names.parse(name) is None
        )
        hint = "provision lock --update accepts them; apt-get remove removes them"
        found = [facts.packages[name].version for name in extra[:1]]
        return [Difference("packages.extra", several(extra), "not installed", one, hint) for one in found]


PART = DriverPart()
