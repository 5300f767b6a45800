# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The checks of CUDA's libraries: cuDNN, NCCL, and what the loader takes of several. Pure functions, as in ``checkcuda``."""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.parts import verdicts
from provision.parts.cuda import checks as cuda_checks

# Names that stayed while the library's minor moved on: every 11.x has libcudart.so.11.0, from 11.2 on libnvrtc.so.11.2.
_STEADY = frozenset(["libcudart.so.11.0", "libnvrtc.so.11.2"])
_verdict = verdicts.verdict


# --- cuDNN, NCCL -------------------------------------------------------------------------------------------


def library_packages(facts, kind):
    """[(name, parsed, Debian version)] of NVIDIA's cuDNN or NCCL packages."""
    found = []
    for name, row in sorted(cuda_checks.installed(facts).items()):
        package = cuda_names.parse(name, row["version"])
        if package and package.kind == kind and not package.floating:
            found.append((name, package, row["version"]))
    return found


def built_for(package, version):
    """CUDA major that a cuDNN or NCCL package is made for, or None."""
    return package.major or (cuda_names.suffix(version) or "").split(".")[0] or None


def _evidence(packages, libraries, headers):
    evidence = ["package %s %s" % (name, version) for name, _, version in packages]
    evidence += ["library %s: %s, %s" % (row["path"], row["version"], cuda_checks.owner(row)) for row in libraries]
    return evidence + ["header %s: %s, %s" % (row["path"], row["version"], cuda_checks.owner(row)) for row in headers]


def misfits(facts, packages):
    """(package, version, CUDA major) whose CUDA is that of no toolkit, or newer than the driver carries."""
    majors = {row["version"].split(".")[0] for row in cuda_checks.cuda_of(facts)["toolkits"] if row["version"]}
    carried = (facts["smi"].get("cuda_version") or "").split(".")[0]
    unlike, too_new = [], []
    for name, package, version in packages:
        major = built_for(package, version)
        if major and carried.isdigit() and int(major) > int(carried):
            too_new.append((name, version, major))
        elif major and majors and major not in majors:
            unlike.append((name, version, major))
    return unlike, too_new


def untrue_files(rows, packages):
    """(row, Debian version) of files whose version is not that of the package that owns them."""
    versions = {name: version for name, _, version in packages}
    return [
        (row, versions[row["package"]])
        for row in rows
        if row["package"] in versions
        and row["version"]
        and not cuda_checks.fits(row["version"], cuda_names.upstream(versions[row["package"]]))
    ]


def stray_headers(headers, libraries):
    """(header, library) where programs would be compiled for another version than the loader finds."""
    found = []
    for header in headers:
        major = (header["version"] or "").split(".")[0]
        same = [row for row in libraries if (row["version"] or "").split(".")[0] == major]
        if same and not any(cuda_checks.fits(header["version"], row["version"]) for row in same[:1]):
            found.append((header, same[0]))
    return found


def cudnn(facts, want):
    """cuDNN's header, library and package are of one version, and made for a CUDA that is here."""
    check, wish, cuda = "cuda.cudnn", cuda_checks.wish_of(want), cuda_checks.cuda_of(facts)
    packages = library_packages(facts, "cudnn")
    runtime = [row for row in packages if re.match(r"^libcudnn[0-9]+$", row[1].base)]
    libraries = in_loader_order(facts, [row for row in cuda["libraries"] if row["soname"].startswith("libcudnn.so.")])
    headers = [row for row in cuda["headers"] if row["name"] == "cudnn"]
    evidence = _evidence(packages, libraries, headers)
    for major, wanted in sorted(wish["cudnn"].items()):
        have = [(n, v) for n, p, v in runtime if built_for(p, v) == str(major)]
        if not have:
            return _verdict(
                check,
                "fail",
                "cuDNN %s for CUDA %s is not installed" % (wanted, major),
                evidence,
                "provision apply installs it",
            )
        if not any(version == wanted or cuda_checks.fits(cuda_names.upstream(version), wanted) for _, version in have):
            return _verdict(
                check,
                "fail",
                "cuDNN is %s, wanted is %s" % (have[0][1], wanted),
                evidence,
                "provision apply moves it there",
            )
    for name, package, version in packages:
        partner = [row for row in runtime if (row[1].cudnn, row[1].major) == (package.cudnn, package.major)]
        if partner and partner[0][2] != version:
            return _verdict(
                check,
                "fail",
                "%s is %s, %s is %s" % (name, version, partner[0][0], partner[0][2]),
                evidence,
                "programs are compiled for one and run with the other: apt-get install "
                "--allow-change-held-packages %s=%s" % (name, partner[0][2]),
            )
    untrue = untrue_files(libraries + headers, packages)
    if untrue:
        row, version = untrue[0]
        return _verdict(
            check,
            "fail",
            "%s is %s, its package %s is %s" % (row["path"], row["version"], row["package"], version),
            evidence,
            "somebody wrote over it: apt-get install --reinstall %s=%s" % (row["package"], version),
        )
    sonames = {row["soname"] for row in libraries}
    gone = ["%s=%s" % (name, v) for name, package, v in runtime if "libcudnn.so.%s" % package.cudnn not in sonames]
    if gone:
        return _verdict(
            check,
            "fail",
            "the library of %s is gone" % gone[0].partition("=")[0],
            evidence,
            "apt-get install --reinstall %s" % gone[0],
        )
    stray = stray_headers(headers, libraries)
    if stray:
        header, library = stray[0]
        return _verdict(
            check,
            "fail",
            "programs are compiled for cuDNN %s and find %s" % (header["version"], library["version"]),
            evidence,
            "of %s and %s one has to go: keep what a package owns" % (header["path"], library["path"]),
        )
    unlike, too_new = misfits(facts, runtime)
    if too_new:
        return _verdict(
            check,
            "fail",
            "%s is for CUDA %s, the driver carries %s" % (too_new[0][0], too_new[0][2], facts["smi"]["cuda_version"]),
            evidence,
            "install the build for an older CUDA: provision compat --driver %s tells which"
            % (facts["module"]["loaded"] or {"version": "VERSION"})["version"],
        )
    if unlike:
        having = ", ".join(sorted({row["version"] for row in cuda["toolkits"] if row["version"]}))
        hint = "an unpinned update took the highest number: cuda_toolkit_cudnn: auto takes the build for the toolkits"
        if wish["manage"]:
            return _verdict(
                check, "fail", "%s %s is for CUDA %s, the toolkits are %s" % (unlike[0] + (having,)), evidence, hint
            )
        return _verdict(
            check, "warn", "%s %s is for CUDA %s, the toolkits are %s" % (unlike[0] + (having,)), evidence, hint
        )
    if not packages and not libraries:
        return _verdict(check, "skip", "no cuDNN", evidence)
    told = [cuda_names.upstream(version) for _, _, version in runtime] or [row["version"] or "?" for row in libraries]
    return _verdict(check, "pass", ", ".join(dict.fromkeys(told)) or "headers only", evidence)


