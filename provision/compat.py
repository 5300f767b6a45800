"""What fits together, answered from the catalog alone: any combination of GPUs, driver, CUDA, cuDNN,
frameworks, Ubuntu.

``compat(wishes, catalog)`` is a pure function. Every wish narrows what can be chosen (driver branch, module
flavour, CUDA toolkit, framework build); a set of wishes fits when something is left. When nothing is left,
the smallest sets of wishes that clash are named, each with the reason, and for each the nearest thing that
works.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import combinations
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from provision.catalog import (
    SUPPORT_ORDER,
    UNSURE,
    Branch,
    Catalog,
    CudaMinor,
    Gpu,
    Offer,
    Support,
    TensorflowRelease,
    TorchRelease,
    UbuntuRelease,
)
from provision.catalog.models import Flavour, last_day
from provision.catalog.versions import key, minor, same
from provision.errors import Issue, UsageError

SCHEMA: Literal["provision/compat/1"] = "provision/compat/1"


class Wishes(BaseModel):
    """What is asked for; everything optional. gpu: names or PCI ids, one for each kind of GPU in the host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: tuple[str, ...] = ()
    driver: str | None = None  # "580", "580-server", "580.95.05"
    cuda: str | None = None  # "12.4", "12.4.1", "13"
    cudnn: str | None = None  # "9", "9.10", "9.10.2.21"
    torch: str | None = None  # "2.6", "2.6.0", "2.6+cu124"
    tensorflow: str | None = None  # "2.18"
    ubuntu: str | None = None  # "22.04", "jammy"
    modules: str | None = None  # "open", "proprietary"


class GpuAnswer(BaseModel):
    asked: str
    name: str
    architecture: str | None
    cc: str | None
    ids: list[str]
    fabric: str
    support: Support | None  # weakest over what was asked; None: nothing that runs on it was asked


class DriverAnswer(BaseModel):
    branches: list[int] = Field(default_factory=list)  # that fit, oldest first
    recommended: int | None = None
    minimum: str | None = None  # version where one is known ("525.60.13"), else a branch ("520")
    modules: list[Flavour] = Field(default_factory=list)  # for the recommended branch, preferred first
    offers: list[Offer] = Field(
        default_factory=list
    )  # where that branch is known to be, for the Ubuntu that is asked


class CudaAnswer(BaseModel):
    chosen: str | None = None
    release: str | None = None  # "12.4.1": the one asked for, else the newest of the chosen minor
    package: str | None = None
    range: list[str] | None = None  # first and last that fit everything else


class LibraryAnswer(BaseModel):
    """cuDNN or NCCL from apt: pins are exact (runtime and headers)."""

    version: str
    cuda: str
    pins: list[str]
    because: str


class TorchAnswer(BaseModel):
    version: str
    tag: str
    cuda: str
    cudnn: str | None
    nccl: str | None
    index_url: str


class TensorflowAnswer(BaseModel):
    version: str
    cuda: str
    cudnn: str
    extra: str | None  # what pip installs, None where there is no extra


class Nearest(BaseModel):
    """One change of one wish that makes things work: wish name to its new value."""

    change: dict[str, str]
    text: str
    fits_all: bool  # False: it ends this clash, another one stays


class CompatAnswer(BaseModel):
    """The answer. Dump with ``by_alias=True``: the schema's name is under "schema"."""

    model_config = ConfigDict(populate_by_name=True)

    schema_: Literal["provision/compat/1"] = Field(default=SCHEMA, alias="schema")
    wishes: Wishes
    fits: bool
    support: Support | None
    conflicts: list[Issue] = Field(default_factory=list)
    warnings: list[Issue] = Field(default_factory=list)
    nearest: list[Nearest] = Field(default_factory=list)
    gpus: list[GpuAnswer] = Field(default_factory=list)
    driver: DriverAnswer = DriverAnswer()
    cuda: CudaAnswer = CudaAnswer()
    cudnn: LibraryAnswer | None = None
    nccl: LibraryAnswer | None = None
    torch: TorchAnswer | None = None
    tensorflow: TensorflowAnswer | None = None
    python: list[str] = Field(default_factory=list)  # that every asked framework has wheels for


def compat(wishes: Wishes, catalog: Catalog, *, today: date | None = None) -> CompatAnswer:
    """Answer what fits.

    today: for warnings about ended branches; the catalog's own date where not given. Raises UsageError for
    values that do not exist (CUDA 12.7, branch 999, Ubuntu 23.04, an ambiguous GPU), with the nearest that
    do.
    """
    asked = _parse(wishes, catalog)
    day = today or last_day(str(catalog.drivers.as_of))
    return _Judge(catalog, asked, day).answer(wishes)


# --- what was asked, understood -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Wish:
    """One wish: its kind, what was typed, and what it means (a GPU, branch, release, …)."""

    kind: str
    text: str
    gpu: Gpu | None = None
    branch: Branch | None = None
    series: str | None = None  # "580-server" where that was asked for
    version: str | None = None  # exact driver version, or cuDNN prefix
    toolkits: tuple[CudaMinor, ...] = ()
    torch: TorchRelease | None = None
    tag: str | None = None
    tensorflow: TensorflowRelease | None = None
    ubuntu: UbuntuRelease | None = None
    modules: Flavour | None = None

    @cached_property
    def covers(self) -> frozenset[str]:
        """CUDA minors that are meant."""
        return frozenset(toolkit.version for toolkit in self.toolkits)

    @property
    def title(self) -> str:
        """As messages name it."""
        if self.gpu:
            return self.gpu.name
        if self.torch:
            return f"torch {self.torch.version}" + (f"+{self.tag}" if self.tag else "")
        names = {
            "driver": "driver",
            "cuda": "CUDA",
            "cudnn": "cuDNN",
            "tensorflow": "TensorFlow",
            "ubuntu": "Ubuntu",
        }
        if self.ubuntu:
            return f"Ubuntu {self.ubuntu.version}"
        if self.tensorflow:
            return f"TensorFlow {self.tensorflow.version}"
        if self.modules:
            return f"{self.modules} modules"
        return f"{names[self.kind]} {self.text}"


_Wished = Mapping[str, _Wish]  # "gpu0", "gpu1", "driver", "cuda", …


