"""Catalog: what can exist. Facts about GPUs, drivers, CUDA and what goes with them, and what follows from them.

The data lies in ``data/*.yml``, one topic a file, each with its sources, and is read when it is first asked for. Nothing
here reads a host. ``load_catalog()`` gives one object a process. A value that the catalog does not have is a UsageError
that names the nearest it has; ``find_…`` return None instead.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path

import yaml

from provision.catalog._gpus import GpuIndex
from provision.catalog.files import OWN, TOPICS, Files
from provision.catalog.models.answers import (
    Branch,
    CudaMinor,
    CudaRange,
    Gpu,
    GpuMatch,
    JaxRelease,
    KnownSeries,
    LibraryPair,
    Repository,
    TensorflowRelease,
    TorchRelease,
    UbuntuRelease,
)
from provision.catalog.models.base import SUPPORT_ORDER, UNSURE, Certainty, Channel, Flavour, Support
from provision.catalog.models.cuda import CudnnMinCc
from provision.catalog.models.drivers import KnownBad, Transitional
from provision.catalog.models.frameworks import AndCuda, ArchList, CodeList
from provision.catalog.models.ubuntu import Trap
from provision.catalog.versions import between, distance, key, loads_cudnn, minor, same
from provision.errors import UsageError

__all__ = [
    "SUPPORT_ORDER",
    "UNSURE",
    "Branch",
    "Catalog",
    "CudaMinor",
    "CudaRange",
    "Gpu",
    "JaxRelease",
    "GpuMatch",
    "KnownBad",
    "LibraryPair",
    "KnownSeries",
    "Repository",
    "Support",
    "TensorflowRelease",
    "TorchRelease",
    "Transitional",
    "Trap",
    "UbuntuRelease",
    "load_catalog",
    "read_catalog",
]

# Where the data lies; the tests put a frozen copy in its place.
FOLDER = OWN
# What names another folder, for commands and for plays of plain Ansible.
VARIABLE = "GPU_PROVISION_CATALOG"
# Compute capabilities of the architectures that began with CUDA 12.8 and need driver 570 at least.
_BLACKWELL_FROM = (10, 0)


def load_catalog() -> Catalog:
    """Return the catalog of this package, each file read when first asked for, or the one that $GPU_PROVISION_CATALOG names.

    One object of a folder in a process. Raises UsageError where that folder holds none.
    """
    other = os.environ.get(VARIABLE)
    return _loaded(Path(other)) if other else _loaded(FOLDER)


@contextmanager
def other_catalog(folder: Path | None) -> Iterator[None]:
    """Everything in here, programs that are started too, takes its facts from a folder; None: as it is."""
    before = os.environ.get(VARIABLE)
    if folder is not None:
        os.environ[VARIABLE] = str(folder.expanduser().absolute())
    try:
        yield
    finally:
        if before is not None:
            os.environ[VARIABLE] = before
        elif folder is not None:
            os.environ.pop(VARIABLE, None)


@cache
def _loaded(folder: Path) -> Catalog:
    return Catalog(folder) if folder == FOLDER else read_catalog(folder)


def read_catalog(folder: Path) -> Catalog:
    """Return the catalog of another folder, every file of it read and validated. UsageError for what is none."""
    found = Catalog(folder)
    try:
        for name in TOPICS:
            getattr(found, name)
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        # pydantic's first three lines: how many errors, which field, what of it
        said = ": ".join(line.strip() for line in str(error).splitlines()[:3])
        raise UsageError(
            "catalog.folder",
            f"{folder} holds no catalog that this version can read",
            because=[f"{name}: {said}"],
            hint="it must have every file of provision/catalog/data, in the shapes of this version (docs/catalog.md)",
        ) from error
    return found


class Catalog(Files):
    """The catalog's questions, beside its files."""

    @cached_property
    def day(self) -> str:
        """The newest day on which a source of drivers, CUDA, its libraries or frameworks was seen: how fresh an answer is."""
        topics = (self.drivers, self.cuda_data, self.cudnn_data, self.nccl_data, self.frameworks)
        seen = [row.as_of.lstrip("~").split("/") for topic in topics for row in topic.sources.values()]
        return max(part for parts in seen for part in parts)

    # GPUs ---------------------------------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> GpuIndex:
        return GpuIndex(self.gpu_data, self.architectures, self.first_branches)

    def gpu_by_id(self, device_id: str, subsystem: str | None = None) -> Gpu:
        """Return the GPU with a PCI device id ("2330", "0x2330", "10de:2330").

        An id that is not listed is judged by its range (certainty "inferred"), else it is unknown
        (architecture None, certainty "unknown"; ``turing_or_newer`` by the number). Raises ValueError for
        what is no id.
        """
        return self._index.by_id(device_id, subsystem)

    def find_gpu(self, text: str) -> GpuMatch:
        """Return what a name ("RTX 3090", "h100", "NVIDIA A100-SXM4-80GB") or an id means: one GPU or family,
        candidates of differing compute capability, or the nearest names."""
        return self._index.find(text)

    # Driver branches ----------------------------------------------------------------------------------------------

    @cached_property
    def branches(self) -> tuple[Branch, ...]:
        """All known branches, oldest first."""
        rows = sorted(self.drivers.branches.items())
        return tuple(Branch.model_validate({"number": n, **row.model_dump()}) for n, row in rows)

    def find_branch(self, text: str | int) -> Branch | None:
        """Branch of "580", 580, "580-server-open" or "580.95.05"; None when the catalog has no such branch."""
        match = re.match(r"^(\d{3})(?:(?:-server)?(?:-open)?|(?:\.\d+)+)$", str(text).strip())
        number = int(match.group(1)) if match else -1
        return next((branch for branch in self.branches if branch.number == number), None)

    def branch(self, text: str | int) -> Branch:
        """As find_branch; raises UsageError (catalog.unknown_branch) that names the nearest branches."""
        found = self.find_branch(text)
        number = re.match(r"^(?:nvidia-driver-)?(\d{3})\b", str(text).strip())
        old = self.drivers.too_old.get(int(number[1])) if number else None
        if old:
            newer = self.branches[0].number
            needs = f"{old.last_for} cards have no newer one: they cannot be provisioned here" if old.last_for else None
            raise UsageError(
                "catalog.branch_too_old",
                f"driver branch {number[1]} is too old: nothing here installs it",  # type: ignore[index]
                because=[
                    f"its support ended {old.eol}; it runs CUDA up to {old.max_cuda}",
                    *([needs] if needs else []),
                ],
                hint=f"the oldest branch of the catalog is {newer}; provision compat --gpu NAME says which a card needs",
            )
        if found is None:
            raise _unknown("branch", "driver branch", str(text), [str(b.number) for b in self.branches])
        return found

    def branches_for(self, gpus: Iterable[Gpu]) -> set[int]:
        """Branches that drive every one of these GPUs, with at least one module flavour for all of them
        together."""
        listed = list(gpus)
        return {branch.number for branch in self.branches if self._flavours(listed, branch)}

    def flavours(self, gpus: Iterable[Gpu], branch: str | int) -> list[Flavour]:
        """Module flavours with which a branch drives every one of these GPUs, preferred first; empty: it does
        not.

        Before Turing proprietary only, up to the last branch of the architecture. Turing to Hopper either,
        open preferred from 560, open only from 620. Blackwell and newer, and Grace Hopper: open only (source:
        driver installation guide 610 and 620). Without GPUs: what the branch offers at all.
        """
        return self._flavours(list(gpus), self.branch(branch))

    def _flavours(self, listed: Sequence[Gpu], row: Branch) -> list[Flavour]:
        offered: list[Flavour] = {
            "none": ["proprietary"],
            "available": ["proprietary", "open"],
            "default": ["open", "proprietary"],
            "only": ["open"],
        }[row.open]  # type: ignore[assignment]
        if row.open_segments and any(gpu.segment not in row.open_segments for gpu in listed):
            offered = [f for f in offered if f != "open"]
        if not all(self._drives(row, gpu) for gpu in listed):
            return []
        return [f for f in offered if all(f in gpu.modules for gpu in listed)]

    def _drives(self, branch: Branch, gpu: Gpu) -> bool:
        if gpu.architecture is None:
            # Not listed and newer than the catalog: only what is still maintained can be expected to know it.
            return gpu.turing_or_newer and branch.supported_now and branch.oldest_architecture == "Turing"
        return gpu.why_not(branch.number) is None

    def max_cuda(self, branch: str | int) -> str:
        """Highest CUDA that a branch runs in full: what nvidia-smi shows."""
        return self.branch(branch).max_cuda

    def min_driver_for_cuda(self, cuda: str, *, full: bool = False) -> str | None:
        """Oldest driver version for a CUDA ("12", "12.4", "12.4.1").

        By default by minor-version compatibility (compiled code, no PTX from that toolkit); ``full``: the
        driver that came with the release (of a minor: with its first one), None where that is not known.
        """
        if not full:
            return self.min_driver(cuda)
        rows = [row for v, row in self.cuda_data.releases.items() if same(cuda, v) and not row.preview]
        return rows[0].driver if rows else None

    def min_driver(self, cuda: str) -> str:
        """Oldest driver version that runs compiled code of a CUDA ("12", "12.4", "12.4.1"), by minor-version compatibility.

        The driver that came with a release is enough for it, also where the major asks for a newer one (11.0).
        """
        rows = self.cuda_data.minor_version_compatibility
        major = int(cuda.split(".")[0]) if re.match(r"^\d+(\.\d+)*$", cuda) else None
        if major not in rows:
            raise _unknown(
                "cuda", "CUDA toolkit", cuda, [v for v in self.cuda_data.minors if int(v.split(".")[0]) in rows]
            )
        own = [
            row.driver for v, row in self.cuda_data.releases.items() if same(cuda, v) and row.driver and not row.preview
        ]
        return min([rows[major].min_driver, *(own if "." in cuda else [])], key=key)

    def known_series(self, branch: str | int, *, ubuntu: str) -> list[KnownSeries]:
        """Where a branch is known to be offered for an Ubuntu release as itself (not as a transitional
        package).

        Catalog knowledge: what the host's own lists say wins.
        """
        number, release = self.branch(branch).number, self.ubuntu(ubuntu).version
        found = [
            KnownSeries(channel="ubuntu", series=o.series, version=o.version, certainty=o.certainty, note=o.note)
            for o in self.drivers.archive.offers
            if o.ubuntu == release
            and int(o.series[:3]) == number
            and not any(t.from_ == o.series and release in t.ubuntu for t in self.drivers.archive.transitional)
        ]
        for row in self.drivers.nvidia.offers:
            if row.ubuntu == release and number in row.branches:
                sure = "inferred" if number in row.inferred else row.certainty
                found.append(KnownSeries(channel="cuda", series=str(number), certainty=sure, note=row.note))
        return found

    def may_be_offered(self, series: str, *, ubuntu: str) -> bool:
        """True when nobody looked whether an Ubuntu release's archive has a series: not seen is not the same as absent."""
        release = self.ubuntu(ubuntu).version
        return release not in self.drivers.archive.looked_at_whole and not self.transitional(series, ubuntu=release)

    def transitional(self, series: str, *, ubuntu: str) -> Transitional | None:
        """The entry that says a series is only a transitional package in that Ubuntu release's archive, or
        None."""
        release = self.ubuntu(ubuntu).version
        for row in self.drivers.archive.transitional:
            if row.from_ == series and release in row.ubuntu:
                return row
        return None

    # CUDA ---------------------------------------------------------------------------------------------------------

    @cached_property
    def cuda_minors(self) -> tuple[CudaMinor, ...]:
        """All CUDA minors with a toolkit, oldest first."""
        apt = self.cuda_data.apt.toolkit
        releases = self.cuda_data.releases
        found = []
        for version, row in sorted(self.cuda_data.minors.items(), key=lambda item: key(item[0])):
            major, small = version.split(".")
            plain = tuple(_sm_to_cc(sm) for sm in row.sm if sm.isdigit())
            found.append(
                CudaMinor.model_validate(
                    {
                        **row.model_dump(),
                        "version": version,
                        "ccs": plain,
                        "toolkit_package": apt.format(major=major, minor=small),
                        "min_driver": self.min_driver(version),
                        "releases": tuple(v for v, r in releases.items() if minor(v) == version and not r.preview),
                    }
                )
            )
        return tuple(found)

    @cached_property
    def _minors_by_version(self) -> dict[str, CudaMinor]:
        return {m.version: m for m in self.cuda_minors}

    def cuda(self, text: str) -> CudaMinor:
        """CUDA minor of "12.4" or "12.4.1"; "13" gives the newest 13.x. UsageError names the nearest ones."""
        wanted = text.strip()
        if wanted in self._minors_by_version:
            return self._minors_by_version[wanted]
        fit = [m for m in self.cuda_minors if same(wanted, m.version)] if re.match(r"^\d+(\.\d+){0,3}$", wanted) else []
        if not fit and wanted.count(".") >= 2:
            fit = [m for m in self.cuda_minors if any(same(wanted, v) for v in m.releases)]
        if fit:
            return fit[-1]
        because = []
        if minor(wanted) in self.cuda_data.no_release:
            because = [f"{minor(wanted)} is only a number that nvidia-smi shows (driver branch 565): it has no toolkit"]
        known = [m.version for m in self.cuda_minors]
        if wanted.count(".") >= 2:
            known = [v for m in self.cuda_minors for v in m.releases if m.version == minor(wanted)] or known
        raise _unknown("cuda", "CUDA toolkit", text, known, because)

    def cuda_range(self, gpus: Iterable[Gpu]) -> CudaRange | None:
        """CUDA minors whose compiler targets every one of these GPUs; None: no toolkit of the catalog
        does."""
        listed = [gpu.cc for gpu in gpus if gpu.cc]
        fit = [
            m.version for m in self.cuda_minors if all(self._toolkit(m, cc) in ("native", "binary") for cc in listed)
        ]
        return CudaRange(first=fit[0], last=fit[-1]) if fit else None

    def toolkit_support(self, cuda: str, gpu: Gpu) -> Support:
        """Degree to which programs built by a toolkit run on a GPU.

        native: it compiles for this compute capability; binary: for a lower minor of the same major; jit: the
        GPU is newer, PTX has to be compiled by the driver (which must know that CUDA in full); none: the GPU
        is too old for it. An unknown compute capability counts as newer than all. (source: ptxas lists,
        NVIDIA compatibility guides)
        """
        return self._toolkit(self.cuda(cuda), gpu.cc)

    def _toolkit(self, toolkit: CudaMinor, cc: str | None) -> Support:
        top = max(toolkit.ccs, key=key)
        return _degree(cc, toolkit.ccs, ptx=top)

    # cuDNN, NCCL --------------------------------------------------------------------------------------------------

    @cached_property
    def cudnn_versions(self) -> dict[str, tuple[int, ...]]:
        """Every known cuDNN version with the CUDA majors it is offered for, newest first."""
        found: dict[str, set[int]] = {}
        for row in self.cudnn_data.versions:
            for version in row.list:
                found.setdefault(version, set()).update(row.cuda_majors)
        for pair in self.cudnn_data.pairs:
            found.setdefault(pair.cudnn, set()).add(key(pair.cuda)[0])
        for version, toolkits in self.cudnn_data.packages_v8.items():
            found.setdefault(version, set()).update(key(cuda)[0] for cuda in toolkits)
        return {v: tuple(sorted(found[v])) for v in sorted(found, key=key, reverse=True)}

    def cudnn_drives(self, version: str, cc: str) -> bool:
        """True when a cuDNN has code for a compute capability, as far as the support matrices say."""
        low = self.cudnn_min_cc(version)
        if low is not None and key(cc) < key(low[0]):
            return False
        tops = [row for row in self.cudnn_data.max_cc if row.cc and between(version, row.first, row.last)]
        if not tops:
            # Before cuDNN 9 nothing newer than Hopper existed.
            return key(cc) < _BLACKWELL_FROM
        return key(cc)[0] <= max(key(top)[0] for row in tops for top in row.cc or ())

    def cudnn_min_cc(self, version: str) -> tuple[str, bool] | None:
        """Oldest compute capability that a cuDNN drives, and whether that is sure; None: not known."""
        row = self.cudnn_low(version)
        return (row.cc, row.certainty not in UNSURE) if row else None

    def cudnn_low(self, version: str) -> CudnnMinCc | None:
        """The row that says the oldest compute capability of a cuDNN."""
        return next((row for row in self.cudnn_data.min_cc if between(version, row.first, row.last)), None)

    def cudnn_for(
        self,
        cuda: str,
        gpus: Iterable[Gpu] = (),
        *,
        version: str | None = None,
        built: Iterable[str] = (),
        prefer: str | None = None,
    ) -> LibraryPair | None:
        """cuDNN that goes with a CUDA on these GPUs, with exact apt pins; None when there is none.

        ``version`` ("9", "9.10", exact) narrows the choice, ``built`` to what frameworks that were built with these
        cuDNNs load. Of what is left: ``prefer`` (what the wheels of a framework bring), what NVIDIA's images of that CUDA
        install, a package that was built with exactly that CUDA, the newest. A pair without pins is a wheel only.
        """
        toolkit, compiled = self.cuda(cuda), tuple(built)
        listed = [gpu.cc for gpu in gpus if gpu.cc]

        def suits(candidate: str) -> bool:
            return (
                (version is None or same(version, candidate))
                and all(self.cudnn_drives(candidate, cc) for cc in listed)
                and all(loads_cudnn(own, candidate) for own in compiled)
            )

        own = [p for p in self.cudnn_data.pairs if minor(p.cuda) == toolkit.version]
        general = [p for p in self.cudnn_data.pairs if p.cuda == str(toolkit.major)]
        images = [p for p in reversed(own or general) if suits(p.cudnn)]
        fit = [v for v, majors in self.cudnn_versions.items() if toolkit.major in majors and suits(v)]
        if prefer in fit:
            return self._cudnn_pair(prefer, toolkit, "what the wheels of the framework bring")
        if images:
            because = f"what NVIDIA's images of CUDA {images[0].cuda} install"
            return self._cudnn_pair(images[0].cudnn, toolkit, because, images[0].certainty)
        exact = [v for v in fit if toolkit.version in self.cudnn_data.packages_v8.get(v, ())]
        if exact:
            return self._cudnn_pair(exact[0], toolkit, f"the newest package that was built with CUDA {toolkit.version}")
        # A version that only exists as a wheel comes last.
        fit.sort(key=lambda v: key(v)[0] < 9 and v not in self.cudnn_data.packages_v8)
        because = f"the newest cuDNN for CUDA {toolkit.major} that drives these GPUs"
        return self._cudnn_pair(fit[0], toolkit, because) if fit else None

    def _cudnn_pair(
        self, version: str, toolkit: CudaMinor, because: str, certainty: Certainty | None = None
    ) -> LibraryPair:
        """certainty: that of the row where NVIDIA's images name the pair; else worked out."""
        apt, pins = self.cudnn_data.apt, []
        if key(version)[0] >= 9:
            full = apt.v9.version.format(cudnn=version)
            pins = [f"{text.format(major=toolkit.major)}={full}" for text in (apt.v9.runtime, apt.v9.dev)]
            # Which single versions of cuDNN 9 exist as .deb was not enumerated.
            certainty = certainty or "inferred"
        else:
            made = [v for v in self.cudnn_data.packages_v8.get(version, ()) if key(v)[0] == toolkit.major]
            older = [v for v in made if key(v) <= key(toolkit.version)]
            suffix = max(older, key=key) if older else min(made, key=key, default=None)
            if suffix:
                full = apt.v8.version.format(cudnn=version, cuda=suffix)
                pins = [f"{name}={full}" for name in (apt.v8.runtime, apt.v8.dev)]
            # From 8.1 on a package runs with every minor of its major (support matrix).
            sure = suffix == toolkit.version or key(version) >= (8, 1)
            certainty = "sourced" if sure else "inferred"
            because += "" if pins else "; it is known as a wheel only, not as a package"
        return LibraryPair(
            version=version, cuda=toolkit.version, pins=tuple(pins), certainty=certainty, because=because
        )

    @cached_property
    def nccl_versions(self) -> dict[str, tuple[int, ...]]:
        """Every known NCCL version with the CUDA majors it is offered for, newest first."""
        found: dict[str, set[int]] = {}
        for row in self.nccl_data.versions:
            for version in row.list:
                found.setdefault(version, set()).update(row.cuda_majors)
        for pair in self.nccl_data.pairs:
            found.setdefault(pair.nccl, set()).add(key(pair.cuda)[0])
        return {v: tuple(sorted(found[v])) for v in sorted(found, key=key, reverse=True)}

    def nccl_for(self, cuda: str, *, ubuntu: str | None = None, version: str | None = None) -> LibraryPair | None:
        """NCCL for a CUDA with exact apt pins: the highest whose +cuda suffix has that major and no higher minor.

        ``version`` ("2.21", exact) narrows the choice; what is known as a wheel only has no pins.
        """
        toolkit = self.cuda(cuda)
        release = self.ubuntu(ubuntu).version if ubuntu else None
        fit = [
            p
            for p in self.nccl_data.pairs
            if key(p.cuda)[0] == toolkit.major
            and (version is not None or key(p.cuda) <= key(toolkit.version))
            and (version is None or same(version, p.nccl))
            and (p.ubuntu is None or release is None or p.ubuntu == release)
        ]
        if not fit:
            wheels = [v for v, majors in self.nccl_versions.items() if toolkit.major in majors and version]
            found = next((v for v in wheels if same(str(version), v)), None)
            because = "it is known as a wheel only, not as a package"
            return (
                LibraryPair(version=found, cuda=toolkit.version, pins=(), certainty="inferred", because=because)
                if found
                else None
            )
        suffix = min(
            (p.cuda for p in fit),
            key=lambda v: (key(v) > key(toolkit.version), abs(key(v)[1] - key(toolkit.version)[1])),
        )
        pair = max((p for p in fit if p.cuda == suffix), key=lambda p: (p.ubuntu != "20.04", key(p.nccl)))
        exact = suffix == toolkit.version
        full = self.nccl_data.apt.version.format(nccl=pair.nccl, cuda=suffix)
        names = (self.nccl_data.apt.runtime, self.nccl_data.apt.dev)
        because = (
            f"built for CUDA {suffix}" if exact else f"no pair is known for {toolkit.version}: that of {suffix} runs"
        )
        return LibraryPair(
            version=pair.nccl,
            cuda=suffix,
            pins=tuple(f"{n}={full}" for n in names),
            certainty=pair.certainty if exact else "inferred",
            because=because,
        )

    # Frameworks ---------------------------------------------------------------------------------------------------

    def torch(self, text: str) -> TorchRelease:
        """PyTorch release of "2.6.0", "2.6" (its newest), "2" or "1.12"; UsageError names the nearest."""
        rows = self.frameworks.torch.releases
        wanted = text.strip().removeprefix("v").split("+")[0]
        exact = [v for v, row in rows.items() if v == wanted or (row.covers and same(row.covers, wanted))]
        fit = exact or [v for v in rows if re.match(r"^\d+(\.\d+)*$", wanted) and same(wanted, v)]
        if not fit:
            raise _unknown("torch", "PyTorch release", text, list(rows))
        version = max(fit, key=key)
        return TorchRelease.model_validate({"version": version, **rows[version].model_dump()})

    def torch_arch_list(self, version: str, tag: str, machine: str = "x86_64") -> ArchList | None:
        """What the wheels of a PyTorch release and CUDA tag hold; None: not known."""
        for row in self.frameworks.torch.arch_lists:
            if tag in row.tags and row.machine == machine and between(minor(version), row.first, row.last):
                return row
        return None

    def torch_support(self, version: str, tag: str, gpu: Gpu, machine: str = "x86_64") -> Support:
        """Degree to which a PyTorch wheel for a processor runs on a GPU; "none" where its list is not known."""
        row = self.torch_arch_list(version, tag, machine)
        return _degree(gpu.cc, row.cc, ptx=row.ptx) if row else "none"

    def torch_min_driver(self, tag: str) -> str:
        """Oldest driver version for the wheels of a CUDA tag, by minor-version compatibility."""
        row = self.frameworks.torch.tags[tag]
        return row.min_driver or self.min_driver(row.cuda)

    def tensorflow(self, text: str) -> TensorflowRelease:
        """TensorFlow release of "2.18", "2.18.1" or "2.16"; UsageError names the nearest.

        version: the release that is asked for, else the newest of its minor.
        """
        rows = self.frameworks.tensorflow.releases
        wanted = text.strip().removeprefix("v")
        valid = re.match(r"^\d+(\.\d+)*(\.post\d+)?$", wanted)
        fit = [v for v in rows if valid and (same(wanted, v) or minor(v) == minor(wanted))]
        if not fit or (wanted.count(".") == 0 and not same(wanted, fit[-1])):
            raise _unknown("tensorflow", "TensorFlow release", text, list(rows))
        row = max(fit, key=key)
        patches = rows[row].patches
        if wanted.count(".") >= 2 and patches and wanted not in patches:
            raise _unknown("tensorflow", "TensorFlow release", text, list(patches))
        version = wanted if wanted in patches else max(patches, key=key, default=row)
        extra: dict[str, AndCuda] = {
            v: row for v, row in self.frameworks.tensorflow.and_cuda.items() if minor(v) == minor(version)
        }
        chosen = extra.get(wanted) or (extra[max(extra, key=key)] if extra else None)
        data = rows[row].model_dump()
        return TensorflowRelease.model_validate({"version": version, **data, "extra": chosen and chosen.model_dump()})

    def tensorflow_codes(self, version: str) -> CodeList | None:
        """What the wheels of a TensorFlow release for x86_64 hold; None: not known."""
        lists = self.frameworks.tensorflow.arch_lists
        return next((row for row in lists if between(minor(version), row.first, row.last)), None)

    def tensorflow_support(self, version: str, gpu: Gpu, machine: str = "x86_64") -> Support:
        """Degree to which the wheels of a TensorFlow release for a processor run on a GPU."""
        row = self.tensorflow_codes(version)
        if row is None or machine not in self.frameworks.tensorflow.machines:
            return "none"
        return self.code_support(row, gpu)

    def jax(self, text: str) -> JaxRelease:
        """JAX release of "0.6.2", "0.6" (its newest) or "0.6.2+cuda12"; UsageError names the nearest."""
        rows = self.frameworks.jax.releases
        wanted = text.strip().removeprefix("v").split("+")[0]
        fit = [v for v in rows if v == wanted] or [
            v for v in rows if re.match(r"^\d+(\.\d+)*$", wanted) and same(wanted, v)
        ]
        if not fit:
            raise _unknown("jax", "JAX release", text, list(rows))
        version = max(fit, key=key)
        builds = [b for b in self.frameworks.jax.builds if between(version, b.first, b.last)]
        return JaxRelease(version=version, builds=tuple(builds), **rows[version].model_dump())

    @staticmethod
    def code_support(codes: CodeList, gpu: Gpu) -> Support:
        """Degree to which what a list of code names runs on a GPU."""
        return "none" if gpu.cc in codes.fails else _degree(gpu.cc, codes.cc, ptx=codes.ptx)

    # Ubuntu, repositories, known-bad versions -------------------------------------------------------------------------

    def ubuntu(self, text: str) -> UbuntuRelease:
        """Ubuntu release of "24.04" or "noble"; UsageError names the nearest ones."""
        wanted = text.strip().lower().removeprefix("ubuntu").strip()
        for version, release in self._ubuntu_releases.items():
            if wanted in (version, release.codename, release.yymm):
                return release
        for version, old in self.ubuntu_data.too_old.items():
            if wanted in (version, old.codename):
                raise UsageError(
                    "catalog.ubuntu_too_old",
                    f"Ubuntu {version} is too old: nothing here was made for it",
                    because=[
                        f"its standard support ended {old.standard_support_until}",
                        *([old.note] if old.note else []),
                    ],
                    hint=f"upgrade the host to Ubuntu {list(self._ubuntu_releases)[-2]}, or run its programs in a container",
                )
        codenames = [release.codename for release in self._ubuntu_releases.values()]
        raise _unknown("ubuntu", "Ubuntu release", text, [*self._ubuntu_releases, *codenames])

    @cached_property
    def _ubuntu_releases(self) -> dict[str, UbuntuRelease]:
        found = {}
        for version, row in self.ubuntu_data.releases.items():
            span = self.cuda_data.repository_ranges.get(version)
            found[version] = UbuntuRelease(
                **row.model_dump(),
                version=version,
                cuda_first=span.first if span else None,
                cuda_last=span.last if span else None,
            )
        return found

    def cuda_in_repository(self, cuda: str, *, ubuntu: str, channel: str = "cuda") -> bool:
        """True when NVIDIA's repository ("cuda") or the archive ("ubuntu") of a release holds a toolkit ("13.1", "13.1.1").

        (source: cuda.yml, repository_ranges and archive_ranges)
        """
        release, toolkit = self.ubuntu(ubuntu), self.cuda(minor(cuda))
        own = self.cuda_data.archive_ranges.get(release.version)
        span = self.cuda_data.repository_ranges.get(release.version) if channel == "cuda" else own
        if span is None or not between(toolkit.version, span.first, span.last):
            return False
        # Of NVIDIA's repository every release of a minor is taken to be there.
        return channel == "cuda" or own is None or cuda in (toolkit.version, own.release or cuda)

    def repository(self, name: str, *, ubuntu: str, arch: str = "amd64") -> Repository:
        """apt repository "cuda", "container_toolkit" or "ppa" for an Ubuntu release and dpkg architecture.

        fingerprint is None where no source names the key (cuda on 26.04). UsageError for combinations there
        are not.
        """
        rows = self.repositories.repositories
        if name not in rows:
            raise _unknown("repository", "repository", name, list(rows))
        row, release = rows[name], self.ubuntu(ubuntu)
        if arch not in row.machines:
            raise _unknown("architecture", f"architecture of repository {name}", arch, list(row.machines))
        if release.version not in row.ubuntu:
            raise _unknown("ubuntu", f"Ubuntu release in repository {name}", ubuntu, list(row.ubuntu))
        words = {
            "base_url": row.base_url,
            "yymm": release.yymm,
            "machine": row.machines[arch],
            "codename": release.codename,
        }
        url = row.url.format(**words)
        key_name = row.keys.get(release.version)
        found = self.repositories.keys[key_name] if key_name else None
        key_url = row.key_url
        if key_url is None and row.key_file and found and found.short:
            key_url = url + row.key_file.format(short=found.short)
        note = None
        if found is None:
            note = next(
                (k.note for k in self.repositories.unknown_keys if k.repository == f"ubuntu{release.yymm}"), None
            )
        return Repository(
            name=name,
            url=url,
            suite=row.suite.format(**words),
            components=" ".join(row.components),
            architecture=arch,
            fingerprint=found.fingerprint if found else None,
            key_url=key_url,
            note=note or row.note,
            certainty=row.certainty,
        )

    @property
    def archive_keys(self) -> list[str]:
        """Fingerprints of the keys that sign Ubuntu's archive."""
        return [self.repositories.keys[name].fingerprint for name in self.repositories.archive.keys]

    def is_archive(self, uri: str) -> bool:
        """True for an address of Ubuntu's archive on a server of Ubuntu's own, a country's or a cloud's too."""
        found = re.fullmatch(r"https?://([a-z0-9.-]+)/ubuntu(?:-ports)?/?", uri)
        hosts = self.repositories.archive.hosts
        return found is not None and any(("." + found[1]).endswith("." + host) for host in hosts)

    def known_bad(
        self,
        component: str,
        version: str,
        *,
        ubuntu: str | None = None,
        channel: Channel | None = None,
        kernel: str | None = None,
        ids: Iterable[str] = (),
        care: bool = False,
    ) -> list[KnownBad]:
        """Entries against a version ("driver", "580.119.02"): those to avoid; ``care`` adds those with a
        workaround.

        An entry that is about one Ubuntu release, channel or GPU (ids) counts only when that one is given; one about
        kernels counts also when no kernel is given.
        """
        release = self.ubuntu(ubuntu).version if ubuntu else None
        return [
            bad
            for bad in self.known_bad_rows
            if bad.component == component
            and (care or bad.severity == "avoid")
            and (
                bad.any_version
                or any(same(v, version) for v in bad.versions)
                or (bad.below is not None and key(version) < key(bad.below))
            )
            and (bad.ubuntu is None or release in bad.ubuntu)
            and (bad.channels is None or channel in bad.channels)
            and (bad.ids is None or not set(bad.ids).isdisjoint(ids))
            and (bad.kernel_from is None or kernel is None or key(kernel.split("-")[0]) >= key(bad.kernel_from))
        ]


