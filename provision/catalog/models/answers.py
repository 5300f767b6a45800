"""What the catalog answers: rows of its files, put together."""

from __future__ import annotations

from datetime import date
from typing import Literal

from provision.catalog.models.base import UNSURE, Certainty, Channel, Data, Fabric, Flavour, Machine, Segment, last_day
from provision.catalog.models.cuda import MinorRow
from provision.catalog.models.drivers import BranchRow
from provision.catalog.models.frameworks import AndCuda, JaxBuild, JaxRow, TensorflowRow, TorchRow
from provision.catalog.models.ubuntu import UbuntuRow


class Gpu(Data):
    """A GPU, or a family of boards that get the same answers.

    ids: PCI device ids (one for a device, several for a family). cc: compute capability ("9.0"), None where
    not known. architecture: None only for an id that the catalog does not know. first_branch None: older than
    the catalog's branches. listed_from: the branch from which on NVIDIA's table lists it; None: it was never seen
    there, so that first_branch was worked out. without: later branches that do not know it. last_branch None: still
    driven. modules: flavours that drive it at all, preferred first. fabric: "depends" for a family of which only some
    boards sit on NVSwitch. mig: None = not known; mig_driver: the oldest driver with MIG for it, None
    where not read. turing_or_newer: by the id where nothing else is known.
    """

    ids: tuple[str, ...]
    name: str
    architecture: str | None = None
    cc: str | None = None
    segment: Segment = "unknown"
    mig: bool | None = False
    mig_driver: str | None = None
    fabric: Fabric = "unknown"
    first_branch: int | None = None
    first_branch_certainty: Certainty = "sourced"
    listed_from: int | None = None
    without: tuple[int, ...] = ()
    last_branch: int | None = None
    modules: tuple[Flavour, ...] = ()
    modules_certainty: Certainty = "sourced"
    turing_or_newer: bool = True
    # the only processor that it sits beside, where that is so
    machine: Machine | None = None
    certainty: Certainty = "sourced"
    note: str | None = None

    @property
    def id(self) -> str:
        """First device id."""
        return self.ids[0]

    def why_not(self, branch: int) -> str | None:
        """Why a driver branch does not drive it, as the end of a sentence; None where nothing is known against it."""
        if self.last_branch is not None and branch > self.last_branch:
            return f"the last branch that drives it is {self.last_branch}"
        if self.first_branch is not None and branch < self.first_branch:
            return f"the first branch that drives it is {self.first_branch}"
        return f"branch {branch} never got it, branches before and after it did" if branch in self.without else None

    def is_sure_of(self, branch: int | None) -> bool:
        """True when it was read, not worked out, that a branch drives it or is older than it; None: that it has a first one."""
        if self.first_branch is None or self.first_branch_certainty not in UNSURE:
            return True
        return self.listed_from is not None and (branch is None or branch >= self.listed_from)

    @property
    def branches(self) -> str:
        """The branches that drive it, as text."""
        if self.first_branch is None:
            span = f"branches up to {self.last_branch}" if self.last_branch else "every branch"
        elif self.last_branch is None:
            span = f"branches from {self.first_branch} on"
        else:
            span = f"branches {self.first_branch} to {self.last_branch}"
        return span + (f" without {', '.join(map(str, self.without))}" if self.without else "")


class GpuMatch(Data):
    """What a person's text means. Exactly one of gpu, candidates (ambiguous) and nearest (unknown) is
    filled."""

    text: str
    gpu: Gpu | None = None
    candidates: tuple[Gpu, ...] = ()
    nearest: tuple[str, ...] = ()


Preference = Literal["long_term", "newest"]


class Branch(BranchRow):
    """A driver branch (``BranchRow`` with its number)."""

    number: int

    @property
    def is_long_term_or_production(self) -> bool:
        return self.type in ("LTSB", "PB")

    def is_ended(self, on: date) -> bool:
        """True when support is over on that day. A day or month without more counts to its end."""
        return on > last_day(self.eol) if self.eol else bool(self.ended)

    def preference(self, prefer: Preference = "long_term") -> tuple[date, int]:
        """What orders branches, the best last: the end of support, then the number; of ``newest`` the number alone."""
        ends = last_day(self.eol) if self.eol and prefer == "long_term" else date.min
        return ends, self.number


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


class LibraryPair(Data):
    """cuDNN or NCCL for a CUDA (of NCCL that of its +cuda suffix): version and apt pins, runtime and headers, exact."""

    version: str
    cuda: str
    pins: tuple[str, ...]
    certainty: Certainty = "sourced"
    because: str


class TorchRelease(TorchRow):
    version: str


class TensorflowRelease(TensorflowRow):
    version: str
    extra: AndCuda | None = None


class JaxRelease(JaxRow):
    version: str
    # its CUDA plugins, oldest CUDA first
    builds: tuple[JaxBuild, ...]


class UbuntuRelease(UbuntuRow):
    version: str
    cuda_first: str | None
    # None: the current one
    cuda_last: str | None

    @property
    def yymm(self) -> str:
        return self.version.replace(".", "")


class KnownSeries(Data):
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
    note: str | None = None
    certainty: Certainty = "sourced"
