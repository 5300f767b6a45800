"""gpus.yml, architectures.yml and bandwidth.yml: cards, which branches and toolkits know them, how fast they talk."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from provision.catalog.models.base import (
    Cc,
    Certainty,
    Data,
    DeviceId,
    Fabric,
    Fact,
    Flavour,
    Machine,
    Minor,
    Segment,
    Topic,
    Version,
)


class Chip(Fact):
    architecture: str
    cc: Cc


class Board(Fact):
    name: str
    ids: tuple[DeviceId, ...]
    fabric: Fabric
    fabric_certainty: Certainty = "sourced"
    fabric_note: str | None = None
    aliases: tuple[str, ...] = ()
    modules: tuple[Flavour, ...] | None = None
    modules_certainty: Certainty = "sourced"
    # the only processor that it sits beside: a superchip
    machine: Machine | None = None
    subsystems: dict[str, str] = Field(default_factory=dict)


class IdRange(Data):
    first: DeviceId
    last: DeviceId
    architecture: str
    cc: Cc | None


class Device(Data):
    name: str
    chip: str
    segment: Segment
    mobile: bool = False
    rare: bool = False
    also: tuple[str, ...] = ()
    mig: Literal["listed", "doc", "inferred", "unknown"] | None = None


class MigDriver(Data):
    driver: Version
    ids: tuple[DeviceId, ...]


class FirstListed(Data):
    """The branch and version whose table of compatible GPUs lists a device first, and later branches whose table never did."""

    first: int
    version: Version
    without: tuple[int, ...] = ()


class FirstBranches(Topic):
    """first_branch.yml. by_515: listed by the oldest table there is, and by all after it."""

    by_515: tuple[DeviceId, ...]
    devices: dict[DeviceId, FirstListed]


class Gpus(Topic):
    chips: dict[str, Chip]
    boards: tuple[Board, ...]
    id_ranges: tuple[IdRange, ...]
    mig_drivers: tuple[MigDriver, ...] = ()
    devices: dict[DeviceId, Device]

    @model_validator(mode="after")
    def _refer(self) -> Gpus:
        for device_id, device in self.devices.items():
            if device.chip not in self.chips:
                raise ValueError(f"device {device_id}: unknown chip {device.chip}")
        for board in self.boards:
            missing = [i for i in board.ids if i not in self.devices]
            if missing:
                raise ValueError(f"board {board.name}: unknown ids {missing}")
        return self


class ArchitectureRow(Fact):
    modules: tuple[Flavour, ...]
    last_branch: int | None


class ComputeCapability(Fact):
    architecture: str
    first_branch: int | None
    first_branch_certainty: Certainty = "sourced"
    last_cuda: Minor | None
    # of prove.tensor's formats: what every card's sums hash to
    signatures: dict[str, str] = {}


class TuringOrNewer(Fact):
    first_id: DeviceId


class Architectures(Topic):
    architectures: dict[str, ArchitectureRow]
    compute_capabilities: dict[Cc, ComputeCapability]
    turing_or_newer: TuringOrNewer

    @model_validator(mode="after")
    def _refer(self) -> Architectures:
        for cc, row in self.compute_capabilities.items():
            if row.architecture not in self.architectures:
                raise ValueError(f"compute capability {cc}: unknown architecture {row.architecture}")
        return self


# The way between two cards, near to far, as `nvidia-smi topo -m` tells them apart.
Way = Literal["nvlink", "pix", "pxb", "phb", "node", "sys"]


class LaneRate(Fact):
    """What one lane of a PCIe generation carries in one direction."""

    generation: int
    gb_per_s: float


class Share(Fact):
    """Shares of a nominal rate: below ``warn`` a warning, below ``fail`` a failure."""

    warn: float
    fail: float

    @model_validator(mode="after")
    def _ordered(self) -> Share:
        if not 0 < self.fail < self.warn < 1:
            raise ValueError(f"0 < fail < warn < 1 does not hold: {self.fail}, {self.warn}")
        return self


class Bandwidth(Topic):
    pcie: tuple[LaneRate, ...]
    allreduce: dict[Way, Share]
    peer: dict[Way, Share]
    host: Share
