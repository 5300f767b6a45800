"""Which CUDA toolkits a host should have: releases, exact packages, cuDNN, NCCL, the default, each with its reason.

Pure: config + facts + catalog + candidates of apt + the driver's decision in, a decision out. What cannot work is refused
here, before anything is touched. Where apt has to be asked first the decision says so (``ask``).
"""

from __future__ import annotations

from contextlib import suppress
from datetime import date

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, deb_version
from provision.catalog import Catalog, Gpu
from provision.catalog.toolkits import runs
from provision.catalog.versions import key, minor
from provision.errors import Issue
from provision.facts import Facts
from provision.parts.candidates import Candidates
from provision.parts.cuda import channel as cuda_channel
from provision.parts.cuda import preconditions as cudahost
from provision.parts.cuda.desired import CudaConfig, CudaDecision, CudaTarget
from provision.parts.cuda.libraries import Libraries, Pick, in_the_way, without_conflicts
from provision.parts.cuda.limits import (
    check_available,
    check_driver,
    check_gpus,
    check_repository,
    driver_version,
    refuse_not_available,
    refuse_unread,
)
from provision.parts.cuda.packages import (
    installed_release,
    installed_toolkits,
    is_there,
    of_kind,
    only_theirs,
    parts_of,
    release_set,
    releases_of,
    shared_from,
    to_change,
    whole,
)
from provision.parts.cuda.suggest import CudaSuggestions
from provision.parts.cuda.variables import Asked, Wanted, read
from provision.parts.decision import CHANNELS, Decision, Refused, distinct, join_and

__all__ = ["PATTERNS", "CudaDecision", "CudaTarget", "CudaConfig", "resolve_cuda"]

# What apt is to be asked for, as apt.query's patterns.
PATTERNS: tuple[str, ...] = cuda_names.PATTERNS


def resolve_cuda(
    config: CudaConfig,
    facts: Facts,
    catalog: Catalog,
    candidates: dict[str, Candidates],
    driver: Decision,
    today: date | None = None,
) -> CudaDecision:
    """Decide the CUDA toolkits of one host.

    candidates: what apt has there, by channel ("cuda" is NVIDIA's repository), asked for PATTERNS. driver: the driver's
    decision; while it still asks, the driver is not judged. Returns a CudaDecision with a target, with blockers, with
    ``ask`` set to the channel, or, where no toolkit is wanted, with none of them.
    """
    return CudaResolver(config, facts, catalog, candidates, driver, today or date.today()).run()


