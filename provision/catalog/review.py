"""Does a catalog fit together, what is missing for what was added to it, and which of its sources grew old?

Contradictions are errors: a row refers to something that is not there. Gaps are what is still to be looked up for a new
branch, CUDA release or Ubuntu release; docs/catalog.md says where each belongs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import date
from typing import Any

from provision.catalog import UNSURE, Catalog
from provision.catalog.files import TOPICS, read_yaml
from provision.catalog.models.base import Data, SourceNote, Topic, last_day
from provision.catalog.versions import key, minor

# Files about what gets new releases, and how old their sources may be; the others tell of what does not change.
MOVING = frozenset(
    {"conda", "container_toolkit", "cuda", "cudnn", "drivers", "frameworks", "nccl", "repositories", "xid"}
)
STALE_DAYS = 90
# An address, a host name, or owner/name of a repository.
_LINK = re.compile(r"https?://|\b[\w-]+\.(?:com|org|net|io|dev|tech)\b|(?<![\w/])[A-Za-z][\w.-]*/[A-Za-z][\w.-]*")


def contradictions(catalog: Catalog) -> list[str]:
    """Read every file and return what does not fit together across files; empty when all does."""
    problems: list[str] = []

    def need(kind: str, where: str, names: Iterable[object], known: Iterable[object]) -> None:
        have = set(known)
        problems.extend(f"{where}: unknown {kind} {name!r}" for name in names if name not in have)

    arch = catalog.architectures
    numbers = {b.number for b in catalog.branches}
    ccs, releases = set(arch.compute_capabilities), set(catalog.ubuntu_data.releases)
    minors, tags = set(catalog.cuda_data.minors), set(catalog.frameworks.torch.tags)
    names = set(arch.architectures)
    for chip, row in catalog.gpu_data.chips.items():
        need("compute capability", f"chip {chip}", [row.cc], ccs)
        if row.cc in ccs and arch.compute_capabilities[row.cc].architecture != row.architecture:
            problems.append(f"chip {chip}: {row.cc} is not {row.architecture}")
    for span in catalog.gpu_data.id_ranges:
        need("architecture", f"id range {span.first}", [span.architecture], names)
        need("compute capability", f"id range {span.first}", [span.cc] if span.cc else [], ccs)
    for name, architecture in arch.architectures.items():
        need("branch", name, [architecture.last_branch] if architecture.last_branch else [], numbers)
    for cc, capability in arch.compute_capabilities.items():
        need("branch", f"cc {cc}", [capability.first_branch] if capability.first_branch else [], numbers)
    for branch in catalog.branches:
        need("architecture", f"branch {branch.number}", [branch.oldest_architecture], names)
    for listed in catalog.drivers.archive.offers:
        need("Ubuntu release", f"archive {listed.series}", [listed.ubuntu], releases)
        need("branch", f"archive {listed.series}", [int(listed.series[:3])], numbers)
    for moved in catalog.drivers.archive.transitional:
        where = f"transitional {moved.from_}"
        need("Ubuntu release", where, moved.ubuntu, releases)
        need("branch", where, [int(s[:3]) for s in (moved.from_, moved.to) if s], numbers)
    for nvidia in catalog.drivers.nvidia.offers:
        need("Ubuntu release", "nvidia offers", [nvidia.ubuntu], releases)
        need("branch", f"nvidia {nvidia.ubuntu}", (*nvidia.branches, *nvidia.inferred), numbers)
    for version, toolkit in catalog.cuda_data.minors.items():
        plain = [f"{sm[:-1]}.{sm[-1]}" for sm in (sm.rstrip("af") for sm in toolkit.sm)]
        need("compute capability", f"CUDA {version}", [cc for cc in plain if cc != "10.1"], ccs)
    for ubuntu, held in catalog.cuda_data.repository_ranges.items():
        need("Ubuntu release", "repository ranges", [ubuntu], releases)
        need("CUDA minor", f"repository range {ubuntu}", [v for v in (held.first, held.last) if v], minors)
    for version, release in catalog.cuda_data.releases.items():
        need("CUDA minor", f"release {version}", [minor(version)], minors)
        need("branch", f"release {version}", _listed(release.driver, numbers), numbers)
    need("CUDA minor", "nccl pairs", [p.cuda for p in catalog.nccl_data.pairs], minors)
    need("CUDA minor", "cudnn pairs", [minor(p.cuda) for p in catalog.cudnn_data.pairs if "." in p.cuda], minors)
    for version, torch in catalog.frameworks.torch.releases.items():
        need("tag", f"torch {version}", (torch.default, *torch.offered), tags)
        for tag in torch.offered:
            if catalog.torch_arch_list(version, tag) is None:
                problems.append(f"torch {version}: no arch list for {tag}")
    for row_ in catalog.frameworks.torch.arch_lists:
        need("tag", "arch lists", row_.tags, tags)
        need("compute capability", "arch lists", row_.cc, ccs)
    for tested in catalog.frameworks.tensorflow.releases.values():
        need("CUDA minor", "tensorflow", [tested.cuda], minors)
    for name, repository in catalog.repositories.repositories.items():
        need("Ubuntu release", name, repository.keys, releases)
        need("key", name, [k for k in repository.keys.values() if k], catalog.repositories.keys)
    ids = [trap.id for trap in catalog.traps]
    problems.extend(f"trap {i} is there twice" for i in set(ids) if ids.count(i) > 1)
    for bad in catalog.known_bad_rows:
        need("branch", "known bad", [key(v)[0] for v in bad.versions if bad.component == "driver"], numbers)
    # read and validated
    _ = (catalog.container_toolkit, catalog.conda, catalog.xids)
    return problems


def _listed(driver: str | None, numbers: Collection[int]) -> list[int]:
    """The branch of a driver that must be listed: those older than the catalog's oldest need not."""
    number = key(driver)[0] if driver else 0
    return [number] if number >= min(numbers) else []


