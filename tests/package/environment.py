"""An environment with ansible-core and the wheel and nothing else, made without a network: links to what is installed here."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
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
            # its files come from the wheel, not from this checkout
            continue
        dist = distribution(name)
        for top in {
            Path(file).parts[0] for file in dist.files or () if Path(file).parts[0] not in ("..", "__pycache__")
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
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def wheels(folder: Path, wheel: Path, *names: str) -> Path:
    """Fill a folder with wheels of the distributions named and of what they need, packed again from what is installed here."""
    folder.mkdir()
    (folder / wheel.name).write_bytes(wheel.read_bytes())
    for name in needed(*names):
        if name == OWN:
            continue
        dist = distribution(name)
        tags = re.findall(r"^Tag: (\S+)", dist.read_text("WHEEL") or "", re.M)
        if not tags:
            raise LookupError(f"{name} was not installed from a wheel")
        # Several are written as one: py2.py3-none-any.
        parts = zip(*(tag.split("-") for tag in tags), strict=True)
        tag = "-".join(".".join(dict.fromkeys(part)) for part in parts)
        file = folder / f"{re.sub(r'[-_.]+', '_', dist.name)}-{dist.version}-{tag}.whl"
        with zipfile.ZipFile(file, "w") as packed:
            for path in dist.files or ():
                # Programs are made by pip again; compiled files are another Python's.
                if ".." not in path.parts and path.suffix != ".pyc" and path.name != "INSTALLER":
                    packed.write(str(path.locate()), str(path))
    return folder
