"""known_hosts files: which keys a host may show, with the place of each line. Parsed once per file."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import hmac
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from provision.remote.once import once

_write_lock = threading.Lock()


@dataclass(frozen=True)
class Entry:
    # as written; one "|1|salt|hash" for a hashed line
    patterns: tuple[str, ...]
    type: str
    # base64 of the key
    blob: str
    file: str
    line: int
    # "@revoked", "@cert-authority" or None
    marker: str | None

    def matches(self, name: str) -> bool:
        if self.patterns[0].startswith("|1|"):
            salt, digest = (base64.b64decode(part) for part in self.patterns[0].split("|")[2:4])
            return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
        hit = False
        for pattern in self.patterns:
            negated = pattern.startswith("!")
            if fnmatch.fnmatchcase(name.lower(), _glob(pattern[negated:].lower())):
                if negated:
                    return False
                hit = True
        return hit


def _glob(pattern: str) -> str:
    # In known_hosts "[host]:port" is literal; only * and ? are wild.
    return pattern.replace("[", "[[]")


@once
def read(file: str) -> tuple[Entry, ...]:
    """Return the entries of one file; a file that is not there has none. Lines that are not entries are skipped,
    as OpenSSH does."""
    try:
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return ()
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else None
        if len(words) >= 3:
            found.append(Entry(tuple(words[0].split(",")), words[1], words[2], file, number, marker))
    return tuple(found)


@once
def _index(file: str) -> tuple[dict[str, list[Entry]], list[Entry]]:
    """Return the entries of a file by plain name, and those that have to be tried: hashed ones and patterns."""
    plain: dict[str, list[Entry]] = {}
    others: list[Entry] = []
    for entry in read(file):
        if any(set(pattern) & set("|*?!") for pattern in entry.patterns):
            others.append(entry)
        else:
            for pattern in entry.patterns:
                plain.setdefault(pattern.lower(), []).append(entry)
    return plain, others


def forget() -> None:
    """Forget the files that were read; for tests and after a key was added."""
    read.cache_clear()
    _index.cache_clear()


def lookup(files: tuple[str, ...], name: str, port: int) -> list[Entry]:
    """Return the entries for a host: by "[name]:port" where the port is not 22, else (OpenSSH's second look) by name."""
    names = [name] if port == 22 else [f"[{name}]:{port}", name]
    for wanted in names:
        found: list[Entry] = []
        for file in files:
            plain, others = _index(file)
            found += plain.get(wanted.lower(), [])
            found += [entry for entry in others if entry.matches(wanted)]
        if found:
            return found
    return []


def add(file: str, name: str, port: int, key_type: str, blob: str, *, hashed: bool) -> None:
    """Append a key, as ``StrictHostKeyChecking accept-new`` does. /dev/null stays empty."""
    if file in ("/dev/null", "none"):
        return
    entry = name if port == 22 else f"[{name}]:{port}"
    if hashed:
        salt = os.urandom(20)
        digest = hmac.new(salt, entry.encode(), hashlib.sha1).digest()
        entry = "|1|" + "|".join(base64.b64encode(part).decode() for part in (salt, digest))
    path = Path(file)
    with _write_lock:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as out:
            out.write(f"{entry} {key_type} {blob}\n")
