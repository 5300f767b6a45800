"""Build the lab's installer: one .sh with a payload, by the documented command line of Miniconda's and Miniforge's."""

from __future__ import annotations

import gzip
import hashlib
import random
from dataclasses import dataclass
from functools import cache

from tests.lab.conda import packages
from tests.lab.conda.packages import STANDIN

_CHANNEL = {"miniconda": "https://repo.anaconda.com/pkgs/main", "miniforge": "https://conda.anaconda.org/conda-forge"}


@dataclass(frozen=True)
class Installer:
    """One installer. version as in its file name, ``26.5.3-1``; filler_kib: bytes that compress badly, to fill disks."""

    distribution: str = "miniconda"
    version: str = "26.5.3-1"
    python: str = "3.13"
    filler_kib: int = 0
    # what the header says it needs; None: about what it needs
    kib: int | None = None
    checks_space: bool = True
    glibc: str = "2.28"

    @property
    def file(self) -> str:
        if self.distribution == "miniforge":
            return f"Miniforge3-{self.version}-Linux-x86_64.sh"
        return f"Miniconda3-py{self.python.replace('.', '')}_{self.version}-Linux-x86_64.sh"

    def content(self) -> bytes:
        """The whole file; equal settings give equal bytes."""
        return _content(self)

    def make(self) -> bytes:
        payload = gzip.compress(packages.tar(self._payload()), 1, mtime=0)
        miniforge = self.distribution == "miniforge"
        words = {
            "NAME": "Miniforge3" if miniforge else "Miniconda3",
            "FOLDER": self.distribution + "3",
            "VERSION": self.version if miniforge else f"py{self.python.replace('.', '')}_{self.version}",
            "GLIBC": self.glibc,
            "KIB": str(self.kib if self.kib is not None else 24_000 + self.filler_kib),
            "CHECKS_SPACE": "1" if self.checks_space else "0",
            "CHANNEL": "conda-forge" if miniforge else "defaults",
            "MD5": hashlib.md5(payload, usedforsecurity=False).hexdigest(),
        }
        header = (STANDIN / "header.sh").read_text(encoding="utf-8")
        for key, value in words.items():
            header = header.replace(f"@{key}@", value)
        return header.encode() + payload

    def _payload(self) -> dict[str, bytes]:
        conda = self.version.rsplit("-", 1)[0]
        build = "py" + self.python.replace(".", "")
        specs: list[tuple[str, dict[str, bytes]]] = [
            (f"conda={conda}={build}h06a4308_0", packages.conda_files()),
            (f"python={self.python}.5=h0_0", {"share/lab/python": b"the host's Python\n"}),
            (f"pip={packages.pip_version()}=pyh0_0", packages.pip_files()),
        ]
        if self.distribution == "miniforge":
            specs.append(("mamba=2.5.0=h0_0", {"share/lab/mamba": b"-\n"}))
        else:
            specs.append((f"conda-anaconda-tos=0.2.2={build}h06a4308_1", {"share/lab/tos": b"-\n"}))
        if self.filler_kib:
            noise = random.Random(1).randbytes(self.filler_kib << 10)  # noqa: S311 - to fill a disk
            specs.append(("zz-filler=1=0", {"share/lab/filler": noise}))
        files: dict[str, bytes] = {}
        for text, content in specs:
            name, version, string = text.split("=")
            index = {
                "name": name,
                "version": version,
                "build": string,
                "build_number": 0,
                "depends": [],
                "subdir": "linux-64",
            }
            if name == "pip":
                index["noarch"] = "python"
            files[f"pkgs/{name}-{version}-{string}.tar.bz2"] = packages.archive(index, content)
        for path in packages.standin_files():
            files["lib/" + str(path.relative_to(STANDIN))] = path.read_bytes()
        link = (STANDIN / "link.py").read_text(encoding="utf-8").replace("@URL@", _CHANNEL[self.distribution])
        files["link.py"] = link.encode()
        return files

    def sha256(self) -> str:
        return hashlib.sha256(self.content()).hexdigest()


@cache
def _content(installer: Installer) -> bytes:
    return installer.make()
