# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Package names of CUDA, cuDNN and NCCL: the one place that knows how they are called.

Packages of the driver are the driver's (see names): ``cuda-drivers`` is none of CUDA's here. Sources: the control files
of CUDA 13.0, cuDNN 9.14 and NCCL 2.28 as a real host had them (2026-11); Dockerfiles of NVIDIA's CUDA containers 11.4
to 13.0 (2025-08) for the smaller sets; apt listings of 12.4 in public files; Ubuntu's own names from its multiverse.

Runs on the controller and, standard library only, on hosts with any Python from 3.8.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names

PROFILES = ("runtime", "compiler", "full")
# Regular expressions, from start to end, of the names that apt is asked for.
PATTERNS = (
    r"cuda(-(?!drivers|repo-).*)?",
    r"nsight-(compute|systems)(-.*)?",
    r"gds-tools-.*",
    r"libnccl(2|-dev)",
    r"(lib)?cudnn[0-9]*(-.*)?",
    r"lib(cublas|cudla|cufft|cufile|cuobjclient|curand|cusolver|cusparse|npp|nvfatbin|nvjitlink|nvjpeg|nvptxcompiler"
    r"|nvvm)(-.*)?-[0-9]+-[0-9]+",
)

_MINOR = r"(?P<major>[0-9]+)-(?P<minor>[0-9]+)"
_LIBRARIES = (
    r"lib(?:cublas|cudla|cufft|cufile|cuobjclient|curand|cusolver|cusparse|npp|nvfatbin|nvjitlink|nvjpeg|nvptxcompiler"
    r"|nvvm)(?:-dev|-samples|-static)?"
)
# These depend on cuda-drivers or nvidia-open, whatever driver the host has (scenario F8). Whether those of 13.4 and newer
# still do was not verified: they are treated as if they did.
_WITH_DRIVER = re.compile(
    r"^(?P<base>cuda|cuda-runtime|cuda-demo-suite)(?:-(?P<major>[0-9]+)(?:-(?P<minor>[0-9]+))?)?$"
)
_COMPAT = re.compile(r"^(?P<base>cuda-compat)(?:-(?P<major>[0-9]+)(?:-(?P<minor>[0-9]+))?)?$")
_CONFIG = re.compile(r"^cuda-toolkit(?:-(?P<major>[0-9]+))?(?:-(?P<minor>[0-9]+))?-config-common$")
_COMPONENT = re.compile(r"^(?P<base>cuda-[a-z0-9-]+?|gds-tools|" + _LIBRARIES + r")-" + _MINOR + r"$")
# Metapackages that lead to the newest toolkit there is: cuda-toolkit, cuda-toolkit-12.
_FLOATING = re.compile(r"^(?P<base>cuda-toolkit|cuda-nvcc)(?:-(?P<major>[0-9]+))?$")
_NSIGHT = re.compile(r"^(?P<base>nsight-compute|nsight-systems)(?:-[0-9.]+)?$")
_CUDNN = re.compile(
    r"^(?P<base>(?:lib)?cudnn(?P<own>[0-9]{1,9})?(?:-(?:dev|headers|static|samples|jit|jit-dev|jit-static))?)"
    r"(?:-cuda-(?P<major>[0-9]+)(?:-(?P<minor>[0-9]+))?)?$"
)
_NCCL = frozenset(("libnccl2", "libnccl-dev"))
# Ubuntu's own CUDA: nvidia-cuda-toolkit with what it brings, and the libraries by their soname (libcudart12, libnppc12).
_DISTRIBUTION = re.compile(
    r"^(?:nvidia-cuda-(?:toolkit|dev|gdb|toolkit-doc|toolkit-gcc|samples|doc)|nvidia-(?:visual-)?profiler|nvidia-cudnn|"
    r"nvidia-nsight|libcupti-(?:dev|doc)|gds-tools|libcufile(?:-dev|0|-rdma1)|libnvtoolsext1|"
    r"lib(?:cuda(?:rt|devrt)|cublas|cublaslt|cufft|cufftw|curand|cusolver|cusolvermg|cusparse|npp[a-z]*|nvblas|nvfatbin|"
    r"nvgraph|nvjitlink|nvjpeg|nvrtc|nvrtc-builtins|nvvm|cupti)[0-9][0-9.]*|lib(?:cu|acc)inj64-[0-9][0-9.]*)$"
)
# What the Ubuntu archive (from 26.04 on) and NVIDIA's repository ship under the same names: globs for a pin.
PIN_PATTERNS = (
    "cuda-toolkit",
    "cuda-toolkit-*",
    "cuda-*-[0-9]*-[0-9]*",
    "gds-tools-[0-9]*-[0-9]*",
    "nsight-compute*",
    "nsight-systems*",
    *(
        "lib%s*-[0-9]*-[0-9]*" % stem
        for stem in (
            *("cublas", "cudla", "cufft", "cufile", "cuobjclient", "curand", "cusolver", "cusparse", "npp"),
            *("nvfatbin", "nvjitlink", "nvjpeg", "nvptxcompiler", "nvvm"),
        )
    ),
)
_OF_UBUNTU = re.compile(r"-[0-9]+ubuntu[0-9]")
_SUFFIX = re.compile(r"\+cuda([0-9]+\.[0-9]+)")


