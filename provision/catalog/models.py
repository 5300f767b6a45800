"""Shapes of the catalog's data files, and of the answers that the catalog gives.

Every file is validated when it is read: unknown keys are an error, every ``source`` must be named in the
file's own ``sources``. Cross references between files are checked by ``Catalog.check()``, which the tests
run.
"""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from provision.catalog.versions import key

# How sure a value is. sourced is what an entry has that says nothing else.
Certainty = Literal["verified", "sourced", "knowledge", "inferred", "conflicting", "unknown"]
UNSURE: frozenset[str] = frozenset({"knowledge", "inferred", "conflicting", "unknown"})
Flavour = Literal["open", "proprietary"]
Support = Literal["native", "binary", "jit", "none"]
SUPPORT_ORDER: tuple[Support, ...] = ("native", "binary", "jit", "none")
Segment = Literal["datacenter", "workstation", "geforce", "titan", "mining", "embedded", "other", "unknown"]
Fabric = Literal["never", "nvswitch", "nvswitch+nvlsm", "nvl72", "depends", "unknown"]
Channel = Literal["ubuntu", "cuda", "ppa"]

DeviceId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}$")]
Cc = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,2}\.[0-9]$")]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)*(\.post[0-9]+)?$")]
Minor = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
Series = Annotated[str, StringConstraints(pattern=r"^[0-9]{3}(-server)?$")]
Tag = Annotated[str, StringConstraints(pattern=r"^cu[0-9]{3}$")]
# A year, month or day, or two of them with a slash between; "~" means about.
AsOf = Annotated[str, StringConstraints(pattern=r"^~?\d{4}(-\d{2}(-\d{2})?)?(/\d{4}(-\d{2}(-\d{2})?)?)?$")]
Day = Annotated[str, StringConstraints(pattern=r"^\d{4}(-\d{2}(-\d{2})?)?$")]
Text = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, (int, float)) else value)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Fingerprint = Annotated[str, StringConstraints(pattern=r"^[0-9A-F]{40}$")]


class Data(BaseModel):
    """Base of everything here: unknown keys forbidden, values frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class SourceNote(Data):
    """Where facts come from and when they were seen."""

    source: str
    as_of: AsOf
    certainty: Certainty = "sourced"


class Fact(Data):
    """A row: ``source`` names an entry of the file's sources; ``note`` says what the value alone does not."""

    source: str | None = None
    certainty: Certainty = "sourced"
    note: str | None = None


class Topic(Data):
    """A file: its sources, and the check that every source named inside is one of them."""

    sources: dict[str, SourceNote]

    @model_validator(mode="before")
    @classmethod
    def _sources_exist(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("sources"), dict):
            known = data["sources"]
            for name in _named_sources({k: v for k, v in data.items() if k != "sources"}):
                if name not in known:
                    raise ValueError(f"source {name!r} is not among the sources of this file")
        return data


def _named_sources(value: Any) -> set[str]:
    found: set[str] = set()
    if isinstance(value, dict):
        for name, inner in value.items():
            if (name == "source" or str(name).endswith("_source")) and isinstance(inner, str):
                found.add(inner)
            elif isinstance(inner, (dict, list)):
                found |= _named_sources(inner)
    elif isinstance(value, list):
        for inner in value:
            found |= _named_sources(inner)
    return found


# --- gpus.yml -----------------------------------------------------------------------------------------------


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
    subsystems: dict[str, str] = Field(default_factory=dict)
    mig_instances: int | None = None
    mig_note: str | None = None


class IdRange(Data):
    first: DeviceId
    last: DeviceId
    architecture: str
    cc: Cc | None
    chips: tuple[str, ...]


class Device(Data):
    name: str
    chip: str
    segment: Segment
    mobile: bool = False
    also: tuple[str, ...] = ()
    mig: Literal["listed", "doc", "inferred", "unknown"] | None = None


