"""What rules a driver out on a host: another owner, another system, GPUs that no branch drives, variables that contradict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.catalog import Branch
from provision.errors import UsageError
from provision.parts.decision import CHANNELS, cuda_key, distinct, join_and
from provision.parts.driver.removed import removed_driver

if TYPE_CHECKING:
    from provision.parts.driver.resolve import Resolver

OUT_OF_APT = "nvidia_driver_manage: false accepts the driver as it is; to let apt own it, remove it first"


class DriverLimits:
    """Refuses in a resolver's decision what cannot be."""

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver
        self.config, self.facts, self.catalog, self.out = (
            resolver.config,
            resolver.facts,
            resolver.catalog,
            resolver.out,
        )

    def refuse_foreign_driver(self) -> None:
        runfile, packages = self.facts.runfile, self.out.installed.packages
        outside = list(runfile.traces)
        if runfile.uninstaller and runfile.uninstaller not in outside:
            outside.insert(0, runfile.uninstaller)
        # What is only loaded still of a driver that apt removed is nobody else's.
        if not packages and self.facts.module.loaded and not removed_driver(self.facts):
            outside.append(f"loaded module {self.facts.module.loaded.version}, and no driver package is installed")
        if not outside:
            return
        remove = (
            f"its own uninstaller does that: {runfile.uninstaller}"
            if runfile.uninstaller
            else "whoever put it there knows how"
        )
        mixed = " beside apt's packages" if packages else ""
        self.out.block(
            "driver.outside_apt",
            f"a driver that apt does not own is on this host{mixed}",
            outside[:8],
            f"{OUT_OF_APT} ({remove}; a module that is only still loaded goes with a reboot)",
        )

    def refuse_other_systems(self) -> None:
        host = self.facts.host
        if host.os.id != "ubuntu":
            self.out.block(
                "host.not_ubuntu",
                f"{host.os.pretty or host.os.id} is not Ubuntu",
                ["this tool provisions Ubuntu hosts"],
                "remove the host from the inventory group, or set nvidia_driver_manage: false",
            )
        elif host.container and not self.facts.kernels.installed:
            # A container shares the kernel of its host: a driver installed inside would be loaded by nobody.
            self.out.block(
                "host.container",
                f"this is a container ({host.container})",
                ["the kernel module belongs on the machine that runs it"],
                "nvidia_driver_manage: false accepts the driver of the machine; put the machine into the inventory",
            )

    def allowed_branches(self) -> set[int]:
        """Branches that drive every GPU here; blockers where there is none or the requested one is not among them."""
        gpus, catalog = self.out.gpus, self.catalog
        for gpu in distinct(gpus):
            if gpu.certainty in ("inferred", "unknown"):
                self.out.warn(
                    "catalog.uncertain",
                    f"PCI id {', '.join(gpu.ids)} has no row of its own in the catalog",
                    [f"taken for {gpu.architecture or 'an unknown architecture'} by its range ({gpu.certainty})"],
                )
        allowed = catalog.branches_for(gpus)
        if not allowed:
            self._say_which_cards_disagree()
            return allowed
        if self.config.min_cuda and not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}", self.config.min_cuda):
            self.out.block(
                "driver.min_cuda_unreadable",
                f"'{self.config.min_cuda}' is not a CUDA version",
                ["a CUDA version is written 13.0"],
                "",
            )
            return allowed
        if self.config.branch.endswith("-server") and self.config.channel in ("cuda", "ppa"):
            self.out.block(
                "driver.series_of_archive",
                f"{CHANNELS[self.config.channel]} has no -server series",
                ["the series for data centers is the Ubuntu archive's own"],
                "",
            )
            return allowed
        if self.config.branch == "recommended" and not self.config.version:
            self._check_config(allowed)
        if self.config.branch != "recommended":
            self._check_branch_config(allowed)
        elif self.config.version:
            self.out.block(
                "driver.version_without_branch",
                f"version {self.config.version} is asked for without its branch",
                ["nvidia_driver_branch is 'recommended'"],
                "",
            )
        return allowed

    def _check_config(self, allowed: set[int]) -> None:
        """No branch is named: is there any for the modules and the CUDA that are?"""
        config, cards = self.config, join_and([gpu.name for gpu in distinct(self.out.gpus)])
        if self.resolver.fitting(allowed, config):
            return
        newest = max(allowed)
        if not self.resolver.fitting(allowed, replace(config, min_cuda="")):
            self._refuse_modules(newest, self.catalog.flavours(self.out.gpus, newest))
            return
        able = self.resolver.fitting(allowed, replace(config, min_cuda=""))
        most = max((self.catalog.max_cuda(branch.number) for branch in able), key=cuda_key)
        with_modules = f" with {config.modules} modules" if config.modules != "auto" else ""
        self.out.block(
            "driver.cuda_too_new",
            f"no branch that drives {cards}{with_modules} carries CUDA {config.min_cuda}",
            [f"they carry CUDA up to {most}"],
            "",
        )

    def _check_branch_config(self, allowed: set[int]) -> None:
        config = self.config
        try:
            branch = self.catalog.branch(config.branch)
        except UsageError as error:
            self.out.blockers.append(error.issue)
            return
        if not re.fullmatch(r"[0-9]{3}(-server)?", str(config.branch)):
            self.out.block(
                "driver.branch_unknown",
                f"'{config.branch}' is not a branch",
                ["a branch is written 580 or 580-server"],
                "an exact version goes into nvidia_driver_version",
            )
            return
        if config.version and driver_names.branch(config.version) != str(branch.number):
            self.out.block(
                "driver.version_of_other_branch",
                f"version {config.version} is not of branch {branch.number}",
                ["nvidia_driver_version and nvidia_driver_branch contradict each other"],
                "",
            )
        if branch.number not in allowed:
            self._refuse_branch(branch)
            return
        if config.min_cuda and cuda_key(self.catalog.max_cuda(branch.number)) < cuda_key(config.min_cuda):
            self.out.block(
                "driver.cuda_too_new",
                f"branch {branch.number} does not carry CUDA {config.min_cuda}",
                [f"it carries CUDA up to {self.catalog.max_cuda(branch.number)}"],
                "",
            )
            return
        flavours = self.catalog.flavours(self.out.gpus, branch.number)
        if config.modules != "auto" and config.modules not in flavours:
            self._refuse_modules(branch.number, flavours)
        if branch.is_ended(self.resolver.today):
            self.out.warn(
                "driver.branch_ended",
                f"branch {branch.number} gets no more fixes",
                [f"end of life: {branch.eol}"],
                "nvidia_driver_branch: recommended takes a living one where there is one",
            )

    def _refuse_branch(self, branch: Branch) -> None:
        because = []
        for gpu in distinct(self.out.gpus):
            why = gpu.why_not(branch.number)
            sure = (
                "" if gpu.is_sure_of(branch.number) else f" ({gpu.first_branch_certainty}: not read in NVIDIA's tables)"
            )
            because += [f"{gpu.name} ({gpu.architecture}): {why}{sure}"] if why else []
        self.out.block(
            "driver.gpu_not_supported",
            f"branch {branch.number} does not drive {join_and([gpu.name for gpu in distinct(self.out.gpus)])}",
            because or ["no flavour of that branch drives all of these GPUs"],
            "",
        )

    def _refuse_modules(self, number: int, flavours: Sequence[str]) -> None:
        because = [
            f"{gpu.name} ({gpu.architecture}): {join_and(list(self.catalog.flavours([gpu], number))) or 'none'} only"
            for gpu in distinct(self.out.gpus)
            if self.config.modules not in self.catalog.flavours([gpu], number)
        ]
        self.out.block(
            "driver.modules_unsupported",
            f"{self.config.modules} kernel modules of branch {number} do not drive every GPU of this host",
            because,
            "",
        )

    def _say_which_cards_disagree(self) -> None:
        cards, because = distinct(self.out.gpus), []
        alone = [gpu for gpu in cards if not self.catalog.branches_for([gpu])]
        if alone:
            self.out.block(
                "driver.gpu_unknown",
                f"no known branch drives {join_and([gpu.name for gpu in alone])}",
                [f"10de:{', 10de:'.join(gpu.ids)}: {gpu.note or 'not in the catalog'}" for gpu in alone],
                "nvidia_driver_manage: false does not change the driver of this host; or remove the card",
            )
            return
        by_range: set[int] | None = None
        for gpu in cards:
            own = {branch.number for branch in self.catalog.branches if gpu.why_not(branch.number) is None}
            by_range = own if by_range is None else by_range & own
            newest = max(self.catalog.branches_for([gpu]), default=0)
            flavour = join_and(list(self.catalog.flavours([gpu], newest))) or "no"
            because.append(f"{gpu.name} ({gpu.architecture}): {gpu.branches}, {flavour} modules")
        hint = "one driver is loaded for a whole host: move one of the cards to another host"
        if by_range:
            self.out.block(
                "driver.no_common_flavour",
                f"no flavour of the kernel modules drives {join_and([gpu.name for gpu in cards])} together",
                because,
                hint,
            )
        else:
            self.out.block(
                "driver.no_common_branch",
                f"no branch drives {join_and([gpu.name for gpu in cards])} together",
                because,
                hint,
            )
