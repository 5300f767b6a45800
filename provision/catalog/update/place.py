"""Where a machine-readable source lies: a folder or file, file:// or https://. What it says is untrusted.

Sizes are limited before and after unpacking, certificates are checked, and nothing follows a redirect away from https.
"""

from __future__ import annotations

import gzip
import http.client
import io
import json
import lzma
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from provision.errors import UsageError

_MOST_BYTES = 64 << 20
# of an index that was packed
_MOST_UNPACKED = 512 << 20
_MOST_FILES = 1000
_SECONDS = 60
_UNPACK: dict[str, Callable[[io.BytesIO], io.BufferedIOBase]] = {
    ".xz": lzma.LZMAFile,
    ".gz": lambda packed: gzip.GzipFile(fileobj=packed),
    "": lambda plain: plain,
}
_HINT = "name a folder, file:///FOLDER or https://HOST/PATH that is laid out as docs/catalog.md says"


class Place:
    """A folder, or the beginning of addresses. ``read`` says None for what is not there."""

    def __init__(self, text: str) -> None:
        parts = urlsplit(text)
        self.text = text.rstrip("/")
        self.folder: Path | None = None
        if parts.scheme == "file":
            self.folder = Path(url2pathname(parts.path))
        elif "://" not in text:
            self.folder = Path(text)
        elif parts.scheme != "https" or not parts.hostname:
            raise _unread(text, "it is neither a folder nor an address with https", _HINT)
        if self.folder is not None and not self.folder.exists():
            raise _unread(text, "there is no such folder", _HINT)

    def address(self, path: str) -> str:
        return f"{self.text}/{path}" if path else self.text

    def read(self, path: str) -> bytes | None:
        """What a file holds; None where there is none. UsageError for one that cannot be read or is too large."""
        try:
            data = _fetched(self.address(path)) if self.folder is None else _file(self.folder, path)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _unread(self.address(path), str(getattr(error, "reason", error)), _HINT) from error
        if data is not None and len(data) > _MOST_BYTES:
            raise _unread(self.address(path), f"it is larger than {_MOST_BYTES >> 20} MiB", _HINT)
        return data

    def json(self, path: str) -> dict[str, Any] | None:
        """The object that a file of JSON holds; None where there is no file."""
        data = self.read(path)
        if data is None:
            return None
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _unread(self.address(path), f"it is not JSON: {error}", _HINT) from error
        if not isinstance(found, dict):
            raise _unread(self.address(path), "it is JSON, but no object", _HINT)
        return found

    def unpacked(self, path: str) -> tuple[str, str] | None:
        """Text and address of a file that may be packed as .xz or .gz; None where there is none."""
        for suffix in _UNPACK:
            data = self.read(path + suffix)
            if data is None:
                continue
            address = self.address(path + suffix)
            try:
                text = _UNPACK[suffix](io.BytesIO(data)).read(_MOST_UNPACKED + 1)
            except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
                raise _unread(address, f"it cannot be unpacked: {error}", _HINT) from error
            if len(text) > _MOST_UNPACKED:
                raise _unread(address, f"unpacked it is larger than {_MOST_UNPACKED >> 20} MiB", _HINT)
            return text.decode("utf-8", "replace"), address
        return None

    def files(self, pattern: str) -> Iterator[str]:
        """Paths of the files of a folder and the folders in it; of an address or a single file: it alone."""
        if self.folder is None or self.folder.is_file():
            yield ""
            return
        found = sorted(self.folder.glob(f"**/{pattern}"))[:_MOST_FILES]
        yield from (str(path.relative_to(self.folder)) for path in found)


def _file(folder: Path, path: str) -> bytes | None:
    place = folder / path if path else folder
    if not place.is_file():
        return None
    with place.open("rb") as stream:
        return stream.read(_MOST_BYTES + 1)


class _OnlyHttps(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme != "https":
            raise urllib.error.URLError("it leads away from https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _fetched(address: str) -> bytes | None:
    request = urllib.request.Request(address, headers={"User-Agent": "gpu-provision"})  # noqa: S310 -- https alone
    try:
        with urllib.request.build_opener(_OnlyHttps).open(request, timeout=_SECONDS) as answer:
            return bytes(answer.read(_MOST_BYTES + 1))
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def nothing(place: Place, looked_for: str) -> UsageError:
    """UsageError for a place where no file of a source is."""
    return _unread(place.text, f"there is no {looked_for}", _HINT)


def _unread(address: str, why: str, hint: str) -> UsageError:
    return UsageError(
        "catalog.source", f"{address} cannot be read as a source of the catalog", because=[why], hint=hint
    )
