"""The checks of CUDA's libraries: cuDNN, NCCL, and what the loader takes of several. Pure functions, as in ``checks``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.facts import ConfLine, CudaLibrary, Facts, Header
from provision.lib.findings import Check
from provision.parts.check import Expect, check, failed, passed, skipped, warned
from provision.parts.cuda.checks import Owned, default_folder, fits, folder_of, installed, is_everybodys, owner

# Name, what it means, Debian version.
LibraryPackage = tuple[str, cuda_names.CudaPackage, str]
# Package, Debian version, CUDA major that it is built for.
Misfit = tuple[str, str, str]
# Names that stayed while the library's minor moved on: every 11.x has libcudart.so.11.0, from 11.2 on libnvrtc.so.11.2.
_STEADY = frozenset(["libcudart.so.11.0", "libnvrtc.so.11.2"])


# --- cuDNN, NCCL -------------------------------------------------------------------------------------------


def library_packages(facts: Facts, kind: str) -> list[LibraryPackage]:
    """NVIDIA's cuDNN or NCCL packages that are installed."""
    found = []
    for name, row in sorted(installed(facts).items()):
        package = cuda_names.parse(name, row.version)
        if package and package.kind == kind and not package.floating:
            found.append((name, package, row.version))
    return found


def built_for(package: cuda_names.CudaPackage, version: str) -> str | None:
    """CUDA major that a cuDNN or NCCL package is made for, or None."""
    return package.major or (cuda_names.suffix(version) or "").split(".")[0] or None


def misfits(facts: Facts, packages: Iterable[LibraryPackage]) -> tuple[list[Misfit], list[Misfit]]:
    """Packages whose CUDA is that of no toolkit, and those whose CUDA is newer than the driver carries."""
    majors = {row.version.split(".")[0] for row in facts.cuda.toolkits if row.version}
    carried = (facts.smi.cuda_version or "").split(".")[0]
    unlike, too_new = [], []
    for name, package, version in packages:
        major = built_for(package, version)
        if major and carried.isdigit() and int(major) > int(carried):
            too_new.append((name, version, major))
        elif major and majors and major not in majors:
            unlike.append((name, version, major))
    return unlike, too_new


def untrue_files(rows: Iterable[Owned], packages: Iterable[LibraryPackage]) -> list[tuple[Owned, str]]:
    """(row, Debian version) of files whose version is not that of the package that owns them."""
    versions = {name: version for name, _, version in packages}
    return [
        (row, versions[row.package])
        for row in rows
        if row.package in versions and row.version and not fits(row.version, cuda_names.upstream(versions[row.package]))
    ]


def stray_headers(headers: Iterable[Header], libraries: Sequence[CudaLibrary]) -> list[tuple[Header, CudaLibrary]]:
    """(header, library) where programs would be compiled for another version than the loader finds."""
    found = []
    for header in headers:
        major = (header.version or "").split(".")[0]
        first = next((row for row in libraries if (row.version or "").split(".")[0] == major), None)
        if first and not fits(header.version or "", first.version or ""):
            found.append((header, first))
    return found


def _evidence(
    packages: Iterable[LibraryPackage], libraries: Iterable[CudaLibrary], headers: Iterable[Header]
) -> list[str]:
    evidence = [f"package {name} {version}" for name, _, version in packages]
    evidence += [f"library {row.path}: {row.version}, {owner(row)}" for row in libraries]
    return evidence + [f"header {row.path}: {row.version}, {owner(row)}" for row in headers]


@check("cuda.cudnn")
def cudnn(facts: Facts, expect: Expect) -> Check:
    """cuDNN's header, library and package are of one version, and made for a CUDA that is here."""
    want, packages = expect.cuda, library_packages(facts, "cudnn")
    runtime = [row for row in packages if re.match(r"^libcudnn[0-9]+$", row[1].base)]
    libraries = in_loader_order(facts, [row for row in facts.cuda.libraries if row.soname.startswith("libcudnn.so.")])
    headers = [row for row in facts.cuda.headers if row.name == "cudnn"]
    evidence = _evidence(packages, libraries, headers)
    for major, wanted in sorted(want.cudnn.items()):
        have = [version for _, package, version in runtime if built_for(package, version) == major]
        if not have:
            return failed(f"cuDNN {wanted} for CUDA {major} is not installed", evidence, "provision apply installs it")
        if not any(version == wanted or fits(cuda_names.upstream(version), wanted) for version in have):
            return failed(f"cuDNN is {have[0]}, wanted is {wanted}", evidence, "provision apply moves it there")
    for name, package, version in packages:
        partner = [row for row in runtime if (row[1].cudnn, row[1].major) == (package.cudnn, package.major)]
        if partner and partner[0][2] != version:
            other, its = partner[0][0], partner[0][2]
            return failed(
                f"{name} is {version}, {other} is {its}",
                evidence,
                "programs are compiled for one and run with the other: apt-get install "
                f"--allow-change-held-packages {name}={its}",
            )
    untrue = untrue_files([*libraries, *headers], packages)
    if untrue:
        return _untrue(*untrue[0], evidence)
    sonames = {row.soname for row in libraries}
    gone = [(name, version) for name, package, version in runtime if f"libcudnn.so.{package.cudnn}" not in sonames]
    if gone:
        return _gone(*gone[0], evidence)
    stray = stray_headers(headers, libraries)
    if stray:
        return _stray("cuDNN", *stray[0], evidence)
    unlike, too_new = misfits(facts, runtime)
    if too_new:
        name, _, major = too_new[0]
        loaded = facts.module.loaded
        return failed(
            f"{name} is for CUDA {major}, the driver carries {facts.smi.cuda_version}",
            evidence,
            f"install the build for an older CUDA: provision compat --driver {loaded.version if loaded else 'VERSION'}"
            " tells which",
        )
    if unlike:
        return _unlike(facts, expect, "cudnn", unlike[0], evidence)
    if not packages and not libraries:
        return skipped("no cuDNN", evidence)
    versions = [cuda_names.upstream(version) for _, _, version in runtime] or [row.version or "?" for row in libraries]
    return passed(", ".join(dict.fromkeys(versions)) or "headers only", evidence)


