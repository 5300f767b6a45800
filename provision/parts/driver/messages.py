"""Why a driver was chosen, and why a series was not: the messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.catalog import Branch
from provision.catalog.toolkits import runs
from provision.errors import Issue
from provision.parts.candidates import Candidate, Candidates
from provision.parts.decision import CHANNELS, cuda_key, distinct, join_and
from provision.parts.driver.packages import Choice
from provision.parts.plan import Reason

if TYPE_CHECKING:
    from provision.parts.driver.resolve import Resolver


class DriverMessages:
    """Says the reasons of a resolver's choices."""

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver
        self.config, self.facts, self.catalog, self.out = (
            resolver.config,
            resolver.facts,
            resolver.catalog,
            resolver.out,
        )

    def _preferred(self, branch: Branch, kind: str) -> str:
        if self.config.prefer == "newest" or not branch.eol or branch.is_ended(self.resolver.today):
            return f"the newest {kind} branch"
        return f"{kind}, supported until {branch.eol}, the longest"

    def explain(self, channel: str, series: str, version: str, flavour: str, build: str, variant: str) -> None:
        config, out, number = self.config, self.out, int(series.split("-")[0])
        cards = join_and([gpu.name for gpu in distinct(out.gpus)])
        branch = self.catalog.branch(number)
        if config.branch == "recommended":
            kind = {"LTSB": "long-term", "PB": "production"}.get(branch.type, branch.type)
            ended = (
                " (it has ended; no living branch drives these GPUs)" if branch.is_ended(self.resolver.today) else ""
            )
            because = (
                f"it is installed, supported, and drives {cards}"
                if out.installed.branch == str(number) and not config.update
                else f"{self._preferred(branch, kind)} in {CHANNELS[channel]} for these GPUs"
                f"{self._for_toolkits(number)}{ended}"
            )
        elif series == f"{config.branch}-server":
            because = f"asked for {config.branch}; the archive's fabric manager is built for its data-center series"
        else:
            because = "asked for"
        out.reason("branch", series, because)
        if config.version or not any(reason.what == "version" for reason in out.reasons):
            out.reason(
                "version", version, "asked for" if config.version else f"the newest of {series} in {CHANNELS[channel]}"
            )
        both = len(self.catalog.flavours(out.gpus, number)) > 1
        out.reason(
            "modules",
            flavour,
            "asked for"
            if config.modules != "auto"
            else f"preferred for {cards} from branch 560 on"
            if both and flavour == "open"
            else f"what branch {number} prefers for {cards}"
            if both
            else f"{cards}: no other flavour of branch {number} drives all of them",
        )
        out.reason(
            "build",
            build,
            "by Canonical, built for this kernel: no compiler, works under Secure Boot"
            if build == "signed"
            else "asked for"
            if config.build == "dkms"
            else "this channel has no signed modules"
            if channel != "ubuntu"
            else "no signed modules for every kernel that matters here",
        )
        out.reason(
            "variant",
            variant,
            "asked for"
            if config.variant != "auto"
            else "as installed"
            if out.installed.variant
            else "a desktop is installed"
            if variant == "desktop"
            else "no desktop is installed",
        )
        for bad in self.resolver.known_bad(version, channel, flavour, "care"):
            out.warn(
                "driver.known_trouble", f"{version} has a known fault", [bad.symptom], f"known workaround: {bad.fix}"
            )
        if self.resolver.release is None:
            out.warn(
                "catalog.uncertain",
                f"Ubuntu {self.resolver.ubuntu} is not in the catalog",
                ["the plan relies only on what its repository offers"],
            )
        if branch.is_ended(self.resolver.today) and config.branch == "recommended":
            out.warn(
                "driver.branch_ended",
                f"branch {number} gets no more fixes",
                [f"end of life: {branch.eol}"],
                f"no living branch drives {cards}",
            )

    def _for_toolkits(self, number: int) -> str:
        minors = self.resolver.runnable({number})
        if not minors:
            return ""
        newest = max(minors, key=cuda_key)
        part = "" if runs(self.catalog, newest, number) == "full" else " by minor-version compatibility"
        return f" and CUDA {newest}{part}"

    def explain_channel(self, channel: str, rejected: dict[str, Issue]) -> None:
        because = (
            "asked for"
            if self.config.channel != "auto"
            else "the installed driver came from there"
            if channel == self.out.installed.channel
            else "the archive has it, tested with its kernels"
            if channel == "ubuntu"
            else "; ".join(issue.message for issue in self.resolver.refusals[:1]) or "the archive does not have it"
        )
        self.out.reasons.insert(0, Reason(what="channel", value=CHANNELS[channel], because=because))
        skipped = {s: issue.message for s, issue in rejected.items() if issue.code != "driver.not_offered"}
        if skipped:
            reason = Reason(what="passed over", value=", ".join(skipped), because="; ".join(skipped.values()))
            self.out.reasons.insert(1, reason)

    def not_available(self, channel: str, available: Candidates, series: str, module: str) -> Issue:
        others = sorted(
            {
                package.series
                for name in available.packages
                if (package := driver_names.parse(name))
                and package.base == "nvidia-dkms"
                and package.series
                and not any(c.other_series for c in available.versions(name)[:1])
            }
        )
        return Issue(
            code="driver.not_offered",
            message=f"{CHANNELS[channel]} does not offer {series} for Ubuntu {self.resolver.ubuntu} ({module} is not there)",
            because=[*available.errors[:3], *([f"it offers {', '.join(others)}"] if others else [])],
            hint="",
        )

    def transitional(self, channel: str, available: Candidates, series: str, module: str, leads_to: str) -> Issue:
        return Issue(
            code="driver.transitional",
            message=f"{series} in {CHANNELS[channel]} is only a transitional package: it installs {leads_to}",
            because=[f"{module} {available.versions(module)[0].version} depends on the packages of {leads_to} only"],
            hint="",
        )

    def no_fabric_manager(
        self, channel: str, available: Candidates, branch: Branch, series: str, version: str
    ) -> Issue:
        have = sorted(
            {
                f"{name} {c.upstream}"
                for pair in driver_names.fabric_packages(channel, str(branch.number))
                for name in pair[:1]
                for c in available.versions(name)
            }
        )
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

    def no_nvlsm(self, channel: str) -> Issue:
        return Issue(
            code="driver.nvlsm_missing",
            message=f"{CHANNELS[channel]} does not have nvlsm",
            because=["fabric manager needs it on boards with an NVLink 5 switch"],
            hint="nvidia_driver_channel: cuda has it" if channel == "ubuntu" else "",
        )

    def version_not_available(
        self, where: str, series: str, module: str, candidates: list[Candidate], good: list[Candidate]
    ) -> Issue:
        have = list(dict.fromkeys(c.upstream for c in [*good, *candidates]))
        return Issue(
            code="driver.version_not_offered",
            message=f"{where} does not have {series} {self.config.version}",
            because=[f"{module} is there as {', '.join(have[:6])}"],
            hint="",
        )

    def why_not_newest(self, chosen: Choice, newest: str, where: str) -> str:
        if chosen.version == self.out.installed.version:
            return f"it is installed; nvidia_driver_update: true would update it to {newest}"
        if chosen.fabric:
            return f"the newest for which {where} has fabric manager at the same version"
        return f"the newest with signed modules for every kernel that matters here ({newest} has none)"
