"""The parsed request: each item as the thing of the catalog that it means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from provision.catalog import (
    Branch,
    Catalog,
    CudaMinor,
    Gpu,
    JaxRelease,
    TensorflowRelease,
    TorchRelease,
    UbuntuRelease,
)
from provision.catalog.frameworks import MACHINES
from provision.catalog.models.base import Flavour
from provision.catalog.versions import distance, same
from provision.compat.answer import CompatRequest
from provision.errors import UsageError

KINDS = (
    *("driver", "cuda", "cudnn", "nccl", "torch", "tensorflow", "jax", "ubuntu"),
    *("modules", "machine", "image_cuda", "kernel", "mig"),
)


@dataclass(frozen=True)
class RequestItem:
    """One item of a request: kind, text as typed, title in messages, and what it means (a GPU, a branch, toolkits, …)."""

    kind: str
    text: str
    title: str
    means: Any
    # an exact driver version, a build of PyTorch
    exact: str | None = None


class ParsedRequest(dict[str, RequestItem]):
    """Wishes by name ("gpu0", "gpu1", "driver", "cuda", …), and what each kind means; None or empty: it is not asked for."""

    def __init__(self, items: Mapping[str, RequestItem]) -> None:
        super().__init__(items)
        means: dict[str, Any] = {item.kind: item.means for item in items.values()}
        self.gpus: list[Gpu] = [item.means for item in items.values() if item.kind == "gpu"]
        self.branch: Branch | None = means.get("driver")
        # the exact driver version
        self.version: str | None = items["driver"].exact if "driver" in items else None
        self.toolkits: tuple[CudaMinor, ...] = means.get("cuda", ())
        # CUDA inside an image
        self.image: tuple[CudaMinor, ...] = means.get("image_cuda", ())
        self.cudnn: str | None = means.get("cudnn")
        self.torch: TorchRelease | None = means.get("torch")
        self.tensorflow: TensorflowRelease | None = means.get("tensorflow")
        self.jax: JaxRelease | None = means.get("jax")
        self.nccl: str | None = means.get("nccl")
        # the processor whose wheels are meant: what is asked for, else the only one that a GPU sits beside
        own = [gpu.machine for gpu in self.gpus if gpu.machine]
        self.machine: str = means.get("machine") or next(iter(own), "x86_64")
        self.ubuntu: UbuntuRelease | None = means.get("ubuntu")
        self.modules: Flavour | None = means.get("modules")
        # numbers only: "6.8.0"
        self.kernel: str | None = means.get("kernel")
        self.mig: bool = "mig" in means

    def release(self, toolkit: CudaMinor) -> str:
        """The release of a toolkit that is asked for, else its minor."""
        texts = [self[name].text for name in ("cuda", "image_cuda") if name in self]
        return next((text for text in texts if text in toolkit.releases), toolkit.version)

    def only(self, names: Iterable[str]) -> ParsedRequest:
        return ParsedRequest({name: self[name] for name in names})

    def without(self, name: str) -> ParsedRequest:
        return ParsedRequest({other: item for other, item in self.items() if other != name})


def parse(request: CompatRequest, catalog: Catalog) -> ParsedRequest:
    """Understand what is asked for. UsageError for what does not exist."""
    found = {f"gpu{i}": parse_one("gpu", text, catalog) for i, text in enumerate(dict.fromkeys(request.gpu))}
    for kind in KINDS:
        value = getattr(request, kind)
        if value and str(value).strip():
            found[kind] = parse_one(kind, str(value).strip(), catalog)
    # A package's name, as it stands in apt: nvidia-driver-580-server-open.
    if "driver" in found and request.driver and request.driver.strip().endswith("-open"):
        found.setdefault("modules", parse_one("modules", "open", catalog))
    return ParsedRequest(found)


def parse_one(kind: str, text: str, catalog: Catalog) -> RequestItem:
    if kind == "gpu":
        gpu = _gpu(text, catalog)
        return RequestItem(kind, text, gpu.name, gpu)
    if kind == "driver":
        text = text.removeprefix("nvidia-driver-").removesuffix("-open")
        return RequestItem(kind, text, f"driver {text}", catalog.branch(text), text if "." in text else None)
    if kind == "cuda":
        return RequestItem(kind, text, f"CUDA {text}", _toolkits(text, catalog))
    if kind == "image_cuda":
        return RequestItem(kind, text, f"an image with CUDA {text}", _toolkits(text, catalog))
    if kind == "cudnn":
        return RequestItem(kind, text, f"cuDNN {text}", _library(text, "cuDNN", catalog.cudnn_versions))
    if kind == "torch":
        return _torch(text, catalog)
    if kind == "tensorflow":
        tensorflow = catalog.tensorflow(text)
        return RequestItem(kind, text, f"TensorFlow {tensorflow.version}", tensorflow)
    if kind == "jax":
        return _jax(text, catalog)
    if kind == "nccl":
        return RequestItem(kind, text, f"NCCL {text}", _library(text, "NCCL", catalog.nccl_versions))
    if kind == "machine":
        machine = MACHINES.get(text.lower(), text.lower())
        if machine not in MACHINES.values():
            raise UsageError(
                "compat.unknown_machine", f"there is no processor {text!r} in the catalog", hint="x86_64 or aarch64"
            )
        return RequestItem(kind, text, f"a host with {machine}", machine)
    if kind == "ubuntu":
        ubuntu = catalog.ubuntu(text)
        return RequestItem(kind, text, f"Ubuntu {ubuntu.version}", ubuntu)
    if kind == "mig":
        return RequestItem(kind, text, "MIG", True)
    if kind == "kernel":
        numbers = re.match(r"\d{1,3}\.\d{1,3}(\.\d{1,5})?(?![\d.])", text)
        if not numbers:
            raise UsageError(
                "compat.unknown_kernel", f"{text!r} is no kernel", hint="uname -r prints it: 6.8.0-60-generic"
            )
        return RequestItem(kind, text, f"kernel {text}", numbers.group())
    flavour = text.lower()
    if flavour not in ("open", "proprietary"):
        raise UsageError("compat.unknown_modules", f"there are no {text!r} modules", hint="open or proprietary")
    return RequestItem(kind, text, f"{flavour} modules", flavour)


def _gpu(text: str, catalog: Catalog) -> Gpu:
    match = catalog.find_gpu(text)
    if match.gpu:
        return match.gpu
    if match.candidates:
        names = [f"{g.name} ({g.architecture}, compute capability {g.cc}): {g.id}" for g in match.candidates]
        raise UsageError(
            "compat.gpu_ambiguous",
            f"{text!r} means several GPUs with different answers",
            because=names,
            hint="write one of these names or its PCI id",
        )
    nearest = ", ".join(match.nearest)
    raise UsageError(
        "compat.unknown_gpu",
        f"there is no GPU {text!r} in the catalog",
        hint=f"nearest: {nearest}"
        if nearest
        else "write a name such as 'RTX 3090' or a PCI device id such as 10de:2330",
    )


def _toolkits(text: str, catalog: Catalog) -> tuple[CudaMinor, ...]:
    """The minors that are meant: all of a major, one of a minor or a release."""
    newest = catalog.cuda(text)
    if text.count(".") < 2:
        return tuple(m for m in catalog.cuda_minors if same(text, m.version)) or (newest,)
    if not any(same(text, v) or same(v, text) for v in newest.releases):
        raise UsageError(
            "catalog.unknown_cuda",
            f"there is no CUDA toolkit {text!r} in the catalog",
            because=[f"releases of {newest.version}: {', '.join(newest.releases)}"],
            hint=f"nearest known: {newest.releases[-1] if newest.releases else newest.version}",
        )
    return (newest,)


def _library(text: str, title: str, known: Iterable[str]) -> str:
    """The text, where it is or begins a version that is known."""
    if not re.fullmatch(r"\d+(\.\d+)*", text) or not any(same(text, v) for v in known):
        nearest = sorted(known, key=lambda v: distance(v, text))[:3]
        raise UsageError(
            f"catalog.unknown_{title.lower()}",
            f"there is no {title} {text!r} in the catalog",
            hint="nearest known: " + ", ".join(nearest),
        )
    return text


def _torch(text: str, catalog: Catalog) -> RequestItem:
    release = catalog.torch(text)
    tag = text.partition("+")[2] or None
    if tag and tag not in release.offered:
        raise UsageError(
            "compat.unknown_torch_build",
            f"torch {release.version} has no build {tag!r}",
            because=[f"builds of {release.version}: {', '.join(release.offered)}"],
            hint=f"write one of them, or no build: {release.version}+{release.default}",
        )
    return RequestItem("torch", text, f"torch {release.version}" + (f"+{tag}" if tag else ""), release, tag)


def _jax(text: str, catalog: Catalog) -> RequestItem:
    release = catalog.jax(text)
    extra = text.partition("+")[2] or None
    known = [build.extra for build in release.builds]
    if extra and extra not in known:
        raise UsageError(
            "compat.unknown_jax_build",
            f"JAX {release.version} has no extra {extra!r}",
            because=[f"extras of {release.version}: {', '.join(known)}"],
            hint=f"write one of them, or none: {release.version}+{known[-1]}",
        )
    return RequestItem("jax", text, f"JAX {release.version}" + (f" ({extra})" if extra else ""), release, extra)
