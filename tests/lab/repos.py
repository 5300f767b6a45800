"""The lab's two repositories for each Ubuntu release, built when first asked for and kept by a hash of their recipe."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import aptrepo, archive, cuda_repo, nvidia_repo
from .aptrepo import Key
from .containers import packages as toolkit_repo
from .debfile import Package
from .paths import CACHE, KEYS, REPOSITORIES, fingerprint_of
from .releases import RELEASES
from .setup import say

ARCHIVE_HOST, NVIDIA_HOST = "archive.sim.internal", "nvidia.sim.internal"
RECIPE = (
    "archive.py",
    "aptrepo.py",
    "contents.py",
    "cuda_repo.py",
    "debfile.py",
    "kernels.py",
    "kofile.py",
    "nvidia_repo.py",
    "releases.py",
    "sofile.py",
    "ubuntu_cuda.py",
    "data",
    "repos.py",
    "sim",
    "containers/packages.py",
    "containers/standin",
)
# As NVIDIA's own Release file says, as far as is known.
TOOLKIT_ORIGIN = "https://nvidia.github.io/libnvidia-container"
PUBLICATIONS = ("drivers", "kernel", "security", "cuda", "toolkit")


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold a lock of this user's labs: two processes never build the same thing."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def keys() -> tuple[Key, Key]:
    """(the archive's key, NVIDIA's key): simulated, made once for this user."""
    with locked("keys"):
        return (
            aptrepo.make_key(KEYS / "archive", "Simulated Ubuntu Archive Signing Key"),
            aptrepo.make_key(KEYS / "nvidia", "Simulated CUDA Repository Signing Key"),
        )


def nvidia_path(ubuntu: str) -> str:
    """Path of NVIDIA's repository for a release on its server."""
    return f"compute/cuda/repos/ubuntu{ubuntu.replace('.', '')}/x86_64"


def nvidia_url(ubuntu: str) -> str:
    return f"http://{NVIDIA_HOST}/{nvidia_path(ubuntu)}/"


def toolkit_url() -> str:
    """NVIDIA's container toolkit, for every release; its key is that of the CUDA repository here."""
    return f"http://{NVIDIA_HOST}/{toolkit_repo.PATH}/"


def archive_url() -> str:
    return f"http://{ARCHIVE_HOST}/ubuntu"


def recipe() -> str:
    """Hash of everything the repositories are built from; the ranges of toolkits are the product's catalog."""
    return fingerprint_of(*RECIPE, extra=cuda_repo.CATALOG.read_text())


def built(ubuntu: str) -> Path:
    """Folder with both repositories of a release as on their first day."""
    target = REPOSITORIES / f"{ubuntu}-{recipe()}"
    archive_key, nvidia_key = keys()
    with locked(f"repository-{ubuntu}"):
        if (target / "done").exists():
            return target
        say(f"building the package repositories of {ubuntu}")
        shutil.rmtree(target, ignore_errors=True)
        _write(target, ubuntu, archive.packages(ubuntu), nvidia_repo.packages(ubuntu), archive_key, nvidia_key)
        (target / "done").touch()
    return target


def _write(
    root: Path, ubuntu: str, of_archive: list[Package], of_nvidia: list[Package], archive_key: Key, nvidia_key: Key
) -> None:
    for name, folder, packages in (
        ("archive", "ubuntu", of_archive),
        ("nvidia", nvidia_path(ubuntu), of_nvidia),
        ("toolkit", toolkit_repo.PATH, toolkit_repo.packages()),
    ):
        index_file = root / f"index-{name}-{ubuntu}.json"
        index = aptrepo.load(index_file) if index_file.exists() else aptrepo.Index()
        aptrepo.add_to_pool(root / folder, packages, index)
        index_file.parent.mkdir(parents=True, exist_ok=True)
        aptrepo.save(index, index_file)
        sign(root, ubuntu, name, index, archive_key if name == "archive" else nvidia_key)


