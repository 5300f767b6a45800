"""What a set of wishes leaves: each rule once. A set clashes when nothing is left of the branches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from itertools import combinations

from provision.catalog import UNSURE, Branch, Catalog, CudaMinor, Gpu, Support, UbuntuRelease
from provision.catalog.models.base import Flavour
from provision.catalog.toolkits import in_full
from provision.catalog.versions import key, minor, same
from provision.compat.answer import Nearest
from provision.compat.wish import Wish, Wished, gpus_of, parse_one


@dataclass
class Left:
    """One branch that is left, with what goes with it."""

    branch: Branch
    flavours: list[Flavour]
    toolkits: list[CudaMinor]
    tags: list[str] = field(default_factory=list)


class Judge:
    """The rules over one set of wishes."""

    def __init__(self, catalog: Catalog, wished: Wished, today: date) -> None:
        self.catalog, self.wished, self.today = catalog, wished, today
        # The same questions come up for every branch: answered once.
        self._cudnn_known: dict[tuple[int, str, tuple[str, ...]], str | None] = {}
        self._degree_known: dict[tuple[str, ...], Support] = {}

    def left(self, wished: Wished) -> list[Left]:
        """Return every branch that all of ``wished`` leave, oldest first; empty: they clash."""
        return list(self._left(wished))

    def fits(self, wished: Wished) -> bool:
        return next(self._left(wished, every_toolkit=False), None) is not None

    def _left(self, wished: Wished, *, every_toolkit: bool = True) -> Iterator[Left]:
        gpus = gpus_of(wished)
        needs_toolkit = "cuda" in wished or "cudnn" in wished
        for branch in self.catalog.branches:
            if not self._branch_ok(branch, wished):
                continue
            flavours = self.catalog.flavours(gpus, branch.number)
            if "modules" in wished:
                flavours = [f for f in flavours if f == wished["modules"].modules]
            if not flavours or ("image_cuda" in wished and not self.image_ok(branch, wished, gpus)):
                continue
            toolkits: list[CudaMinor] = []
            if needs_toolkit or every_toolkit:
                toolkits = [t for t in self.catalog.cuda_minors if self._toolkit_ok(t, branch, wished, gpus)]
            if needs_toolkit and not toolkits:
                continue
            tags = self._tags(branch, wished, gpus)
            if "torch" in wished and not tags:
                continue
            if "tensorflow" in wished and not self._tensorflow_ok(branch, wished, gpus):
                continue
            yield Left(branch, flavours, toolkits, tags)

    def _branch_ok(self, branch: Branch, wished: Wished) -> bool:
        driver = wished.get("driver")
        if driver and driver.branch and driver.branch.number != branch.number:
            return False
        ubuntu = wished.get("ubuntu")
        return not (ubuntu and ubuntu.ubuntu) or self.offered(branch, ubuntu.ubuntu, driver.series if driver else None)

    def offered(self, branch: Branch, ubuntu: UbuntuRelease, series: str | None = None) -> bool:
        """True when a repository of that Ubuntu is known to hold the branch, and the branch builds for its
        kernel."""
        offers = self.catalog.offers(branch.number, ubuntu=ubuntu.version)
        if series:
            offers = [o for o in offers if o.series == series]
        return bool(offers) and self.kernel_ok(branch, ubuntu)

    @staticmethod
    def kernel_ok(branch: Branch, ubuntu: UbuntuRelease) -> bool:
        return branch.max_kernel is None or key(branch.max_kernel) >= key(ubuntu.kernel_ga)

    def _runs(self, branch: Branch, wished: Wished, least: str) -> bool:
        """True when a branch (or the exact driver that is asked for) is not older than a driver version."""
        driver = wished.get("driver")
        if driver and driver.version:
            return key(driver.version) >= key(least)
        return branch.number >= key(least)[0]

    def image_ok(self, branch: Branch, wished: Wished, gpus: list[Gpu]) -> bool:
        """True when a branch runs an image's CUDA: its repository and its compiler are the image's own business."""
        for toolkit in wished["image_cuda"].toolkits:
            degrees = [self.degree(gpu, "cuda", toolkit.version) for gpu in gpus]
            needs_ptx = "jit" in degrees and not in_full(branch, toolkit.version)
            if self._runs(branch, wished, toolkit.min_driver) and "none" not in degrees and not needs_ptx:
                return True
        return False

    def _toolkit_ok(self, toolkit: CudaMinor, branch: Branch, wished: Wished, gpus: list[Gpu]) -> bool:
        if "cuda" in wished and toolkit.version not in wished["cuda"].covers:
            return False
        if not self._runs(branch, wished, toolkit.min_driver):
            return False
        for gpu in gpus:
            degree = self.degree(gpu, "cuda", toolkit.version)
            if degree == "none" or (degree == "jit" and not in_full(branch, toolkit.version)):
                return False
            # Who asks for a toolkit compiles with it: PTX is no answer, unless nobody knows what the card is.
            if degree == "jit" and "cuda" in wished and gpu.cc:
                return False
        ubuntu = wished.get("ubuntu")
        if (
            ubuntu
            and ubuntu.ubuntu
            and not self.catalog.cuda_in_repository(toolkit.version, ubuntu=ubuntu.ubuntu.version)
        ):
            return False
        tensorflow = wished.get("tensorflow")
        if tensorflow and tensorflow.tensorflow and key(tensorflow.tensorflow.cuda)[0] != toolkit.major:
            return False
        return "cudnn" not in wished or self._cudnn_version(toolkit, wished["cudnn"], gpus) is not None

    def _cudnn_version(self, toolkit: CudaMinor, wish: Wish, gpus: list[Gpu]) -> str | None:
        """Newest known cuDNN that the wish covers, for that CUDA major, with code for every GPU."""
        ccs = tuple(gpu.cc for gpu in gpus if gpu.cc)
        asked = (toolkit.major, wish.version or "", ccs)
        if asked not in self._cudnn_known:
            self._cudnn_known[asked] = next(
                (
                    version
                    for version, majors in self.catalog.cudnn_versions.items()
                    if toolkit.major in majors
                    and same(wish.version or "", version)
                    and all(self.catalog.cudnn_drives(version, cc) for cc in ccs)
                ),
                None,
            )
        return self._cudnn_known[asked]

    def degree(self, gpu: Gpu, what: str, version: str, tag: str = "") -> Support:
        """Support of a GPU by a toolkit ("cuda"), a torch build or a TensorFlow release."""
        asked = (gpu.id, what, version, tag)
        if asked not in self._degree_known:
            self._degree_known[asked] = (
                self.catalog.toolkit_support(version, gpu)
                if what == "cuda"
                else self.catalog.torch_support(version, tag, gpu)
                if what == "torch"
                else self.catalog.tensorflow_support(version, gpu)
            )
        return self._degree_known[asked]

    def _tags(self, branch: Branch, wished: Wished, gpus: list[Gpu]) -> list[str]:
        wish = wished.get("torch")
        if not wish or not wish.torch:
            return []
        release, tags = wish.torch, self.catalog.frameworks.torch.tags
        good = []
        for tag in (wish.tag,) if wish.tag else release.offered:
            degrees = [self.degree(gpu, "torch", release.version, tag) for gpu in gpus]
            if not self._runs(branch, wished, self.catalog.torch_min_driver(tag)) or "none" in degrees:
                continue
            if "jit" in degrees and not in_full(branch, tags[tag].cuda):
                continue
            good.append(tag)
        return good

    def _tensorflow_ok(self, branch: Branch, wished: Wished, gpus: list[Gpu]) -> bool:
        release = wished["tensorflow"].tensorflow
        if release is None:
            return True
        if not self._runs(branch, wished, self.catalog.min_driver(release.cuda)):
            return False
        for gpu in gpus:
            degree = self.degree(gpu, "tensorflow", release.version)
            if degree == "none" or (degree == "jit" and not in_full(branch, release.cuda)):
                return False
        cudnn = wished.get("cudnn")
        return not cudnn or key(cudnn.version or "0")[0] == key(release.cudnn)[0]

    def compiled(self, toolkit: CudaMinor) -> bool:
        degrees = [self.degree(gpu, "cuda", toolkit.version) for gpu in gpus_of(self.wished)]
        return all(degree in ("native", "binary") for degree in degrees)

    def recommend(self, left: list[Left]) -> Left:
        """Newest long-term or production branch still maintained and not known bad; else the newest such;
        else newest."""
        ubuntu = self.wished["ubuntu"].ubuntu if "ubuntu" in self.wished else None
        release = ubuntu.version if ubuntu else None

        def good(item: Left) -> bool:
            offers = self.catalog.offers(item.branch.number, ubuntu=release) if release else []
            channels = {o.channel for o in offers}
            bad = [
                b
                for b in self.catalog.known_bad("driver", str(item.branch.number), ubuntu=release)
                if b.channels is None or channels <= set(b.channels)
            ]
            return item.branch.is_long_term_or_production and not bad

        def sure(item: Left) -> bool:
            offers = self.catalog.offers(item.branch.number, ubuntu=release) if release else []
            return release is None or any(o.certainty not in UNSURE for o in offers)

        steady = [item for item in left if good(item)]
        alive = [item for item in steady if not item.branch.is_ended(self.today)]
        return ([item for item in alive if sure(item)] or alive or steady or left)[-1]

    def clashes(self) -> list[tuple[str, ...]]:
        """Smallest sets of wishes that leave nothing: single ones, else pairs, else triples, …"""
        names = list(self.wished)
        for size in range(1, len(names) + 1):
            found = [c for c in combinations(names, size) if not self.fits({n: self.wished[n] for n in c})]
            if found:
                return found
        return []

    def nearest(self, names: tuple[str, ...]) -> list[Nearest]:
        """For each wish of a clash, the nearest value that ends it; first those that make everything fit."""
        found: list[Nearest] = []
        for name in names:
            for scope, fits_all in ((self.wished, True), ({n: self.wished[n] for n in names}, False)):
                others = {n: w for n, w in scope.items() if n != name}
                near = self._replacement(name, others)
                if near:
                    found.append(near.model_copy(update={"fits_all": fits_all}))
                    break
        return [n for n in found if n.fits_all] or found

    def _replacement(self, name: str, others: dict[str, Wish]) -> Nearest | None:
        wish = self.wished[name]
        if wish.gpu:
            if not any(w.gpu for w in others.values()) or not self.fits(others):
                return None
            kept = [w.text for w in others.values() if w.gpu]
            return Nearest(
                change={"gpu": ", ".join(kept)}, text=f"put {wish.gpu.name} into a host of its own", fits_all=True
            )
        for text in self._domain(wish, others):
            other = parse_one(wish.kind, text, self.catalog)
            if self.fits({**others, name: other}):
                label = other.title if wish.kind != "driver" else f"driver {text}"
                return Nearest(change={wish.kind: text}, text=f"{label} instead of {wish.title}", fits_all=True)
        return None

    def _domain(self, wish: Wish, others: Wished) -> list[str]:
        """Values that could stand in for a wish, nearest first."""
        catalog = self.catalog
        if wish.kind == "driver":
            left = self.left(others)
            return [str(self.recommend(left).branch.number)] if left else []
        if wish.kind in ("cuda", "image_cuda"):
            versions = [t.version for t in catalog.cuda_minors if t.version not in wish.covers]
            order = [t.version for t in catalog.cuda_minors]
            compiled = [t.version for t in catalog.cuda_minors if self.compiled(t)]
            near = _by_position(versions, order, wish.toolkits[-1].version, wish.toolkits[0].version)
            return sorted(near, key=lambda v: v not in compiled)
        if wish.kind == "cudnn":
            order = list(reversed(catalog.cudnn_versions))
            covered = [v for v in order if same(wish.version or "", v)]
            rest = [v for v in order if v not in covered]
            return _by_position(rest, order, covered[-1], covered[0])
        if wish.kind == "torch" and wish.torch:
            order = list(catalog.frameworks.torch.releases)
            newest = [v for v in order if catalog.torch(minor(v)).version == v or v == wish.torch.version]
            near = _by_position([v for v in newest if v != wish.torch.version], order, wish.torch.version)
            return [wish.torch.version, *near] if wish.tag else near
        if wish.kind == "tensorflow" and wish.tensorflow:
            order = list(catalog.frameworks.tensorflow.releases)
            rest = [v for v in order if v != wish.tensorflow.version]
            return _by_position(rest, order, wish.tensorflow.version)
        if wish.kind == "ubuntu" and wish.ubuntu:
            order = list(catalog.ubuntu_data.releases)
            return _by_position([v for v in order if v != wish.ubuntu.version], order, wish.ubuntu.version)
        return ["open" if wish.modules == "proprietary" else "proprietary"] if wish.kind == "modules" else []


def _by_position(values: list[str], order: list[str], *around: str) -> list[str]:
    """Sort values by their distance in ``order`` from the nearest of ``around``; of two equally near, the
    newer first."""
    places = [order.index(a) for a in around]
    return sorted(values, key=lambda v: (min(abs(order.index(v) - p) for p in places), -order.index(v)))
