# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Package names of the NVIDIA driver: the one place that knows the naming schemes.

Three schemes exist (source: canonical/nvidia-graphics-drivers debian/control, NVIDIA's driver
installation guide 580 to 620; as of 2026-11):

* Ubuntu archive and the graphics-drivers PPA: every package carries the branch, ``-server`` for the
  data-center series and ``-open`` for the flavour: ``nvidia-headless-no-dkms-580-server-open``.
* NVIDIA's repository before 590: the branch, never ``-server``: ``nvidia-dkms-580-open``; the
  metapackages are ``nvidia-open-580`` and ``cuda-drivers-580``.
* NVIDIA's repository from 590 on: no branch in the name (``nvidia-dkms-open``, ``nvidia-open``);
  what keeps a host on its branch is ``nvidia-driver-pinning-595``.

Runs on the controller and, standard library only, on hosts with any Python from 3.8.
"""

from __future__ import annotations

import functools
import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re

# First branch without branch suffixes in NVIDIA's repository.
UNSUFFIXED_FROM = 590

_BASES = (
    "nvidia-driver|nvidia-headless-no-dkms|nvidia-headless|nvidia-dkms|nvidia-kernel-common|"
    "nvidia-kernel-source|nvidia-firmware|nvidia-utils|nvidia-compute-utils|nvidia-fabricmanager-dev|"
    "nvidia-fabricmanager|nvidia-imex|nvidia-open|cuda-drivers-fabricmanager|cuda-drivers|"
    "xserver-xorg-video-nvidia|libnvsdm|libnvidia-[a-z]+[0-9]?"
)
# base[-branch[-server]][-open][-exact version]
_DRIVER = lazy_re.compile(
    r"^(?P<base>" + _BASES + r")"
    r"(?:-(?P<branch>[0-9]{3}))?(?P<server>-server)?(?P<open>-open)?(?:-(?P<exact>[0-9]{3}\.[0-9.]+))?$"
)
# linux-modules-nvidia-580-server-open-generic-hwe-24.04, linux-objects-nvidia-580-6.8.0-45-generic, …
_PREBUILT = lazy_re.compile(
    r"^linux-(?P<kind>modules|objects)-nvidia-(?P<branch>[0-9]{3})(?P<server>-server)?(?P<open>-open)?-(?P<kernel>.+)$"
)
_SIGNATURES = lazy_re.compile(r"^linux-signatures-nvidia-(?P<kernel>.+)$")

# Shipped beside the driver, with version numbers of their own: held with it, never compared with it.
COMPANIONS = frozenset(
    {"libxnvctrl0", "nvidia-modprobe", "nvidia-persistenced", "nvidia-prime", "nvidia-settings", "nvlsm"}
)
# Bases that only a full driver with its X server brings.
DESKTOP = frozenset({"nvidia-driver", "xserver-xorg-video-nvidia", "nvidia-open", "cuda-drivers"})
# A branch with its series, as the archive writes it.
SERIES = lazy_re.compile(r"^[0-9]{3}(-server)?$")
# What an update must leave alone: regular expressions, matched from the start of a name, NVIDIA's names only.
UNATTENDED_PATTERNS = (
    "nvidia-",
    "libnvidia-",
    "cuda-",
    "libcudnn",
    "libnccl",
    "libnvsdm",
    "libxnvctrl",
    "nvlsm",
    "linux-modules-nvidia-",
    "linux-objects-nvidia-",
    "linux-signatures-nvidia-",
    "xserver-xorg-video-nvidia",
)
# What both the archive and NVIDIA's repository ship under the same names: globs for a pin that keeps them apart.
PIN_PATTERNS = (
    "nvidia-driver*",
    "nvidia-headless*",
    "nvidia-dkms*",
    "nvidia-kernel-*",
    "nvidia-firmware*",
    "nvidia-utils*",
    "nvidia-compute-utils*",
    "nvidia-open*",
    "nvidia-fabricmanager*",
    "nvidia-imex*",
    "nvidia-persistenced",
    "nvidia-modprobe",
    "nvidia-settings",
    "cuda-drivers*",
    "libnvidia-cfg1*",
    "libnvidia-common*",
    "libnvidia-compute*",
    "libnvidia-decode*",
    "libnvidia-encode*",
    "libnvidia-extra*",
    "libnvidia-fbc1*",
    "libnvidia-gl*",
    "libnvidia-gpucomp*",
    "libnvidia-nscq*",
    "libnvsdm*",
    "libxnvctrl*",
    "xserver-xorg-video-nvidia*",
    "linux-modules-nvidia-*",
    "linux-objects-nvidia-*",
)
# The same prefix, another product: never touched, never held, never removed by the driver role.
_FOREIGN = lazy_re.compile(
    r"^(libnvidia-container|nvidia-container|nvidia-docker|nvidia-cuda-|nvidia-fs|nvidia-gds|"
    r"linux-(image|headers|modules|tools|cloud-tools|buildinfo)-[0-9])"
)


class DriverPackage(object):
    """What a driver package's name says: base, branch (str or None), server, open (bool), kernel (str or None)."""

    __slots__ = ("base", "branch", "exact", "kernel", "name", "open", "server")

    def __init__(self, name, base, branch=None, server=False, open_=False, kernel=None, exact=None):
        self.name, self.base, self.branch, self.server = name, base, branch, server
        self.open, self.kernel, self.exact = open_, kernel, exact

    @property
    def series(self):
        """Branch with its series, as the archive writes it: ``580`` or ``580-server``; None without a branch."""
        return None if self.branch is None else self.branch + ("-server" if self.server else "")