def _untrue(row: Owned, version: str, evidence: list[str]) -> Check:
    return failed(
        f"{row.path} is {row.version}, its package {row.package} is {version}",
        evidence,
        f"somebody wrote over it: apt-get install --reinstall {row.package}={version}",
    )


def _gone(name: str, version: str, evidence: list[str]) -> Check:
    return failed(f"the library of {name} is gone", evidence, f"apt-get install --reinstall {name}={version}")


def _stray(title: str, header: Header, library: CudaLibrary, evidence: list[str]) -> Check:
    return failed(
        f"programs are compiled for {title} {header.version} and find {library.version}",
        evidence,
        f"of {header.path} and {library.path} remove one: keep the file that a package owns",
    )


def _unlike(facts: Facts, expect: Expect, kind: str, misfit: Misfit, evidence: list[str]) -> Check:
    name, version, major = misfit
    having = ", ".join(sorted({row.version for row in facts.cuda.toolkits if row.version}))
    say = failed if expect.cuda.manage else warned
    return say(
        f"{name} {version} is for CUDA {major}, the toolkits are {having}",
        evidence,
        f"an unpinned update took the highest number: cuda_toolkit_{kind}: auto takes the build for the toolkits",
    )


@check("cuda.nccl")
def nccl(facts: Facts, expect: Expect) -> Check:
    """NCCL's header, library and package are of one version, and made for a CUDA that is here."""
    wanted, packages = expect.cuda.nccl, library_packages(facts, "nccl")
    runtime = [row for row in packages if row[0].split(":")[0] == "libnccl2"]
    libraries = in_loader_order(facts, [row for row in facts.cuda.libraries if row.soname == "libnccl.so.2"])
    headers = [row for row in facts.cuda.headers if row.name == "nccl"]
    evidence = _evidence(packages, libraries, headers)
    if wanted:
        if not runtime:
            return failed(f"NCCL {wanted} is not installed", evidence, "provision apply installs it")
        version = runtime[0][2]
        same = "+cuda" not in wanted and fits(cuda_names.upstream(version), cuda_names.upstream(wanted))
        if version != wanted and not same:
            return failed(f"NCCL is {version}, wanted is {wanted}", evidence, "provision apply moves it there")
    versions = {version for _, _, version in packages}
    if len(versions) > 1:
        return failed(
            f"libnccl2 and libnccl-dev differ: {', '.join(sorted(versions))}",
            evidence,
            "they go as a pair: apt-get install --allow-change-held-packages libnccl-dev="
            f"{(runtime or packages)[0][2]}",
        )
    untrue = untrue_files([*libraries, *headers], packages)
    if untrue:
        return _untrue(*untrue[0], evidence)
    if runtime and not libraries:
        return _gone("libnccl2", runtime[0][2], evidence)
    stray = stray_headers(headers, libraries)
    if stray:
        return _stray("NCCL", *stray[0], evidence)
    unlike, too_new = misfits(facts, runtime)
    if too_new:
        return failed(
            f"libnccl2 is for CUDA {too_new[0][2]}, the driver carries {facts.smi.cuda_version}",
            evidence,
            "CUDA calls the driver insufficient then: cuda_toolkit_nccl: auto takes the build that fits",
        )
    if unlike:
        return _unlike(facts, expect, "nccl", unlike[0], evidence)
    if not packages and not libraries:
        return skipped("no NCCL", evidence)
    shown = [version.replace("-1+", "+") for _, _, version in runtime] or [row.version or "?" for row in libraries]
    return passed(", ".join(shown) or "headers only", evidence)


# --- the loader --------------------------------------------------------------------------------------------


