"""Our own files of state on this machine, each of which may have been damaged: read by their schema, written whole.

What counts is a regular file of a sane size that holds what its model says. Everything else is damage: who writes the file
anyway puts the damaged one aside, says so and goes on (``take``); who only reads says so (``read``). The rule for hosts is
the same: module_utils/lib/own_state.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files, own_state
from provision.errors import HostFailedError

Damaged = own_state.Damaged
Model = TypeVar("Model", bound=BaseModel)
# of a plan for thousands of hosts
_MOST_BYTES = 256 << 20


def folder() -> Path:
    """Return the folder of our state on this machine, which may not be there yet."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "gpu-provision"


def text(path: Path, most: int = _MOST_BYTES) -> str | None:
    """Return the text of a file; None where there is none. Raises Damaged for what is no text file of a sane size."""
    try:
        data = own_files.read(str(path), most)
        return None if data is None else data.decode("utf-8")
    except own_files.FileError as error:
        raise Damaged(str(path), error.reason) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise Damaged(str(path), f"it is not UTF-8 (line {line})") from None


def read(path: Path, model: type[Model]) -> Model | None:
    """Return what a file of ours says; None where there is none. Raises Damaged."""
    found = text(path)
    if found is None:
        return None
    if not found.strip("\0 \t\r\n"):
        raise Damaged(str(path), "it is empty" if not found else "it contains only blanks")
    try:
        answer = model.model_validate_json(found)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        why = f"it contains something other than this version writes ({place or 'the whole'})"
        if first["type"] == "json_invalid":
            why = "it is not JSON, or only the beginning of it"
        raise Damaged(str(path), why) from None
    schema = model.model_fields.get("schema_id")
    if schema is not None and getattr(answer, "schema_id", None) != schema.default:
        raise Damaged(str(path), "it is of another version of this program")
    return answer


def take(path: Path, model: type[Model], said: Callable[[str], None]) -> Model | None:
    """Return what a file of ours says; None where there is none, or a damaged one, which is put aside: said gets a line."""
    try:
        return read(path, model)
    except Damaged as damage:
        said(own_state.put_aside(damage))
        return None


def read_or_none(path: Path, model: type[Model]) -> Model | None:
    """Return what a file of ours says; None where that cannot be known."""
    try:
        return read(path, model)
    except Damaged:
        return None


def write(path: Path, content: str) -> None:
    """Write a file that only its owner can read: the whole new text or the whole old one, whatever happens.

    Raises HostFailedError where it cannot be written.
    """
    try:
        own_files.write(str(path), content.encode("utf-8"), 0o600)
    except own_files.FileError as error:
        raise HostFailedError("state.not_written", error.message, hint=error.hint) from error
