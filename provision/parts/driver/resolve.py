"""Which driver a host should have: branch, version, flavour, build, channel, exact packages, each with its reason.

Pure: config + facts + catalog + candidates of apt in, a decision out. Where apt has to be
asked first the decision says so (``ask``), and the caller comes back with the answer.
"""

from __future__ import annotations

from datetime import date
from typing import Any, cast

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, driver_names
from provision.catalog import Branch, Catalog, KnownBad
from provision.catalog.toolkits import Runs, runs
from provision.errors import Issue, UsageError
from provision.facts import Facts
from provision.parts.candidates import Candidates
from provision.parts.decision import CHANNELS, Decision, DriverConfig, Target, cuda_key, kernel_flavours, wants_fabric
from provision.parts.driver.installed import (
    InstalledDriver,
    installed_driver,
    is_passthrough,
    next_boot_problems,
    where_to_look,
)
from provision.parts.driver.limits import DriverLimits
from provision.parts.driver.messages import DriverMessages
from provision.parts.driver.packages import Choice, DriverPackages
from provision.parts.driver.suggest import Suggestions


def resolve_driver(
    config: DriverConfig, facts: Facts, catalog: Catalog, candidates: dict[str, Candidates], today: date | None = None
) -> Decision:
    """Decide the driver of one host.

    candidates: what apt has there, by channel, as far as it has been asked. Returns a Decision with a target, with
    blockers, or with ``ask`` set to the channel whose candidates are needed next.
    """
    return Resolver(config, facts, catalog, candidates, today or date.today()).run()