def in_loader_order(facts: Facts, rows: Iterable[CudaLibrary]) -> list[CudaLibrary]:
    """Libraries as the loader takes them: LD_LIBRARY_PATH of every login, its cache, its own folders (ld.so(8))."""
    exported = [
        path
        for line in facts.cuda.shell_lines
        if line.variable == "LD_LIBRARY_PATH" and is_everybodys(line)
        for path in line.paths
    ]

    def rank(row: CudaLibrary) -> tuple[int, int]:
        folder = row.path.rpartition("/")[0]
        if folder in exported:
            return (0, exported.index(folder))
        if row.in_cache:
            return (1, 0)
        return (2, 0) if re.match(r"^(?:/usr)?/lib(?:/[a-z0-9_]+-linux-gnu)?$", folder) else (3, 0)

    return sorted(rows, key=rank)


def false_links(facts: Facts) -> list[CudaLibrary]:
    """Names of libraries that lead to another version than they promise, laid there by hand."""
    return [row for row in facts.cuda.libraries if _is_false(row)]


def _is_false(row: CudaLibrary) -> bool:
    promised = row.soname.partition(".so.")[2].split(".")
    real = (row.version or "").split(".")
    if row.package or not row.version or row.soname in _STEADY or row.soname == "libcuda.so.1":
        return False
    return real[: len(promised)] != promised[: len(real)]


def loader_gone(facts: Facts) -> list[ConfLine]:
    """Lines that lead the loader to a CUDA folder that is gone. Not those of a file of ours: its folder comes back."""
    return [row for row in facts.cuda.loader_gone if "gpu-provision" not in row.file]


def gone_text(rows: Sequence[ConfLine]) -> str:
    """What is wrong with such lines, for verify and diagnose alike."""
    return f"{rows[0].file} line {rows[0].line} leads the loader to {rows[0].text}, which is gone"


@check("cuda.libraries")
def libraries(facts: Facts, expect: Expect) -> Check:
    """The loader finds the right one of several copies of a library; no link leads to another version than its name says."""
    want, false = expect.cuda, false_links(facts)
    rows = [row for row in facts.cuda.libraries if row.soname != "libcuda.so.1"]
    evidence = []
    groups: dict[str, list[CudaLibrary]] = {}
    for row in in_loader_order(facts, rows):
        groups.setdefault(row.soname, []).append(row)
    for soname, found in sorted(groups.items()):
        if len(found) > 1:
            versions = [f"{row.path} ({row.version or '?'}, {owner(row)})" for row in found]
            evidence.append(f"{soname}: {versions[0]}, before {', '.join(versions[1:])}")
    if false:
        return failed(
            f"{false[0].path} is a link by hand to {false[0].version}",
            [f"{row.path} -> {row.target}, {owner(row)}" for row in false] + evidence,
            f"rm {false[0].path}, and install what provides {false[0].soname}",
        )
    folder = default_folder(facts, want)
    for found in groups.values():
        first, better = found[0], next((row for row in found[1:] if row.package), None)
        if first.package is None and better and first.version != better.version:
            return warned(
                f"{first.path} ({first.version or '?'}) is found before {better.path} ({better.version or '?'})"
                f" of {better.package}",
                evidence,
                "no package owns it: take its folder from LD_LIBRARY_PATH or ld.so.conf.d, or move it away",
            )
        in_default = [row for row in found if folder and (row.target or "").startswith(f"{folder}/")]
        other = (first.target or "").startswith("/usr/local/cuda-")
        if want.manage and in_default and first is not in_default[0] and other and first.in_cache is not None:
            return warned(
                f"{first.path} is found before that of the default, {in_default[0].path}",
                evidence,
                "see cuda.link and cuda.environment; provision apply writes ld.so.conf.d, runs ldconfig",
            )
    lost = [
        version
        for version in want.versions
        if any(
            (row.target or "").startswith(f"{folder_of(version)}/")
            and all(other.in_cache is False for other in groups[row.soname])
            for row in rows
        )
    ]
    exported = any(line.variable == "LD_LIBRARY_PATH" and is_everybodys(line) for line in facts.cuda.shell_lines)
    if lost and not exported:
        return warned(
            f"the loader does not know the libraries of CUDA {', '.join(lost)}",
            evidence,
            "programs say 'cannot open shared object file': provision apply writes ld.so.conf.d and runs ldconfig",
        )
    if gone := loader_gone(facts):
        return warned(
            gone_text(gone),
            [row.place for row in gone] + evidence,
            f"remove the line from {gone[0].file}, then ldconfig",
        )
    if not rows:
        return skipped("no CUDA library")
    twice = sum(len(found) > 1 for found in groups.values())
    copies = f"{twice} of them in more than one place" if twice else "each in one place"
    return passed(f"{len(groups)} libraries, {copies}", evidence)


CHECKS = (cudnn, nccl, libraries)