def _sm_to_cc(sm: str) -> str:
    return f"{sm[:-1]}.{sm[-1]}"


def _degree(cc: str | None, compiled: Sequence[str], *, ptx: str | None) -> Support:
    """Support of a compute capability by compiled code and by PTX for ``ptx`` (None: no PTX in it)."""
    if cc is not None:
        if cc in compiled:
            return "native"
        wanted = key(cc)
        if any(key(c)[0] == wanted[0] and key(c) <= wanted for c in compiled):
            return "binary"
        if ptx is None or wanted < key(ptx):
            return "none"
    return "jit" if ptx is not None else "none"


def _unknown(what: str, title: str, value: str, known: Sequence[str], because: Iterable[str] = ()) -> UsageError:
    """UsageError for a value that the catalog does not have, with the nearest that it has."""
    numbers = key(value)
    nearest = difflib.get_close_matches(value.strip().lower(), known, n=3, cutoff=0.5)
    if numbers and not nearest:
        dotted = [k for k in known if k[:1].isdigit()]
        nearest = sorted(dotted, key=lambda k: distance(k, value))[:3]
    elif numbers:
        dotted = [k for k in known if k[:1].isdigit()]
        below = [k for k in dotted if key(k) < numbers]
        above = [k for k in dotted if key(k) > numbers]
        nearest = [*([max(below, key=key)] if below else []), *([min(above, key=key)] if above else [])] or nearest
    hint = "nearest known: " + ", ".join(nearest) if nearest else "known: " + ", ".join(known[-8:])
    return UsageError(
        f"catalog.unknown_{what}", f"there is no {title} {value!r} in the catalog", because=because, hint=hint
    )
