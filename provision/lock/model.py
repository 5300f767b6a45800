"""What stands in fleet.lock.yml, and reading and writing it.

The file is made for people and git: groups of alike hosts, sorted names, no time stamps, so that it changes only where
a version does. It may be edited by hand: what is wrong is said with the line.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from ansible_collections.gpu.provision.plugins.plugin_utils.lockfile import NAME
from ansible_collections.gpu.provision.plugins.plugin_utils.lockfile import VARIABLE as VARIABLE
from provision.errors import Issue, UsageError
from provision.lib import files, own_state, yaml_reader
from provision.lib.text import natural
from provision.parts.base import Part
from provision.parts.conda.part import Installations
from provision.parts.containers.part import LockedContainers
from provision.parts.cuda.part import LockedCuda
from provision.parts.driver.part import LockedDriver
from provision.parts.locked import Locked, Versions
from provision.parts.registry import in_locks

SCHEMA = "provision/lock/1"
WRITE_HINT = "name a file in a folder that you can write: -o FILE"
# What YAML 1.1 takes for numbers and dates besides (1:30 is ninety, 2026-11-28 a day) are versions here.
_INT = re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$")
_FLOAT = re.compile(r"^[-+]?(?:0|[1-9][0-9]*)\.[0-9]+(?:[eE][-+]?[0-9]+)?$")
_MOST_BYTES = 16 << 20
_NUMBERS = {"tag:yaml.org,2002:int": _INT, "tag:yaml.org,2002:float": _FLOAT}
_DATE = "tag:yaml.org,2002:timestamp"
# git's, where a merge was left half done
_MARKERS = ("<<<<<<<", "=======", ">>>>>>>")
_HEADER = """\
# Written by `provision lock`: the exact versions of verified hosts. apply installs exactly these, drift compares with them.
# `provision lock --update` updates it and shows what changes. Keep it in git, beside the inventory.
"""
_TEXTS = {
    "string_type": "is not a text",
    "dict_type": "is not a mapping",
    "int_type": "is not a whole number",
    "bool_type": "is not true or false",
    "list_type": "is not a list",
    "extra_forbidden": "is not known here",
    "missing": "is missing",
    "model_type": "is not a mapping",
    "float_type": "is not a number",
}


class LockedRepository(Locked):
    """A repository that locked packages come from. key: fingerprint of the key it is signed by, where that is known."""

    uri: str
    suite: str = ""
    components: str = ""
    key: str | None = None


class LockedGroup(Locked):
    """What hosts of one kind have: everything that must be equal on all of them. conda: by its path."""

    ubuntu: str
    arch: str
    driver: LockedDriver | None = None
    cuda: LockedCuda | None = None
    containers: LockedContainers | None = None
    conda: Installations = Field(default_factory=dict)
    # as their files are called: cuda
    repositories: dict[str, LockedRepository] = Field(default_factory=dict)

    # entries of the registry's other parts are extra fields
    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _of_other_parts(cls, data: Any) -> Any:
        """Read them by their parts; a field of no part is refused as everywhere."""
        extra = {name: data[name] for name in data if name not in cls.model_fields} if isinstance(data, dict) else {}
        if not extra:
            return data
        known: dict[str, Any] = {part.name: (part.locked, None) for part in in_locks() if part.name in extra}
        return {**data, **dict(create_model("Others", __base__=Locked, **known).model_validate(extra))}

    def entries(self, *, apt: bool | None = None) -> list[tuple[Part[Any, Any], Any]]:
        """Parts that are locked, with their entries. apt: only those whose packages do (or do not) come through apt."""
        found = [(part, getattr(self, part.name, None)) for part in in_locks() if apt in (None, part.apt)]
        return [(part, entry) for part, entry in found if entry]

    @property
    def by_part(self) -> dict[str, dict[str, str]]:
        """Exact Debian versions by part of a plan; parts that are not locked are left out."""
        return {part.name: dict(entry.packages) for part, entry in self.entries(apt=True)}

    @property
    def packages(self) -> dict[str, str]:
        """Exact Debian versions of all parts together."""
        return {name: version for part in self.by_part.values() for name, version in part.items()}


class LockedKernel(Locked):
    """The kernel that boots, and what belongs to it: signed modules of it, metapackages that would move it."""

    release: str
    packages: Versions = Field(default_factory=dict)


class LockedGpu(Locked):
    """A card as it was seen: width in lanes and speed in GT/s are the most that card and slot can do together."""

    slot: str
    # PCI device id
    device: str
    name: str
    uuid: str | None = None
    width: int | None = None
    speed: float | None = None
    mig: str | None = None
    numa: int | None = None


class LockedHost(Locked):
    """What a host has of its own. environments: conda environments -> digest over all packages in them.

    driver: the loaded driver, of hosts whose driver is not ours to manage (an image's, a runfile's). memory: GiB, rounded.
    """

    group: str
    driver: str | None = None
    memory: int | None = None
    kernel: LockedKernel | None = None
    gpus: list[LockedGpu] = Field(default_factory=list)
    # files of apt's sources; None: not looked at
    sources: list[str] | None = None
    environments: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True)
class HostLock:
    """The lock of one host. listed: it is in the file itself, not only like a group in it."""

    name: str
    group_name: str
    group: LockedGroup
    host: LockedHost
    listed: bool = True
    path: str = NAME

    @property
    def packages(self) -> dict[str, str]:
        """Exact Debian versions of everything locked for this host, with what belongs to its kernel."""
        return {**self.group.packages, **(self.host.kernel.packages if self.host.kernel else {})}


class Lock(Locked):
    """The whole file. inventory: the one that it was written for, relative to the file; None: not said."""

    schema_id: Literal["provision/lock/1"] = Field(default="provision/lock/1", alias="schema")
    inventory: str | None = None
    groups: dict[str, LockedGroup] = Field(default_factory=dict)
    hosts: dict[str, LockedHost] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _groups_are_there(self) -> Lock:
        for name, host in self.hosts.items():
            if host.group not in self.groups:
                nearest = difflib.get_close_matches(host.group, self.groups, n=1)
                raise _Misplaced(
                    ("hosts", name, "group"),
                    f"there is no group {host.group}",
                    f"did you mean {nearest[0]}?" if nearest else f"groups: {', '.join(self.groups) or 'none'}",
                )
        return self

    def for_host(self, name: str, path: str = NAME) -> HostLock | None:
        """The lock of a host by its name in the inventory; None for one that is not in the file."""
        host = self.hosts.get(name)
        return HostLock(name, host.group, self.groups[host.group], host, True, path) if host else None

    def members(self, group: str) -> list[str]:
        """Names of the hosts of a group."""
        return [name for name, host in self.hosts.items() if host.group == group]

    def packages_of(self, group: str) -> dict[str, set[str]]:
        """Every package of a group and of its hosts' kernels -> its versions; more than one where kernels differ."""
        found = {name: {version} for name, version in self.groups[group].packages.items()}
        for host in self.hosts.values():
            if host.group == group and host.kernel:
                for name, version in host.kernel.packages.items():
                    found.setdefault(name, set()).add(version)
        return found


