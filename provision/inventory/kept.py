"""Answers of the reader of inventories (dump.py), kept for the next command: Ansible needs half a second to give the same again.

An answer counts as long as the request, Ansible's settings and every file that decided are as they were, and nothing else than
files decided: dump.may_be_kept has the rules. It lies in the user's state folder, readable by the user alone. What is damaged,
of another version or another's is not believed: the inventory is read, and a new answer takes its place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files, redact
from provision.inventory import dump
from provision.lib import own_state

# Beside the files: what ansible-core and the paths of its settings depend on.
_SETTINGS = ("HOME", "USER", "LOGNAME", "PYTHONPATH")
_MOST_BYTES = 64 << 20
_MOST_ANSWERS = 20


def find(request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer that was kept for a request, with what Ansible said beside it ("talk"); None: it has to be read."""
    path = _place(request)
    if path is None:
        return None
    with contextlib.suppress(OSError, ValueError, own_files.FileError):
        found = path.lstat()
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o600:
            return None
        digest, _, body = (own_files.read(str(path), _MOST_BYTES, follow=False) or b"").partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        answer: dict[str, Any] = json.loads(body)
        if dump.marks_of(request, answer["sources"]) == answer["marks"]:
            return answer
    return None


def keep(request: dict[str, Any], answer: dict[str, Any], talk: str) -> None:
    """Keep an answer, if it may be kept and can be."""
    path = _place(request)
    if path is None or not answer.get("marks"):
        return
    answer = {**answer, "talk": talk}
    if redact.data(answer) != answer:
        return
    body = json.dumps(answer).encode()
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with own_files.replacing(str(path), sync=False) as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        for old in sorted(path.parent.glob("*.json"), key=lambda one: -one.stat().st_mtime)[_MOST_ANSWERS:]:
            old.unlink()


def _place(request: dict[str, Any]) -> Path | None:
    """Where the answer to a request lies; None where it is not to be kept: a password takes part, or a variable that only the
    command line has, which never lies in a file."""
    inline = any(not given.lstrip().startswith("@") for given in request["extra_vars"])
    if inline or request["vault_password"] is not None or request["vault_ids"]:
        return None
    settings = {name: value for name, value in os.environ.items() if name.startswith("ANSIBLE_") or name in _SETTINGS}
    try:
        said = [provision.__version__, sys.executable, str(Path.cwd()), settings, request]
    except OSError:
        return None
    name = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    return own_state.folder() / "inventories" / f"{name}.json"