class Gpus(Topic):
    chips: dict[str, Chip]
    boards: tuple[Board, ...]
    id_ranges: tuple[IdRange, ...]
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


# --- architectures.yml --------------------------------------------------------------------------------------


class ArchitectureRow(Fact):
    modules: tuple[Flavour, ...]
    last_branch: int | None


class ComputeCapability(Fact):
    architecture: str
    first_branch: int | None
    first_branch_certainty: Certainty = "sourced"
    first_cuda: Minor | None
    last_cuda: Minor | None


class TuringOrNewer(Fact):
    first_id: DeviceId


class PciClasses(Fact):
    classes: tuple[str, ...]


class FlavourMark(Data):
    license: str
    proc_version: str | None


class Unlisted(Fact):
    what: str


class Nvlink5Mark(Data):
    glob: str
    contains: str
    needs_modules: tuple[str, ...]


class Nvswitch(Fact):
    pci_ids: dict[DeviceId, str]
    pci_class: str
    unlisted: tuple[Unlisted, ...]
    proc_dir: str
    nvlink5_vpd: Nvlink5Mark
    rule_source: str


class MigDriver(Fact):
    gpus: tuple[str, ...]
    version: Version


class Architectures(Topic):
    architectures: dict[str, ArchitectureRow]
    compute_capabilities: dict[Cc, ComputeCapability]
    turing_or_newer: TuringOrNewer
    gpu_pci_classes: PciClasses
    flavour_marks: dict[Flavour, FlavourMark]
    flavour_marks_source: str
    nvswitch: Nvswitch
    mig_min_driver: tuple[MigDriver, ...]

    @model_validator(mode="after")
    def _refer(self) -> Architectures:
        for cc, row in self.compute_capabilities.items():
            if row.architecture not in self.architectures:
                raise ValueError(f"compute capability {cc}: unknown architecture {row.architecture}")
        return self


# --- drivers.yml --------------------------------------------------------------------------------------------

BranchType = Literal["LTSB", "PB", "NFB", "unknown"]


class BranchRow(Fact):
    type: BranchType
    type_certainty: Certainty = "sourced"
    type_note: str | None = None
    max_cuda: Minor
    max_cuda_certainty: Certainty = "sourced"
    last_version: Version | None = None
    last_version_certainty: Certainty = "sourced"
    last_date: Day | None = None
    eol: Day | None
    eol_certainty: Certainty = "sourced"
    eol_note: str | None = None
    ended: bool | None
    supported_until: Day | None = None
    oldest_architecture: str
    open: Literal["none", "available", "default", "only"]
    open_segments: tuple[Segment, ...] | None = None
    max_kernel: Minor | None = None
    max_kernel_certainty: Certainty = "sourced"


class ArchiveOffer(Fact):
    ubuntu: str
    series: Series
    version: str | None
    date: Day | None = None


class ElsewhereOffer(Fact):
    codename: str
    series: Series
    version: str | None


class Transitional(Fact):
    """In these Ubuntu releases the archive's packages of ``from_`` only pull in those of ``to``."""

    model_config = ConfigDict(populate_by_name=True)
    from_: Series = Field(alias="from")
    to: Series | None
    since: Day | None = None
    ubuntu: tuple[str, ...]
    codenames: tuple[str, ...] = ()
    bug: str | None = None


class TransitionalFabric(Fact):
    model_config = ConfigDict(populate_by_name=True)
    from_: str = Field(alias="from")
    to: str
    codenames: tuple[str, ...]


class UbuntuDrivers(Fact):
    prefers_open_from: int
    control_field: str
    support_labels: tuple[str, ...]
    server_flag: str


class Statement(Fact):
    fact: str
    fix: str | None = None