class _Misplaced(ValueError):
    """A value that is wrong beside others. place: where in the file."""

    def __init__(self, place: tuple[str | int, ...], message: str, hint: str) -> None:
        super().__init__(message)
        self.place, self.hint = place, hint


# --- reading ----------------------------------------------------------------------------------------------------------


class _Loader(yaml_reader.LOADER):  # type: ignore[misc]
    """Plain numbers are numbers, and all else that is not quoted is text."""

    yaml_implicit_resolvers = {
        first: [(tag, _NUMBERS.get(tag, pattern)) for tag, pattern in known if tag != _DATE]
        for first, known in yaml_reader.LOADER.yaml_implicit_resolvers.items()
    }


class LockError(UsageError):
    """A lock that cannot be used; ``issues`` has everything that is wrong with it."""

    def __init__(self, issues: Sequence[Issue]) -> None:
        first = issues[0]
        super().__init__(first.code, first.message, because=first.because, hint=first.hint)
        self.issues = list(issues)

    def __reduce__(self) -> tuple[Any, ...]:
        return (LockError, (self.issues,))


def load(path: Path) -> Lock:
    """Read a lock. Raises LockError (exit 64) for a file that cannot be read or used, with the lines."""
    try:
        text = own_state.text(path, _MOST_BYTES)
        why = "there is no such file"
    except own_state.Damaged as damage:
        text, why = None, damage.why
    if text is None:
        raise LockError(
            [_issue(f"cannot read the lock {path}", [why], "provision lock writes one; --no-lock does without")]
        )
    return parse(text, str(path))


