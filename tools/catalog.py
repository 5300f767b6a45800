"""``python -m tools.catalog``: does the catalog fit together, and what is missing for what was added to it?

Contradictions are errors (exit 1): a row refers to something that is not there. Gaps are what a maintainer still has to look up
for a new branch, CUDA release or Ubuntu release; docs/catalog.md says where each belongs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from provision.catalog import FOLDER, Catalog
from provision.catalog.versions import key, minor


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
        need("chip", f"id range {span.first}", span.chips, catalog.gpu_data.chips)
    for name, architecture in arch.architectures.items():
        need("branch", name, [architecture.last_branch] if architecture.last_branch else [], numbers)
    for cc, capability in arch.compute_capabilities.items():
        need("branch", f"cc {cc}", [capability.first_branch] if capability.first_branch else [], numbers)
    for branch in catalog.branches:
        need("architecture", f"branch {branch.number}", [branch.oldest_architecture], names)
    for offer in catalog.drivers.archive.offers:
        need("Ubuntu release", f"archive {offer.series}", [offer.ubuntu], releases)
        need("branch", f"archive {offer.series}", [int(offer.series[:3])], numbers)
    for moved in catalog.drivers.archive.transitional:
        where = f"transitional {moved.from_}"
        need("Ubuntu release", where, moved.ubuntu, releases)
        need("branch", where, [int(s[:3]) for s in (moved.from_, moved.to) if s], numbers)
        need("codename", where, moved.codenames, catalog.ubuntu_data.other_codenames)
    for nvidia in catalog.drivers.nvidia.offers:
        need("Ubuntu release", "nvidia offers", [nvidia.ubuntu], releases)
        need("branch", f"nvidia {nvidia.ubuntu}", (*nvidia.branches, *nvidia.inferred), numbers)
    for version, toolkit in catalog.cuda_data.minors.items():
        need("Ubuntu release", f"CUDA {version}", toolkit.ubuntu, releases)
        plain = [f"{sm[:-1]}.{sm[-1]}" for sm in (sm.rstrip("af") for sm in toolkit.sm)]
        need("compute capability", f"CUDA {version}", [cc for cc in plain if cc != "10.1"], ccs)
        ranges = {u for u in releases if catalog.cuda_in_repository(version, ubuntu=u)}
        if ranges != set(toolkit.ubuntu):
            problems.append(f"CUDA {version}: minors and repository ranges disagree about Ubuntu releases")
    for version, release in catalog.cuda_data.releases.items():
        need("CUDA minor", f"release {version}", [minor(version)], minors)
        need("branch", f"release {version}", [release.branch] if release.branch else [], numbers)
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
        need("Ubuntu release", name, (*repository.ubuntu, *repository.keys), releases)
        need("key", name, [k for k in repository.keys.values() if k], catalog.repositories.keys)
    ids = [trap.id for trap in catalog.traps]
    problems.extend(f"trap {i} is there twice" for i in set(ids) if ids.count(i) > 1)
    for bad in catalog._known_bad:
        need("branch", "known bad", [key(v)[0] for v in bad.versions if bad.component == "driver"], numbers)
    # read and validated
    _ = (catalog.container_toolkit, catalog.conda)
    return problems


def gaps(catalog: Catalog) -> list[str]:
    """Return what is not known yet of rows that are there: file, row, and the missing fact."""
    found: list[str] = []
    for release, row in catalog.ubuntu_data.releases.items():
        where = f"Ubuntu {release} ({row.codename})"
        for name, repository in catalog.repositories.repositories.items():
            if release not in repository.ubuntu:
                found.append(f"{where}: repositories.yml, {name}: not listed under ubuntu, with its key under keys")
        if not any(offer.ubuntu == release for offer in catalog.drivers.archive.offers):
            found.append(f"{where}: drivers.yml, archive.offers: which branches the archive has")
        if not any(offer.ubuntu == release for offer in catalog.drivers.nvidia.offers):
            found.append(f"{where}: drivers.yml, nvidia.offers: which branches NVIDIA's repository has")
        if not any(release in toolkit.ubuntu for toolkit in catalog.cuda_data.minors.values()):
            found.append(f"{where}: cuda.yml, repository_ranges and minors: which toolkits NVIDIA's repository has")
    offered = {int(offer.series[:3]) for offer in catalog.drivers.archive.offers}
    offered |= {number for offer in catalog.drivers.nvidia.offers for number in (*offer.branches, *offer.inferred)}
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


def main(folder: Path = FOLDER) -> int:
    """Print both; return 1 for a contradiction."""
    catalog = Catalog(folder)
    wrong, missing = contradictions(catalog), gaps(catalog)
    for line in wrong:
        print(f"error: {line}")
    for line in missing:
        print(f"missing: {line}")
    print(f"{len(wrong)} contradictions, {len(missing)} facts missing")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
