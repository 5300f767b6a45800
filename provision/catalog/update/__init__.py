"""Compare a catalog with machine-readable sources, and write what differs into its files.

A reader for each kind of source yields rows (``row.Row``); ``compare`` says what the catalog's files lack or say otherwise;
``edited`` puts that into their text, so that comments and the order of lines stay. A row whose source has a ``reader`` was
written by this; all others are people's: of those a note is never touched, and what they marked ``conflicting`` is left.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import yaml

from provision.catalog import Catalog
from provision.catalog.files import read_yaml
from provision.catalog.update import apt, gpus, python, redistrib
from provision.catalog.update.place import Place
from provision.catalog.update.row import Left, Row
from provision.errors import UsageError
from provision.lib import yaml_reader

READERS: dict[str, Callable[[Place, Catalog], Iterator[Row | Left]]] = {
    "python": python.read,
    "nvidia": apt.nvidia,
    "ubuntu": apt.archive,
    "redistrib": redistrib.read,
    "gpus": gpus.read,
}


@dataclass(frozen=True)
class Change:
    """A row that a file lacks ("+"), or fields of one that differ ("~"): name -> old and new value."""

    sign: str
    row: Row
    fields: Mapping[str, tuple[Any, Any]]
    note: str | None = None

    @property
    def where(self) -> str:
        key = self.row.key
        names = key if isinstance(key, Mapping) else {}
        named = " ".join("+".join(v) if isinstance(v, list) else str(v) for v in names.values())
        shown = named if names else "" if key is None else str(key)
        return f"{self.row.table[0]}.yml {'.'.join((*self.row.table[1:], shown))}".rstrip(". ")


@dataclass
class Difference:
    changes: list[Change] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def compare(catalog: Catalog, sources: Iterable[str], today: date) -> Difference:
    """Say what sources ("python=PLACE") know that the catalog does not, or otherwise. UsageError for one that cannot be read."""
    found, raw = Difference(), {path.stem: read_yaml(path) for path in sorted(catalog.folder.glob("*.yml"))}
    used: dict[tuple[str, str], tuple[str, str]] = {}
    for text in sources:
        kind, _, place = text.partition("=")
        if kind not in READERS or not place:
            raise UsageError(
                "catalog.source",
                f"{text!r} names no source",
                hint=f"--from KIND=PLACE, KIND one of {', '.join(READERS)} (docs/catalog.md)",
            )
        for said in READERS[kind](Place(place), catalog):
            if isinstance(said, Left):
                found.left.append(f"{said.why} ({said.address})")
                continue
            change = _change(raw, said)
            if isinstance(change, str):
                found.left.append(change)
            elif change:
                found.changes.append(change)
            # a source that is named already was seen again today
            if isinstance(change, Change) or said.origin[0] in raw[said.table[0]]["sources"]:
                used[said.table[0], said.origin[0]] = (said.origin[1], kind)
    for (file, name), (address, kind) in used.items():
        about = {"source": address, "as_of": today.isoformat(), "reader": kind}
        change = _change(raw, Row((file, "sources"), name, about, (name, address)))
        if isinstance(change, Change):
            found.changes.append(change)
    return found


def _change(raw: Mapping[str, Any], said: Row) -> Change | str | None:
    """The difference that a row makes, made in ``raw`` too; a text where it is a person's to decide."""
    file = raw[said.table[0]]
    table = _inside(file, said.table[1:])
    if not table:
        return f"{'.'.join(said.table)}: this catalog has no such rows ({said.origin[1]})"
    there = _found(table, said.key)
    if there is None:
        fields = {name: value for name, value in said.fields.items() if not _default(name, value)}
        _put(table, said.key, fields)
        return Change("+", said, {name: (None, value) for name, value in fields.items()})
    mine = file["sources"].get(there.get("source"), {}).get("reader") is not None
    other = {
        name: (there.get(name), value)
        for name, value in said.fields.items()
        if not _equal(name, there.get(name), value) and (mine or name != "note")
    }
    if all(name.endswith("source") for name in other) and said.table[1:] != ("sources",):
        return None
    change = Change("~", said, other, None if mine else there.get("note"))
    marks = {str(there.get(f"{name}_certainty", there.get("certainty"))) for name in other}
    if not mine and "conflicting" in marks:
        return f"{change.where}: sources contradict each other there: {shown(other)} ({said.origin[1]})"
    there.update({name: new for name, (_, new) in other.items()})
    return change if other else None


