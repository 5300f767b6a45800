"""Facts of made-up hosts, from one line each."""

from __future__ import annotations

from typing import Any

from provision.catalog import load_catalog
from provision.facts import Facts
from provision.facts.diagnostics import Diagnosed
from tests.unit.candidates import CANDIDATES, KERNELS

# PCI ids by the names that the cases use: typed here, so that a wrong catalog fails.
IDS = {
    "K80": "102d",
    "M40": "17fd",
    "P100": "15f8",
    "GTX 1080 Ti": "1b06",
    "V100": "1db6",
    "T4": "1eb8",
    "A100": "20b2",
    "RTX 3090": "2204",
    "RTX 4090": "2684",
    "H100": "2330",
    "H100 PCIe": "2331",
    "RTX 5090": "2b85",
    "B200": "2901",
    "GH200": "2342",
    "unknown": "ffff",
    "ancient": "0a65",
}


def host(
    gpus: list[str] | None = None,
    installed: str | None = None,
    nvswitches: int = 0,
    secure_boot: str | None = None,
    **facts: Any,
) -> Facts:
    """Return Facts: gpus by name, ``installed`` such as '580-server 580.126.20 open signed [unheld]'."""
    base: dict[str, Any] = {
        "host": {"os": {"id": "ubuntu", "version_id": "24.04", "codename": "noble"}},
        "gpus": [{"slot": f"0000:{i:02x}:00.0", "device": IDS[name]} for i, name in enumerate(gpus or [], 0x10)],
        "nvswitches": [f"0000:{i:02x}:00.0" for i in range(5, 5 + nvswitches)],
        "kernels": {
            "running": KERNELS[1],
            "next": KERNELS[1],
            "next_because": "the newest",
            "installed": [{"release": kernel, "headers": False} for kernel in KERNELS],
            "metapackages": ["linux-generic", "linux-image-generic"],
        },
        "packages": {"linux-generic": {"version": "6.8.0-48.48"}, "linux-image-generic": {"version": "6.8.0-48.48"}},
        "secure_boot": {
            None: {},
            "on": {"efi": True, "enabled": True, "mok_enrolled": False},
            "enrolled": {"efi": True, "enabled": True, "mok_enrolled": True},
            "unknown": {"efi": True, "enabled": True, "mok_enrolled": None},
        }[secure_boot],
    }
    if installed:
        _install(base, installed)
    for name in facts.pop("extra_packages", []):
        version = next(row["version"] for n, row in base["packages"].items() if n.startswith("libnvidia-compute"))
        base["packages"][name] = {"version": version, "status": "hi"}
    for gpu, driver in zip(base["gpus"], facts.pop("drivers", []), strict=False):
        gpu["driver"] = driver
    for key, value in facts.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            base[key] = {**base[key], **value}
        else:
            base[key] = value
    return (Diagnosed if "trouble" in base else Facts).model_validate(base)


def _install(base: dict[str, Any], text: str) -> None:
    series, version, flavour, build, *rest = text.split()
    status = "ii" if "unheld" in rest else "hi"
    suffix = "-open" if flavour == "open" else ""
    revision = "0ubuntu0.24.04.1"
    wanted = [
        f"nvidia-headless-no-dkms-{series}{suffix}",
        f"nvidia-utils-{series}",
        f"libnvidia-compute-{series}",
        f"nvidia-kernel-source-{series}{suffix}",
        f"nvidia-kernel-common-{series}",
        f"libnvidia-cfg1-{series}",
        f"nvidia-compute-utils-{series}",
        f"nvidia-firmware-{series}-{version}",
    ]
    if build == "dkms":
        wanted += [f"nvidia-headless-{series}{suffix}", f"nvidia-dkms-{series}{suffix}"]
        base["packages"]["linux-headers-generic"] = {"version": "6.8.0-48.48"}
        for kernel in base["kernels"]["installed"]:
            kernel["headers"] = True
    packages = {name: {"version": f"{version}-{revision}", "status": status} for name in wanted}
    if build == "signed":
        for kernel in KERNELS:
            packages[f"linux-modules-nvidia-{series}{suffix}-{kernel}"] = {"version": "6.8.0-48.48", "status": status}
        packages[f"linux-modules-nvidia-{series}{suffix}-generic"] = {"version": "6.8.0-48.48", "status": status}
        base["packages"]["linux-generic"]["status"] = status
        base["packages"]["linux-image-generic"]["status"] = status
    base["packages"].update(packages)
    place = "kernel/nvidia" if build == "signed" else "updates/dkms"
    base["module"] = {
        "loaded": {"version": version, "flavour": flavour},
        "on_disk": [
            {
                "kernel": kernel,
                "path": f"/lib/modules/{kernel}/{place}/nvidia.ko",
                "version": version,
                "flavour": flavour,
                "signed": build == "signed",
                "origin": "prebuilt" if build == "signed" else "dkms",
            }
            for kernel in KERNELS
        ],
    }
    base["libraries"] = [{"soname": "libcuda.so.1", "path": f"/usr/lib/libcuda.so.{version}", "version": version}]
    for gpu in base["gpus"]:
        gpu["driver"] = "nvidia"


__all__ = ["IDS", "CANDIDATES", "host", "load_catalog"]