class CudaPackage(object):
    """What a name says. kind: ``toolkit`` (a part of one, or what its parts share), ``cudnn``, ``nccl``, ``compat``
    (forward compatibility), ``meta_with_driver`` (pulls a driver) or ``distribution`` (Ubuntu's own).

    base: the name without version. version: ``12.4`` or None. major: ``12`` or None. cudnn: cuDNN's own major (``9``)
    or None. floating: a metapackage that leads to the newest there is.
    """

    __slots__ = ("base", "cudnn", "floating", "kind", "major", "name", "version")

    def __init__(self, name, kind, base, major=None, minor=None, cudnn=None, floating=False):
        self.name, self.kind, self.base, self.major, self.cudnn = name, kind, base, major, cudnn
        self.version = "%s.%s" % (major, minor) if major is not None and minor is not None else None
        self.floating = floating


def parse(name, version=None):
    """Return the CudaPackage that a name means, or None: another product's, or the driver's.

    version: the Debian version where it is known. It tells NVIDIA's libnccl2 and libcudnn8, which carry the CUDA that
    they were built with (``2.21.5-1+cuda12.4``), from packages of the same name that come from elsewhere.
    """
    full, name = name, name.split(":")[0]
    if driver_names.is_driver_package(name):
        return None
    match = _WITH_DRIVER.match(name)
    if match:
        return _package(full, "meta_with_driver", match, floating=match.group("minor") is None)
    match = _COMPAT.match(name)
    if match:
        return _package(full, "compat", match)
    match = _CONFIG.match(name)
    if match:
        return CudaPackage(full, "toolkit", "cuda-toolkit-config-common", match.group("major"), match.group("minor"))
    match = _CUDNN.match(name)
    if match:
        foreign = version is not None and match.group("own") in ("7", "8") and suffix(version) is None
        # cudnn, cudnn9 and cudnn9-cuda-12 lead to the newest cuDNN of their kind.
        floating = not name.startswith("lib")
        kind = "distribution" if foreign else "cudnn"
        return CudaPackage(
            full, kind, match.group("base"), match.group("major"), match.group("minor"), match.group("own"), floating
        )
    if name in _NCCL:
        foreign = version is not None and suffix(version) is None
        return CudaPackage(full, "distribution" if foreign else "nccl", name)
    match = _COMPONENT.match(name)
    if match:
        return _package(full, "toolkit", match)
    match = _FLOATING.match(name)
    if match:
        return CudaPackage(full, "toolkit", match.group("base"), match.group("major"), floating=True)
    match = _NSIGHT.match(name)
    if match:
        return CudaPackage(full, "toolkit", match.group("base"), floating=name == match.group("base"))
    if _DISTRIBUTION.match(name):
        return CudaPackage(full, "distribution", name)
    return None


