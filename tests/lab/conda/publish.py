"""What a lab's package server offers of conda: made once and kept in the lab's cache, linked into every lab."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from provision.collection import ROOT
from tests.lab.conda.installer import Installer
from tests.lab.conda.packages import pip_version, write_channels
from tests.lab.conda.wheels import write_index
from tests.lab.paths import CACHE, fingerprint_of

# hosts of a lab know the package server by this name, too
HOST = "conda.sim.internal"
FOLDER = "conda"
INSTALLERS = (Installer(version="26.5.3-1"), Installer(version="25.11.1-1"), Installer("miniforge", version="26.3.2-3"))
# pip takes no index without https unless it is told to.
PIP_CONF = f"[global]\ntrusted-host = {HOST}\n"


def made() -> Path:
    """Folder with installers, channels and the wheel index; made when it is not there."""
    catalog = (ROOT / "tests/catalog/frameworks.yml").read_text(encoding="utf-8")
    folder = CACHE / "conda" / fingerprint_of("conda", "data/conda.yml", extra=pip_version() + catalog)
    if not folder.is_dir():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}")
        (fresh / "installers").mkdir(parents=True)
        for installer in INSTALLERS:
            (fresh / "installers" / installer.file).write_bytes(installer.content())
        write_channels(fresh)
        write_index(fresh)
        try:
            fresh.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
            # another process was faster
            shutil.rmtree(fresh)
    return folder


def publish(root: Path) -> None:
    """Put everything below a server's root, as ``conda/``."""
    shutil.copytree(made(), root / FOLDER, copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        # another file system
        shutil.copy2(source, target)


def variables(distribution: str = "miniconda", version: str = "26.5.3-1") -> dict[str, Any]:
    """Role variables by which hosts of a lab take all of conda from its server, through the lab's own checksums."""
    (installer,) = [item for item in INSTALLERS if (item.distribution, item.version) == (distribution, version)]
    base = f"http://{HOST}/{FOLDER}"
    # Of the file that is served: another Python may compress the same content otherwise.
    digest = hashlib.sha256((made() / "installers" / installer.file).read_bytes()).hexdigest()
    return {
        "miniconda_distribution": distribution,
        "miniconda_version": version,
        "miniconda_python": installer.python,
        "miniconda_installer_url": f"{base}/installers/",
        "miniconda_installer_sha256": digest,
        "miniconda_channel_alias": base,
        "miniconda_wheel_index_url": f"{base}/whl",
        "miniconda_pip_index_url": f"{base}/simple",
        "miniconda_allow_http": True,
    }


def main(argv: list[str]) -> int:
    """``python -m tests.lab.conda variables [DISTRIBUTION VERSION]``: the role variables, as JSON."""
    if not argv or argv[0] != "variables":
        print(main.__doc__)
        return 64
    print(json.dumps(variables(*argv[1:])))
    return 0
