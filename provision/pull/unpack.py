"""Unpack the archive of an inventory: plain files and folders, within limits, on the disk before anybody uses them.

tarfile's own filters bound neither size nor number, and a link that is checked when it is made leads elsewhere later. An
inventory needs no link, so none is taken.
"""

from __future__ import annotations

import io
import os
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import BinaryIO

MOST_BYTES = 256 << 20
MOST_ENTRIES = 20_000
_CHUNK = 1 << 16


class BadArchiveError(Exception):
    """The archive holds what an inventory does not, or more than it may; the text says which."""


class _Inflated(io.RawIOBase):
    """What gzip data unpacks to, for reading once; BadArchiveError behind the limit, headers and skipped entries included."""

    def __init__(self, packed: BinaryIO, most: int) -> None:
        self._packed, self._left, self._most = packed, most, most
        self._stream, self._rest = zlib.decompressobj(31), b""

    def read(self, size: int = -1) -> bytes:
        wanted = _CHUNK if size is None or size < 0 else min(size, _CHUNK)
        while wanted:
            self._rest = self._rest or self._packed.read(_CHUNK)
            if not self._rest and self._stream.eof:
                break
            if not self._rest:
                raise BadArchiveError("it is truncated")
            if self._stream.eof:
                self._stream = zlib.decompressobj(31)
            try:
                data = self._stream.decompress(self._rest, wanted)
            except zlib.error as error:
                raise BadArchiveError(f"it is no gzip file, or a damaged one: {error}") from error
            self._rest = self._stream.unconsumed_tail or self._stream.unused_data
            self._left -= len(data)
            if self._left < 0:
                raise BadArchiveError(f"it unpacks to more than {self._most >> 20} MiB")
            if data:
                return data
        return b""


def unpack(packed: BinaryIO, folder: Path, most_bytes: int = MOST_BYTES, most_entries: int = MOST_ENTRIES) -> None:
    """Unpack a .tar.gz into an empty folder of ours. Raises BadArchiveError and OSError; what is there then is of no use."""
    folders, count = {folder}, 0
    try:
        with tarfile.open(fileobj=_Inflated(packed, most_bytes), mode="r|") as archive:
            for count, entry in enumerate(archive, 1):
                if count > most_entries:
                    raise BadArchiveError(f"it has more than {most_entries} entries")
                target = folder.joinpath(*_parts(entry))
                if entry.isdir():
                    target.mkdir(parents=True, exist_ok=True)
                else:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    _write(archive, entry, target)
                folders |= {one for one in (target, *target.parents) if one.is_relative_to(folder) and one.is_dir()}
    except (tarfile.TarError, EOFError, ValueError, RecursionError) as error:
        # RecursionError: tarfile reads a header within the one before it.
        raise BadArchiveError(str(error)) from error
    if not count:
        raise BadArchiveError("nothing is in it")
    for one in folders:
        sync(one)


def _parts(entry: tarfile.TarInfo) -> tuple[str, ...]:
    """The path of an entry below the folder. Raises BadArchiveError for what is not of an inventory."""
    path = PurePosixPath(entry.name)
    if path.is_absolute() or ".." in path.parts or "\0" in entry.name:
        raise BadArchiveError(f"{entry.name!r} would be outside")
    if not entry.isdir() and (not entry.isfile() or entry.issparse()):
        raise BadArchiveError(f"{entry.name!r} is a link, a device or sparse: an inventory has files and folders only")
    return path.parts


def _write(archive: tarfile.TarFile, entry: tarfile.TarInfo, target: Path) -> None:
    content = archive.extractfile(entry)
    if content is None:
        raise AssertionError("an entry that is a file has content")
    mode = 0o700 if entry.mode & 0o100 else 0o600
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
        while data := content.read(_CHUNK):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
