"""The shape of compat's answer and of what is asked. Data only."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from provision.catalog import KnownSeries, Support
from provision.catalog.models.base import Flavour
from provision.errors import Issue


class CompatRequest(BaseModel):
    """What is asked for; everything optional. gpu: names or PCI ids, one for each kind of GPU in the host."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu: tuple[str, ...] = ()
    # "580", "580-server", "580.95.05"
    driver: str | None = None
    # "12.4", "12.4.1", "13"
    cuda: str | None = None
    # "9", "9.10", "9.10.2.21"
    cudnn: str | None = None
    # "2.6", "2.6.0", "2.6+cu124"
    torch: str | None = None
    # "2.18", "2.18.1"
    tensorflow: str | None = None
    # "0.6", "0.6.2+cuda12"
    jax: str | None = None
    # "2.21", "2.21.5"
    nccl: str | None = None
    # the host's processor: "x86_64", "aarch64"
    machine: str | None = None
    # "22.04", "jammy"
    ubuntu: str | None = None
    # "open", "proprietary"
    modules: str | None = None
    # CUDA inside a container image: "12.1", "12.1.1"
    image_cuda: str | None = None
    # the host's kernel: "6.17", "6.8.0-60-generic"
    kernel: str | None = None
    # the GPUs are to be divided (Multi-Instance GPU)
    mig: bool = False


class GpuAnswer(BaseModel):
    asked: str
    name: str
    architecture: str | None
    cc: str | None
    ids: list[str]
    fabric: str
    # weakest over what was asked; None: nothing that runs on it was asked
    support: Support | None


class DriverAnswer(BaseModel):
    # that fit, oldest first
    branches: list[int] = Field(default_factory=list)
    recommended: int | None = None
    # version where one is known ("525.60.13"), else a branch ("520")
    minimum: str | None = None
    # for the recommended branch, preferred first
    modules: list[Flavour] = Field(default_factory=list)
    # where that branch is known to be, for the Ubuntu that is asked
    offers: list[KnownSeries] = Field(default_factory=list)


class CudaAnswer(BaseModel):
    chosen: str | None = None
    # "12.4.1": the one asked for, else the newest of the chosen minor
    release: str | None = None
    package: str | None = None
    # newest gcc that nvcc takes
    gcc_max: int | None = None
    # first and last that fit everything else
    range: list[str] | None = None


class LibraryAnswer(BaseModel):
    """cuDNN or NCCL from apt: pins are exact (runtime and headers); none for what is known as a wheel only."""

    version: str
    cuda: str
    pins: list[str]
    because: str


class TorchAnswer(BaseModel):
    version: str
    tag: str
    cuda: str
    cudnn: str | None
    nccl: str | None
    index_url: str


class TensorflowAnswer(BaseModel):
    version: str
    cuda: str
    cudnn: str
    # what pip installs, None where there is no extra
    extra: str | None


class JaxAnswer(BaseModel):
    version: str
    # what pip installs: "jax[cuda12]==0.6.2"
    extra: str
    # built with
    cuda: str
    # the oldest of their majors that it loads
    cudnn: str
    nccl: str


class ImageAnswer(BaseModel):
    """An image's CUDA on the driver of the host; the driver is never in the image."""

    # minor: "12.1"
    cuda: str
    # on the recommended branch; minor: without PTX
    runs: Literal["full", "minor"]
    # oldest driver that runs it at all: "525.60.13"
    minimum: str
    # driver that came with it, from which on everything works
    full_from: str | None = None
    # NVIDIA's images: nvidia/cuda:12.1.1-base-ubuntu22.04, …
    names: list[str] = Field(default_factory=list)


class Nearest(BaseModel):
    """One change of one item that makes things work: name of the item to its new value."""

    change: dict[str, str]
    text: str
    # False: it ends this clash, another one stays
    fits_all: bool


class CompatAnswer(BaseModel):
    """The answer. Dump with ``by_alias=True``: the schema's name is under "schema"."""

    model_config = ConfigDict(populate_by_name=True)

    schema_id: str = Field(default="provision/compat/1", alias="schema")
    wishes: CompatRequest
    fits: bool
    support: Support | None
    conflicts: list[Issue] = Field(default_factory=list)
    warnings: list[Issue] = Field(default_factory=list)
    nearest: list[Nearest] = Field(default_factory=list)
    gpus: list[GpuAnswer] = Field(default_factory=list)
    driver: DriverAnswer = DriverAnswer()
    cuda: CudaAnswer = CudaAnswer()
    cudnn: LibraryAnswer | None = None
    nccl: LibraryAnswer | None = None
    torch: TorchAnswer | None = None
    tensorflow: TensorflowAnswer | None = None
    jax: JaxAnswer | None = None
    # the processor whose wheels are meant
    machine: str = "x86_64"
    image: ImageAnswer | None = None
    # that every asked framework has wheels for
    python: list[str] = Field(default_factory=list)
    # day of the facts
    catalog: str = ""
