"""cuDNN and NCCL: pairs of library and headers, the CUDA that they are built for, and what moves them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.diagnose import queries
from provision.diagnose.candidates import candidate, moves
from provision.diagnose.checks import user
from provision.diagnose.rule import Case, Found, rule
from provision.diagnose.rules.cuda import shadowing
from provision.parts.cuda import checks as cuda_checks
from provision.parts.cuda import library_checks


def _packages(case: Case, kind: str) -> list[tuple[str, cuda_names.CudaPackage, str]]:
    return library_checks.library_packages(case.facts, kind)


def _pair(case: Case, kind: str, title: str) -> Iterator[Found]:
    """Library and headers differ, or would when the other one is installed."""
    rows = _packages(case, kind)
    runtime = [row for row in rows if _is_runtime(row[0])]
    for name, package, version in rows:
        partner = [row for row in runtime if (row[1].cudnn, row[1].major) == (package.cudnn, package.major)]
        if partner and partner[0][2] != version:
            held = [n for n in (name, partner[0][0]) if case.facts.packages[n].held]
            yield Found(
                f"{name} is {version}, {partner[0][0]} is {partner[0][2]}",
                [*(f"{n} {v}" for n, _, v in rows), *(f"{n} is held" for n in held)],
                queries.manual(f"apt-get install --allow-change-held-packages {name}={partner[0][2]}"),
                level="error",
            )
            return
    for name, package, version in runtime:
        headers = _headers_of(kind, name, package)
        available = candidate(case, headers)
        other = case.facts.packages.get(headers)
        if (other and other.status[1] not in "nc") or available is None or available.version == version:
            continue
        library = moves(case, name)
        if case.facts.packages[name].held or library is None or library.version != available.version:
            yield Found(
                f"{headers} would come as {available.version}, {title} here is {version}",
                [
                    f"{name} {version}" + (" (held)" if case.facts.packages[name].held else ""),
                    f"{headers}: {available.version} from {available.origin}",
                ],
                queries.manual(f"apt-get install {headers}={version}"),
                level="note",
            )
            return


def _is_runtime(name: str) -> bool:
    bare = name.split(":")[0]
    return bool(re.match(r"^libcudnn[0-9]+(?:-cuda-[0-9]+)?$", bare)) or bare == "libnccl2"


def _headers_of(kind: str, name: str, package: cuda_names.CudaPackage) -> str:
    if kind == "nccl":
        return "libnccl-dev"
    return str(cuda_names.cudnn_packages(package.cudnn, package.major or "")[1])


def _wrong_cuda(case: Case, kind: str, title: str) -> Iterator[Found]:
    """The library is built for a CUDA that is not here, or that the driver does not carry; or the next upgrade brings such."""
    rows = [row for row in _packages(case, kind) if _is_runtime(row[0])]
    unlike, too_new = library_checks.misfits(case.facts, rows)
    having = ", ".join(sorted({row.version for row in case.facts.cuda.toolkits if row.version}))
    evidence = [f"{name} {version}" for name, _, version in rows]
    evidence += [f"{row.path}: CUDA {row.release or row.version}" for row in case.facts.cuda.toolkits]
    requested = case.expect.cuda.manage
    repair = (
        queries.apply(f"take the build of {title} for the installed toolkits", "cuda")
        if requested
        else queries.manual(
            f"install the build of {title} whose +cudaX.Y suffix is of the toolkit's major, headers and library, and hold both"
        )
    )
    if too_new:
        name, version, major = too_new[0]
        yield Found(
            f"{name} {version} is for CUDA {major}, the driver carries {case.facts.smi.cuda_version}",
            [*evidence, f"nvidia-smi: CUDA {case.facts.smi.cuda_version}"],
            repair,
            level="error",
        )
        return
    if unlike:
        name, version, major = unlike[0]
        yield Found(
            f"{name} {version} is for CUDA {major}, the toolkits are {having}",
            evidence,
            repair,
            level="error" if requested else "warning",
        )
        return
    for name, package, version in rows:
        taken = moves(case, name)
        if taken is None or case.facts.packages[name].held:
            continue
        now, then = (library_checks.built_for(package, version), library_checks.built_for(package, taken.version))
        if now and then and now != then:
            yield Found(
                f"the next upgrade moves {name} from CUDA {now} to CUDA {then}",
                [f"{name} {version} is installed and not held", f"{taken.version} from {taken.origin}"],
                queries.apply(f"hold {title}", "cuda")
                if requested
                else queries.manual(f"apt-mark hold {name} {_headers_of(kind, name, package)}"),
                level="warning",
            )
            return


def _files(case: Case, kind: str, title: str) -> Iterator[Found]:
    """Files are not those of their packages: written over, gone, or of a copy whose header is found first."""
    rows = _packages(case, kind)
    cuda = case.facts.cuda
    stem = "libcudnn.so." if kind == "cudnn" else "libnccl.so.2"
    libraries = library_checks.in_loader_order(
        case.facts, [row for row in cuda.libraries if row.soname.startswith(stem)]
    )
    headers = [row for row in cuda.headers if row.name == kind]
    files: list[cuda_checks.Owned] = [*libraries, *headers]
    evidence = [f"{row.path}: {row.version or '?'}, {cuda_checks.owner(row)}" for row in files]
    untrue = library_checks.untrue_files(files, rows)
    if untrue:
        row, version = untrue[0]
        yield Found(
            f"{row.path} is {row.version}, its package {row.package} is {version}",
            evidence,
            queries.manual(f"apt-get install --reinstall {row.package}={version}"),
        )
        return
    sonames = {row.soname for row in libraries}
    for name, package, version in rows:
        soname = f"libcudnn.so.{package.cudnn}" if kind == "cudnn" else "libnccl.so.2"
        if _is_runtime(name) and cuda.libraries and soname not in sonames:
            yield Found(
                f"the library of {name} is gone",
                (f"{name} {version}: no {soname} in the loader's folders",),
                queries.manual(f"apt-get install --reinstall {name}={version}"),
            )
            return
    stray = library_checks.stray_headers(headers, libraries)
    if stray:
        header, library = stray[0]
        yield Found(
            f"programs are compiled for {title} {header.version} and find {library.version}",
            evidence,
            queries.manual(f"of {header.path} and {library.path} remove one: keep the file that a package owns"),
            level="warning",
        )
        return
    # A tarball's copy that nothing finds first today is found by the next build, or after the next ldconfig.
    upstream = {version.partition("-")[0] for _, _, version in rows}
    copies = [row for row in files if row.package is None and row.version and not _is_of(row.version, upstream)]
    # The finding of what is shadowed says more.
    if copies and rows and not any(True for _ in shadowing(case, cudnn=kind == "cudnn")):
        yield Found(
            f"a second {title} that no package owns is beside {rows[0][0]}: {copies[0].version} in {copies[0].path}",
            [*(f"{name} {version}" for name, _, version in rows), *(f"{row.path}: {row.version}" for row in copies)],
            queries.manual(f"remove the files that no package owns ({copies[0].path}, …), then ldconfig"),
            level="warning",
        )


def _is_of(version: str, releases: set[str]) -> bool:
    """True where a file's version, which may be shorter, is that of one of the packages."""
    return any(f"{release}.".startswith(f"{version}.") for release in releases)


