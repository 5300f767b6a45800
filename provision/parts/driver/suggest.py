"""What to change after a refusal: the fewest variables to set, tried by resolving again, never guessed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.lib.suggest import combined, suggest
from provision.parts.decision import cuda_key

if TYPE_CHECKING:
    from provision.parts.driver.resolve import Resolver

# Refusals that another value of our variables can lift.
_HAS_WAY_OUT = frozenset(
    {
        "catalog.unknown_branch",
        "driver.branch_unknown",
        "driver.cuda_too_new",
        "driver.fabric_manager_missing",
        "driver.gpu_not_supported",
        "driver.known_bad",
        "driver.min_cuda_unreadable",
        "driver.modules_unsupported",
        "driver.no_signed_modules",
        "driver.not_offered",
        "driver.secure_boot_unsigned",
        "driver.series_of_archive",
        "driver.transitional",
        "driver.version_not_offered",
        "driver.version_of_other_branch",
        "driver.version_without_branch",
    }
)


class Suggestions:
    """Looks for other values of our variables that would work on the host of a resolver."""

    def __init__(self, resolver: Resolver) -> None:
        self.resolver = resolver

    def add(self) -> None:
        """Put a suggestion that works at the head of each hint: tried by resolving again, never guessed."""
        named = [issue for issue in self.resolver.out.blockers if issue.code in _HAS_WAY_OUT]
        way = self._fewest() if named else ""
        for issue in named:
            without = {"fabric_manager": "never"}
            if issue.code == "driver.fabric_manager_missing" and self._works(without):
                issue.hint = "to do without, nvidia_driver_fabric_manager: never"
            issue.hint = "; or ".join(filter(None, [way, issue.hint])) or (
                "nvidia_driver_manage: false leaves the driver of this host as it is; no other value is known to work here"
            )

    def _fewest(self) -> str:
        """The fewest variables to set so that a driver is found, as text; empty where none of them would do."""
        change = suggest(combined(self._changes()), self._works) or {}
        return " and ".join(_setting(name, value) for name, value in change.items())

    def _changes(self) -> list[tuple[str, str]]:
        """Single variables that could be set otherwise, the smallest change first."""
        config, catalog = self.resolver.config, self.resolver.catalog
        found: list[tuple[str, str]] = []
        if config.version:
            found += [("branch", driver_names.branch(config.version)), ("version", "")]
        if config.modules != "auto":
            found.append(("modules", "open" if config.modules == "proprietary" else "proprietary"))
        if config.build != "auto":
            found.append(("build", "auto"))
        if config.channel != "auto":
            found += [("channel", channel) for channel in ("ubuntu", "cuda") if channel != config.channel]
        requested = catalog.find_branch(config.branch)
        if requested:
            found += [("branch", f"{requested.number}-server"), ("branch", str(requested.number))]
        open_config = replace(config, modules="auto", min_cuda="")
        fitting = self.resolver.fitting(catalog.branches_for(self.resolver.out.gpus), open_config)
        fitting.sort(key=lambda branch: branch.is_ended(self.resolver.today))
        for channel in ("ubuntu", "cuda"):
            for branch in fitting:
                known = self._known_series(branch.number, channel)
                for series in (str(branch.number), f"{branch.number}-server"):
                    if series in known:
                        found.append(("branch", series))
        if config.min_cuda and fitting:
            found.append(("min_cuda", max((catalog.max_cuda(b.number) for b in fitting), key=cuda_key)))
        found.append(("branch", "recommended"))
        return [change for change in dict.fromkeys(found) if getattr(config, change[0]) != change[1]]

    def _works(self, change: dict[str, str]) -> bool:
        config = replace(self.resolver.config, **change)  # type: ignore[arg-type]
        trial = type(self.resolver)(
            config, self.resolver.facts, self.resolver.catalog, self.resolver.candidates, self.resolver.today
        )
        trial.decide()
        if trial.out.ask is None or self.resolver.release is None:
            return not trial.out.blockers
        # apt has not been asked: what the catalog knows of the repositories must do.
        channels = (
            [config.channel] if config.channel != "auto" else ["ubuntu"] if self._needs_signed() else ["ubuntu", "cuda"]
        )
        if config.branch == "recommended":
            branches = self.resolver.fitting(self.resolver.catalog.branches_for(self.resolver.out.gpus), config)
            return any(self._known_series(branch.number, channel) for branch in branches for channel in channels)
        unsure = self._needs_signed() or (self.resolver.wants_fabric() and config.channel == "ubuntu")
        number = int(config.branch.split("-")[0])
        return not unsure and any(config.branch in self._known_series(number, channel) for channel in channels)

    def _known_series(self, number: int, channel: str) -> list[str]:
        if self.resolver.release is None:
            return [str(number)]
        candidates = self.resolver.catalog.known_series(number, ubuntu=self.resolver.release)
        return [entry.series for entry in candidates if entry.channel == channel]

    def _needs_signed(self) -> bool:
        """Only modules that Canonical signed can be loaded here, or only they are asked for."""
        secure = self.resolver.facts.secure_boot
        return self.resolver.config.build == "signed" or bool(secure.enabled and not secure.mok_enrolled)


def _setting(name: str, value: str) -> str:
    return (
        f'nvidia_driver_{name}: "{value}"'
        if name in ("branch", "version", "min_cuda")
        else f"nvidia_driver_{name}: {value}"
    )
