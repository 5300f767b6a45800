"""Which packages make a CUDA toolkit: the set of a release from apt's candidates, and what dpkg has of one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, deb_version, driver_names
from provision.facts import Package
from provision.parts.candidates import Candidate, Candidates, Relation, relations
from provision.parts.decision import CHANNELS, join_and

_CONFIG = "cuda-toolkit-config-common"
# Brings what a toolkit is made of; one of these says that a toolkit is meant, not a library that another package needs.
_METAPACKAGES = (
    "cuda-toolkit",
    "cuda-libraries",
    "cuda-libraries-dev",
    "cuda-minimal-build",
    "cuda-compiler",
    "cuda-tools",
    "cuda-command-line-tools",
    "cuda",
    "cuda-runtime",
)

Packages = Mapping[str, Package]
by_version: Callable[[str], Any] = deb_version.key


def is_there(packages: Packages, name: str) -> bool:
    """True when dpkg has anything of a package but its configuration."""
    package = packages.get(name)
    return package is not None and package.status[1] not in "nc"


def of_kind(packages: Packages, kind: str) -> list[str]:
    """Names of CUDA packages of a kind that dpkg has, sorted."""
    parsed = ((name, cuda_names.parse(name, row.version)) for name, row in packages.items() if row.there)
    return sorted(name for name, package in parsed if package and package.kind == kind)


def is_part(name: str) -> bool:
    """True for a part of a toolkit that a set may hold: none of what pulls a driver, no forward compatibility."""
    package = cuda_names.parse(name)
    return package is not None and package.kind == "toolkit"


def parts_of(packages: Iterable[str], version: str) -> list[str]:
    """Names of the parts of one toolkit ("12.4") among some names."""
    found = []
    for name in packages:
        package = cuda_names.parse(name)
        if package is not None and package.kind == "toolkit" and package.version == version:
            found.append(name)
    return sorted(found)


def installed_toolkits(packages: Packages) -> list[str]:
    """Minors of which dpkg has a toolkit, oldest first; single libraries that other software brought are none."""
    found = set()
    for name in packages:
        package = cuda_names.parse(name)
        if package is not None and package.version and package.base in _METAPACKAGES and is_there(packages, name):
            found.add(package.version)
    return sorted(found, key=lambda version: [int(part) for part in version.split(".")])


def installed_channels(packages: Packages) -> dict[str, str]:
    """Return {minor of an installed toolkit: channel}; "ubuntu, cuda" where its parts are of both."""
    found = {}
    for version in installed_toolkits(packages):
        rows = [packages[name].version for name in parts_of(packages, version) if is_there(packages, name)]
        found[version] = ", ".join(sorted({cuda_names.channel(row) for row in rows}, reverse=True))
    return found


def shared_from(packages: Packages, channel: str) -> list[str]:
    """Installed packages that toolkits share (cuda-toolkit-config-common and its kin) and that are not from a channel.

    apt takes them from whoever has the newer ones, whichever toolkit asks (seen in the lab with both repositories).
    """
    return [
        name
        for name, row in packages.items()
        if row.there and is_shared(name) and cuda_names.channel(row.version) != channel
    ]


def is_shared(name: str) -> bool:
    """True for the configuration packages that belong to no single toolkit."""
    package = cuda_names.parse(name)
    return package is not None and package.base == _CONFIG and not package.version


def of_channels(channel: str) -> str:
    """A value of installed_channels as text."""
    return join_and([CHANNELS[one] for one in channel.split(", ")])


def purge(versions: Iterable[str]) -> str:
    """A command that removes toolkits ("13.1") with every package that carries their number."""
    return "apt-get purge " + " ".join(f"'~i~n-{version.replace('.', '-')}$'" for version in versions)


def installed_release(packages: Packages, version: str, profile: str) -> str | None:
    """Release of a toolkit that dpkg has, by the metapackage of the profile; None where that is not there."""
    name = cuda_names.release_package(version, profile)
    return cuda_names.release(packages[name].version) if is_there(packages, name) else None


def whole(packages: Packages, version: str, profile: str) -> list[str] | None:
    """Names of an installed toolkit with all that it depends on; None where anything is missing, broken or too old.

    Judged by the Depends fields that dpkg has; names of other products are apt's business.
    """
    todo = [*cuda_names.top_packages(version, profile), *parts_of(_there(packages), version)]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        package = packages.get(name)
        if package is None or not package.installed:
            return None
        seen.add(name)
        for group in relations(package.depends):
            own = [relation for relation in group if is_part(relation.name)]
            if not own:
                continue
            met = [r.name for r in own if _meets(packages, r)]
            if met:
                todo.append(met[0])
            elif len(own) == len(group) and not _provided(packages, group):
                return None
    return sorted(seen)


def _there(packages: Packages) -> list[str]:
    return [name for name in packages if is_there(packages, name)]


def _meets(packages: Packages, relation: Relation) -> bool:
    package = packages.get(relation.name)
    return package is not None and package.installed and relation.allows(package.version)


def _provided(packages: Packages, group: list[Relation]) -> bool:
    """A name without a package of its own that a part stands in for: cuda-cub-13-0 is cuda-cccl-13-0."""
    stand_ins = {"cuda-cub": "cuda-cccl", "cuda-thrust": "cuda-cccl"}
    for relation in group:
        package = cuda_names.parse(relation.name)
        base = stand_ins.get(package.base) if package else None
        if base and is_there(packages, relation.name.replace(package.base, base)):
            return True
    return False


@dataclass
class ReleaseSet:
    """The packages of one release of a toolkit, as apt has them."""

    release: str
    # name: Debian version
    chosen: dict[str, str] = field(default_factory=dict)
    # what is needed and not available, as text
    missing: list[str] = field(default_factory=list)
    # "cuda-toolkit-12-4 needs cuda-drivers"
    drivers: list[str] = field(default_factory=list)


def releases_of(available: Candidates, version: str, profile: str) -> list[str]:
    """Releases of a toolkit that a repository has, newest first."""
    name = cuda_names.release_package(version, profile)
    return list(dict.fromkeys(cuda_names.release(c.version) for c in available.versions(name)))


def release_set(
    available: Candidates, version: str, profile: str, release: str, more: Iterable[str] = ()
) -> ReleaseSet:
    """Work out the set that a release was made of.

    Of every part the lowest available version that satisfies each relation of the release's metapackages and of what they
    bring: NVIDIA writes ``>=`` with the version of that release, so that anything higher is of a later one. more: parts
    that are installed beyond the profile and go along. Recommendations are not followed, and nothing that is the
    driver's, or that brings it, is ever taken.
    """
    found = ReleaseSet(release)
    bounds = _bounds_of_release(available, version, release)
    top = cuda_names.top_packages(version, profile)
    roots = [*top, *[name for name in more if available.versions(name)]]
    for name in top:
        at = [c.version for c in available.versions(name) if cuda_names.release(c.version) == release]
        if at:
            bounds.setdefault(name, []).append(Relation(name, "=", at[0]))
    # A part may tighten what was chosen before it was seen: gone through again until nothing moves.
    while True:
        before = {name: len(rows) for name, rows in bounds.items()}
        found = _walk(available, roots, bounds, release, version)
        if before == {name: len(rows) for name, rows in bounds.items()}:
            return found


def _bounds_of_release(available: Candidates, version: str, release: str) -> dict[str, list[Relation]]:
    """What the metapackages of a release say of its parts, also those outside the profile."""
    bounds: dict[str, list[Relation]] = {}
    for name in parts_of(available.packages, version):
        for candidate in available.versions(name):
            if cuda_names.release(candidate.version) == release:
                _add(bounds, candidate)
    return bounds


def _add(bounds: dict[str, list[Relation]], candidate: Candidate) -> None:
    for group in relations(candidate.depends):
        for relation in group if len(group) == 1 else ():
            rows = bounds.setdefault(relation.name, [])
            if relation.op and relation not in rows:
                rows.append(relation)


def _walk(
    available: Candidates, roots: list[str], bounds: dict[str, list[Relation]], release: str, version: str
) -> ReleaseSet:
    found = ReleaseSet(release)
    todo = [(name, "") for name in reversed(roots)]
    while todo:
        name, because = todo.pop()
        if name in found.chosen:
            continue
        candidate = _lowest(available, name, bounds.get(name, ()))
        if candidate is None:
            want = " and ".join(f"{r.op} {r.version}" for r in bounds.get(name, ()) if r.op) or "any version"
            found.missing.append(f"{name} ({want}){because}")
            continue
        found.chosen[name] = candidate.version
        _add(bounds, candidate)
        for group in relations(candidate.depends):
            own = [relation for relation in group if is_part(relation.name)]
            if own:
                listed = [r.name for r in own if available.versions(r.name)]
                if listed or len(own) == len(group):
                    todo.append(((listed or [own[0].name])[0], f", which {name} needs"))
            elif all(_is_drivers(relation.name) for relation in group):
                found.drivers.append(f"{name} needs {' | '.join(relation.name for relation in group)}")
    _settle_config(available, found, bounds, version)
    return found


def _is_drivers(name: str) -> bool:
    package = cuda_names.parse(name)
    return driver_names.is_driver_package(name) or (package is not None and package.kind == "meta_with_driver")


def _lowest(available: Candidates, name: str, bounds: Iterable[Relation]) -> Candidate | None:
    fit = [c for c in available.versions(name) if all(relation.allows(c.version) for relation in bounds)]
    return min(fit, key=lambda candidate: by_version(candidate.version), default=None)


def _settle_config(available: Candidates, found: ReleaseSet, bounds: dict[str, list[Relation]], version: str) -> None:
    """The shared configuration packages are asked for without a version; they come from the source of cudart.

    Source: control files of cuda-toolkit-config-common 13.0.96 and its kin (Source: cuda-cudart).
    """
    cudart = found.chosen.get(f"cuda-cudart-{version.replace('.', '-')}")
    for name in found.chosen:
        package = cuda_names.parse(name)
        if cudart and package is not None and package.base == _CONFIG:
            own = [*bounds.get(name, ()), Relation(name, ">=", cudart)]
            candidate = _lowest(available, name, own)
            if candidate is not None:
                found.chosen[name] = candidate.version


def to_change(packages: Packages, found: ReleaseSet, exactly: bool) -> dict[str, str]:
    """What of a set apt is asked for: all that is missing, unfinished or older.

    exactly: what is newer goes back too (an older release was asked for). What toolkits share goes back to their channel.
    """
    changes = {}
    for name, version in found.chosen.items():
        have = packages.get(name)
        if have is not None and have.installed:
            order = deb_version.compare(have.version, version)
            mixed = is_shared(name) and cuda_names.channel(have.version) != cuda_names.channel(version)
            if order == 0 or (order > 0 and not exactly and not mixed):
                continue
        changes[name] = version
    return changes


def only_theirs(packages: Packages, versions: Iterable[str], keep: Iterable[str]) -> list[str]:
    """Installed packages that go with toolkits ("11.8"): their parts, what pulls a driver for them, and what only they need.

    keep: names that stay whatever happens. What a package that stays depends on stays as well.
    """
    kept, minors = set(keep), set(versions)
    going = set()
    for name in _there(packages):
        package = cuda_names.parse(name)
        if package is not None and package.kind in ("toolkit", "meta_with_driver") and package.version in minors:
            going.add(name)
    going |= _leading_to(packages, going)
    while True:
        needed = {n for n in going if _needed(packages, n, going)}
        shared = {
            n
            for n in _there(packages)
            if n not in going | kept and _belongs_to_none(n) and _used_only_by(packages, n, going)
        }
        if not needed and not shared:
            return sorted(going)
        going = (going - needed) | shared


def _leading_to(packages: Packages, going: set[str]) -> set[str]:
    """Metapackages that lead to the newest toolkit, where that one goes: cuda, cuda-toolkit."""
    found = set()
    for name in _there(packages):
        package = cuda_names.parse(name)
        if package is None or not package.floating or package.kind == "cudnn":
            continue
        if any(r.name in going for group in relations(packages[name].depends) for r in group):
            found.add(name)
    return found


def _belongs_to_none(name: str) -> bool:
    """A part that names no toolkit: nsight-compute-2025.3.1, cuda-toolkit-13-config-common."""
    package = cuda_names.parse(name)
    return package is not None and package.kind == "toolkit" and not package.version


def _users(packages: Packages, name: str) -> set[str]:
    return {
        other
        for other in _there(packages)
        if other != name and any(r.name == name for group in relations(packages[other].depends) for r in group)
    }


def _used_only_by(packages: Packages, name: str, going: set[str]) -> bool:
    users = _users(packages, name)
    return bool(users) and users <= going


def _needed(packages: Packages, name: str, going: set[str]) -> bool:
    """A package that stays depends on it, and nothing else that stays would do."""
    for other in _users(packages, name) - going:
        for group in relations(packages[other].depends):
            if any(r.name == name for r in group):
                others = {r.name for r in group} - going
                if not any(is_there(packages, alternative) for alternative in others):
                    return True
    return False
