"""Whether what was built with a CUDA runs on GPUs and a driver, and which build of PyTorch to take; compat and the parts ask."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from provision.catalog import Catalog, Gpu, Support, TensorflowRelease, TorchRelease
from provision.catalog.models.frameworks import JaxBuild
from provision.catalog.versions import key, minor


@dataclass(frozen=True)
class Driver:
    """A driver: an exact version ("580.95.05"), any of a branch ("580"), or "" for one that is not known.

    max_cuda: the newest CUDA that it knows in full; None where that is not known. Nothing is held against what is not known.
    """

    version: str
    max_cuda: str | None = None

    def is_at_least(self, least: str) -> bool:
        """True when it is not older than a version; of a branch, that some driver of it is not."""
        exact = "." in self.version
        return not self.version or key(self.version) >= (key(least) if exact else key(least)[:1])

    def knows(self, cuda: str) -> bool:
        """True when it knows a CUDA in full: it compiles the PTX of it."""
        return self.max_cuda is None or key(self.max_cuda) >= key(minor(cuda))


class WhyNot(NamedTuple):
    """no_code: nothing in it for the GPU. ptx: only PTX, of a CUDA that the driver does not know. driver: older than ``least``."""

    kind: Literal["no_code", "ptx", "driver"]
    gpu: Gpu | None = None
    least: str = ""


@dataclass(frozen=True)
class Build:
    """Programs made with one CUDA: by a toolkit, as wheels of PyTorch, as wheels of TensorFlow."""

    cuda: str
    # by minor-version compatibility; the second one for GPUs of Blackwell and newer, where it is another
    min_driver: str
    blackwell_min_driver: str | None
    support: Callable[[Gpu], Support]

    def least(self, gpus: Sequence[Gpu]) -> str:
        """Oldest driver for these GPUs."""
        blackwell = any(gpu.cc and key(gpu.cc) >= (10, 0) for gpu in gpus)
        return self.blackwell_min_driver if blackwell and self.blackwell_min_driver else self.min_driver

    def why_not(self, gpus: Sequence[Gpu], driver: Driver) -> WhyNot | None:
        """Why it does not run on one of these GPUs, or not on this driver; None: it runs."""
        for gpu in gpus:
            degree = self.support(gpu)
            if degree == "none":
                return WhyNot("no_code", gpu)
            if degree == "jit" and not driver.knows(self.cuda):
                return WhyNot("ptx", gpu)
        least = self.least(gpus)
        return None if driver.is_at_least(least) else WhyNot("driver", least=least)


@lru_cache(maxsize=256)
def of_toolkit(catalog: Catalog, cuda: str) -> Build:
    """What the compiler of a CUDA toolkit makes."""
    return Build(cuda, catalog.min_driver(cuda), None, _once(lambda gpu: catalog.toolkit_support(cuda, gpu)))


@lru_cache(maxsize=1024)
def of_torch(catalog: Catalog, version: str, tag: str, machine: str) -> Build:
    """Wheels of PyTorch for a CUDA tag and a processor."""
    row = catalog.frameworks.torch.tags[tag]
    support = _once(lambda gpu: catalog.torch_support(version, tag, gpu, machine))
    return Build(row.cuda, catalog.torch_min_driver(tag), row.blackwell_min_driver, support)


def of_tensorflow(catalog: Catalog, release: TensorflowRelease, machine: str = "x86_64") -> Build:
    """Wheels of TensorFlow for a processor."""
    support = _once(lambda gpu: catalog.tensorflow_support(release.version, gpu, machine))
    return Build(release.cuda, catalog.min_driver(release.cuda), None, support)


def of_jax(catalog: Catalog, codes: JaxBuild) -> Build:
    """The CUDA plugin of a JAX release. It loads any newer CUDA of its major, so the oldest driver is that of the major."""
    support = _once(lambda gpu: catalog.code_support(codes, gpu))
    return Build(codes.cuda, catalog.min_driver(codes.cuda), None, support)


def torch_tags(catalog: Catalog, release: TorchRelease, machine: str) -> list[str]:
    """CUDA tags for which a PyTorch release has wheels for a processor, oldest CUDA first.

    For processors other than x86_64 the catalog knows wheels only by their list of architectures.
    """
    tags = catalog.frameworks.torch.tags
    known = [
        tag
        for tag in release.offered
        if machine == "x86_64" or catalog.torch_arch_list(release.version, tag, machine) is not None
    ]
    return sorted(known, key=lambda tag: key(tags[tag].cuda))


def choose_torch(
    release: TorchRelease, works: dict[str, Build], gpus: Sequence[Gpu], cudas: Collection[str] = ()
) -> str:
    """The tag to take of those that run (``works``, oldest CUDA first).

    Compiled code before PTX, then one of the CUDA minors that are asked for (``cudas``) or of its major, then what a plain
    pip install gives, then the newest.
    """
    majors = {cuda.split(".")[0] for cuda in cudas}

    def rank(tag: str) -> tuple[bool, bool, bool, bool]:
        build = works[tag]
        compiled = all(build.support(gpu) in ("native", "binary") for gpu in gpus)
        other_major = bool(cudas) and build.cuda.split(".")[0] not in majors
        return not compiled, bool(cudas) and build.cuda not in cudas, other_major, tag != release.default

    return min(reversed(works), key=rank)


def _once(support: Callable[[Gpu], Support]) -> Callable[[Gpu], Support]:
    """The same question comes up for every branch and every set of requested versions: answered once."""
    known: dict[tuple[object, ...], Support] = {}

    def ask(gpu: Gpu) -> Support:
        what = (gpu.ids, gpu.cc)
        if what not in known:
            known[what] = support(gpu)
        return known[what]

    return ask
