"""frameworks.yml, conda.yml and container_toolkit.yml: what programs take CUDA from."""

from __future__ import annotations

from typing import Literal

from provision.catalog.models.base import Cc, Certainty, Data, Fact, Minor, Sha256, Tag, Topic, Version


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


class ArchList(Fact):
    tags: tuple[Tag, ...]
    first: Minor
    last: Minor
    cc: tuple[Cc, ...]
    machine: Literal["x86_64", "aarch64"] = "x86_64"
    ptx: Cc | None = None


class Torch(Data):
    index_url: str
    releases: dict[Version, TorchRow]
    tags: dict[Tag, TorchTag]
    arch_lists: tuple[ArchList, ...]


class TensorflowRow(Fact):
    python: tuple[Minor, Minor]
    cuda: Minor
    cudnn: Minor


class AndCuda(Fact):
    cudnn: str


class TensorflowCompute(Fact):
    first: Cc
    last: Cc


class Tensorflow(Data):
    releases: dict[Version, TensorflowRow]
    and_cuda: dict[Version, AndCuda]
    compute: TensorflowCompute


class Frameworks(Topic):
    torch: Torch
    tensorflow: Tensorflow


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
