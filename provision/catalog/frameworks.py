"""Questions about frameworks and conda that need more than one row of the catalog: Pythons, pins, installers.

All are pure functions of a Catalog; ``machine`` is what ``uname -m`` says (x86_64, aarch64).
"""

from __future__ import annotations

import re

from provision.catalog import Catalog
from provision.catalog.models.base import Data
from provision.catalog.models.frameworks import CodeList, Distribution, Installer
from provision.catalog.versions import key, minor

# dpkg's name -> the kernel's
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class CondaInstaller(Data):
    """One installer file of the catalog, or the moving one: then without checksum."""

    distribution: str
    # "26.5.3-1", or "latest"
    version: str
    python: str | None
    file: str
    url: str
    sha256: str


def pythons(first: str, last: str) -> list[str]:
    """Python minors from first to last, both included: ("3.9", "3.12") -> 3.9, 3.10, 3.11, 3.12."""
    return [f"3.{number}" for number in range(int(first.split(".")[1]), int(last.split(".")[1]) + 1)]


def tensorflow_pin(catalog: Catalog, text: str, version: str) -> str:
    """What pip is asked for: the exact release where one is named or known, else the newest of the minor.

    text: what was asked for; version: the catalog's release of it. "2.18" -> "==2.18.1", "2.12" -> "==2.12.*".
    """
    wanted = text.strip().removeprefix("v")
    if wanted.count(".") >= 2:
        return f"=={wanted}"
    known = [v for v in catalog.frameworks.tensorflow.and_cuda if minor(v) == minor(version)]
    return f"=={max(known, key=key)}" if known else f"=={minor(version)}.*"


def code_held(codes: CodeList | None, cc: str | None) -> str:
    """What wheels hold for a GPU of this compute capability, as text."""
    if codes is None:
        return "code that is not known"
    ptx = f", PTX {codes.ptx}" if codes.ptx else ""
    return f"code for {', '.join(codes.cc)}{ptx}" + (f", which does not load on {cc}" if cc in codes.fails else "")


def conda_installers(catalog: Catalog, distribution: str, machine: str) -> list[CondaInstaller]:
    """Installers of a distribution for a processor, newest first, and of one version the newest Python first."""
    data = _distribution(catalog, distribution)
    found = [_installer(data, distribution, row, machine) for row in data.installers if machine in row.sha256]
    return sorted(found, key=lambda i: (version_key(i.version), key(i.python or "0")), reverse=True)


def moving_installer(catalog: Catalog, distribution: str, machine: str) -> CondaInstaller | None:
    """The installer whose content changes under its name; None where the distribution has none in the catalog."""
    data = _distribution(catalog, distribution)
    if data.moving_file is None:
        return None
    file = data.moving_file.format(machine=machine)
    return CondaInstaller(
        distribution=distribution, version="latest", python=None, file=file, url=data.base_url + file, sha256=""
    )


def version_key(version: str) -> tuple[int, ...]:
    """Sort key of an installer's version with its build: 26.5.3-1."""
    return tuple(int(part) for part in re.split(r"[.-]", version) if part.isdigit())


def _distribution(catalog: Catalog, name: str) -> Distribution:
    return catalog.conda.miniforge if name == "miniforge" else catalog.conda.miniconda


def _installer(data: Distribution, distribution: str, row: Installer, machine: str) -> CondaInstaller:
    words = {"version": row.version, "python": row.python.replace(".", ""), "machine": machine}
    file = data.file.format(**words)
    return CondaInstaller(
        distribution=distribution,
        version=row.version,
        python=row.python,
        file=file,
        url=data.base_url.format(**words) + file,
        sha256=row.sha256[machine],
    )
