"""What a lock needs of a mirror: sets of packages for apt, repositories with their keys, conda. Pure.

``Seen`` is what a verified host says (module_utils/mirrorread); without one, the catalog and this machine's keyrings do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils import aptfiles, names
from provision.catalog import Catalog
from provision.errors import UsageError
from provision.lock.model import Lock, LockedGroup, LockedRepository
from provision.mirror import layout
from provision.repositories import ARCHIVE_NAME

# File names of our sources -> the catalog's names of repositories, and the variables that give their keys.
KINDS = {"cuda": "cuda", "container-toolkit": "container_toolkit", "ppa": "ppa"}
_KEYS = {
    "cuda": ("nvidia_driver_repo_key", "cuda_toolkit_repo_key"), "container-toolkit": ("container_toolkit_repo_key",),
    "ppa": ("nvidia_driver_ppa_key",),
}  # fmt: skip


@dataclass(frozen=True)
class Upstream:
    """Where Ubuntu's archive is, when the user says so. key: file of its keyring, on the machine that fetches."""

    archive: str = ""
    key: str = ""


@dataclass
class Need:
    """What hosts of one release and architecture need of apt."""

    ubuntu: str
    arch: str
    codename: str
    sets: list[list[str]] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    base: list[list[str]] = field(default_factory=list)

    @property
    def label(self) -> str:
        return f"{self.ubuntu} {self.arch}"

    @property
    def asked(self) -> list[str]:
        """Every name=version of all sets, once."""
        return sorted({item for one in self.sets for item in one})


def needs(
    lock: Lock, seen: Mapping[str, Mapping[str, Any]], values: Mapping[str, Mapping[str, Any]], catalog: Catalog,
    upstream: Upstream = Upstream(), also: Iterable[str] = (),
) -> list[Need]:  # fmt: skip
    """Return what a lock needs, a Need for each release and architecture in it.

    seen: host -> what mirrorread says of it; values: host -> its role variables; also: further packages, by name or
    name=version, whose newest version is taken.
    """
    found: dict[tuple[str, str], Need] = {}
    for name, group in lock.groups.items():
        codename = catalog.ubuntu(group.ubuntu).codename
        need = found.setdefault((group.ubuntu, group.arch), Need(group.ubuntu, group.arch, codename))
        members = lock.members(name)
        host = next((one for one in members if one in seen), None)
        read = seen[host] if host else None
        need.sets += [[*one, *also] for one in _sets(lock, name) if one or also]
        for source in _sources(group, read, values.get(host or "", {}), catalog, upstream):
            if not any(_same(source, other) for other in need.sources):
                need.sources.append({**source, "name": f"{source['name']}-{len(need.sources)}"})
        need.base = need.base or (list(read["packages"]) if read else [])
    return [need for need in found.values() if need.sets]


def _sets(lock: Lock, group: str) -> list[list[str]]:
    """Packages that are on one host together: those of the group, with those of each kernel."""
    common = lock.groups[group].packages
    kernels = [lock.hosts[name].kernel for name in lock.members(group)]
    found = []
    for packages in [kernel.packages for kernel in kernels if kernel] or [{}]:
        items = sorted(f"{name}={version}" for name, version in {**common, **packages}.items())
        if items and items not in found:
            found.append(items)
    modules = _modules(lock.groups[group])
    return [*found, [modules]] if modules else found


def _modules(group: LockedGroup) -> str:
    """The package of the modules' source: resolve tells by it which versions a repository has, also where signed ones are taken.

    So a host with a kernel that the lock does not know can build them, too.
    """
    driver = group.driver
    if driver is None:
        return ""
    name = names.module_package(driver.channel, driver.series, driver.flavour)
    versions = [
        v
        for n, v in driver.packages.items()
        if names.is_version_locked(n) and names.upstream(v) == driver.version
    ]
    return f"{name}={versions[0]}" if versions and name not in driver.packages else ""


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one["path"] == other["path"] and set(one["suites"].split()) <= set(other["suites"].split())


def _sources(
    group: LockedGroup,
    read: Mapping[str, Any] | None,
    values: Mapping[str, Any],
    catalog: Catalog,
    upstream: Upstream,
) -> list[dict[str, Any]]:
    found = _archive(group, read, catalog, upstream)
    mirror = str(values.get("gpu_mirror_url") or "")
    for name, repository in group.repositories.items():
        if name in KINDS:
            of_mirror = bool(mirror) and _below(repository.uri, mirror)
            found.append(_vendor(name, repository, group, read, values, catalog, of_mirror))
    return found


