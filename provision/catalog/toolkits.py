"""What the catalog says of a CUDA toolkit on a driver, a GPU, an Ubuntu: asked by compat and by resolve alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from provision.catalog import Catalog, CudaMinor, Gpu
from provision.catalog.builds import Driver
from provision.catalog.models.cuda import ArchiveRange, GlibcBound
from provision.catalog.versions import between, key, minor

# full: with everything. minor: by minor-version compatibility, without PTX. none: the driver is too old.
Runs = Literal["full", "minor", "none"]


def driver_of(catalog: Catalog, driver: str | int) -> Driver:
    """A driver by its version ("580.95.05") or branch (580).

    A branch that the catalog does not know counts as the newest older one that it knows: a newer driver runs whatever an
    older one runs.
    """
    number = key(str(driver))[0]
    older = [branch for branch in catalog.branches if branch.number <= number]
    return Driver(str(driver), older[-1].max_cuda if older else "0")


def runs(catalog: Catalog, cuda: str, driver: str | int) -> Runs:
    """How a driver, a version or a branch, runs a CUDA ("12.4" or "12.4.1"). (source: cuda.yml, minor_version_compatibility)"""
    known = driver_of(catalog, driver)
    if known.knows(cuda):
        return "full"
    return "minor" if known.is_at_least(catalog.min_driver(cuda)) else "none"


def newest_run(catalog: Catalog, driver: str | int) -> str | None:
    """The newest CUDA minor that a driver runs in full; None where it is older than every toolkit."""
    fit = [m.version for m in catalog.cuda_minors if runs(catalog, m.version, driver) == "full"]
    return fit[-1] if fit else None


def targets(catalog: Catalog, gpu: Gpu) -> str:
    """As text: the first and last CUDA whose compiler targets a GPU."""
    span = catalog.cuda_range([gpu])
    if span is None:
        row = catalog.architectures.compute_capabilities.get(gpu.cc or "")
        return f"the last CUDA that targets {gpu.cc} is {row.last_cuda if row else 'unknown'}"
    last = f"the last is {span.last}" if span.last != catalog.cuda_minors[-1].version else "newer ones all do"
    return f"CUDA {span.first} is the first of the catalog that targets {gpu.cc}; {last}"


def native_from(catalog: Catalog, gpu: Gpu) -> str | None:
    """The first CUDA minor that compiles for exactly this GPU, None where none of the catalog does."""
    return next((m.version for m in catalog.cuda_minors if gpu.cc in m.ccs), None)


def holders(catalog: Catalog, cuda: str, channel: str = "cuda") -> list[str]:
    """Ubuntu releases whose NVIDIA repository, or whose archive (channel "ubuntu"), holds a toolkit."""
    return [v for v in catalog.ubuntu_data.releases if catalog.cuda_in_repository(cuda, ubuntu=v, channel=channel)]


def channels(catalog: Catalog, cuda: str, ubuntu: str) -> list[str]:
    """Channels that hold a toolkit for an Ubuntu release: "cuda" (NVIDIA's repository), "ubuntu" (the archive)."""
    return [one for one in ("cuda", "ubuntu") if catalog.cuda_in_repository(cuda, ubuntu=ubuntu, channel=one)]


def only_in_archive(catalog: Catalog, cuda: str, ubuntu: str) -> ArchiveRange | None:
    """What the archive of an Ubuntu release holds, where NVIDIA's repository for it does not hold a toolkit; else None."""
    return catalog.cuda_data.archive_ranges[ubuntu] if channels(catalog, cuda, ubuntu) == ["ubuntu"] else None


def nearest(catalog: Catalog, cuda: str) -> list[str]:
    """Every other CUDA minor, the nearest first; of two equally near, the newer first."""
    wanted = key(minor(cuda))
    order = [m.version for m in catalog.cuda_minors]
    # Where a number that nothing has (12.7) would stand.
    place = sum(key(v) < wanted for v in order) - (0 if minor(cuda) in order else 0.5)
    rest = [v for v in order if v != minor(cuda)]
    # The same major first: a program that was written for 12 asks for a 12.
    return sorted(rest, key=lambda v: (key(v)[0] != wanted[0], abs(order.index(v) - place), [-part for part in key(v)]))


def elsewhere(catalog: Catalog, cuda: str) -> str:
    """As text: where a toolkit ("12.4" or "12.4.1") comes from when the repository of this Ubuntu has none."""
    toolkit, held = catalog.cuda(cuda), holders(catalog, cuda)
    release = cuda if cuda.count(".") == 2 else toolkit.releases[-1] if toolkit.releases else toolkit.version
    image = f"a container (nvidia/cuda:{release}-devel-ubuntu{held[-1]})" if held else "a container"
    conda = f'conda (miniconda_environments: [{{name: NAME, cuda: "{toolkit.version}"}}])'
    return f"{conda}, {image} or wheels bring CUDA {toolkit.version} without it"


def host_compiler(toolkit: CudaMinor, gcc: str | None, available: Sequence[str] = ()) -> tuple[str, str] | None:
    """(limit, suggestion) as text where nvcc of a toolkit refuses a gcc major; None where it takes it, or it is not known.

    available: majors of the g++ that are there. (source: cuda.yml, gcc_max, read off crt/host_config.h)
    """
    if gcc is None or not gcc.isdigit() or int(gcc) <= toolkit.gcc_max:
        return None
    usable = [v for v in available if v.isdigit() and int(v) <= toolkit.gcc_max]
    number = max(usable, key=int) if usable else str(toolkit.gcc_max)
    install = "" if usable else f"apt-get install gcc-{number} g++-{number}, then "
    limit = f"it takes gcc up to {toolkit.gcc_max}" + (f" ({toolkit.gcc_note})" if toolkit.gcc_note else "")
    return limit, f"{install}nvcc -ccbin g++-{number}, or NVCC_CCBIN=g++-{number} in the environment"


def c_library(catalog: Catalog, toolkit: CudaMinor, glibc: str | None) -> tuple[str, str] | None:
    """(reason, suggestion) as text where nothing compiles with a toolkit against a glibc ("2.43"); else None.

    Unlike with a gcc that is too new, no other compiler helps. (source: cuda.yml, glibc_max)
    """
    bound = _clash(catalog, toolkit.version, glibc)
    if bound is None:
        return None
    newer = [m.version for m in catalog.cuda_minors if key(m.version) > key(toolkit.version)]
    fit = next((version for version in newer if _clash(catalog, version, glibc) is None), None)
    reason = (
        f"its headers fit glibc up to {bound.glibc}: a newer one declares {' and '.join(bound.functions)} itself, and nvcc "
        f'ends with "exception specification is incompatible", whatever the compiler'
    )
    ways = [f"CUDA {fit} or newer" if fit else "", bound.patched or "", "compile in a container of an older Ubuntu"]
    return reason, ", or ".join(filter(None, ways))


def _clash(catalog: Catalog, cuda: str, glibc: str | None) -> GlibcBound | None:
    bound = next((row for row in catalog.cuda_data.glibc_max if between(cuda, row.first, row.last)), None)
    return bound if glibc and bound and key(glibc) > key(bound.glibc) else None
