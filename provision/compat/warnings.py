"""Warnings beside an answer: what ended, what is only possible in part, what is not sure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from provision.catalog import UNSURE, Branch, Catalog, CudaMinor, Gpu, UbuntuRelease
from provision.catalog.toolkits import host_compiler, in_full, native_from
from provision.catalog.versions import key
from provision.compat.answer import ImageAnswer
from provision.compat.wish import Wish, Wished, gpus_of
from provision.compat.words import CHANNELS
from provision.errors import Issue


class Warnings:
    """Collects warnings, each once."""

    def __init__(self, catalog: Catalog, today: date) -> None:
        self.catalog, self.today = catalog, today
        self.issues: list[Issue] = []

    def add(self, code: str, message: str, because: Iterable[str | None] = (), hint: str | None = None) -> None:
        issue = Issue(code=code, message=message, because=[b for b in because if b], hint=hint)
        if issue not in self.issues:
            self.issues.append(issue)

    def uncertain(self, what: str, certainty: str, note: str | None = None) -> None:
        """Say that the answer rests on a value that is not sure."""
        self.add("catalog.uncertain", f"not sure ({certainty}): {what}", [note])

    def wishes(self, wished: Wished) -> None:
        """Warnings about wishes by themselves, whether or not all fits."""
        driver = wished.get("driver")
        ubuntu = wished["ubuntu"].ubuntu if "ubuntu" in wished else None
        if "tensorflow" in wished and gpus_of(wished):
            compute = self.catalog.frameworks.tensorflow.compute
            self.uncertain(
                f"which GPUs the wheels of {wished['tensorflow'].title} hold code for", compute.certainty, compute.note
            )
        if driver and driver.branch:
            self._driver(driver, driver.branch, ubuntu)
        if ubuntu and ubuntu.support != "standard":
            self.add(
                "ubuntu.support_ended",
                f"standard support of Ubuntu {ubuntu.version} ended {ubuntu.standard_support_until}",
                [f"support now: {ubuntu.support}"],
                hint="Ubuntu Pro, or a newer release",
            )

    def _driver(self, wish: Wish, branch: Branch, ubuntu: UbuntuRelease | None) -> None:
        if branch.type == "NFB":
            self.add("driver.new_feature_branch", f"branch {branch.number} is a new-feature branch", [branch.type_note])
        if branch.type == "unknown":
            self.uncertain(
                f"what kind of branch {branch.number} is and how long it lives", branch.type_certainty, branch.type_note
            )
        if wish.version:
            for bad in self.catalog.known_bad(
                "driver", wish.version, ubuntu=ubuntu.version if ubuntu else None, care=True
            ):
                self.add("driver.known_bad", f"driver {wish.version}: {bad.symptom}", [bad.note], hint=bad.fix)
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
        places = ", ".join(dict.fromkeys(f"{o.series} ({CHANNELS[o.channel]})" for o in offers))
        moved = self.catalog.transitional(series, ubuntu=ubuntu.version)
        if moved:
            self.add(
                "driver.transitional",
                f"the archive's {moved.from_} is only a transitional package to {moved.to}",
                [f"since {moved.since}", moved.bug],
                hint=f"take {places}",
            )
        own = next((o for o in self.catalog.drivers.nvidia.offers if o.ubuntu == ubuntu.version), None)
        if own and own.absent_below and branch.number < own.absent_below:
            self.add(
                "driver.not_in_nvidia_repository",
                f"NVIDIA's repository of Ubuntu {ubuntu.version} has no branch {branch.number}",
                [f"it begins with {own.absent_below}"],
                hint=f"take {places}",
            )
        if all(o.certainty in UNSURE for o in offers):
            what = f"that branch {branch.number} is offered for Ubuntu {ubuntu.version}"
            self.uncertain(what, offers[0].certainty, offers[0].note)

    def branch(self, branch: Branch, wished: Wished) -> None:
        """Warnings about the branch that the answer recommends (or was asked for)."""
        if branch.is_ended(self.today):
            when = f" on {branch.eol}" if branch.eol else ""
            alive = [b.number for b in self.catalog.branches if b.supported_now]
            self.add(
                "driver.ended",
                f"support of branch {branch.number} ended{when}",
                [branch.eol_note],
                hint="maintained now: " + ", ".join(str(n) for n in alive),
            )
        if branch.max_cuda_certainty in UNSURE and ("cuda" in wished or "cudnn" in wished):
            self.uncertain(f"that branch {branch.number} carries CUDA {branch.max_cuda}", branch.max_cuda_certainty)

    def gpu(self, gpu: Gpu, text: str) -> None:
        if gpu.certainty in UNSURE:
            self.uncertain(f"what {text} is: {gpu.name}", gpu.certainty, gpu.note)
        if gpu.modules_certainty in UNSURE and gpu.certainty not in UNSURE:
            self.uncertain(f"that {gpu.name} needs {' or '.join(gpu.modules)} modules", gpu.modules_certainty, gpu.note)
        if gpu.architecture in ("Blackwell", "Blackwell Ultra", "Rubin") and gpu.first_branch_certainty in UNSURE:
            self.uncertain(f"that {gpu.name} begins with branch {gpu.first_branch}", gpu.first_branch_certainty)

    def toolkit(self, toolkit: CudaMinor, branch: Branch, gpus: list[Gpu], *, explicit: bool) -> None:
        if not explicit:
            return
        degrees = {gpu.name: self.catalog.toolkit_support(toolkit.version, gpu) for gpu in gpus}
        if not in_full(branch, toolkit.version):
            self.add(
                "cuda.minor_compatibility",
                f"CUDA {toolkit.version} runs on branch {branch.number} by minor-version compatibility only",
                [f"the branch carries CUDA {branch.max_cuda} in full", "PTX of this toolkit is not compiled by it"],
                hint="compile for the GPUs' own compute capability",
            )
        for gpu in gpus:
            native = native_from(self.catalog, gpu)
            if degrees[gpu.name] == "binary" and native:
                below = [cc for cc in toolkit.ccs if key(cc)[0] == key(str(gpu.cc))[0] and key(cc) <= key(str(gpu.cc))]
                self.add(
                    "cuda.binary_only",
                    f"CUDA {toolkit.version} runs on {gpu.name} only by binary compatibility: its code for {max(below, key=key)}",
                    [f"it does not know compute capability {gpu.cc}; native from CUDA {native} on"],
                    hint=f"CUDA {native} or newer compiles for it",
                )
        late = [name for name, degree in degrees.items() if degree == "jit"]
        if late:
            span = self.catalog.cuda_range(gpus)
            self.add(
                "cuda.ptx_only",
                f"CUDA {toolkit.version} has no code for {', '.join(late)}: only programs that carry PTX run",
                ["the driver compiles the PTX at the first start", "libraries of that toolkit may hold no PTX"],
                hint=f"CUDA {span.first} or newer compiles for it" if span else None,
            )
        if toolkit.sm_certainty in UNSURE and gpus:
            self.uncertain(
                f"which GPUs CUDA {toolkit.version} compiles for",
                toolkit.sm_certainty,
                "worked out from the first and last toolkit of each, not read off its compiler",
            )

    def image(self, image: ImageAnswer, branch: Branch, gpus: list[Gpu]) -> None:
        """Warn where an image's CUDA runs by minor-version compatibility only, or has no code for a GPU."""
        late = [gpu.name for gpu in gpus if self.catalog.toolkit_support(image.cuda, gpu) == "jit"]
        if late:
            self.add(
                "image.ptx_only",
                f"an image with CUDA {image.cuda} has no code for {', '.join(late)}: only programs that carry PTX run",
                ["the driver compiles the PTX at the first start of every container", "its libraries may hold no PTX"],
            )
        if image.runs == "minor":
            self.add(
                "image.minor_compatibility",
                f"an image with CUDA {image.cuda} runs on branch {branch.number} by minor-version compatibility only",
                [
                    "PTX of that CUDA is not compiled by the driver",
                    f"an image that asks for cuda>={image.cuda} (NVIDIA_REQUIRE_CUDA) and for nothing else is not started",
                ],
                hint=f"driver {image.full_from} or newer runs it in full" if image.full_from else None,
            )

    def host_compiler(self, toolkit: CudaMinor, ubuntu: UbuntuRelease | None) -> None:
        """Warn where nvcc refuses the gcc of an Ubuntu release."""
        limit = host_compiler(toolkit, ubuntu.gcc) if ubuntu else None
        if ubuntu and limit:
            message = f"gcc {ubuntu.gcc} of Ubuntu {ubuntu.version} is too new for nvcc of CUDA {toolkit.version}"
            self.add("cuda.compiler_too_new", message, [limit[0]], hint=limit[1])

    def torch_tag(self, wish: Wish, tag: str, cuda: Wish | None, gpus: list[Gpu]) -> None:
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
                "torch.extension_cuda",
                f"torch {release.version}+{tag} brings CUDA {own} of its own",
                [f"extensions cannot be built for it with CUDA {cuda.text}: the majors differ"],
                hint=f"a toolkit of CUDA {key(own)[0]} for building extensions",
            )
