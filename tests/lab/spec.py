"""Host descriptions: one YAML line each, with defaults, turned into what the boot simulator reads.

``{name: gpu01, gpus: [H100 SXM5 80GB x2]}`` is enough. See docs in README.md of this folder for every key.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from provision.lib import yaml_reader

from .paths import HERE
from .releases import RELEASES, Release

_SLOTS = ("1b", "43", "52", "61", "9d", "c3", "d1", "df", "e1", "e4", "e7", "ea", "ec", "ee", "f1", "f4")
NVSWITCH = {"Ampere": "1af1", "Hopper": "22a3"}


class HostSpec(BaseModel):
    """One simulated host as a test describes it."""

    model_config = ConfigDict(extra="forbid")

    name: str
    # names, "H100 x8" for eight
    gpus: list[str] = Field(default_factory=list)
    ubuntu: str = "24.04"
    # release; None: the archive's current one
    kernel: str | None = None
    # instead of kernel, when several are installed
    kernels: list[str] = Field(default_factory=list)
    # kernel that GRUB starts next (grub-reboot)
    next: str | None = None
    # kernel that GRUB_DEFAULT=saved starts
    saved: str | None = None
    headers: bool = True
    # True: on, no key of ours enrolled; "enrolled": DKMS' key is enrolled
    secure_boot: bool | str = False
    efi: bool = True
    nvswitch: int = 0
    # an NVLink 5 switch, which shows as an InfiniBand function (HGX B200)
    nvlink5: bool = False
    # the kernel has nouveau and it takes the GPUs unless blacklisted
    nouveau: bool = True
    # "550 open signed held", "580-server open dkms", "jq=1.7…"
    installed: list[str] = Field(default_factory=list)
    # version of a driver installed by NVIDIA's .run file
    runfile: str | None = None
    sources: list[str] = Field(default_factory=lambda: ["archive"])
    # nopasswd | password
    sudo: str = "nopasswd"
    busy: bool = False
    desktop: bool = False
    unattended: bool = True
    # NVIDIA's packages: "12.4", "11.8 compiler", "13.0 runtime held"
    toolkits: list[str] = Field(default_factory=list)
    # Ubuntu's own nvidia-cuda-toolkit
    distribution_cuda: bool = False
    # what a person put in the place of /usr/local/cuda
    cuda_link: Literal["directory", "symlink"] | None = None
    # major of the compiler that gcc and g++ mean
    gcc: str | None = None
    # real ones
    shells: list[Literal["fish", "tcsh", "zsh"]] = Field(default_factory=list)
    # Environment Modules or Lmod, real ones
    modules: Literal["tcl", "lmod"] | None = None
    # files to write on the host: path -> text
    extra: dict[str, str] = Field(default_factory=dict)
    # shell lines run once while the host is prepared
    run: list[str] = Field(default_factory=list)

    @field_validator("ubuntu", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> str:
        text = f"{value:.2f}" if isinstance(value, float) else str(value)
        if text not in RELEASES:
            raise ValueError(f"the lab has Ubuntu {', '.join(RELEASES)}, not {text}")
        return text

    @field_validator("gcc", "runfile", mode="before")
    @classmethod
    def _version(cls, value: Any) -> str | None:
        return None if value is None else str(value)

    @property
    def all_sources(self) -> list[str]:
        """Repositories of the host: who has NVIDIA's toolkits has its repository."""
        return self.sources + (["cuda"] if self.toolkits and "cuda" not in self.sources else [])

    @property
    def extras(self) -> list[str]:
        """Packages of the base distribution that the image needs beyond the usual ones."""
        manager = {"tcl": ["environment-modules"], "lmod": ["lmod"]}
        return sorted([*self.shells, *(manager[self.modules] if self.modules else [])])

    @property
    def release(self) -> Release:
        return RELEASES[self.ubuntu]

    @property
    def all_kernels(self) -> list[str]:
        """Kernel releases to install, oldest first as given."""
        chosen = self.kernels or [self.kernel or self.release.default_kernel]
        for name in chosen:
            self.release.kernel(name)
        return chosen

    def machine(self) -> dict[str, Any]:
        """What /etc/sim/host.json holds: the hardware."""
        gpus = []
        names = [name for text in self.gpus for name in _expand(text)]
        for position, name in enumerate(names):
            gpus.append(_gpu(name, position, self.name))
        switch = next((NVSWITCH[gpu["architecture"]] for gpu in gpus if gpu["architecture"] in NVSWITCH), "22a3")
        return {
            "name": self.name,
            "gpus": gpus,
            "nvswitch": self.nvswitch,
            "nvswitch_device": switch,
            "nvlink5": self.nvlink5,
            "nouveau": self.nouveau,
            "secure_boot": bool(self.secure_boot),
            "efi": self.efi,
            "busy": self.busy,
            "desktop": self.desktop,
        }

    def profile(self) -> dict[str, Any]:
        """What decides the image that the host starts from: everything but its name and its hardware's identity."""
        keep = (
            "ubuntu",
            "headers",
            "next",
            "saved",
            "installed",
            "runfile",
            "sources",
            "unattended",
            "extra",
            "run",
            "desktop",
            "toolkits",
            "distribution_cuda",
            "cuda_link",
            "gcc",
            "shells",
            "modules",
        )
        described = self.model_dump(include=set(keep))
        # DKMS signs with a key of the machine where Secure Boot is on, so that is part of the image.
        return {**described, "kernels": self.all_kernels, "secure_boot": bool(self.secure_boot)}


def read_specs(hosts: list[dict[str, Any] | HostSpec]) -> list[HostSpec]:
    """Validate host descriptions; names must differ."""
    specs = [host if isinstance(host, HostSpec) else HostSpec.model_validate(host) for host in hosts]
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ValueError(f"two hosts have the same name: {sorted(names)}")
    return specs


@cache
def _table() -> dict[str, Any]:
    with (HERE / "data" / "gpus.yml").open() as handle:
        return yaml_reader.load(handle)


def _expand(text: str) -> list[str]:
    match = re.match(r"^(.*?)(?:\s+x(\d+))?$", text.strip())
    if match is None:
        raise ValueError(f"cannot read the GPU {text!r}")
    return [match[1]] * int(match[2] or 1)


def _gpu(name: str, position: int, host: str) -> dict[str, Any]:
    dead = name.endswith("(dead)")
    row = _row(name.removesuffix("(dead)").strip())
    rule = _table()["architectures"][row["arch"]]
    digest = hashlib.sha256(f"{host} {position}".encode()).hexdigest()
    return {
        "slot": f"0000:{_SLOTS[position]}:00.0",
        "device": row["id"],
        "class": row["cls"] + "00",
        "subsystem": row.get("subsystem", "10de:0000"),
        "name": row["smi"],
        "architecture": row["arch"],
        "compute": row["cc"],
        "memory_mib": row["mib"],
        "uuid": f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}",
        "serial": str(int(digest[32:44], 16))[:13].zfill(13),
        "mig": bool(row.get("mig")),
        "ecc": "Enabled" if row["cls"] == "0302" else None,
        "numa": position % 2,
        "first_branch": rule.get("first"),
        "last_branch": rule.get("last"),
        "flavours": rule["flavours"],
        "dead": dead,
    }


def _row(name: str) -> dict[str, Any]:
    table = _table()["gpus"]
    found = {key.lower(): row for key, row in table.items()}.get(name.lower())
    if found is None:
        raise ValueError(f"the lab's table (data/gpus.yml) has no GPU {name!r}; it has {', '.join(table)}")
    return found
