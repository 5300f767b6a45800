"""drivers.yml and known_bad.yml: branches, where they are offered, versions that fail."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from provision.catalog.models.base import (
    AsOf,
    Certainty,
    Channel,
    Data,
    Day,
    DeviceId,
    Fact,
    Flavour,
    Minor,
    Segment,
    Series,
    Topic,
    Version,
)

BranchType = Literal["LTSB", "PB", "NFB", "unknown"]


class BranchRow(Fact):
    type: BranchType
    type_certainty: Certainty = "sourced"
    type_note: str | None = None
    max_cuda: Minor
    max_cuda_certainty: Certainty = "sourced"
    last_version: Version | None = None
    last_version_certainty: Certainty = "sourced"
    last_version_source: str | None = None
    eol: Day | None
    eol_certainty: Certainty = "sourced"
    eol_note: str | None = None
    ended: bool | None
    # on NVIDIA's page of supported drivers, as of the catalog
    supported_now: bool = False
    oldest_architecture: str
    open: Literal["none", "available", "default", "only"]
    open_segments: tuple[Segment, ...] | None = None
    open_beta: bool = False
    max_kernel: Minor | None = None
    max_kernel_certainty: Certainty = "sourced"


class OldBranch(Fact):
    """A branch before those that are listed. last_for: the architecture that no later branch drives."""

    last_version: Version
    max_cuda: Minor
    eol: Day
    last_for: str | None = None


class ArchiveSeries(Fact):
    ubuntu: str
    series: Series
    version: str | None
    date: Day | None = None


class Transitional(Fact):
    """In these Ubuntu releases the archive's packages of ``from_`` only pull in those of ``to``."""

    model_config = ConfigDict(populate_by_name=True)
    from_: Series = Field(alias="from")
    to: Series | None
    since: Day | None = None
    ubuntu: tuple[str, ...]
    bug: str | None = None


class Archive(Data):
    source: str
    looked_at_whole: tuple[str, ...] = ()
    offers: tuple[ArchiveSeries, ...]
    transitional: tuple[Transitional, ...]


class NvidiaBranches(Fact):
    ubuntu: str
    branches: tuple[int, ...]
    absent_below: int | None
    inferred: tuple[int, ...] = ()


class NvidiaRepository(Data):
    source: str
    offers: tuple[NvidiaBranches, ...]


class Drivers(Topic):
    as_of: AsOf
    branches: dict[int, BranchRow]
    too_old: dict[int, OldBranch] = Field(default_factory=dict)
    archive: Archive
    nvidia: NvidiaRepository


class KnownBad(Fact):
    """Versions that fail somewhere. ``versions`` are exact ones or branches (``580`` covers 580.*).

    channels: builds that Ubuntu patches are not NVIDIA's own. ids: only on these GPUs. runtimes: only with these.
    """

    component: Literal["driver", "container_toolkit", "nccl"]
    versions: tuple[Version, ...]
    below: Version | None = None
    any_version: bool = False
    severity: Literal["avoid", "care"]
    ubuntu: tuple[str, ...] | None = None
    channels: tuple[Channel, ...] | None = None
    kernel_from: Version | None = None
    modules: tuple[Flavour, ...] | None = None
    ids: tuple[DeviceId, ...] | None = None
    runtimes: tuple[str, ...] | None = None
    symptom: str
    fix: str


class KnownBadFile(Topic):
    known_bad: tuple[KnownBad, ...]
