"""What apt's own indices say: NVIDIA's repository for each Ubuntu release, and Ubuntu's archive.

A mirror may hold less than what it mirrors, so what an index lacks is never taken out of the catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, deb_version, driver_names
from provision.catalog import Catalog
from provision.catalog.update.place import Place, nothing
from provision.catalog.update.row import VERSION, Left, Row
from provision.catalog.versions import key, minor

# The package that every branch and series has, under both naming schemes of NVIDIA's repository.
_DRIVER = "libnvidia-compute"
_POCKETS = ("", "-updates", "-security")
# A version of dpkg (deb-version(7)) that is not longer than any real one.
_DEBIAN = re.compile(r"^(?:\d:)?[0-9][A-Za-z0-9.+~-]{0,60}$")
# branch -> its newest version, and where that was seen
_Drivers = dict[int, tuple[str, tuple[str, str]]]


def nvidia(place: Place, catalog: Catalog) -> Iterator[Row | Left]:
    """Yield what NVIDIA's repository holds: PLACE/ubuntu2404/x86_64/Packages.gz."""
    drivers: _Drivers = {}
    found = False
    for ubuntu in catalog.repositories.repositories["cuda"].keys:
        yymm = catalog.ubuntu(ubuntu).yymm
        index = place.unpacked(f"ubuntu{yymm}/x86_64/Packages")
        if index is None:
            continue
        found, packages, origin = True, _versions(index[0]), (f"apt_cuda_{yymm}", index[1])
        series = _drivers(packages)
        for version in series.values():
            _keep(drivers, version, origin)
        seen = {int(name) for name, version in series.items() if name == driver_names.branch(version)}
        yield from _branches(ubuntu, seen, catalog, origin)
        yield from _toolkits(ubuntu, packages, catalog, origin)
        yield from _libraries(packages, catalog, origin)
        newest = packages.get("nvidia-container-toolkit", [])
        yield from _newer(newest, catalog.container_toolkit.versions.newest, origin)
    if not found:
        raise nothing(place, "ubuntu2404/x86_64/Packages, packed or not, nor that of another Ubuntu release")
    yield from _last_versions(drivers, catalog)


def archive(place: Place, catalog: Catalog) -> Iterator[Row | Left]:
    """Yield what Ubuntu's archive holds: PLACE/dists/noble-updates/restricted/binary-amd64/Packages.gz."""
    drivers: _Drivers = {}
    found = False
    for ubuntu, release in catalog.ubuntu_data.releases.items():
        packages: dict[str, list[str]] = {}
        origin = (f"apt_{release.codename}", place.address(f"dists/{release.codename}"))
        for pocket in _POCKETS:
            index = place.unpacked(f"dists/{release.codename}{pocket}/restricted/binary-amd64/Packages")
            for name, versions in _versions(index[0]).items() if index else ():
                packages.setdefault(name, []).extend(versions)
            found = found or index is not None
        for series, version in _drivers(packages).items():
            _keep(drivers, version, origin)
            yield from _offer(ubuntu, series, version, catalog, origin)
    if not found:
        raise nothing(place, "dists/noble/restricted/binary-amd64/Packages, packed or not, nor that of another release")
    yield from _last_versions(drivers, catalog)


def _versions(index: str) -> dict[str, list[str]]:
    """Every package of an index (deb822, see deb-control(5)) with its versions."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in index.splitlines():
        if line.startswith("Package: "):
            name = line[9:].strip()
        elif line.startswith("Version: ") and name:
            if _DEBIAN.match(line[9:].strip()):
                found.setdefault(name, []).append(line[9:].strip())
        elif not line.strip():
            name = ""
    return found


def _newest(versions: list[str]) -> str | None:
    """Upstream part of the newest version that is one of numbers alone."""
    final = [v for v in versions if VERSION.match(cuda_names.upstream(v))]
    return cuda_names.upstream(max(final, key=deb_version.key)) if final else None


def _drivers(packages: dict[str, list[str]]) -> dict[str, str]:
    """Series ("580", "580-server") to the newest version. A name without a branch stands for that of each version."""
    found: dict[str, list[str]] = {}
    for name, versions in packages.items():
        package = driver_names.parse(name)
        if package is None or package.base != _DRIVER:
            continue
        for version in versions:
            found.setdefault(package.series or driver_names.branch(version), []).append(version)
    return {series: newest for series, versions in found.items() if (newest := _newest(versions))}


def _keep(drivers: _Drivers, version: str, origin: tuple[str, str]) -> None:
    number = int(driver_names.branch(version))
    if number not in drivers or key(version) > key(drivers[number][0]):
        drivers[number] = (version, origin)


def _last_versions(drivers: _Drivers, catalog: Catalog) -> Iterator[Row | Left]:
    rows = catalog.drivers.branches
    for number, (version, origin) in sorted(drivers.items()):
        if number not in rows:
            if number > min(rows):
                yield Left(origin[1], f"driver branch {number}: {version} is there; drivers.yml has no row in branches")
            continue
        last = rows[number].last_version
        if last is None or key(version) >= key(last):
            fields = {"last_version": version, "last_version_certainty": "sourced", "last_version_source": origin[0]}
            yield Row(("drivers", "branches"), number, fields, origin)


def _branches(ubuntu: str, seen: set[int], catalog: Catalog, origin: tuple[str, str]) -> Iterator[Row | Left]:
    """NVIDIA's branches for an Ubuntu release: those that were known and those that are seen, which are sure now."""
    row = next((row for row in catalog.drivers.nvidia.offers if row.ubuntu == ubuntu), None)
    known = seen & {*catalog.drivers.branches}
    if row is None:
        yield Left(origin[1], f"Ubuntu {ubuntu}: drivers.yml has no row in nvidia.offers")
        return
    fields = {
        "branches": sorted({*row.branches, *known}),
        "inferred": sorted({*row.inferred} - known),
        "source": origin[0],
    }
    yield Row(("drivers", "nvidia", "offers"), {"ubuntu": ubuntu}, fields, origin)