def _parse(wishes: Wishes, catalog: Catalog) -> dict[str, _Wish]:
    found = {f"gpu{i}": _parse_gpu(text, catalog) for i, text in enumerate(dict.fromkeys(wishes.gpu))}
    for kind in ("driver", "cuda", "cudnn", "torch", "tensorflow", "ubuntu", "modules"):
        value = getattr(wishes, kind)
        if value is not None and str(value).strip():
            found[kind] = _parse_one(kind, str(value).strip(), catalog)
    return found


def _parse_gpu(text: str, catalog: Catalog) -> _Wish:
    match = catalog.find_gpu(text)
    if match.gpu:
        return _Wish("gpu", text, gpu=match.gpu)
    if match.candidates:
        names = [f"{g.name} ({g.architecture}, compute capability {g.cc}): {g.id}" for g in match.candidates]
        raise UsageError(
            "compat.gpu_ambiguous", f"{text!r} means several GPUs with different answers", because=names,
            hint="write one of these names or its PCI id",
        )  # fmt: skip
    near = ", ".join(match.nearest)
    raise UsageError(
        "compat.unknown_gpu", f"there is no GPU {text!r} in the catalog",
        hint=f"nearest: {near}" if near else "write a name such as 'RTX 3090' or a PCI device id such as 10de:2330",
    )  # fmt: skip


def _parse_one(kind: str, text: str, catalog: Catalog) -> _Wish:
    if kind == "driver":
        branch = catalog.branch(text)
        exact = text if "." in text else None
        return _Wish(
            kind, text, branch=branch, version=exact, series=text if text.endswith("-server") else None
        )
    if kind == "cuda":
        newest = catalog.cuda(text)
        covered = (
            [m for m in catalog.cuda_minors if same(text, m.version)] if text.count(".") < 2 else [newest]
        )
        if text.count(".") >= 2 and not any(same(text, v) or same(v, text) for v in newest.releases):
            raise UsageError(
                "catalog.unknown_cuda", f"there is no CUDA toolkit {text!r} in the catalog",
                because=[f"releases of {newest.version}: {', '.join(newest.releases)}"],
                hint=f"nearest known: {newest.releases[-1] if newest.releases else newest.version}",
            )  # fmt: skip
        return _Wish(kind, text, toolkits=tuple(covered or [newest]))
    if kind == "cudnn":
        if not re.fullmatch(r"\d+(\.\d+)*", text) or not any(same(text, v) for v in catalog.cudnn_versions):
            near = sorted(catalog.cudnn_versions, key=lambda v: _far(v, text))[:3]
            raise UsageError(
                "catalog.unknown_cudnn",
                f"there is no cuDNN {text!r} in the catalog",
                hint="nearest known: " + ", ".join(near),
            )
        return _Wish(kind, text, version=text)
    if kind == "torch":
        release = catalog.torch(text)
        tag = text.partition("+")[2] or None
        if tag and tag not in release.offered:
            raise UsageError(
                "compat.unknown_torch_build", f"torch {release.version} has no build {tag!r}",
                because=[f"builds of {release.version}: {', '.join(release.offered)}"],
                hint=f"write one of them, or no build: {release.version}+{release.default}",
            )  # fmt: skip
        return _Wish(kind, text, torch=release, tag=tag)
    if kind == "tensorflow":
        return _Wish(kind, text, tensorflow=catalog.tensorflow(text))
    if kind == "ubuntu":
        return _Wish(kind, text, ubuntu=catalog.ubuntu(text))
    flavour = text.lower()
    if flavour == "open":
        return _Wish(kind, text, modules="open")
    if flavour == "proprietary":
        return _Wish(kind, text, modules="proprietary")
    raise UsageError("compat.unknown_modules", f"there are no {text!r} modules", hint="open or proprietary")


def _far(one: str, other: str) -> tuple[int, ...]:
    """Distance of two versions, for ordering by nearness."""
    a, b = key(one), key(other)
    width = max(len(a), len(b))
    return tuple(abs((a + (0,) * width)[i] - (b + (0,) * width)[i]) for i in range(width))


# --- what is left -------------------------------------------------------------------------------------------


@dataclass
class _Left:
    """One branch that is left, with what goes with it."""

    branch: Branch
    flavours: list[Flavour]
    toolkits: list[CudaMinor]
    tags: list[str] = field(default_factory=list)