class Archive(Data):
    source: str
    components: dict[str, str]
    offers: tuple[ArchiveOffer, ...]
    offers_elsewhere: tuple[ElsewhereOffer, ...]
    transitional: tuple[Transitional, ...]
    transitional_fabric: tuple[TransitionalFabric, ...]
    ubuntu_drivers: UbuntuDrivers
    blacklists_nova_since: Day
    packages: dict[str, tuple[str, ...]]
    signed_modules_kernels: tuple[str, ...]
    signed_modules_order: Statement


class NamedFrom(Fact):
    package: str
    from_branch: int | None = None
    seen_to: Version | None = None


class Suffixed(Data):
    proprietary_meta: str
    open_meta: str
    fabric: tuple[str, ...]
    imex: NamedFrom
    earlier_fabric: NamedFrom
    fabric_names_from_580: Fact


class MetaExample(Data):
    package: str
    version: str
    provides: str
    depends: str
    conflicts: str


class Unsuffixed(Data):
    proprietary_meta: str
    open_meta: str
    packages: tuple[str, ...]
    removed: tuple[str, ...]
    unverified: tuple[str, ...]
    version_example: str
    meta_depends: MetaExample
    metapackages_depend_with: str


class Pinning(Fact):
    package: str
    exact_package: str
    seen: tuple[str, ...]
    order: str


class NvidiaOffer(Fact):
    ubuntu: str
    branches: tuple[int, ...]
    absent_below: int | None
    inferred: tuple[int, ...] = ()


class NvidiaRepository(Data):
    source: str
    unsuffixed_from: int
    suffixed: Suffixed
    unsuffixed: Unsuffixed
    pinning: Pinning
    offers: tuple[NvidiaOffer, ...]
    mixing: Statement


class Nvlink5(Data):
    packages: tuple[str, ...]
    from_branch: int
    modules: tuple[str, ...]
    hardware: tuple[str, ...]


class Imex(Fact):
    packages: tuple[str, ...]
    hardware: tuple[str, ...]
    module_option: str


class SeenPackage(Fact):
    ubuntu: str
    package: str


class FabricFacts(Data):
    source: str
    same_version_as_driver: tuple[str, ...]
    archive_dependency: str
    services: dict[str, str]
    nvlink5: Nvlink5
    imex: Imex
    amd64_only: tuple[str, ...]
    seen: tuple[SeenPackage, ...]


class NewestDriver(Data):
    version: Version
    released: Day
    source: str


class Drivers(Topic):
    as_of: AsOf
    newest: NewestDriver
    branches: dict[int, BranchRow]
    archive: Archive
    nvidia: NvidiaRepository
    fabric: FabricFacts


# --- cuda.yml -----------------------------------------------------------------------------------------------


class Newest(Data):
    version: Version
    source: str


class MinorCompat(Fact):
    min_driver: Version
    branch: int


class Flag(Fact):
    value: bool


class ThirdDigit(Fact):
    version: Version
    meaning: str


class Unbundled(Fact):
    linux: Minor
    windows: Minor


class ForwardCompat(Data):
    package: str
    segments: tuple[Segment, ...]


class CudaApt(Data):
    toolkit: str
    with_driver: tuple[str, ...]
    runtime: tuple[str, ...]
    forward_compat: ForwardCompat
    compiler: tuple[str, ...]
    prefix: str
    source: str


class RepositoryRange(Fact):
    first: Minor
    first_certainty: Certainty = "sourced"
    last: Minor | None


class MinorRow(Fact):
    sm: tuple[str, ...]
    sm_certainty: Certainty
    gcc_max: int
    gcc_certainty: Certainty
    gcc_note: str | None = None
    clang_max: int | None
    ubuntu: tuple[str, ...]
    driver_certainty: Certainty = "sourced"


class GccMin(Data):
    cuda_from: Minor
    gcc: int
    source: str


class Deprecated(Data):
    cuda_major: int
    cc: tuple[Cc, ...]
    source: str


class ReleaseRow(Fact):
    driver: Version | None
    branch: int | None
    preview: bool = False


