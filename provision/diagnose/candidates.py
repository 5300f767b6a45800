"""Which version of a package apt would take, from its lists and preferences as they are on a host. Pure.

A small part of apt's policy (apt_preferences(5)): enough to see that two packages of one driver would come from two
repositories. Version pins decide between versions that are not all read here: what one of them names has no answer.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from urllib.parse import urlsplit

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, driver_names
from provision.diagnose.rule import Case
from provision.facts import Preference
from provision.facts.diagnostics import AptDiagnostics, ListedPackage, RepositoryList

_INSTALLED, _DEFAULT, _TARGET, _DOWNGRADES = 100, 500, 990, 1000
_NONE = AptDiagnostics()


def apt(case: Case) -> AptDiagnostics:
    """What only diagnose reads of apt; empty where it was not asked for."""
    return case.facts.trouble.apt if case.facts.trouble else _NONE


def moved_text(case: Case) -> list[str]:
    """Who moved the driver's packages, when, and from which version to which, by apt's history: the last two runs."""
    lines = []
    for row in apt(case).transactions:
        steps = {
            (
                driver_names.upstream(change.old) if change.old else "nothing",
                driver_names.upstream(change.new),
            ): change.name
            for change in row.changes
            if change.new and driver_names.is_version_locked(change.name)
        }
        # Another revision of the same version moves nothing that the modules could miss.
        steps = {(old, new): name for (old, new), name in steps.items() if old != new}
        if steps:
            moves_ = ", ".join(f"{old} to {new}" for old, new in sorted(steps))
            lines.append(f"apt's history, {row.title}: {next(iter(steps.values()))} and its family from {moves_}")
    return lines[-2:]


@dataclass(frozen=True)
class Candidate:
    """What apt would install. source None: what is installed stays."""

    name: str
    version: str
    source: RepositoryList | None
    priority: int
    # the preference that decided
    pin: Preference | None = None
    phased: int | None = None

    @property
    def origin(self) -> str:
        """Who the version is from, as text."""
        if self.source is None:
            return "installed"
        return self.source.origin or urlsplit(self.source.uri).hostname or self.source.uri


def candidate(case: Case, name: str) -> Candidate | None:
    """Return what apt would take for a package; None where no list has it or a version pin decides."""
    facts, diagnostics = case.facts, apt(case)
    lists = {row.prefix: row for row in diagnostics.lists}
    rows: list[Candidate] = []
    for listed in _listed(case).get(name, ()):
        source = lists.get(listed.list)
        if source is None:
            continue
        priority, pin = _priority(name, source, facts.apt.preferences, _target(diagnostics))
        if pin is not None and pin.pin.startswith("version"):
            return None
        if priority < 0:
            # never installed (apt_preferences(5)); what is there of it stays
            continue
        rows.append(Candidate(name, listed.version, source, priority, pin, listed.phased))
    have = facts.packages.get(name)
    if have and have.status[1] not in "nc":
        same = [row for row in rows if row.version == have.version]
        priority = max([_INSTALLED, *(row.priority for row in same)])
        own = max(same, key=lambda row: row.priority) if same else Candidate(name, have.version, None, priority)
        rows = [row for row in rows if row.priority >= _DOWNGRADES or order(row.version, have.version) > 0]
        rows.append(own)
    elif not rows:
        return None
    return max(rows, key=cmp_to_key(_better))


def hidden(case: Case, name: str, rows: Sequence[RepositoryList]) -> list[Preference]:
    """The preferences that hide a package in every one of these repositories; empty where one of them may bring it."""
    pins = []
    for source in rows:
        priority, pin = _priority(name, source, case.facts.apt.preferences, _target(apt(case)))
        if priority >= 0 or pin is None:
            return []
        pins.append(pin)
    return pins


def moves(case: Case, name: str) -> Candidate | None:
    """The candidate of an installed package where it is newer than what is there; None where the package would stay."""
    have, found = case.facts.packages.get(name), candidate(case, name)
    if not have or have.status[1] in "nc" or found is None or found.source is None:
        return None
    return found if order(found.version, have.version) > 0 else None


def _better(one: Candidate, other: Candidate) -> int:
    return (one.priority > other.priority) - (one.priority < other.priority) or order(one.version, other.version)


def order(one: str, other: str) -> int:
    try:
        return int(deb_version.compare(one, other))
    except ValueError:
        return (one > other) - (one < other)


def _listed(case: Case) -> Mapping[str, Sequence[ListedPackage]]:
    found: dict[str, list[ListedPackage]] | None = case.__dict__.get("_listed")
    if found is None:
        found = {}
        for listed in apt(case).offers:
            found.setdefault(listed.name, []).append(listed)
        case.__dict__["_listed"] = found
    return found


def _target(diagnostics: AptDiagnostics) -> str:
    return next((row.value for row in diagnostics.settings if row.name == "apt::default-release"), "")


def _priority(
    name: str, source: RepositoryList, preferences: Sequence[Preference], target: str
) -> tuple[int, Preference | None]:
    """(priority, preference that gives it) of a version: the first that names the package, else the first for all."""
    for general in (False, True):
        for row in preferences:
            if (
                (row.package.strip() == "*") is general
                and _names(row.package, name, general)
                and _fits(row.pin, source)
            ):
                return row.priority, row
    if target and target in (*source.release,):
        return _TARGET, None
    if not source.automatic:
        return (100 if source.upgrades else 1), None
    return _DEFAULT, None


def _names(patterns: str, name: str, general: bool) -> bool:
    for pattern in patterns.split():
        if pattern.startswith("/") and pattern.endswith("/") and len(pattern) > 1:
            try:
                if re.search(pattern[1:-1], name):
                    return True
            except re.error:
                continue
        elif fnmatch.fnmatchcase(name, pattern):
            return True
    return general


def _fits(pin: str, source: RepositoryList) -> bool:
    kind, _, rest = pin.partition(" ")
    rest = rest.strip()
    if kind == "version":
        return True
    if kind == "origin":
        host = urlsplit(source.uri).hostname or ""
        return fnmatch.fnmatchcase(host, rest.strip("\"'")) or rest in ('""', "''") and source.uri.startswith("file:")
    if kind != "release":
        return False
    if "=" not in rest:
        # NVIDIA's repositories have neither suite nor codename
        return rest == "*" or any(fnmatch.fnmatchcase(one, rest) for one in source.release)
    has: dict[str, list[str | None]] = {
        "o": [source.origin],
        "l": [source.label],
        "a": [*source.release[:1]],
        "n": [*source.release[-1:]],
    }
    for word in rest.split(","):
        key, _, value = word.strip().partition("=")
        if key not in has:
            # version, component, architecture: not told apart here
            continue
        if not any(fnmatch.fnmatchcase(one or "", value.strip("\"'")) for one in has[key]):
            return False
    return True
