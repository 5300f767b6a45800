"""Where the lab keeps things: one cache folder, shared by all labs of this user, and one folder a running lab."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(
    os.environ.get("LAB_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-lab"
)
KEYS = CACHE / "keys"
REPOSITORIES = CACHE / "repositories"
LABS = CACHE / "labs"


def fingerprint_of(*names: str, extra: str = "") -> str:
    """Short hash of files and folders of the lab and of a text: what is built from them is kept under this name."""
    digest = hashlib.sha256(extra.encode())
    for name in sorted(names):
        path = HERE / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and not {"__pycache__", ".ruff_cache"} & set(file.parts):
                digest.update(str(file.relative_to(HERE)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]
