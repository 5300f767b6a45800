"""Packages of the Ubuntu-like archive, from the relations of the real one (data/ubuntu_packages.yml).

What is taken from the data is true as of 2026-04-28. What is derived (470-server; 580-server on 22.04; everything on
26.04; 610 and 615; signed modules, whose layout follows canonical's linux-restricted-modules) is written here and
says so in the field ``X-Lab``.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import yaml

from . import contents, kernels, ubuntu_cuda
from .debfile import Package
from .releases import RELEASES, Release

DATA = Path(__file__).with_name("data")
SOURCE_OF_RELATIONS = "canonical/nvidia-graphics-drivers, 2026-04-28"
# Newer point releases by series (seen published: packages.ubuntu.com, 2026).
POINT_RELEASES = {
    "580": "580.173.02",
    "580-server": "580.173.02",
    "595": "595.71.05",
    "595-server": "595.71.05",
    "535-server": "535.309.01",
}
# (series, relations taken from, upstream version); without signed modules of their own when in MULTIVERSE
_DERIVED = {
    "24.04": [
        ("470-server", "535-server-noble", "470.256.02"),
        ("610", "595-noble", "610.43.02"),
        ("615", "595-noble", "615.71.09"),
    ],
    "22.04": [
        ("580-server", "580-server-noble", "580.126.20"),
        ("535-server", "535-server-noble", "535.288.01"),
        ("595-server", "595-server-noble", "595.58.03"),
        ("595", "595-noble", "595.58.03"),
        ("615", "595-noble", "615.71.09"),
    ],
    "26.04": [
        ("580", "580-noble", "580.142"),
        ("580-server", "580-server-noble", "580.126.20"),
        ("595", "595-noble", "595.58.03"),
        ("595-server", "595-server-noble", "595.58.03"),
        ("610", "595-noble", "610.43.02"),
        ("615", "595-noble", "615.71.09"),
    ],
}
MULTIVERSE = {"610", "615"}
# Fabric managers in the archive; 595 is left out on purpose: a driver whose fabric manager the repository lacks.
FABRIC = {"470-server": "470", "535-server": "535", "580-server": "580"}
_NAME = re.compile(r"^(?P<base>[a-z0-9-]+?)-(?P<branch>[0-9]{3})(?P<server>-server)?(?P<open>-open)?(?:-[0-9.]+)?$")


@cache
def relations() -> dict[str, dict]:
    """The data file."""
    with (DATA / "ubuntu_packages.yml").open() as handle:
        return yaml.load(handle, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader, the faster one


def packages(version: str, *, drivers: bool = False, kernel: bool = False, security: bool = False) -> list[Package]:
    """All packages of a release's archive on its first day, with what was published since where asked for."""
    release = RELEASES[version]
    built: list[Package] = []
    series_versions: list[tuple[str, str, str]] = []
    for series, data, upstream, derived in sources(release):
        built += driver_set(release, series, data, upstream, derived)
        if drivers and series in POINT_RELEASES:
            upstream_new = POINT_RELEASES[series]
            built += driver_set(release, series, data, upstream_new, derived, newer=True)
    for series, data, upstream, _ in sources(release):
        if _is_real(data, series) and series not in MULTIVERSE:
            series_versions.append((series, upstream, full_version(data, upstream, release)))
    built += kernels.packages(release, published=kernel)
    built += kernels.signed(release, series_versions, published_kernel=kernel, respin=0)
    if drivers:
        newer = [
            (s, POINT_RELEASES[s], new_version(POINT_RELEASES[s], release))
            for s, _, _ in series_versions
            if s in POINT_RELEASES
        ]
        built += kernels.signed(release, newer, published_kernel=kernel, respin=1)
    built += kernels.transitional_signed(release, _transitions(release))
    built += fabric(release, drivers)
    built += kernels.tools(release) + ordinary(release, security) + ubuntu_cuda.packages(release)
    return built


def sources(release: Release) -> list[tuple[str, dict, str, bool]]:
    """(series, relations, upstream version, derived) of every driver source of a release."""
    found = []
    for key, data in relations().items():
        series, codename = key.rsplit("-", 1)
        if codename == release.codename:
            found.append((series, data, _upstream(data["version"]), False))
    have = {series for series, *_ in found}
    for series, key, upstream in _DERIVED[release.version]:
        if series not in have:
            found.append((series, _renamed(relations()[key], series, upstream), upstream, True))
    return found


def driver_set(
    release: Release, series: str, data: dict, upstream: str, derived: bool, *, newer: bool = False
) -> list[Package]:
    """The packages of one driver source at one version."""
    version = new_version(upstream, release) if newer else full_version(data, upstream, release)
    old, old_upstream = data["version"], _upstream(data["version"])
    built = []
    for name, fields in data["packages"].items():
        if re.match(r"^libnvidia-common-\d+", name) and "Depends" not in fields and not fields:
            continue
        control = {
            field: ", ".join(value) if isinstance(value, list) else str(value) for field, value in fields.items()
        }
        control = {
            field: value.replace(old, version).replace(old_upstream, upstream) for field, value in control.items()
        }
        control = {"Source": data["source"], "Section": "restricted/libs", **control}
        control["X-Lab"] = "derived" if derived else SOURCE_OF_RELATIONS
        new_name = name.replace(old_upstream, upstream)
        match = _NAME.match(new_name)
        base, flavour = (
            (match["base"], "open" if match["open"] else "proprietary") if match else (new_name, "proprietary")
        )
        files: dict = {}
        scripts: dict = {}
        conffiles: list = []
        if _is_real(data, series):
            files, scripts, conffiles = contents.fill(base, series, upstream, flavour)
        component = "multiverse" if series in MULTIVERSE else "restricted"
        built.append(
            Package(
                new_name,
                version,
                "amd64",
                control,
                files,
                scripts,
                conffiles,
                f"NVIDIA driver {series}: {base}",
                component,
                _pockets(release, newer),
            )
        )
    return built