@functools.lru_cache(maxsize=4096)
def parse(name):
    """Return the DriverPackage that a package name means, or None when it is not a driver package.

    A foreign architecture's package is written ``libnvidia-gl-580:i386`` and means the same.
    """
    if _FOREIGN.match(name):
        return None
    full, name = name, name.split(":")[0]
    if name in COMPANIONS or name.startswith("nvidia-driver-pinning-"):
        return DriverPackage(full, name)
    # libnvidia-egl-wayland1, -gbm1, -xcb1, …: NVIDIA's EGL platforms, each with a version of its own
    if name.startswith("libnvidia-egl-"):
        return DriverPackage(full, name)
    match = _PREBUILT.match(name)
    if match:
        return DriverPackage(
            full,
            "linux-%s-nvidia" % match.group("kind"),
            match.group("branch"),
            bool(match.group("server")),
            bool(match.group("open")),
            match.group("kernel"),
        )
    match = _SIGNATURES.match(name)
    if match:
        return DriverPackage(full, "linux-signatures-nvidia", kernel=match.group("kernel"))
    match = _DRIVER.match(name)
    if not match:
        return None
    group = match.groupdict()
    return DriverPackage(
        full,
        group["base"],
        group.get("branch"),
        bool(group.get("server")),
        bool(group.get("open")),
        exact=group.get("exact"),
    )


def is_driver_package(name):
    """True for every package that belongs to the driver: what is held, and what a purge may remove."""
    return parse(name) is not None


def is_version_locked(name):
    """True when the package must carry the driver's own upstream version (not companions, not kernel-versioned ones).

    Not firmware that carries its version in its name either: that of the driver before stays beside it after an update,
    until somebody asks for autoremove.
    """
    package = parse(name)
    return (
        bool(package)
        and package.exact is None
        and package.base not in COMPANIONS
        and not package.base.startswith(("linux-", "nvidia-driver-pinning-", "libnvidia-egl-"))
    )


