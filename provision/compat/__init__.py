"""What fits together, answered from the catalog alone: any combination of GPUs, driver, CUDA, cuDNN,
frameworks, Ubuntu.

``compat(wishes, catalog)`` is a pure function. Every wish narrows what can be chosen (driver branch, module
flavour, CUDA toolkit, framework build); a set of wishes fits when something is left. When nothing is left,
the smallest sets of wishes that clash are named, each with the reason, and for each the nearest thing that
works.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from provision.catalog import SUPPORT_ORDER, UNSURE, Branch, Catalog, CudaMinor, Gpu, Offer, Support
from provision.catalog.models.base import last_day
from provision.catalog.toolkits import holders, in_full, runs
from provision.catalog.versions import key
from provision.compat.answer import (
    CompatAnswer,
    CudaAnswer,
    DriverAnswer,
    GpuAnswer,
    ImageAnswer,
    LibraryAnswer,
    Nearest,
    TensorflowAnswer,
    TorchAnswer,
    Wishes,
)
from provision.compat.judge import Judge, Left
from provision.compat.warnings import Warnings
from provision.compat.wish import gpus_of, parse
from provision.compat.words import Words

__all__ = [
    "CompatAnswer",
    "CudaAnswer",
    "DriverAnswer",
    "GpuAnswer",
    "ImageAnswer",
    "LibraryAnswer",
    "Nearest",
    "TensorflowAnswer",
    "TorchAnswer",
    "Wishes",
    "compat",
]


def compat(wishes: Wishes, catalog: Catalog, *, today: date | None = None) -> CompatAnswer:
    """Answer what fits.

    today: for warnings about ended branches; the catalog's own date where not given. Raises UsageError for
    values that do not exist (CUDA 12.7, branch 999, Ubuntu 23.04, an ambiguous GPU), with the nearest that
    do.
    """
    asked = parse(wishes, catalog)
    day = today or last_day(str(catalog.drivers.as_of))
    return _Answer(Judge(catalog, asked, day)).answer(wishes)


class _Answer:
    """Draws the conclusions from what a Judge leaves."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.catalog, self.wished, self.today = judge, judge.catalog, judge.wished, judge.today

    def answer(self, wishes: Wishes) -> CompatAnswer:
        left = self.judge.left(self.wished)
        answer = CompatAnswer(wishes=wishes, fits=bool(left), support=None)
        warn = Warnings(self.catalog, self.today)
        if left:
            self._conclude(answer, left, warn)
        else:
            self._explain(answer)
        self._degrees(answer, warn)
        warn.wishes(self.wished)
        answer.warnings = warn.issues
        return answer

    def _conclude(self, answer: CompatAnswer, left: list[Left], warn: Warnings) -> None:
        chosen = self.judge.recommend(left)
        branch = chosen.branch
        tag = self._choose_tag(chosen)
        toolkit = self._choose_toolkit(chosen, tag)
        answer.driver = DriverAnswer(
            branches=[item.branch.number for item in left],
            recommended=branch.number,
            minimum=self._minimum(left[0]),
            modules=chosen.flavours,
            offers=self._offers(branch),
        )
        without = {k: w for k, w in self.wished.items() if k != "cuda"}
        fit = {t.version for item in self.judge.left(without) for t in item.toolkits if self.judge.compiled(t)}
        span = sorted(fit, key=key)
        answer.cuda = CudaAnswer(
            chosen=toolkit.version if toolkit else None,
            release=self._release(toolkit),
            package=toolkit.toolkit_package if toolkit else None,
            gcc_max=toolkit.gcc_max if toolkit else None,
            range=[span[0], span[-1]] if span else None,
        )
        self._libraries(answer, toolkit, warn)
        self._frameworks(answer, tag)
        warn.branch(branch, self.wished)
        answer.image = self._image(branch)
        if answer.image:
            warn.image(answer.image, branch, gpus_of(self.wished))
        if "driver" not in self.wished and "ubuntu" in self.wished:
            warn.offers(branch, str(branch.number), self.wished["ubuntu"].ubuntu)
        if toolkit is None and "ubuntu" in self.wished and gpus_of(self.wished):
            warn.add(
                "cuda.none_in_repository",
                f"NVIDIA's repository of {self.wished['ubuntu'].title} has no CUDA toolkit for these GPUs",
                hint="take CUDA from conda or in a container",
            )
        if toolkit:
            warn.toolkit(toolkit, branch, gpus_of(self.wished), explicit=self._explicit_toolkit)
            if "cuda" in self.wished and "ubuntu" in self.wished:
                warn.host_compiler(toolkit, self.wished["ubuntu"].ubuntu)
        if tag:
            warn.torch_tag(self.wished["torch"], tag, self.wished.get("cuda"), gpus_of(self.wished))

    def _image(self, branch: Branch) -> ImageAnswer | None:
        wish = self.wished.get("image_cuda")
        if wish is None:
            return None
        toolkit = wish.toolkits[-1]
        driver = self.wished["driver"].version if "driver" in self.wished else None
        release = wish.text if wish.text in toolkit.releases else next(iter(reversed(toolkit.releases)), None)
        held = holders(self.catalog, toolkit.version)
        names = [
            f"nvidia/cuda:{release}-{kind}-ubuntu{held[-1]}"
            for kind in ("base", "runtime", "devel")
            if release and held
        ]
        full = runs(self.catalog, toolkit.version, driver or branch.number) == "full"
        return ImageAnswer(
            cuda=toolkit.version,
            runs="full" if full else "minor",
            minimum=toolkit.min_driver,
            full_from=self.catalog.min_driver_for_cuda(toolkit.version, full=True),
            names=names,
        )

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

    def _choose_tag(self, item: Left) -> str | None:
        if not item.tags:
            return None
        release = self.wished["torch"].torch
        tags = self.catalog.frameworks.torch.tags
        wanted = self.wished["cuda"].toolkits if "cuda" in self.wished else ()

        def rank(tag: str) -> tuple[int, int, int, int]:
            version = release.version if release else ""
            degree = max(
                (SUPPORT_ORDER.index(self.judge.degree(g, "torch", version, tag)) for g in gpus_of(self.wished)),
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

    def _choose_toolkit(self, item: Left, tag: str | None) -> CudaMinor | None:
        """Newest that the branch runs in full and that compiles for the GPUs; beside torch, torch's own where
        it fits."""
        pool = [t for t in item.toolkits if self.judge.compiled(t)] or (item.toolkits if self._explicit_toolkit else [])
        if tag and "cuda" not in self.wished:
            own = [t for t in pool if t.version == self.catalog.frameworks.torch.tags[tag].cuda]
            pool = own or pool
        full = [t for t in pool if in_full(item.branch, t.version)]
        pool = full or (pool if self._explicit_toolkit else [])
        return pool[-1] if pool else None

    def _minimum(self, first: Left) -> str:
        """Oldest driver that fits: a version where a rule names one within the oldest branch, else the
        branch."""
        driver = self.wished.get("driver")
        if driver and driver.version:
            return driver.version
        least = []
        if self._explicit_toolkit:
            least.append(min((toolkit.min_driver for toolkit in first.toolkits), key=key))
        if "image_cuda" in self.wished:
            least.append(min((toolkit.min_driver for toolkit in self.wished["image_cuda"].toolkits), key=key))
        if first.tags:
            least.append(min((self.catalog.torch_min_driver(tag) for tag in first.tags), key=key))
        tensorflow = self.wished["tensorflow"].tensorflow if "tensorflow" in self.wished else None
        if tensorflow:
            least.append(self.catalog.min_driver(tensorflow.cuda))
        within = [v for v in least if key(v)[0] == first.branch.number]
        return max(within, key=key) if within else str(first.branch.number)

    def _libraries(self, answer: CompatAnswer, toolkit: CudaMinor | None, warn: Warnings) -> None:
        if not toolkit:
            return
        ubuntu = self.wished["ubuntu"].ubuntu if "ubuntu" in self.wished else None
        wish = self.wished.get("cudnn")
        pair = self.catalog.cudnn_for(toolkit.version, gpus_of(self.wished), version=wish.version if wish else None)
        if pair:
            answer.cudnn = LibraryAnswer(
                version=pair.version, cuda=pair.cuda, pins=list(pair.pins), because=pair.because
            )
            if wish and pair.certainty in UNSURE:
                warn.uncertain(
                    f"cuDNN {pair.version} as a package for CUDA {toolkit.version}", pair.certainty, pair.because
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
                version=torch.version,
                tag=tag,
                cuda=row.tags[tag].cuda,
                cudnn=torch.cudnn if default else None,
                nccl=torch.nccl if default else None,
                index_url=row.index_url.format(tag=tag),
            )
            if torch.python:
                pythons.append(set(torch.python))
        tensorflow = self.wished["tensorflow"].tensorflow if "tensorflow" in self.wished else None
        if tensorflow:
            answer.tensorflow = TensorflowAnswer(
                version=tensorflow.version,
                cuda=tensorflow.cuda,
                cudnn=tensorflow.cudnn,
                extra=f"tensorflow[and-cuda]=={tensorflow.version}.*" if tensorflow.extra else None,
            )
            first, last = (int(v.split(".")[1]) for v in tensorflow.python)
            pythons.append({f"3.{n}" for n in range(first, last + 1)})
        if pythons:
            answer.python = sorted(set.intersection(*pythons), key=key)

    def _degrees(self, answer: CompatAnswer, warn: Warnings) -> None:
        """Set the support of each GPU, and the weakest of all; "none" where the driver does not drive it."""
        weakest: list[Support] = []
        for wish in self.wished.values():
            gpu = wish.gpu
            if gpu is None:
                continue
            degrees = self._asked_degrees(gpu, answer)
            if not degrees and answer.cuda.chosen:
                degrees = [self.judge.degree(gpu, "cuda", answer.cuda.chosen)]
            driver = self.wished.get("driver")
            if driver and driver.branch and driver.branch.number not in self.catalog.branches_for([gpu]):
                degrees = ["none"]
            degree = max(degrees, key=SUPPORT_ORDER.index, default=None)
            warn.gpu(gpu, wish.text)
            answer.gpus.append(
                GpuAnswer(
                    asked=wish.text,
                    name=gpu.name,
                    architecture=gpu.architecture,
                    cc=gpu.cc,
                    ids=list(gpu.ids),
                    fabric=gpu.fabric,
                    support=degree,
                )
            )
            if degree:
                weakest.append(degree)
        answer.support = max(weakest, key=SUPPORT_ORDER.index, default=None)

    def _asked_degrees(self, gpu: Gpu, answer: CompatAnswer) -> list[Support]:
        """Support of a GPU by CUDA, torch and TensorFlow as asked: the chosen one, or the best of those
        covered."""
        degrees: list[Support] = []
        if "cuda" in self.wished:
            options = [answer.cuda.chosen] if answer.cuda.chosen else [t.version for t in self.wished["cuda"].toolkits]
            degrees.append(best(self.judge.degree(gpu, "cuda", t) for t in options))
        if "image_cuda" in self.wished:
            inside = self.wished["image_cuda"].toolkits
            degrees.append(best(self.judge.degree(gpu, "cuda", t.version) for t in inside))
        torch = self.wished.get("torch")
        if torch and torch.torch:
            tags = [answer.torch.tag] if answer.torch else [torch.tag] if torch.tag else list(torch.torch.offered)
            degrees.append(best(self.judge.degree(gpu, "torch", torch.torch.version, tag) for tag in tags))
        tensorflow = self.wished["tensorflow"].tensorflow if "tensorflow" in self.wished else None
        if tensorflow:
            degrees.append(self.judge.degree(gpu, "tensorflow", tensorflow.version))
        return degrees

    def _explain(self, answer: CompatAnswer) -> None:
        for names in self.judge.clashes():
            near = self.judge.nearest(names)
            issue = Words(self.judge, names).issue()
            if near and issue.hint is None:
                issue.hint = near[0].text
            answer.conflicts.append(issue)
            answer.nearest += [n for n in near if n.change not in [m.change for m in answer.nearest]]


def best(degrees: Iterable[Support]) -> Support:
    return min(degrees, key=SUPPORT_ORDER.index)