def sign(root: Path, ubuntu: str, name: str, index: aptrepo.Index, key: Key) -> None:
    """Write the lists of one repository from its index."""
    if name == "archive":
        release = RELEASES[ubuntu]
        for suite in ("", "-updates", "-security"):
            components = index.paragraphs.setdefault(release.codename + suite, {})
            for component in ("main", "universe", "restricted", "multiverse"):
                components.setdefault(component, [])
        aptrepo.publish(
            root / "ubuntu", index, key, origin="Ubuntu", label="Ubuntu", codename=release.codename, version=ubuntu
        )
    elif name == "toolkit":
        aptrepo.publish(root / toolkit_repo.PATH, index, key, origin=TOOLKIT_ORIGIN, label=TOOLKIT_ORIGIN)
    else:
        aptrepo.publish(root / nvidia_path(ubuntu), index, key, origin="NVIDIA", label="NVIDIA CUDA")


@dataclass
class Served:
    """A lab's own copy of the repositories: hard links, so that publishing changes nobody else's."""

    root: Path

    def add_release(self, ubuntu: str) -> None:
        """Make a release's repositories part of what is served."""
        source = built(ubuntu)
        if (self.root / f"index-archive-{ubuntu}.json").exists():
            return
        for folder, _, files in os.walk(source):
            target = self.root / Path(folder).relative_to(source)
            target.mkdir(parents=True, exist_ok=True)
            for file in files:
                destination = target / file
                if not destination.exists():
                    os.link(Path(folder) / file, destination)

    def releases(self) -> list[str]:
        return [path.name[len("index-archive-") : -len(".json")] for path in self.root.glob("index-archive-*.json")]

    def state(self) -> str:
        """Hash of what the repositories hold: their recipe, or their lists once something was published."""
        if not (self.root / "published.json").exists():
            return recipe()
        digest = hashlib.sha256()
        for path in sorted(self.root.glob("index-*.json")):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:12]

    def publish(self, *what: str, packages: list[Package] | None = None, nvidia: list[Package] | None = None) -> None:
        """Add newer packages and sign again.

        what: any of ``drivers`` (point releases in both repositories, with signed modules), ``kernel`` (newer kernels
        with signed modules), ``security`` (ordinary updates), ``cuda`` (newer toolkits, cuDNN and NCCL), ``toolkit`` (a newer
        container toolkit); none means all.
        packages: your own, for the archive;
        nvidia: your own, for NVIDIA's repository.
        """
        own = packages is not None or nvidia is not None
        chosen = set(what) or (set() if own else set(PUBLICATIONS))
        unknown = chosen - set(PUBLICATIONS)
        if unknown:
            raise ValueError(f"cannot publish {sorted(unknown)}: choose from {', '.join(PUBLICATIONS)}")
        archive_key, nvidia_key = keys()
        log = self.root / "published.json"
        chosen |= set(json.loads(log.read_text())) if log.exists() else set()
        log.write_text(json.dumps(sorted(chosen)))
        for ubuntu in self.releases():
            options = dict.fromkeys(chosen - {"cuda", "toolkit"}, True)
            of_archive = archive.packages(ubuntu, **options) + list(packages or [])
            of_nvidia = nvidia_repo.packages(ubuntu, drivers="drivers" in chosen, cuda="cuda" in chosen) + list(
                nvidia or []
            )
            for name, folder, all_packages, key in (
                ("archive", "ubuntu", of_archive, archive_key),
                ("nvidia", nvidia_path(ubuntu), of_nvidia, nvidia_key),
                ("toolkit", toolkit_repo.PATH, toolkit_repo.packages(later="toolkit" in chosen), nvidia_key),
            ):
                index_file = self.root / f"index-{name}-{ubuntu}.json"
                index = aptrepo.load(index_file)
                listed = {
                    tuple(line for line in text.splitlines() if line.startswith(("Package: ", "Version: ")))
                    for components in index.paragraphs.values()
                    for texts in components.values()
                    for text in texts
                }
                fresh = [p for p in all_packages if (f"Package: {p.name}", f"Version: {p.version}") not in listed]
                if fresh:
                    aptrepo.add_to_pool(self.root / folder, fresh, index)
                    index_file.unlink()
                    aptrepo.save(index, index_file)
                    sign(self.root, ubuntu, name, index, key)