def upstream(version):
    """Upstream part of a Debian version: ``1:580.126.20-0ubuntu1`` gives ``580.126.20``."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def branch(version):
    """Branch of a driver version: ``580.126.20-0ubuntu1`` and ``580.126.20`` give ``580``."""
    return upstream(version).split(".", 1)[0]


def kernel_flavour(release):
    """Flavour of a kernel release: ``6.8.0-45-generic`` gives ``generic``, ``6.8.0-1012-aws`` ``aws``; None without one."""
    match = re.match(r"^[0-9][0-9.]*-[0-9.]+-([a-z][a-z0-9.+-]*)$", release)
    return match.group(1) if match else None


def prebuilt_modules(series, flavour, kernel):
    """Name of the signed module package; kernel is a metapackage flavour (``generic-hwe-24.04``) or a release."""
    return "linux-modules-nvidia-%s%s-%s" % (series, _open(flavour), kernel)


def top_packages(channel, series, flavour, build, variant):
    """Packages to ask apt for, without the module packages of single kernels.

    channel: ``ubuntu``, ``ppa`` or ``cuda``; series: ``580`` or ``580-server``; flavour: ``open`` or
    ``proprietary``; build: ``signed`` or ``dkms``; variant: ``headless`` or ``desktop``.
    """
    number = int(series.split("-")[0])
    if channel == "cuda" and number >= UNSUFFIXED_FROM:
        # The package that carries nvidia-smi has no documented name of its own here: the metapackage brings it.
        return ["nvidia-open" if flavour == "open" else "cuda-drivers"]
    if variant == "desktop":
        if channel == "cuda":
            return ["%s-%s" % ("nvidia-open" if flavour == "open" else "cuda-drivers", series)]
        return ["nvidia-driver-%s%s" % (series, _open(flavour))]
    headless = "nvidia-headless-no-dkms" if build == "signed" else "nvidia-headless"
    return ["%s-%s%s" % (headless, series, _open(flavour)), "nvidia-utils-%s" % series]


def module_package(channel, series, flavour):
    """The DKMS package whose version is the driver's version in that channel and series."""
    if channel == "cuda" and int(series.split("-")[0]) >= UNSUFFIXED_FROM:
        return "nvidia-dkms" + _open(flavour)
    return "nvidia-dkms-%s%s" % (series, _open(flavour))


def has_variants(channel, series):
    """False where one metapackage is all there is to ask for: NVIDIA's repository from 590 on."""
    return not (channel == "cuda" and int(series.split("-")[0]) >= UNSUFFIXED_FROM)


# One fabric, one version: the archive writes the branch behind them without -server.
FABRIC = frozenset({"nvidia-fabricmanager", "nvidia-fabricmanager-dev", "libnvidia-nscq", "nvidia-imex", "libnvsdm"})


def is_carried_along(package):
    """True for libraries and tools of the driver, which go along when it moves; its modules and metapackages do not."""
    return (
        is_version_locked(package.name)
        and package.exact is None
        and (
            package.base.startswith("lib")
            or package.base in FABRIC
            or package.base in ("nvidia-utils", "xserver-xorg-video-nvidia")
        )
    )


def in_series(base, channel, series):
    """Names of a library or tool of the driver in a channel and series, likeliest first."""
    number = series.split("-")[0]
    if base in FABRIC:
        return ["%s-%s" % (base, number), base] if channel == "cuda" else ["%s-%s" % (base, number)]
    return ["%s-%s" % (base, series)] if has_variants(channel, series) else [base]


def pinning_package(channel, series):
    """Package that keeps a host of NVIDIA's repository on its branch; None where the name carries the branch."""
    if channel == "cuda" and int(series) >= UNSUFFIXED_FROM:
        return "nvidia-driver-pinning-%s" % series
    return None


def fabric_packages(channel, number):
    """Alternatives for fabric manager and its query library, likeliest name first (source: both names are in use)."""
    suffixed = ["nvidia-fabricmanager-%s" % number, "libnvidia-nscq-%s" % number]
    plain = ["nvidia-fabricmanager", "libnvidia-nscq"]
    if channel != "cuda":
        return [suffixed]
    return [plain, suffixed] if int(number) >= UNSUFFIXED_FROM else [suffixed, plain]


def _open(flavour):
    return "-open" if flavour == "open" else ""
