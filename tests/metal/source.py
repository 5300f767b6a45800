"""Source of the stand-in driver: what a package of its source holds, and what the disk's recipe compiles."""

from __future__ import annotations

from pathlib import Path

STANDIN = Path(__file__).parent / "standin"
DEPENDENTS = ("modeset", "drm", "uvm", "peermem")


def driver(version: str) -> dict[str, str]:
    """File name -> text of the five modules at one version."""
    files = {name: (STANDIN / name).read_text() for name in ("Kbuild", "nvidia.c", "dependent.c")}
    files["version.mk"] = f"NV_VERSION := {version}\n"
    return files | {f"{name}.c": '#include "dependent.c"\n' for name in DEPENDENTS}


def nouveau() -> dict[str, str]:
    """File name -> text of the stand-in for the kernel's own driver."""
    return {"Kbuild": "obj-m := nouveau.o\n", "nouveau.c": (STANDIN / "nouveau.c").read_text()}
