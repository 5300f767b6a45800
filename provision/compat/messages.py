"""Messages for clashes: a code of its own for each kind, the reasons, and a way out."""

from __future__ import annotations

from collections.abc import Sequence

from provision.catalog import Gpu
from provision.catalog.toolkits import elsewhere, holders, targets
from provision.catalog.versions import key, same
from provision.compat.answer import Nearest
from provision.compat.judge import MACHINE, Judge
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

    def _line(self, gpu: Gpu) -> str:
        drives = f"{gpu.branches}, {' or '.join(gpu.modules)} modules" if self.catalog.branches_for([gpu]) else ""
        what = f"{gpu.name} ({gpu.architecture or 'unknown'}, compute capability {gpu.cc or 'unknown'})"
        return f"{what}: {drives or 'no branch of the catalog drives it'}"

    def _gpu(self) -> Issue:
        gpu = self.gpus[0]
        message = f"no driver branch of the catalog drives {gpu.name}"
        return self._say("gpu.not_supported", message, [gpu.note or ""])

    def _gpu_gpu(self) -> Issue:
        one, other = self.gpus
        shared = self.catalog.branches_for([one]) & self.catalog.branches_for([other])
        code, what = (
            ("gpu.no_common_modules", "module flavour") if shared else ("gpu.no_common_branch", "driver branch")
        )
        message = f"no {what} drives both {one.name} and {other.name}"
        return self._say(code, message, [self._line(one), self._line(other)], "put them into different hosts")

    def _driver_gpu(self) -> Issue:
        gpu = self.gpus[0]
        message = f"{self.title['driver']} does not drive {gpu.name}"
        return self._say("driver.gpu_not_supported", message, [self._line(gpu)])

    def _gpu_modules(self) -> Issue:
        gpu = self.gpus[0]
        why = f"{gpu.architecture} works with open modules only"
        if self.parsed.modules == "open":
            why = "open modules need a GPU system processor, which begins with Turing"
        message = f"{self.title['modules']} cannot drive {gpu.name}"
        return self._say("modules.gpu_not_supported", message, [why, self._line(gpu)])

    def _gpu_ubuntu(self) -> Issue:
        gpu = self.gpus[0]
        message = f"{self.title['ubuntu']} offers no branch that drives {gpu.name}"
        return self._say("gpu.no_branch_offered", message, [self._line(gpu)])

    def _cuda_gpu(self) -> Issue:
        gpu, title = self.gpus[0], self.title["cuda"]
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
        gpu = self.gpus[0]
        why = "programs in it run on what its CUDA compiles for, whatever the host has"
        message = f"{self.title['image_cuda']} has no code for {gpu.name}"
        return self._say("image.gpu_not_supported", message, [targets(self.catalog, gpu), why])

    def _gpu_torch(self) -> Issue:
        gpu, because = self.gpus[0], []
        for tag, build in self.judge.torch_builds(self.parsed).items():
            row = self.catalog.torch_arch_list(self.by["torch"].means.version, tag, MACHINE)
            line = f"{tag}: code for {', '.join(row.cc) if row else 'unknown'}"
            line += f", PTX {row.ptx}" if row and row.ptx else ""
            if build.support(gpu) != "none" and gpu.last_branch:
                line += f"; needs driver {build.min_driver}, {gpu.name} ends at {gpu.last_branch}"
            because.append(line)
        because.append(f"{gpu.name} has compute capability {gpu.cc}")
        message = f"{self.title['torch']} has no code for {gpu.name}"
        return self._say("torch.gpu_not_supported", message, because)

    def _gpu_tensorflow(self) -> Issue:
        gpu, built = self.gpus[0], self.by["tensorflow"].means.cuda
        because = [f"it is built with CUDA {built}", targets(self.catalog, gpu), self._line(gpu)]
        message = f"{self.title['tensorflow']} does not run on {gpu.name}"
        return self._say("tensorflow.gpu_not_supported", message, because)

    def _cudnn_gpu(self) -> Issue:
        gpu, title = self.gpus[0], self.title["cudnn"]
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
        return len(kinds) == 2 and "driver" in kinds and not {"gpu", "modules", "ubuntu"} & set(kinds)

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
        if kind == "torch":
            return min((build.min_driver for build in self.judge.torch_builds(self.parsed).values()), key=key)
        if kind == "tensorflow":
            return self.catalog.min_driver(self.by[kind].means.cuda)
        if kind == "cudnn":
            return self.catalog.min_driver(str(self.catalog.cudnn_versions[self._cudnns()[0]][0]))
        return self.catalog.min_driver(self.parsed.release(self.by[kind].means[0]))

    # --- modules, repositories, libraries --------------------------------------------------------------------

    def _driver_modules(self) -> Issue:
        number = self.by["driver"].means.number
        has = self.catalog.flavours([], number)
        message = f"{self.title['driver']} has no {self.title['modules']}"
        because = [f"branch {number} comes with {' and '.join(has)} modules only"]
        return self._say("modules.branch_has_none", message, because)

    def _driver_gpu_modules(self) -> Issue:
        branch, gpu = self.by["driver"].means, self.gpus[0]
        if self.parsed.modules != "open" or not branch.open_segments:
            return self._any()
        message = f"the open modules of branch {branch.number} are alpha on {gpu.name}"
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
            because.append(f"it builds up to kernel {branch.max_kernel}, {self.title['ubuntu']} has {ubuntu.kernel_ga}")
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
        where = f"; Ubuntu {', '.join(held)} has it" if held else ""
        other = elsewhere(self.catalog, text if text in newest.releases else newest.version)
        message = f"NVIDIA's repository of {self.title['ubuntu']} has no {self.title['cuda']}"
        last = ubuntu.cuda_last or "the current one"
        because = [f"it begins with {ubuntu.cuda_first} and ends with {last}{where}"]
        return self._say("cuda.not_in_repository", message, because, "; or ".join([*self.near, other]))

    def _cuda_cudnn(self) -> Issue:
        majors = sorted({major for version in self._cudnns() for major in self.catalog.cudnn_versions[version]})
        message = f"{self.title['cudnn']} is not built for {self.title['cuda']}"
        because = [f"it is built for CUDA {' and '.join(str(major) for major in majors)}"]
        return self._say("cudnn.cuda_mismatch", message, because)

    def _cuda_tensorflow(self) -> Issue:
        return self._mismatch("cuda", "CUDA", self.by["tensorflow"].means.cuda, "loads the libraries of CUDA")

    def _cudnn_tensorflow(self) -> Issue:
        return self._mismatch("cudnn", "cuDNN", self.by["tensorflow"].means.cudnn, "loads cuDNN")

    def _mismatch(self, kind: str, name: str, built: str, loads: str) -> Issue:
        message = f"{self.title['tensorflow']} does not work with {self.title[kind]}"
        because = [f"it is built with {name} {built} and {loads} {key(built)[0]}"]
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