def _package(name, kind, match, floating=False):
    return CudaPackage(name, kind, match.group("base"), match.group("major"), match.group("minor"), floating=floating)


def is_cuda_package(name, version=None):
    """True for what a hold of the role cuda_toolkit covers: NVIDIA's packages of CUDA, cuDNN and NCCL, not Ubuntu's own."""
    package = parse(name, version)
    return package is not None and package.kind != "distribution"


def top_packages(version, profile="full"):
    """Packages to ask apt for, for the toolkit ``12.4``; never one that pulls a driver.

    ``full``: everything with the profilers. ``runtime`` and ``compiler``: what NVIDIA's own runtime and devel images
    name, as far as one does not bring another (source: their Dockerfiles, 11.4 to 13.0).
    """
    if profile not in PROFILES:
        raise ValueError("not a profile: %r" % profile)
    tail = version.replace(".", "-")
    bases = ["cuda-toolkit"]
    if profile != "full":
        bases = ["cuda-libraries", "cuda-nvtx"]
    if profile == "compiler":
        bases += ["cuda-minimal-build", "cuda-libraries-dev", "cuda-command-line-tools", "cuda-nvml-dev"]
    return ["%s-%s" % (base, tail) for base in bases]


def release_package(version, profile="full"):
    """The package whose Debian version is the release of the toolkit: ``cuda-toolkit-12-4`` is at ``12.4.1-1``."""
    return top_packages(version, profile)[0]


def release(version):
    """Release of a metapackage's Debian version: ``12.4.1-1`` gives ``12.4.1``."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def channel(version):
    """``ubuntu`` or ``cuda`` (NVIDIA's repository): which of the two has a part of a toolkit at a Debian version.

    13.1.80-0ubuntu2 is the archive's, 13.1.80-1 NVIDIA's (source: hosts of Ubuntu 26.04 in public files, 2026-07 to
    2026-09). Not for cuda-compat, which has -0ubuntu1 in NVIDIA's repository as well.
    """
    return "ubuntu" if _OF_UBUNTU.search(version) else "cuda"


def suffix(version):
    """CUDA that a library was built with: ``2.21.5-1+cuda12.4`` gives ``12.4``; None without a suffix."""
    match = _SUFFIX.search(version)
    return match.group(1) if match else None


def upstream(version):
    """The library's own version: ``2.21.5-1+cuda12.4`` and ``2.21.5-1`` give ``2.21.5``."""
    return driver_names.upstream(version.split("+cuda")[0])


def cudnn_packages(own, cuda_major):
    """(library, headers) of cuDNN ``8`` or ``9`` for a CUDA major. Before 9 one name serves every CUDA: see suffix."""
    if int(own) < 9:
        return "libcudnn%s" % own, "libcudnn%s-dev" % own
    return "libcudnn%s-cuda-%s" % (own, cuda_major), "libcudnn%s-dev-cuda-%s" % (own, cuda_major)


def nccl_packages():
    """(library, headers) of NCCL: one library serves one CUDA major, the headers want exactly its version."""
    return "libnccl2", "libnccl-dev"


def can_stand_beside(one, other):
    """False where packaging keeps two cuDNN packages apart.

    Libraries of two cuDNN majors stand side by side (other sonames); cuDNN 9 for two CUDA majors does not: both are
    ``libcudnn9``, which they provide and conflict with (control file of libcudnn9-cuda-13 9.14.0.64; that of -cuda-12 was
    not seen, its file names are the same). Headers: libcudnn9-headers-cuda-13 conflicts with libcudnn8-dev there; below
    cuDNN 9.10 both went through update-alternatives and stood side by side (knowledge). This answers for the strict ones;
    what a version really says is in its Conflicts field.
    """
    left, right = parse(one), parse(other)
    if left is None or right is None or left.kind != "cudnn" or right.kind != "cudnn":
        return True
    if left.cudnn == right.cudnn:
        return left.major == right.major or None in (left.major, right.major)
    return not (_headers(left) and _headers(right))


def _headers(package):
    return package.base.endswith(("-dev", "-headers"))