class CudaResolver:
    """Decides for one host: what rules a toolkit out, what stays, what comes, and why."""

    def __init__(
        self,
        config: CudaConfig,
        facts: Facts,
        catalog: Catalog,
        candidates: dict[str, Candidates],
        driver: Decision,
        today: date,
    ) -> None:
        self.config, self.facts, self.catalog, self.driver, self.today = config, facts, catalog, driver, today
        self.candidates, self.out = candidates, CudaDecision()
        self.gpus: list[Gpu] = distinct(driver.gpus)
        self.ubuntu = facts.host.os.version_id
        self.asked = Asked()

    def run(self) -> CudaDecision:
        self.decide()
        CudaSuggestions(self).add()
        return self.out

    def decide(self) -> CudaDecision:
        out, config = self.out, self.config
        self.asked = read(config, self.catalog, out)
        if out.blockers:
            return out
        if not self.asked.toolkits:
            self._remove_all()
            return out
        out.channel, because = cuda_channel.choose(config, self.facts, self.catalog, self.asked.toolkits)
        if self.facts.host.os.version_id in self.catalog.cuda_data.archive_ranges:
            out.reason("CUDA channel", self.repository, because)
            cuda_channel.check_one_origin(config, self.facts, self.asked.minors, out)
        cudahost.check_system(self.facts, config, out)
        cudahost.check_folders(self.facts, config, self.asked.minors, out)
        cudahost.check_files(self.facts, config, self.asked.minors, out)
        check_driver(self.catalog, self.asked.toolkits, self.driver_version, out)
        check_gpus(self.catalog, config, self.asked.toolkits, self.gpus, out)
        if not out.blockers:
            with suppress(Refused):
                self._choose()
        return out

    @property
    def available(self) -> Candidates | None:
        """What apt has in the channel; None where it was not asked."""
        return self.candidates.get(self.out.channel)

    @property
    def repository(self) -> str:
        return CHANNELS[self.out.channel]

    @property
    def driver_version(self) -> str | None:
        return driver_version(self.facts, self.driver)

    @property
    def headers(self) -> bool:
        """Programs are compiled here, not only run."""
        return self.config.profile != "runtime"

    def _default(self) -> str:
        """The minor that /usr/local/cuda leads to."""
        config, minors = self.config, self.asked.minors
        if config.default:
            chosen, because = minor(config.default), "asked for"
        else:
            now = cudahost.current_default(self.facts)
            chosen = now if now in minors else minors[-1]
            because = "/usr/local/cuda leads there now" if now in minors else "the newest that is listed"
        self.out.reason("default", chosen, because)
        return chosen

    # --- choosing ---------------------------------------------------------------------------------------------

    def _choose(self) -> None:
        kept = {w.minor: found for w in self.asked.toolkits if (found := self._kept(w)) is not None}
        rest = [wanted for wanted in self.asked.toolkits if wanted.minor not in kept]
        if rest and not self._has_candidates(rest):
            return
        releases: dict[str, str] = {}
        changes: dict[str, str] = {}
        belonging: set[str] = set()
        for wanted in self.asked.toolkits:
            if wanted.minor in kept:
                releases[wanted.minor], parts = kept[wanted.minor]
                belonging |= set(parts)
                because = "it is installed; cuda_toolkit_update: true would update it"
                self.out.reason(
                    f"CUDA {wanted.minor}", releases[wanted.minor], "asked for" if wanted.release else because
                )
                continue
            releases[wanted.minor], found_set, change = self._choose_release(wanted)
            belonging |= set(found_set)
            for name, version in change.items():
                if name not in changes or _newer(version, changes[name]):
                    changes[name] = version
        default = self._default()
        picks = self._libraries(default)
        if picks is None or self.out.blockers:
            return
        self._set_target(releases, default, changes, belonging, picks)

    def _has_candidates(self, wanted: list[Wanted]) -> bool:
        """True when apt has answered; else it is to be asked, or there is nothing to ask it for."""
        check_repository(self.catalog, self.facts, self.config, self.out)
        if self.available is None and not self.out.blockers:
            check_available(self.catalog, self.ubuntu, self.config, wanted, self.out)
        if self.available is None and not self.out.blockers:
            self.out.ask = self.out.channel
        if self._is_unread():
            refuse_unread(self.available.errors if self.available else [], self.out)
        return self.available is not None and not self.out.blockers

    def _is_unread(self) -> bool:
        """apt was asked and could not read the repository: what it lacks is not known then."""
        available = self.available
        return bool(available and available.errors) and not any(
            cuda_names.is_cuda_package(name) for name in (available.packages if available else ())
        )

    def _kept(self, wanted: Wanted) -> tuple[str, list[str]] | None:
        """(release, names) of an installed toolkit that is what is wanted and whole."""
        if self.config.update and not wanted.release:
            return None
        rows, profile = self.facts.packages, self.config.profile
        release = installed_release(rows, wanted.minor, profile)
        if release is None or (wanted.release and wanted.release != release):
            return None
        found = whole(rows, wanted.minor, profile)
        mixed = found and set(found) & set(shared_from(rows, self.out.channel))
        return (release, found) if found is not None and not mixed else None

    def _choose_release(self, wanted: Wanted) -> tuple[str, list[str], dict[str, str]]:
        """(release, names, what apt is asked for). Raises Refused."""
        assert self.available is not None  # noqa: S101
        available, profile, rows = self.available, self.config.profile, self.facts.packages
        there = releases_of(available, wanted.minor, profile)
        if not there:
            refuse_not_available(self.catalog, self.ubuntu, wanted, available.errors, self.out)
            raise Refused
        have = installed_release(rows, wanted.minor, profile)
        if wanted.release and wanted.release not in there:
            self.out.refuse(
                "cuda.release_not_offered",
                f"{self.repository} does not have CUDA {wanted.release}",
                [*available.errors[:3], f"of {wanted.minor} it has {', '.join(there)}"],
            )
        release, because = wanted.release or there[0], f"the newest release of {wanted.minor} in {self.repository}"
        if wanted.release:
            because = "asked for"
        elif have in there and not self.config.update:
            release, because = (str(have), "it is installed; what it lacks comes from the same release")
        elif have and have not in there and not _newer(release + "-1", have + "-1"):
            because = (
                f"the newest of {wanted.minor} that {self.repository} has; the installed {have} is not there any more"
            )
        more = [name for name in parts_of(rows, wanted.minor) if is_there(rows, name)]
        found = release_set(available, wanted.minor, profile, release, more)
        if found.drivers:
            self.out.refuse(
                "cuda.pulls_driver",
                f"CUDA {release} of this repository would bring a driver",
                found.drivers[:4],
                "the driver is the role nvidia_driver's; look where this repository's packages come from",
            )
        if found.missing:
            self.out.refuse(
                "cuda.incomplete",
                f"{self.repository} has CUDA {release} without all that it is made of",
                [*available.errors[:3], *found.missing[:6]],
                "try again later: a mirror may be synchronising",
            )
        self.out.reason(f"CUDA {wanted.minor}", release, because)
        older = bool(have and _newer(have + "-1", release + "-1"))
        change = to_change(rows, found, exactly=older and bool(wanted.release))
        return release, sorted(found.chosen), change

    def _libraries(self, default: str) -> list[Pick] | None:
        """cuDNN and NCCL; None where apt is asked first, or with the refusal said."""
        if not self.asked.cudnn and not self.asked.nccl:
            return []
        minors = self.asked.minors
        served = [
            gpu
            for gpu in self.gpus
            if any(self.catalog.toolkit_support(m, gpu) in ("native", "binary") for m in minors)
        ]
        libraries = Libraries(
            self.facts,
            self.catalog,
            self.available,
            served or self.gpus,
            minors,
            default,
            self.headers,
            self.config.update,
            self.repository,
        )
        picks: list[Pick] = []
        for what, answer in (
            ("cuDNN", libraries.cudnn(self.asked.cudnn) if self.asked.cudnn else []),
            ("NCCL", libraries.nccl(self.asked.nccl[0]) if self.asked.nccl else []),
        ):
            if answer is None or (isinstance(answer, Issue) and self._is_unread()):
                self._has_candidates([])
                return None
            if isinstance(answer, Issue):
                asked = self.asked.cudnn if what == "cuDNN" else self.asked.nccl
                if any(config.version for config in asked):
                    self.out.blockers.append(answer)
                else:
                    # "auto" is what fits, if anything does.
                    hint = f"cuda_toolkit_{what.lower()}: none leaves it out"
                    self.out.warn(answer.code, answer.message, answer.because, hint)
                continue
            for pick in [answer] if isinstance(answer, Pick) else answer:
                picks.append(pick)
                self._explain_library(what, pick, minors)
        return None if self.out.blockers else picks

    def _explain_library(self, what: str, pick: Pick, minors: list[str]) -> None:
        others = sorted({m.split(".")[0] for m in minors} - {pick.major}, key=int)
        because = pick.because
        if others:
            because += f"; it serves CUDA {pick.major}, not {join_and(others)}"
        shown = pick.version if cuda_names.suffix(pick.version) else pick.upstream
        self.out.reason(what, f"{shown} for CUDA {pick.major}", because)
        if pick.late:
            self.out.warn(
                f"cuda.{what.lower()}_gpu",
                f"{what} {shown} has no code for {join_and(list(pick.late))}",
                ["it serves the other GPUs of this host"],
            )
        built, version = cuda_names.suffix(pick.version), self.driver_version
        if built and key(built) > key(pick.cuda) and version and runs(self.catalog, built, version) != "full":
            self.out.warn(
                f"cuda.{what.lower()}_newer",
                f"{what} {shown} is built with CUDA {built}, newer than the toolkit {pick.cuda}",
                [f"driver {version} runs CUDA {built} by minor-version compatibility only"],
            )

    # --- the target -------------------------------------------------------------------------------------------

    def _set_target(
        self, releases: dict[str, str], default: str, changes: dict[str, str], belonging: set[str], picks: list[Pick]
    ) -> None:
        rows = self.facts.packages
        libraries, left_out = without_conflicts(self.available, picks)
        for name in left_out:
            self.out.warn(
                "cuda.cudnn_headers",
                f"{name} is left out: it conflicts with the headers of the newer cuDNN",
                ["programs are compiled against the newer one; the older one is there to run what was built with it"],
            )
        belonging |= set(libraries)
        for name, version in libraries.items():
            have = rows.get(name)
            if have is None or not have.installed or have.version != version:
                changes[name] = version
        remove = set(in_the_way(self.facts, self.available, libraries))
        if remove:
            self.out.reason("removed", ", ".join(sorted(remove)), "conflicts with the requested cuDNN")
        remove |= self._pruned(belonging | set(libraries))
        remove |= self._distribution(libraries)
        moving = {name for name in rows if is_there(rows, name) and self._would_move(name)} - remove
        cudahost.check_host(
            self.facts, self.catalog, self.config, self.gpus, [w.toolkit for w in self.asked.toolkits], self.out
        )
        cudahost.warn_half_installed(self.facts, belonging | remove, self.out)
        self.out.target = CudaTarget(
            versions=tuple(releases),
            default=default,
            releases=releases,
            packages=dict(sorted(changes.items())),
            names=tuple(sorted(belonging | moving)),
            remove=tuple(sorted(remove)),
            cudnn=_by_major(picks),
            nccl=next((p.version for p in picks if p.kind == "nccl"), None),
        )

    def _remove_all(self) -> None:
        """No toolkit is listed: those that came by this tool go where that is asked for; nobody else's, ever."""
        extra = installed_toolkits(self.facts.packages)
        if not extra or not cudahost.was_managed(self.facts):
            return
        if not self.config.prune:
            self.out.reason(
                "left alone",
                f"CUDA {join_and(extra)}",
                "cuda_toolkit_versions is empty; cuda_toolkit_prune: true would remove it",
            )
            return
        self.out.target = CudaTarget(versions=(), default="", remove=tuple(sorted(self._pruned(set()))))

    @staticmethod
    def _would_move(name: str) -> bool:
        """Metapackages whose next version brings another toolkit, cuDNN or driver: held as they are."""
        package = cuda_names.parse(name)
        return package is not None and (package.floating or package.kind == "meta_with_driver")

    def _pruned(self, belonging: set[str]) -> set[str]:
        rows = self.facts.packages
        minors = self.asked.minors
        extra = [version for version in installed_toolkits(rows) if version not in minors]
        if not extra:
            return set()
        if not self.config.prune:
            self.out.reason(
                "left alone", f"CUDA {join_and(extra)}", "not listed; cuda_toolkit_prune: true would remove it"
            )
            return set()
        going = set(only_theirs(rows, extra, belonging))
        self.out.reason(
            "removed", f"CUDA {join_and(extra)}", f"not listed, and cuda_toolkit_prune is true: {len(going)} packages"
        )
        return going

    def _distribution(self, libraries: dict[str, str]) -> set[str]:
        rows = self.facts.packages
        found = of_kind(rows, "distribution")
        replaced = [name for name in found if name in libraries]
        rest = [name for name in found if name not in libraries]
        if replaced:
            self.out.warn(
                "cuda.replaces_other",
                f"{join_and(replaced)} of another origin is replaced by NVIDIA's",
                [f"{name} {rows[name].version}" for name in replaced],
            )
        if rest and self.config.remove_distribution:
            self.out.reason("removed", ", ".join(rest), "cuda_toolkit_remove_distribution is true")
            return set(rest)
        if rest:
            shadows = "nvidia-cuda-toolkit" in rest
            self.out.warn(
                "cuda.distribution_packages",
                f"CUDA packages that are not NVIDIA's are installed: {', '.join(rest[:6])}",
                [
                    "/usr/bin/nvcc is of another version than the toolkits here"
                    if shadows
                    else "programs may find their libraries instead of NVIDIA's"
                ],
                "cuda_toolkit_remove_distribution: true removes them",
            )
        return set()


def _by_major(picks: list[Pick]) -> dict[str, str]:
    """cuDNN by CUDA major; of two for one major the newer, whose headers are there."""
    cudnn = sorted((p for p in picks if p.kind == "cudnn"), key=lambda pick: key(pick.upstream))
    return {pick.major: pick.upstream for pick in cudnn}


def _newer(one: str, other: str) -> bool:
    """True when a Debian version is higher than another."""
    return bool(deb_version.compare(one, other) > 0)