def nccl(facts, want):
    """NCCL's header, library and package are of one version, and made for a CUDA that is here."""
    check, wish, cuda = "cuda.nccl", cuda_checks.wish_of(want), cuda_checks.cuda_of(facts)
    packages = library_packages(facts, "nccl")
    runtime = [row for row in packages if row[0].split(":")[0] == "libnccl2"]
    libraries = in_loader_order(facts, [row for row in cuda["libraries"] if row["soname"] == "libnccl.so.2"])
    headers = [row for row in cuda["headers"] if row["name"] == "nccl"]
    evidence = _evidence(packages, libraries, headers)
    wanted = wish["nccl"]
    if wanted:
        if not runtime:
            return _verdict(check, "fail", "NCCL %s is not installed" % wanted, evidence, "provision apply installs it")
        version = runtime[0][2]
        full = version == wanted or (
            "+cuda" not in wanted and cuda_checks.fits(cuda_names.upstream(version), cuda_names.upstream(wanted))
        )
        if not full:
            return _verdict(
                check,
                "fail",
                "NCCL is %s, wanted is %s" % (version, wanted),
                evidence,
                "provision apply moves it there",
            )
    versions = {version for _, _, version in packages}
    if len(versions) > 1:
        return _verdict(
            check,
            "fail",
            "libnccl2 and libnccl-dev differ: %s" % ", ".join(sorted(versions)),
            evidence,
            "they go as a pair: apt-get install --allow-change-held-packages libnccl-dev=%s"
            % (runtime or packages)[0][2],
        )
    untrue = untrue_files(libraries + headers, packages)
    if untrue:
        row, version = untrue[0]
        return _verdict(
            check,
            "fail",
            "%s is %s, its package %s is %s" % (row["path"], row["version"], row["package"], version),
            evidence,
            "somebody wrote over it: apt-get install --reinstall %s=%s" % (row["package"], version),
        )
    if runtime and not libraries:
        return _verdict(
            check,
            "fail",
            "the library of libnccl2 is gone",
            evidence,
            "apt-get install --reinstall libnccl2=%s" % runtime[0][2],
        )
    stray = stray_headers(headers, libraries)
    if stray:
        header, library = stray[0]
        return _verdict(
            check,
            "fail",
            "programs are compiled for NCCL %s and find %s" % (header["version"], library["version"]),
            evidence,
            "of %s and %s one has to go: keep what a package owns" % (header["path"], library["path"]),
        )
    unlike, too_new = misfits(facts, runtime)
    if too_new:
        return _verdict(
            check,
            "fail",
            "libnccl2 is for CUDA %s, the driver carries %s" % (too_new[0][2], facts["smi"]["cuda_version"]),
            evidence,
            "CUDA calls the driver insufficient then: cuda_toolkit_nccl: auto takes the build that fits",
        )
    if unlike:
        having = ", ".join(sorted({row["version"] for row in cuda["toolkits"] if row["version"]}))
        hint = "an unpinned update took the highest number: cuda_toolkit_nccl: auto takes the build for the toolkits"
        if wish["manage"]:
            return _verdict(
                check, "fail", "%s %s is for CUDA %s, the toolkits are %s" % (unlike[0] + (having,)), evidence, hint
            )
        return _verdict(
            check, "warn", "%s %s is for CUDA %s, the toolkits are %s" % (unlike[0] + (having,)), evidence, hint
        )
    if not packages and not libraries:
        return _verdict(check, "skip", "no NCCL", evidence)
    told = [version.replace("-1+", "+") for _, _, version in runtime] or [row["version"] or "?" for row in libraries]
    return _verdict(check, "pass", ", ".join(told) or "headers only", evidence)