def parse(text: str, where: str = NAME) -> Lock:
    """Return the lock that a text says. where: its file, for errors."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            data = loader.construct_document(node) if node is not None else None
            lines = dict(_lines(node)) if node is not None else {}
            twice = list(_twice(node)) if node is not None else []
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise LockError([_not_yaml(error, text, where)]) from error
    except RecursionError as error:
        raise LockError([_issue(f"{where}: not YAML", ["an alias (*name) contains itself"], _MEND)]) from error
    except ValueError as error:
        # a tag and a value that is none of it: !!int abc
        raise LockError([_issue(f"{where}: not YAML", [str(error)], _MEND)]) from error
    if twice:
        raise LockError(
            [_issue(f"{where} line {line}: {key} occurs twice", [], "leave one of the two") for key, line in twice]
        )
    if not isinstance(data, dict):
        raise LockError([_issue(f"{where} is not a lock", ["it holds no mapping"], "provision lock writes one")])
    if data.get("schema") != SCHEMA:
        said = data.get("schema")
        because = f"it says schema: {said}" if said else "it does not say its schema"
        raise LockError(
            [
                _issue(
                    f"{where} line {lines.get(('schema',), 1)}: not a lock that this program reads",
                    [because],
                    f"schema: {SCHEMA} is what it writes and reads; provision lock -o FILE writes a new one",
                )
            ]
        )
    try:
        return Lock.model_validate(data)
    except ValidationError as error:
        raise LockError([_explained(one, lines, where) for one in error.errors()]) from error


def _issue(message: str, because: Sequence[str], hint: str) -> Issue:
    return Issue(code="lock.invalid", message=message, because=list(because), hint=hint)


_MEND = "correct the line, or restore the file from git"


def _not_yaml(error: yaml.YAMLError, text: str, where: str) -> Issue:
    merged = next((n for n, line in enumerate(text.splitlines(), 1) if line.startswith(_MARKERS)), None)
    if merged is not None:
        return _issue(
            f"{where} line {merged}: not YAML",
            ["git left the marks of a merge there"],
            "keep one of the two sides, or restore the file from git; provision lock then shows the differences",
        )
    mark = getattr(error, "problem_mark", None)
    place = f"{where} line {mark.line + 1}, column {mark.column + 1}" if mark else where
    return _issue(f"{place}: not YAML", [str(getattr(error, "problem", "") or error)], _MEND)


def _explained(error: Any, lines: Mapping[tuple[Any, ...], int], where: str) -> Issue:
    """One complaint of pydantic in our words, with the line."""
    cause = (error.get("ctx") or {}).get("error")
    if isinstance(cause, _Misplaced):
        return _issue(f"{where} line {_line(cause.place, lines)}: {cause}", [], cause.hint)
    place = tuple(part for part in error["loc"] if part != "[key]")
    name = ".".join(str(part) for part in place)
    kind, value = error["type"], error.get("input")
    hint = "docs/fleet.md describes the format"
    if kind == "extra_forbidden":
        nearest = difflib.get_close_matches(str(place[-1]), _known_keys(place), n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]}?" if nearest else hint
    elif kind == "string_type" and isinstance(value, int | float):
        hint = f'write it in quotes: "{value}"'
    elif kind == "string_pattern_mismatch":
        hint = "a Debian version, as dpkg -l shows it: 580.95.05-0ubuntu0.24.04.2"
        if "[key]" in error["loc"]:
            hint = "a package's name, as dpkg -l shows it"
    elif kind == "literal_error":
        hint = f"one of {(error.get('ctx') or {}).get('expected', '')}".replace("'", "")
    if kind == "string_pattern_mismatch":
        what = "package name" if "[key]" in error["loc"] else "Debian version"
        return _issue(f"{where} line {_line(place, lines)}: {name}: {value!r} is no {what}", [], hint)
    text_ = _TEXTS.get(kind, error["msg"][:1].lower() + error["msg"][1:])
    return _issue(f"{where} line {_line(place, lines)}: {name} {text_}", [], hint)


def _known_keys(place: Sequence[Any]) -> list[str]:
    models: list[type[BaseModel]] = [Lock, LockedGroup, LockedHost, LockedGpu, LockedKernel, LockedRepository]
    models += [model for part in in_locks() for model in part.models]
    return sorted({(f.alias or name) for model in models for name, f in model.model_fields.items()})


def _line(place: Sequence[Any], lines: Mapping[tuple[Any, ...], int]) -> int:
    """The line of a place, or of the nearest thing around it that is there."""
    for length in range(len(place), 0, -1):
        found = lines.get(tuple(place[:length]))
        if found:
            return found
    return 1


def _lines(node: yaml.Node, place: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*place, key.value)
            yield here, key.start_mark.line + 1
            yield from _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*place, index), value.start_mark.line + 1
            yield from _lines(value, (*place, index))


def _twice(node: yaml.Node) -> Iterator[tuple[str, int]]:
    """Keys that a mapping has twice: YAML takes the last one without a word."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if key.value in seen:
                yield key.value, key.start_mark.line + 1
            seen.add(key.value)
            yield from _twice(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _twice(value)


# --- writing ----------------------------------------------------------------------------------------------------------


def dump(lock: Lock) -> str:
    """Return the text of a lock: the same lock is the same text, byte for byte."""
    data: dict[str, Any] = {"schema": SCHEMA, **({"inventory": lock.inventory} if lock.inventory else {})}
    data["groups"] = {name: _plain(lock.groups[name]) for name in sorted(lock.groups)}
    data["hosts"] = {name: _plain(lock.hosts[name]) for name in sorted(lock.hosts, key=natural)}
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110, default_flow_style=False)
    return _HEADER + text


def _plain(thing: Any) -> Any:
    """Data of a model: fields in their order, names of mappings sorted, what is empty left out."""
    if isinstance(thing, BaseModel):
        fields = {name: getattr(thing, name) for name in [*type(thing).model_fields, *(thing.model_extra or {})]}
        return {name: _plain(value) for name, value in fields.items() if value not in (None, {}, [], "", False)}
    if isinstance(thing, Mapping):
        return {name: _plain(thing[name]) for name in sorted(thing, key=natural)}
    if isinstance(thing, list):
        return [_plain(item) for item in thing]
    return thing


def save(lock: Lock, path: Path) -> None:
    """Write a lock in one step, for git and colleagues to read. Raises UsageError."""
    files.write(path, dump(lock), WRITE_HINT)