class _Judge:
    def __init__(self, catalog: Catalog, wished: _Wished, today: date) -> None:
        self.catalog, self.wished, self.today = catalog, wished, today
        # The same questions come up for every branch: answered once.
        self._cudnn_known: dict[tuple[int, str, tuple[str, ...]], str | None] = {}
        self._degree_known: dict[tuple[str, ...], Support] = {}

    # Each rule once: which branches, flavours, toolkits and builds a set of wishes leaves.

    def left(self, wished: _Wished) -> list[_Left]:
        """Return every branch that all of ``wished`` leave, oldest first; empty: they clash."""
        return list(self._left(wished))

    def fits(self, wished: _Wished) -> bool:
        return next(self._left(wished, every_toolkit=False), None) is not None

    def _left(self, wished: _Wished, *, every_toolkit: bool = True) -> Iterator[_Left]:
        gpus = _gpus(wished)
        needs_toolkit = "cuda" in wished or "cudnn" in wished
        for branch in self.catalog.branches:
            if not self._branch_ok(branch, wished):
                continue
            flavours = self.catalog.flavours(gpus, branch.number)
            if "modules" in wished:
                flavours = [f for f in flavours if f == wished["modules"].modules]
            if not flavours:
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
            yield _Left(branch, flavours, toolkits, tags)

    def _branch_ok(self, branch: Branch, wished: _Wished) -> bool:
        driver = wished.get("driver")
        if driver and driver.branch and driver.branch.number != branch.number:
            return False
        ubuntu = wished.get("ubuntu")
        return not (ubuntu and ubuntu.ubuntu) or self.offered(
            branch, ubuntu.ubuntu, driver.series if driver else None
        )

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

    def _runs(self, branch: Branch, wished: _Wished, least: str) -> bool:
        """True when a branch (or the exact driver that is asked for) is not older than a driver version."""
        driver = wished.get("driver")
        if driver and driver.version:
            return key(driver.version) >= key(least)
        return branch.number >= key(least)[0]

    def _toolkit_ok(self, toolkit: CudaMinor, branch: Branch, wished: _Wished, gpus: list[Gpu]) -> bool:
        if "cuda" in wished and toolkit.version not in wished["cuda"].covers:
            return False
        if not self._runs(branch, wished, toolkit.min_driver):
            return False
        for gpu in gpus:
            degree = self.degree(gpu, "cuda", toolkit.version)
            if degree == "none" or (degree == "jit" and not _in_full(branch, toolkit.version)):
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

    def _cudnn_version(self, toolkit: CudaMinor, wish: _Wish, gpus: list[Gpu]) -> str | None:
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

    def _tags(self, branch: Branch, wished: _Wished, gpus: list[Gpu]) -> list[str]:
        wish = wished.get("torch")
        if not wish or not wish.torch:
            return []
        release, tags = wish.torch, self.catalog.frameworks.torch.tags
        good = []
        for tag in (wish.tag,) if wish.tag else release.offered:
            degrees = [self.degree(gpu, "torch", release.version, tag) for gpu in gpus]
            if not self._runs(branch, wished, tags[tag].min_driver) or "none" in degrees:
                continue
            if "jit" in degrees and not _in_full(branch, tags[tag].cuda):
                continue
            good.append(tag)
        return good

    def _tensorflow_ok(self, branch: Branch, wished: _Wished, gpus: list[Gpu]) -> bool:
        release = wished["tensorflow"].tensorflow
        if release is None:
            return True
        least = self.catalog.frameworks.tensorflow.min_driver[str(key(release.cuda)[0])]
        if not self._runs(branch, wished, least):
            return False
        for gpu in gpus:
            degree = self.degree(gpu, "tensorflow", release.version)
            if degree == "none" or (degree == "jit" and not _in_full(branch, release.cuda)):
                return False
        cudnn = wished.get("cudnn")
        return not cudnn or key(cudnn.version or "0")[0] == key(release.cudnn)[0]

    # The answer.

    def answer(self, wishes: Wishes) -> CompatAnswer:
        left = self.left(self.wished)
        answer = CompatAnswer(wishes=wishes, fits=bool(left), support=None)
        warn = _Warnings(self.catalog, self.today)
        if left:
            self._conclude(answer, left, warn)
        else:
            self._explain(answer)
        self._degrees(answer, warn)
        warn.wishes(self.wished)
        answer.warnings = warn.issues
        return answer

    def _conclude(self, answer: CompatAnswer, left: list[_Left], warn: _Warnings) -> None:
        chosen = self._recommend(left)
        branch = chosen.branch
        tag = self._choose_tag(chosen)
        toolkit = self._choose_toolkit(chosen, tag)
        answer.driver = DriverAnswer(
            branches=[item.branch.number for item in left], recommended=branch.number,
            minimum=self._minimum(left[0]), modules=chosen.flavours, offers=self._offers(branch),
        )  # fmt: skip
        without = {k: w for k, w in self.wished.items() if k != "cuda"}
        fit = {t.version for item in self.left(without) for t in item.toolkits if self._compiled(t)}
        span = sorted(fit, key=key)
        answer.cuda = CudaAnswer(
            chosen=toolkit.version if toolkit else None, release=self._release(toolkit),
            package=toolkit.toolkit_package if toolkit else None,
            range=[span[0], span[-1]] if span else None,
        )  # fmt: skip
        self._libraries(answer, toolkit, warn)
        self._frameworks(answer, tag)
        warn.branch(branch, self.wished)
        if "driver" not in self.wished and "ubuntu" in self.wished:
            warn.offers(branch, str(branch.number), self.wished["ubuntu"].ubuntu)
        if toolkit is None and "ubuntu" in self.wished and _gpus(self.wished):
            warn.add(
                "cuda.none_in_repository",
                f"NVIDIA's repository of {self.wished['ubuntu'].title} has no CUDA toolkit for these GPUs",
                hint="take CUDA from conda or in a container",
            )
        if toolkit:
            warn.toolkit(toolkit, branch, _gpus(self.wished), explicit=self._explicit_toolkit)
        if tag:
            warn.torch_tag(self.wished["torch"], tag, self.wished.get("cuda"), _gpus(self.wished))

    def _offers(self, branch: Branch) -> list[Offer]:
        ubuntu = self.wished["ubuntu"].ubuntu if "ubuntu" in self.wished else None
        return self.catalog.offers(branch.number, ubuntu=ubuntu.version) if ubuntu else []

    def _release(self, toolkit: CudaMinor | None) -> str | None:
        wish = self.wished.get("cuda")
        if toolkit is None or not toolkit.releases:
            return None
        return next((v for v in toolkit.releases if wish and v == wish.text), toolkit.releases[-1])

    @property
    def _explicit_toolkit(self) -> bool:
        return "cuda" in self.wished or "cudnn" in self.wished

    def _compiled(self, toolkit: CudaMinor) -> bool:
        degrees = [self.degree(gpu, "cuda", toolkit.version) for gpu in _gpus(self.wished)]
        return all(degree in ("native", "binary") for degree in degrees)

    def _recommend(self, left: list[_Left]) -> _Left:
        """Newest long-term or production branch still maintained and not known bad; else the newest such;
        else newest."""
        ubuntu = self.wished["ubuntu"].ubuntu if "ubuntu" in self.wished else None
        release = ubuntu.version if ubuntu else None

        def good(item: _Left) -> bool:
            offers = self.catalog.offers(item.branch.number, ubuntu=release) if release else []
            channels = {o.channel for o in offers}
            bad = [
                b for b in self.catalog.known_bad("driver", str(item.branch.number), ubuntu=release)
                if b.channels is None or channels <= set(b.channels)
            ]  # fmt: skip
            return item.branch.is_long_term_or_production and not bad

        def sure(item: _Left) -> bool:
            offers = self.catalog.offers(item.branch.number, ubuntu=release) if release else []
            return release is None or any(o.certainty not in UNSURE for o in offers)

        steady = [item for item in left if good(item)]
        alive = [item for item in steady if not item.branch.is_ended(self.today)]
        return ([item for item in alive if sure(item)] or alive or steady or left)[-1]

    def _choose_tag(self, item: _Left) -> str | None:
        if not item.tags:
            return None
        release = self.wished["torch"].torch
        tags = self.catalog.frameworks.torch.tags
        wanted = self.wished["cuda"].toolkits if "cuda" in self.wished else ()

        def rank(tag: str) -> tuple[int, int, int, int]:
            version = release.version if release else ""
            degree = max(
                (SUPPORT_ORDER.index(self.degree(g, "torch", version, tag)) for g in _gpus(self.wished)),
                default=0,
            )
            near = 0 if any(t.version == tags[tag].cuda for t in wanted) else 1
            major = 0 if any(t.major == key(tags[tag].cuda)[0] for t in wanted) else 1
            return (
                int(degree >= 2),
                near if wanted else 0,
                major if wanted else 0,
                0 if release and tag == release.default else 1,
            )

        return min(reversed(item.tags), key=rank)

    def _choose_toolkit(self, item: _Left, tag: str | None) -> CudaMinor | None:
        """Newest that the branch runs in full and that compiles for the GPUs; beside torch, torch's own where
        it fits."""
        pool = [t for t in item.toolkits if self._compiled(t)] or (
            item.toolkits if self._explicit_toolkit else []
        )
        if tag and "cuda" not in self.wished:
            own = [t for t in pool if t.version == self.catalog.frameworks.torch.tags[tag].cuda]
            pool = own or pool
        full = [t for t in pool if _in_full(item.branch, t.version)]
        pool = full or (pool if self._explicit_toolkit else [])
        return pool[-1] if pool else None

    def _minimum(self, first: _Left) -> str:
        """Oldest driver that fits: a version where a rule names one within the oldest branch, else the
        branch."""
        driver = self.wished.get("driver")
        if driver and driver.version:
            return driver.version
        tags = self.catalog.frameworks.torch.tags
        least = []
        if self._explicit_toolkit:
            least.append(min((toolkit.min_driver for toolkit in first.toolkits), key=key))
        if first.tags:
            least.append(min((tags[tag].min_driver for tag in first.tags), key=key))
        tensorflow = self.wished["tensorflow"].tensorflow if "tensorflow" in self.wished else None
        if tensorflow:
            least.append(self.catalog.frameworks.tensorflow.min_driver[str(key(tensorflow.cuda)[0])])
        within = [v for v in least if key(v)[0] == first.branch.number]
        return max(within, key=key) if within else str(first.branch.number)

    def _libraries(self, answer: CompatAnswer, toolkit: CudaMinor | None, warn: _Warnings) -> None:
        if not toolkit:
            return
        ubuntu = self.wished["ubuntu"].ubuntu if "ubuntu" in self.wished else None
        wish = self.wished.get("cudnn")
        pair = self.catalog.cudnn_for(
            toolkit.version, _gpus(self.wished), version=wish.version if wish else None
        )
        if pair:
            answer.cudnn = LibraryAnswer(
                version=pair.version, cuda=pair.cuda, pins=list(pair.pins), because=pair.because
            )
            if wish and pair.certainty in UNSURE:
                warn.uncertain(
                    f"cuDNN {pair.version} as a package for CUDA {toolkit.version}",
                    pair.certainty,
                    pair.because,
                )
        nccl = self.catalog.nccl_for(toolkit.version, ubuntu=ubuntu.version if ubuntu else None)
        if nccl:
            answer.nccl = LibraryAnswer(
                version=nccl.version, cuda=nccl.cuda, pins=list(nccl.pins), because=nccl.because
            )

    def _frameworks(self, answer: CompatAnswer, tag: str | None) -> None:
        pythons: list[set[str]] = []
        torch = self.wished["torch"].torch if "torch" in self.wished else None
        if torch and tag:
            row = self.catalog.frameworks.torch
            default = tag == torch.default
            answer.torch = TorchAnswer(
                version=torch.version, tag=tag, cuda=row.tags[tag].cuda, cudnn=torch.cudnn if default else None,
                nccl=torch.nccl if default else None, index_url=row.index_url.format(tag=tag),
            )  # fmt: skip
            if torch.python:
                pythons.append(set(torch.python))
        tensorflow = self.wished["tensorflow"].tensorflow if "tensorflow" in self.wished else None
        if tensorflow:
            answer.tensorflow = TensorflowAnswer(
                version=tensorflow.version, cuda=tensorflow.cuda, cudnn=tensorflow.cudnn,
                extra=f"tensorflow[and-cuda]=={tensorflow.version}.*" if tensorflow.extra else None,
            )  # fmt: skip
            first, last = (int(v.split(".")[1]) for v in tensorflow.python)
            pythons.append({f"3.{n}" for n in range(first, last + 1)})
        if pythons:
            answer.python = sorted(set.intersection(*pythons), key=key)

    def _degrees(self, answer: CompatAnswer, warn: _Warnings) -> None:
        """Set the support of each GPU, and the weakest of all; "none" where the driver does not drive it."""
        weakest: list[Support] = []
        for wish in self.wished.values():
            gpu = wish.gpu
            if gpu is None:
                continue
            degrees = self._asked_degrees(gpu, answer)
            if not degrees and answer.cuda.chosen:
                degrees = [self.degree(gpu, "cuda", answer.cuda.chosen)]
            driver = self.wished.get("driver")
            if driver and driver.branch and driver.branch.number not in self.catalog.branches_for([gpu]):
                degrees = ["none"]
            degree = max(degrees, key=SUPPORT_ORDER.index, default=None)
            warn.gpu(gpu, wish.text)
            answer.gpus.append(GpuAnswer(
                asked=wish.text, name=gpu.name, architecture=gpu.architecture, cc=gpu.cc, ids=list(gpu.ids),
                fabric=self.catalog.fabric(gpu), support=degree,
            ))  # fmt: skip
            if degree:
                weakest.append(degree)
        answer.support = max(weakest, key=SUPPORT_ORDER.index, default=None)

    def _asked_degrees(self, gpu: Gpu, answer: CompatAnswer) -> list[Support]:
        """Support of a GPU by CUDA, torch and TensorFlow as asked: the chosen one, or the best of those
        covered."""
        degrees: list[Support] = []
        if "cuda" in self.wished:
            options = (
                [answer.cuda.chosen]
                if answer.cuda.chosen
                else [t.version for t in self.wished["cuda"].toolkits]
            )
            degrees.append(_best(self.degree(gpu, "cuda", t) for t in options))
        torch = self.wished.get("torch")
        if torch and torch.torch:
            tags = (
                [answer.torch.tag]
                if answer.torch
                else [torch.tag]
                if torch.tag
                else list(torch.torch.offered)
            )
            degrees.append(_best(self.degree(gpu, "torch", torch.torch.version, tag) for tag in tags))
        tensorflow = self.wished["tensorflow"].tensorflow if "tensorflow" in self.wished else None
        if tensorflow:
            degrees.append(self.degree(gpu, "tensorflow", tensorflow.version))
        return degrees

    # Where nothing is left.

    def _explain(self, answer: CompatAnswer) -> None:
        for names in self._clashes():
            near = self._nearest(names)
            issue = _Words(self, names).issue()
            if near and issue.hint is None:
                issue.hint = near[0].text
            answer.conflicts.append(issue)
            answer.nearest += [n for n in near if n.change not in [m.change for m in answer.nearest]]

    def _clashes(self) -> list[tuple[str, ...]]:
        """Smallest sets of wishes that leave nothing: single ones, else pairs, else triples, …"""
        names = list(self.wished)
        for size in range(1, len(names) + 1):
            found = [c for c in combinations(names, size) if not self.fits({n: self.wished[n] for n in c})]
            if found:
                return found
        return []

    def _nearest(self, names: tuple[str, ...]) -> list[Nearest]:
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

    def _replacement(self, name: str, others: dict[str, _Wish]) -> Nearest | None:
        wish = self.wished[name]
        if wish.gpu:
            if not any(w.gpu for w in others.values()) or not self.fits(others):
                return None
            kept = [w.text for w in others.values() if w.gpu]
            return Nearest(
                change={"gpu": ", ".join(kept)},
                text=f"put {wish.gpu.name} into a host of its own",
                fits_all=True,
            )
        for text in self._domain(wish, others):
            other = _parse_one(wish.kind, text, self.catalog)
            if self.fits({**others, name: other}):
                label = other.title if wish.kind != "driver" else f"driver {text}"
                return Nearest(
                    change={wish.kind: text}, text=f"{label} instead of {wish.title}", fits_all=True
                )
        return None

    def _domain(self, wish: _Wish, others: _Wished) -> list[str]:
        """Values that could stand in for a wish, nearest first."""
        catalog = self.catalog
        if wish.kind == "driver":
            left = self.left(others)
            return [str(self._recommend(left).branch.number)] if left else []
        if wish.kind == "cuda":
            versions = [t.version for t in catalog.cuda_minors if t.version not in wish.covers]
            order = [t.version for t in catalog.cuda_minors]
            compiled = [t.version for t in catalog.cuda_minors if self._compiled(t)]
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


