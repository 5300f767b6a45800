"""Which CUDA toolkits a host should have: releases, exact packages, cuDNN, NCCL, the default, each with its reason.

Pure: wish + facts + catalog + what apt offers + the driver's decision in, a decision out. What cannot work is refused
here, before anything is touched. Where apt has to be asked first the decision says so (``ask``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils import cudanames, debversion
from provision.catalog import Catalog, CudaMinor, Gpu
from provision.catalog.toolkits import holders, newest_run, runs, targets
from provision.catalog.versions import key, minor
from provision.errors import Issue, UsageError
from provision.facts import Facts
from provision.resolve import cudahost
from provision.resolve.cudalibraries import Libraries, Pick, in_the_way, without_conflicts
from provision.resolve.cudapackages import (
    installed_release,
    installed_toolkits,
    is_there,
    only_theirs,
    parts_of,
    release_set,
    releases_of,
    to_change,
    whole,
)
from provision.resolve.cudaways import CudaWaysOut
from provision.resolve.cudawish import CudaDecision, CudaTarget, CudaWish, LibraryWish, library_wishes
from provision.resolve.decision import Decision, and_, distinct
from provision.resolve.offer import Offer

__all__ = ["PATTERNS", "CudaDecision", "CudaTarget", "CudaWish", "resolve_cuda"]

# What apt is to be asked for, as aptquery's patterns.
PATTERNS: tuple[str, ...] = cudanames.PATTERNS
REPOSITORY = "NVIDIA's repository"


@dataclass(frozen=True)
class Wanted:
    """One toolkit that is asked for; release None: the newest of its minor."""

    text: str
    toolkit: CudaMinor
    release: str | None

    @property
    def minor(self) -> str:
        return self.toolkit.version


def resolve_cuda(
    wish: CudaWish, facts: Facts, catalog: Catalog, offers: dict[str, Offer], driver: Decision,
    today: date | None = None,
) -> CudaDecision:  # fmt: skip
    """Decide the CUDA toolkits of one host.

    offers: what apt offers there, by channel; NVIDIA's repository is "cuda", asked for PATTERNS. driver: the driver's
    decision; while it still asks, the driver is not judged. Returns a CudaDecision with a target, with blockers, with
    ``ask`` set to "cuda", or, where no toolkit is wanted, with none of them.
    """
    return CudaResolver(wish, facts, catalog, offers, driver, today or date.today()).run()


class CudaResolver:
    """Decides for one host: what rules a toolkit out, what stays, what comes, and why."""

    def __init__(
        self, wish: CudaWish, facts: Facts, catalog: Catalog, offers: dict[str, Offer], driver: Decision, today: date
    ) -> None:  # fmt: skip
        self.wish, self.facts, self.catalog, self.driver, self.today = wish, facts, catalog, driver, today
        self.offers, self.offer = offers, offers.get("cuda")
        self.out = CudaDecision()
        self.gpus: list[Gpu] = distinct(driver.gpus)
        self.ubuntu = facts.host.os.version_id
        self.wanted: list[Wanted] = []
        self.cudnn: list[LibraryWish] = []
        self.nccl: list[LibraryWish] = []

    def run(self) -> CudaDecision:
        self.decide()
        CudaWaysOut(self).name()
        return self.out

    def decide(self) -> CudaDecision:
        self._read_libraries()
        self._read_versions()
        if self.out.blockers or not self.wanted:
            return self.out
        self._check_host()
        self._check_driver()
        self._check_gpus()
        if self.out.blockers:
            return self.out
        self._choose()
        return self.out

    @property
    def headers(self) -> bool:
        """Programs are compiled here, not only run."""
        return self.wish.profile != "runtime"

    # --- what is asked ----------------------------------------------------------------------------------------

    def _read_libraries(self) -> None:
        for name, text in (("cudnn", self.wish.cudnn), ("nccl", self.wish.nccl)):
            wishes = library_wishes(text)
            if wishes is None:
                example = '"9" or "9.14.0.64"' if name == "cudnn" else '"2.21.5" or "2.21.5-1+cuda12.4"'
                self.out.block(
                    f"cuda.{name}_unreadable", f"cuda_toolkit_{name}: {text!r} is not a version",
                    [f"write none, auto, or a version such as {example}"], "",
                )  # fmt: skip
                continue
            setattr(self, name, wishes)
        majors = [wish.major for wish in self.cudnn]
        if len(set(majors)) < len(majors):
            self.out.block(
                "cuda.cudnn_side_by_side", f"cuDNN {and_([w.text for w in self.cudnn])} cannot be installed side by side",
                ["one cuDNN of a major is installed at a time, whatever CUDA it is for"], "",
            )  # fmt: skip
        if len(self.nccl) > 1:
            self.out.block(
                "cuda.nccl_side_by_side", f"NCCL {and_([w.text for w in self.nccl])} cannot be installed side by side",
                ["there is one package libnccl2"], "",
            )  # fmt: skip

    def _read_versions(self) -> None:
        wish = self.wish
        if not wish.versions:
            if self.cudnn or self.nccl:
                asked = [n for n, w in (("cuda_toolkit_cudnn", self.cudnn), ("cuda_toolkit_nccl", self.nccl)) if w]
                self.out.block(
                    "cuda.library_without_toolkit", f"{and_(asked)} asked for, and no toolkit that they would go with",
                    ["cuda_toolkit_versions is empty", "which build fits is decided by the toolkit's CUDA major"], "",
                )  # fmt: skip
            return
        for text in wish.versions:
            wanted = self._read_version(text)
            if wanted:
                self.wanted.append(wanted)
        self.wanted.sort(key=lambda wanted: key(wanted.minor))
        minors = [wanted.minor for wanted in self.wanted]
        for twice in sorted({m for m in minors if minors.count(m) > 1}, key=key):
            texts = [wanted.text for wanted in self.wanted if wanted.minor == twice]
            self.out.block(
                "cuda.duplicate", f"CUDA {twice} is asked for twice: {and_(texts)}",
                [f"/usr/local/cuda-{twice} holds one release"], "",
            )  # fmt: skip
        if wish.profile not in cudanames.PROFILES:
            self.out.block(
                "cuda.unknown_profile", f"there is no profile {wish.profile!r}",
                [f"there are {and_(list(cudanames.PROFILES))}"], "",
            )  # fmt: skip
        asked = [wanted for wanted in self.wanted if wish.default in (wanted.minor, wanted.text)]
        if wish.default and not asked and not self.out.blockers:
            self.out.block(
                "cuda.default_not_listed", f"cuda_toolkit_default is {wish.default}, which is not in cuda_toolkit_versions",
                [f"listed: {', '.join(wish.versions)}"], "",
            )  # fmt: skip

    def _read_version(self, text: str) -> Wanted | None:
        if not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?", text):
            self.out.block(
                "cuda.version_unreadable", f"{text!r} is not a CUDA toolkit",
                ['write "12.4" for its newest release, or a release such as "12.4.1", in quotes'], "",
            )  # fmt: skip
            return None
        try:
            toolkit = self.catalog.cuda(minor(text))
        except UsageError as error:
            self.out.block(
                "cuda.unknown", f"there is no CUDA toolkit {text}", [*error.issue.because, error.issue.hint or ""], ""
            )
            return None
        return Wanted(text, toolkit, text if text.count(".") == 2 else None)

    def _default(self) -> str:
        """The minor that /usr/local/cuda leads to."""
        wish, minors = self.wish, [wanted.minor for wanted in self.wanted]
        if wish.default:
            chosen, because = minor(wish.default), "asked for"
        else:
            now = cudahost.current_default(self.facts)
            chosen = now if now in minors else minors[-1]
            because = "/usr/local/cuda leads there now" if now in minors else "the newest that is listed"
        self.out.reason("default", chosen, because)
        return chosen

    # --- what rules a toolkit out -----------------------------------------------------------------------------

    def _check_host(self) -> None:
        host = self.facts.host
        if host.os.id != "ubuntu":
            self.out.block(
                "cuda.not_ubuntu", f"{host.os.pretty or host.os.id} is not Ubuntu", ["this tool provisions Ubuntu hosts"],
                "cuda_toolkit_versions: [] leaves CUDA on this host alone",
            )  # fmt: skip
        cudahost.check_folders(self.facts, [wanted.minor for wanted in self.wanted], self.out)

    def _driver_version(self) -> str | None:
        """The driver that will run these toolkits; None where there is none, or none is decided."""
        if self.driver.ask is not None or self.driver.blockers:
            return None
        if self.driver.target:
            return self.driver.target.version
        loaded = self.facts.module.loaded
        return loaded.version if loaded else self.driver.installed.version

    def _check_driver(self) -> None:
        version = self._driver_version()
        if version is None:
            return
        partly = []
        for wanted in self.wanted:
            degree = runs(self.catalog, wanted.minor, version)
            if degree == "none":
                self._refuse_driver(wanted, version)
            elif degree == "minor":
                partly.append(wanted.minor)
        if partly:
            newest = newest_run(self.catalog, version)
            self.out.warn(
                "cuda.minor_compatibility",
                f"driver {version} runs CUDA {and_(partly)} by minor-version compatibility only",
                [
                    f"in full it runs CUDA up to {newest}",
                    "compiled code runs; PTX of a newer toolkit is not: cudaErrorUnsupportedPtxVersion (222)",
                ],
                "compile for the GPUs' own compute capability (nvcc -arch=native), or take a newer driver branch",
            )  # fmt: skip

    def _refuse_driver(self, wanted: Wanted, version: str) -> None:
        newest = newest_run(self.catalog, version)
        because = [
            f"CUDA {wanted.toolkit.major}.x needs driver {wanted.toolkit.min_driver} or newer",
            f"driver {version} runs CUDA up to {newest}" if newest else f"driver {version} runs no toolkit of the catalog",
        ]
        self.out.block("cuda.driver_too_old", f"driver {version} cannot run CUDA {wanted.text}", because, "")

    def _check_gpus(self) -> None:
        refuse = self.wish.unsupported_gpu != "warn"
        for wanted in self.wanted:
            degrees = {gpu.name: self.catalog.toolkit_support(wanted.minor, gpu) for gpu in self.gpus}
            served = [gpu for gpu in self.gpus if degrees[gpu.name] in ("native", "binary")]
            # A card newer than the catalog: nobody knows, so nothing is refused.
            late = [gpu for gpu in self.gpus if gpu not in served]
            known = [gpu for gpu in late if gpu.cc]
            if not late:
                continue
            because = [f"{gpu.name}: {targets(self.catalog, gpu)}" for gpu in known] or [
                f"{gpu.name} is not in the catalog" for gpu in late
            ]
            if any(degrees[gpu.name] == "jit" for gpu in late):
                because.append("programs that carry PTX may still start; nvcc and the libraries have no code for it")
            cards = and_([gpu.name for gpu in late])
            if known and not served and refuse and len(known) == len(late):
                self.out.block("cuda.gpu_not_supported", f"CUDA {wanted.text} does not compile for {cards}", because, "")
            else:
                code = "cuda.gpu_not_supported" if known else "catalog.uncertain"
                self.out.warn(code, f"CUDA {wanted.text} does not compile for {cards}", because)

    def _refuse_repository(self, wanted: list[Wanted]) -> bool:
        """Refuse what no repository of this Ubuntu is known to hold, before apt is asked. True: refused."""
        if self.wish.repo_url:
            return False
        try:
            self.catalog.repository("cuda", ubuntu=self.ubuntu, arch=self.facts.host.arch)
        except UsageError as error:
            rows = self.catalog.repositories.repositories["cuda"]
            self.out.block(
                "cuda.no_repository", f"there is no repository of NVIDIA for Ubuntu {self.ubuntu} on {self.facts.host.arch}",
                [error.issue.message, f"there are some for Ubuntu {', '.join(rows.ubuntu)} on {', '.join(rows.machines)}"],
                "cuda_toolkit_versions: [] leaves CUDA on this host alone; CUDA from conda, wheels or a container needs none",
            )  # fmt: skip
            return True
        if self.offer is None:
            for item in wanted:
                if not self.catalog.cuda_in_repository(item.minor, ubuntu=self.ubuntu):
                    self._not_in_repository(item, [])
        return bool(self.out.blockers)

    def _not_in_repository(self, wanted: Wanted, errors: list[str]) -> None:
        release = self.catalog.ubuntu(self.ubuntu) if self.ubuntu in self.catalog.ubuntu_data.releases else None
        held = holders(self.catalog, wanted.minor)
        because = list(errors[:4])
        if release and release.cuda_first:
            because.append(f"it begins with {release.cuda_first} and ends with {release.cuda_last or 'the current one'}")
        if held:
            because.append(f"that of Ubuntu {and_(held)} has it")
        newest = wanted.release or (wanted.toolkit.releases[-1] if wanted.toolkit.releases else wanted.minor)
        image = f"a container (nvidia/cuda:{newest}-devel-ubuntu{held[-1]})" if held else "a container"
        self.out.block(
            "cuda.not_in_repository", f"{REPOSITORY} for Ubuntu {self.ubuntu} has no CUDA {wanted.text}", because,
            f"{image}, conda (cuda-toolkit={newest}) or wheels bring CUDA {wanted.minor} without it",
        )  # fmt: skip

    # --- choosing ---------------------------------------------------------------------------------------------

    def _choose(self) -> None:
        kept = {w.minor: found for w in self.wanted if (found := self._kept(w)) is not None}
        rest = [wanted for wanted in self.wanted if wanted.minor not in kept]
        if rest and self._refuse_repository(rest):
            return
        if rest and self.offer is None:
            self.out.ask = "cuda"
            return
        releases: dict[str, str] = {}
        changes: dict[str, str] = {}
        belonging: set[str] = set()
        for wanted in self.wanted:
            if wanted.minor in kept:
                releases[wanted.minor], found = kept[wanted.minor]
                belonging |= set(found)
                because = "it is installed; cuda_toolkit_update: true would move it on"
                self.out.reason(f"CUDA {wanted.minor}", releases[wanted.minor], "asked for" if wanted.release else because)
                continue
            chosen = self._choose_release(wanted)
            if chosen is None:
                return
            releases[wanted.minor], found_set, change = chosen
            belonging |= set(found_set)
            for name, version in change.items():
                if name not in changes or _newer(version, changes[name]):
                    changes[name] = version
        default = self._default()
        picks = self._libraries(default)
        if picks is None or self.out.blockers:
            return
        self._set_target(releases, default, changes, belonging, picks)

    def _kept(self, wanted: Wanted) -> tuple[str, list[str]] | None:
        """(release, names) of an installed toolkit that is what is wanted and whole."""
        if self.wish.update and not wanted.release:
            return None
        rows, profile = self.facts.packages, self.wish.profile
        release = installed_release(rows, wanted.minor, profile)
        if release is None or (wanted.release and wanted.release != release):
            return None
        found = whole(rows, wanted.minor, profile)
        return (release, found) if found is not None else None

    def _choose_release(self, wanted: Wanted) -> tuple[str, list[str], dict[str, str]] | None:
        """(release, names, what apt is asked for), or None with the refusal said."""
        assert self.offer is not None  # noqa: S101
        offer, profile, rows = self.offer, self.wish.profile, self.facts.packages
        there = releases_of(offer, wanted.minor, profile)
        if not there:
            self._not_in_repository(wanted, offer.errors)
            return None
        have = installed_release(rows, wanted.minor, profile)
        if wanted.release and wanted.release not in there:
            self.out.block(
                "cuda.release_not_offered", f"{REPOSITORY} does not have CUDA {wanted.release}",
                [*offer.errors[:3], f"of {wanted.minor} it has {', '.join(there)}"], "",
            )  # fmt: skip
            return None
        release, because = wanted.release or there[0], f"the newest release of {wanted.minor} in {REPOSITORY}"
        if wanted.release:
            because = "asked for"
        elif have in there and not self.wish.update:
            release, because = str(have), "it is installed and not whole; what is missing comes from the same release"
        elif have and have not in there and not _newer(release + "-1", have + "-1"):
            because = f"the newest of {wanted.minor} that {REPOSITORY} has; the installed {have} is not there any more"
        more = [name for name in parts_of(rows, wanted.minor) if is_there(rows, name)]
        found = release_set(offer, wanted.minor, profile, release, more)
        if found.drivers:
            self.out.block(
                "cuda.pulls_driver", f"CUDA {release} of this repository would bring a driver", found.drivers[:4],
                "the driver is the role nvidia_driver's; look where this repository's packages come from",
            )  # fmt: skip
            return None
        if found.missing:
            self.out.block(
                "cuda.incomplete", f"{REPOSITORY} has CUDA {release} without all that it is made of",
                [*offer.errors[:3], *found.missing[:6]], "try again later: a mirror may be in the middle of a sync",
            )  # fmt: skip
            return None
        self.out.reason(f"CUDA {wanted.minor}", release, because)
        older = bool(have and _newer(have + "-1", release + "-1"))
        change = to_change(rows, found, exactly=older and bool(wanted.release))
        return release, sorted(found.chosen), change

    def _libraries(self, default: str) -> list[Pick] | None:
        """cuDNN and NCCL; None where apt is asked first, or with the refusal said."""
        if not self.cudnn and not self.nccl:
            return []
        minors = [wanted.minor for wanted in self.wanted]
        served = [
            gpu for gpu in self.gpus
            if any(self.catalog.toolkit_support(m, gpu) in ("native", "binary") for m in minors)
        ]  # fmt: skip
        libraries = Libraries(
            self.facts, self.catalog, self.offer, served or self.gpus, minors, default, self.headers, self.wish.update
        )
        picks: list[Pick] = []
        for what, answer in (
            ("cuDNN", libraries.cudnn(self.cudnn) if self.cudnn else []),
            ("NCCL", libraries.nccl(self.nccl[0]) if self.nccl else []),
        ):
            if answer is None:
                if not self._refuse_repository([]):
                    self.out.ask = "cuda"
                return None
            if isinstance(answer, Issue):
                self.out.blockers.append(answer)
                continue
            for pick in [answer] if isinstance(answer, Pick) else answer:
                picks.append(pick)
                self._explain_library(what, pick, minors)
        return None if self.out.blockers else picks

    def _explain_library(self, what: str, pick: Pick, minors: list[str]) -> None:
        others = sorted({m.split(".")[0] for m in minors} - {pick.major}, key=int)
        because = pick.because
        if others:
            because += f"; it serves CUDA {pick.major}, not {and_(others)}"
        shown = pick.version if cudanames.suffix(pick.version) else pick.upstream
        self.out.reason(what, f"{shown} for CUDA {pick.major}", because)
        if pick.late:
            self.out.warn(
                f"cuda.{what.lower()}_gpu", f"{what} {shown} has no code for {and_(list(pick.late))}",
                ["it serves the other GPUs of this host"],
            )  # fmt: skip
        built, version = cudanames.suffix(pick.version), self._driver_version()
        if built and key(built) > key(pick.cuda) and version and runs(self.catalog, built, version) != "full":
            self.out.warn(
                f"cuda.{what.lower()}_newer", f"{what} {shown} is built with CUDA {built}, newer than the toolkit {pick.cuda}",
                [f"driver {version} runs CUDA {built} by minor-version compatibility only"],
            )  # fmt: skip

    # --- the target -------------------------------------------------------------------------------------------

    def _set_target(
        self, releases: dict[str, str], default: str, changes: dict[str, str], belonging: set[str], picks: list[Pick]
    ) -> None:  # fmt: skip
        rows = self.facts.packages
        libraries, left_out = without_conflicts(self.offer, picks)
        for name in left_out:
            self.out.warn(
                "cuda.cudnn_headers", f"{name} is left out: it cannot stand beside the headers of the newer cuDNN",
                ["programs are compiled against the newer one; the older one is there to run what was built with it"],
            )  # fmt: skip
        belonging |= set(libraries)
        for name, version in libraries.items():
            have = rows.get(name)
            if have is None or not have.installed or have.version != version:
                changes[name] = version
        remove = set(in_the_way(self.facts, self.offer, libraries))
        if remove:
            self.out.reason("removed", ", ".join(sorted(remove)), "cannot stand beside the cuDNN that is wanted")
        remove |= self._pruned(belonging | set(libraries))
        remove |= self._distribution(libraries)
        moving = {name for name in rows if is_there(rows, name) and self._would_move(name)} - remove
        cudahost.look_around(self.facts, self.catalog, self.wish, self.gpus, [w.toolkit for w in self.wanted], self.out)
        cudahost.warn_half_installed(self.facts, belonging | remove, self.out)
        self.out.target = CudaTarget(
            versions=tuple(releases), default=default, releases=releases,
            packages=dict(sorted(changes.items())), names=tuple(sorted(belonging | moving)), remove=tuple(sorted(remove)),
            cudnn={p.major: p.upstream for p in picks if "cudnn" in "".join(p.packages)},
            nccl=next((p.version for p in picks if "libnccl2" in p.packages), None),
        )  # fmt: skip

    @staticmethod
    def _would_move(name: str) -> bool:
        """Metapackages whose next version brings another toolkit, cuDNN or driver: held as they are."""
        package = cudanames.parse(name)
        return package is not None and (package.floating or package.kind == "meta_with_driver")

    def _pruned(self, belonging: set[str]) -> set[str]:
        rows = self.facts.packages
        minors = [wanted.minor for wanted in self.wanted]
        extra = [version for version in installed_toolkits(rows) if version not in minors]
        if not extra:
            return set()
        if not self.wish.prune:
            self.out.reason("left alone", f"CUDA {and_(extra)}", "not listed; cuda_toolkit_prune: true would remove it")
            return set()
        going = set(only_theirs(rows, extra, belonging))
        self.out.reason("removed", f"CUDA {and_(extra)}", f"not listed, and cuda_toolkit_prune is true: {len(going)} packages")
        return going

    def _distribution(self, libraries: dict[str, str]) -> set[str]:
        rows = self.facts.packages
        found = sorted(
            name for name in rows
            if is_there(rows, name) and (package := cudanames.parse(name, rows[name].version))
            and package.kind == "distribution"
        )  # fmt: skip
        replaced = [name for name in found if name in libraries]
        rest = [name for name in found if name not in libraries]
        if replaced:
            self.out.warn(
                "cuda.replaces_other", f"{and_(replaced)} of another origin gives way to NVIDIA's",
                [f"{name} {rows[name].version}" for name in replaced],
            )  # fmt: skip
        if rest and self.wish.remove_distribution:
            self.out.reason("removed", ", ".join(rest), "cuda_toolkit_remove_distribution is true")
            return set(rest)
        if rest:
            shadows = "nvidia-cuda-toolkit" in rest
            self.out.warn(
                "cuda.distribution_packages", f"CUDA packages that are not NVIDIA's are installed: {', '.join(rest[:6])}",
                ["/usr/bin/nvcc is of another version than the toolkits here" if shadows
                 else "programs may find their libraries instead of NVIDIA's"],
                "cuda_toolkit_remove_distribution: true removes them",
            )  # fmt: skip
        return set()


def _newer(one: str, other: str) -> bool:
    """True when a Debian version is higher than another."""
    return bool(debversion.compare(one, other) > 0)
