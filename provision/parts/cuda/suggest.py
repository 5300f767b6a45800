"""What to change after a refusal about CUDA: the fewest variables to set, tried by resolving again, never guessed."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from provision.catalog.toolkits import nearest, runs
from provision.catalog.versions import key, minor
from provision.lib.suggest import combined, suggest
from provision.parts.cuda.preconditions import leave
from provision.parts.decision import DriverConfig

if TYPE_CHECKING:
    from provision.parts.cuda.resolve import CudaResolver

# Refusals that another value of our variables can lift.
_HAS_WAY_OUT = frozenset(
    {
        "cuda.cudnn_gpu",
        "cuda.cudnn_not_offered",
        "cuda.cudnn_other_cuda",
        "cuda.cudnn_side_by_side",
        "cuda.cudnn_unreadable",
        "cuda.default_not_listed",
        "cuda.driver_too_old",
        "cuda.duplicate",
        "cuda.folder_in_the_way",
        "cuda.gpu_not_supported",
        "cuda.incomplete",
        "cuda.library_without_toolkit",
        "cuda.nccl_gpu",
        "cuda.nccl_not_offered",
        "cuda.nccl_other_cuda",
        "cuda.nccl_side_by_side",
        "cuda.nccl_unreadable",
        "cuda.not_in_repository",
        "cuda.release_not_offered",
        "cuda.unknown",
        "cuda.unknown_profile",
        "cuda.version_unreadable",
    }
)


class CudaSuggestions:
    """Looks for other values of our variables that would work on the host of a resolver."""

    def __init__(self, resolver: CudaResolver) -> None:
        self.resolver, self.config = resolver, resolver.config

    def add(self) -> None:
        """Put a suggestion that works at the head of each hint: tried by resolving again, never guessed."""
        named = [issue for issue in self.resolver.out.blockers if issue.code in _HAS_WAY_OUT]
        way = self._fewest() if named else ""
        for issue in named:
            other = self._driver() if issue.code == "cuda.driver_too_old" else ""
            if issue.code == "cuda.gpu_not_supported" and self._works({"unsupported_gpu": "warn"}):
                other = "cuda_toolkit_unsupported_gpu: warn installs it anyway"
            issue.hint = "; or ".join(filter(None, [way, other, issue.hint])) or (
                f"{leave(self.config)}; no other value is known to work here"
            )

    def _fewest(self) -> str:
        """The fewest variables to set so that nothing is refused, as text; empty where none of them would do."""
        change = suggest(combined(self._changes()), self._works) or {}
        return " and ".join(setting(name, value) for name, value in change.items())

    def _changes(self) -> list[tuple[str, Any]]:
        """Single variables that could be set otherwise, the smallest change first."""
        config = self.config
        found: list[tuple[str, Any]] = []
        listed = {minor(text) for text in (*next(iter(self._instead()), ()), *config.versions)}
        near = [config.default, *self._nearest(config.default)] if config.default else []
        found += [("default", version) for version in near if version in listed and version != config.default][:2]
        if config.profile not in ("runtime", "compiler", "full"):
            found.append(("profile", "full"))
        for name, text in (("cudnn", config.cudnn), ("nccl", config.nccl)):
            if text != "none":
                found += [(name, item) for item in [*self._apart(text), "auto", "none"] if item != text]
        found += [("versions", versions) for versions in self._instead() if versions != config.versions]
        return found

    @staticmethod
    def _apart(text: str) -> list[str]:
        items = [item.strip() for item in text.split(",")]
        return items if len(items) > 1 else []

    def _instead(self) -> list[tuple[str, ...]]:
        """Other lists of toolkits: each that cannot be had by the nearest that can; then without those."""
        listed = self.config.versions
        if not listed:
            newest = [m.version for m in reversed(self.resolver.catalog.cuda_minors)]
            found = next((v for v in newest if self._alone(v)), None)
            return [(found,)] if found else []
        good = [text for text in listed if self._alone(text)]
        changed: list[str] = []
        for text in listed:
            taken = {minor(t) for t in [*good, *changed]}
            if text in good:
                changed += [text] if minor(text) not in {minor(t) for t in changed} else []
                continue
            other = next((v for v in self._nearest(text) if v not in taken and self._alone(v)), None)
            if other:
                changed.append(other)
        if len(good) == len({minor(text) for text in good}) == len(listed) > 1:
            # Each can be had, and not all of them together: without one of them, the oldest first.
            return [tuple(text for text in listed if text != other) for other in sorted(listed, key=key)]
        without = [text for text in good if minor(text) not in {minor(t) for t in good[: good.index(text)]}]
        lists = [tuple(changed), *([tuple(without)] if without else [])]
        return [versions for versions in dict.fromkeys(lists) if versions]

    def _nearest(self, text: str) -> list[str]:
        written = re.search(r"[0-9]+\.[0-9]+", text)
        numbers = text.split(".")
        if not all(number.isdigit() for number in numbers):
            newest = [m.version for m in reversed(self.resolver.catalog.cuda_minors)]
            # "v12.4", "cuda-12.4": what is meant is in it.
            return [*(m for m in newest if written and m == written[0]), *newest]
        whole = minor(text if len(numbers) > 1 else f"{text}.999")
        own = [whole] if any(m.version == whole for m in self.resolver.catalog.cuda_minors) else []
        return [*own, *nearest(self.resolver.catalog, whole)]

    def _alone(self, text: str) -> bool:
        """A toolkit works here by itself."""
        return self._works(
            {"versions": (text,), "default": "", "cudnn": "none", "nccl": "none", "profile": self._profile()}
        )

    def _profile(self) -> str:
        return self.config.profile if self.config.profile in ("runtime", "compiler", "full") else "full"

    def _works(self, change: dict[str, Any]) -> bool:
        config, old = replace(self.config, **change), self.resolver
        trial = type(old)(config, old.facts, old.catalog, old.candidates, old.driver, old.today)
        trial.decide()
        # "auto" that finds nothing is no suggestion. Where apt has not been asked, what the catalog knows must do.
        target = trial.out.target
        empty = target and any(change.get(name) == "auto" and not getattr(target, name) for name in ("cudnn", "nccl"))
        return not trial.out.blockers and not empty

    def _driver(self) -> str:
        """Another driver for the toolkits, where this host's is ours to choose and one is known to come."""
        from provision.parts.driver.resolve import resolve_driver  # noqa: PLC0415  (the driver asks for toolkits in its turn)

        old = self.resolver
        if old.driver.target is None:
            return ""
        config = DriverConfig(branch="recommended", toolkits=old.config.versions)
        decision = resolve_driver(config, old.facts, old.catalog, old.candidates, old.today)
        if decision.blockers:
            return ""
        if decision.target is None:
            # apt has not been asked for it: what the catalog knows of the repositories must do.
            takes = next((str(n) for n in self._known_branches() if self._runs_all(n)), None)
        else:
            version = decision.target.version
            takes = f"{decision.target.series} {version}" if self._runs_all(version) else None
        way = "nvidia_driver_branch: recommended, without nvidia_driver_version, takes one that runs it"
        return f"{way} ({takes})" if takes else ""

    def _runs_all(self, driver: str | int) -> bool:
        old = self.resolver
        return all(runs(old.catalog, wanted.minor, driver) != "none" for wanted in old.asked.toolkits)

    def _known_branches(self) -> list[int]:
        """Living long-term and production branches for the GPUs that a repository of this Ubuntu is known to hold, newest first."""
        old = self.resolver
        if old.ubuntu not in old.catalog.ubuntu_data.releases:
            return []
        able = old.catalog.branches_for(old.gpus)
        return [
            branch.number
            for branch in reversed(old.catalog.branches)
            if branch.number in able
            and branch.is_long_term_or_production
            and not branch.is_ended(old.today)
            and old.catalog.known_series(branch.number, ubuntu=old.ubuntu)
        ]


def setting(name: str, value: Any) -> str:
    """A variable of the role as an inventory has it."""
    if name == "versions":
        return "cuda_toolkit_versions: [" + ", ".join(f'"{item}"' for item in value) + "]"
    return (
        f'cuda_toolkit_{name}: "{value}"' if name in ("default", "cudnn", "nccl") else f"cuda_toolkit_{name}: {value}"
    )