def _below(uri: str, mirror: str) -> bool:
    return uri.replace("file:///", "file:/").startswith(
        mirror.replace("file:///", "file:/").rstrip("/") + "/"
    )


def _archive(
    group: LockedGroup, read: Mapping[str, Any] | None, catalog: Catalog, upstream: Upstream
) -> list[dict[str, Any]]:
    """The archive's suites: where the user says, where a host has them, else where Ubuntu has them."""
    path, suites = (
        layout.archive_path(group.arch),
        layout.archive_suites(catalog.ubuntu(group.ubuntu).codename),
    )
    spec = {"name": "archive", "path": path, "suites": suites, "components": layout.COMPONENTS}
    key = (
        {"key": read["archive_key"]}
        if read and read.get("archive_key")
        else {"signed_by": layout.ARCHIVE_KEYRING}
    )
    if upstream.key:
        key = {"signed_by": upstream.key}
    if upstream.archive or not read:
        return [{**spec, **key, "uris": (upstream.archive or layout.ARCHIVE_URLS[path]).rstrip("/") + "/"}]
    rows: dict[str, list[str]] = {}
    keys: dict[str, Any] = {}
    own = aptfiles.sources_path(ARCHIVE_NAME)
    for suite in suites.split():
        entry = next(
            (e for e in read["sources"] if e["file"] != own and suite in e["suites"] and _is_archive(e)), None
        )
        uri = entry["uris"][0] if entry else layout.ARCHIVE_URLS[path]
        rows.setdefault(uri.rstrip("/") + "/", []).append(suite)
        keys.setdefault(uri.rstrip("/") + "/", entry and entry["key"])
    return [
        {**spec, **({"key": keys[uri]} if keys[uri] and not upstream.key else key), "uris": uri, "suites": " ".join(listed)}
        for uri, listed in rows.items()
    ]  # fmt: skip


def _is_archive(entry: Mapping[str, Any]) -> bool:
    paths = [urlsplit(uri).path.rstrip("/") for uri in entry["uris"]]
    return bool(entry["components"]) and any(path.endswith(("/ubuntu", "/ubuntu-ports")) for path in paths) and not any(
        "/ppa/" in path for path in paths
    )  # fmt: skip


def _vendor(
    name: str, locked: LockedRepository, group: LockedGroup, read: Mapping[str, Any] | None, values: Mapping[str, Any],
    catalog: Catalog, of_mirror: bool,
) -> dict[str, Any]:  # fmt: skip
    """A repository of NVIDIA's: where verified hosts have it, or the original where that is a mirror of ours."""
    kind = KINDS[name]
    original = catalog.repository(kind, ubuntu=group.ubuntu, arch=group.arch)
    uri = original.url if of_mirror else locked.uri.replace("$(ARCH)", group.arch)
    fingerprint = original.fingerprint if of_mirror else locked.key or original.fingerprint
    spec: dict[str, Any] = {
        "name": name, "path": layout.repository_path(kind, group.ubuntu, group.arch, catalog), "uris": uri.rstrip("/") + "/",
        "suites": locked.suite or original.suite, "components": locked.components or original.components,
        "fingerprint": fingerprint, "key_name": layout.key_name(original),
    }  # fmt: skip
    given = next((str(values[one]) for one in _KEYS[name] if values.get(one)), "")
    path = aptfiles.sources_path(name)
    entry = next((e for e in (read or {}).get("sources", ()) if e["file"] == path and e["key"]), None)
    if entry and not of_mirror:
        spec["key"] = entry["key"]
    elif "BEGIN PGP" in given:
        spec["key"] = given
    elif fingerprint and original.key_url:
        spec["key_url"] = (
            original.key_url if _same_place(uri, original.url) else f"{uri.rstrip('/')}/{spec['key_name']}"
        )
    else:
        raise UsageError(
            "mirror.no_key", f"nobody says by which key {uri} is signed",
            because=["the lock has no fingerprint of it, the catalog neither, and no verified host of the group was read"],
            hint="run it where a host of the lock can be reached: hosts have the key",
        )  # fmt: skip
    return spec


def _same_place(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")