class CudaWheels(Data):
    versions: tuple[Version, ...]
    gap: tuple[Version, Version]
    source: str


class MlPy(Data):
    versions: tuple[Version, ...]
    source: str
    backward_compatible: bool
    backward_compatible_certainty: Certainty


class Cuda(Topic):
    newest: Newest
    minor_version_compatibility: dict[int, MinorCompat]
    ptx_needs_full_driver: Flag
    no_release: tuple[Minor, ...]
    third_digit: tuple[ThirdDigit, ...]
    driver_unbundled_from: Unbundled
    apt: CudaApt
    repository_ranges: dict[str, RepositoryRange]
    minors: dict[Minor, MinorRow]
    gcc_min: GccMin
    deprecated: Deprecated
    releases: dict[Version, ReleaseRow]
    wheels: CudaWheels
    components: dict[Version, dict[str, Version]]
    ml_py: MlPy


# --- cudnn.yml, nccl.yml ------------------------------------------------------------------------------------


class CudnnDriver(Fact):
    version: Version
    blackwell: Version | None = None


class CudnnMinCc(Fact):
    first: Version
    last: Version | None
    cuda_major: int | None = None
    cc: Cc


class CudnnMaxCc(Fact):
    first: Version
    last: Version | None
    cc: tuple[Cc, ...] | None


class Span(Data):
    first: Version | None
    last: Version | None


class Since(Fact):
    version: Version


class CudnnApt8(Data):
    runtime: str
    dev: str
    samples: str
    version: str
    last: str
    last_certainty: Certainty
    source: str


class CudnnApt9(Data):
    runtime: str
    dev: str
    headers: str
    headers_certainty: Certainty
    meta: str
    newest_meta: str
    version: str
    source: str


class SeenPackages(Data):
    packages: tuple[str, ...]
    source: str


class CudnnApt(Data):
    v8: CudnnApt8
    v9: CudnnApt9
    seen_2604: SeenPackages
    v8_beside_v9: Flag
    v8_headers_beside_v9: Flag
    v9_for_two_cudas: Flag


class CudnnPairRow(Fact):
    cuda: Version
    cudnn: Version
    suffix: Minor | None = None


class VersionList(Fact):
    cuda_majors: tuple[int, ...]
    list: tuple[Version, ...]


class Cudnn(Topic):
    newest: dict[int, Version]
    min_driver: dict[int, CudnnDriver]
    min_cc: tuple[CudnnMinCc, ...]
    max_cc: tuple[CudnnMaxCc, ...]
    cuda_majors: dict[int, Span]
    one_package_per_cuda_major_from: Since
    apt: CudnnApt
    pairs: tuple[CudnnPairRow, ...]
    pairs_source: str
    versions: tuple[VersionList, ...]
    versions_source: str


class NcclNewest(Data):
    wheel: Version
    wheel_source: str
    apt: str
    apt_ubuntu: str
    apt_source: str


class NcclInUbuntu(Fact):
    codename: str
    version: Version


class NcclApt(Data):
    runtime: str
    dev: str
    version: str
    choose: Literal["highest_with_suffix_not_above"]
    in_ubuntu: NcclInUbuntu


class NcclPairRow(Fact):
    cuda: Minor
    nccl: Version
    ubuntu: str | None = None
    also: tuple[Version, ...] = ()


class NcclCompat(Fact):
    first: Minor
    last: Minor | None
    cuda_majors: tuple[int, ...]


class Nccl(Topic):
    newest: NcclNewest
    apt: NcclApt
    pairs: tuple[NcclPairRow, ...]
    pairs_source: str
    unknown_for: tuple[Minor, ...]
    compatibility: tuple[NcclCompat, ...]
    wheels: tuple[VersionList, ...]
    wheels_newest_cu11: Version
    wheels_source: str


# --- bandwidth.yml ------------------------------------------------------------------------------------------

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


# --- frameworks.yml -----------------------------------------------------------------------------------------