def in_loader_order(facts, rows):
    """Libraries as the loader takes them: LD_LIBRARY_PATH of every login, its cache, its own folders (ld.so(8))."""
    exported = [
        path
        for line in cuda_checks.cuda_of(facts)["shell_lines"]
        if line["variable"] == "LD_LIBRARY_PATH" and cuda_checks.is_everybodys(line)
        for path in line["paths"]
    ]

    def rank(row):
        folder = row["path"].rpartition("/")[0]
        if folder in exported:
            return (0, exported.index(folder))
        if row["in_cache"]:
            return (1, 0)
        return (2, 0) if re.match(r"^(?:/usr)?/lib(?:/[a-z0-9_]+-linux-gnu)?$", folder) else (3, 0)

    return sorted(rows, key=rank)


def is_false_link(row):
    """True for a library's name that leads to another version than it promises, laid there by hand (scenario M4)."""
    promised = row["soname"].partition(".so.")[2].split(".")
    real = (row["version"] or "").split(".")
    if row["package"] or not row["version"] or row["soname"] in _STEADY or row["soname"] == "libcuda.so.1":
        return False
    return real[: len(promised)] != promised[: len(real)]


def libraries(facts, want):
    """Of libraries that are there more than once the loader takes the right one; no name lies about its version."""
    check, wish, cuda = "cuda.libraries", cuda_checks.wish_of(want), cuda_checks.cuda_of(facts)
    rows = [row for row in cuda["libraries"] if row["soname"] != "libcuda.so.1"]
    false = [row for row in rows if is_false_link(row)]
    evidence = []
    groups = {}
    for row in in_loader_order(facts, rows):
        groups.setdefault(row["soname"], []).append(row)
    for soname, found in sorted(groups.items()):
        if len(found) > 1:
            told = ["%s (%s, %s)" % (row["path"], row["version"] or "?", cuda_checks.owner(row)) for row in found]
            evidence.append("%s: %s, before %s" % (soname, told[0], ", ".join(told[1:])))
    if false:
        row = false[0]
        return _verdict(
            check,
            "fail",
            "%s is a link by hand to %s" % (row["path"], row["version"]),
            ["%s -> %s, %s" % (r["path"], r["target"], cuda_checks.owner(r)) for r in false] + evidence,
            "rm %s, and install what provides %s" % (row["path"], row["soname"]),
        )
    folder = cuda_checks.default_folder(facts, wish)
    for found in groups.values():
        first, better = found[0], [row for row in found[1:] if row["package"]]
        if first["package"] is None and better and first["version"] != better[0]["version"]:
            return _verdict(
                check,
                "warn",
                "%s (%s) is found before %s (%s) of %s"
                % (
                    first["path"],
                    first["version"] or "?",
                    better[0]["path"],
                    better[0]["version"] or "?",
                    better[0]["package"],
                ),
                evidence,
                "no package owns it: take its folder from LD_LIBRARY_PATH or ld.so.conf.d, or move it away",
            )
        in_default = [row for row in found if folder and (row["target"] or "").startswith(folder + "/")]
        other = first["target"] and first["target"].startswith("/usr/local/cuda-")
        if wish["manage"] and in_default and first is not in_default[0] and other and first["in_cache"] is not None:
            return _verdict(
                check,
                "warn",
                "%s is found before that of the default, %s" % (first["path"], in_default[0]["path"]),
                evidence,
                "see cuda.link and cuda.environment; provision apply writes ld.so.conf.d, runs ldconfig",
            )
    lost = [
        version
        for version in wish["versions"]
        if any(
            row["target"]
            and row["target"].startswith(cuda_checks.folder_of(version) + "/")
            and all(other["in_cache"] is False for other in groups[row["soname"]])
            for row in rows
        )
    ]
    if lost and not any(
        line["variable"] == "LD_LIBRARY_PATH" and cuda_checks.is_everybodys(line) for line in cuda["shell_lines"]
    ):
        return _verdict(
            check,
            "warn",
            "the loader does not know the libraries of CUDA %s" % ", ".join(lost),
            evidence,
            "programs say 'cannot open shared object file': provision apply writes ld.so.conf.d and runs ldconfig",
        )
    if not rows:
        return _verdict(check, "skip", "no CUDA library")
    twice = sum(len(found) > 1 for found in groups.values())
    return _verdict(
        check, "pass", "%d, %s" % (len(groups), "%d of them more than once" % twice if twice else "each once"), evidence
    )


CHECKS = (cudnn, nccl, libraries)
