"""What a set of requested items leaves: each rule once. A set clashes when nothing is left of the branches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import combinations

from provision.catalog import UNSURE, Branch, Catalog, CudaMinor, Gpu, KnownBad, KnownSeries, Support, TensorflowRelease
from provision.catalog.builds import (
    Build,
    Driver,
    choose_torch,
    of_jax,
    of_tensorflow,
    of_toolkit,
    of_torch,
    torch_tags,
)
from provision.catalog.frameworks import MACHINES
from provision.catalog.models.base import Flavour
from provision.catalog.models.frameworks import JaxBuild
from provision.catalog.toolkits import c_library, channels, runs
from provision.catalog.versions import key, loads_cudnn, minor, same
from provision.compat.answer import Nearest
from provision.compat.request import ParsedRequest, RequestItem, parse_one
from provision.lib.suggest import suggest


@dataclass
class Left:
    """One branch that is left, with what goes with it."""

    branch: Branch
    flavours: list[Flavour]
    toolkits: list[CudaMinor]
    # those of ``Judge.programs`` that run
    programs: dict[str, dict[str, Build]]


class Judge:
    """The rules over one set of items."""

    def __init__(self, catalog: Catalog, parsed: ParsedRequest, today: date) -> None:
        self.catalog, self.parsed, self.today = catalog, parsed, today
        # The same questions come up for every branch: answered once.
        self._cudnn: dict[tuple[str, str, tuple[str, ...], tuple[str, ...]], bool] = {}
        self._known_series: dict[tuple[int, str], list[KnownSeries]] = {}

    def left(self, parsed: ParsedRequest) -> list[Left]:
        """Return every branch that all of ``parsed`` leave, oldest first; empty: they clash."""
        return list(self._left(parsed))

    def fits(self, parsed: ParsedRequest) -> bool:
        return next(self._left(parsed, every_toolkit=False), None) is not None

    def _left(self, parsed: ParsedRequest, *, every_toolkit: bool = True) -> Iterator[Left]:
        gpus = parsed.gpus
        needs_toolkit = bool({"cuda", "cudnn", "nccl"} & set(parsed))
        programs = self.programs(parsed)
        if not self._machine_ok(parsed) or not self._loads_cudnn(parsed) or (parsed.mig and self.undivided(gpus)):
            return
        for branch in self.catalog.branches:
            if not self._is_meant(branch, parsed):
                continue
            driver = Driver(parsed.version or str(branch.number), branch.max_cuda)
            flavours = [f for f in self.catalog.flavours(gpus, branch.number) if parsed.modules in (None, f)]
            runs_here = {
                kind: {name: build for name, build in builds.items() if build.why_not(gpus, driver) is None}
                for kind, builds in programs.items()
            }
            if not flavours or not all(runs_here.values()):
                continue
            toolkits: list[CudaMinor] = []
            if needs_toolkit or every_toolkit:
                toolkits = [t for t in self.catalog.cuda_minors if self._toolkit_ok(t, driver, parsed)]
            if toolkits or not needs_toolkit:
                yield Left(branch, flavours, toolkits, runs_here)

    def programs(self, parsed: ParsedRequest) -> dict[str, dict[str, Build]]:
        """What is asked for and was built with a CUDA, by kind and by name, oldest CUDA first.

        Toolkits by their minors, builds of PyTorch by their tags, of JAX by their extras. Empty: there are no wheels.
        """
        found: dict[str, dict[str, Build]] = {}
        for kind, toolkits in (("cuda", parsed.toolkits), ("image_cuda", parsed.image)):
            if toolkits:
                found[kind] = {t.version: of_toolkit(self.catalog, parsed.release(t)) for t in toolkits}
        if parsed.torch:
            found["torch"] = self.torch_builds(parsed)
        if parsed.jax:
            found["jax"] = self.jax_builds(parsed)
        if parsed.tensorflow:
            found["tensorflow"] = {"": of_tensorflow(self.catalog, parsed.tensorflow, parsed.machine)}
        return found

    def _machine_ok(self, parsed: ParsedRequest) -> bool:
        """True when every GPU sits beside the processor, and TensorFlow has wheels with code for GPUs for it."""
        if any(gpu.machine not in (None, parsed.machine) for gpu in parsed.gpus):
            return False
        return parsed.tensorflow is None or parsed.machine in self.catalog.frameworks.tensorflow.machines

    def _is_meant(self, branch: Branch, parsed: ParsedRequest) -> bool:
        if parsed.branch and parsed.branch.number != branch.number:
            return False
        if parsed.mig and any(not self.has_mig(gpu, parsed.version or str(branch.number)) for gpu in parsed.gpus):
            return False
        if not self.kernel_ok(branch, parsed) or self.does_not_build(parsed):
            return False
        if parsed.ubuntu is None:
            return True
        series = parsed["driver"].text if "driver" in parsed else ""
        series = series if series.endswith("-server") else ""
        seen = any(not series or row.series == series for row in self.known_series(branch, parsed))
        # Nobody is sent to a branch that was not seen; who asks for one is told that it was not looked for.
        unseen = "driver" in parsed and self.may_be_offered(branch, series, parsed)
        return seen or unseen

    @staticmethod
    def undivided(gpus: list[Gpu]) -> list[Gpu]:
        """GPUs that are known to have no MIG."""
        return [gpu for gpu in gpus if gpu.mig is False]

    @staticmethod
    def has_mig(gpu: Gpu, driver: str) -> bool:
        """False for a driver that is too old for MIG on a GPU; of a branch, its newest version counts."""
        return gpu.mig_driver is None or key(driver) >= key(gpu.mig_driver)[: len(key(driver))]

    def troubles(self, version: str, parsed: ParsedRequest) -> list[KnownBad]:
        """What is known against a driver where it can come from, on the Ubuntu, kernel and modules that are asked for.

        Without an Ubuntu that offers it, it is as NVIDIA builds it.
        """
        ubuntu = parsed.ubuntu.version if parsed.ubuntu else None
        rows = self.known_series(self.catalog.branch(version), parsed)
        found: list[KnownBad] = []
        for channel in {row.channel for row in rows} or {"cuda"}:
            found += self.catalog.known_bad(
                "driver", version, ubuntu=ubuntu, channel=channel, kernel=parsed.kernel, care=True
            )
        unique = [bad for i, bad in enumerate(found) if bad not in found[:i]]
        return [bad for bad in unique if bad.modules is None or parsed.modules is None or parsed.modules in bad.modules]

    def does_not_build(self, parsed: ParsedRequest) -> KnownBad | None:
        """What is known to keep the exact driver that is asked for from building for the kernel that is asked for."""
        if not parsed.version or not parsed.kernel:
            return None
        known = (bad for bad in self.troubles(parsed.version, parsed) if bad.severity == "avoid" and bad.kernel_from)
        return next(known, None)

    def may_be_offered(self, branch: Branch, series: str, parsed: ParsedRequest) -> bool:
        """True when it was not looked whether the Ubuntu that is asked for offers a branch; series: only that one."""
        names = [series] if series else [str(branch.number), f"{branch.number}-server"]
        ubuntu = parsed.ubuntu.version if parsed.ubuntu else ""
        return any(self.catalog.may_be_offered(name, ubuntu=ubuntu) for name in names)

    def known_series(self, branch: Branch, parsed: ParsedRequest) -> list[KnownSeries]:
        """Where a branch is known to be offered for the Ubuntu that is asked for; empty where none is."""
        if parsed.ubuntu is None:
            return []
        asked = (branch.number, parsed.ubuntu.version)
        if asked not in self._known_series:
            self._known_series[asked] = self.catalog.known_series(branch.number, ubuntu=parsed.ubuntu.version)
        return self._known_series[asked]

    def max_kernel(self, branch: Branch) -> str | None:
        """The newest kernel that a branch builds for; None: nothing is known against any.

        An ended branch builds for none that a newer branch, which got fixes after it, does not build for.
        """
        newer = [b for b in self.catalog.branches if b.number > branch.number and b.max_kernel]
        bounded = branch.max_kernel is None and branch.is_ended(self.today) and newer
        return newer[0].max_kernel if bounded else branch.max_kernel

    def kernel_ok(self, branch: Branch, parsed: ParsedRequest) -> bool:
        """True when a branch builds for the kernel that is asked for, else for that of the Ubuntu."""
        kernel = parsed.kernel or (parsed.ubuntu.kernel_ga if parsed.ubuntu else None)
        limit = self.max_kernel(branch) if kernel else None
        return kernel is None or limit is None or key(limit) >= key(minor(kernel))

    def torch_builds(self, parsed: ParsedRequest) -> dict[str, Build]:
        """Builds of the PyTorch that is asked for: the one that is named, or all."""
        if parsed.torch is None:
            return {}
        exact, release, machine = parsed["torch"].exact, parsed.torch, parsed.machine
        tags = [tag for tag in torch_tags(self.catalog, release, machine) if exact in (None, tag)]
        return {tag: of_torch(self.catalog, release.version, tag, machine) for tag in tags}

    def jax_builds(self, parsed: ParsedRequest) -> dict[str, Build]:
        """CUDA plugins of the JAX that is asked for, by their extras: the one that is named, or all; none without wheels."""
        if parsed.jax is None or (parsed.machine == "aarch64" and not parsed.jax.aarch64):
            return {}
        cudas = [key(toolkit.version) for toolkit in parsed.toolkits]
        return {
            codes.extra: of_jax(self.catalog, codes)
            for codes in parsed.jax.builds
            if parsed["jax"].exact in (None, codes.extra)
            and (not cudas or any(cuda[0] == key(codes.cuda)[0] and cuda >= key(codes.least) for cuda in cudas))
            and (parsed.cudnn is None or loads_cudnn(codes.cudnn, parsed.cudnn))
            and _share_libraries(codes, parsed.tensorflow)
        }

    @staticmethod
    def built_with(parsed: ParsedRequest, extra: str | None = None) -> list[str]:
        """The cuDNN that TensorFlow was compiled with, and that of the JAX plugin ``extra``."""
        codes = parsed.jax.builds if parsed.jax else ()
        return [
            *([parsed.tensorflow.cudnn] if parsed.tensorflow else []),
            *(build.cudnn for build in codes if build.extra == extra),
        ]

    def _toolkit_ok(self, toolkit: CudaMinor, driver: Driver, parsed: ParsedRequest) -> bool:
        if parsed.toolkits:
            # Who asks for a toolkit compiles with it: PTX is no answer, unless nobody knows what the card is.
            known = [gpu for gpu in parsed.gpus if gpu.cc]
            meant = any(toolkit.version == asked.version for asked in parsed.toolkits)
            if not meant or any(self.support(toolkit, gpu) == "jit" for gpu in known):
                return False
        if parsed.tensorflow and key(parsed.tensorflow.cuda)[0] != toolkit.major:
            return False
        if parsed.nccl and not self.catalog.nccl_for(toolkit.version, version=parsed.nccl):
            return False
        if of_toolkit(self.catalog, parsed.release(toolkit)).why_not(parsed.gpus, driver):
            return False
        if parsed.ubuntu:
            held = channels(self.catalog, parsed.release(toolkit), parsed.ubuntu.version)
            # The archive has neither cuDNN nor NCCL for its toolkits, and the two are never mixed.
            if not held or ("cuda" not in held and (parsed.cudnn or parsed.nccl)):
                return False
        return parsed.cudnn is None or self._has_cudnn(toolkit, parsed.cudnn, parsed)

    def _has_cudnn(self, toolkit: CudaMinor, version: str, parsed: ParsedRequest) -> bool:
        built = tuple(self.built_with(parsed))
        asked = (toolkit.version, version, tuple(gpu.cc for gpu in parsed.gpus if gpu.cc), built)
        if asked not in self._cudnn:
            pair = self.catalog.cudnn_for(toolkit.version, parsed.gpus, version=version, built=built)
            self._cudnn[asked] = pair is not None
        return self._cudnn[asked]

    @staticmethod
    def _loads_cudnn(parsed: ParsedRequest) -> bool:
        """TensorFlow loads cuDNNs of the major that it was built with, not older ones."""
        built, asked = parsed.tensorflow, parsed.cudnn
        return not built or not asked or loads_cudnn(built.cudnn, asked)

    def support(self, toolkit: CudaMinor, gpu: Gpu) -> Support:
        return of_toolkit(self.catalog, toolkit.version).support(gpu)

    def compiled(self, toolkit: CudaMinor) -> bool:
        """True when a toolkit compiles for every GPU that is asked for."""
        return all(self.support(toolkit, gpu) in ("native", "binary") for gpu in self.parsed.gpus)

    def recommend(self, left: list[Left]) -> Left:
        """The branch that the driver's part chooses too: maintained, not known bad, running the toolkits in full.

        Of several the one that is supported longest. Where none is left of a step, the next step is asked.
        """
        ubuntu = self.parsed.ubuntu.version if self.parsed.ubuntu else None

        def good(item: Left) -> bool:
            channels = {row.channel for row in self.known_series(item.branch, self.parsed)}
            bad = self.catalog.known_bad("driver", str(item.branch.number), ubuntu=ubuntu, kernel=self.parsed.kernel)
            return item.branch.is_long_term_or_production and not any(
                b.channels is None or channels <= set(b.channels) for b in bad
            )

        def sure(item: Left) -> bool:
            series_known = self.known_series(item.branch, self.parsed)
            return ubuntu is None or any(row.certainty not in UNSURE for row in series_known)

        steady = [item for item in left if good(item)]
        alive = [item for item in steady if not item.branch.is_ended(self.today)]
        full = [item for item in alive if self._in_full(item)] or alive
        best = [item for item in full if sure(item)] or full
        return max(best, key=lambda item: item.branch.preference()) if best else (steady or left)[-1]

    def _in_full(self, item: Left) -> bool:
        """True when a branch runs the toolkits that are asked for without minor-version compatibility."""
        toolkits = [*self.parsed.toolkits, *(self.parsed.image or ())][-1:]
        return all(runs(self.catalog, toolkit.version, item.branch.number) == "full" for toolkit in toolkits)

    def clashes(self) -> list[tuple[str, ...]]:
        """Smallest sets of items that leave nothing: single ones, else pairs, else triples, …"""
        for size in range(1, len(self.parsed) + 1):
            found = [names for names in combinations(self.parsed, size) if not self.fits(self.parsed.only(names))]
            if found:
                return found
        return []

    def nearest(self, names: tuple[str, ...]) -> list[Nearest]:
        """For each item of a clash, the nearest value that ends it; first those that make everything fit."""
        found: list[Nearest] = []
        for name in names:
            for scope, fits_all in ((self.parsed, True), (self.parsed.only(names), False)):
                nearest = self._replacements(name, scope.without(name), fits_all)
                found += nearest
                if nearest:
                    break
        return [nearest for nearest in found if nearest.fits_all] or found

    def _replacements(self, name: str, others: ParsedRequest, fits_all: bool) -> list[Nearest]:
        """The nearest value of an item that works beside the others; of a driver the recommended one too."""
        item = self.parsed[name]
        if item.kind == "gpu":
            kept = [other.text for other in others.values() if other.kind == "gpu"]
            if not kept or not self.fits(others):
                return []
            text = f"put {item.title} into a host of its own"
            return [Nearest(change={"gpu": ", ".join(kept)}, text=text, fits_all=fits_all)]
        if item.kind == "driver":
            left = self.left(others)
            # The nearest that is still maintained, and the recommended one.
            steady = [row.branch for row in left if row.branch.is_long_term_or_production]
            alive = [branch.number for branch in steady if not branch.is_ended(self.today)]
            near = sorted(alive, key=lambda number: abs(number - item.means.number))
            both = dict.fromkeys([*near[:1], self.recommend(left).branch.number] if left else [])
            return [
                Nearest(change={name: str(number)}, text=f"driver {number} instead of {item.title}", fits_all=fits_all)
                for number in both
            ]

        def works(change: dict[str, str]) -> bool:
            return self.fits(ParsedRequest({**others, name: parse_one(name, change[name], self.catalog)}))

        change = suggest(({name: text} for text in self._domain(item)), works)
        if change is None:
            return []
        other = parse_one(name, change[name], self.catalog)
        # Which build is meant: the same release is only another build of it.
        build = self._torch_build(ParsedRequest({**others, name: other})) if item.kind == "torch" else ""
        return [Nearest(change=change, text=f"{other.title}{build} instead of {item.title}", fits_all=fits_all)]

    def _torch_build(self, parsed: ParsedRequest) -> str:
        left, cudas = self.left(parsed), [toolkit.version for toolkit in parsed.toolkits]
        if parsed.torch is None or not left:
            return ""
        return "+" + choose_torch(parsed.torch, self.recommend(left).programs["torch"], parsed.gpus, cudas)

    def _domain(self, item: RequestItem) -> list[str]:
        """Values that could replace an item's, nearest first."""
        catalog = self.catalog
        if item.kind in ("cuda", "image_cuda"):
            nearest = _by_position([t.version for t in catalog.cuda_minors], [t.version for t in item.means])
            # What only runs, and compiles for no card that is asked for or not on that Ubuntu, comes last.
            glibc = self.parsed.ubuntu.glibc if self.parsed.ubuntu else None
            toolkits = [catalog.cuda(v) for v in nearest]
            late = {t.version: not self.compiled(t) or c_library(catalog, t, glibc) is not None for t in toolkits}
            return sorted(nearest, key=lambda v: late[v])
        if item.kind in ("cudnn", "nccl"):
            order = list(reversed(catalog.cudnn_versions if item.kind == "cudnn" else catalog.nccl_versions))
            return _by_position(order, [v for v in order if same(item.means, v)])
        if item.kind == "jax":
            nearest = _by_position(list(catalog.frameworks.jax.releases), [item.means.version])
            return [item.means.version, *nearest] if item.exact else nearest
        if item.kind == "machine":
            return [machine for machine in MACHINES.values() if machine != item.means]
        if item.kind == "torch":
            nearest = _by_position(list(catalog.frameworks.torch.releases), [item.means.version])
            newest = [v for v in nearest if catalog.torch(minor(v)).version == v]
            return [item.means.version, *newest] if item.exact else newest
        if item.kind == "tensorflow":
            minors = list(catalog.frameworks.tensorflow.releases)
            return _by_position(minors, [v for v in minors if minor(v) == minor(item.means.version)])
        if item.kind in ("kernel", "mig"):
            return []
        if item.kind == "ubuntu":
            return _by_position(list(catalog.ubuntu_data.releases), [item.means.version])
        return ["open" if item.means == "proprietary" else "proprietary"]


def _share_libraries(codes: JaxBuild, tensorflow: TensorflowRelease | None) -> bool:
    """True when a JAX plugin and TensorFlow load CUDA and cuDNN of the same majors: one environment holds one of each."""
    return tensorflow is None or all(
        key(one)[0] == key(other)[0] for one, other in ((codes.cuda, tensorflow.cuda), (codes.cudnn, tensorflow.cudnn))
    )


def _by_position(order: list[str], around: list[str]) -> list[str]:
    """The values beside ``around``, by their distance in ``order`` from its nearest end; of two equally near, the newer first."""
    ends = [order.index(around[0]), order.index(around[-1])]
    rest = [value for value in order if value not in around]
    return sorted(rest, key=lambda v: (min(abs(order.index(v) - end) for end in ends), -order.index(v)))
