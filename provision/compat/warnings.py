"""Warnings beside an answer: what ended, what is only possible in part, what is not sure."""

from __future__ import annotations

from collections.abc import Iterable

from provision.catalog import UNSURE, Branch, CudaMinor, Gpu
from provision.catalog.models.frameworks import CodeList
from provision.catalog.toolkits import c_library, host_compiler, native_from, only_in_archive
from provision.catalog.versions import key, same
from provision.compat.answer import ImageAnswer
from provision.compat.judge import Judge
from provision.compat.messages import CHANNELS
from provision.compat.request import ParsedRequest
from provision.errors import Issue


class Warnings:
    """Collects warnings about what a judge was asked, each once."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.catalog, self.parsed = judge, judge.catalog, judge.parsed
        self.gpus, self.ubuntu = self.parsed.gpus, self.parsed.ubuntu
        self.issues: list[Issue] = []

    def add(self, code: str, message: str, because: Iterable[str | None] = (), hint: str | None = None) -> None:
        issue = Issue(code=code, message=message, because=[b for b in because if b], hint=hint)
        if issue not in self.issues:
            self.issues.append(issue)

    def uncertain(self, what: str, certainty: str, note: str | None = None) -> None:
        """Say that the answer rests on a value that is not sure."""
        if certainty in UNSURE:
            self.add("catalog.uncertain", f"not sure ({certainty}): {what}", [note])

    def rests_on(
        self, parsed: ParsedRequest, tags: Iterable[str], toolkits: Iterable[CudaMinor], extras: Iterable[str | None]
    ) -> None:
        """Name every fact that is not sure and that an answer about these items rests on, a yes and a no alike.

        tags, extras: the builds of PyTorch and JAX that were considered; toolkits: the toolkits.
        """
        torch, tensorflow, jax, gpus = parsed.torch, parsed.tensorflow, parsed.jax, parsed.gpus
        if torch:
            rows = {tag: self.catalog.torch_arch_list(torch.version, tag, parsed.machine) for tag in tags if gpus}
            for tag, row in rows.items():
                if row:
                    self.uncertain(f"what the {tag} wheels of torch {torch.version} hold", row.certainty, row.note)
            self.uncertain(f"the builds of torch {torch.version}", torch.certainty, torch.note)
        if tensorflow and gpus:
            codes = self.catalog.tensorflow_codes(tensorflow.version)
            what = f"which GPUs the wheels of {parsed['tensorflow'].title} hold code for"
            self.uncertain(what, codes.certainty if codes else "unknown", codes.note if codes else None)
            self._fails(parsed["tensorflow"].title, codes, gpus)
        for build in jax.builds if jax and gpus else ():
            if jax and build.extra in extras:
                self.uncertain(f"what jax[{build.extra}] of {jax.version} holds", build.certainty, build.note)
                self._fails(f"jax[{build.extra}] of {jax.version}", build, gpus)
        for toolkit in toolkits if gpus else ():
            self.uncertain(
                f"which GPUs CUDA {toolkit.version} compiles for",
                toolkit.sm_certainty,
                "worked out from the first and last toolkit of each, not read off its compiler",
            )
        limit = self.judge.max_kernel(parsed.branch) if parsed.kernel and parsed.branch else None
        if parsed.branch and limit:
            certainty = parsed.branch.max_kernel_certainty if parsed.branch.max_kernel else "inferred"
            self.uncertain(f"that branch {parsed.branch.number} builds up to kernel {limit}", certainty)
        if parsed.cudnn and gpus:
            low = self.catalog.cudnn_low(next(v for v in self.catalog.cudnn_versions if same(parsed.cudnn, v)))
            if low:
                self.uncertain(
                    f"that {parsed['cudnn'].title} needs compute capability {low.cc}", low.certainty, low.note
                )

    def _fails(self, title: str, codes: CodeList | None, gpus: Iterable[Gpu]) -> None:
        failing = sorted({gpu.cc for gpu in gpus if codes and gpu.cc and gpu.cc in codes.fails})
        if codes and failing:
            self.uncertain(f"that the PTX of {title} does not load on {', '.join(failing)}", codes.fails_certainty)

    def nccl(self, version: str | None) -> None:
        """Say what is known against an NCCL on the GPUs."""
        ids = [device for gpu in self.gpus for device in gpu.ids]
        for bad in self.catalog.known_bad("nccl", version, ids=ids, care=True) if version else ():
            self.add("nccl.known_bad", f"NCCL {version}: {bad.symptom}", [bad.note], bad.fix)

    def items_alone(self) -> None:
        """Warnings about items by themselves, whether or not all fits."""
        if self.parsed.branch:
            self._driver(self.parsed.branch, self.parsed["driver"].text, self.parsed.version)
        if self.ubuntu and self.ubuntu.support != "standard":
            self.add(
                "ubuntu.support_ended",
                f"standard support of Ubuntu {self.ubuntu.version} ended {self.ubuntu.standard_support_until}",
                [f"support now: {self.ubuntu.support}"],
                hint="Ubuntu Pro, or a newer release",
            )

    def _driver(self, branch: Branch, text: str, version: str | None) -> None:
        if branch.type == "NFB":
            self.add("driver.new_feature_branch", f"branch {branch.number} is a new-feature branch", [branch.type_note])
        if branch.type == "unknown":
            what = f"what kind of branch {branch.number} is and how long it lives"
            self.uncertain(what, branch.type_certainty, branch.type_note)
        if version:
            for bad in self.judge.troubles(version, self.parsed):
                where = f" on kernels from {bad.kernel_from} on" if bad.kernel_from else ""
                build = "as NVIDIA builds it" if bad.channels == ("cuda",) else None
                self.add("driver.known_bad", f"driver {version}{where}: {bad.symptom}", [bad.note, build], bad.fix)
            if branch.last_version and key(version) > key(branch.last_version):
                what = f"driver {version} is newer than the catalog ({branch.last_version} is the last it knows)"
                self.uncertain(what, "unknown")
        if self.parsed.modules == "open" and branch.open_beta and any(gpu.segment != "datacenter" for gpu in self.gpus):
            message = (
                f"the open modules of branch {branch.number} are beta on cards that are not of the data-center kind"
            )
            self.add("modules.open_beta", message, hint="proprietary modules, or branch 560 and newer")
        self.known_series(branch, text if text.endswith("-server") else str(branch.number))

    def known_series(self, branch: Branch, series: str) -> None:
        """Say where a branch comes from when it is not where one would look, and when that is not sure."""
        ubuntu, series_known = self.ubuntu, self.judge.known_series(branch, self.parsed)
        if ubuntu is None:
            return
        if not series_known:
            if self.judge.may_be_offered(branch, "", self.parsed):
                note = "its archive was not looked through; apt on the host says it: apt-cache policy"
                self.uncertain(f"whether Ubuntu {ubuntu.version} offers branch {branch.number}", "unknown", note)
            return
        places = ", ".join(dict.fromkeys(f"{o.series} ({CHANNELS[o.channel]})" for o in series_known))
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
        if all(o.certainty in UNSURE for o in series_known):
            what = f"that branch {branch.number} is offered for Ubuntu {ubuntu.version}"
            self.uncertain(what, series_known[0].certainty, series_known[0].note)

    def branch(self, branch: Branch) -> None:
        """Warnings about the branch that the answer recommends (or was asked for)."""
        if branch.is_ended(self.judge.today):
            when = f" on {branch.eol}" if branch.eol else ""
            alive = [str(b.number) for b in self.catalog.branches if b.supported_now]
            self.add(
                "driver.ended",
                f"support of branch {branch.number} ended{when}",
                [branch.eol_note],
                hint="maintained now: " + ", ".join(alive),
            )
        if "cuda" in self.parsed or "cudnn" in self.parsed:
            what = f"that branch {branch.number} carries CUDA {branch.max_cuda}"
            self.uncertain(what, branch.max_cuda_certainty)

    def gpu(self, gpu: Gpu, text: str) -> None:
        """Warn of what is not sure of a GPU: what it is, its modules, MIG, and since when drivers know it."""
        if self.parsed.mig and gpu.mig is not False and (gpu.mig is None or gpu.mig_driver is None):
            note = "the MIG guide does not name it"
            what = f"since which driver {gpu.name} has MIG" if gpu.mig else f"that {gpu.name} has MIG"
            self.uncertain(what, "unknown", note)
        self.uncertain(f"what {text} is: {gpu.name}", gpu.certainty, gpu.note)
        if gpu.certainty not in UNSURE:
            what = f"that {gpu.name} needs {' or '.join(gpu.modules)} modules"
            self.uncertain(what, gpu.modules_certainty, gpu.note)
        asked = self.parsed.branch.number if self.parsed.branch else None
        if not gpu.is_sure_of(asked):
            note = "worked out from the first CUDA that knows its compute capability, not read in NVIDIA's tables"
            self.uncertain(f"that {gpu.name} begins with branch {gpu.first_branch}", gpu.first_branch_certainty, note)

    def toolkit(self, toolkit: CudaMinor | None, branch: Branch, *, explicit: bool) -> None:
        """Warn of a toolkit that is not there, or is there and runs in part; explicit: one is asked for."""
        if toolkit is None:
            if self.ubuntu and self.gpus:
                self.add(
                    "cuda.none_in_repository",
                    f"NVIDIA's repository of Ubuntu {self.ubuntu.version} has no CUDA toolkit for these GPUs",
                    hint="take CUDA from conda or in a container",
                )
            return
        if not explicit:
            return
        if key(branch.max_cuda) < key(toolkit.version):
            self.add(
                "cuda.minor_compatibility",
                f"CUDA {toolkit.version} runs on branch {branch.number} by minor-version compatibility only",
                [f"the branch carries CUDA {branch.max_cuda} in full", "PTX of this toolkit is not compiled by it"],
                hint="compile for the GPUs' own compute capability",
            )
        for gpu in self.gpus:
            native = native_from(self.catalog, gpu)
            if self.judge.support(toolkit, gpu) == "binary" and native:
                # 12.8 and 12.9 call Thor's code 10.1; it is 11.0 since 13.0 and runs on nothing of 10.x.
                known = [cc for cc in toolkit.ccs if cc in self.catalog.architectures.compute_capabilities]
                below = [cc for cc in known if key(cc)[0] == key(str(gpu.cc))[0] and key(cc) <= key(str(gpu.cc))]
                has = f"its code for {max(below, key=key)}"
                self.add(
                    "cuda.binary_only",
                    f"CUDA {toolkit.version} runs on {gpu.name} only by binary compatibility: {has}",
                    [f"it does not know compute capability {gpu.cc}; native from CUDA {native} on"],
                    hint=f"CUDA {native} or newer compiles for it",
                )
        late = list(dict.fromkeys(gpu.name for gpu in self.gpus if self.judge.support(toolkit, gpu) == "jit"))
        if late:
            span = self.catalog.cuda_range(self.gpus)
            self.add(
                "cuda.ptx_only",
                f"CUDA {toolkit.version} has no code for {', '.join(late)}: only programs that carry PTX run",
                ["the driver compiles the PTX at the first start", "libraries of that toolkit may hold no PTX"],
                hint=f"CUDA {span.first} or newer compiles for it" if span else None,
            )
        if self.ubuntu and only_in_archive(self.catalog, toolkit.version, self.ubuntu.version):
            self.add(
                "cuda.archive_only",
                f"CUDA {toolkit.version} is in the archive of Ubuntu {self.ubuntu.version}, not in NVIDIA's repository for it",
                ["the archive has no cuDNN and no NCCL for it, and CUDA of the two is never mixed on a host"],
                hint="libraries come from conda, wheels or a container",
            )
        if self.ubuntu and "cuda" in self.parsed:
            compiler = host_compiler(toolkit, self.ubuntu.gcc)
            library = c_library(self.catalog, toolkit, self.ubuntu.glibc)
            for code, what, found in (
                ("cuda.compiler_too_new", f"gcc {self.ubuntu.gcc}", compiler),
                ("cuda.c_library_too_new", f"glibc {self.ubuntu.glibc}", library),
            ):
                message = f"{what} of Ubuntu {self.ubuntu.version} is too new for nvcc of CUDA {toolkit.version}"
                if found:
                    self.add(code, message, [found[0]], hint=found[1])

    def image(self, image: ImageAnswer, branch: Branch) -> None:
        """Warn where an image's CUDA runs by minor-version compatibility only, or has no code for a GPU."""
        late = [gpu.name for gpu in self.gpus if self.catalog.toolkit_support(image.cuda, gpu) == "jit"]
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

    def torch_tag(self, tag: str) -> None:
        """Warnings about the build of PyTorch that the answer takes."""
        release, cudas = self.parsed.torch, self.parsed.toolkits
        if release is None:
            return
        own = self.catalog.frameworks.torch.tags[tag].cuda
        # Which point release a build brings is known of the default build only; the major is the same in all.
        low = self.catalog.cudnn_low(f"{key(release.cudnn)[0]}.0.0") if release.cudnn else None
        for gpu in self.gpus if low else ():
            if low and gpu.cc and key(gpu.cc) < key(low.cc):
                message = f"the cuDNN {key(str(release.cudnn))[0]} that torch {release.version} brings has no code for {gpu.name}"
                because = [f"it needs compute capability {low.cc}, {gpu.name} has {gpu.cc}"]
                older = "a release that brings an older cuDNN, or torch.backends.cudnn.enabled = False"
                self.add("torch.cudnn_without_code", message, because, older)
        if cudas and all(toolkit.major != key(own)[0] for toolkit in cudas):
            asked = self.parsed["cuda"].title
            self.add(
                "torch.extension_cuda",
                f"torch {release.version}+{tag} brings CUDA {own} of its own",
                [f"extensions cannot be built for it with {asked}: the majors differ"],
                hint=f"a toolkit of CUDA {key(own)[0]} for building extensions",
            )
