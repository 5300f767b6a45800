"""An environment with ansible-core and the wheel and nothing else, made without a network: links to what is installed here."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

OWN = "gpu-provision"


def needed(*names: str) -> list[str]:
    """Names of distributions and of all that they depend on, here, without extras."""
    found: dict[str, None] = {}
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        found[name] = None
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(requirement.name)
    return list(found)


def make(folder: Path, wheel: Path, *names: str) -> Path:
    """Fill a folder with links to the distributions named, with what they need, and to an unpacked wheel; return it."""
    folder.mkdir()
    for name in needed(*names):
        if name == OWN:
            continue  # its files come from the wheel, not from this checkout
        dist = distribution(name)
        for top in {
            Path(file).parts[0]
            for file in dist.files or ()
            if Path(file).parts[0] not in ("..", "__pycache__")
        }:
            source = Path(str(dist.locate_file(top)))
            if source.exists() and not (folder / top).exists():
                (folder / top).symlink_to(source)
    for entry in wheel.iterdir():
        (folder / entry.name).symlink_to(entry)
    return folder


def python(
    packages: Path, home: Path, *words: object, cwd: Path, timeout: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run Python with these packages alone: no site-packages, no checkout, no variable of this run's."""
    env = {"PYTHONPATH": str(packages), "HOME": str(home), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    argv = [sys.executable, "-S", *map(str, words)]
    return subprocess.run(
        argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False
    )