@rule("cudnn.shadowed_library")
def _shadowed(case: Case) -> Iterator[Found]:
    yield from shadowing(case, cudnn=True)


@rule("cudnn.dangling_link")
def _dangling(case: Case) -> Iterator[Found]:
    for group in case.facts.cuda.alternatives:
        if "cudnn" in group.name and group.current in group.dangling and group.current:
            yield Found(
                f"{group.link} leads to {group.current}, which is gone",
                (f"/etc/alternatives/{group.name} -> {group.current}",),
                queries.manual(
                    f"update-alternatives --auto {group.name}; "
                    f"without another choice: update-alternatives --remove-all {group.name}"
                ),
            )


@rule("nccl.redirected_peers")
def _redirected(case: Case) -> Iterator[Found]:
    said = user(case).topology
    cards = queries.own_gpus(case)
    if said and len(cards) > 1 and not case.facts.host.container and not case.facts.host.virtual:
        yield Found(
            "peer traffic between the cards goes through the processor's root complex",
            [
                *said,
                f"command line: {case.facts.trouble.user.cmdline}"
                if case.facts.trouble and case.facts.trouble.user.cmdline
                else "",
            ],
            queries.manual(
                "ACS off in the BIOS (or setpci), iommu=pt on the kernel's command line; NCCL_P2P_DISABLE=1 goes around it"
            ),
        )


rule("cudnn.wrong_cuda")(partial(_wrong_cuda, kind="cudnn", title="cuDNN"))
rule("cudnn.pair_differs")(partial(_pair, kind="cudnn", title="cuDNN"))
rule("cudnn.files")(partial(_files, kind="cudnn", title="cuDNN"))
rule("nccl.pair_differs")(partial(_pair, kind="nccl", title="NCCL"))
rule("nccl.wrong_cuda")(partial(_wrong_cuda, kind="nccl", title="NCCL"))
rule("nccl.files")(partial(_files, kind="nccl", title="NCCL"))
