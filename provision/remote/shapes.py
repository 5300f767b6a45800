"""The shape of what each program on a host returns, checked where it arrives: what comes after may rely on it.

A shape is a type, a tuple of alternatives, ``[shape]`` (a list of), ``{...: shape}`` (a mapping with any keys) or
``{"key": shape, "key?": shape}`` (an object; further keys are free). Facts have a schema of their own: provision/facts/__init__.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.remote.answers import BadAnswer

_TEXT, _LINES = (str, None), [str]
_NUMBER = (int, float)
_LOCK = (
    {
        "run?": _TEXT,
        "who?": _TEXT,
        "command?": _TEXT,
        "git?": _TEXT,
        "since?": _TEXT,
        "from?": _TEXT,
        "trouble?": _TEXT,
        "lease?": (*_NUMBER, None),
        "controller?": ({"name?": _TEXT, "boot_id?": _TEXT, "machine_id?": _TEXT}, None),
    },
    None,
)
_CHANGE = {
    "action": str,
    "name": str,
    "version?": _TEXT,
    "from_version?": _TEXT,
    "origin?": _TEXT,
    "download_bytes?": (int, None),
    "disk_bytes?": (int, None),
}
_PROBLEM = {"code": str, "message": str, "because": _LINES, "hint": _TEXT}
_CANDIDATE = {
    "version": str,
    "depends?": _TEXT,
    "provides?": _TEXT,
    "uri?": _TEXT,
    "suite?": _TEXT,
    "component?": _TEXT,
    "origin?": _TEXT,
    "conflicts?": _TEXT,
    "size?": (int, None),
    "also?": (_LINES, None),
}
_FILE = {"path": str, "sha256": str, "size": int}
_MEASURED = {"id": str, "seconds": _NUMBER, "skip?": str, "evidence?": _LINES, "found?": dict}

# Program -> operation (args["op"], "" without one) -> shape.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "probe.facts": {"": dict},
    "probe.diagnostics": {"": dict},
    "probe.export": {
        "": {
            "facts": dict,
            "files": {...: {"text": str, "mtime": _NUMBER}},
            "folders": _LINES,
            "links": {...: str},
            "own": {...: _LINES},
        }
    },
    "probe.machine": {"": {"dmi": {...: str}, "slots": {...: str}, "own": {...: _LINES}}},
    "prove.proofs": {"": {"measured": [_MEASURED]}},
    "probe.gpu_users": {"": {"gpu_users": [{"comm": str, "pid": int, "user": _TEXT}]}},
    "conda.size": {"": {...: ({"total": int, "own": int}, None)}},
    "run.hook": {"": {"rc": (int, None), "output": str, "timed_out": bool}},
    "apt.settle": {"": {"settled": bool}},
    "apt.progress": {"": {"line": _TEXT}},
    "run.tasks": {"": {"running": _LINES}},
    "apt.query": {
        "offer": {"workdir": str, "packages": {...: [_CANDIDATE]}, "errors?": (_LINES, None)},
        "simulate": (
            {"ok": bool, "changes": [_CHANGE], "download_bytes?": (int, None), "disk_bytes?": (int, None)},
            {"ok": bool, "error": _TEXT},
        ),
    },
    "run.lock": {
        "acquire": {"taken": bool, "held": _LOCK, "replaced": _LOCK, "why": _TEXT},
        "renew": {"kept": bool, "held": _LOCK},
    },
    "run.record": {
        "leave": {"released?": bool, "held": _LOCK, "trouble": _TEXT},
        "read": {"runs": [dict], "unreadable": _LINES, "lock": {"held": _LOCK, "stale": _TEXT}},
    },
    "rescue.snapshot": {
        "list": {
            "snapshots": [
                {"id": str, "made": str, "reason?": _TEXT, "kernel?": _TEXT, "whole?": bool, "finished?": bool}
            ]
        }
    },
    "rescue.undo": {
        "plan": {
            "id": str,
            "made": str,
            "reason?": _TEXT,
            "install": _LINES,
            "remove": _LINES,
            "hold": _LINES,
            "release": _LINES,
            "files": [{"path": str, "action": str}],
            "left": [{"what": str, "why": str}],
            "changes": [_CHANGE],
            "problems": [_PROBLEM],
            "nothing": bool,
        }
    },
    "rescue.purge": {
        "plan": {
            "packages": _LINES,
            "config": _LINES,
            "kept": [{"name": str, "because": str}],
            "changes": [_CHANGE],
            "problems": [_PROBLEM],
            "uninstaller": _TEXT,
            "files": _LINES,
            "trees": _LINES,
            "aside": _LINES,
            "dkms": [[str]],
            "left": [{"path": str, "why": str}],
            "unfinished": bool,
            "nothing": bool,
        }
    },
    "mirror.store": {
        "open": {
            "manifest": {"files?": {...: {"sha256": str, "size": int}}, "signed?": object},
            "apt": bool,
            "free": int,
        },
        "resolve": {
            "packages": [
                {**_FILE, "name": str, "version": str, "url": str, "repository": str, "places": [[str]], "stanza": str}
            ],
            "missing": [{"name": str, "version": _TEXT, "have": object}],
            "releases": {...: str},
            "signatures": {...: str},
            "bases": {...: str},
            "keys": {...: str},
            "archs": _LINES,
        },
        "fetch": {"done": [_FILE], "left": _LINES, "refused": [{"any": str, "message": str}]},
        "kept": [{"path": str, "size": (int, None)}],
        "written": {"files": [_FILE], "release": str, "same": bool, "signed": [_FILE], "folder": str},
        "put": [_FILE],
        "link": [_FILE],
        "get": {...: _TEXT},
        "finish": {"changed": (bool, int), "removed": _LINES, "files": int, "total": int},
        "verify": {"bad": [{"path": str}], "extra": _LINES, "next": (int, None), "files": int, "bytes": int},
    },
    "mirror.read": {
        "": {
            "arch": str,
            "packages": [[str]],
            "archive_key": _TEXT,
            "sources": [
                {"file": str, "uris": _LINES, "suites": _LINES, "components": _LINES, "signed_by": _TEXT, "key": _TEXT}
            ],
            "conda": {...: {"packages": [dict], "wheels": [dict], "problems": _LINES}},
        }
    },
    "mirror.wheels": {
        "": {"files": [{"name": str, "version": str, "file": str, "url": str, "sha256": str}], "problems": _LINES}
    },
}


def check(program: str, args: Mapping[str, Any], result: Any) -> None:
    """Raise BadAnswer where a result has another shape than its program gives it."""
    shape = SHAPES.get(program, {}).get(str(args.get("op", "")))
    wrong = None if shape is None else _misfit(shape, result, "result")
    if wrong is not None:
        raise BadAnswer(f"{wrong} is not what it should be")


def _misfit(shape: Any, value: Any, place: str) -> str | None:
    """Return the place of the first thing that does not fit."""
    if shape is None or isinstance(shape, type):
        fits = value is None if shape is None else isinstance(value, shape)
        return None if fits and not (isinstance(value, bool) and shape in (int, float)) else place
    if isinstance(shape, tuple):
        found = [_misfit(one, value, place) for one in shape]
        # The deepest place says most.
        return None if None in found else max((one for one in found if one), key=len)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return place
        return _first(_misfit(shape[0], item, f"{place}[{number}]") for number, item in enumerate(value))
    if not isinstance(value, dict):
        return place
    if ... in shape:
        return _first(_misfit(shape[...], item, f"{place}.*") for item in value.values())
    return _first(_misfit_of_key(key, wanted, value, place) for key, wanted in shape.items())


def _misfit_of_key(key: str, wanted: Any, value: Mapping[str, Any], place: str) -> str | None:
    name = key.rstrip("?")
    if name in value:
        return _misfit(wanted, value[name], f"{place}.{name}")
    return None if key.endswith("?") else f"{place}.{name}"


def _first(places: Any) -> str | None:
    return next((place for place in places if place is not None), None)
