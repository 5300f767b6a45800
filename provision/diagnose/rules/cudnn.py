"""cuDNN and NCCL: pairs of library and headers, the CUDA that they are built for, and what moves them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.diagnose import queries
from provision.diagnose.candidates import candidate, moves
from provision.diagnose.held import user
from provision.diagnose.rule import Case, Found, Rule
from provision.diagnose.rules.cuda import shadowing
from provision.parts.cuda import checks as cuda_checks
from provision.parts.cuda import library_checks

_PAIR_NOTE = "library and headers are joined by '=': ask for both with the same full version, suffix included"


def _packages(case: Case, kind: str) -> list[tuple[str, cuda_names.CudaPackage, str]]:
    return list(library_checks.library_packages(case.plain, kind))


def _pair(kind: str, title: str) -> Callable[[Case], Iterator[Found]]:
    """Library and headers differ, or would when the other one is installed."""

    def find(case: Case) -> Iterator[Found]:
        rows = _packages(case, kind)
        runtime = [row for row in rows if _is_runtime(row[0])]
        for name, package, version in rows:
            partner = [row for row in runtime if (row[1].cudnn, row[1].major) == (package.cudnn, package.major)]
            if partner and partner[0][2] != version:
                held = [n for n in (name, partner[0][0]) if case.facts.packages[n].held]
                yield Found(
                    f"{name} is {version}, {partner[0][0]} is {partner[0][2]}",
                    queries.clip([*(f"{n} {v}" for n, _, v in rows), *(f"{n} is held" for n in held)]),
                    (queries.manual(f"apt-get install --allow-change-held-packages {name}={partner[0][2]}"),),
                    level="error",
                )
                return
        for name, package, version in runtime:
            headers = _headers_of(kind, name, package)
            offered = candidate(case, headers)
            other = case.facts.packages.get(headers)
            if (other and other.status[1] not in "nc") or offered is None or offered.version == version:
                continue
            library = moves(case, name)
            if case.facts.packages[name].held or library is None or library.version != offered.version:
                yield Found(
                    f"{headers} would come as {offered.version}, {title} here is {version}",
                    queries.clip(
                        [
                            f"{name} {version}" + (" (held)" if case.facts.packages[name].held else ""),
                            f"{headers}: {offered.version} from {offered.origin}",
                        ]
                    ),
                    (queries.manual(f"apt-get install {headers}={version}"),),
                    level="note",
                )
                return

    return find


def _is_runtime(name: str) -> bool:
    bare = name.split(":")[0]
    return bool(re.match(r"^libcudnn[0-9]+(?:-cuda-[0-9]+)?$", bare)) or bare == "libnccl2"


def _headers_of(kind: str, name: str, package: cuda_names.CudaPackage) -> str:
    if kind == "nccl":
        return "libnccl-dev"
    return str(cuda_names.cudnn_packages(package.cudnn, package.major or "")[1])


def _wrong_cuda(kind: str, title: str) -> Callable[[Case], Iterator[Found]]:
    """The library is built for a CUDA that is not here, or that the driver does not carry; or the next upgrade brings such."""

    def find(case: Case) -> Iterator[Found]:
        rows = [row for row in _packages(case, kind) if _is_runtime(row[0])]
        unlike, too_new = library_checks.misfits(case.plain, rows)
        having = ", ".join(sorted({row.version for row in case.facts.cuda.toolkits if row.version}))
        evidence = [f"{name} {version}" for name, _, version in rows]
        evidence += [f"{row.path}: CUDA {row.release or row.version}" for row in case.facts.cuda.toolkits]
        wished = cuda_checks.wish_of(case.expect)["manage"]
        repair = (
            queries.apply(f"take the build of {title} for the toolkits that are here", "cuda")
            if wished
            else queries.manual(
                f"install the build of {title} whose +cudaX.Y suffix is of the toolkit's major, headers and library, and hold both"
            )
        )
        if too_new:
            name, version, major = too_new[0]
            yield Found(
                f"{name} {version} is for CUDA {major}, the driver carries {case.facts.smi.cuda_version}",
                queries.clip([*evidence, f"nvidia-smi: CUDA {case.facts.smi.cuda_version}"]),
                (repair,),
                level="error",
            )
            return
        if unlike:
            name, version, major = unlike[0]
            yield Found(
                f"{name} {version} is for CUDA {major}, the toolkits are {having}",
                queries.clip(evidence),
                (repair,),
                level="error" if wished else "warning",
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
                    queries.clip(
                        [f"{name} {version} is installed and not held", f"{taken.version} from {taken.origin}"]
                    ),
                    (
                        queries.apply(f"hold {title}", "cuda")
                        if wished
                        else queries.manual(f"apt-mark hold {name} {_headers_of(kind, name, package)}"),
                    ),
                    level="warning",
                )
                return

    return find


def _files(kind: str, title: str) -> Callable[[Case], Iterator[Found]]:
    """Files are not those of their packages: written over, gone, or of a copy whose header is found first."""

    def find(case: Case) -> Iterator[Found]:
        rows = _packages(case, kind)
        cuda = case.plain["cuda"]
        stem = "libcudnn.so." if kind == "cudnn" else "libnccl.so.2"
        libraries = library_checks.in_loader_order(
            case.plain, [row for row in cuda["libraries"] if row["soname"].startswith(stem)]
        )
        headers = [row for row in cuda["headers"] if row["name"] == kind]
        evidence = [f"{row['path']}: {row['version'] or '?'}, {cuda_checks.owner(row)}" for row in libraries + headers]
        untrue = library_checks.untrue_files(libraries + headers, rows)
        if untrue:
            row, version = untrue[0]
            yield Found(
                f"{row['path']} is {row['version']}, its package {row['package']} is {version}",
                queries.clip(evidence),
                (queries.manual(f"apt-get install --reinstall {row['package']}={version}"),),
            )
            return
        sonames = {row["soname"] for row in libraries}
        for name, package, version in rows:
            soname = f"libcudnn.so.{package.cudnn}" if kind == "cudnn" else "libnccl.so.2"
            if _is_runtime(name) and cuda["libraries"] and soname not in sonames:
                yield Found(
                    f"the library of {name} is gone",
                    (f"{name} {version}: no {soname} in the loader's folders",),
                    (queries.manual(f"apt-get install --reinstall {name}={version}"),),
                )
                return
        stray = library_checks.stray_headers(headers, libraries)
        if stray:
            header, library = stray[0]
            yield Found(
                f"programs are compiled for {title} {header['version']} and find {library['version']}",
                queries.clip(evidence),
                (queries.manual(f"of {header['path']} and {library['path']} one has to go: keep what a package owns"),),
                level="warning",
            )

    return find


def _shadowed(case: Case) -> Iterator[Found]:
    yield from shadowing(case, cudnn=True)


def _dangling(case: Case) -> Iterator[Found]:
    for group in case.facts.cuda.alternatives:
        if "cudnn" in group.name and group.current in group.dangling and group.current:
            yield Found(
                f"{group.link} leads to {group.current}, which is gone",
                (f"/etc/alternatives/{group.name} -> {group.current}",),
                (
                    queries.manual(
                        f"update-alternatives --auto {group.name}; "
                        f"without another choice: update-alternatives --remove-all {group.name}"
                    ),
                ),
            )


def _redirected(case: Case) -> Iterator[Found]:
    said = user(case).topology
    cards = queries.own_gpus(case)
    if said and len(cards) > 1 and not case.facts.host.container and not case.facts.host.virtual:
        yield Found(
            "peer traffic between the cards goes through the processor's root complex",
            queries.clip(
                [
                    *said,
                    f"command line: {case.facts.trouble.user.cmdline}"
                    if case.facts.trouble and case.facts.trouble.user.cmdline
                    else "",
                ]
            ),
            (
                queries.manual(
                    "ACS off in the BIOS (or setpci), iommu=pt on the kernel's command line; NCCL_P2P_DISABLE=1 goes around it"
                ),
            ),
        )


RULES = (
    Rule(
        code="cudnn.shadowed_library",
        level="warning",
        title="a framework finds an older cuDNN than its own",
        explain=(
            "PyTorch brings its own cuDNN. A folder of another one in LD_LIBRARY_PATH (a site module, a tarball in "
            "/usr/local/cuda/lib64) comes before it; empty elements there mean the current folder."
        ),
        breaks="'cuDNN version incompatibility' when the framework starts",
        repair="take that folder out of LD_LIBRARY_PATH",
        prevent="cuDNN from packages, in the multiarch folder only",
        find=_shadowed,
        texts=(
            r"cuDNN version incompatibility: PyTorch was compiled +against \([^)]+\) but found runtime version \([^)]+\)",
            r"Looks like your LD_LIBRARY_PATH contains incompatible version of cudnn",
            r"Loaded runtime CuDNN library: \S+ but source was compiled with: \S+",
        ),
        sources=("scenario I1",),
    ),
    Rule(
        code="cudnn.wrong_cuda",
        level="warning",
        title="cuDNN is, or will be, built for another CUDA than the toolkits",
        explain=(
            "Up to cuDNN 8 one package name serves every CUDA: 8.9.7.29-1+cuda12.2 sorts above 8.6.0.163-1+cuda11.8, "
            "so an unpinned install or upgrade changes the CUDA major in silence. cuDNN 9 has the major in its name "
            "(libcudnn9-cuda-12)."
        ),
        breaks="CUDNN_STATUS_NOT_INITIALIZED when TensorFlow, JAX or a program of yours starts",
        repair="library and headers with the +cudaX.Y suffix of the toolkit, both held",
        prevent="cuda_toolkit_cudnn: auto chooses by the suffix and holds",
        find=_wrong_cuda("cudnn", "cuDNN"),
        texts=(
            r"CUDNN_STATUS_NOT_INITIALIZED",
            r"Could not (?:create|load) cudnn handle",
            r"DNN library initialization failed",
        ),
        sources=("scenario I2",),
    ),
    Rule(
        code="cudnn.pair_differs",
        level="error",
        title="cuDNN's library and headers are of two versions",
        explain=f"One of them was moved, the other was held or pinned. {_PAIR_NOTE[0].upper()}{_PAIR_NOTE[1:]}.",
        breaks="apt: unmet dependencies; programs are compiled for one version and run with the other",
        repair="both at one full version in one transaction",
        prevent="hold both",
        find=_pair("cudnn", "cuDNN"),
        texts=(r"libcudnn\d\S* ?: Depends: libcudnn\d\S* \(= [^)]+\) but \S+ is to be installed",),
        sources=("scenario G4",),
    ),
    Rule(
        code="cudnn.files",
        level="error",
        title="cuDNN's files are not those of its package",
        explain="A tarball was unpacked over a package's files, or beside them where compilers look first.",
        breaks="programs are compiled for one cuDNN and run with another",
        repair="reinstall the package, move the copy away",
        prevent="cuDNN from packages only",
        find=_files("cudnn", "cuDNN"),
        texts=(r"cudnn(?:_version)?\.h: No such file or directory", r"cannot find -lcudnn"),
        sources=("scenario I4",),
    ),
    Rule(
        code="cudnn.dangling_link",
        level="warning",
        title="cuDNN's alternative leads to a file that is gone",
        explain=(
            "Below 9.10 cudnn.h and libcudnn.so went through update-alternatives; from 9.10 on they are files of the "
            "package. A removal that went wrong in between leaves a link that leads nowhere."
        ),
        breaks="builds that look for cudnn.h or libcudnn.so",
        repair="update-alternatives --auto, or --remove-all",
        prevent="remove by packages",
        find=_dangling,
        sources=("scenario I4",),
    ),
    Rule(
        code="nccl.pair_differs",
        level="error",
        title="libnccl2 and libnccl-dev are of two versions",
        explain=f"One of them was moved, the other was held or pinned. {_PAIR_NOTE[0].upper()}{_PAIR_NOTE[1:]}.",
        breaks="apt: unmet dependencies, 'held broken packages'",
        repair="apt-get install libnccl2=V libnccl-dev=V",
        prevent="hold both; never install libnccl-dev without its version",
        find=_pair("nccl", "NCCL"),
        texts=(
            r"libnccl-dev ?: Depends: libnccl2 \(= [^)]+\) but \S+ is to be installed",
            r"libnccl2 \(= [^)]+\) but \S+ is to be installed",
        ),
        sources=("scenario J1",),
    ),
    Rule(
        code="nccl.wrong_cuda",
        level="warning",
        title="NCCL is, or will be, built for another CUDA than toolkit and driver",
        explain="libnccl2 has one name for every CUDA; the highest version wins, whatever its +cudaX.Y suffix says.",
        breaks="'CUDA driver version is insufficient for CUDA runtime version' when NCCL starts",
        repair="libnccl2 and libnccl-dev with the suffix of the toolkit, both held",
        prevent="cuda_toolkit_nccl: auto chooses by the suffix and holds",
        find=_wrong_cuda("nccl", "NCCL"),
        texts=(
            r"NCCL .*CUDA driver version is insufficient for CUDA runtime version",
            r"CUDA driver version is insufficient for CUDA runtime version.*NCCL",
        ),
        sources=("scenario J2",),
    ),
    Rule(
        code="nccl.files",
        level="error",
        title="NCCL's files are not those of its package",
        explain="A copy was put over a package's files, or beside them where the loader or compilers look first.",
        breaks="programs are compiled for one NCCL and run with another",
        repair="reinstall the package, move the copy away",
        prevent="NCCL from packages only",
        find=_files("nccl", "NCCL"),
        texts=(r"nccl\.h: No such file or directory", r"cannot find -lnccl"),
    ),
    Rule(
        code="nccl.redirected_peers",
        level="note",
        title="ACS or the IOMMU redirects traffic between the cards",
        explain=(
            "Access control on PCIe bridges (ACS) and a translating IOMMU send what one card writes to another "
            "through the root complex: slow, and on some machines it hangs or comes out wrong. In a virtual machine "
            "it is the host's to change."
        ),
        breaks="NCCL is slow or hangs on several cards without NVLink",
        repair="ACS off in the BIOS or by setpci; iommu=pt; NCCL_P2P_DISABLE=1 as a way around",
        prevent="look at the BIOS of a new kind of machine before it is used; provision never changes it",
        find=_redirected,
        texts=(
            r"ACSCtl:.*(?:ReqRedir|CmpltRedir)\+",
            r"all_reduce_perf.*(?:hang|timed? ?out)",
            r"NCCL.*(?:P2P|p2p).*(?:hang|timeout|corrupt)",
        ),
        sources=("PCI Express base specification, ACS", "NVIDIA/nccl#257", "scenario J5"),
    ),
)
