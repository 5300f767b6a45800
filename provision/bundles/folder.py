"""A folder that stands for a host whose files somebody else collected. Nothing is written outside it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path, PurePosixPath
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.probe import diagnostics as probe
from provision.errors import UsageError

MOST_KEPT = 256 << 20
_MOST_FOLDERS = 50_000


def refused(why: str) -> UsageError:
    return UsageError(
        "usage.bundle",
        "the bundle cannot be read",
        because=[why],
        hint="give nvidia-bug-report.log(.gz) or a sosreport tarball; a single log goes to provision diagnose --text -",
    )


class HostFolder:
    """A folder that stands for a host, and what its programs answer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.left = folder, MOST_KEPT
        # program -> (exit code, output) and what it said on stderr
        self.answers: dict[str, tuple[int, str] | tuple[int, str, str]] = {}
        self._folders = 0

    def write(self, path: str, content: bytes) -> None:
        """Write a file below the folder, unless its path leads out of it or is taken."""
        parts = PurePosixPath(path).parts
        parts = parts[1:] if parts[:1] == ("/",) else parts
        if not parts or ".." in parts or "\0" in path:
            return
        self.left -= len(content)
        if self.left < 0:
            raise refused(f"more than {MOST_KEPT >> 20} MiB of it concern the driver")
        target = self.folder.joinpath(*parts)
        # Two entries of one name, a file where a folder is meant, names longer than a file system has: the first counts.
        with contextlib.suppress(OSError):
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(content)

    def link(self, path: str, target: str) -> None:
        """Make a link, after every file: its own folder has to be a real one of ours."""
        place = self.folder / path
        with contextlib.suppress(OSError, ValueError):
            if place.parent.resolve() == place.parent and not os.path.lexists(place):
                place.symlink_to(target)

    def text(self, path: str, content: str) -> None:
        self.write(path, content.encode("utf-8", "replace"))

    def folder_of(self, path: str) -> None:
        """Make an empty folder, unless its path leads out or is taken."""
        parts = [part for part in path.split("/") if part]
        self._folders += 1
        if ".." not in parts and "\0" not in path and self._folders <= _MOST_FOLDERS:
            with contextlib.suppress(OSError):
                self.folder.joinpath(*parts).mkdir(parents=True, exist_ok=True)

    def date(self, path: str, seconds: float) -> None:
        """Set the modification time of a file that was written here."""
        place = self.folder / path.lstrip("/")
        with contextlib.suppress(OSError, ValueError, OverflowError):
            if place.parent.resolve() == place.parent and not place.is_symlink():
                os.utime(place, (seconds, seconds))

    def runnable(self, path: str) -> None:
        place = self.folder / path.lstrip("/")
        if place.parent.resolve() == place.parent and place.is_file() and not place.is_symlink():
            place.chmod(0o700)

    def collect(self) -> dict[str, Any]:
        """What the probe reads of the folder, asking the answers in place of programs."""
        return dict(probe.collect(str(self.folder), run=self._run))

    def _run(self, command: list[str], timeout: float) -> tuple[int, str, str]:
        name = command[0].rsplit("/", 1)[-1]
        rc, out, err = (*self.answers.get(name, (127, "")), "")[:3]
        return rc, out, err