def _gpus(wished: _Wished) -> list[Gpu]:
    return [w.gpu for w in wished.values() if w.gpu]


def _in_full(branch: Branch, cuda: str) -> bool:
    return key(branch.max_cuda) >= key(minor(cuda))


def _best(degrees: Iterable[Support]) -> Support:
    return min(degrees, key=SUPPORT_ORDER.index)


# --- words --------------------------------------------------------------------------------------------------


class _Words:
    """Turns a clash (names of wishes) into an issue with a code of its own and the reasons."""

    def __init__(self, judge: _Judge, names: tuple[str, ...]) -> None:
        self.judge, self.catalog = judge, judge.catalog
        self.wishes = [judge.wished[n] for n in names]
        self.by = {w.kind: w for w in self.wishes}
        self.gpus = [w.gpu for w in self.wishes if w.gpu]

    def issue(self) -> Issue:
        kinds = "+".join(sorted(w.kind for w in self.wishes))
        special = {
            "gpu": self._gpu, "gpu+gpu": self._gpus, "driver+gpu": self._driver_gpu, "cuda+gpu": self._cuda_gpu,
            "gpu+torch": self._torch_gpu, "gpu+tensorflow": self._tensorflow_gpu, "cudnn+gpu": self._cudnn_gpu,
            "gpu+modules": self._modules_gpu, "driver+modules": self._driver_modules, "cuda+driver": self._cuda_driver,
            "driver+torch": self._driver_torch, "driver+tensorflow": self._driver_tensorflow,
            "cudnn+driver": self._driver_cudnn, "driver+ubuntu": self._driver_ubuntu, "gpu+ubuntu": self._gpu_ubuntu,
            "cuda+ubuntu": self._cuda_ubuntu, "cuda+cudnn": self._cuda_cudnn, "cuda+tensorflow": self._cuda_tensorflow,
            "cudnn+tensorflow": self._cudnn_tensorflow, "modules+ubuntu": self._modules_ubuntu,
        }.get(kinds)  # fmt: skip
        if special:
            return special()
        titles = " and ".join(w.title for w in self.wishes)
        return Issue(code="compat.clash", message=f"{titles} do not go together", because=self._limits())

    def _limits(self) -> list[str]:
        """What each wish leaves by itself, for clashes without words of their own."""
        lines = []
        for wish in self.wishes:
            left = self.judge.left({wish.kind: wish})
            numbers = [item.branch.number for item in left]
            if len(numbers) == len(self.catalog.branches):
                span = "any branch"
            elif len(numbers) == 1:
                span = f"branch {numbers[0]}"
            else:
                span = f"branches {numbers[0]} to {numbers[-1]}" if numbers else "no branch"
            toolkits = [t.version for item in left for t in item.toolkits]
            cuda = (
                f", CUDA {min(toolkits, key=key)} to {max(toolkits, key=key)}"
                if toolkits
                else ", no CUDA toolkit"
            )
            lines.append(f"{wish.title}: {span}{cuda}")
        return lines

    def _branches(self, gpu: Gpu) -> str:
        numbers = sorted(self.catalog.branches_for([gpu]))
        if not numbers:
            return "no branch of the catalog drives it"
        last = f" to {numbers[-1]}" if gpu.last_branch else " on"
        return f"branches {numbers[0]}{last}, {' or '.join(gpu.modules)} modules"

    def _line(self, gpu: Gpu) -> str:
        return f"{gpu.name} ({gpu.architecture or 'unknown'}, compute capability {gpu.cc or 'unknown'}): {self._branches(gpu)}"

    def _cuda_span(self, gpu: Gpu) -> str:
        span = self.catalog.cuda_range([gpu])
        if span is None:
            row = self.catalog.architectures.compute_capabilities.get(gpu.cc or "")
            return f"the last CUDA that targets {gpu.cc} is {row.last_cuda if row else 'unknown'}"
        newest = self.catalog.cuda_minors[-1].version
        last = f"the last is {span.last}" if span.last != newest else "newer ones all do"
        return f"CUDA {span.first} is the first of the catalog that targets {gpu.cc}; {last}"

    def _gpu(self) -> Issue:
        gpu = self.gpus[0]
        return Issue(
            code="gpu.not_supported",
            message=f"no driver branch of the catalog drives {gpu.name}",
            because=[gpu.note or ""],
        )

    def _gpus(self) -> Issue:
        one, other = self.gpus
        shared = self.catalog.branches_for([one]) & self.catalog.branches_for([other])
        what = "module flavour" if shared else "driver branch"
        return Issue(
            code="gpu.no_common_modules" if shared else "gpu.no_common_branch",
            message=f"no {what} drives both {one.name} and {other.name}", because=[self._line(one), self._line(other)],
            hint="put them into different hosts",
        )  # fmt: skip

    def _driver_gpu(self) -> Issue:
        driver, gpu = self.by["driver"], self.gpus[0]
        return Issue(
            code="driver.gpu_not_supported", message=f"driver {driver.text} does not drive {gpu.name}",
            because=[self._line(gpu)],
        )  # fmt: skip

    def _cuda_gpu(self) -> Issue:
        gpu, cuda = self.gpus[0], self.by["cuda"]
        because = [self._cuda_span(gpu)]
        if gpu.last_branch and not any(
            self.catalog.toolkit_support(t.version, gpu) != "none" for t in cuda.toolkits
        ):
            because.append(f"{gpu.architecture} is driven up to branch {gpu.last_branch}")
        elif gpu.last_branch:
            because.append(
                f"CUDA {cuda.text} needs driver {cuda.toolkits[0].min_driver}, {gpu.name} ends at {gpu.last_branch}"
            )
        return Issue(
            code="cuda.gpu_not_supported",
            message=f"CUDA {cuda.text} does not target {gpu.name}",
            because=because,
        )

    def _torch_gpu(self) -> Issue:
        gpu, wish = self.gpus[0], self.by["torch"]
        because = []
        release = wish.torch
        if release:
            for tag in (wish.tag,) if wish.tag else release.offered:
                row = self.catalog.torch_arch_list(release.version, tag)
                codes = ", ".join(row.cc) if row else "unknown"
                because.append(f"{tag}: code for {codes}" + (f", PTX {row.ptx}" if row and row.ptx else ""))
                if self.catalog.torch_support(release.version, tag, gpu) != "none" and gpu.last_branch:
                    least = self.catalog.frameworks.torch.tags[tag].min_driver
                    because[-1] += f"; needs driver {least}, {gpu.name} ends at {gpu.last_branch}"
        because.append(f"{gpu.name} has compute capability {gpu.cc}")
        return Issue(
            code="torch.gpu_not_supported",
            message=f"{wish.title} has no code for {gpu.name}",
            because=because,
        )

    def _tensorflow_gpu(self) -> Issue:
        gpu, wish = self.gpus[0], self.by["tensorflow"]
        cuda = wish.tensorflow.cuda if wish.tensorflow else ""
        return Issue(
            code="tensorflow.gpu_not_supported", message=f"{wish.title} does not run on {gpu.name}",
            because=[f"it is built with CUDA {cuda}", self._cuda_span(gpu), self._line(gpu)],
        )  # fmt: skip

    def _cudnn_gpu(self) -> Issue:
        gpu, wish = self.gpus[0], self.by["cudnn"]
        because = [f"{gpu.name} has compute capability {gpu.cc}"]
        low = self.catalog.cudnn_min_cc(self._newest_cudnn(wish))
        if low and gpu.cc and key(gpu.cc) < key(low[0]):
            because.insert(
                0, f"cuDNN {wish.text} needs compute capability {low[0]}" + ("" if low[1] else " (inferred)")
            )
        else:
            because.append(self._cuda_span(gpu))
        return Issue(
            code="cudnn.gpu_not_supported",
            message=f"cuDNN {wish.text} does not drive {gpu.name}",
            because=because,
        )

    def _newest_cudnn(self, wish: _Wish) -> str:
        return next(v for v in self.catalog.cudnn_versions if same(wish.version or "", v))

    def _modules_gpu(self) -> Issue:
        gpu, wish = self.gpus[0], self.by["modules"]
        why = (
            "open modules need a GPU system processor, which begins with Turing"
            if wish.modules == "open"
            else f"{gpu.architecture} works with open modules only"
        )
        return Issue(
            code="modules.gpu_not_supported", message=f"{wish.title} cannot drive {gpu.name}",
            because=[why, self._line(gpu)],
        )  # fmt: skip

    def _driver_modules(self) -> Issue:
        driver, wish = self.by["driver"], self.by["modules"]
        branch = driver.branch
        has = self.catalog.flavours([], branch.number) if branch else []
        return Issue(
            code="modules.branch_has_none", message=f"driver {driver.text} has no {wish.title}",
            because=[f"branch {branch.number if branch else ''} comes with {' and '.join(has)} modules only"],
        )  # fmt: skip

    def _too_old(self, code: str, wish: _Wish, least: str) -> Issue:
        driver = self.by["driver"]
        return Issue(
            code=code, message=f"driver {driver.text} is too old for {wish.title}",
            because=[f"{wish.title} needs driver {least} or newer, by minor-version compatibility"],
        )  # fmt: skip

    def _cuda_driver(self) -> Issue:
        wish = self.by["cuda"]
        return self._too_old("driver.too_old_for_cuda", wish, wish.toolkits[0].min_driver)

    def _driver_torch(self) -> Issue:
        wish = self.by["torch"]
        tags = self.catalog.frameworks.torch.tags
        names = (wish.tag,) if wish.tag else wish.torch.offered if wish.torch else ()
        least = min((tags[tag].min_driver for tag in names), key=key)
        return self._too_old("driver.too_old_for_torch", wish, least)

    def _driver_tensorflow(self) -> Issue:
        wish = self.by["tensorflow"]
        major = str(key(wish.tensorflow.cuda if wish.tensorflow else "12")[0])
        return self._too_old(
            "driver.too_old_for_tensorflow", wish, self.catalog.frameworks.tensorflow.min_driver[major]
        )

    def _driver_cudnn(self) -> Issue:
        wish = self.by["cudnn"]
        majors = self.catalog.cudnn_versions[self._newest_cudnn(wish)]
        return self._too_old(
            "driver.too_old_for_cudnn", wish, self.catalog.cudnn_data.min_driver[majors[0]].version
        )

    def _where(self, number: int) -> list[str]:
        found = []
        for release in self.catalog.ubuntu_data.releases:
            offers = self.catalog.offers(number, ubuntu=release)
            found += [f"Ubuntu {release}: {o.series} ({_CHANNELS[o.channel]})" for o in offers]
        return found

    def _driver_ubuntu(self) -> Issue:
        driver, wish = self.by["driver"], self.by["ubuntu"]
        branch, ubuntu = driver.branch, wish.ubuntu
        if branch is None or ubuntu is None:
            raise AssertionError("a driver wish has a branch, an Ubuntu wish a release")
        because = []
        series = driver.series or str(branch.number)
        moved = self.catalog.transitional(series, ubuntu=ubuntu.version)
        if moved:
            because.append(f"the archive's {moved.from_} is only a transitional package to {moved.to} there")
        if not self.judge.kernel_ok(branch, ubuntu):
            because.append(f"it builds up to kernel {branch.max_kernel}, {wish.title} has {ubuntu.kernel_ga}")
        elif not moved:
            because.append("no repository of it is known to hold this branch")
        because += [f"offered for {place}" for place in self._where(branch.number)]
        return Issue(
            code="driver.not_offered",
            message=f"driver {driver.text} is not offered for {wish.title}",
            because=because,
        )

    def _gpu_ubuntu(self) -> Issue:
        gpu, wish = self.gpus[0], self.by["ubuntu"]
        return Issue(
            code="gpu.no_branch_offered", message=f"{wish.title} offers no branch that drives {gpu.name}",
            because=[self._line(gpu)],
        )  # fmt: skip

    def _cuda_ubuntu(self) -> Issue:
        cuda, wish = self.by["cuda"], self.by["ubuntu"]
        ubuntu = wish.ubuntu
        first, last = (ubuntu.cuda_first, ubuntu.cuda_last) if ubuntu else (None, None)
        held = [
            v for v in self.catalog.ubuntu_data.releases
            if any(self.catalog.cuda_in_repository(t.version, ubuntu=v) for t in cuda.toolkits)
        ]  # fmt: skip
        where = f"; Ubuntu {', '.join(held)} has it" if held else ""
        return Issue(
            code="cuda.not_in_repository", message=f"NVIDIA's repository of {wish.title} has no CUDA {cuda.text}",
            because=[f"it begins with {first} and ends with {last or 'the current one'}{where}"],
            hint=self._cuda_way_out(cuda),
        )  # fmt: skip

    def _cuda_way_out(self, cuda: _Wish) -> str:
        near = self.judge._nearest(tuple(n for n, w in self.judge.wished.items() if w in self.wishes))
        words = [n.text for n in near]
        return "; or ".join([*words, f"CUDA {cuda.text} from conda or in a container"])

    def _cuda_cudnn(self) -> Issue:
        cuda, wish = self.by["cuda"], self.by["cudnn"]
        majors = {
            m for v, ms in self.catalog.cudnn_versions.items() if same(wish.version or "", v) for m in ms
        }
        return Issue(
            code="cudnn.cuda_mismatch", message=f"cuDNN {wish.text} is not built for CUDA {cuda.text}",
            because=[f"it is built for CUDA {' and '.join(str(m) for m in sorted(majors))}"],
        )  # fmt: skip

    def _cuda_tensorflow(self) -> Issue:
        cuda, wish = self.by["cuda"], self.by["tensorflow"]
        built = wish.tensorflow.cuda if wish.tensorflow else ""
        return Issue(
            code="tensorflow.cuda_mismatch", message=f"{wish.title} does not work with CUDA {cuda.text}",
            because=[f"it is built with CUDA {built} and loads the libraries of CUDA {key(built)[0]}"],
        )  # fmt: skip

    def _cudnn_tensorflow(self) -> Issue:
        wish, cudnn = self.by["tensorflow"], self.by["cudnn"]
        built = wish.tensorflow.cudnn if wish.tensorflow else ""
        return Issue(
            code="tensorflow.cudnn_mismatch", message=f"{wish.title} does not work with cuDNN {cudnn.text}",
            because=[f"it is built with cuDNN {built} and loads cuDNN {key(built)[0]}"],
        )  # fmt: skip

    def _modules_ubuntu(self) -> Issue:
        modules, wish = self.by["modules"], self.by["ubuntu"]
        return Issue(
            code="modules.not_offered", message=f"no branch offered for {wish.title} has {modules.title}",
            because=self._limits(),
        )  # fmt: skip


