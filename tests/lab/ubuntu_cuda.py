"""What Ubuntu itself has of CUDA, and its compilers: packages of the Ubuntu-like archive.

``nvidia-cuda-toolkit`` puts an nvcc of its own into /usr/bin, which shadows NVIDIA's toolkits. Versions are in
data/cuda.yml. Left out of its relations: the driver's library, which the real one takes through ``libcuda.so.1``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from . import contents, cuda_repo, sofile
from .debfile import File, Package
from .releases import Release
from .sim.nvcc import wrapper

LIB = contents.LIB
_COMPILER = """\
#!/bin/sh
# Stand-in on a simulated host: says its version, compiles nothing.
case "$1" in
    -dumpversion) echo %(major)s ;;
    -dumpfullversion) echo %(full)s ;;
    -dumpmachine) echo x86_64-linux-gnu ;;
    --version)
        echo "$(basename "$0") (Ubuntu %(package)s) %(full)s"
        echo "Copyright (C) Free Software Foundation, Inc."
        echo "This is free software; see the source for copying conditions.  There is NO"
        echo "warranty; not even for MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE."
        echo
        ;;
    *)
        echo "$(basename "$0"): fatal error: no input files (a stand-in that compiles nothing)" >&2
        exit 1
        ;;
esac
"""


def packages(release: Release) -> list[Package]:
    """Compilers, the distribution's toolkit, cuDNN installer and NCCL of a release."""
    row = cuda_repo.data()["ubuntu"][release.version]
    first = (release.codename,)
    built = [*_compilers(row, first), *_toolkit(row["toolkit"], first), *_cudnn(row.get("cudnn"), first)]
    if "cuda" in row:
        built += _of_nvidias_names(row["cuda"], first)
    if "nccl" in row:

        def package(name: str, version: str, fields: Any, files: Any, scripts: Any = None) -> Package:
            component = "multiverse"
            return Package(name, version, "amd64", fields, files, scripts or {}, [], name, component, first)

        built += list(cuda_repo.nccl_pair(row["nccl"]["nccl"], row["nccl"]["version"], package))
    return built


def _of_nvidias_names(version: str, suites: tuple[str, ...]) -> Iterator[Package]:
    """The toolkit that the archive has under the names of NVIDIA's packages, without what brings a driver there."""
    for package in cuda_repo.Toolkit(version, "archive").packages():
        if package.name.startswith(("cuda-compat", "cuda-runtime", "cuda-demo-suite")) or re.fullmatch(
            r"cuda(-[0-9]+)*", package.name
        ):
            continue
        upstream = package.version.removesuffix("-1")
        yield replace(package, version=f"{upstream}-0ubuntu1", component="multiverse", suites=suites)


def _compilers(row: dict[str, Any], suites: tuple[str, ...]) -> Iterator[Package]:
    gcc = row["gcc"]
    for major, version in gcc["versions"].items():
        full = version.split("-")[0]
        text = _COMPILER % {"major": major, "full": full, "package": version}
        for kind in ("gcc", "g++"):
            fields = {"Depends": f"gcc-{major} (= {version})"} if kind == "g++" else {}
            files: dict[str, File | str] = {f"/usr/bin/{kind}-{major}": File(text.encode(), 0o755)}
            component = "main" if major == gcc["default"] else "universe"
            yield _package(f"{kind}-{major}", version, fields, files, component, suites)
    for kind in ("gcc", "g++"):
        depends = f"{kind}-{gcc['default']} (>= {gcc['default']})" + (
            f", gcc (= {gcc['meta']})" if kind == "g++" else ""
        )
        links = {f"/usr/bin/{kind}": File(link=f"{kind}-{gcc['default']}")}
        yield _package(kind, gcc["meta"], {"Depends": depends}, dict(links), "main", suites)
    # libc6-dev and dpkg-dev are left out: nothing here compiles.
    wanted = {"Depends": f"gcc (>= 4:{gcc['default']}), g++ (>= 4:{gcc['default']}), make"}
    yield _package("build-essential", row["build_essential"], wanted, {}, "main", suites)


