"""Which repository of the catalog a source means, and which of several entries of one stays. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from provision.catalog import Repository
from provision.diagnose.candidates import apt
from provision.diagnose.rule import Case
from provision.errors import ProvisionError
from provision.facts import Source
from provision.facts.diagnostics import Keyring
from provision.parts.addresses import place

# Where NVIDIA's keyring package and its instructions for the container toolkit put their entry.
_OF_PACKAGE = re.compile(r"/(?:cuda-(?:ubuntu|debian)[0-9]+-[a-z0-9_]+|nvidia-container-toolkit)\.(?:list|sources)$")
OURS = "/etc/apt/sources.list.d/gpu-provision-"


_VENDORS = re.compile(
    r"^(?:developer\.download\.nvidia\.(?:com|cn)|nvidia\.github\.io|ppa\.launchpad(?:content)?\.net)/"
)


def is_vendors(uri: str) -> bool:
    """True for the vendor's own server, false for a mirror of it, whose key may be the mirror's own."""
    return bool(_VENDORS.match(apt_sources.normalise(uri) + "/"))


def of_catalog(case: Case, name: str) -> Repository | None:
    """The catalog's repository for this host; None where it has none for this release or architecture."""
    try:
        return case.catalog.repository(name, ubuntu=case.facts.host.os.version_id, arch=case.facts.host.arch)
    except ProvisionError:
        return None


# Paths that NVIDIA took away (source: catalog container_toolkit, legacy_to_migrate; field report F5).
_CONTAINER = re.compile(
    r"^nvidia\.github\.io/(libnvidia-container|nvidia-container-runtime|nvidia-docker)(?:/stable|/experimental)?/([a-z]+[0-9.]*)/"
)
_ALIVE = ("deb", "ubuntu18.04")
_MACHINE_LEARNING = re.compile(r"^developer\.download\.nvidia\.(?:com|cn)/compute/machine-learning/repos/")


def gone(uri: str) -> str | None:
    """What a URI led to where the vendor took it away: moved (libnvidia-container), replaced, merged; None for all others."""
    plain = apt_sources.normalise(uri) + "/"
    match = _CONTAINER.match(plain)
    if match and (match[1] != "libnvidia-container" or match[2] not in _ALIVE):
        return "moved" if match[1] == "libnvidia-container" else "replaced"
    return "merged" if _MACHINE_LEARNING.match(plain) else None


def shown(source: Source) -> str:
    """An entry as evidence: place, address, suite and what it trusts."""
    key = f"Signed-By {source.signed_by}" if source.signed_by else "no Signed-By"
    return f"{place(source)}: {' '.join(source.uris)} {' '.join(source.suites)} ({key})"


def entry(source: Source) -> dict[str, object]:
    """How repairs name an entry."""
    return {"file": source.file, "line": source.line}


_FOLDER = re.compile(r"^(?:file|copy):(?://)?(/.*)$")


def folder(uri: str) -> str | None:
    """The folder of a file: or copy: address; None for all others."""
    match = _FOLDER.match(uri)
    return "/" + match[1].strip("/") if match else None


def groups(case: Case) -> list[list[Source]]:
    """Enabled entries that mean one repository (URI and suite), where there are several, each group once."""
    found: dict[tuple[str, str], list[Source]] = {}
    for source in case.facts.apt.sources:
        if source.enabled:
            for repository in apt_sources.repositories(source.model_dump(), case.facts.host.arch):
                rows = found.setdefault(repository, [])
                if source not in rows:
                    rows.append(source)
    unique: list[list[Source]] = []
    for rows in found.values():
        if len(rows) > 1 and rows not in unique:
            unique.append(rows)
    return unique


def keeper(case: Case, rows: Sequence[Source]) -> Source:
    """The entry that stays: ours, then one whose key is there, of a file that packages own, with other repositories in it."""
    rings = {ring.path: ring for ring in apt(case).keyrings}

    def rank(row: Source) -> tuple[bool, ...]:
        # A wider entry cannot be taken out without its other repositories.
        wide = len(row.uris) * len(row.suites) > 1
        own = row.file.startswith(OURS)
        known = bool(_OF_PACKAGE.search(row.file))
        return (own, wide, usable(rings, row.signed_by), bool(row.signed_by), known, row.format == "deb822")

    return max(rows, key=rank)


def usable(rings: dict[str, Keyring], signed_by: str | None) -> bool:
    """True when the file of keys that an entry names can be used, as far as is known."""
    if not signed_by or not signed_by.startswith("/"):
        return bool(signed_by)
    ring = rings.get(signed_by)
    return ring is None or ring.state in ("ok", "keybox", "unknown")


def can_be_dropped(source: Source) -> bool:
    """True when an entry can be named to a program and is of one repository only, so that taking it out loses no other."""
    return len(source.uris) * len(source.suites) == 1 and source.line is not None