_CHANNELS = {"ubuntu": "Ubuntu archive", "cuda": "NVIDIA's repository", "ppa": "PPA"}


class _Warnings:
    """Collects warnings, each once."""

    def __init__(self, catalog: Catalog, today: date) -> None:
        self.catalog, self.today = catalog, today
        self.issues: list[Issue] = []

    def add(
        self, code: str, message: str, because: Iterable[str | None] = (), hint: str | None = None
    ) -> None:
        issue = Issue(code=code, message=message, because=[b for b in because if b], hint=hint)
        if issue not in self.issues:
            self.issues.append(issue)

    def uncertain(self, what: str, certainty: str, note: str | None = None) -> None:
        """Say that the answer rests on a value that is not sure."""
        self.add("catalog.uncertain", f"not sure ({certainty}): {what}", [note])

    def wishes(self, wished: _Wished) -> None:
        """Warnings about wishes by themselves, whether or not all fits."""
        driver = wished.get("driver")
        ubuntu = wished["ubuntu"].ubuntu if "ubuntu" in wished else None
        if "tensorflow" in wished and _gpus(wished):
            compute = self.catalog.frameworks.tensorflow.compute
            self.uncertain(
                f"which GPUs the wheels of {wished['tensorflow'].title} hold code for",
                compute.certainty,
                compute.note,
            )
        if driver and driver.branch:
            self._driver(driver, driver.branch, ubuntu)
        if ubuntu and ubuntu.support != "standard":
            self.add(
                "ubuntu.support_ended", f"standard support of Ubuntu {ubuntu.version} ended {ubuntu.standard_support_until}",
                [f"support now: {ubuntu.support}"], hint="Ubuntu Pro, or a newer release",
            )  # fmt: skip

    def _driver(self, wish: _Wish, branch: Branch, ubuntu: UbuntuRelease | None) -> None:
        if branch.type == "NFB":
            self.add(
                "driver.new_feature_branch",
                f"branch {branch.number} is a new-feature branch",
                [branch.type_note],
            )
        if branch.type == "unknown":
            self.uncertain(
                f"what kind of branch {branch.number} is and how long it lives",
                branch.type_certainty,
                branch.type_note,
            )
        if wish.version:
            for bad in self.catalog.known_bad(
                "driver", wish.version, ubuntu=ubuntu.version if ubuntu else None, care=True
            ):
                self.add(
                    "driver.known_bad", f"driver {wish.version}: {bad.symptom}", [bad.note], hint=bad.fix
                )
            if branch.last_version and key(wish.version) > key(branch.last_version):
                self.uncertain(
                    f"driver {wish.version} is newer than the catalog ({branch.last_version} is the last it knows)",
                    "unknown",
                )
        if ubuntu:
            self.offers(branch, wish.series or str(branch.number), ubuntu)

    def offers(self, branch: Branch, series: str, ubuntu: UbuntuRelease | None) -> None:
        """Say where a branch comes from when it is not where one would look, and when that is not sure."""
        if ubuntu is None:
            return
        offers = self.catalog.offers(branch.number, ubuntu=ubuntu.version)
        if not offers:
            return
        places = ", ".join(dict.fromkeys(f"{o.series} ({_CHANNELS[o.channel]})" for o in offers))
        moved = self.catalog.transitional(series, ubuntu=ubuntu.version)
        if moved:
            self.add(
                "driver.transitional", f"the archive's {moved.from_} is only a transitional package to {moved.to}",
                [f"since {moved.since}", moved.bug], hint=f"take {places}",
            )  # fmt: skip
        own = next((o for o in self.catalog.drivers.nvidia.offers if o.ubuntu == ubuntu.version), None)
        if own and own.absent_below and branch.number < own.absent_below:
            self.add(
                "driver.not_in_nvidia_repository",
                f"NVIDIA's repository of Ubuntu {ubuntu.version} has no branch {branch.number}",
                [f"it begins with {own.absent_below}"], hint=f"take {places}",
            )  # fmt: skip
        if all(o.certainty in UNSURE for o in offers):
            what = f"that branch {branch.number} is offered for Ubuntu {ubuntu.version}"
            self.uncertain(what, offers[0].certainty, offers[0].note)

    def branch(self, branch: Branch, wished: _Wished) -> None:
        """Warnings about the branch that the answer recommends (or was asked for)."""
        if branch.is_ended(self.today):
            when = f" on {branch.eol}" if branch.eol else ""
            alive = [b.number for b in self.catalog.branches if b.supported_now]
            self.add(
                "driver.ended", f"support of branch {branch.number} ended{when}", [branch.eol_note],
                hint="maintained now: " + ", ".join(str(n) for n in alive),
            )  # fmt: skip
        if branch.max_cuda_certainty in UNSURE and ("cuda" in wished or "cudnn" in wished):
            self.uncertain(
                f"that branch {branch.number} carries CUDA {branch.max_cuda}", branch.max_cuda_certainty
            )

    def gpu(self, gpu: Gpu, text: str) -> None:
        if gpu.certainty in UNSURE:
            self.uncertain(f"what {text} is: {gpu.name}", gpu.certainty, gpu.note)
        if gpu.modules_certainty in UNSURE and gpu.certainty not in UNSURE:
            self.uncertain(
                f"that {gpu.name} needs {' or '.join(gpu.modules)} modules", gpu.modules_certainty, gpu.note
            )
        if (
            gpu.architecture in ("Blackwell", "Blackwell Ultra", "Rubin")
            and gpu.first_branch_certainty in UNSURE
        ):
            self.uncertain(
                f"that {gpu.name} begins with branch {gpu.first_branch}", gpu.first_branch_certainty
            )

    def toolkit(self, toolkit: CudaMinor, branch: Branch, gpus: list[Gpu], *, explicit: bool) -> None:
        if not explicit:
            return
        degrees = {gpu.name: self.catalog.toolkit_support(toolkit.version, gpu) for gpu in gpus}
        if not _in_full(branch, toolkit.version):
            self.add(
                "cuda.minor_compatibility",
                f"CUDA {toolkit.version} runs on branch {branch.number} by minor-version compatibility only",
                [f"the branch carries CUDA {branch.max_cuda} in full", "PTX of this toolkit is not compiled by it"],
                hint="compile for the GPUs' own compute capability",
            )  # fmt: skip
        late = [name for name, degree in degrees.items() if degree == "jit"]
        if late:
            span = self.catalog.cuda_range(gpus)
            self.add(
                "cuda.ptx_only", f"CUDA {toolkit.version} has no code for {', '.join(late)}: only programs that carry PTX run",
                ["the driver compiles the PTX at the first start", "libraries of that toolkit may hold no PTX"],
                hint=f"CUDA {span.first} or newer compiles for it" if span else None,
            )  # fmt: skip
        if toolkit.sm_certainty in UNSURE and gpus:
            self.uncertain(
                f"which GPUs CUDA {toolkit.version} compiles for", toolkit.sm_certainty,
                "worked out from the first and last toolkit of each, not read off its compiler",
            )  # fmt: skip

    def torch_tag(self, wish: _Wish, tag: str, cuda: _Wish | None, gpus: list[Gpu]) -> None:
        release = wish.torch
        if release is None:
            return
        row = self.catalog.torch_arch_list(release.version, tag)
        if row and row.certainty in UNSURE and gpus:
            self.uncertain(f"what the {tag} wheels of torch {release.version} hold", row.certainty, row.note)
        if release.certainty in UNSURE:
            self.uncertain(f"the builds of torch {release.version}", release.certainty, release.note)
        own = self.catalog.frameworks.torch.tags[tag].cuda
        if cuda and all(t.major != key(own)[0] for t in cuda.toolkits):
            self.add(
                "torch.extension_cuda", f"torch {release.version}+{tag} brings CUDA {own} of its own",
                [f"extensions cannot be built for it with CUDA {cuda.text}: the majors differ"],
                hint=f"a toolkit of CUDA {key(own)[0]} for building extensions",
            )  # fmt: skip