def gaps(catalog: Catalog) -> list[str]:
    """Return what is not known yet of rows that are there: file, row, and the missing fact."""
    found: list[str] = []
    for release, row in catalog.ubuntu_data.releases.items():
        where = f"Ubuntu {release} ({row.codename})"
        for name, repository in catalog.repositories.repositories.items():
            if release not in repository.keys:
                found.append(f"{where}: repositories.yml, {name}: not listed under keys, with its key")
        if not any(listed.ubuntu == release for listed in catalog.drivers.archive.offers):
            found.append(f"{where}: drivers.yml, archive.offers: which branches the archive has")
        if not any(listed.ubuntu == release for listed in catalog.drivers.nvidia.offers):
            found.append(f"{where}: drivers.yml, nvidia.offers: which branches NVIDIA's repository has")
        if release not in catalog.cuda_data.repository_ranges:
            found.append(f"{where}: cuda.yml, repository_ranges: which toolkits NVIDIA's repository has")
    offered = {int(listed.series[:3]) for listed in catalog.drivers.archive.offers}
    offered |= {number for listed in catalog.drivers.nvidia.offers for number in (*listed.branches, *listed.inferred)}
    for branch in catalog.branches:
        if branch.supported_now and branch.number not in offered:
            found.append(
                f"branch {branch.number}: drivers.yml, archive.offers and nvidia.offers: no repository is said to have it"
            )
    for version in catalog.cuda_data.minors:
        if not any(minor(release) == version for release in catalog.cuda_data.releases):
            found.append(f"CUDA {version}: cuda.yml, releases: no release with its driver")
    newest = max(catalog.cuda_data.minors, key=key)
    if newest not in {pair.cuda for pair in catalog.nccl_data.pairs}:
        found.append(f"CUDA {newest}: nccl.yml, pairs: the NCCL that is built for it")
    if not {newest, newest.split(".")[0]} & {pair.cuda for pair in catalog.cudnn_data.pairs}:
        found.append(f"CUDA {newest}: cudnn.yml, pairs: the cuDNN that is built for it")
    return found


def unsure(catalog: Catalog) -> list[str]:
    """Return every fact that is not sure: file and row, how sure it is, what the row says of it, its source and date."""
    found: list[str] = []
    for name in TOPICS:
        topic = getattr(catalog, name)
        sources = topic.sources if isinstance(topic, Topic) else {}
        for where, row in _rows(name, topic):
            for field in (f for f in type(row).model_fields if f.endswith("certainty")):
                if getattr(row, field) not in UNSURE:
                    continue
                what = field.removesuffix("certainty")
                origin = sources.get(getattr(row, "source", None) or "")
                seen = getattr(row, "date", None) or (origin.as_of if origin else None)
                note = getattr(row, f"{what}note", None) or getattr(row, "note", None)
                texts = [getattr(row, field), note, origin.source if origin else None, seen]
                found.append(f"{where} {what.rstrip('_')}".rstrip() + ": " + "; ".join(text for text in texts if text))
    return found


def _rows(where: str, value: Any) -> Iterator[tuple[str, Data]]:
    if isinstance(value, Data):
        yield where, value
        inner: Iterable[tuple[object, Any]] = ((name, getattr(value, name)) for name in type(value).model_fields)
    else:
        inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
    for name, part in inner:
        yield from _rows(f"{where} {name}", part)


def _sources(catalog: Catalog) -> Iterator[tuple[str, str, SourceNote]]:
    """Every source of every file: the file's name, the source's, and what it says."""
    for path in sorted(catalog.folder.glob("*.yml")):
        # traps.yml names its source in every row
        for name, row in read_yaml(path).get("sources", {}).items():
            yield path.stem, name, SourceNote.model_validate(row)


def stale(catalog: Catalog, today: date) -> list[str]:
    """Return the sources of files about what moves that were last seen more than 90 days before ``today``."""
    found: list[str] = []
    for file, name, row in _sources(catalog):
        # of two days the later one, and of a month its last day: nothing is called old too early
        age = (today - last_day(row.as_of.lstrip("~").split("/")[-1])).days
        if file in MOVING and age > STALE_DAYS:
            found.append(f"{file}.yml, {name}: seen {row.as_of}, {age} days ago: {row.source}")
    return found


def unlinked(catalog: Catalog) -> list[str]:
    """Return the sources that are prose alone: no address, host or repository that a reader could open."""
    return [
        f"{file}.yml, {name}: {row.source}" for file, name, row in _sources(catalog) if not _LINK.search(row.source)
    ]