class TorchRow(Fact):
    default: Tag
    offered: tuple[Tag, ...]
    cuda: Version | None
    cudnn: Version | None
    nccl: Version | None
    triton: str | None
    nvshmem: Version | None
    cusparselt: Version | None
    python: tuple[Minor, ...] | None
    requires_python: str
    covers: Minor | None = None


class TorchTag(Fact):
    cuda: Minor
    min_driver: Version
    blackwell_min_driver: Version | None = None
    removed_after: Minor | None = None


class ArchList(Fact):
    tags: tuple[Tag, ...]
    first: Minor
    last: Minor
    cc: tuple[Cc, ...]
    machine: Literal["x86_64", "aarch64"] = "x86_64"
    disputed: tuple[Cc, ...] = ()
    ptx: Cc | None = None


class DefaultTag(Data):
    first: Minor
    last: Minor
    tag: Tag


class TorchByGpu(Fact):
    architectures: tuple[str, ...]
    oldest: Minor | None = None
    newest: Minor
    tags: tuple[Tag, ...]
    first_branch: int | None = None
    last_branch: int | None = None


class Torch(Data):
    index_url: str
    releases: dict[Version, TorchRow]
    tags: dict[Tag, TorchTag]
    arch_lists: tuple[ArchList, ...]
    default_history: tuple[DefaultTag, ...]
    by_gpu: tuple[TorchByGpu, ...]
    verify: tuple[str, ...]


class TensorflowRow(Fact):
    python: tuple[Minor, Minor]
    cuda: Minor
    cudnn: Minor


class AndCuda(Fact):
    cuda_runtime: str
    cuda_nvcc: str
    cudnn: str
    nccl: str
    requires_python: str


class TensorflowCompute(Fact):
    first: Cc
    last: Cc


class Tensorflow(Data):
    releases: dict[Version, TensorflowRow]
    and_cuda: dict[Version, AndCuda]
    min_driver: dict[str, Version]
    cuda_13_build: Flag
    compute: TensorflowCompute


class FrameworksNewest(Data):
    torch: Version
    tensorflow: Version
    source: str


class Frameworks(Topic):
    newest: FrameworksNewest
    torch: Torch
    tensorflow: Tensorflow


# --- ubuntu.yml, repositories.yml ---------------------------------------------------------------------------


class UbuntuRow(Fact):
    codename: str
    released: Day | None = None
    kernel_ga: Minor
    kernel_hwe: Minor | None
    standard_support_until: Day | None
    support: Literal["standard", "esm", "ended"]
    gcc: str | None
    python: Minor | None
    apt_verifier: Literal["gpgv", "sqv"]
    apt_verifier_certainty: Certainty
    apt_key: bool = True
    apt_key_certainty: Certainty = "sourced"


class Ubuntu(Topic):
    releases: dict[str, UbuntuRow]
    other_codenames: tuple[str, ...]


class PinFile(Data):
    url_name: str
    path: str
    priority: int
    note: str


class Hole(Fact):
    ubuntu: str


class Jetson(Fact):
    machines: tuple[str, ...]


class RepositoryRow(Fact):
    base_url: str
    url: str
    suite: str
    components: tuple[str, ...]
    machines: dict[str, str]
    ubuntu: tuple[str, ...]
    keys: dict[str, str | None]
    key_url: str | None = None
    key_file: str | None = None
    list_url: str | None = None
    keyring_path: str | None = None
    list_file: str | None = None
    pin_file: PinFile | None = None
    holes: tuple[Hole, ...] = ()
    jetson: Jetson | None = None


class Key(Fact):
    fingerprint: Fingerprint
    short: str
    long_id: str
    repositories: tuple[str, ...]
    retired: Day | None


class UnknownKey(Fact):
    repository: str
    candidate: str | None


class KeyringPackage(Fact):
    file: str
    repository: str | None
    machine: str | None
    sha256: Sha256 | None
    size: int | None
    newest: bool


