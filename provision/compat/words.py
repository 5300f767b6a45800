"""Clashes in words: a code of its own for each kind, the reasons, and a way out."""

from __future__ import annotations

from provision.catalog import Gpu
from provision.catalog.toolkits import elsewhere, holders, targets
from provision.catalog.versions import key, same
from provision.compat.judge import Judge
from provision.compat.wish import Wish
from provision.errors import Issue

CHANNELS = {"ubuntu": "Ubuntu archive", "cuda": "NVIDIA's repository", "ppa": "PPA"}


def _compat(wish: Wish) -> str:
    """The package of CUDA's forward compatibility for an image."""
    return f"cuda-compat-{wish.toolkits[-1].version.replace('.', '-')}"


class Words:
    """Turns a clash (names of wishes) into an issue with a code of its own and the reasons."""

    def __init__(self, judge: Judge, names: tuple[str, ...]) -> None:
        self.judge, self.catalog = judge, judge.catalog
        self.wishes = [judge.wished[n] for n in names]
        self.by = {w.kind: w for w in self.wishes}
        self.gpus = [w.gpu for w in self.wishes if w.gpu]

    def issue(self) -> Issue:
        kinds = "+".join(sorted(w.kind for w in self.wishes))
        special = {
            "gpu": self._gpu,
            "gpu+gpu": self._gpu_gpu,
            "driver+gpu": self._driver_gpu,
            "cuda+gpu": self._cuda_gpu,
            "gpu+torch": self._torch_gpu,
            "gpu+tensorflow": self._tensorflow_gpu,
            "cudnn+gpu": self._cudnn_gpu,
            "gpu+modules": self._modules_gpu,
            "driver+modules": self._driver_modules,
            "cuda+driver": self._cuda_driver,
            "driver+torch": self._driver_torch,
            "driver+tensorflow": self._driver_tensorflow,
            "cudnn+driver": self._driver_cudnn,
            "driver+ubuntu": self._driver_ubuntu,
            "gpu+ubuntu": self._gpu_ubuntu,
            "cuda+ubuntu": self._cuda_ubuntu,
            "cuda+cudnn": self._cuda_cudnn,
            "cuda+tensorflow": self._cuda_tensorflow,
            "cudnn+tensorflow": self._cudnn_tensorflow,
            "modules+ubuntu": self._modules_ubuntu,
            "driver+image_cuda": self._driver_image,
            "gpu+image_cuda": self._image_gpu,
        }.get(kinds)
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
            cuda = f", CUDA {min(toolkits, key=key)} to {max(toolkits, key=key)}" if toolkits else ", no CUDA toolkit"
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
        return targets(self.catalog, gpu)

    def _gpu(self) -> Issue:
        gpu = self.gpus[0]
        return Issue(
            code="gpu.not_supported",
            message=f"no driver branch of the catalog drives {gpu.name}",
            because=[gpu.note or ""],
        )

    def _gpu_gpu(self) -> Issue:
        one, other = self.gpus
        shared = self.catalog.branches_for([one]) & self.catalog.branches_for([other])
        what = "module flavour" if shared else "driver branch"
        return Issue(
            code="gpu.no_common_modules" if shared else "gpu.no_common_branch",
            message=f"no {what} drives both {one.name} and {other.name}",
            because=[self._line(one), self._line(other)],
            hint="put them into different hosts",
        )

    def _driver_gpu(self) -> Issue:
        driver, gpu = self.by["driver"], self.gpus[0]
        return Issue(
            code="driver.gpu_not_supported",
            message=f"driver {driver.text} does not drive {gpu.name}",
            because=[self._line(gpu)],
        )

    def _cuda_gpu(self) -> Issue:
        gpu, cuda = self.gpus[0], self.by["cuda"]
        because = [self._cuda_span(gpu)]
        degrees = {self.catalog.toolkit_support(t.version, gpu) for t in cuda.toolkits}
        if "jit" in degrees and not degrees & {"native", "binary"}:
            because.append("nvcc and the libraries have no code for it; programs that carry PTX may still start")
        if gpu.last_branch and not any(self.catalog.toolkit_support(t.version, gpu) != "none" for t in cuda.toolkits):
            because.append(f"{gpu.architecture} is driven up to branch {gpu.last_branch}")
        elif gpu.last_branch:
            because.append(
                f"CUDA {cuda.text} needs driver {cuda.toolkits[0].min_driver}, {gpu.name} ends at {gpu.last_branch}"
            )
        return Issue(
            code="cuda.gpu_not_supported", message=f"CUDA {cuda.text} does not target {gpu.name}", because=because
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
                    least = self.catalog.torch_min_driver(tag)
                    because[-1] += f"; needs driver {least}, {gpu.name} ends at {gpu.last_branch}"
        because.append(f"{gpu.name} has compute capability {gpu.cc}")
        return Issue(
            code="torch.gpu_not_supported", message=f"{wish.title} has no code for {gpu.name}", because=because
        )

    def _tensorflow_gpu(self) -> Issue:
        gpu, wish = self.gpus[0], self.by["tensorflow"]
        cuda = wish.tensorflow.cuda if wish.tensorflow else ""
        return Issue(
            code="tensorflow.gpu_not_supported",
            message=f"{wish.title} does not run on {gpu.name}",
            because=[f"it is built with CUDA {cuda}", self._cuda_span(gpu), self._line(gpu)],
        )

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
            code="cudnn.gpu_not_supported", message=f"cuDNN {wish.text} does not drive {gpu.name}", because=because
        )

    def _newest_cudnn(self, wish: Wish) -> str:
        return next(v for v in self.catalog.cudnn_versions if same(wish.version or "", v))

    def _modules_gpu(self) -> Issue:
        gpu, wish = self.gpus[0], self.by["modules"]
        why = (
            "open modules need a GPU system processor, which begins with Turing"
            if wish.modules == "open"
            else f"{gpu.architecture} works with open modules only"
        )
        return Issue(
            code="modules.gpu_not_supported",
            message=f"{wish.title} cannot drive {gpu.name}",
            because=[why, self._line(gpu)],
        )

    def _driver_modules(self) -> Issue:
        driver, wish = self.by["driver"], self.by["modules"]
        branch = driver.branch
        has = self.catalog.flavours([], branch.number) if branch else []
        return Issue(
            code="modules.branch_has_none",
            message=f"driver {driver.text} has no {wish.title}",
            because=[f"branch {branch.number if branch else ''} comes with {' and '.join(has)} modules only"],
        )

    def _too_old(self, code: str, wish: Wish, least: str) -> Issue:
        driver = self.by["driver"]
        return Issue(
            code=code,
            message=f"driver {driver.text} is too old for {wish.title}",
            because=[f"{wish.title} needs driver {least} or newer, by minor-version compatibility"],
        )

    def _cuda_driver(self) -> Issue:
        wish = self.by["cuda"]
        return self._too_old("driver.too_old_for_cuda", wish, wish.toolkits[0].min_driver)

    def _driver_image(self) -> Issue:
        wish = self.by["image_cuda"]
        issue = self._too_old("driver.too_old_for_image", wish, wish.toolkits[0].min_driver)
        issue.because += ["a container uses the driver of its host"]
        near = self.judge.nearest(tuple(n for n, w in self.judge.wished.items() if w in self.wishes))
        issue.hint = "; or ".join(
            [
                *(n.text for n in near),
                f"on data-center GPUs an image with {_compat(wish)} in it (forward compatibility)",
            ]
        )
        return issue

    def _image_gpu(self) -> Issue:
        gpu, wish = self.gpus[0], self.by["image_cuda"]
        return Issue(
            code="image.gpu_not_supported",
            message=f"{wish.title} has no code for {gpu.name}",
            because=[self._cuda_span(gpu), "programs in it run on what its CUDA compiles for, whatever the host has"],
        )

    def _driver_torch(self) -> Issue:
        wish = self.by["torch"]
        names = (wish.tag,) if wish.tag else wish.torch.offered if wish.torch else ()
        least = min((self.catalog.torch_min_driver(tag) for tag in names), key=key)
        return self._too_old("driver.too_old_for_torch", wish, least)

    def _driver_tensorflow(self) -> Issue:
        wish = self.by["tensorflow"]
        least = self.catalog.min_driver(wish.tensorflow.cuda if wish.tensorflow else "12")
        return self._too_old("driver.too_old_for_tensorflow", wish, least)

    def _driver_cudnn(self) -> Issue:
        wish = self.by["cudnn"]
        majors = self.catalog.cudnn_versions[self._newest_cudnn(wish)]
        return self._too_old("driver.too_old_for_cudnn", wish, self.catalog.min_driver(str(majors[0])))

    def _where(self, number: int) -> list[str]:
        found = []
        for release in self.catalog.ubuntu_data.releases:
            offers = self.catalog.offers(number, ubuntu=release)
            found += [f"Ubuntu {release}: {o.series} ({CHANNELS[o.channel]})" for o in offers]
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
            code="driver.not_offered", message=f"driver {driver.text} is not offered for {wish.title}", because=because
        )

    def _gpu_ubuntu(self) -> Issue:
        gpu, wish = self.gpus[0], self.by["ubuntu"]
        return Issue(
            code="gpu.no_branch_offered",
            message=f"{wish.title} offers no branch that drives {gpu.name}",
            because=[self._line(gpu)],
        )

    def _cuda_ubuntu(self) -> Issue:
        cuda, wish = self.by["cuda"], self.by["ubuntu"]
        ubuntu = wish.ubuntu
        first, last = (ubuntu.cuda_first, ubuntu.cuda_last) if ubuntu else (None, None)
        held = sorted({v for t in cuda.toolkits for v in holders(self.catalog, t.version)})
        where = f"; Ubuntu {', '.join(held)} has it" if held else ""
        return Issue(
            code="cuda.not_in_repository",
            message=f"NVIDIA's repository of {wish.title} has no CUDA {cuda.text}",
            because=[f"it begins with {first} and ends with {last or 'the current one'}{where}"],
            hint=self._cuda_way_out(cuda),
        )

    def _cuda_way_out(self, cuda: Wish) -> str:
        near = self.judge.nearest(tuple(n for n, w in self.judge.wished.items() if w in self.wishes))
        words = [n.text for n in near]
        newest = cuda.toolkits[-1]
        return "; or ".join(
            [*words, elsewhere(self.catalog, cuda.text if cuda.text in newest.releases else newest.version)]
        )

    def _cuda_cudnn(self) -> Issue:
        cuda, wish = self.by["cuda"], self.by["cudnn"]
        majors = {m for v, ms in self.catalog.cudnn_versions.items() if same(wish.version or "", v) for m in ms}
        return Issue(
            code="cudnn.cuda_mismatch",
            message=f"cuDNN {wish.text} is not built for CUDA {cuda.text}",
            because=[f"it is built for CUDA {' and '.join(str(m) for m in sorted(majors))}"],
        )

    def _cuda_tensorflow(self) -> Issue:
        cuda, wish = self.by["cuda"], self.by["tensorflow"]
        built = wish.tensorflow.cuda if wish.tensorflow else ""
        return Issue(
            code="tensorflow.cuda_mismatch",
            message=f"{wish.title} does not work with CUDA {cuda.text}",
            because=[f"it is built with CUDA {built} and loads the libraries of CUDA {key(built)[0]}"],
        )

    def _cudnn_tensorflow(self) -> Issue:
        wish, cudnn = self.by["tensorflow"], self.by["cudnn"]
        built = wish.tensorflow.cudnn if wish.tensorflow else ""
        return Issue(
            code="tensorflow.cudnn_mismatch",
            message=f"{wish.title} does not work with cuDNN {cudnn.text}",
            because=[f"it is built with cuDNN {built} and loads cuDNN {key(built)[0]}"],
        )

    def _modules_ubuntu(self) -> Issue:
        modules, wish = self.by["modules"], self.by["ubuntu"]
        return Issue(
            code="modules.not_offered",
            message=f"no branch offered for {wish.title} has {modules.title}",
            because=self._limits(),
        )
