"""frameworks.yml, conda.yml and container_toolkit.yml: what programs take CUDA from."""

from __future__ import annotations

from provision.catalog.models.base import Cc, Certainty, Data, Fact, Machine, Minor, Sha256, Tag, Topic, Version


class TorchRow(Fact):
    default: Tag
    offered: tuple[Tag, ...]
    cudnn: Version | None
    nccl: Version | None
    python: tuple[Minor, ...] | None
    covers: Minor | None = None


class TorchTag(Fact):
    cuda: Minor
    # where minor-version compatibility does not say it
    min_driver: Version | None = None
    blackwell_min_driver: Version | None = None


class CodeList(Fact):
    """What the wheels of releases hold: compiled code, and PTX of one compute capability.

    fails: compute capabilities on which the PTX does not load, although the GPU is newer.
    """

    first: Version
    last: Version
    cc: tuple[Cc, ...]
    ptx: Cc | None = None
    fails: tuple[Cc, ...] = ()
    fails_certainty: Certainty = "sourced"


class ArchList(CodeList):
    tags: tuple[Tag, ...]
    machine: Machine = "x86_64"


class Torch(Data):
    index_url: str
    releases: dict[Version, TorchRow]
    tags: dict[Tag, TorchTag]
    arch_lists: tuple[ArchList, ...]


class TensorflowRow(Fact):
    python: tuple[Minor, Minor]
    cuda: Minor
    cudnn: Minor
    # the releases that it stands for
    patches: tuple[Version, ...] = ()


class AndCuda(Fact):
    cudnn: str


class Tensorflow(Data):
    releases: dict[Version, TensorflowRow]
    and_cuda: dict[Version, AndCuda]
    arch_lists: tuple[CodeList, ...]
    # processors whose wheels hold code for GPUs
    machines: tuple[Machine, ...] = ("x86_64",)
    machines_source: str | None = None


class JaxRow(Fact):
    python: tuple[Minor, Minor]
    aarch64: bool = True


class JaxBuild(CodeList):
    """The CUDA plugin of an extra ("cuda12"): what it was built with, and the oldest cuDNN and NCCL that it loads."""

    extra: str
    cuda: Minor
    # the oldest toolkit of the major that it loads
    least: Minor
    cudnn: Version
    nccl: Version


class Jax(Data):
    releases: dict[Version, JaxRow] = {}
    builds: tuple[JaxBuild, ...] = ()


class Frameworks(Topic):
    torch: Torch
    tensorflow: Tensorflow
    jax: Jax = Jax()


class Installer(Data):
    version: str
    python: Minor
    sha256: dict[str, Sha256]


class Distribution(Data):
    base_url: str
    file: str
    moving_file: str | None = None
    newest: str
    source: str
    installers: tuple[Installer, ...]


class TermsOfService(Data):
    channels: tuple[str, ...]
    source: str


class VersionPin(Data):
    package: str
    newest: Minor
    source: str


class LegacyPackage(Data):
    package: str
    last: Minor
    source: str


class CondaCuda(Data):
    version_pin: VersionPin
    legacy: LegacyPackage


class PytorchChannel(Data):
    last: Minor
    source: str


class Conda(Topic):
    miniconda: Distribution
    miniforge: Distribution
    terms_of_service: TermsOfService
    cuda: CondaCuda
    pytorch_channel: PytorchChannel


class ToolkitVersions(Fact):
    newest: Version


class ToolkitPackages(Data):
    set: tuple[str, ...]
    source: str


class CdiRefresh(Data):
    since: Version


class Cdi(Data):
    refresh: CdiRefresh
    source: str


class MinRuntime(Fact):
    toolkit_from: Version | None = None
    feature: str | None = None
    docker: Version | None = None
    containerd: Version | None = None
    podman: Version | None = None
    default_from: Version | None = None
    default_from_certainty: Certainty = "sourced"
    because: str | None = None
    workaround: str | None = None


class ToolkitLegacy(Data):
    remove_packages: tuple[str, ...]
    source: str


class ContainerToolkit(Topic):
    versions: ToolkitVersions
    packages: ToolkitPackages
    cdi: Cdi
    min_runtime_versions: tuple[MinRuntime, ...]
    legacy: ToolkitLegacy
