"""What fits together, answered from the catalog alone: any combination of GPUs, driver, CUDA, cuDNN, frameworks, Ubuntu.

``compat(request, catalog)`` is a pure function. Every item narrows what can be chosen (driver branch, module flavour, CUDA
toolkit, framework build); a set of items fits when something is left. When nothing is left, the smallest sets of items
that clash are named, each with the reason, and for each the nearest thing that works.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from provision.catalog import SUPPORT_ORDER, UNSURE, Catalog, CudaMinor, Gpu, Support
from provision.catalog.builds import choose_torch, of_tensorflow
from provision.catalog.frameworks import pythons
from provision.catalog.models.base import last_day
from provision.catalog.toolkits import holders, runs
from provision.catalog.versions import key
from provision.compat.answer import (
    CompatAnswer,
    CompatRequest,
    CudaAnswer,
    DriverAnswer,
    GpuAnswer,
    ImageAnswer,
    LibraryAnswer,
    TensorflowAnswer,
    TorchAnswer,
)
from provision.compat.judge import Judge, Left
from provision.compat.messages import Clash
from provision.compat.request import parse
from provision.compat.warnings import Warnings


def compat(request: CompatRequest, catalog: Catalog, *, today: date | None = None) -> CompatAnswer:
    """Answer what fits.

    today: what has ended by then; the catalog's own date where not given, for answers that do not change by themselves.
    Raises UsageError for values that do not exist (CUDA 12.7, branch 999, Ubuntu 23.04, an ambiguous GPU), with the nearest
    that do.
    """
    day = today or last_day(str(catalog.drivers.as_of))
    return _Answer(Judge(catalog, parse(request, catalog), day)).answer(request)


class _Answer:
    """Draws the conclusions from what a Judge leaves."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.catalog, self.parsed = judge, judge.catalog, judge.parsed
        self.gpus, self.ubuntu = self.parsed.gpus, self.parsed.ubuntu
        self.warn = Warnings(judge)
        # A toolkit is asked for, so PTX and minor-version compatibility have to do where nothing better is left.
        self.explicit = "cuda" in self.parsed or "cudnn" in self.parsed

    def answer(self, request: CompatRequest) -> CompatAnswer:
        left = self.judge.left(self.parsed)
        answer = CompatAnswer(wishes=request, fits=bool(left), support=None, catalog=str(self.catalog.drivers.as_of))
        if left:
            self._conclude(answer, left)
        else:
            self._explain(answer)
        self._degrees(answer)
        self.warn.items_alone()
        answer.warnings = self.warn.issues
        return answer

    def _conclude(self, answer: CompatAnswer, left: list[Left]) -> None:
        chosen = self.judge.recommend(left)
        branch = chosen.branch
        cudas = [toolkit.version for toolkit in self.parsed.toolkits]
        torch = self.parsed.torch
        tag = choose_torch(torch, chosen.tags, self.gpus, cudas) if torch else None
        toolkit = self._choose_toolkit(chosen, tag)
        answer.driver = DriverAnswer(
            branches=[item.branch.number for item in left],
            recommended=branch.number,
            minimum=self._minimum(left[0]),
            modules=chosen.flavours,
            offers=self.judge.known_series(branch, self.parsed),
        )
        others = self.judge.left(self.parsed.without("cuda"))
        span = sorted({t.version for item in others for t in item.toolkits if self.judge.compiled(t)}, key=key)
        answer.cuda = CudaAnswer(range=[span[0], span[-1]] if span else None)
        if toolkit:
            answer.cuda = CudaAnswer(
                chosen=toolkit.version,
                release=_release(toolkit, self.parsed["cuda"].text if cudas else ""),
                package=toolkit.toolkit_package,
                gcc_max=toolkit.gcc_max,
                range=answer.cuda.range,
            )
            self._libraries(answer, toolkit)
        self._frameworks(answer, tag)
        self.warn.branch(branch)
        if self.parsed.image:
            answer.image = self._image(branch.number)
            self.warn.image(answer.image, branch)
        if self.ubuntu and "driver" not in self.parsed:
            self.warn.known_series(branch, str(branch.number))
        self.warn.toolkit(toolkit, branch, explicit=self.explicit)
        if tag:
            self.warn.torch_tag(tag)

    def _image(self, branch: int) -> ImageAnswer:
        item, toolkit = self.parsed["image_cuda"], self.parsed.image[-1]
        release, held = _release(toolkit, item.text), holders(self.catalog, toolkit.version)
        kinds = ("base", "runtime", "devel") if release and held else ()
        full = runs(self.catalog, toolkit.version, self.parsed.version or branch) == "full"
        return ImageAnswer(
            cuda=toolkit.version,
            runs="full" if full else "minor",
            minimum=toolkit.min_driver,
            full_from=self.catalog.min_driver_for_cuda(toolkit.version, full=True),
            names=[f"nvidia/cuda:{release}-{kind}-ubuntu{held[-1]}" for kind in kinds],
        )

    def _choose_toolkit(self, item: Left, tag: str | None) -> CudaMinor | None:
        """Newest that the branch runs in full and that compiles for the GPUs; beside torch, torch's own where it fits."""
        pool = [t for t in item.toolkits if self.judge.compiled(t)] or (item.toolkits if self.explicit else [])
        if tag and "cuda" not in self.parsed:
            pool = [t for t in pool if t.version == item.tags[tag].cuda] or pool
        full = [t for t in pool if key(item.branch.max_cuda) >= key(t.version)]
        pool = full or (pool if self.explicit else [])
        return pool[-1] if pool else None

    def _minimum(self, first: Left) -> str:
        """Oldest driver that fits: a version where a rule names one within the oldest branch, else the branch."""
        if self.parsed.version:
            return self.parsed.version
        least = []
        for toolkits in (first.toolkits if self.explicit else (), self.parsed.image):
            least += [min((toolkit.min_driver for toolkit in toolkits), key=key)] if toolkits else []
        if first.tags:
            least.append(min((build.min_driver for build in first.tags.values()), key=key))
        if self.parsed.tensorflow:
            least.append(of_tensorflow(self.catalog, self.parsed.tensorflow).min_driver)
        within = [v for v in least if key(v)[0] == first.branch.number]
        return max(within, key=key) if within else str(first.branch.number)

    def _libraries(self, answer: CompatAnswer, toolkit: CudaMinor) -> None:
        pair = self.catalog.cudnn_for(toolkit.version, self.gpus, version=self.parsed.cudnn)
        if pair:
            answer.cudnn = LibraryAnswer(**pair.model_dump(exclude={"certainty"}))
            if self.parsed.cudnn and pair.certainty in UNSURE:
                what = f"cuDNN {pair.version} as a package for CUDA {toolkit.version}"
                self.warn.uncertain(what, pair.certainty, pair.because)
        nccl = self.catalog.nccl_for(toolkit.version, ubuntu=self.ubuntu.version if self.ubuntu else None)
        if nccl:
            answer.nccl = LibraryAnswer(**nccl.model_dump(exclude={"certainty"}))

    def _frameworks(self, answer: CompatAnswer, tag: str | None) -> None:
        wheels: list[set[str]] = []
        torch, tensorflow = self.parsed.torch, self.parsed.tensorflow
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
            wheels += [set(torch.python)] if torch.python else []
        if tensorflow:
            answer.tensorflow = TensorflowAnswer(
                version=tensorflow.version,
                cuda=tensorflow.cuda,
                cudnn=tensorflow.cudnn,
                extra=f"tensorflow[and-cuda]=={tensorflow.version}.*" if tensorflow.extra else None,
            )
            wheels.append(set(pythons(*tensorflow.python)))
        answer.python = sorted(set.intersection(*wheels), key=key) if wheels else []

    def _degrees(self, answer: CompatAnswer) -> None:
        """Set the support of each GPU, and the weakest of all; "none" where the driver does not drive it."""
        for item in self.parsed.values():
            if item.kind != "gpu":
                continue
            gpu, branch = item.means, self.parsed.branch
            degrees = self._asked_degrees(gpu, answer)
            if not degrees and answer.cuda.chosen:
                degrees = [self.catalog.toolkit_support(answer.cuda.chosen, gpu)]
            if branch and branch.number not in self.catalog.branches_for([gpu]):
                degrees = ["none"]
            self.warn.gpu(gpu, item.text)
            answer.gpus.append(
                GpuAnswer(
                    asked=item.text,
                    name=gpu.name,
                    architecture=gpu.architecture,
                    cc=gpu.cc,
                    ids=list(gpu.ids),
                    fabric=gpu.fabric,
                    support=max(degrees, key=SUPPORT_ORDER.index, default=None),
                )
            )
        supports = [gpu.support for gpu in answer.gpus if gpu.support]
        answer.support = max(supports, key=SUPPORT_ORDER.index, default=None)

    def _asked_degrees(self, gpu: Gpu, answer: CompatAnswer) -> list[Support]:
        """Support of a GPU by what is asked for: CUDA, an image, torch, TensorFlow; the chosen one, or the best that is covered."""
        chosen = answer.cuda.chosen
        found = [[t for t in self.parsed.toolkits if chosen in (None, t.version)], list(self.parsed.image)]
        degrees = [_best(self.judge.support(toolkit, gpu) for toolkit in toolkits) for toolkits in found if toolkits]
        builds = self.judge.torch_builds(self.parsed)
        if builds:
            tags = [answer.torch.tag] if answer.torch else list(builds)
            degrees.append(_best(builds[tag].support(gpu) for tag in tags))
        if self.parsed.tensorflow:
            degrees.append(self.catalog.tensorflow_support(self.parsed.tensorflow.version, gpu))
        return degrees

    def _explain(self, answer: CompatAnswer) -> None:
        for names in self.judge.clashes():
            nearest = self.judge.nearest(names)
            answer.conflicts.append(Clash(self.judge, names, nearest).issue())
            answer.nearest += [n for n in nearest if n.change not in [m.change for m in answer.nearest]]


def _release(toolkit: CudaMinor, text: str) -> str | None:
    """The release of a toolkit that is asked for, else its newest."""
    return text if text in toolkit.releases else next(reversed(toolkit.releases), None)


def _best(degrees: Iterable[Support]) -> Support:
    return min(degrees, key=SUPPORT_ORDER.index)
