"""cuda.yml, cudnn.yml and nccl.yml: toolkits and the libraries that go with them."""

from __future__ import annotations

from provision.catalog.models.base import Cc, Certainty, Data, Fact, Minor, Segment, Topic, Version


class MinorCompat(Fact):
    min_driver: Version


class ForwardCompat(Data):
    segments: tuple[Segment, ...]


class CudaApt(Data):
    toolkit: str
    forward_compat: ForwardCompat
    source: str


class RepositoryRange(Fact):
    first: Minor
    first_certainty: Certainty = "sourced"
    last: Minor | None


class ArchiveRange(RepositoryRange):
    """Toolkits that the Ubuntu archive holds; release: the only one, where that was seen."""

    release: Version | None = None


class MinorRow(Fact):
    sm: tuple[str, ...]
    sm_certainty: Certainty
    gcc_max: int
    gcc_certainty: Certainty
    gcc_note: str | None = None
    driver_certainty: Certainty = "sourced"


class GlibcBound(Fact):
    """The newest C library that the headers of some minors fit: whatever compiles, they clash with a newer one."""

    first: Minor
    last: Minor
    glibc: Minor
    functions: tuple[str, ...]
    # packages of Ubuntu's own with the headers mended, as text
    patched: str | None = None


class ReleaseRow(Fact):
    driver: Version | None
    preview: bool = False


class Cuda(Topic):
    minor_version_compatibility: dict[int, MinorCompat]
    no_release: tuple[Minor, ...]
    apt: CudaApt
    repository_ranges: dict[str, RepositoryRange]
    archive_ranges: dict[str, ArchiveRange] = {}
    minors: dict[Minor, MinorRow]
    glibc_max: tuple[GlibcBound, ...] = ()
    releases: dict[Version, ReleaseRow]


class CudnnMinCc(Fact):
    first: Version
    last: Version | None
    cc: Cc


class CudnnMaxCc(Fact):
    first: Version
    last: Version | None
    cc: tuple[Cc, ...] | None


class CudnnNames(Fact):
    runtime: str
    dev: str
    version: str


class CudnnApt(Data):
    v8: CudnnNames
    v9: CudnnNames


class CudnnPairRow(Fact):
    cuda: Version
    cudnn: Version


class VersionList(Fact):
    cuda_majors: tuple[int, ...]
    list: tuple[Version, ...]


class Cudnn(Topic):
    min_cc: tuple[CudnnMinCc, ...]
    max_cc: tuple[CudnnMaxCc, ...]
    apt: CudnnApt
    # version of cuDNN 8 to the toolkits that packages of it were built with
    packages_v8: dict[Version, tuple[Minor, ...]]
    packages_v8_source: str
    pairs: tuple[CudnnPairRow, ...]
    pairs_source: str
    versions: tuple[VersionList, ...]
    versions_source: str


class NcclApt(Data):
    runtime: str
    dev: str
    version: str


class NcclPairRow(Fact):
    cuda: Minor
    nccl: Version
    ubuntu: str | None = None


class Nccl(Topic):
    apt: NcclApt
    pairs: tuple[NcclPairRow, ...]
    pairs_source: str
    versions: tuple[VersionList, ...] = ()
    versions_source: str | None = None
