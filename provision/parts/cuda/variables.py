"""What the inventory asks of CUDA, read and checked as far as that needs no host. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.catalog import Catalog, CudaMinor
from provision.catalog.versions import key, minor
from provision.errors import UsageError
from provision.parts.cuda.desired import CudaConfig, CudaDecision, LibraryConfig, library_configs
from provision.parts.decision import join_and


@dataclass(frozen=True)
class Wanted:
    """One toolkit that is asked for; release None: the newest of its minor."""

    text: str
    toolkit: CudaMinor
    release: str | None

    @property
    def minor(self) -> str:
        return self.toolkit.version


@dataclass
class Asked:
    """toolkits: oldest first. cudnn and nccl: empty for "none"."""

    toolkits: list[Wanted] = field(default_factory=list)
    cudnn: list[LibraryConfig] = field(default_factory=list)
    nccl: list[LibraryConfig] = field(default_factory=list)

    @property
    def minors(self) -> list[str]:
        return [wanted.minor for wanted in self.toolkits]


def read(config: CudaConfig, catalog: Catalog, out: CudaDecision) -> Asked:
    """Return what is asked; what cannot be read, cannot exist or contradicts itself is refused in ``out``."""
    asked = Asked(cudnn=_library("cudnn", config.cudnn, out), nccl=_library("nccl", config.nccl, out))
    majors = [item.major for item in asked.cudnn]
    if len(set(majors)) < len(majors):
        out.block(
            "cuda.cudnn_side_by_side",
            f"cuDNN {join_and([w.text for w in asked.cudnn])} cannot be installed side by side",
            ["one cuDNN of a major is installed at a time, whatever CUDA it is for"],
        )
    if len(asked.nccl) > 1:
        out.block(
            "cuda.nccl_side_by_side",
            f"NCCL {join_and([w.text for w in asked.nccl])} cannot be installed side by side",
            ["there is one package libnccl2"],
        )
    if not config.versions:
        # "auto" is what goes with the toolkits: nothing, where there are none.
        named = [f"cuda_toolkit_{name}" for name in ("cudnn", "nccl") if any(w.version for w in getattr(asked, name))]
        if named:
            verb = "is" if len(named) == 1 else "are"
            out.block(
                "cuda.library_without_toolkit",
                f"{join_and(named)} {verb} set, and there is no toolkit to go with",
                ["cuda_toolkit_versions is empty", "which build fits is decided by the toolkit's CUDA major"],
            )
        return asked
    found = [_toolkit(text, catalog, out) for text in config.versions]
    asked.toolkits = sorted((wanted for wanted in found if wanted), key=lambda wanted: key(wanted.minor))
    _check_list(config, asked, out)
    return asked


def _library(name: str, text: str, out: CudaDecision) -> list[LibraryConfig]:
    configs = library_configs(text)
    if configs is None:
        example = '"9" or "9.14.0.64"' if name == "cudnn" else '"2.21.5" or "2.21.5-1+cuda12.4"'
        out.block(
            f"cuda.{name}_unreadable",
            f"cuda_toolkit_{name}: {text!r} is not a version",
            [f"write none, auto, or a version such as {example}"],
        )
    return configs or []


def _toolkit(text: str, catalog: Catalog, out: CudaDecision) -> Wanted | None:
    if not re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?", text):
        out.block(
            "cuda.version_unreadable",
            f"{text!r} is not a CUDA toolkit",
            ['write "12.4" for its newest release, or a release such as "12.4.1", in quotes'],
        )
        return None
    try:
        toolkit = catalog.cuda(minor(text))
    except UsageError as error:
        because = [*error.issue.because, error.issue.hint or ""]
        out.block("cuda.unknown", f"there is no CUDA toolkit {text}", because, "")
        return None
    return Wanted(text, toolkit, text if text.count(".") == 2 else None)


def _check_list(config: CudaConfig, asked: Asked, out: CudaDecision) -> None:
    for twice in sorted({m for m in asked.minors if asked.minors.count(m) > 1}, key=key):
        texts = [wanted.text for wanted in asked.toolkits if wanted.minor == twice]
        out.block(
            "cuda.duplicate",
            f"CUDA {twice} is asked for twice: {join_and(texts)}",
            [f"/usr/local/cuda-{twice} holds one release"],
        )
    if config.profile not in cuda_names.PROFILES:
        out.block(
            "cuda.unknown_profile",
            f"there is no profile {config.profile!r}",
            [f"there are {join_and(list(cuda_names.PROFILES))}"],
        )
    listed = any(config.default in (wanted.minor, wanted.text) for wanted in asked.toolkits)
    if config.default and not listed and not out.blockers:
        out.block(
            "cuda.default_not_listed",
            f"cuda_toolkit_default is {config.default}, which is not in cuda_toolkit_versions",
            [f"listed: {', '.join(config.versions)}"],
        )
