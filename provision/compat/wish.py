"""What was asked, understood: each wish as the thing of the catalog that it means."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from provision.catalog import Branch, Catalog, CudaMinor, Gpu, TensorflowRelease, TorchRelease, UbuntuRelease
from provision.catalog.models.base import Flavour
from provision.catalog.versions import key, same
from provision.compat.answer import Wishes
from provision.errors import UsageError


@dataclass(frozen=True)
class Wish:
    """One wish: its kind, what was typed, and what it means (a GPU, branch, release, …)."""

    kind: str
    text: str
    gpu: Gpu | None = None
    branch: Branch | None = None
    # "580-server" where that was asked for
    series: str | None = None
    # exact driver version, or cuDNN prefix
    version: str | None = None
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
        names = {"driver": "driver", "cuda": "CUDA", "cudnn": "cuDNN", "tensorflow": "TensorFlow", "ubuntu": "Ubuntu"}
        if self.ubuntu:
            return f"Ubuntu {self.ubuntu.version}"
        if self.tensorflow:
            return f"TensorFlow {self.tensorflow.version}"
        if self.modules:
            return f"{self.modules} modules"
        if self.kind == "image_cuda":
            return f"an image with CUDA {self.text}"
        return f"{names[self.kind]} {self.text}"


# "gpu0", "gpu1", "driver", "cuda", …
Wished = Mapping[str, Wish]


def parse(wishes: Wishes, catalog: Catalog) -> dict[str, Wish]:
    found = {f"gpu{i}": _parse_gpu(text, catalog) for i, text in enumerate(dict.fromkeys(wishes.gpu))}
    for kind in ("driver", "cuda", "cudnn", "torch", "tensorflow", "ubuntu", "modules", "image_cuda"):
        value = getattr(wishes, kind)
        if value is not None and str(value).strip():
            found[kind] = parse_one(kind, str(value).strip(), catalog)
    return found


def _parse_gpu(text: str, catalog: Catalog) -> Wish:
    match = catalog.find_gpu(text)
    if match.gpu:
        return Wish("gpu", text, gpu=match.gpu)
    if match.candidates:
        names = [f"{g.name} ({g.architecture}, compute capability {g.cc}): {g.id}" for g in match.candidates]
        raise UsageError(
            "compat.gpu_ambiguous",
            f"{text!r} means several GPUs with different answers",
            because=names,
            hint="write one of these names or its PCI id",
        )
    near = ", ".join(match.nearest)
    raise UsageError(
        "compat.unknown_gpu",
        f"there is no GPU {text!r} in the catalog",
        hint=f"nearest: {near}" if near else "write a name such as 'RTX 3090' or a PCI device id such as 10de:2330",
    )


def parse_one(kind: str, text: str, catalog: Catalog) -> Wish:
    if kind == "driver":
        branch = catalog.branch(text)
        exact = text if "." in text else None
        return Wish(kind, text, branch=branch, version=exact, series=text if text.endswith("-server") else None)
    if kind in ("cuda", "image_cuda"):
        newest = catalog.cuda(text)
        covered = [m for m in catalog.cuda_minors if same(text, m.version)] if text.count(".") < 2 else [newest]
        if text.count(".") >= 2 and not any(same(text, v) or same(v, text) for v in newest.releases):
            raise UsageError(
                "catalog.unknown_cuda",
                f"there is no CUDA toolkit {text!r} in the catalog",
                because=[f"releases of {newest.version}: {', '.join(newest.releases)}"],
                hint=f"nearest known: {newest.releases[-1] if newest.releases else newest.version}",
            )
        return Wish(kind, text, toolkits=tuple(covered or [newest]))
    if kind == "cudnn":
        if not re.fullmatch(r"\d+(\.\d+)*", text) or not any(same(text, v) for v in catalog.cudnn_versions):
            near = sorted(catalog.cudnn_versions, key=lambda v: far(v, text))[:3]
            raise UsageError(
                "catalog.unknown_cudnn",
                f"there is no cuDNN {text!r} in the catalog",
                hint="nearest known: " + ", ".join(near),
            )
        return Wish(kind, text, version=text)
    if kind == "torch":
        release = catalog.torch(text)
        tag = text.partition("+")[2] or None
        if tag and tag not in release.offered:
            raise UsageError(
                "compat.unknown_torch_build",
                f"torch {release.version} has no build {tag!r}",
                because=[f"builds of {release.version}: {', '.join(release.offered)}"],
                hint=f"write one of them, or no build: {release.version}+{release.default}",
            )
        return Wish(kind, text, torch=release, tag=tag)
    if kind == "tensorflow":
        return Wish(kind, text, tensorflow=catalog.tensorflow(text))
    if kind == "ubuntu":
        return Wish(kind, text, ubuntu=catalog.ubuntu(text))
    flavour = text.lower()
    if flavour == "open":
        return Wish(kind, text, modules="open")
    if flavour == "proprietary":
        return Wish(kind, text, modules="proprietary")
    raise UsageError("compat.unknown_modules", f"there are no {text!r} modules", hint="open or proprietary")


def far(one: str, other: str) -> tuple[int, ...]:
    """Distance of two versions, for ordering by nearness."""
    a, b = key(one), key(other)
    width = max(len(a), len(b))
    return tuple(abs((a + (0,) * width)[i] - (b + (0,) * width)[i]) for i in range(width))


def gpus_of(wished: Wished) -> list[Gpu]:
    return [w.gpu for w in wished.values() if w.gpu]
