"""What a lock needs of a mirror: sets of packages for apt, repositories with their keys, conda.

A verified host (``seen``, module_utils/mirrorread) says where it takes packages from and lends its keyrings. Which address and
which key is right, catalog and inventory say: a mirror that is signed anew decides what every host installs.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names, openpgp
from provision.catalog import Catalog
from provision.errors import RefusedError, UsageError
from provision.inventory import mirror_layout
from provision.inventory.repositories import ARCHIVE_NAME, archive_key
from provision.lock.make import REPOSITORIES as LOCKED
from provision.lock.model import Lock, LockedGroup, LockedRepository
from provision.parts.desired import repository_variables


@dataclass(frozen=True)
class Upstream:
    """Where Ubuntu's archive is, when the user says so. key: fingerprint, or file on this machine."""

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
    lock: Lock,
    seen: Mapping[str, Mapping[str, Any]],
    values: Mapping[str, Mapping[str, Any]],
    catalog: Catalog,
    upstream: Upstream = Upstream(),
    also: Iterable[str] = (),
) -> list[Need]:
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
        of_host = values.get(host or next((one for one in members if one in values), ""), {})
        need.sets += [[*one, *also] for one in _sets(lock, name) if one or also]
        for source in _sources(group, host or "", read, of_host, catalog, upstream):
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
    name = driver_names.module_package(driver.channel, driver.series, driver.flavour)
    versions = [
        v
        for n, v in driver.packages.items()
        if driver_names.is_version_locked(n) and driver_names.upstream(v) == driver.version
    ]
    return f"{name}={versions[0]}" if versions and name not in driver.packages else ""


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one["path"] == other["path"] and set(one["suites"].split()) <= set(other["suites"].split())


def _sources(
    group: LockedGroup,
    host: str,
    read: Mapping[str, Any] | None,
    values: Mapping[str, Any],
    catalog: Catalog,
    upstream: Upstream,
) -> list[dict[str, Any]]:
    upstream = Upstream(
        upstream.archive or str(values.get("gpu_mirror_archive_url") or ""),
        upstream.key or str(values.get("gpu_mirror_archive_key") or ""),
    )
    found = _archive(group, host, read, catalog, upstream)
    mirror = str(values.get("gpu_mirror_url") or "")
    for name, repository in group.repositories.items():
        # Locks name them as the catalog does; a person may write what their files are called.
        kind = name.replace("-", "_")
        if kind in LOCKED:
            of_mirror = bool(mirror) and _below(repository.uri, mirror)
            found.append(_vendor(kind, repository, group, read, values, catalog, of_mirror))
    return found


def _below(uri: str, mirror: str) -> bool:
    return uri.replace("file:///", "file:/").startswith(mirror.replace("file:///", "file:/").rstrip("/") + "/")


def _archive(
    group: LockedGroup, host: str, read: Mapping[str, Any] | None, catalog: Catalog, upstream: Upstream
) -> list[dict[str, Any]]:
    """The archive's suites: where the user says, where a host has them on Ubuntu's servers, else where Ubuntu has them.

    Raises RefusedError for a host that takes the archive from elsewhere, or has none of its keys.
    """
    path, suites = (
        mirror_layout.archive_path(group.arch),
        mirror_layout.archive_suites(catalog.ubuntu(group.ubuntu).codename),
    )
    own = apt_files.sources_path(ARCHIVE_NAME)
    listed = [e for e in (read["sources"] if read else ()) if e["file"] != own and _is_archive(e)]
    entries = [next((e for e in listed if suite in e["suites"]), None) for suite in suites.split()]
    rows: dict[str, list[str]] = {}
    for suite, entry in zip(suites.split(), entries, strict=True):
        uri = upstream.archive or (entry["uris"][0] if entry else mirror_layout.ARCHIVE_URLS[path])
        if uri != upstream.archive and not catalog.is_archive(uri):
            raise RefusedError(
                "mirror.archive_unknown",
                f"{host} takes Ubuntu's archive from {uri}, which the catalog does not know",
                because=[
                    "an archive that replays old lists is signed, too",
                    "a host does not decide where a mirror copies from",
                ],
                hint="if that is an archive of your own, say --archive URL, or gpu_mirror_archive_url in the inventory",
            )
        rows.setdefault(uri.rstrip("/") + "/", []).append(suite)
    fingerprints, ring = archive_key(upstream.key, catalog)
    lent = [text for text in (*(e["key"] for e in entries if e), read and read["archive_key"]) if text]
    ring = ring or _ring(lent, fingerprints)
    if lent and not ring:
        raise RefusedError(
            "mirror.archive_key_unknown",
            f"{host} has no key of Ubuntu's archive that the catalog knows",
            because=[f"known: {' '.join(fingerprints)}", "a host does not decide which key is right"],
            hint="check the keyrings there; for your own archive give --archive-key FILE or FINGERPRINT, or "
            "gpu_mirror_archive_key in the inventory",
        )
    key = {"key": ring} if ring else {"signed_by": mirror_layout.ARCHIVE_KEYRING}
    return [
        {
            "name": "archive",
            "path": path,
            "suites": " ".join(of_uri),
            "components": mirror_layout.COMPONENTS,
            "uris": uri,
            "fingerprint": fingerprints,
            **key,
        }
        for uri, of_uri in rows.items()
    ]


