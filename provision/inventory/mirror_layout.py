"""Where what lies in a mirror, as paths below its root: the paths that the originals have on their servers.

So a repository is recognised on a host by its path, whoever serves it (``is_cuda_uri`` and its like).
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from provision.catalog import Catalog, Repository

# of a mirror that is signed by a key of its own
KEY = "key.asc"
# keyrings of the originals, for --verify
KEYS = "keys"
MANIFEST = "manifest.json"
CONDA = "conda"
INSTALLERS, WHEELS, SIMPLE = f"{CONDA}/installers", f"{CONDA}/whl", f"{CONDA}/simple"
# What the archive is asked for, on every release.
POCKETS = ("", "-updates", "-security")
COMPONENTS = "main restricted universe multiverse"
# of the package ubuntu-keyring, which apt needs
ARCHIVE_KEYRING = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
# Where the archive is when neither the inventory nor a host says it; ports are everything but amd64 (and i386).
ARCHIVE_URLS = {"ubuntu": "http://archive.ubuntu.com/ubuntu", "ubuntu-ports": "http://ports.ubuntu.com/ubuntu-ports"}


def archive_path(arch: str) -> str:
    """Path of Ubuntu's archive for a dpkg architecture: other processors have a server of their own, with other Releases."""
    return "ubuntu" if arch in ("amd64", "i386") else "ubuntu-ports"


def archive_suites(codename: str) -> str:
    """Suites of the archive: ``noble noble-updates noble-security``."""
    return " ".join(codename + pocket for pocket in POCKETS)


def repository_path(kind: str, ubuntu: str, arch: str, catalog: Catalog) -> str:
    """Path of one of the catalog's repositories ("cuda", "container_toolkit", "ppa") for a release and architecture."""
    return urlsplit(catalog.repository(kind, ubuntu=ubuntu, arch=arch).url).path.strip("/")


def key_name(repository: Repository) -> str:
    """Name of the vendor's key in the folder of a repository, when it keeps its original signatures."""
    return Path(repository.key_url or "3bf863cc.pub").name