class OldEntries(Data):
    trusted_gpg: str
    lists: tuple[str, ...]


class Rotation(Data):
    old_entries: OldEntries
    dead_repositories: tuple[str, ...]
    source: str


class Sha1(Data):
    since: Day
    key: str
    verifiers: tuple[str, ...]
    affected: tuple[str, ...]
    text: str
    rekey_planned: bool
    better: str
    workaround_file: str
    source: str


class TextCause(Data):
    text: str
    cause: str
    source: str


class Holds(Data):
    driver_archive: tuple[str, ...]
    driver_nvidia: tuple[str, ...]
    toolkit: tuple[str, ...]
    container: tuple[str, ...]
    source: str


class Unattended(Data):
    option: str
    patterns: tuple[str, ...]
    source: str


class KernelCoupling(Data):
    signed: str
    dkms: str
    source: str


class UbuntuArchive(Fact):
    hosts: tuple[str, ...]
    keys: tuple[str, ...]


class Repositories(Topic):
    repositories: dict[str, RepositoryRow]
    archive: UbuntuArchive
    keys: dict[str, Key]
    unknown_keys: tuple[UnknownKey, ...]
    keyring_packages: tuple[KeyringPackage, ...]
    keyring_packages_source: str
    rotation_2022: Rotation
    sha1: Sha1
    signed_by_conflict: TextCause
    holds: Holds
    unattended_upgrades: Unattended
    kernel_coupling: KernelCoupling


# --- container_toolkit.yml, conda.yml -----------------------------------------------------------------------


class ToolkitVersions(Fact):
    newest: Version
    others: tuple[Version, ...]


class ToolkitPackages(Data):
    set: tuple[str, ...]
    version: str
    exact_depends_from: Version
    same_numbers_from: Since
    architectures: tuple[str, ...]
    ppc64le_dropped_in: Minor
    tested_ubuntu: tuple[str, ...]
    source: str


class AlsoIn(Fact):
    repository: str
    ubuntu: str
    package: str
    version: str


class Runtime(Data):
    configure: tuple[str, ...]
    writes: tuple[str, ...]
    restart: tuple[str, ...]
    then: tuple[str, ...] = ()


class CdiRefresh(Data):
    since: Version
    units: tuple[str, ...]
    output: str
    env_file: str
    triggers: tuple[str, ...]
    udev_rule_since: Version
    not_handled: tuple[str, ...]


class Cdi(Data):
    generate: tuple[str, ...]
    older_output: str
    list: tuple[str, ...]
    refresh: CdiRefresh
    source: str


class DefaultMode(Data):
    since: Version
    mode: str
    legacy: str
    source: str


class Command(Data):
    command: tuple[str, ...]
    source: str


class MinRuntime(Fact):
    toolkit_from: Version | None = None
    feature: str | None = None
    docker: Version | None = None
    containerd: Version | None = None
    podman: Version | None = None
    crio: Version | None = None
    setting: str | None = None
    default_from: Version | None = None
    default_from_certainty: Certainty = "sourced"
    because: str | None = None
    workaround: str | None = None


class OldKey(Data):
    model_config = ConfigDict(populate_by_name=True)
    url: str
    in_: str = Field(alias="in")


class UnsupportedDistribution(Data):
    text: str
    status: int
    cause: str


class ToolkitLegacy(Data):
    remove_packages: tuple[str, ...]
    remove_lists: tuple[str, ...]
    old_urls: tuple[str, ...]
    old_key: OldKey
    unsupported_distribution: UnsupportedDistribution
    error: str
    source: str


class ContainerToolkit(Topic):
    versions: ToolkitVersions
    packages: ToolkitPackages
    also_in: AlsoIn
    runtimes: dict[str, Runtime]
    runtimes_source: str
    cdi: Cdi
    default_mode: DefaultMode
    config_set: Command
    min_runtime_versions: tuple[MinRuntime, ...]
    legacy: ToolkitLegacy
    verify: dict[str, tuple[str, ...]]


