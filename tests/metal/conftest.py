"""Guests, and the command against them. Every test starts from an overlay: of the base disk, or of a host that apply set up."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import ROOT
from tests.faults.conftest import Command as OnLab
from tests.lab import repos

from .archive import Archive
from .disk import Disk, disk
from .guest import Guest


class Command(OnLab):
    """``provision`` against a guest: the same command, with the time that emulation takes."""

    def run(self, *words: str, rc: int = 0, timeout: float = 1800) -> subprocess.CompletedProcess[str]:
        begun = time.monotonic()
        done: subprocess.CompletedProcess[str] = super().run(*words, rc=rc, timeout=timeout)
        print(f"provision {' '.join(words)}: {time.monotonic() - begun:.0f} s")
        return done

    def json(self, *words: str, rc: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", rc=rc).stdout)

    def host(self, *words: str, rc: int = 0) -> dict[str, Any]:
        """What a document says of the one host."""
        (found,) = self.json(*words, rc=rc)["hosts"].values()
        return dict(found)


@dataclass
class Held:
    """A host that apply took from nothing to a held driver: its disk, and what was seen on the way."""

    image: Path
    plan: dict[str, Any]
    applied: dict[str, Any]
    boots: list[str]
    modules: list[list[str]]


@pytest.fixture(scope="session")
def base() -> Disk:
    return disk()


@pytest.fixture
def archive(base: Disk, tmp_path: Path) -> Iterator[Archive]:
    made = Archive(tmp_path / "archive", base)
    yield made
    made.close()


@pytest.fixture(scope="session")
def held(base: Disk, tmp_path_factory: pytest.TempPathFactory) -> Held:
    """From nothing to a held driver, once for a state of the product; the disk is then a backing file that nobody writes to."""
    kept = base.folder / f"held-{product()}"
    with repos.locked("metal-held"):
        if not (kept / "seen.json").exists():
            _hold(kept, base, tmp_path_factory.mktemp("held"))
    return Held(kept / "disk.qcow2", **json.loads((kept / "seen.json").read_text()))


def _hold(kept: Path, base: Disk, folder: Path) -> None:
    for old in base.folder.glob("held-*"):
        shutil.rmtree(old)
    archive, guest = Archive(folder / "archive", base), Guest(kept, base)
    command = Command(guest, folder / "state")
    try:
        print(f"first boot: {guest.boot():.0f} s")
        guest.use(archive)
        boots, modules = [guest.boot_id()], [sorted(guest.modules())]
        plan, applied = command.host("plan", rc=2), command.host("apply", "--yes")
        boots, modules = [*boots, guest.boot_id()], [*modules, sorted(guest.modules())]
        guest.off()
    finally:
        guest.cut()
        archive.close()
    (kept / "seen.json").write_text(json.dumps({"plan": plan, "applied": applied, "boots": boots, "modules": modules}))


def product() -> str:
    """Hash of the product's files, and of those that make what it is applied to."""
    digest = hashlib.sha256()
    for name in ("provision", "plugins", "roles", "playbooks", "tests/lab", "tests/metal"):
        for path in sorted((ROOT / name).rglob("*")):
            ours = name != "tests/metal" or path.name in ("archive.py", "fakegpu.py", "source.py")
            if ours and path.suffix in (".py", ".yml", ".j2", ".md") and path.is_file():
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


@pytest.fixture
def start(base: Disk, archive: Archive, tmp_path: Path) -> Iterator[Callable[..., tuple[Guest, Command]]]:
    """start(backing=…) boots a guest and gives it with the command; its power is cut at the end."""
    guests: list[Guest] = []

    def one(*, backing: Path | None = None, **options: Any) -> tuple[Guest, Command]:
        guest = Guest(tmp_path / f"guest{len(guests)}", base, backing=backing, **options)
        guests.append(guest)
        print(f"boot: {guest.boot():.0f} s")
        guest.use(archive)
        return guest, Command(guest, tmp_path / "state")

    yield one
    for guest in guests:
        guest.cut()
