"""What judging an environment needs of a host, and what comes of it. Data only."""

from __future__ import annotations

from dataclasses import dataclass, field

from provision.catalog import Gpu


@dataclass(frozen=True)
class HostView:
    """What of a host decides: GPUs, driver (version that will run), highest CUDA of it in full, loaded driver."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    max_cuda: str | None = None
    loaded: str | None = None
    machine: str = "x86_64"

    @property
    def solves_by_itself(self) -> bool:
        """conda sees the driver that the environments will run on (its virtual package __cuda)."""
        return self.loaded is not None and self.loaded == self.driver


@dataclass(frozen=True)
class Recipe:
    """What an environment is made of. cuda: of its framework or toolkit, "" without; build: cuda, cpu or "" (none)."""

    python: str = ""
    cuda: str = ""
    build: str = ""
    # torch -> 2.6.0+cu124
    frameworks: dict[str, str] = field(default_factory=dict)
    channels: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    pip: tuple[dict[str, object], ...] = ()
    file_kind: str = ""
    file_content: str = ""
    override_cuda: str = ""
    library_path: bool = False