def _inside(data: Any, way: Sequence[str]) -> Any:
    for name in way:
        data = data.get(name, {})
    return data


def _found(table: Any, key: Any) -> dict[str, Any] | None:
    if isinstance(key, Mapping):
        return next((row for row in table if all(row.get(name) == value for name, value in key.items())), None)
    return None if key is None else table.get(key)


def _put(table: Any, key: Any, fields: dict[str, Any]) -> None:
    if isinstance(table, list):
        table.append(fields)
    else:
        table[key] = fields


def _default(name: str, value: Any) -> bool:
    """True for what a row says by saying nothing."""
    return value == "sourced" if name.endswith("certainty") else value is None and name in ("note", "date")


def _equal(name: str, old: Any, new: Any) -> bool:
    return (old or "sourced") == new if name.endswith("certainty") else (old or None) == (new or None)


def shown(fields: Mapping[str, tuple[Any, Any]], added: bool = False) -> str:
    """Fields as a person reads them: "last_version 580.95.05 -> 580.126.20"; of a new row the values alone."""

    def value(one: Any) -> str:
        return ", ".join(map(str, one)) if isinstance(one, list | tuple) else "none" if one is None else str(one)

    return "; ".join(
        f"{name} {value(new)}" if added else f"{name} {value(old)} -> {value(new)}"
        for name, (old, new) in fields.items()
    )


# --- files ------------------------------------------------------------------------------------------------------------


def edited(text: str, changes: Iterable[Change]) -> str:
    """The text of a file with changes made in its lines, one after the other: later ones may be about earlier ones."""
    for change in changes:
        table: Any = yaml.compose(text, Loader=yaml_reader.LOADER)
        for name in change.row.table[1:]:
            table = _value(table, name)
        edits = (
            [_appended(text, table, change)] if change.sign == "+" else _set(_row(table, change.row.key), change.fields)
        )
        for start, end, new in sorted(edits, reverse=True):
            text = text[:start] + new + text[end:]
    return text


def _value(node: Any, key: str | int) -> Any:
    return next(value for name, value in node.value if name.value == str(key))


def _row(table: Any, key: Any) -> Any:
    if not isinstance(key, Mapping):
        return _value(table, key)
    wanted = {name: str(value) for name, value in key.items()}
    scalars = ({n.value: v.value for n, v in row.value if v.id == "scalar"} for row in table.value)
    return next(row for row, there in zip(table.value, scalars, strict=True) if wanted.items() <= there.items())


def _appended(text: str, table: Any, change: Change) -> tuple[int, int, str]:
    """A line below the last row of a table, indented as that is."""
    last = table.value[-1]
    mapping = isinstance(last, tuple)
    first, end = last if mapping else (last, last)
    row = _flow({name: new for name, (_, new) in change.fields.items()})
    indent = " " * (first.start_mark.column - (0 if mapping else len("- ")))
    line = f"{indent}{_flow(change.row.key)}: {row}\n" if mapping else f"{indent}- {row}\n"
    at = text.find("\n", end.end_mark.index) + 1
    return (at, at, line) if at else (len(text), len(text), f"\n{line}")


def _set(row: Any, fields: Mapping[str, tuple[Any, Any]]) -> list[tuple[int, int, str]]:
    """Values put into a row; fields that it lacks before the brace that closes it."""
    there = {name.value: value for name, value in row.value}
    edits = [
        (there[name].start_mark.index, there[name].end_mark.index, _flow(new))
        for name, (_, new) in fields.items()
        if name in there
    ]
    more = "".join(f", {name}: {_flow(new)}" for name, (_, new) in fields.items() if name not in there)
    end = row.end_mark.index - 1
    return [*edits, (end, end, more)] if more else edits


def _flow(value: Any) -> str:
    """A value as the files write it: in one line, text in quotes where YAML could read something else."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(name)}: {_flow(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and re.fullmatch(
        r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[A-Za-z][\w-]*", value, re.I
    ):
        return value
    return json.dumps(value, ensure_ascii=False)