def _offer(ubuntu: str, series: str, version: str, catalog: Catalog, origin: tuple[str, str]) -> Iterator[Row | Left]:
    """A series of Ubuntu's archive. One whose version is of another branch only leads there (transitional package)."""
    if int(series[:3]) not in catalog.drivers.branches:
        return
    branch = driver_names.branch(version)
    if series[:3] != branch:
        if not catalog.transitional(series, ubuntu=ubuntu):
            why = f"Ubuntu {ubuntu}: {series} has version {version}, so it leads to {branch}: drivers.yml, archive.transitional"
            yield Left(origin[1], why)
        return
    names = {"ubuntu": ubuntu, "series": series}
    row = next((r for r in catalog.drivers.archive.offers if (r.ubuntu, r.series) == (ubuntu, series)), None)
    fields: dict[str, str | None] = {**names, "source": origin[0], "certainty": "sourced"}
    if row is None or row.version is None or key(version) > key(driver_names.upstream(row.version)):
        fields |= {"version": version, "date": None}
    yield Row(("drivers", "archive", "offers"), names, fields, origin)


def _toolkits(
    ubuntu: str, packages: dict[str, list[str]], catalog: Catalog, origin: tuple[str, str]
) -> Iterator[Row | Left]:
    """Toolkits by their metapackages: releases that are new, and where the repository of this Ubuntu release begins."""
    seen: dict[str, str] = {}
    for name, versions in packages.items():
        match = re.fullmatch(r"cuda-toolkit-(\d+)-(\d+)", name)
        newest = _newest(versions) if match else None
        if match and newest:
            seen[f"{match[1]}.{match[2]}"] = newest
    for own, release in sorted(seen.items(), key=lambda item: key(item[0])):
        if own not in catalog.cuda_data.minors:
            if key(own) > min(map(key, catalog.cuda_data.minors)):
                yield Left(origin[1], f"CUDA {own}: {release} is there; cuda.yml has no row in minors")
        elif release not in catalog.cuda_data.releases and minor(release) == own:
            fields = {"driver": None, "source": origin[0], "note": "seen as a package; its driver was not read"}
            yield Row(("cuda", "releases"), release, fields, origin)
    held = catalog.cuda_data.repository_ranges.get(ubuntu)
    known = [own for own in seen if own in catalog.cuda_data.minors]
    if held and known and key(min(known, key=key)) < key(held.first):
        fields = {"first": min(known, key=key), "first_certainty": "sourced", "source": origin[0]}
        yield Row(("cuda", "repository_ranges"), ubuntu, fields, origin)


def _libraries(packages: dict[str, list[str]], catalog: Catalog, origin: tuple[str, str]) -> Iterator[Row | Left]:
    """NCCL for a CUDA that no pair names, and versions of cuDNN 9 and newer that are not known."""
    of_cuda: dict[str, list[str]] = {}
    for version in packages.get(cuda_names.nccl_packages()[0], []):
        built = cuda_names.suffix(version)
        if built:
            of_cuda.setdefault(built, []).append(version)
    paired = {pair.cuda for pair in catalog.nccl_data.pairs}
    for built, versions in sorted(of_cuda.items(), key=lambda item: key(item[0])):
        newest = _newest(versions)
        if built in catalog.cuda_data.minors and built not in paired and newest:
            fields = {"cuda": built, "nccl": newest, "source": origin[0]}
            yield Row(("nccl", "pairs"), {"cuda": built}, fields, origin)
    for name, versions in sorted(packages.items()):
        match = re.fullmatch(r"libcudnn\d+-cuda-(\d+)", name)
        if match is None or int(match[1]) not in catalog.cuda_data.minor_version_compatibility:
            continue
        final = {cuda_names.upstream(v) for v in versions if VERSION.match(cuda_names.upstream(v))}
        new = [v for v in final if int(match[1]) not in catalog.cudnn_versions.get(v, ())]
        if new:
            listed = sorted(new, key=key, reverse=True)
            fields_ = {"cuda_majors": [int(match[1])], "list": listed, "source": origin[0]}
            yield Row(("cudnn", "versions"), None, fields_, origin)


def _newer(versions: list[str], known: str, origin: tuple[str, str]) -> Iterator[Row]:
    newest = _newest(versions)
    if newest and key(newest) > key(known):
        yield Row(("container_toolkit",), "versions", {"newest": newest, "source": origin[0]}, origin)