def _toolkit(row: dict[str, Any], suites: tuple[str, ...]) -> Iterator[Package]:
    version, (name, runtime) = row["version"], row["cudart"]
    marked = {"X-Lab": "inferred"} if row.get("inferred") else {}
    number = cuda_repo.numbers(row["minor"])[0] * 1000 + cuda_repo.numbers(row["minor"])[1] * 10
    soname = f"libcudart.so.{row['so']}"
    library: dict[str, File | str] = {
        f"{LIB}/libcudart.so.{row['runtime']}": File(
            sofile.build(soname, {"cudaRuntimeGetVersion": sofile.stores(number)})
        ),
        f"{LIB}/{soname}": File(link=f"libcudart.so.{row['runtime']}"),
    }
    source = {"Source": "nvidia-cuda-toolkit", **marked}
    yield _package(name, runtime, source, library, "multiverse", suites, {"triggers": "activate-noawait ldconfig\n"})
    files: dict[str, File | str] = {
        "/usr/include/cuda.h": f"#define CUDA_VERSION {number}\n",
        "/usr/include/cuda_runtime.h": '#include "crt/host_config.h"\n',
        f"{LIB}/libcudart.so": File(link=soname),
    }
    yield _package(
        "nvidia-cuda-dev", runtime, {**source, "Depends": f"{name} (= {runtime})"}, files, "multiverse", suites
    )
    text = row["nvcc"]
    nvcc = wrapper({"release": row["minor"], **text, **cuda_repo.abilities(row["minor"])})
    files = {"/usr/bin/nvcc": File(nvcc.encode(), 0o755), "/usr/lib/cuda/version.txt": f"CUDA Version {row['minor']}\n"}
    depends = f"nvidia-cuda-dev (= {runtime})"
    yield _package("nvidia-cuda-toolkit", version, {**source, "Depends": depends}, files, "multiverse", suites)


def _cudnn(row: dict[str, Any] | None, suites: tuple[str, ...]) -> Iterator[Package]:
    """An installer: its library comes into /usr/lib at configuration, where no package owns it."""
    if row is None:
        return
    folder = "/usr/share/nvidia-cudnn"
    major, minor, patch = row["cudnn"].split(".")[:3]
    soname, full = f"libcudnn.so.{major}", f"libcudnn.so.{major}.{minor}.{patch}"
    number = int(major) * 1000 + int(minor) * 100 + int(patch)
    files: dict[str, File | str] = {
        f"{folder}/{full}": File(sofile.build(soname, {"cudnnGetVersion": sofile.constant(number)})),
        f"{folder}/cudnn_version.h": cuda_repo.cudnn_header(row["cudnn"]),
    }
    places = [
        f"{LIB}/{full}",
        f"{LIB}/{soname}",
        f"{LIB}/libcudnn.so",
        "/usr/include/cudnn_version.h",
        "/usr/include/cudnn.h",
    ]
    after = (
        f"cp {folder}/{full} {places[0]}\nln -sf {full} {places[1]}\nln -sf {soname} {places[2]}\n"
        f"cp {folder}/cudnn_version.h {places[3]}\necho '#include <cudnn_version.h>' > {places[4]}\nldconfig\n"
    )
    scripts = {
        "postinst": f'#!/bin/sh\nset -e\nif [ "$1" = configure ]; then\n{after}fi\n',
        "prerm": f'#!/bin/sh\nset -e\nif [ "$1" = remove ]; then\nrm -f {" ".join(places)}\nfi\n',
    }
    yield _package("nvidia-cudnn", row["version"], {"Source": "nvidia-cudnn"}, files, "multiverse", suites, scripts)


def _package(
    name: str,
    version: str,
    fields: dict[str, str],
    files: dict[str, File | str],
    component: str,
    suites: tuple[str, ...],
    scripts: dict[str, str] | None = None,
) -> Package:
    return Package(name, version, "amd64", fields, files, scripts or {}, [], name, component, suites)