def fabric(release: Release, drivers: bool) -> list[Package]:
    """Fabric manager and its query library for the data-center series."""
    built = []
    for series, branch in FABRIC.items():
        for data_series, data, upstream, _ in sources(release):
            if data_series != series:
                continue
            versions = [upstream] + ([POINT_RELEASES[series]] if drivers and series in POINT_RELEASES else [])
            for number, current in enumerate(versions):
                version = f"{current}-0ubuntu0.{release.version}.1"
                kernel_common = data["packages"][f"nvidia-kernel-common-{series}"]
                exact = f"nvidia-kernel-common-{series}-{_upstream(data['version'])}"
                depends = (
                    f"nvidia-kernel-common-{series}-{current}"
                    if exact in kernel_common.get("Provides", [])
                    else f"nvidia-kernel-common-{series} (>= {current}), nvidia-kernel-common-{series} (<= {current}-1)"
                )
                suites = _pockets(release, newer=number > 0)
                for name in (f"nvidia-fabricmanager-{branch}", f"libnvidia-nscq-{branch}"):
                    base = name.rsplit("-", 1)[0]
                    files, scripts, conffiles = contents.fill(base, series, current, "proprietary")
                    control = {
                        "Source": f"{'fabric-manager' if 'fabric' in base else 'libnvidia-nscq'}-{branch}",
                        "Section": "multiverse/libs",
                        "Depends": depends,
                        "Provides": base,
                        "Conflicts": base,
                    }
                    built.append(
                        Package(name, version, "amd64", control, files, scripts, conffiles, base, "multiverse", suites)
                    )
    return built


def ordinary(release: Release, security: bool) -> list[Package]:
    """Small packages of everyday life, which get security updates, and what the driver's packages lean on."""
    first, later = (release.codename,), (f"{release.codename}-updates", f"{release.codename}-security")
    tag = f"ubuntu0.{release.version}"
    everyday = {"jq": "1.7.1-3", "rsync": "3.2.7-1", "tmux": "3.4-1", "wget": "1.21.4-1", "libxml2": "2.9.14+dfsg-1.3"}
    built = []
    for name, version in everyday.items():
        files = {f"/usr/share/doc/{name}/changelog": f"{name} {version}\n"}
        built.append(Package(name, version + "build1", files=files, suites=first, description=name))
        if security:
            built.append(Package(name, f"{version}{tag}.3", files=files, suites=later, description=name))
    support = {
        "nvidia-settings": "510.47.03-0ubuntu4",
        "nvidia-prime": "0.8.17.2",
        "libnvidia-egl-wayland1": "1:1.1.13-1build1",
        "ocl-icd-libopencl1": "2.3.2-1build1",
        "make": "4.3-4.1build2",
        "linux-firmware": "20240318.git3b128b60-0ubuntu2.4",
        "intel-microcode": "3.20240910",
        "amd64-microcode": "3.20231019",
        "libxnvctrl0": "510.47.03-0ubuntu4",
    }
    for name, version in support.items():
        files, _, _ = contents.fill(name, "", version, "")
        component = "restricted" if name == "nvidia-settings" else "main"
        built.append(Package(name, version, files=files, suites=first, description=name, component=component))
    return built


def full_version(data: dict, upstream: str, release: Release) -> str:
    """Debian version of a source at its first-day upstream version."""
    if data["suite"] == release.codename and _upstream(data["version"]) == upstream:
        return data["version"]
    return f"{upstream}-0ubuntu0.{release.version}.1"


def new_version(upstream: str, release: Release) -> str:
    """Debian version of a point release."""
    return f"{upstream}-0ubuntu0.{release.version}.1"


def _renamed(data: dict, series: str, upstream: str) -> dict:
    """Relations of another series under a new name; flavours the series lacks are left out."""
    old_series = re.sub(r"^nvidia-graphics-drivers-", "", data["source"])
    old_upstream = _upstream(data["version"])
    version = f"{upstream}-0ubuntu0.0"

    def rename(text: str) -> str:
        text = text.replace(data["version"], version).replace(old_upstream, upstream)
        return re.sub(rf"-{old_series}(?!-server)(?=[-, )]|$)", f"-{series}", text)

    packages = {}
    for name, fields in data["packages"].items():
        if series.startswith("470") and "-open" in name:
            continue
        packages[rename(name)] = {
            key: [rename(item) for item in value] if isinstance(value, list) else value for key, value in fields.items()
        }
    return {"source": f"nvidia-graphics-drivers-{series}", "version": version, "suite": "", "packages": packages}


def _is_real(data: dict, series: str) -> bool:
    """False for a source whose packages only lead to another branch."""
    return "Provides" in data["packages"].get(f"nvidia-kernel-common-{series}", {})


def _transitions(release: Release) -> list[tuple[str, str]]:
    found = []
    for series, data, _, _ in sources(release):
        for item in data["packages"].get(f"nvidia-kernel-common-{series}", {}).get("Depends", []):
            match = re.match(r"nvidia-kernel-common-(\d+(?:-server)?)$", item)
            if match:
                found.append((series, match[1]))
    return found


def _pockets(release: Release, newer: bool) -> tuple[str, ...]:
    return (f"{release.codename}-updates", f"{release.codename}-security")


def _upstream(version: str) -> str:
    return version.split(":", 1)[-1].rsplit("-", 1)[0]
