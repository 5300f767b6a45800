"""What a set of wishes leaves: each rule once. A set clashes when nothing is left of the branches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from itertools import combinations

from provision.catalog import UNSURE, Branch, Catalog, CudaMinor, Gpu, Offer, Support
from provision.catalog.builds import Build, Driver, of_tensorflow, of_toolkit, of_torch, torch_tags
from provision.catalog.models.base import Flavour
from provision.catalog.versions import key, minor, same
from provision.compat.answer import Nearest
from provision.compat.request import Wish, Wished, parse_one
from provision.lib.suggest import suggest

# The processor whose wheels are meant; no wish says another.
MACHINE = "x86_64"


@dataclass
class Left:
    """One branch that is left, with what goes with it."""

    branch: Branch
    flavours: list[Flavour]
    toolkits: list[CudaMinor]
    # builds of PyTorch by their tags, oldest CUDA first
    tags: dict[str, Build]


class Judge:
    """The rules over one set of wishes."""

    def __init__(self, catalog: Catalog, wished: Wished, today: date) -> None:
        self.catalog, self.wished, self.today = catalog, wished, today
        # The same questions come up for every branch: answered once.
        self._cudnn: dict[tuple[str, str, tuple[str, ...]], bool] = {}
        self._offers: dict[tuple[int, str], list[Offer]] = {}

    def left(self, wished: Wished) -> list[Left]:
        """Return every branch that all of ``wished`` leave, oldest first; empty: they clash."""
        return list(self._left(wished))

    def fits(self, wished: Wished) -> bool:
        return next(self._left(wished, every_toolkit=False), None) is not None

    def _left(self, wished: Wished, *, every_toolkit: bool = True) -> Iterator[Left]:
        gpus = wished.gpus
        needs_toolkit = "cuda" in wished or "cudnn" in wished
        builds = self.torch_builds(wished)
        tensorflow = of_tensorflow(self.catalog, wished.tensorflow) if wished.tensorflow else None
        for branch in self.catalog.branches:
            if not self._is_meant(branch, wished):
                continue
            driver = Driver(wished.version or str(branch.number), branch.max_cuda)
            flavours = [f for f in self.catalog.flavours(gpus, branch.number) if wished.modules in (None, f)]
            if not flavours or (wished.image and not any(self._runs(t, driver, wished) for t in wished.image)):
                continue
            toolkits: list[CudaMinor] = []
            if needs_toolkit or every_toolkit:
                toolkits = [t for t in self.catalog.cuda_minors if self._toolkit_ok(t, driver, wished)]
            tags = {tag: build for tag, build in builds.items() if build.why_not(gpus, driver) is None}
            if (needs_toolkit and not toolkits) or ("torch" in wished and not tags):
                continue
            if tensorflow and (tensorflow.why_not(gpus, driver) or not self._loads_cudnn(wished)):
                continue
            yield Left(branch, flavours, toolkits, tags)

    def _is_meant(self, branch: Branch, wished: Wished) -> bool:
        if wished.branch and wished.branch.number != branch.number:
            return False
        if wished.ubuntu is None:
            return True
        series = wished["driver"].text if "driver" in wished else ""
        offers = self.offers(branch, wished)
        return self.kernel_ok(branch, wished) and any(
            not series.endswith("-server") or offer.series == series for offer in offers
        )

    def offers(self, branch: Branch, wished: Wished) -> list[Offer]:
        """Where a branch is known to be offered for the Ubuntu that is asked for; empty where none is."""
        if wished.ubuntu is None:
            return []
        asked = (branch.number, wished.ubuntu.version)
        if asked not in self._offers:
            self._offers[asked] = self.catalog.offers(branch.number, ubuntu=wished.ubuntu.version)
        return self._offers[asked]

    @staticmethod
    def kernel_ok(branch: Branch, wished: Wished) -> bool:
        """True when a branch builds for the kernel of the Ubuntu that is asked for."""
        ubuntu = wished.ubuntu
        return ubuntu is None or branch.max_kernel is None or key(branch.max_kernel) >= key(ubuntu.kernel_ga)

    def torch_builds(self, wished: Wished) -> dict[str, Build]:
        """Builds of the PyTorch that is asked for: the one that is named, or all."""
        if wished.torch is None:
            return {}
        exact, release = wished["torch"].exact, wished.torch
        tags = [exact] if exact else torch_tags(self.catalog, release, MACHINE)
        return {tag: of_torch(self.catalog, release.version, tag, MACHINE) for tag in tags}

    def _runs(self, toolkit: CudaMinor, driver: Driver, wished: Wished) -> bool:
        """Programs of a toolkit run; of an image nothing else is asked: repository and compiler are its own business."""
        return of_toolkit(self.catalog, toolkit.version).why_not(wished.gpus, driver) is None

    def _toolkit_ok(self, toolkit: CudaMinor, driver: Driver, wished: Wished) -> bool:
        if wished.toolkits:
            # Who asks for a toolkit compiles with it: PTX is no answer, unless nobody knows what the card is.
            known = [gpu for gpu in wished.gpus if gpu.cc]
            meant = any(toolkit.version == asked.version for asked in wished.toolkits)
            if not meant or any(self.support(toolkit, gpu) == "jit" for gpu in known):
                return False
        if wished.tensorflow and key(wished.tensorflow.cuda)[0] != toolkit.major:
            return False
        if not self._runs(toolkit, driver, wished):
            return False
        if wished.ubuntu and not self.catalog.cuda_in_repository(toolkit.version, ubuntu=wished.ubuntu.version):
            return False
        return wished.cudnn is None or self._has_cudnn(toolkit, wished.cudnn, wished)

    def _has_cudnn(self, toolkit: CudaMinor, version: str, wished: Wished) -> bool:
        asked = (toolkit.version, version, tuple(gpu.cc for gpu in wished.gpus if gpu.cc))
        if asked not in self._cudnn:
            pair = self.catalog.cudnn_for(toolkit.version, wished.gpus, version=version)
            self._cudnn[asked] = pair is not None
        return self._cudnn[asked]

    @staticmethod
    def _loads_cudnn(wished: Wished) -> bool:
        """TensorFlow loads the cuDNN of the major that it was built with."""
        built, asked = wished.tensorflow, wished.cudnn
        return not built or not asked or key(asked)[0] == key(built.cudnn)[0]

    def support(self, toolkit: CudaMinor, gpu: Gpu) -> Support:
        return of_toolkit(self.catalog, toolkit.version).support(gpu)

    def compiled(self, toolkit: CudaMinor) -> bool:
        """True when a toolkit compiles for every GPU that is asked for."""
        return all(self.support(toolkit, gpu) in ("native", "binary") for gpu in self.wished.gpus)

    def recommend(self, left: list[Left]) -> Left:
        """Newest long-term or production branch still maintained and not known bad; else the newest such; else newest."""
        ubuntu = self.wished.ubuntu.version if self.wished.ubuntu else None

        def good(item: Left) -> bool:
            channels = {offer.channel for offer in self.offers(item.branch, self.wished)}
            bad = self.catalog.known_bad("driver", str(item.branch.number), ubuntu=ubuntu)
            return item.branch.is_long_term_or_production and not any(
                b.channels is None or channels <= set(b.channels) for b in bad
            )

        def sure(item: Left) -> bool:
            offers = self.offers(item.branch, self.wished)
            return ubuntu is None or any(offer.certainty not in UNSURE for offer in offers)

        steady = [item for item in left if good(item)]
        alive = [item for item in steady if not item.branch.is_ended(self.today)]
        return ([item for item in alive if sure(item)] or alive or steady or left)[-1]

    def clashes(self) -> list[tuple[str, ...]]:
        """Smallest sets of wishes that leave nothing: single ones, else pairs, else triples, …"""
        for size in range(1, len(self.wished) + 1):
            found = [names for names in combinations(self.wished, size) if not self.fits(self.wished.only(names))]
            if found:
                return found
        return []

    def nearest(self, names: tuple[str, ...]) -> list[Nearest]:
        """For each wish of a clash, the nearest value that ends it; first those that make everything fit."""
        found: list[Nearest] = []
        for name in names:
            for scope, fits_all in ((self.wished, True), (self.wished.only(names), False)):
                near = self._replacement(name, scope.without(name), fits_all)
                if near:
                    found.append(near)
                    break
        return [near for near in found if near.fits_all] or found

    def _replacement(self, name: str, others: Wished, fits_all: bool) -> Nearest | None:
        wish = self.wished[name]
        if wish.kind == "gpu":
            kept = [other.text for other in others.values() if other.kind == "gpu"]
            if not kept or not self.fits(others):
                return None
            return Nearest(
                change={"gpu": ", ".join(kept)}, text=f"put {wish.title} into a host of its own", fits_all=fits_all
            )

        def works(change: dict[str, str]) -> bool:
            return self.fits(Wished({**others, name: parse_one(name, change[name], self.catalog)}))

        change = suggest(({name: text} for text in self._domain(wish, others)), works)
        if change is None:
            return None
        other = parse_one(name, change[name], self.catalog)
        return Nearest(change=change, text=f"{other.title} instead of {wish.title}", fits_all=fits_all)

    def _domain(self, wish: Wish, others: Wished) -> list[str]:
        """Values that could stand in for a wish, nearest first."""
        catalog = self.catalog
        if wish.kind == "driver":
            left = self.left(others)
            return [str(self.recommend(left).branch.number)] if left else []
        if wish.kind in ("cuda", "image_cuda"):
            near = _by_position([t.version for t in catalog.cuda_minors], [t.version for t in wish.means])
            return sorted(near, key=lambda v: not self.compiled(catalog.cuda(v)))
        if wish.kind == "cudnn":
            order = list(reversed(catalog.cudnn_versions))
            return _by_position(order, [v for v in order if same(wish.means, v)])
        if wish.kind == "torch":
            near = _by_position(list(catalog.frameworks.torch.releases), [wish.means.version])
            newest = [v for v in near if catalog.torch(minor(v)).version == v]
            return [wish.means.version, *newest] if wish.exact else newest
        if wish.kind == "tensorflow":
            return _by_position(list(catalog.frameworks.tensorflow.releases), [wish.means.version])
        if wish.kind == "ubuntu":
            return _by_position(list(catalog.ubuntu_data.releases), [wish.means.version])
        return ["open" if wish.means == "proprietary" else "proprietary"]


def _by_position(order: list[str], around: list[str]) -> list[str]:
    """The values beside ``around``, by their distance in ``order`` from its nearest end; of two equally near, the newer first."""
    ends = [order.index(around[0]), order.index(around[-1])]
    rest = [value for value in order if value not in around]
    return sorted(rest, key=lambda v: (min(abs(order.index(v) - end) for end in ends), -order.index(v)))
