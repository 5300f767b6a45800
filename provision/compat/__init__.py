"""What fits together, answered from the catalog alone: any combination of GPUs, driver, CUDA, cuDNN, frameworks, Ubuntu.

``compat(request, catalog)`` is a pure function. Every item narrows what can be chosen (driver branch, module flavour, CUDA
toolkit, framework build); a set of items fits when something is left. When nothing is left, the smallest sets of items
that clash are named, each with the reason, and for each the nearest thing that works.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date

from provision.catalog import SUPPORT_ORDER, UNSURE, Catalog, CudaMinor, Gpu, Support
from provision.catalog.builds import choose_torch
from provision.catalog.frameworks import pythons, tensorflow_pin
from provision.catalog.models.base import last_day
from provision.catalog.toolkits import holders, only_in_archive, runs
from provision.catalog.versions import key
from provision.compat.answer import (
    CompatAnswer,
    CompatRequest,
    CudaAnswer,
    DriverAnswer,
    GpuAnswer,
    ImageAnswer,
    JaxAnswer,
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
        self.explicit = bool({"cuda", "cudnn", "nccl"} & set(self.parsed))
        # of the judge's programs, those that the answer takes: kind -> name
        self.chosen: dict[str, str | None] = {}

    def answer(self, request: CompatRequest) -> CompatAnswer:
        left = self.judge.left(self.parsed)
        answer = CompatAnswer(
            wishes=request, fits=bool(left), support=None, machine=self.parsed.machine, catalog=self.catalog.day
        )
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
        tag = choose_torch(torch, chosen.programs["torch"], self.gpus, cudas) if torch else None
        extra = self._choose_jax(chosen)
        toolkit = self._choose_toolkit(chosen, tag, extra)
        self.chosen = {"cuda": toolkit.version if toolkit else None, "torch": tag, "jax": extra}
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
            archive = only_in_archive(self.catalog, toolkit.version, self.ubuntu.version) if self.ubuntu else None
            answer.cuda = CudaAnswer(
                chosen=toolkit.version,
                release=(archive and archive.release) or _release(toolkit, self.parsed["cuda"].text if cudas else ""),
                package=toolkit.toolkit_package,
                gcc_max=toolkit.gcc_max,
                range=answer.cuda.range,
            )
            if not archive:
                self._libraries(answer, toolkit, extra)
        self._frameworks(answer, tag, extra)
        self.warn.branch(branch)
        if self.parsed.image:
            answer.image = self._image(branch.number)
            self.warn.image(answer.image, branch)
        if self.ubuntu and "driver" not in self.parsed:
            self.warn.known_series(branch, str(branch.number))
        self.warn.toolkit(toolkit, branch, explicit=self.explicit)
        self.warn.rests_on(self.parsed, [tag] if tag else (), [toolkit] if toolkit and self.explicit else (), [extra])
        if tag:
            self.warn.torch_tag(tag)

    def _image(self, branch: int) -> ImageAnswer:
        item, toolkit = self.parsed["image_cuda"], self.parsed.image[-1]
        release, held = _release(toolkit, item.text), holders(self.catalog, toolkit.version)
        kinds = ("base", "runtime", "devel") if release and held else ()
        minimum = self.catalog.min_driver(self.parsed.release(toolkit))
        own = self.catalog.min_driver_for_cuda(toolkit.version, full=True)
        return ImageAnswer(
            cuda=toolkit.version,
            runs="full" if runs(self.catalog, toolkit.version, self.parsed.version or branch) == "full" else "minor",
            minimum=minimum,
            full_from=own and max(own, minimum, key=key),
            names=[f"nvidia/cuda:{release}-{kind}-ubuntu{held[-1]}" for kind in kinds],
        )

    def _choose_jax(self, item: Left) -> str | None:
        """The extra of JAX to take: with compiled code before PTX, then the newest CUDA."""
        builds = item.programs.get("jax", {})

        def compiled(extra: str) -> bool:
            return all(builds[extra].support(gpu) in ("native", "binary") for gpu in self.gpus)

        return max(builds, key=lambda extra: (compiled(extra), key(builds[extra].cuda)), default=None)

    def _choose_toolkit(self, item: Left, tag: str | None, extra: str | None) -> CudaMinor | None:
        """Newest that the branch runs in full and that compiles for the GPUs; beside torch, torch's own where it fits."""
        pool = [t for t in item.toolkits if self.judge.compiled(t)] or (item.toolkits if self.explicit else [])
        if tag and "cuda" not in self.parsed:
            pool = [t for t in pool if t.version == item.programs["torch"][tag].cuda] or pool
        if extra:
            pool = [t for t in pool if t.major == key(item.programs["jax"][extra].cuda)[0]] or pool
        if "cuda" not in self.parsed:
            # One that the packages that are asked for were built with, before one that they may run with.
            pool = [t for t in pool if self._has_packages(t)] or pool
        full = [t for t in pool if key(item.branch.max_cuda) >= key(t.version)]
        pool = full or (pool if self.explicit else [])
        return pool[-1] if pool else None

    def _has_packages(self, toolkit: CudaMinor) -> bool:
        """True when cuDNN 8 and NCCL, where they are asked for, have packages for a toolkit that are known to go with it."""
        cudnn, nccl = self.parsed.cudnn, self.parsed.nccl
        pairs = [self.catalog.nccl_for(toolkit.version, version=nccl)] if nccl else []
        if cudnn and key(cudnn)[0] < 9:
            pairs.append(self.catalog.cudnn_for(toolkit.version, self.gpus, version=cudnn))
        return all(pair and pair.certainty not in UNSURE for pair in pairs)

    def _minimum(self, first: Left) -> str:
        """Oldest driver that fits: a version where a rule names one within the oldest branch, else the branch."""
        if self.parsed.version:
            return self.parsed.version
        least = [min((build.least(self.gpus) for build in some.values()), key=key) for some in first.programs.values()]
        if self.explicit:
            least.append(min((toolkit.min_driver for toolkit in first.toolkits), key=key))
        least += [gpu.mig_driver for gpu in self.gpus if self.parsed.mig and gpu.mig_driver]
        within = [v for v in least if key(v)[0] == first.branch.number]
        return max(within, key=key) if within else str(first.branch.number)

    def _libraries(self, answer: CompatAnswer, toolkit: CudaMinor, extra: str | None) -> None:
        tensorflow, ubuntu = self.parsed.tensorflow, self.ubuntu.version if self.ubuntu else None
        # What the wheels bring ("9.3.0.75", or the oldest of a range), where they bring it for this major.
        brought = re.findall(r"\d+\.\d+\.[\d.]+", tensorflow.extra.cudnn) if tensorflow and tensorflow.extra else []
        pair = self.catalog.cudnn_for(
            toolkit.version,
            self.gpus,
            version=self.parsed.cudnn,
            built=self.judge.built_with(self.parsed, extra),
            prefer=brought[0] if brought else None,
        )
        if pair:
            answer.cudnn = LibraryAnswer(**pair.model_dump(exclude={"certainty"}))
            if self.parsed.cudnn and pair.certainty in UNSURE:
                what = f"cuDNN {pair.version} as a package for CUDA {toolkit.version}"
                self.warn.uncertain(what, pair.certainty, pair.because)
        nccl = self.catalog.nccl_for(toolkit.version, ubuntu=ubuntu, version=self.parsed.nccl)
        if nccl:
            answer.nccl = LibraryAnswer(**nccl.model_dump(exclude={"certainty"}))
            self.warn.nccl(nccl.version)
            if self.parsed.nccl:
                what = f"NCCL {nccl.version} as a package for CUDA {toolkit.version}"
                self.warn.uncertain(what, nccl.certainty, nccl.because)

    def _frameworks(self, answer: CompatAnswer, tag: str | None, extra: str | None) -> None:
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
            self.warn.nccl(torch.nccl)
            wheels += [set(torch.python)] if torch.python else []
        if tensorflow:
            pin = tensorflow_pin(self.catalog, self.parsed["tensorflow"].text, tensorflow.version)
            answer.tensorflow = TensorflowAnswer(
                version=tensorflow.version,
                cuda=tensorflow.cuda,
                cudnn=tensorflow.cudnn,
                extra=f"tensorflow[and-cuda]{pin}" if tensorflow.extra else None,
            )
            wheels.append(set(pythons(*tensorflow.python)))
        jax = self.parsed.jax
        codes = next((build for build in jax.builds if build.extra == extra), None) if jax else None
        if jax and codes:
            answer.jax = JaxAnswer(
                version=jax.version,
                extra=f"jax[{extra}]=={jax.version}",
                cuda=codes.cuda,
                cudnn=codes.cudnn,
                nccl=codes.nccl,
            )
            wheels.append(set(pythons(*jax.python)))
        answer.python = sorted(set.intersection(*wheels), key=key) if wheels else []

    def _degrees(self, answer: CompatAnswer) -> None:
        """Set the support of each GPU, and the weakest of all; "none" where the driver does not drive it."""
        for item in self.parsed.values():
            if item.kind != "gpu":
                continue
            gpu, branch = item.means, self.parsed.branch
            degrees = self._asked_degrees(gpu)
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

    def _asked_degrees(self, gpu: Gpu) -> list[Support]:
        """Support of a GPU by what is asked for: CUDA, an image, torch, TensorFlow; the chosen one, or the best that is covered."""
        degrees = []
        for kind, builds in self.judge.programs(self.parsed).items():
            taken = self.chosen.get(kind)
            degrees.append(_best(builds[name].support(gpu) for name in ([taken] if taken else builds)))
        return degrees

    def _explain(self, answer: CompatAnswer) -> None:
        for names in self.judge.clashes():
            nearest = self.judge.nearest(names)
            answer.conflicts.append(Clash(self.judge, names, nearest).issue())
            clash = self.parsed.only(names)
            toolkits = [*clash.toolkits, *clash.image]
            self.warn.rests_on(
                clash, list(self.judge.torch_builds(clash)), toolkits, list(self.judge.jax_builds(clash))
            )
            answer.nearest += [n for n in nearest if n.change not in [m.change for m in answer.nearest]]


def _release(toolkit: CudaMinor, text: str) -> str | None:
    """The release of a toolkit that is asked for, else its newest."""
    return text if text in toolkit.releases else next(reversed(toolkit.releases), None)


def _best(degrees: Iterable[Support]) -> Support:
    return min(degrees, key=SUPPORT_ORDER.index, default="none")