class Installer(Data):
    version: str
    python: Minor
    sha256: dict[str, Sha256]
    mamba: Version | None = None
    channels: tuple[str, ...] = ()


class Distribution(Data):
    base_url: str
    file: str
    moving_file: str | None = None
    newest: str
    source: str
    license: Fact | None = None
    needs_tos: bool = True
    installers: tuple[Installer, ...]


class InstallFlags(Data):
    batch: tuple[str, ...]
    update: tuple[str, ...]


class TosPlugin(Fact):
    name: str
    version: Version


class EnvValue(Data):
    name: str
    value: str


class TermsOfService(Data):
    plugin: TosPlugin
    error: str
    channels: tuple[str, ...]
    accept: tuple[str, ...]
    accept_env: EnvValue
    avoid: tuple[str, ...]
    decision_of_owner: bool
    source: str


class NvidiaLabels(Fact):
    example: str
    newest: Version
    linux_64_native_to: Version


class CondaForge(Data):
    packages: tuple[str, ...]
    cuda_seen_to: Version
    source: str


class VersionPin(Data):
    package: str
    newest: Minor
    run_constrained: tuple[str, ...]
    source: str


class VirtualPackage(Data):
    name: str
    override_env: str
    value: str
    empty_disables: bool
    source: str


class LegacyPackage(Data):
    package: str
    last: Minor
    source: str


class CondaCuda(Data):
    nvidia_labels: NvidiaLabels
    conda_forge: CondaForge
    version_pin: VersionPin
    virtual_package: VirtualPackage
    legacy: LegacyPackage


class PytorchChannel(Data):
    status: str
    last: Minor
    trap: str
    instead: tuple[str, ...]
    source: str


class Conda(Topic):
    miniconda: Distribution
    miniforge: Distribution
    install: InstallFlags
    terms_of_service: TermsOfService
    cuda: CondaCuda
    pytorch_channel: PytorchChannel


# --- traps.yml, known_bad.yml -------------------------------------------------------------------------------


class Trap(Data):
    """A known failure: the text that is seen, its cause, how to check, what helps."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]
    kind: Literal["error", "situation"]
    match: str
    also: tuple[str, ...] = ()
    cause: str
    check: str | None = None
    fix: str
    side_effect: str | None = None
    note: str | None = None
    source: str
    as_of: AsOf
    certainty: Certainty


class Traps(Data):
    as_of: AsOf
    traps: tuple[Trap, ...]


class KnownBad(Fact):
    """Versions that fail somewhere. ``versions`` are exact ones or branches (``580`` covers 580.*)."""

    component: Literal["driver", "container_toolkit"]
    versions: tuple[Version, ...]
    below: Version | None = None
    any_version: bool = False
    severity: Literal["avoid", "care"]
    ubuntu: tuple[str, ...] | None = None
    channels: tuple[Channel, ...] | None = None
    kernel_from: Version | None = None
    modules: tuple[Flavour, ...] | None = None
    symptom: str
    fix: str


class KnownBadFile(Topic):
    known_bad: tuple[KnownBad, ...]


# --- answers ------------------------------------------------------------------------------------------------


class Gpu(Data):
    """A GPU, or a family of boards that get the same answers.

    ids: PCI device ids (one for a device, several for a family). cc: compute capability ("9.0"), None where
    not known. architecture: None only for an id that the catalog does not know. first_branch None: older than
    the catalog's branches. last_branch None: still driven. modules: flavours that drive it at all, preferred
    first. fabric: "depends" for a family of which only some boards sit on NVSwitch. mig: None = not known.
    turing_or_newer: by the id where nothing else is known.
    """

    ids: tuple[str, ...]
    name: str
    chip: str | None = None
    architecture: str | None = None
    cc: str | None = None
    segment: Segment = "unknown"
    mobile: bool = False
    mig: bool | None = False
    mig_certainty: Certainty = "sourced"
    fabric: Fabric = "unknown"
    fabric_certainty: Certainty = "sourced"
    first_branch: int | None = None
    first_branch_certainty: Certainty = "sourced"
    last_branch: int | None = None
    modules: tuple[Flavour, ...] = ()
    modules_certainty: Certainty = "sourced"
    turing_or_newer: bool = True
    certainty: Certainty = "sourced"
    note: str | None = None

    @property
    def id(self) -> str:
        """First device id."""
        return self.ids[0]


class GpuMatch(Data):
    """What a person's words mean. Exactly one of gpu, candidates (ambiguous) and nearest (unknown) is
    filled."""

    text: str
    gpu: Gpu | None = None
    candidates: tuple[Gpu, ...] = ()
    nearest: tuple[str, ...] = ()


class Branch(BranchRow):
    """A driver branch (``BranchRow`` with its number)."""

    number: int

    @property
    def supported_now(self) -> bool:
        """On NVIDIA's page of supported drivers, as of the catalog."""
        return self.supported_until is not None

    @property
    def is_long_term_or_production(self) -> bool:
        return self.type in ("LTSB", "PB")

    def is_ended(self, on: date) -> bool:
        """True when support is over on that day. A day or month without more counts to its end."""
        last = self.supported_until or self.eol
        if last is None:
            return bool(self.ended)
        return on > last_day(last)


