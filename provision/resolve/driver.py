"""Which driver a host should have: branch, version, flavour, build, channel, exact packages, each with its reason.

The rules are design section 4. Pure: wish + facts + catalog + what apt offers in, a decision out. Where apt has to be
asked first the decision says so (``ask``), and the caller comes back with the answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, cast

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils import checks, debversion, names
from provision.catalog import Branch, Catalog, Gpu, KnownBad
from provision.catalog.toolkits import Runs, runs
from provision.errors import Issue, UsageError
from provision.facts import Facts
from provision.plan import Reason
from provision.resolve.decision import (
    CHANNELS,
    Decision,
    DriverWish,
    Target,
    and_,
    cuda_key,
    distinct,
    kernel_flavours,
    wants_fabric,
)  # fmt: skip
from provision.resolve.installed import InstalledDriver, installed_driver
from provision.resolve.offer import Candidate, Offer, closure, relations
from provision.resolve.wayout import WaysOut

_CARRIERS = ("nvidia-driver", "nvidia-headless", "nvidia-headless-no-dkms", "nvidia-kernel-source")
OUT_OF_APT = "nvidia_driver_manage: false accepts the driver as it is; to let apt own it, remove it first"


@dataclass
class _Choice:
    """One version that could be taken: fabric manager for it, how its modules come, packages for them."""

    version: str
    fabric: dict[str, str] = field(default_factory=dict)
    build: str = ""
    modules: dict[str, str] = field(default_factory=dict)


def resolve_driver(
    wish: DriverWish, facts: Facts, catalog: Catalog, offers: dict[str, Offer], today: date | None = None
) -> Decision:
    """Decide the driver of one host.

    offers: what apt offers there, by channel, as far as it has been asked. Returns a Decision with a target, with
    blockers, or with ``ask`` set to the channel whose offer is needed next.
    """
    return Resolver(wish, facts, catalog, offers, today or date.today()).run()


class Resolver:
    """Decides for one host: what rules it out, what is kept, what is chosen, and why."""

    def __init__(
        self, wish: DriverWish, facts: Facts, catalog: Catalog, offers: dict[str, Offer], today: date
    ) -> None:
        self.wish, self.facts, self.catalog, self.offers, self.today = wish, facts, catalog, offers, today
        self.refusals: list[
            Issue
        ] = []  # why channels and branches were passed over; they count when nothing fits
        self.out = Decision(installed=installed_driver(facts))
        # A card that is handed to a virtual machine is driven there: it has no say in the driver of this host.
        self.out.gpus = [
            catalog.gpu_by_id(gpu.device) for gpu in facts.gpus if not checks.is_set_aside(gpu.driver)
        ]
        self.ubuntu = facts.host.os.version_id
        self.datacenter = any(gpu.segment == "datacenter" for gpu in self.out.gpus)
        try:
            self.release: str | None = catalog.ubuntu(self.ubuntu).version
        except UsageError:
            self.release = None

    def run(self) -> Decision:
        self.decide()
        WaysOut(self).name()
        return self.out

    def decide(self) -> Decision:
        if self.facts.gpus and not self.out.gpus:
            self.out.reason("driver", "none", "every GPU is set aside for virtual machines")
            return self.out
        if not self.out.gpus:
            self.out.warn(
                "gpu.none", "no NVIDIA GPU on the PCI bus", ["nothing to install a driver for"],
                "look at power, seating and the BIOS; lspci -d 10de: shows what the bus sees",
            )  # fmt: skip
            return self.out
        if not self.wish.manage:
            self.out.reason("driver", "as it is", "nvidia_driver_manage is false")
            return self.out
        self._refuse_foreign_driver()
        self._refuse_other_systems()
        allowed = self._allowed_branches()
        if self.out.blockers:
            return self.out
        if self._keeps_installed(allowed):
            return self.out
        for branches in self._rounds(allowed):
            for channel in self._channels():
                if channel not in self.offers:
                    self.out.ask = channel
                    return self.out
                if self._choose_from(channel, branches):
                    return self.out
        self._say_why_nothing_fits()
        return self.out

    # --- what rules a host out -------------------------------------------------------------------------------

    def _refuse_foreign_driver(self) -> None:
        runfile, packages = self.facts.runfile, self.out.installed.packages
        outside = list(runfile.traces)
        if runfile.uninstaller and runfile.uninstaller not in outside:
            outside.insert(0, runfile.uninstaller)
        if not packages and self.facts.module.loaded:
            outside.append(
                f"loaded module {self.facts.module.loaded.version}, and no driver package is installed"
            )
        if not outside:
            return
        remove = (
            f"its own uninstaller does that: {runfile.uninstaller}" if runfile.uninstaller
            else "whoever put it there knows how"
        )  # fmt: skip
        mixed = " beside apt's packages" if packages else ""
        self.out.block(
            "driver.outside_apt", f"a driver that apt does not own is on this host{mixed}", outside[:8],
            f"{OUT_OF_APT} ({remove}; a module that is only still loaded goes with a reboot)",
        )  # fmt: skip

    def _refuse_other_systems(self) -> None:
        host = self.facts.host
        if host.os.id != "ubuntu":
            self.out.block(
                "host.not_ubuntu", f"{host.os.pretty or host.os.id} is not Ubuntu", ["this tool provisions Ubuntu hosts"],
                "take the host out of the inventory group, or set nvidia_driver_manage: false",
            )  # fmt: skip
        elif host.container and not self.facts.kernels.installed:
            # A container shares the kernel of its host: a driver installed inside would be loaded by nobody.
            self.out.block(
                "host.container", f"this is a container ({host.container})",
                ["the kernel module belongs on the machine that runs it"],
                "nvidia_driver_manage: false accepts the driver of the machine; put the machine into the inventory",
            )  # fmt: skip

    def _allowed_branches(self) -> set[int]:
        """Branches that drive every GPU here; blockers where there is none or the wished one is not among them."""
        gpus, catalog = self.out.gpus, self.catalog
        for gpu in distinct(gpus):
            if gpu.certainty in ("inferred", "unknown"):
                self.out.warn(
                    "catalog.uncertain", f"PCI id {', '.join(gpu.ids)} is not in the catalog by itself",
                    [f"taken for {gpu.architecture or 'an unknown architecture'} by its range ({gpu.certainty})"],
                )  # fmt: skip
        allowed = catalog.branches_for(gpus)
        if not allowed:
            self._say_which_cards_disagree()
            return allowed
        if self.wish.min_cuda and not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}", self.wish.min_cuda):
            self.out.block(
                "driver.min_cuda_unreadable", f"'{self.wish.min_cuda}' is not a CUDA version",
                ["a CUDA version is written 13.0"], "",
            )  # fmt: skip
            return allowed
        if self.wish.branch.endswith("-server") and self.wish.channel in ("cuda", "ppa"):
            self.out.block(
                "driver.series_of_archive", f"{CHANNELS[self.wish.channel]} has no -server series",
                ["the series for data centers is the Ubuntu archive's own"],
                "",
            )  # fmt: skip
            return allowed
        if self.wish.branch == "recommended" and not self.wish.version:
            self._check_wishes(allowed)
        if self.wish.branch != "recommended":
            self._check_branch_wish(allowed)
        elif self.wish.version:
            self.out.block(
                "driver.version_without_branch", f"version {self.wish.version} is asked for without its branch",
                ["nvidia_driver_branch is 'recommended'"], "",
            )  # fmt: skip
        return allowed

    def _check_wishes(self, allowed: set[int]) -> None:
        """No branch is named: is there any for the modules and the CUDA that are?"""
        wish, cards = self.wish, and_([gpu.name for gpu in distinct(self.out.gpus)])
        if self.fitting(allowed, wish):
            return
        newest = max(allowed)
        if not self.fitting(allowed, replace(wish, min_cuda="")):
            self._refuse_modules(newest, self.catalog.flavours(self.out.gpus, newest))
            return
        able = self.fitting(allowed, replace(wish, min_cuda=""))
        most = max((self.catalog.max_cuda(branch.number) for branch in able), key=cuda_key)
        with_modules = f" with {wish.modules} modules" if wish.modules != "auto" else ""
        self.out.block(
            "driver.cuda_too_new", f"no branch that drives {cards}{with_modules} carries CUDA {wish.min_cuda}",
            [f"they carry CUDA up to {most}"], "",
        )  # fmt: skip

    def _check_branch_wish(self, allowed: set[int]) -> None:
        wish = self.wish
        try:
            branch = self.catalog.branch(wish.branch)
        except UsageError as error:
            self.out.blockers.append(error.issue)
            return
        if not re.fullmatch(r"[0-9]{3}(-server)?", str(wish.branch)):
            self.out.block(
                "driver.branch_unknown", f"'{wish.branch}' is not a branch", ["a branch is written 580 or 580-server"],
                "an exact version goes into nvidia_driver_version",
            )  # fmt: skip
            return
        if wish.version and names.branch(wish.version) != str(branch.number):
            self.out.block(
                "driver.version_of_other_branch", f"version {wish.version} is not of branch {branch.number}",
                ["nvidia_driver_version and nvidia_driver_branch contradict each other"],
                "",
            )  # fmt: skip
        if branch.number not in allowed:
            self._refuse_branch(branch)
            return
        if wish.min_cuda and cuda_key(self.catalog.max_cuda(branch.number)) < cuda_key(wish.min_cuda):
            self.out.block(
                "driver.cuda_too_new", f"branch {branch.number} does not carry CUDA {wish.min_cuda}",
                [f"it carries CUDA up to {self.catalog.max_cuda(branch.number)}"],
                "",
            )  # fmt: skip
            return
        flavours = self.catalog.flavours(self.out.gpus, branch.number)
        if wish.modules != "auto" and wish.modules not in flavours:
            self._refuse_modules(branch.number, flavours)
        if branch.is_ended(self.today):
            self.out.warn(
                "driver.branch_ended", f"branch {branch.number} gets no more fixes", [f"end of life: {branch.eol}"],
                "nvidia_driver_branch: recommended takes a living one where there is one",
            )  # fmt: skip

    def _refuse_branch(self, branch: Branch) -> None:
        because = []
        for gpu in distinct(self.out.gpus):
            if gpu.last_branch is not None and branch.number > gpu.last_branch:
                because.append(
                    f"{gpu.name} ({gpu.architecture}): the last branch that drives it is {gpu.last_branch}"
                )
            elif gpu.first_branch is not None and branch.number < gpu.first_branch:
                because.append(
                    f"{gpu.name} ({gpu.architecture}): the first branch that drives it is {gpu.first_branch}"
                )
        self.out.block(
            "driver.gpu_not_supported",
            f"branch {branch.number} does not drive {and_([gpu.name for gpu in distinct(self.out.gpus)])}",
            because or ["no flavour of that branch drives all of these GPUs"],
            "",
        )  # fmt: skip

    def _refuse_modules(self, number: int, flavours: Sequence[str]) -> None:
        because = [
            f"{gpu.name} ({gpu.architecture}): {and_(list(self.catalog.flavours([gpu], number))) or 'none'} only"
            for gpu in distinct(self.out.gpus)
            if self.wish.modules not in self.catalog.flavours([gpu], number)
        ]
        self.out.block(
            "driver.modules_unsupported",
            f"{self.wish.modules} kernel modules of branch {number} do not drive every GPU of this host", because,
            "",
        )  # fmt: skip

    def _say_which_cards_disagree(self) -> None:
        cards, because = distinct(self.out.gpus), []
        alone = [gpu for gpu in cards if not self.catalog.branches_for([gpu])]
        if alone:
            self.out.block(
                "driver.gpu_unknown", f"no known branch drives {and_([gpu.name for gpu in alone])}",
                [f"10de:{', 10de:'.join(gpu.ids)}: {gpu.note or 'not in the catalog'}" for gpu in alone],
                "nvidia_driver_manage: false leaves the driver of this host alone; or take the card out",
            )  # fmt: skip
            return
        by_range: set[int] | None = None
        for gpu in cards:
            own = {
                branch.number for branch in self.catalog.branches
                if (gpu.first_branch or 0) <= branch.number <= (gpu.last_branch or 10**6)
            }  # fmt: skip
            by_range = own if by_range is None else by_range & own
            newest = max(self.catalog.branches_for([gpu]), default=0)
            flavour = and_(list(self.catalog.flavours([gpu], newest))) or "no"
            because.append(f"{gpu.name} ({gpu.architecture}): {_span(gpu)}, {flavour} modules")
        hint = "one driver is loaded for a whole host: move one of the cards to another host"
        if by_range:
            self.out.block(
                "driver.no_common_flavour",
                f"no flavour of the kernel modules drives {and_([gpu.name for gpu in cards])} together", because, hint,
            )  # fmt: skip
        else:
            self.out.block(
                "driver.no_common_branch",
                f"no branch drives {and_([gpu.name for gpu in cards])} together",
                because,
                hint,
            )

    def _known_bad(
        self, version: str, channel: str | None, flavour: str, severity: str = "avoid"
    ) -> list[KnownBad]:
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
        return [
            bad
            for bad in entries
            if bad.severity == severity and (bad.modules is None or flavour in bad.modules)
        ]

    # --- keeping what is there -------------------------------------------------------------------------------

    def _keeps_installed(self, allowed: set[int]) -> bool:
        """True when the installed driver is what is wanted: versions stay, the repository is not even asked."""
        have, wish = self.out.installed, self.wish
        if wish.update or have.version is None or have.series is None or have.flavour is None:
            return False
        number = int(names.branch(have.version))
        because = "it is installed"
        if wish.branch == "recommended":
            branch = self.catalog.find_branch(number)
            if number not in allowed or branch is None or branch.is_ended(self.today):
                return False
            if wish.min_cuda and cuda_key(self.catalog.max_cuda(number)) < cuda_key(wish.min_cuda):
                return False
            if self._degree(have.version, allowed) == "none":
                return False
            because = "it is installed, supported, and drives every GPU; nvidia_driver_update: true would move it on"
        elif not self._is_wished_series(have.series, have.channel):
            return False
        if wish.version and wish.version != have.version:
            return False
        if wish.modules not in ("auto", have.flavour) or have.flavour not in self.catalog.flavours(
            self.out.gpus, number
        ):
            return False
        # NVIDIA's names from 590 on know one metapackage, whatever the variant.
        variants = (
            ("auto", have.variant) if names.has_variants(have.channel or "", have.series) else (wish.variant,)
        )
        if wish.channel not in ("auto", have.channel) or wish.variant not in variants:
            return False
        if have.build is None or wish.build not in ("auto", have.build):
            return False
        if self._known_bad(have.version, have.channel, have.flavour) and not wish.version:
            return False
        if not self._is_whole(have):
            return False
        assert have.channel is not None and have.variant is not None  # noqa: S101  (a whole driver has both)
        self.out.target = Target(
            channel=have.channel, series=have.series, version=have.version, flavour=have.flavour, build=have.build,
            variant=have.variant, fabric=self.wants_fabric(), installed=True,
        )  # fmt: skip
        self.out.reason("driver", f"{have.version} {have.flavour} ({have.series})", because)
        return True

    def _is_wished_series(self, series: str, channel: str | None) -> bool:
        wished = str(self.wish.branch)
        # "580" is content with 580-server where fabric manager made that choice: see _series_of().
        return series == wished or (
            series == wished + "-server" and self.wants_fabric() and channel != "cuda"
        )

    def _is_whole(self, have: InstalledDriver) -> bool:
        """Nothing half-installed, every top package there, modules for the kernel that boots next, fabric manager fits."""
        assert have.channel and have.series and have.flavour and have.build and have.variant  # noqa: S101
        if any(self.facts.packages[name].broken for name in have.packages):
            return False
        top = names.top_packages(have.channel, have.series, have.flavour, have.build, have.variant)
        if not set(top) <= set(have.packages):
            return False
        if checks.next_boot_problems(self.facts.model_dump(), have.version):
            return False
        if have.build == "dkms" and (
            any(not kernel.headers for kernel in self._kernels_that_matter())
            or any(not self._has(f"linux-headers-{flavour}") for flavour in kernel_flavours(self.facts))
        ):
            return False
        fabric = {n: v for n, v in have.packages.items() if names.parse(n).base == "nvidia-fabricmanager"}
        return not self.wants_fabric() or (
            bool(fabric) and all(names.upstream(version) == have.version for version in fabric.values())
        )

    def _has(self, name: str) -> bool:
        package = self.facts.packages.get(name)
        return package is not None and package.installed

    # --- choosing ------------------------------------------------------------------------------------------

    def _channels(self) -> list[str]:
        if self.wish.channel != "auto":
            return [self.wish.channel]
        first = [self.out.installed.channel] if self.out.installed.channel else []
        rest = [channel for channel in ("ubuntu", "cuda") if channel not in first]
        return [*first, *rest]

    def _rounds(self, allowed: set[int]) -> list[list[Branch]]:
        """The wished branches, newest first, in the rounds in which every channel is gone through.

        One round, but where toolkits are wanted and the branch is left to us: first what carries the newest of them in
        full (and what is installed, where that runs them all), then what runs them by minor-version compatibility, then
        the rest, which is for resolve_cuda to refuse.
        """
        wished = self._wished_branches(allowed)
        if self.wish.branch != "recommended" or not self._runnable(allowed):
            return [wished]
        degrees = {branch.number: self._degree(branch.number, allowed) for branch in wished}
        stays = None if self.wish.update else self.out.installed.branch
        for branch in wished:
            if str(branch.number) == stays and degrees[branch.number] == "minor":
                degrees[branch.number] = "full"
        rounds = [[b for b in wished if degrees[b.number] == degree] for degree in ("full", "minor", "none")]
        return [branches for branches in rounds if branches]

    def _runnable(self, allowed: set[int]) -> list[str]:
        """Those of the toolkits that some driver for these GPUs runs; the others are for resolve_cuda to refuse."""
        known = {toolkit.version for toolkit in self.catalog.cuda_minors}
        numbers = [branch.number for branch in self.fitting(allowed, self.wish)]
        minors = [".".join(text.split(".")[:2]) for text in self.wish.toolkits]
        return [m for m in minors if m in known and any(runs(self.catalog, m, n) != "none" for n in numbers)]

    def _degree(self, driver: str | int, allowed: set[int]) -> Runs:
        """How a driver runs the toolkits all together."""
        degrees = {runs(self.catalog, minor, driver) for minor in self._runnable(allowed)}
        return "none" if "none" in degrees else "minor" if "minor" in degrees else "full"

    def _choose_from(self, channel: str, branches: list[Branch]) -> bool:
        offer = self.offers[channel]
        rejected: dict[str, Issue] = {}
        for branch in branches:
            for series in self._series_of(branch, channel):
                issue = self._choose_series(channel, offer, branch, series)
                if issue is None:
                    self._explain_channel(channel, rejected)
                    return True
                rejected[series] = issue
        self.refusals += list(rejected.values()) or [
            Issue(
                code="driver.not_offered", message=f"{CHANNELS[channel]} offers no fitting branch",
                because=offer.errors[:4] or ["it has no such series" if self.wish.branch != "recommended"
                                             else "no long-term or production branch for these GPUs there"],
                hint="",
            )
        ]  # fmt: skip
        return False

    def _wished_branches(self, allowed: set[int]) -> list[Branch]:
        if self.wish.branch != "recommended":
            return [self.catalog.branch(self.wish.branch)]
        fitting = self.fitting(allowed, self.wish)
        living = [branch for branch in fitting if not branch.is_ended(self.today)]
        if not self.wish.update:
            # Something else has to change (the flavour, a missing module): the branch stays where it can.
            living.sort(key=lambda branch: str(branch.number) != self.out.installed.branch)
        # Old cards have ended branches only (Kepler: 470): better that one than none, and said so.
        return living or fitting

    def fitting(self, allowed: set[int], wish: DriverWish) -> list[Branch]:
        """Long-term and production branches for the GPUs, the CUDA and the modules that are asked for, newest first."""
        return [
            branch for branch in reversed(self.catalog.branches)
            if branch.number in allowed and branch.is_long_term_or_production
            and (not wish.min_cuda or cuda_key(self.catalog.max_cuda(branch.number)) >= cuda_key(wish.min_cuda))
            and (wish.modules == "auto" or wish.modules in self.catalog.flavours(self.out.gpus, branch.number))
        ]  # fmt: skip

    def _series_of(self, branch: Branch, channel: str) -> list[str]:
        plain, server = str(branch.number), f"{branch.number}-server"
        if channel != "ubuntu":
            return [] if str(self.wish.branch).endswith("-server") else [plain]
        if self.wish.branch != "recommended":
            if str(self.wish.branch) == plain and self.wants_fabric():
                return [plain, server]
            return [str(self.wish.branch)]
        return [server, plain] if self.datacenter else [plain, server]

    def _choose_series(self, channel: str, offer: Offer, branch: Branch, series: str) -> Issue | None:
        """Set the target to that series, or return why it cannot be."""
        where = CHANNELS[channel]
        flavours = self.catalog.flavours(self.out.gpus, branch.number)
        flavour = flavours[0] if self.wish.modules == "auto" else self.wish.modules
        module = names.module_package(channel, series, flavour)
        candidates = [c for c in offer.versions(module) if names.branch(c.version) == str(branch.number)]
        if not candidates:
            return self._not_offered(channel, offer, series, module)
        leads_to = next((c.other_series for c in candidates[:1] if c.other_series), None)
        if leads_to:
            return self._transitional(channel, offer, series, module, leads_to)
        good = [c for c in candidates if not self._known_bad(c.upstream, channel, flavour)]
        if self.wish.version:
            asked = [c for c in candidates if c.upstream == self.wish.version]
            if not asked:
                return self._version_not_offered(where, series, module, candidates, good)
            good = asked
        if not good:
            bad = self._known_bad(candidates[0].upstream, channel, flavour)[0]
            return Issue(
                code="driver.known_bad", message=f"every version of {series} in {where} is known to be bad",
                because=[f"{candidates[0].upstream}: {bad.symptom}", f"known way out: {bad.fix}"],
                hint="name the version in nvidia_driver_version to take it all the same",
            )  # fmt: skip
        choices = [_Choice(version) for version in dict.fromkeys(c.upstream for c in good)]
        if self.wants_fabric():
            for choice in choices:
                choice.fabric = self._fabric_packages(channel, offer, series, choice.version)
            choices = [choice for choice in choices if choice.fabric]
            if not choices:
                return self._no_fabric_manager(channel, offer, branch, series, good[0].upstream)
        refused: list[Issue] = []
        for choice in choices:
            issue = self._build(choice, channel, offer, series, flavour)
            if issue:
                refused.append(issue)
        choices = [choice for choice in choices if choice.build]
        if not choices:
            return refused[0]
        chosen = self._prefer(choices)
        self._set_target(channel, offer, series, flavour, chosen)
        if chosen.version != good[0].upstream and not self.wish.version:
            self.out.reason("version", chosen.version, self._why_not_newest(chosen, good[0].upstream, where))
        return None

    def _prefer(self, choices: list[_Choice]) -> _Choice:
        """Newest first, but signed modules before a newer driver without them, and what is installed before all."""
        have = self.out.installed
        if have.version and have.branch == names.branch(choices[0].version):
            same = [c for c in choices if c.version == have.version and c.build == (have.build or c.build)]
            if same and not self.wish.update:
                return same[0]
            later = [c for c in choices if debversion.compare(c.version, have.version) >= 0]
            choices = later or choices
        return next((choice for choice in choices if choice.build == "signed"), choices[0])

    def _why_not_newest(self, chosen: _Choice, newest: str, where: str) -> str:
        if chosen.version == self.out.installed.version:
            return f"it is installed; nvidia_driver_update: true would move it on to {newest}"
        if chosen.fabric:
            return f"the newest for which {where} has fabric manager at the same version"
        return f"the newest with signed modules for every kernel that matters here ({newest} has none)"

    def _version_not_offered(
        self, where: str, series: str, module: str, candidates: list[Candidate], good: list[Candidate]
    ) -> Issue:
        have = list(dict.fromkeys(c.upstream for c in [*good, *candidates]))
        return Issue(
            code="driver.version_not_offered", message=f"{where} does not have {series} {self.wish.version}",
            because=[f"{module} is there as {', '.join(have[:6])}"],
            hint="",
        )  # fmt: skip

    def _set_target(self, channel: str, offer: Offer, series: str, flavour: str, choice: _Choice) -> None:
        variant, version = self._variant(), choice.version
        top = names.top_packages(channel, series, flavour, choice.build, variant) + [
            names.module_package(channel, series, flavour)
        ] * (choice.build == "dkms")
        skip = frozenset({"nvidia-dkms"}) if choice.build == "signed" else frozenset()
        packages = closure(top, offer, version, skip) | choice.fabric | choice.modules
        packages |= self._carried_along(channel, offer, series, version, variant, packages)
        pinning = None
        pinning_name = names.pinning_package(channel, series)
        if pinning_name and offer.versions(pinning_name):
            pinning = (pinning_name, offer.versions(pinning_name)[0].version)
        if self.wants_fabric() and self.facts.nvlink5_switch:
            if offer.versions("nvlsm"):
                packages["nvlsm"] = offer.versions("nvlsm")[0].version
            else:
                self.out.warn(
                    "driver.nvlsm_missing", f"{CHANNELS[channel]} does not have nvlsm",
                    ["fabric manager needs it on boards with an NVLink 5 switch"], "nvidia_driver_channel: cuda has it",
                )  # fmt: skip
        self.out.target = Target(
            channel=channel, series=series, version=version, flavour=flavour, build=choice.build, variant=variant,
            fabric=bool(choice.fabric), packages=packages, pinning=pinning,
        )  # fmt: skip
        self._explain(channel, series, version, flavour, choice.build, variant)

    def _carried_along(
        self, channel: str, offer: Offer, series: str, version: str, variant: str, chosen: dict[str, str]
    ) -> dict[str, str]:
        """Libraries and tools that are installed beyond what is asked for (video, GL, 32-bit, …) in the new version.

        Left where they are they would not fit the driver any more; removed they would be missed.
        """
        found = {}
        for name in self.out.installed.packages:
            package = names.parse(name)
            desktop = package.base == "xserver-xorg-video-nvidia" and variant == "headless"
            if not names.is_carried_along(package) or desktop:
                continue
            architecture = "".join(name.partition(":")[1:])
            for new in names.in_series(package.base, channel, series):
                candidate = offer.at(new, version)
                if candidate is not None and new + architecture not in chosen:
                    found[new + architecture] = candidate.version
                    if not architecture:
                        found.update(closure([new], offer, version, frozenset({"nvidia-dkms", *_CARRIERS})))
                if candidate is not None:
                    break
        return {name: version for name, version in found.items() if name not in chosen}

    def _variant(self) -> str:
        if self.wish.variant != "auto":
            return self.wish.variant
        return self.out.installed.variant or ("desktop" if self.facts.desktop else "headless")

    def _build(self, choice: _Choice, channel: str, offer: Offer, series: str, flavour: str) -> Issue | None:
        """Set how the modules of a version come to the host, and the packages for it; or say why they cannot."""
        wish = self.wish.build
        signed = (
            self._signed_packages(offer, series, flavour, choice.version) if channel == "ubuntu" else None
        )
        have = self.out.installed
        stays = wish == "auto" and have.build == "dkms" and have.branch == series.split("-")[0]
        unsigned = self._why_no_dkms(channel, offer, series, choice.version)
        if signed and wish != "dkms" and not (stays and unsigned is None):
            choice.build, choice.modules = "signed", signed
            return None
        if wish == "signed":
            return Issue(
                code="driver.no_signed_modules", message="signed modules are asked for and not offered",
                because=[f"{CHANNELS[channel]} has none of {series} {choice.version} for every kernel that matters here"],
                hint="",
            )  # fmt: skip
        if unsigned is None:
            choice.build, choice.modules = "dkms", self._headers(offer)
        return unsigned

    def _why_no_dkms(self, channel: str, offer: Offer, series: str, version: str) -> Issue | None:
        """Why modules that DKMS builds on this host would not be there, or would not be loaded, after the next boot."""
        secure = self.facts.secure_boot
        if secure.enabled and not secure.mok_enrolled:
            make = "" if secure.mok_key else "update-secureboot-policy --new-key, "
            enroll = (
                f"enroll a key at the console ({make}mokutil --import /var/lib/shim-signed/mok/MOK.der, reboot, "
                "confirm), or switch Secure Boot off"
            )
            return Issue(
                code="driver.secure_boot_unsigned",
                message="Secure Boot is on and these modules would not be signed by an enrolled key",
                because=[
                    f"{series} {version} from {CHANNELS[channel]} is built by DKMS on the host",
                    "no Machine Owner Key of this host is enrolled",
                ],
                hint=enroll,
            )  # fmt: skip
        kernels = self.facts.kernels
        boots = kernels.next or kernels.running
        kernel = next((kernel for kernel in kernels.installed if kernel.release == boots), None)
        if not boots or (kernel and kernel.headers) or offer.versions(f"linux-headers-{boots}"):
            return None
        return Issue(
            code="driver.no_headers", message=f"no modules can be built for kernel {boots}, which boots next",
            because=[f"linux-headers-{boots} is neither installed nor in any repository of this host"],
            hint="have a kernel boot that the repositories still carry, or install the headers of this one",
        )  # fmt: skip

    def _headers(self, offer: Offer) -> dict[str, str]:
        """Headers for DKMS: of the running and the next kernel, and the metapackages that bring those of later ones."""
        headers = {}
        for kernel in self._kernels_that_matter():
            candidates = offer.versions(f"linux-headers-{kernel.release}")
            if candidates and not kernel.headers:
                headers[candidates[0].name] = candidates[0].version
        for flavour_name in kernel_flavours(self.facts):
            candidates = offer.versions(f"linux-headers-{flavour_name}")
            if candidates and not self._has(f"linux-headers-{flavour_name}"):
                headers[candidates[0].name] = candidates[0].version
        return headers

    def _signed_packages(
        self, offer: Offer, series: str, flavour: str, version: str
    ) -> dict[str, str] | None:
        """Signed modules for every kernel that matters, or None where one has none at that driver version."""
        packages: dict[str, str] = {}
        for kernel in self._kernels_that_matter():
            name = names.prebuilt_modules(series, flavour, kernel.release)
            candidate = next((c for c in offer.versions(name) if _fits_driver(c.depends, version)), None)
            if candidate is None:
                return None
            packages[name] = candidate.version
            for group in relations(candidate.depends):
                for relation in group:
                    part = names.parse(relation.name)
                    if part and part.base.startswith("linux-") and relation.op == "=" and relation.version:
                        packages[relation.name] = relation.version
        stands_in = False
        for flavour_name in kernel_flavours(self.facts):
            # The metapackage leads to the archive's newest kernel: only where that kernel is here already, since a new
            # kernel is nothing that a driver plan may bring along.
            name = names.prebuilt_modules(series, flavour, flavour_name)
            here = {
                names.prebuilt_modules(series, flavour, kernel.release)
                for kernel in self.facts.kernels.installed
            }
            candidate = next(
                (
                    c
                    for c in offer.versions(name)
                    if _fits_driver(c.depends, version) and _leads_to(c.depends) <= here
                ),
                None,
            )
            if candidate is not None:
                packages[name] = candidate.version
                stands_in = True
        # The full driver asks for the DKMS package, in whose place only the metapackage of the modules can stand.
        if self._variant() == "desktop" and not stands_in:
            return None
        return packages or None

    def _kernels_that_matter(self) -> list[Any]:
        kernels = self.facts.kernels
        wanted = {kernels.running, kernels.next}
        return [kernel for kernel in kernels.installed if kernel.release in wanted]

    def wants_fabric(self) -> bool:
        return wants_fabric(self.wish, self.facts)

    def _fabric_packages(self, channel: str, offer: Offer, series: str, version: str) -> dict[str, str]:
        """Fabric manager and its query library at exactly that version; empty where there is none for that series."""
        for manager, query in names.fabric_packages(channel, series.split("-")[0]):
            candidate = offer.at(manager, version)
            if candidate is None:
                continue
            # The archive's one is built for one series: it depends on nvidia-kernel-common-580-server-<exact version>.
            other = {
                package.series for group in relations(candidate.depends) for relation in group
                if (package := names.parse(relation.name)) and package.base == "nvidia-kernel-common" and package.series
            }  # fmt: skip
            if other and series not in other:
                continue
            packages = {manager: candidate.version}
            library = offer.at(query, version)
            if library is not None:
                packages[query] = library.version
            return packages
        return {}

    # --- saying why -----------------------------------------------------------------------------------------

    def _explain(
        self, channel: str, series: str, version: str, flavour: str, build: str, variant: str
    ) -> None:
        wish, out, number = self.wish, self.out, int(series.split("-")[0])
        cards = and_([gpu.name for gpu in distinct(out.gpus)])
        branch = self.catalog.branch(number)
        if wish.branch == "recommended":
            kind = {"LTSB": "long-term", "PB": "production"}.get(branch.type, branch.type)
            ended = (
                " (it has ended; no living branch drives these GPUs)" if branch.is_ended(self.today) else ""
            )
            where = f"{CHANNELS[channel]} offers for Ubuntu {self.ubuntu}"
            because = (
                f"it is installed, supported, and drives {cards}"
                if out.installed.branch == str(number) and not wish.update
                else f"the newest {kind} branch that {where} and that drives {cards}{ended}{self._for_toolkits(number)}"
            )
        elif series == f"{wish.branch}-server":
            because = (
                f"asked for {wish.branch}; the archive's fabric manager is built for its data-center series"
            )
        else:
            because = "asked for"
        out.reason("branch", series, because)
        if wish.version or not any(reason.what == "version" for reason in out.reasons):
            out.reason(
                "version",
                version,
                "asked for" if wish.version else f"the newest of {series} in {CHANNELS[channel]}",
            )
        both = len(self.catalog.flavours(out.gpus, number)) > 1
        out.reason(
            "modules", flavour,
            "asked for" if wish.modules != "auto"
            else f"preferred for {cards} from branch 560 on" if both and flavour == "open"
            else f"what branch {number} prefers for {cards}" if both
            else f"{cards}: no other flavour of branch {number} drives all of them",
        )  # fmt: skip
        out.reason(
            "build", build,
            "by Canonical, built for this kernel: no compiler, works under Secure Boot" if build == "signed"
            else "asked for" if wish.build == "dkms"
            else "this channel has no signed modules" if channel != "ubuntu"
            else "no signed modules for every kernel that matters here",
        )  # fmt: skip
        out.reason(
            "variant", variant,
            "asked for" if wish.variant != "auto"
            else "as installed" if out.installed.variant
            else "a desktop is installed" if variant == "desktop" else "no desktop is installed",
        )  # fmt: skip
        for bad in self._known_bad(version, channel, flavour, "care"):
            out.warn(
                "driver.known_trouble",
                f"{version} has a known trouble",
                [bad.symptom],
                f"known way out: {bad.fix}",
            )
        if self.release is None:
            out.warn(
                "catalog.uncertain", f"Ubuntu {self.ubuntu} is not in the catalog",
                ["what is said here rests on what its repository offers alone"],
            )  # fmt: skip
        if branch.is_ended(self.today) and wish.branch == "recommended":
            out.warn(
                "driver.branch_ended", f"branch {number} gets no more fixes", [f"end of life: {branch.eol}"],
                f"no living branch drives {cards}",
            )  # fmt: skip

    def _for_toolkits(self, number: int) -> str:
        minors = self._runnable({number})
        if not minors:
            return ""
        newest = max(minors, key=cuda_key)
        part = "" if runs(self.catalog, newest, number) == "full" else " by minor-version compatibility"
        return f" and that runs CUDA {newest}{part}"

    def _explain_channel(self, channel: str, rejected: dict[str, Issue]) -> None:
        because = (
            "asked for" if self.wish.channel != "auto"
            else "the installed driver came from there" if channel == self.out.installed.channel
            else "the archive has it, tested with its kernels" if channel == "ubuntu"
            else "; ".join(issue.message for issue in self.refusals[:1]) or "the archive does not have it"
        )  # fmt: skip
        self.out.reasons.insert(0, Reason(what="channel", value=CHANNELS[channel], because=because))
        skipped = {s: issue.message for s, issue in rejected.items() if issue.code != "driver.not_offered"}
        if skipped:
            reason = Reason(what="passed over", value=", ".join(skipped), because="; ".join(skipped.values()))
            self.out.reasons.insert(1, reason)

    def _not_offered(self, channel: str, offer: Offer, series: str, module: str) -> Issue:
        others = sorted({
            package.series for name in offer.packages
            if (package := names.parse(name)) and package.base == "nvidia-dkms" and package.series
            and not any(c.other_series for c in offer.versions(name)[:1])
        })  # fmt: skip
        return Issue(
            code="driver.not_offered",
            message=f"{CHANNELS[channel]} does not offer {series} for Ubuntu {self.ubuntu} ({module} is not there)",
            because=[*offer.errors[:3], *([f"it offers {', '.join(others)}"] if others else [])],
            hint="",
        )

    def _transitional(self, channel: str, offer: Offer, series: str, module: str, leads_to: str) -> Issue:
        return Issue(
            code="driver.transitional",
            message=f"{series} in {CHANNELS[channel]} is only a transitional package: it installs {leads_to}",
            because=[
                f"{module} {offer.versions(module)[0].version} depends on the packages of {leads_to} only"
            ],
            hint="",
        )

    def _no_fabric_manager(
        self, channel: str, offer: Offer, branch: Branch, series: str, version: str
    ) -> Issue:
        have = sorted(
            {f"{name} {c.upstream}" for pair in names.fabric_packages(channel, str(branch.number))
             for name in pair[:1] for c in offer.versions(name)}
        )  # fmt: skip
        return Issue(
            code="driver.fabric_manager_missing",
            message=f"{CHANNELS[channel]} has no fabric manager at the version of {series} {version}",
            because=[
                f"{len(self.facts.nvswitches)} NVSwitches are on the bus: without fabric manager CUDA fails with error 802"
                if self.facts.nvswitches
                else "an NVLink 5 switch needs it"
                if self.facts.nvlink5_switch
                else "nvidia_driver_fabric_manager: always asks for it, and no NVSwitch is on the bus",
                f"it offers {', '.join(have)}" if have else "it offers none for that branch",
            ],
            hint="",
        )

    def _say_why_nothing_fits(self) -> None:
        # Lead with the most telling refusal: "is not there" says less than "is only a transitional package".
        once = {(issue.code, issue.message): issue for issue in self.refusals}
        self.out.blockers += sorted(once.values(), key=lambda issue: issue.code == "driver.not_offered")


def _span(gpu: Gpu) -> str:
    """The branches that drive a GPU, in words."""
    if gpu.last_branch is None:
        return f"branches from {gpu.first_branch} on" if gpu.first_branch else "every branch"
    return (
        f"branches {gpu.first_branch} to {gpu.last_branch}"
        if gpu.first_branch
        else f"branches up to {gpu.last_branch}"
    )


def _fits_driver(depends: str, version: str) -> bool:
    """A signed module package names the driver it was built with: nvidia-kernel-common-580 (>= VER)."""
    bounds = [
        relation.version for group in relations(depends) for relation in group
        if relation.name.startswith("nvidia-kernel-common-") and relation.op == ">=" and relation.version
    ]  # fmt: skip
    return all(names.upstream(bound + "-0") == version or bound == version for bound in bounds)


def _leads_to(depends: str) -> set[str]:
    """The per-kernel module packages that a module metapackage depends on."""
    return {
        relation.name for group in relations(depends) for relation in group
        if (package := names.parse(relation.name)) and package.base == "linux-modules-nvidia"
    }  # fmt: skip
