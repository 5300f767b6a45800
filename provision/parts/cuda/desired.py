"""What resolve is asked about CUDA and what it answers: config, target, decision."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provision.parts.decision import BaseDecision, of_role

_LIBRARY = re.compile(r"(?P<version>[0-9]+(\.[0-9]+)*)(-(?P<revision>[0-9]+))?(\+cuda(?P<suffix>[0-9]+\.[0-9]+))?")


@dataclass(frozen=True)
class CudaConfig:
    """The inventory's cuda_toolkit_* values; see roles/cuda_toolkit/meta/argument_specs.yml.

    channel: "auto", "cuda" (NVIDIA's repository) or "ubuntu" (the archive). versions: minors ("12.4": its newest release)
    or exact releases ("12.4.1"). default "": what /usr/local/cuda leads to
    now if that is listed, else the newest listed. cudnn: "none", "auto", a major, an exact version, or two majors with a
    comma between. nccl: "none", "auto" or a version, with or without its "+cudaX.Y".
    """

    channel: str = "auto"
    versions: tuple[str, ...] = ()
    default: str = ""
    profile: str = "full"
    cudnn: str = "auto"
    nccl: str = "auto"
    hold: bool = True
    update: bool = False
    prune: bool = False
    remove_distribution: bool = False
    unsupported_gpu: str = "refuse"
    ld_library_path: bool = False
    environment: bool = True
    repo_url: str = ""
    repo_key: str = ""
    repo_key_fingerprint: str = ""

    @classmethod
    def from_vars(cls, values: Mapping[str, Any]) -> CudaConfig:
        """Read role variables; missing ones take the defaults. Lists and bare numbers become text."""
        found = of_role(values, "cuda_toolkit_", cls)
        if "versions" in found:
            listed = found["versions"] or []
            found["versions"] = tuple(
                str(item).strip() for item in (listed if isinstance(listed, list | tuple) else [listed])
            )
        for name in ("cudnn", "nccl"):
            if name in found:
                found[name] = _text(found[name])
        if "default" in found:
            found["default"] = str(found["default"] if found["default"] is not None else "").strip()
        return cls(**found)


def _text(value: Any) -> str:
    items = value if isinstance(value, list | tuple) else str(value).split(",")
    listed = [str(item).strip() for item in items]
    return ", ".join(item for item in listed if item) if value not in (None, False, "", []) else "none"


@dataclass(frozen=True)
class LibraryConfig:
    """One version of cuDNN or NCCL that is asked for; every field None: the one that fits ("auto")."""

    text: str
    # "9", "9.14", "9.14.0.64"
    version: str | None = None
    revision: str | None = None
    # CUDA of its "+cudaX.Y"
    suffix: str | None = None

    @property
    def major(self) -> str | None:
        return self.version.split(".")[0] if self.version else None


def library_configs(text: str) -> list[LibraryConfig] | None:
    """Read cuda_toolkit_cudnn or _nccl: empty for "none"; None where it cannot be read."""
    items = [item.strip() for item in text.split(",")]
    if items == ["none"]:
        return []
    if items == ["auto"]:
        return [LibraryConfig("auto")]
    found = []
    for item in items:
        match = _LIBRARY.fullmatch(item)
        if not match:
            return None
        found.append(LibraryConfig(item, match["version"], match["revision"], match["suffix"]))
    return found


@dataclass(frozen=True)
class CudaTarget:
    """The toolkits that the host should have."""

    # minors, oldest first
    versions: tuple[str, ...]
    # minor that /usr/local/cuda leads to
    default: str
    # minor: "12.4.1"
    releases: dict[str, str] = field(default_factory=dict)
    # what apt is asked for: exact Debian versions
    packages: dict[str, str] = field(default_factory=dict)
    # every package that belongs to what is wanted, there or to come: what is held
    names: tuple[str, ...] = ()
    # exact names
    remove: tuple[str, ...] = ()
    # CUDA major: cuDNN version
    cudnn: dict[str, str] = field(default_factory=dict)
    # "2.21.5-1+cuda12.4"
    nccl: str | None = None

    @property
    def installed(self) -> bool:
        """Nothing has to change in packages."""
        return not self.packages and not self.remove


@dataclass
class CudaDecision(BaseDecision):
    """The toolkits of one host. Without a target, blockers and ``ask`` there is nothing to do. See Notes."""

    target: CudaTarget | None = None
    # where the toolkits come from: "cuda" or "ubuntu"
    channel: str = "cuda"