class CudaMinor(MinorRow):
    """A CUDA minor (``12.4``): what it targets and how its packages are called."""

    version: str
    toolkit_package: str
    # compute capabilities compiled for, without variants
    ccs: tuple[str, ...]
    # minor-version compatibility
    min_driver: str
    releases: tuple[str, ...]

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


class CudaRange(Data):
    """First and last CUDA minor; last is the newest of the catalog where nothing ends it."""

    first: str
    last: str

    def __contains__(self, minor: object) -> bool:
        return isinstance(minor, str) and key(self.first) <= key(minor) <= key(self.last)


class CudnnPair(Data):
    """cuDNN for a CUDA: version and apt pins (runtime and headers, exact)."""

    version: str
    cuda: str
    packages: tuple[str, ...]
    pins: tuple[str, ...]
    certainty: Certainty = "sourced"
    because: str


class NcclPair(Data):
    version: str
    # of the +cuda suffix
    cuda: str
    packages: tuple[str, ...]
    pins: tuple[str, ...]
    certainty: Certainty = "sourced"
    because: str


class TorchRelease(TorchRow):
    version: str


class TensorflowRelease(TensorflowRow):
    version: str
    extra: AndCuda | None = None


class UbuntuRelease(UbuntuRow):
    version: str
    cuda_first: str | None
    # None: the current one
    cuda_last: str | None

    @property
    def yymm(self) -> str:
        return self.version.replace(".", "")


class Offer(Data):
    """A series of a branch that a repository of an Ubuntu release is known to hold."""

    channel: Channel
    series: str
    version: str | None = None
    certainty: Certainty = "sourced"
    note: str | None = None


class Repository(Data):
    """An apt repository for one Ubuntu release and dpkg architecture. fingerprint None: the key is not
    known."""

    name: str
    url: str
    suite: str
    # separated by spaces; empty for a flat repository
    components: str
    architecture: str
    fingerprint: str | None
    key_url: str | None
    key_certainty: Certainty
    note: str | None = None
    certainty: Certainty = "sourced"


def last_day(text: str) -> date:
    """Last day of a year, month or day: ``2028-06`` gives 30 June 2028."""
    parts = [int(part) for part in text.split("-")]
    if len(parts) == 3:
        return date(*parts)
    year, month = parts[0], parts[1] if len(parts) > 1 else 12
    following = date(year + month // 12, month % 12 + 1, 1)
    return date.fromordinal(following.toordinal() - 1)
