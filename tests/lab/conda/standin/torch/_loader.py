"""Find a library as the loader would and map it: LD_LIBRARY_PATH, the wheel's own folder, then the system."""

from __future__ import annotations

import glob
import mmap
import os
import re
import sys

from ._build import BUILD

_HELD = []
# name: (path, version in the file or None)
LOADED = {}


def folders(name):
    """Folders in the loader's order (ld.so(8); the wheels and conda's builds have a RUNPATH)."""
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = [part for part in os.environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    found += [os.path.join(here, "nvidia", name, "lib"), os.path.join(sys.prefix, "lib")]
    return found + ["/usr/local/cuda/lib64", "/usr/lib/x86_64-linux-gnu"]


def load(name, version):
    """Map the library of that name and SONAME, and say where it lies and what version is in it."""
    major = (version or "").split(".")[0]
    for folder in folders(name):
        for path in sorted(glob.glob(os.path.join(folder, "lib%s.so.%s*" % (name, major)))):
            if os.path.getsize(path):
                with open(path, "rb") as file:
                    _HELD.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
                    words = re.search(rb"([\d.]+)\s*$", _HELD[-1][:200])
                LOADED[name] = path, words.group(1).decode() if words else None
                return
    LOADED[name] = None, version


def load_all():
    """Load what this build is linked to, as ``import torch`` does."""
    if BUILD["cuda"]:
        for name in ("cudnn", "nccl"):
            if BUILD[name]:
                load(name, BUILD[name])
