"""Files that a person names for a command to write: the whole new text or the whole old one, and nothing else replaced."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from provision.errors import UsageError


def check_writable(path: Path, hint: str) -> None:
    """Raise UsageError where ``write`` would fail, as far as that can be known: before a fleet is asked, not after."""
    place, why = path.expanduser().resolve(), None
    if place.is_dir():
        why = "it is a folder"
    elif place.exists() and not place.is_file():
        why = "it is no ordinary file, and would be replaced by one"
    elif not place.parent.is_dir():
        why = f"there is no folder {place.parent}"
    elif not os.access(place.parent, os.W_OK | os.X_OK):
        why = f"no file can be made in {place.parent}"
    if why:
        raise _unwritten(path, why, hint)


def write(path: Path, text: str | bytes, hint: str, mode: int | None = None) -> None:
    """Write a text in one step: who reads the file sees the old one or the new one.

    A link is followed, so that what it leads to is written. mode: None keeps that of the file, or makes it as any new file
    of this user. Raises UsageError with hint; the old file then stays.
    """
    check_writable(path, hint)
    place, name = path.expanduser().resolve(), None
    try:
        with tempfile.NamedTemporaryFile(
            dir=place.parent, prefix=f".{place.name}.", suffix=".tmp", delete=False
        ) as file:
            name = file.name
            file.write(text if isinstance(text, bytes) else text.encode())
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(_mode(place) if mode is None else mode)
        Path(name).replace(place)
    except OSError as error:
        if name:
            Path(name).unlink(missing_ok=True)
        raise _unwritten(path, str(error), hint) from error


def _mode(place: Path) -> int:
    if place.exists():
        return place.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _unwritten(path: Path, why: str, hint: str) -> UsageError:
    return UsageError("usage.file", f"cannot write {path}", because=[why], hint=hint)
