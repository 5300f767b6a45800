"""Module files of a driver version, as the signed packages ship them and as DKMS builds them."""

from __future__ import annotations

import hashlib

from . import kofile

CANONICAL = "Canonical Ltd. Kernel Module Signing"
_LICENSE = {"open": "Dual MIT/GPL", "proprietary": "NVIDIA"}
_MODULES = {
    "nvidia": "",
    "nvidia-modeset": "nvidia",
    "nvidia-drm": "nvidia-modeset",
    "nvidia-uvm": "nvidia",
    "nvidia-peermem": "nvidia",
}


def modules(version, flavour, kernel, signed_by=None):
    """Return {file name: bytes} of the five modules; flavour is ``open`` or ``proprietary``."""
    return {name + ".ko": module(name, version, flavour, kernel, signed_by) for name in _MODULES}


def module(name, version, flavour, kernel, signed_by=None):
    """Bytes of one module of the driver."""
    info = []
    if name == "nvidia":
        info += [("alias", "pci:v000010DEd*sv*sd*bc06sc80i00*"), ("alias", "pci:v000010DEd*sv*sd*bc03sc02i00*")]
        info += [("alias", "pci:v000010DEd*sv*sd*bc03sc00i00*"), ("alias", "char-major-195-*")]
        info += [("firmware", "nvidia/%s/gsp_tu10x.bin" % version), ("firmware", "nvidia/%s/gsp_ga10x.bin" % version)]
    license_ = _LICENSE[flavour]
    if name == "nvidia-uvm" and flavour == "proprietary":
        license_ = "Dual MIT/GPL"
    digest = hashlib.md5(("%s %s %s" % (name, version, flavour)).encode()).hexdigest().upper()  # noqa: S324 - an identity, no secret
    info += [
        ("version", version),
        ("supported", "external"),
        ("license", license_),
        ("srcversion", digest[:23]),
        ("depends", _MODULES[name].replace("-", "_") if name != "nvidia" else ""),
        ("retpoline", "Y"),
        ("name", name.replace("-", "_")),
        ("vermagic", "%s SMP preempt mod_unload modversions " % kernel),
    ]
    return kofile.build(info, signed_by, serial=int(digest[:8], 16))


def nouveau(kernel):
    """Bytes of nouveau.ko of a kernel, signed by the distribution."""
    alias = ("alias", "pci:v000010DEd*sv*sd*bc03sc*i*")
    return _of_kernel(kernel, "nouveau", "nVidia Riva/TNT/GeForce/Quadro/Tesla/Tegra K1+", alias)


def ib_umad(kernel):
    """Bytes of ib_umad.ko of a kernel; without the modules that the real one needs."""
    return _of_kernel(kernel, "ib_umad", "InfiniBand userspace MAD packet access")


def _of_kernel(kernel, name, description, *more):
    info = [
        ("license", "GPL and additional rights"),
        ("description", description),
        *more,
        ("depends", ""),
        ("intree", "Y"),
        ("name", name),
        ("vermagic", "%s SMP preempt mod_unload modversions " % kernel),
    ]
    return kofile.build(info, CANONICAL, serial=0x5F2A)