class Resolver:
    """Decides for one host: what rules it out, what is kept, what is chosen, and why."""

    def __init__(
        self, config: DriverConfig, facts: Facts, catalog: Catalog, candidates: dict[str, Candidates], today: date
    ) -> None:
        self.config, self.facts, self.catalog, self.candidates, self.today = config, facts, catalog, candidates, today
        # why channels and branches were passed over; they count when nothing fits
        self.refusals: list[Issue] = []
        self.out = Decision(installed=installed_driver(facts))
        # A card that is handed to a virtual machine is driven there: it has no say in the driver of this host.
        self.out.gpus = [catalog.gpu_by_id(gpu.device) for gpu in facts.gpus if not is_passthrough(gpu.driver)]
        self.ubuntu = facts.host.os.version_id
        self.datacenter = any(gpu.segment == "datacenter" for gpu in self.out.gpus)
        try:
            self.release: str | None = catalog.ubuntu(self.ubuntu).version
        except UsageError:
            self.release = None
        self.packages = DriverPackages(config, facts, self.out.installed)
        self.messages = DriverMessages(self)

    def run(self) -> Decision:
        self.decide()
        Suggestions(self).add()
        return self.out

    def decide(self) -> Decision:
        if self.facts.gpus and not self.out.gpus:
            self.out.reason("driver", "none", "every GPU is passed through to virtual machines")
            return self.out
        if not self.out.gpus and self.config.manage:
            self.out.warn(
                "gpu.none",
                "no NVIDIA GPU on the PCI bus",
                ["nothing to install a driver for"],
                f"{where_to_look(self.facts)}; a machine that only builds for others says so with nvidia_driver_manage: false",
            )
            return self.out
        if not self.config.manage:
            self.out.reason("driver", "as it is", "nvidia_driver_manage is false")
            return self.out
        limits = DriverLimits(self)
        limits.refuse_foreign_driver()
        limits.refuse_other_systems()
        allowed = limits.allowed_branches()
        if self.out.blockers:
            return self.out
        if self._keeps_installed(allowed):
            return self.out
        for branches in self._rounds(allowed):
            for channel in self._channels():
                if channel not in self.candidates:
                    self.out.ask = channel
                    return self.out
                if self._choose_from(channel, branches):
                    return self.out
        self._say_why_nothing_fits()
        return self.out

    def known_bad(self, version: str, channel: str | None, flavour: str, severity: str = "avoid") -> list[KnownBad]:
        """The catalog's entries against a version on this Ubuntu, channel, flavour and next kernel."""
        if self.release is None:
            return []
        entries = self.catalog.known_bad(
            "driver",
            version,
            ubuntu=self.release,
            channel=cast(Any, channel),
            kernel=self.facts.kernels.next,
            care=severity == "care",
        )
        return [bad for bad in entries if bad.severity == severity and (bad.modules is None or flavour in bad.modules)]

    # --- keeping what is there -------------------------------------------------------------------------------

    def _keeps_installed(self, allowed: set[int]) -> bool:
        """True when the installed driver is what is wanted: versions stay, the repository is not even asked."""
        have, config = self.out.installed, self.config
        if config.update or have.version is None or have.series is None or have.flavour is None:
            return False
        number = int(driver_names.branch(have.version))
        because = "it is installed"
        if config.branch == "recommended":
            branch = self.catalog.find_branch(number)
            if number not in allowed or branch is None or branch.is_ended(self.today):
                return False
            if config.min_cuda and cuda_key(self.catalog.max_cuda(number)) < cuda_key(config.min_cuda):
                return False
            if self._degree(have.version, allowed) == "none":
                return False
            because = "it is installed, supported, and drives every GPU; nvidia_driver_update: true would update it"
        elif not self._is_requested_series(have.series, have.channel):
            return False
        if config.version and config.version != have.version:
            return False
        if config.modules not in ("auto", have.flavour) or have.flavour not in self.catalog.flavours(
            self.out.gpus, number
        ):
            return False
        # NVIDIA's names from 590 on know one metapackage, whatever the variant.
        variants = (
            ("auto", have.variant) if driver_names.has_variants(have.channel or "", have.series) else (config.variant,)
        )
        if config.channel not in ("auto", have.channel) or config.variant not in variants:
            return False
        if have.build is None or config.build not in ("auto", have.build):
            return False
        if self.known_bad(have.version, have.channel, have.flavour) and not config.version:
            return False
        if not self._is_whole(have):
            return False
        assert have.channel is not None and have.variant is not None  # noqa: S101  (a whole driver has both)
        self.out.target = Target(
            channel=have.channel,
            series=have.series,
            version=have.version,
            flavour=have.flavour,
            build=have.build,
            variant=have.variant,
            fabric=self.wants_fabric(),
            installed=True,
        )
        self.out.reason("driver", f"{have.version} {have.flavour} ({have.series})", because)
        return True

    def _is_requested_series(self, series: str, channel: str | None) -> bool:
        requested = str(self.config.branch)
        # "580" is content with 580-server where fabric manager made that choice: see _series_of().
        return series == requested or (series == requested + "-server" and self.wants_fabric() and channel != "cuda")

    def _is_whole(self, have: InstalledDriver) -> bool:
        """Nothing half-installed, every top package there, modules for the kernel that boots next, fabric manager fits."""
        assert have.channel and have.series and have.flavour and have.build and have.variant  # noqa: S101
        if any(self.facts.packages[name].broken for name in have.packages):
            return False
        top = driver_names.top_packages(have.channel, have.series, have.flavour, have.build, have.variant)
        if not set(top) <= set(have.packages):
            return False
        if all(driver_names.parse(name).base != "libnvidia-compute" for name in have.packages):
            # what depends on libcuda stays where somebody removed it by force
            return False
        if next_boot_problems(self.facts, have.version):
            return False
        if have.build == "dkms" and (
            any(not kernel.headers for kernel in self.packages.kernels_that_matter())
            or any(not self.packages.has(f"linux-headers-{flavour}") for flavour in kernel_flavours(self.facts))
        ):
            return False
        fabric = {n: v for n, v in have.packages.items() if driver_names.parse(n).base == "nvidia-fabricmanager"}
        return not self.wants_fabric() or (
            bool(fabric) and all(driver_names.upstream(version) == have.version for version in fabric.values())
        )

    # --- choosing ------------------------------------------------------------------------------------------

    def _channels(self) -> list[str]:
        if self.config.channel != "auto":
            return [self.config.channel]
        first = [self.out.installed.channel] if self.out.installed.channel else []
        rest = [channel for channel in ("ubuntu", "cuda") if channel not in first]
        return [*first, *rest]

    def _rounds(self, allowed: set[int]) -> list[list[Branch]]:
        """The requested branches, newest first, in the rounds in which every channel is gone through.

        One round, but where toolkits are wanted and the branch is left to us: first what carries the newest of them in
        full (and what is installed, where that runs them all), then what runs them by minor-version compatibility, then
        the rest, which is for resolve_cuda to refuse.
        """
        requested = self._requested_branches(allowed)
        if self.config.branch != "recommended" or not self.runnable(allowed):
            return [requested]
        degrees = {branch.number: self._degree(branch.number, allowed) for branch in requested}
        stays = None if self.config.update else self.out.installed.branch
        for branch in requested:
            if str(branch.number) == stays and degrees[branch.number] == "minor":
                degrees[branch.number] = "full"
        rounds = [[b for b in requested if degrees[b.number] == degree] for degree in ("full", "minor", "none")]
        return [branches for branches in rounds if branches]

    def runnable(self, allowed: set[int]) -> list[str]:
        """Those of the toolkits that some driver for these GPUs runs; the others are for resolve_cuda to refuse."""
        known = {toolkit.version for toolkit in self.catalog.cuda_minors}
        numbers = [branch.number for branch in self.fitting(allowed, self.config)]
        minors = [".".join(text.split(".")[:2]) for text in self.config.toolkits]
        return [m for m in minors if m in known and any(runs(self.catalog, m, n) != "none" for n in numbers)]

    def _degree(self, driver: str | int, allowed: set[int]) -> Runs:
        """How a driver runs the toolkits all together."""
        degrees = {runs(self.catalog, minor, driver) for minor in self.runnable(allowed)}
        return "none" if "none" in degrees else "minor" if "minor" in degrees else "full"

    def _choose_from(self, channel: str, branches: list[Branch]) -> bool:
        available = self.candidates[channel]
        rejected: dict[str, Issue] = {}
        for branch in branches:
            for series in self._series_of(branch, channel):
                issue = self._choose_series(channel, available, branch, series)
                if issue is None:
                    self.messages.explain_channel(channel, rejected)
                    return True
                rejected[series] = issue
        self.refusals += list(rejected.values()) or [
            Issue(
                code="driver.not_offered",
                message=f"{CHANNELS[channel]} offers no fitting branch",
                because=available.errors[:4]
                or [
                    "it has no such series"
                    if self.config.branch != "recommended"
                    else "no long-term or production branch for these GPUs there"
                ],
                hint="",
            )
        ]
        return False

    def _requested_branches(self, allowed: set[int]) -> list[Branch]:
        if self.config.branch != "recommended":
            return [self.catalog.branch(self.config.branch)]
        fitting = self.fitting(allowed, self.config)
        living = [branch for branch in fitting if not branch.is_ended(self.today)]
        living.sort(key=lambda branch: branch.preference(self.config.prefer), reverse=True)
        installed = int(self.out.installed.branch or 0)
        # Nobody is moved back for a longer support.
        living.sort(key=lambda branch: branch.number < installed)
        if not self.config.update:
            # Something else has to change (the flavour, a missing module): the branch stays where it can.
            living.sort(key=lambda branch: branch.number != installed)
        # Old cards have ended branches only (Kepler: 470): better that one than none, and said so.
        return living or fitting

    def fitting(self, allowed: set[int], config: DriverConfig) -> list[Branch]:
        """Long-term and production branches for the GPUs, the CUDA and the modules that are asked for, newest first."""
        return [
            branch
            for branch in reversed(self.catalog.branches)
            if branch.number in allowed
            and branch.is_long_term_or_production
            and (not config.min_cuda or cuda_key(self.catalog.max_cuda(branch.number)) >= cuda_key(config.min_cuda))
            and (config.modules == "auto" or config.modules in self.catalog.flavours(self.out.gpus, branch.number))
        ]

    def _series_of(self, branch: Branch, channel: str) -> list[str]:
        plain, server = str(branch.number), f"{branch.number}-server"
        if channel != "ubuntu":
            return [] if str(self.config.branch).endswith("-server") else [plain]
        if self.config.branch != "recommended":
            if str(self.config.branch) == plain and self.wants_fabric():
                return [plain, server]
            return [str(self.config.branch)]
        return [server, plain] if self.datacenter else [plain, server]

    def _choose_series(self, channel: str, available: Candidates, branch: Branch, series: str) -> Issue | None:
        """Set the target to that series, or return why it cannot be."""
        where = CHANNELS[channel]
        flavours = self.catalog.flavours(self.out.gpus, branch.number)
        flavour = flavours[0] if self.config.modules == "auto" else self.config.modules
        module = driver_names.module_package(channel, series, flavour)
        candidates = [c for c in available.versions(module) if driver_names.branch(c.version) == str(branch.number)]
        if not candidates:
            return self.messages.not_available(channel, available, series, module)
        leads_to = next((c.other_series for c in candidates[:1] if c.other_series), None)
        if leads_to:
            return self.messages.transitional(channel, available, series, module, leads_to)
        good = [c for c in candidates if not self.known_bad(c.upstream, channel, flavour)]
        if self.config.version:
            asked = [c for c in candidates if c.upstream == self.config.version]
            if not asked:
                return self.messages.version_not_available(where, series, module, candidates, good)
            good = asked
        if not good:
            bad = self.known_bad(candidates[0].upstream, channel, flavour)[0]
            return Issue(
                code="driver.known_bad",
                message=f"every version of {series} in {where} is known to be bad",
                because=[f"{candidates[0].upstream}: {bad.symptom}", f"known workaround: {bad.fix}"],
                hint="name the version in nvidia_driver_version to take it anyway",
            )
        choices = [Choice(version) for version in dict.fromkeys(c.upstream for c in good)]
        if self.wants_fabric():
            for choice in choices:
                choice.fabric = self.packages.fabric_packages(channel, available, series, choice.version)
            choices = [choice for choice in choices if choice.fabric]
            if not choices:
                return self.messages.no_fabric_manager(channel, available, branch, series, good[0].upstream)
            first = self.config.channel == "auto" and channel == "ubuntu" and self.out.installed.channel != channel
            if first and self.facts.nvlink5_switch and not available.versions("nvlsm"):
                return self.messages.no_nvlsm(channel)
        refused: list[Issue] = []
        for choice in choices:
            issue = self.packages.build(choice, channel, available, series, flavour)
            if issue:
                refused.append(issue)
        choices = [choice for choice in choices if choice.build]
        if not choices:
            return refused[0]
        chosen = self._prefer(choices)
        self._set_target(channel, available, series, flavour, chosen)
        if chosen.version != good[0].upstream and not self.config.version:
            self.out.reason("version", chosen.version, self.messages.why_not_newest(chosen, good[0].upstream, where))
        return None

    def _prefer(self, choices: list[Choice]) -> Choice:
        """Newest first, but signed modules before a newer driver without them, and what is installed before all."""
        have = self.out.installed
        if have.version and have.branch == driver_names.branch(choices[0].version):
            same = [c for c in choices if c.version == have.version and c.build == (have.build or c.build)]
            if same and not self.config.update:
                return same[0]
            later = [c for c in choices if deb_version.compare(c.version, have.version) >= 0]
            choices = later or choices
        return next((choice for choice in choices if choice.build == "signed"), choices[0])

    def _set_target(self, channel: str, available: Candidates, series: str, flavour: str, choice: Choice) -> None:
        variant, version = self.packages.variant(), choice.version
        packages = self.packages.of(channel, available, series, flavour, choice)
        pinning = None
        pinning_name = driver_names.pinning_package(channel, series)
        if pinning_name and available.versions(pinning_name):
            pinning = (pinning_name, available.versions(pinning_name)[0].version)
        if self.wants_fabric() and self.facts.nvlink5_switch:
            if available.versions("nvlsm"):
                packages["nvlsm"] = available.versions("nvlsm")[0].version
            else:
                self.out.warnings.append(self.messages.no_nvlsm(channel))
        self.out.target = Target(
            channel=channel,
            series=series,
            version=version,
            flavour=flavour,
            build=choice.build,
            variant=variant,
            fabric=bool(choice.fabric),
            packages=packages,
            pinning=pinning,
        )
        self.messages.explain(channel, series, version, flavour, choice.build, variant)

    def wants_fabric(self) -> bool:
        return wants_fabric(self.config, self.facts)

    def _say_why_nothing_fits(self) -> None:
        # Lead with the most telling refusal: "is not there" says less than "is only a transitional package".
        once = {(issue.code, issue.message): issue for issue in self.refusals}
        self.out.blockers += sorted(once.values(), key=lambda issue: issue.code == "driver.not_offered")