def _ring(lent: Iterable[str], fingerprints: list[str]) -> str | None:
    """Of the keyrings that a host lends, the keys that are wanted; base64."""
    found: dict[bytes, None] = {}
    for text in lent:
        try:
            found[openpgp.only(base64.b64decode(text), fingerprints)] = None
        except ValueError:
            # no keyring
            continue
    ring = b"".join(found)
    return base64.b64encode(ring).decode("ascii") if ring else None


def _is_archive(entry: Mapping[str, Any]) -> bool:
    paths = [urlsplit(uri).path.rstrip("/") for uri in entry["uris"]]
    return (
        bool(entry["components"])
        and any(path.endswith(("/ubuntu", "/ubuntu-ports")) for path in paths)
        and not any("/ppa/" in path for path in paths)
    )


def _vendor(
    kind: str,
    locked: LockedRepository,
    group: LockedGroup,
    read: Mapping[str, Any] | None,
    values: Mapping[str, Any],
    catalog: Catalog,
    of_mirror: bool,
) -> dict[str, Any]:
    """A repository of NVIDIA's: where verified hosts have it, or the original where that is a mirror of ours."""
    name, variables = kind.replace("_", "-"), repository_variables(kind)
    original = catalog.repository(kind, ubuntu=group.ubuntu, arch=group.arch)
    uri = original.url if of_mirror else locked.uri.replace("$(ARCH)", group.arch)
    fingerprint = original.fingerprint if of_mirror else locked.key or original.fingerprint
    spec: dict[str, Any] = {
        "name": name,
        "path": mirror_layout.repository_path(kind, group.ubuntu, group.arch, catalog),
        "uris": uri.rstrip("/") + "/",
        "suites": locked.suite or original.suite,
        "components": locked.components or original.components,
        "fingerprint": fingerprint,
        "key_name": mirror_layout.key_name(original),
    }
    given = next((str(values[one]) for one in (f"{prefix}_key" for prefix in variables) if values.get(one)), "")
    path = apt_files.sources_path(name)
    entry = next((e for e in (read or {}).get("sources", ()) if e["file"] == path and e["key"]), None)
    if entry and fingerprint and not of_mirror:
        spec["key"] = entry["key"]
    elif "BEGIN PGP" in given:
        spec["key"] = given
    elif fingerprint and original.key_url:
        spec["key_url"] = (
            original.key_url if _same_place(uri, original.url) else f"{uri.rstrip('/')}/{spec['key_name']}"
        )
    else:
        raise UsageError(
            "mirror.no_key",
            f"nobody says by which key {uri} is signed",
            because=["the lock has no fingerprint of it, the catalog neither, and a key from a host is not trusted"],
            hint=f"set {variables[0]}_key_fingerprint to the fingerprint as the vendor states it, and lock again",
        )
    return spec


def _same_place(one: str, other: str) -> bool:
    return one.rstrip("/") == other.rstrip("/")
