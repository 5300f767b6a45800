"""Messages for clashes: a code of its own for each kind, the reasons, and a way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from provision.catalog import Gpu
from provision.catalog.builds import torch_tags
from provision.catalog.frameworks import code_held
from provision.catalog.models.frameworks import JaxBuild
from provision.catalog.toolkits import c_library, elsewhere, holders, targets
from provision.catalog.versions import key, same
from provision.compat.answer import Nearest
from provision.compat.judge import Judge
from provision.errors import Issue

CHANNELS = {"ubuntu": "Ubuntu archive", "cuda": "NVIDIA's repository", "ppa": "PPA"}


class Clash:
    """Items that leave nothing together. ``near``: the nearest values that end it."""

    def __init__(self, judge: Judge, names: Sequence[str], nearest: Sequence[Nearest]) -> None:
        self.judge, self.catalog, self.parsed = judge, judge.catalog, judge.parsed.only(names)
        self.by = {one.kind: one for one in self.parsed.values()}
        self.title = {kind: one.title for kind, one in self.by.items()}
        self.gpus, self.near = self.parsed.gpus, [n.text for n in nearest]

    def issue(self) -> Issue:
        """The clash as an issue: by the method of its kinds where they have one, ``_driver_gpu`` for a driver and a GPU."""
        kinds = sorted(one.kind for one in self.parsed.values())
        method = getattr(self, "_" + "_".join(kinds), None)
        found: Issue = method() if method else self._too_old() if self._is_about_age(kinds) else self._any()
        found.hint = found.hint or next(iter(self.near), None)
        return found

    @staticmethod
    def _say(code: str, message: str, because: list[str], hint: str | None = None) -> Issue:
        return Issue(code=code, message=message, because=because, hint=hint)

    # --- a GPU with something --------------------------------------------------------------------------------

    @property
    def gpu(self) -> Gpu:
        """The GPU of a clash that has one."""
        return self.gpus[0]

    def _line(self, gpu: Gpu) -> str:
        drives = f"{gpu.branches}, {' or '.join(gpu.modules)} modules" if self.catalog.branches_for([gpu]) else ""
        what = f"{gpu.name} ({gpu.architecture or 'unknown'}, compute capability {gpu.cc or 'unknown'})"
        return f"{what}: {drives or 'no branch of the catalog drives it'}"

    def _gpu(self) -> Issue:
        message = f"no driver branch of the catalog drives {self.gpu.name}"
        return self._say("gpu.not_supported", message, [self.gpu.note or ""])

    def _gpu_gpu(self) -> Issue:
        one, other = self.gpus
        shared = self.catalog.branches_for([one]) & self.catalog.branches_for([other])
        code, what = (
            ("gpu.no_common_modules", "module flavour") if shared else ("gpu.no_common_branch", "driver branch")
        )
        message = f"no {what} drives both {one.name} and {other.name}"
        return self._say(code, message, [self._line(one), self._line(other)], "put them into different hosts")

    def _driver_gpu(self) -> Issue:
        message = f"{self.title['driver']} does not drive {self.gpu.name}"
        return self._say("driver.gpu_not_supported", message, [self._line(self.gpu)])

    def _gpu_modules(self) -> Issue:
        why = f"{self.gpu.architecture} works with open modules only"
        if self.parsed.modules == "open":
            why = "open modules need a GPU system processor, which begins with Turing"
        message = f"{self.title['modules']} cannot drive {self.gpu.name}"
        return self._say("modules.gpu_not_supported", message, [why, self._line(self.gpu)])

    def _gpu_ubuntu(self) -> Issue:
        message = f"{self.title['ubuntu']} offers no branch that drives {self.gpu.name}"
        return self._say("gpu.no_branch_offered", message, [self._line(self.gpu)])

    def _cuda_gpu(self) -> Issue:
        gpu, title = self.gpu, self.title["cuda"]
        because = [targets(self.catalog, gpu)]
        degrees = {self.judge.support(toolkit, gpu) for toolkit in self.parsed.toolkits}
        if "jit" in degrees and not degrees & {"native", "binary"}:
            because.append("nvcc and the libraries have no code for it; programs that carry PTX may still start")
        if gpu.last_branch and degrees == {"none"}:
            because.append(f"{gpu.architecture} is driven up to branch {gpu.last_branch}")
        elif gpu.last_branch:
            least = self.parsed.toolkits[0].min_driver
            because.append(f"{title} needs driver {least}, {gpu.name} ends at {gpu.last_branch}")
        return self._say("cuda.gpu_not_supported", f"{title} does not target {gpu.name}", because)

    def _gpu_image_cuda(self) -> Issue:
        why = "programs in it run on what its CUDA compiles for, whatever the host has"
        message = f"{self.title['image_cuda']} has no code for {self.gpu.name}"
        return self._say("image.gpu_not_supported", message, [targets(self.catalog, self.gpu), why])

    def _gpu_torch(self) -> Issue:
        gpu, because, builds = self.gpu, [], self.judge.torch_builds(self.parsed)
        if gpu.machine and not builds:
            return self._no_wheels()
        for tag, build in builds.items():
            row = self.catalog.torch_arch_list(self.by["torch"].means.version, tag, self.parsed.machine)
            line = f"{tag}: code for {', '.join(row.cc) if row else 'unknown'}"
            line += f", PTX {row.ptx}" if row and row.ptx else ""
            if build.support(gpu) != "none" and gpu.last_branch:
                line += f"; needs driver {build.min_driver}, {gpu.name} ends at {gpu.last_branch}"
            because.append(line)
        because.append(f"{gpu.name} has compute capability {gpu.cc}")
        message = f"{self.title['torch']} has no code for {gpu.name}"
        return self._say("torch.gpu_not_supported", message, because)

    def _gpu_tensorflow(self) -> Issue:
        gpu, release = self.gpu, self.by["tensorflow"].means
        if gpu.machine and gpu.machine not in self.catalog.frameworks.tensorflow.machines:
            return self._no_wheels()
        codes = self.catalog.tensorflow_codes(release.version)
        because = [
            f"its wheels hold {code_held(codes, gpu.cc)}",
            f"{gpu.name} has compute capability {gpu.cc}",
            self._line(gpu),
        ]
        message = f"{self.title['tensorflow']} does not run on {gpu.name}"
        fails = codes is not None and gpu.cc in codes.fails
        hint = (
            "NVIDIA's container of TensorFlow runs there; the wheels end with CUDA_ERROR_INVALID_PTX" if fails else None
        )
        return self._say("tensorflow.gpu_not_supported", message, because, hint)

    # The processor decides which wheels there are.
    _gpu_machine_torch = _gpu_torch

    def _gpu_jax(self) -> Issue:
        gpu, release = self.gpu, self.by["jax"].means
        builds = self.judge.jax_builds(self.parsed)
        if gpu.machine and not builds:
            return self._no_wheels()
        because = [
            f"jax[{codes.extra}]: {code_held(codes, gpu.cc)}" for codes in release.builds if codes.extra in builds
        ]
        because += [f"{gpu.name} has compute capability {gpu.cc}", self._line(gpu)]
        return self._say("jax.gpu_not_supported", f"{self.title['jax']} has no code for {gpu.name}", because)

    def _no_wheels(self, *because: str) -> Issue:
        frameworks, machine = self.catalog.frameworks, self.parsed.machine
        kind = next(kind for kind in ("torch", "tensorflow", "jax") if kind in self.by)
        first = {
            "torch": [v for v in frameworks.torch.releases if torch_tags(self.catalog, self.catalog.torch(v), machine)],
            "jax": [v for v, row in frameworks.jax.releases.items() if row.aarch64],
        }.get(kind)
        beside = [f"{gpu.name} sits beside {gpu.machine} processors only" for gpu in self.gpus]
        since = [f"those with them begin with {first[0]}"] if first else []
        message = f"{self.title[kind]} has no wheels with CUDA for {machine}"
        return self._say(f"{kind}.no_wheels_for_machine", message, [*beside, *because, *since])

    _machine_torch = _jax_machine = _no_wheels

    def _machine_tensorflow(self) -> Issue:
        return self._no_wheels("the package index has wheels for the CPU only")

    def _gpu_machine(self) -> Issue:
        message = f"{self.gpu.name} does not sit in {self.title['machine']}"
        return self._say("gpu.other_machine", message, [f"it sits beside {self.gpu.machine} processors only"])

    def _cudnn_gpu(self) -> Issue:
        gpu, title = self.gpu, self.title["cudnn"]
        because = [f"{gpu.name} has compute capability {gpu.cc}"]
        low = self.catalog.cudnn_min_cc(self._cudnns()[0])
        if low and gpu.cc and key(gpu.cc) < key(low[0]):
            because.insert(0, f"{title} needs compute capability {low[0]}" + ("" if low[1] else " (inferred)"))
        else:
            because.append(targets(self.catalog, gpu))
        return self._say("cudnn.gpu_not_supported", f"{title} does not drive {gpu.name}", because)

    def _cudnns(self) -> list[str]:
        """The versions that are meant, newest first."""
        return [v for v in self.catalog.cudnn_versions if same(self.by["cudnn"].means, v)]

    # --- a driver that is too old ----------------------------------------------------------------------------

    @staticmethod
    def _is_about_age(kinds: list[str]) -> bool:
        return (
            len(kinds) == 2
            and "driver" in kinds
            and not {"gpu", "modules", "ubuntu", "machine", "kernel", "mig"} & set(kinds)
        )

    def _too_old(self) -> Issue:
        kind = next(kind for kind in self.by if kind != "driver")
        code = f"driver.too_old_for_{'image' if kind == 'image_cuda' else kind}"
        title, least = self.title[kind], self._least(kind)
        because = [f"{title} needs driver {least} or newer, by minor-version compatibility"]
        hint = None
        if kind == "image_cuda":
            because.append("a container uses the driver of its host")
            package = f"cuda-compat-{self.parsed.image[-1].version.replace('.', '-')}"
            forward = f"on data-center GPUs an image with {package} in it (forward compatibility)"
            hint = "; or ".join([*self.near, forward])
        return self._say(code, f"{self.title['driver']} is too old for {title}", because, hint)

    def _least(self, kind: str) -> str:
        """The oldest driver that runs what is asked for, by minor-version compatibility."""
        if kind == "cudnn":
            return self.catalog.min_driver(str(self.catalog.cudnn_versions[self._cudnns()[0]][0]))
        if kind == "nccl":
            return self.catalog.min_driver(str(self._majors("nccl", self.catalog.nccl_versions)[0]))
        builds = self.judge.programs(self.parsed)[kind].values()
        return min((build.min_driver for build in builds), key=key, default="unknown")

    # --- the kernel, MIG ----

    def _driver_kernel(self) -> Issue:
        branch, bad = self.by["driver"].means, self.judge.does_not_build(self.parsed)
        because, hint = [f"branch {branch.number} builds up to kernel {self.judge.max_kernel(branch)}"], None
        if bad:
            because = [f"on kernels from {bad.kernel_from} on: {bad.symptom}"]
            hint = "; or ".join([*self.near, bad.fix])
        message = f"{self.title['driver']} does not build for {self.title['kernel']}"
        return self._say("driver.kernel_too_new", message, because, hint)

    def _gpu_mig(self) -> Issue:
        because = ["A100, A30, H100, H20, H200, B200, B300, RTX PRO 4500 to 6000 Blackwell and their boards have it"]
        return self._say("mig.gpu_has_none", f"{self.gpu.name} has no MIG", because)

    def _driver_gpu_mig(self) -> Issue:
        message = f"{self.title['driver']} is too old for MIG on {self.gpu.name}"
        return self._say(
            "mig.driver_too_old", message, [f"MIG on {self.gpu.name} needs driver {self.gpu.mig_driver} or newer"]
        )

    # --- modules, repositories, libraries --------------------------------------------------------------------

    def _driver_modules(self) -> Issue:
        number = self.by["driver"].means.number
        has = self.catalog.flavours([], number)
        message = f"{self.title['driver']} has no {self.title['modules']}"
        because = [f"branch {number} comes with {' and '.join(has)} modules only"]
        return self._say("modules.branch_has_none", message, because)

    def _driver_gpu_modules(self) -> Issue:
        branch = self.by["driver"].means
        if self.parsed.modules != "open" or not branch.open_segments:
            return self._any()
        message = f"the open modules of branch {branch.number} are alpha on {self.gpu.name}"
        why = "they drive cards that are not of the data-center kind only with NVreg_OpenRmEnableUnsupportedGpus=1"
        return self._say("modules.open_alpha", message, [why])

    def _modules_ubuntu(self) -> Issue:
        message = f"no branch offered for {self.title['ubuntu']} has {self.title['modules']}"
        return self._say("modules.not_offered", message, self._limits())

    def _driver_ubuntu(self) -> Issue:
        branch, ubuntu, text = self.by["driver"].means, self.by["ubuntu"].means, self.by["driver"].text
        because = []
        series = text if text.endswith("-server") else str(branch.number)
        moved = self.catalog.transitional(series, ubuntu=ubuntu.version)
        if moved:
            because.append(f"the archive's {moved.from_} is only a transitional package to {moved.to} there")
        if not self.judge.kernel_ok(branch, self.parsed):
            because.append(
                f"it builds up to kernel {self.judge.max_kernel(branch)}, {self.title['ubuntu']} has {ubuntu.kernel_ga}"
            )
        elif not moved:
            because.append("no repository of it is known to hold this branch")
        for release in self.catalog.ubuntu_data.releases:
            series_known = self.catalog.known_series(branch.number, ubuntu=release)
            because += [f"offered for Ubuntu {release}: {o.series} ({CHANNELS[o.channel]})" for o in series_known]
        message = f"{self.title['driver']} is not offered for {self.title['ubuntu']}"
        return self._say("driver.not_offered", message, because)

    def _cuda_ubuntu(self) -> Issue:
        text, ubuntu, newest = self.by["cuda"].text, self.by["ubuntu"].means, self.parsed.toolkits[-1]
        held = sorted({v for toolkit in self.parsed.toolkits for v in holders(self.catalog, toolkit.version)})
        where = f"; Ubuntu {', '.join(held)} {'has' if len(held) == 1 else 'have'} it" if held else ""
        other = elsewhere(self.catalog, text if text in newest.releases else newest.version)
        message = f"NVIDIA's repository of {self.title['ubuntu']} has no {self.title['cuda']}"
        last = ubuntu.cuda_last or "the current one"
        archive = self.catalog.cuda_data.archive_ranges.get(ubuntu.version)
        clash = c_library(self.catalog, newest, ubuntu.glibc)
        because = [
            f"it begins with {ubuntu.cuda_first} and ends with {last}{where}",
            *([f"the archive has {archive.release or archive.first}"] if archive else []),
            *([f"from elsewhere it does not compile there (glibc {ubuntu.glibc}): {clash[0]}"] if clash else []),
        ]
        return self._say("cuda.not_in_repository", message, because, "; or ".join([*self.near, other]))

    def _cuda_cudnn(self) -> Issue:
        return self._not_built("cudnn", self.catalog.cudnn_versions)

    def _cuda_nccl(self) -> Issue:
        return self._not_built("nccl", self.catalog.nccl_versions)

    def _not_built(self, kind: str, known: Mapping[str, Sequence[int]]) -> Issue:
        because = [f"it is built for CUDA {' and '.join(map(str, self._majors(kind, known)))}"]
        message = f"{self.title[kind]} is not built for {self.title['cuda']}"
        return self._say(f"{kind}.cuda_mismatch", message, because)

    def _majors(self, kind: str, known: Mapping[str, Sequence[int]]) -> list[int]:
        """Majors of CUDA that the versions of a library that are meant are built for."""
        meant = [majors for version, majors in known.items() if same(self.by[kind].means, version)]
        return sorted({major for majors in meant for major in majors})

    def _cuda_jax(self) -> Issue:
        return self._jax_needs("cuda", lambda codes: f"CUDA {codes.least} or newer {key(codes.cuda)[0]}.x")

    def _cudnn_jax(self) -> Issue:
        return self._jax_needs("cudnn", lambda codes: f"cuDNN {codes.cudnn} or newer {key(codes.cudnn)[0]}.x")

    def _jax_needs(self, kind: str, need: Callable[[JaxBuild], str]) -> Issue:
        because = [f"its plugins need {' or '.join(dict.fromkeys(map(need, self.by['jax'].means.builds)))}"]
        message = f"{self.title['jax']} does not work with {self.title[kind]}"
        return self._say(f"jax.{kind}_mismatch", message, because)

    def _jax_tensorflow(self) -> Issue:
        release, builds = self.by["tensorflow"].means, self.by["jax"].means.builds
        because = [f"{self.title['tensorflow']} loads CUDA {key(release.cuda)[0]} and cuDNN {key(release.cudnn)[0]}"]
        because += [
            f"jax[{codes.extra}] loads CUDA {key(codes.cuda)[0]} and cuDNN {key(codes.cudnn)[0]}" for codes in builds
        ]
        message = f"{self.title['jax']} and {self.title['tensorflow']} do not share libraries"
        return self._say("jax.tensorflow_mismatch", message, because)

    def _cuda_tensorflow(self) -> Issue:
        return self._mismatch("cuda", "CUDA", self.by["tensorflow"].means.cuda, "loads the libraries of CUDA")

    def _cudnn_tensorflow(self) -> Issue:
        return self._mismatch("cudnn", "cuDNN", self.by["tensorflow"].means.cudnn, "loads cuDNN")

    def _mismatch(self, kind: str, name: str, built: str, loads: str) -> Issue:
        message = f"{self.title['tensorflow']} does not work with {self.title[kind]}"
        newer = f", {built} or newer" if kind == "cudnn" else ""
        because = [f"it is built with {name} {built} and {loads} {key(built)[0]}{newer}"]
        return self._say(f"tensorflow.{kind}_mismatch", message, because)

    # --- all others ------------------------------------------------------------------------------------------

    def _any(self) -> Issue:
        titles = " and ".join(one.title for one in self.parsed.values())
        return self._say("compat.clash", f"{titles} do not go together", self._limits())

    def _limits(self) -> list[str]:
        """What each item leaves by itself."""
        lines = []
        for name, one in self.parsed.items():
            left = self.judge.left(self.parsed.only([name]))
            numbers = [item.branch.number for item in left]
            span = f"branches {numbers[0]} to {numbers[-1]}" if numbers else "no branch"
            if len(numbers) == len(self.catalog.branches):
                span = "any branch"
            elif len(numbers) == 1:
                span = f"branch {numbers[0]}"
            toolkits = [toolkit.version for item in left for toolkit in item.toolkits]
            cuda = f"CUDA {min(toolkits, key=key)} to {max(toolkits, key=key)}" if toolkits else "no CUDA toolkit"
            lines.append(f"{one.title}: {span}, {cuda}")
        return lines
