"""What apt has for one host, as data, and the few questions that resolve asks of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, driver_names

_RELATION = re.compile(r"^\s*(?P<name>[^\s:(]+)(?::\S+)?\s*(?:\(\s*(?P<op><<|<=|=|>=|>>)\s*(?P<version>[^)\s]+)\s*\))?")


@dataclass(frozen=True)
class Relation:
    """One alternative of a dependency: name, operator (``=``, ``>=``, …) or None, version or None."""

    name: str
    op: str | None = None
    version: str | None = None

    def allows(self, version: str) -> bool:
        """True when a package of that Debian version satisfies the relation."""
        if self.op is None or self.version is None:
            return True
        order = deb_version.compare(version, self.version)
        return bool({"<<": order < 0, "<=": order <= 0, "=": order == 0, ">=": order >= 0, ">>": order > 0}[self.op])


def relations(text: str | None) -> list[list[Relation]]:
    """Parse a Depends or Provides field: a list of groups, each a list of alternatives."""
    groups = []
    for group in (text or "").split(","):
        alternatives = [
            Relation(match["name"], match["op"], match["version"])
            for match in (_RELATION.match(item) for item in group.split("|"))
            if match
        ]
        if alternatives:
            groups.append(alternatives)
    return groups


@dataclass(frozen=True)
class Candidate:
    """One version of a package in one repository."""

    name: str
    version: str
    depends: str = ""
    provides: str = ""
    uri: str = ""
    suite: str = ""
    component: str = ""
    origin: str = ""
    size: int = 0
    conflicts: str = ""
    # URIs of other repositories that have the same version
    also: tuple[str, ...] = ()

    @property
    def uris(self) -> tuple[str, ...]:
        """Every repository that has it."""
        return (self.uri, *self.also)

    @property
    def upstream(self) -> str:
        """Upstream version: what the driver calls its version."""
        return str(driver_names.upstream(self.version))

    @property
    def other_series(self) -> str | None:
        """The series that a transitional package leads to, None for a genuine one.

        The archive turns ended branches into packages that only depend on another branch; the description often
        does not say so. Source: canonical/nvidia-graphics-drivers, 2025-07 to 2026-04 (470, 535, 570, 590).
        """
        own = driver_names.parse(self.name)
        if own is None or own.branch is None:
            return None
        driver = [driver_names.parse(relation.name) for group in relations(self.depends) for relation in group]
        series = {package.series for package in driver if package is not None and package.branch is not None}
        if series and own.series not in series:
            return str(sorted(series)[0])
        return None


@dataclass
class Candidates:
    """Candidates by package name, newest first, of the sources that one channel means."""

    packages: dict[str, list[Candidate]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @classmethod
    def from_json(cls, data: dict[str, Any], keep: Any = None) -> Candidates:
        """Read apt.query's answer; keep(candidate) filters the repositories of a channel."""
        packages: dict[str, list[Candidate]] = {}
        for name, rows in data["packages"].items():
            found = [
                Candidate(
                    name=name,
                    version=row["version"],
                    depends=row.get("depends") or "",
                    provides=row.get("provides") or "",
                    uri=row.get("uri") or "",
                    suite=row.get("suite") or "",
                    component=row.get("component") or "",
                    origin=row.get("origin") or "",
                    size=int(row.get("size") or 0),
                    conflicts=row.get("conflicts") or "",
                    also=tuple(row.get("also") or ()),
                )
                for row in rows
            ]
            found = [candidate for candidate in found if keep is None or keep(candidate)]
            if found:
                packages[name] = found
        return cls(packages, list(data.get("errors") or []))

    def versions(self, name: str) -> list[Candidate]:
        """Candidates of a package, newest first."""
        return self.packages.get(name, [])

    def at(self, name: str, upstream: str) -> Candidate | None:
        """The newest candidate of a package with that upstream version."""
        return next((c for c in self.versions(name) if c.upstream == upstream), None)

    def named(self, pattern: str) -> Iterator[str]:
        """Package names that match a regular expression as a whole."""
        expression = re.compile(pattern)
        return (name for name in self.packages if expression.fullmatch(name))


def closure(
    top: Iterable[str], available: Candidates, upstream: str, skip_bases: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Return {package: Debian version} for the driver packages that ``top`` needs, all at one upstream version.

    A version on the metapackage alone lets its dependencies float (scenario G4), so every package of the family that
    must carry the driver's version is pinned. skip_bases: bases that another chosen package provides (the DKMS
    package, where signed modules are installed). Companions (nvidia-settings, …) are pinned too where they are available
    at the driver's version, as NVIDIA's repository does, or where a member of the family asks for an exact one. Names
    that are not available so are left to apt.
    """
    chosen: dict[str, str] = {}
    todo: list[Relation] = [Relation(name) for name in top]
    while todo:
        wanted = todo.pop()
        package = driver_names.parse(wanted.name)
        if wanted.name in chosen or package is None or package.base in skip_bases:
            continue
        candidate = available.at(wanted.name, upstream)
        if candidate is None and not driver_names.is_version_locked(wanted.name):
            exact = (c for c in available.versions(wanted.name) if wanted.op == "=" and wanted.allows(c.version))
            candidate = next(exact, None)
        if candidate is None:
            continue
        chosen[wanted.name] = candidate.version
        for group in relations(candidate.depends):
            todo += group
    return chosen
