"""CUDA packages of the NVIDIA-like repository: toolkits with all their parts, cuDNN of both packagings, NCCL pairs.

Names, versions, relations and scripts come from data/cuda.yml, which says where each is from; which minors a release's
repository holds comes from the product's catalog (``repository_ranges``). Files are few and small, but of the real
kind: libraries are ELF files that ldconfig and the loader take, headers carry their version macros, ``nvcc`` is a program.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from . import contents, sofile
from .debfile import File, Package
from .sim.nvcc import wrapper

HERE = Path(__file__).parent
CATALOG = HERE.parents[1] / "tests/catalog/cuda.yml"
LIB = contents.LIB
INCLUDE = "/usr/include/x86_64-linux-gnu"
TARGET = "targets/x86_64-linux"
_LDCONFIG = "activate-noawait ldconfig\n"
# cuDNN's unversioned links are files of the packages from here on; before, update-alternatives made them.
CUDNN_WITHOUT_ALTERNATIVES = (9, 10)


@cache
def data() -> dict[str, Any]:
    """The data file."""
    return _load(HERE / "data/cuda.yml")


@cache
def catalog() -> dict[str, Any]:
    """The product's catalog of toolkits: ranges of the repositories, what each compiler can do."""
    return _load(CATALOG)


def _load(path: Path) -> dict[str, Any]:
    with path.open() as handle:
        found: dict[str, Any] = yaml.load(handle, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader, the faster one
    return found


def numbers(version: str) -> tuple[int, ...]:
    """``12.4`` as (12, 4), for comparing."""
    return tuple(int(part) for part in version.split("."))


def minor_of(version: str) -> str:
    """Minor of a release: ``12.4.1`` gives ``12.4``."""
    return ".".join(version.split(".")[:2])


def releases(ubuntu: str, *, later: bool = False) -> list[str]:
    """Toolkit releases in the repository of an Ubuntu release; later: with those that publish("cuda") brings."""
    span = catalog()["repository_ranges"][ubuntu]
    return [
        version
        for version in data()["releases"]
        if numbers(minor_of(version)) >= numbers(span["first"])
        and (span["last"] is None or numbers(minor_of(version)) <= numbers(span["last"]))
        and (later or version not in data()["later"])
    ]


def packages(ubuntu: str, *, later: bool = False) -> list[Package]:
    """All CUDA packages of a release's repository; later: with what was published since its first day."""
    built: dict[tuple[str, str], Package] = {}
    made = [one for version in releases(ubuntu, later=later) for one in Toolkit(version).packages()]
    for package in [*made, *cudnn(ubuntu, later=later), *nccl(ubuntu, later=later)]:
        # A patch release carries the parts that did not change at the version they had.
        built.setdefault((package.name, package.version), package)
    return list(built.values())


class Toolkit:
    """One release of the toolkit: names, versions and contents of its packages."""

    def __init__(self, version: str, kind: str = "releases") -> None:
        """kind: ``releases`` of NVIDIA's repository, or ``archive``."""
        self.version = version
        self.minor = minor_of(version)
        self.major = self.minor.split(".")[0]
        self.dashed = self.minor.replace(".", "-")
        self.row = data()[kind][version]
        self.prefix = f"/usr/local/cuda-{self.minor}"
        self.number = numbers(version)[0] * 1000 + numbers(version)[1] * 10

    def has(self, base: str) -> bool:
        """True when this minor has a package."""
        row = data()["packages"].get(base)
        if row is None:
            return False
        span = numbers(row.get("first", "0.0")), numbers(row.get("last", "999.0"))
        return span[0] <= numbers(self.minor) <= span[1]

    def upstream(self, base: str) -> str:
        """Upstream version of a package of this release."""
        key = data()["packages"][base]["version"]
        return self.version if key == "toolkit" else str(self.row["versions"][key])

    def packages(self) -> Iterator[Package]:
        """Everything that this release adds to the repository."""
        yield from self._config()
        for base, row in data()["packages"].items():
            if self.has(base):
                yield self._package(base, row)
        yield from self._profilers()
        yield self._compat()
        yield from self._umbrellas()

    def _package(self, base: str, row: dict[str, Any]) -> Package:
        fields = {}
        depends = [item for wanted in row.get("depends", ()) for item in self._relation(wanted)]
        if depends:
            fields["Depends"] = ", ".join(depends)
        provides = [f"{name}-{self.dashed}" for name in row.get("provides", ())]
        if base == "cuda-nvcc" and numbers(self.minor) >= (13, 0):
            provides.append(f"cuda-nvcc-{self.major}")
        if provides:
            fields["Provides"] = ", ".join(provides)
        files, conffiles = self._files(base, row)
        # dpkg calls ldconfig once, after the last package.
        scripts = {"triggers": _LDCONFIG} if row.get("so") else {}
        if base in ("cuda-nvcc", "libcublas", "cuda-toolkit"):
            scripts |= contents.scripts_for(f"{base}-{self.dashed}", "", "", "")
        name = f"{base}-{self.dashed}"
        return _package(name, self.upstream(base), fields, files, scripts, conffiles, inferred=self._inferred())

    def _inferred(self) -> bool:
        return bool(self.row["from"] == "inferred")

    def _relation(self, wanted: str) -> list[str]:
        """What one entry of ``depends`` means for this release; nothing where the minor lacks the package."""
        if wanted.startswith("="):
            return [wanted[1:]]
        if wanted in ("config", "configs"):
            old = " | cuda-cudart-11-2" if wanted == "configs" else ""
            common = [f"cuda-toolkit-config-common{old}", f"cuda-toolkit-{self.major}-config-common{old}"]
            return [*common, f"cuda-toolkit-{self.dashed}-config-common"]
        if wanted == "driver":
            return self._driver()
        if wanted in ("nsight-compute", "nsight-systems"):
            full = self.row["nsight"][wanted.split("-")[1]]
            return [f"{_profiler(wanted, full)} (>= {full})"]
        base, _, exact = wanted.partition(" ")
        if not self.has(base):
            return []
        return [f"{base}-{self.dashed}" + (f" (>= {self.upstream(base)})" if exact else "")]

    def _driver(self) -> list[str]:
        """The driver that cuda-runtime-X-Y pulls: none from the unbundling on; the open one from 560 on (inferred)."""
        if numbers(self.minor) >= numbers(data()["driver_unbundled_from"]):
            return []
        driver = self.row["driver"]
        return [f"{'nvidia-open' if numbers(driver)[0] >= 560 else 'cuda-drivers'} (>= {driver})"]

    def _files(self, base: str, row: dict[str, Any]) -> tuple[dict[str, File | str], list[str]]:
        lib, include = f"{self.prefix}/{TARGET}/lib", f"{self.prefix}/{TARGET}/include"
        files: dict[str, File | str] = {}
        conffiles: list[str] = []
        library = row.get("so")
        if library:
            folder = f"{self.prefix}/extras/CUPTI/lib64" if library == "cupti" else lib
            number = data()["libraries"][library]["so"][int(self.major)]
            for name in data()["libraries"][library]["names"]:
                functions = {"cudaRuntimeGetVersion": sofile.stores(self.number)} if name == "libcudart" else {}
                full = f"{name}.so.{self.upstream(base)}"
                files[f"{folder}/{full}"] = File(sofile.build(f"{name}.so.{number}", functions))
                files[f"{folder}/{name}.so.{number}"] = File(link=full)
        elif base.endswith("-dev"):
            stem = base[: -len("-dev")]
            owner = data()["packages"].get(stem, {}).get("so")
            for name in data()["libraries"][owner]["names"] if owner else ():
                number = data()["libraries"][owner]["so"][int(self.major)]
                folder = f"{self.prefix}/extras/CUPTI/lib64" if owner == "cupti" else lib
                files[f"{folder}/{name}.so"] = File(link=f"{name}.so.{number}")
                files[f"{include}/{name[3:]}.h"] = f"/* simulated {name} {self.upstream(base)} */\n"
        if base == "cuda-cudart":
            files[f"{self.prefix}/lib64"] = File(link=f"{TARGET}/lib")
        elif base == "cuda-cccl":
            files[f"{self.prefix}/include"] = File(link=f"{TARGET}/include")
            files[f"{include}/cuda/std/version"] = f"// simulated {self.upstream(base)}\n"
        elif base == "cuda-cudart-dev":
            files[f"{include}/cuda.h"] = f"#define CUDA_VERSION {self.number}\n"
            files[f"{include}/cuda_runtime.h"] = '#include "crt/host_config.h"\n#include "cuda_runtime_api.h"\n'
            files[f"{include}/cuda_runtime_api.h"] = f"#define CUDART_VERSION {self.number}\n"
            files[f"{lib}/libcudart_static.a"] = "!<arch>\n"
        elif base == "cuda-driver-dev":
            files[f"{lib}/stubs/libcuda.so"] = File(sofile.build("libcuda.so.1"))
        elif base == "cuda-nvml-dev":
            files[f"{include}/nvml.h"] = "#define NVML_API_VERSION 12\n"
            files[f"{lib}/stubs/libnvidia-ml.so"] = File(sofile.build("libnvidia-ml.so.1"))
        elif base == "cuda-nvcc":
            files[f"{self.prefix}/bin/nvcc"] = File(self.nvcc().encode(), 0o755)
            files[f"{self.prefix}/bin/nvcc.profile"] = "TOP              = $(_HERE_)/..\n"
        elif base in ("cuda-nvvm", "libnvvm"):
            files[f"{self.prefix}/nvvm/libdevice/libdevice.10.bc"] = "simulated\n"
        elif base == "cuda-documentation":
            files[f"{self.prefix}/version.json"] = self.version_json()
        elif base == "libcufile":
            conf = f"/etc/ld.so.conf.d/gds-{self.dashed}.conf"
            files[conf] = f"{self.prefix}/{TARGET}/lib\n"
            conffiles.append(conf)
        # Its home before cuda-crt came was the compiler's package.
        if base == ("cuda-crt" if self.has("cuda-crt") else "cuda-nvcc"):
            limit = catalog()["minors"][self.minor]["gcc_max"]
            files[f"{include}/crt/host_config.h"] = f"#if __GNUC__ > {limit}\n#error unsupported GNU version\n#endif\n"
        if base.startswith("cuda-") and base.split("-")[1] in ("cuobjdump", "nvdisasm", "nvprune", "gdb", "nvprof"):
            program = {"gdb": "cuda-gdb"}.get(base.split("-")[1], base.split("-")[1])
            files[f"{self.prefix}/bin/{program}"] = File(b"#!/bin/sh\necho simulated\n", 0o755)
        return files, conffiles

    def nvcc(self) -> str:
        """The stand-in compiler of this release, as bin/nvcc holds it."""
        text = self.row["nvcc"]
        return wrapper(
            {
                "release": self.minor,
                "version": self.row["versions"]["nvcc"],
                "year": text["year"],
                "built": text["built"],
                "compiler": text["compiler"],
                **abilities(self.minor),
            }
        )

    def version_json(self) -> str:
        """version.json as the real one is laid out: the SDK first, then a part each."""
        rows = {"cuda": ("CUDA SDK", self.version)}
        for part, key, title in (
            ("cuda_cccl", "cccl", "CUDA C++ Core Compute Libraries"),
            ("cuda_cudart", "cudart", "CUDA Runtime (cudart)"),
            ("cuda_cupti", "cupti", "CUPTI"),
            ("cuda_nvcc", "nvcc", "CUDA NVCC"),
            ("cuda_nvrtc", "nvrtc", "CUDA NVRTC"),
            ("libcublas", "cublas", "CUDA cuBLAS"),
            ("libcufft", "cufft", "CUDA cuFFT"),
            ("libcurand", "curand", "CUDA cuRAND"),
            ("libcusolver", "cusolver", "CUDA cuSOLVER"),
            ("libcusparse", "cusparse", "CUDA cuSPARSE"),
        ):
            rows[part] = (title, self.row["versions"][key])
        shown = {key: {"name": name, "version": version} for key, (name, version) in rows.items()}
        return json.dumps(shown, indent=3).replace('":', '" :') + "\n"

    def _config(self) -> Iterator[Package]:
        """The three packages that own /usr/local/cuda, /usr/local/cuda-N and the loader's configuration."""
        upstream = self.row["versions"]["cudart"]
        # Priorities: 118 for 11.8 and 128 for 12.8 were seen for cuda; that cuda-N has the same is inferred.
        priority = int(self.major) * 10 + int(self.minor.split(".")[1])
        links = (("/usr/local/cuda", "cuda"), (f"/usr/local/cuda-{self.major}", f"cuda-{self.major}"))
        install = "".join(
            f"update-alternatives --install {link} {name} {self.prefix} {priority}\n" for link, name in links
        )
        remove = "".join(f"update-alternatives --remove {name} {self.prefix}\n" for _, name in links)
        name = f"cuda-toolkit-{self.dashed}-config-common"
        scripts = contents.scripts_for(name, "", "", f'echo "Setting alternatives"\n{install}')
        # On removal only: dpkg calls prerm for an upgrade too, and the choice of a person must survive that.
        scripts["prerm"] = f'#!/bin/sh\nset -e\nif [ "$1" = remove ]; then\n{remove}fi\n'
        files: dict[str, File | str] = {f"/usr/share/doc/{name}/copyright": "simulated\n"}
        yield _package(name, upstream, {"Multi-Arch": "foreign"}, files, scripts, arch="all")
        for owner, conf, path in (
            # 987_cuda-13 was measured, 988_cuda-12 seen; 988_cuda-11 is inferred.
            (f"-{self.major}", f"{987 if self.major >= '13' else 988}_cuda-{self.major}.conf", f"cuda-{self.major}"),
            ("", "000_cuda.conf", "cuda"),
        ):
            conffile = f"/etc/ld.so.conf.d/{conf}"
            yield _package(
                f"cuda-toolkit{owner}-config-common",
                upstream,
                {"Multi-Arch": "foreign"},
                {conffile: f"/usr/local/{path}/{TARGET}/lib\n"},
                {"triggers": _LDCONFIG},
                [conffile],
                arch="all",
            )

    def _profilers(self) -> Iterator[Package]:
        for kind, program in (("nsight-compute", "ncu"), ("nsight-systems", "nsys")):
            full = self.row["nsight"][kind.split("-")[1]]
            folder = f"/opt/nvidia/{kind}/{'.'.join(full.split('.')[:3])}"
            files: dict[str, File | str] = {f"{folder}/{program}": File(b"#!/bin/sh\necho simulated\n", 0o755)}
            if kind == "nsight-compute":
                files[f"{self.prefix}/bin/ncu"] = File(link=f"{folder}/ncu")
            yield _package(_profiler(kind, full), full, {"Provides": kind}, files)

    def _compat(self) -> Package:
        """Forward compatibility: a newer libcuda for data-center cards, in a folder of its own."""
        driver = self.row["driver"]
        folder = f"{self.prefix}/compat"
        files: dict[str, File | str] = {
            f"{folder}/libcuda.so.{driver}": File(sofile.build("libcuda.so.1")),
            f"{folder}/libcuda.so.1": File(link=f"libcuda.so.{driver}"),
        }
        package = _package(f"cuda-compat-{self.dashed}", driver, {}, files)
        package.version = driver + ("-0ubuntu1" if int(self.major) >= 13 else "-1")
        return package

    def _umbrellas(self) -> Iterator[Package]:
        """Names without a minor, and the ones that look like the toolkit and bring a driver."""
        demo = (
            [f"cuda-demo-suite-{self.dashed} (>= {self.upstream('cuda-demo-suite')})"]
            if self.has("cuda-demo-suite")
            else []
        )
        both = [
            f"cuda-runtime-{self.dashed} (>= {self.version})",
            f"cuda-toolkit-{self.dashed} (>= {self.version})",
            *demo,
        ]
        yield _package(f"cuda-{self.dashed}", self.version, {"Depends": ", ".join(both)})
        yield _package("cuda", self.version, {"Depends": f"cuda-{self.dashed} (>= {self.version})"})
        for name in ("cuda-toolkit", f"cuda-toolkit-{self.major}"):
            yield _package(name, self.version, {"Depends": f"cuda-toolkit-{self.dashed} (>= {self.version})"})


def abilities(minor: str) -> dict[str, Any]:
    """What a compiler can do, from the catalog: the chips it targets and the newest gcc it takes."""
    row = catalog()["minors"][minor]
    return {"sm": row["sm"], "gcc_max": row["gcc_max"]}


def cudnn(ubuntu: str, *, later: bool = False) -> Iterator[Package]:
    """cuDNN 8 (one name, the CUDA in the version) and 9 (the CUDA's major in the name)."""
    for version, suffixes in data()["cudnn8"].get(ubuntu, {}).items():
        for suffix in suffixes:
            yield from _cudnn8(version, suffix)
    majors = data()["cudnn_majors"][ubuntu]
    for version, row in data()["cudnn9"].items():
        if row.get("later") and not later:
            continue
        for major in row["majors"]:
            if major in majors:
                yield from _cudnn9(version, major, row)
        short = ".".join(version.split(".")[:3])
        newest = max(row["majors"])
        if newest in majors:
            yield _package("cudnn9", short, {"Depends": f"cudnn9-cuda-{newest} (= {version}-1)"})
            yield _package("cudnn", short, {"Depends": f"cudnn9 (>= {short})"})


def cudnn_header(version: str) -> str:
    """cudnn_version.h of a version."""
    major, minor, patch = version.split(".")[:3]
    factor = 10000 if int(major) >= 9 else 1000
    return (
        f"#define CUDNN_MAJOR {major}\n#define CUDNN_MINOR {minor}\n#define CUDNN_PATCHLEVEL {patch}\n"
        f"#define CUDNN_VERSION (CUDNN_MAJOR * {factor} + CUDNN_MINOR * 100 + CUDNN_PATCHLEVEL)\n"
    )


def _cudnn_libraries(version: str, parts: tuple[str, ...]) -> dict[str, File | str]:
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    number = major * (10000 if major >= 9 else 1000) + minor * 100 + patch
    files: dict[str, File | str] = {}
    for part in ("", *parts):
        soname = f"libcudnn{part}.so.{major}"
        functions = {} if part else {"cudnnGetVersion": sofile.constant(number)}
        full = f"libcudnn{part}.so.{major}.{minor}.{patch}"
        files[f"{LIB}/{full}"] = File(sofile.build(soname, functions))
        files[f"{LIB}/{soname}"] = File(link=full)
    return files


def _cudnn_alternatives(major: int, parts: tuple[str, ...]) -> tuple[str, str]:
    """(postinst, prerm) lines of a -dev package that leaves the unversioned names to update-alternatives."""
    header = f"{INCLUDE}/cudnn_v{major}.h"
    slaves = [
        ("/usr/include/cudnn_version.h", "cudnn_version_h", f"{INCLUDE}/cudnn_version_v{major}.h"),
        (f"{LIB}/libcudnn.so", "libcudnn_so", f"{LIB}/libcudnn.so.{major}"),
    ]
    slaves += [(f"{LIB}/libcudnn{p}.so", f"libcudnn{p}_so", f"{LIB}/libcudnn{p}.so.{major}") for p in parts]
    words = " ".join(f"--slave {link} {name} {path}" for link, name, path in slaves)
    install = f"update-alternatives --install /usr/include/cudnn.h libcudnn {header} {major * 10} {words}\n"
    return install, f"update-alternatives --remove libcudnn {header}\n"


def _cudnn8(version: str, suffix: str) -> Iterator[Package]:
    full, parts = f"{version}-1+cuda{suffix}", ("_ops_infer",)
    scripts = {"triggers": _LDCONFIG, **contents.scripts_for("libcudnn8", "", "", "")}
    yield nvidia_package("libcudnn8", full, {"Source": "cudnn"}, _cudnn_libraries(version, parts), scripts)
    install, remove = _cudnn_alternatives(8, parts)
    headers: dict[str, File | str] = {
        f"{INCLUDE}/cudnn_v8.h": "#include <cudnn_version.h>\n",
        f"{INCLUDE}/cudnn_version_v8.h": cudnn_header(version),
    }
    yield nvidia_package(
        "libcudnn8-dev",
        full,
        {"Source": "cudnn", "Depends": f"libcudnn8 (= {full})"},
        headers,
        {"postinst": f"#!/bin/sh\nset -e\n{install}", "prerm": f"#!/bin/sh\nset -e\n{remove}"},
    )


def _cudnn9(version: str, cuda: int, row: dict[str, Any]) -> Iterator[Package]:
    """The packages of one cuDNN 9 for one CUDA major. Relations from 9.10 on as measured at 9.14; before: inferred."""
    full, parts = f"{version}-1", ("_graph",)
    new = numbers(version)[:2] >= CUDNN_WITHOUT_ALTERNATIVES
    # CUDA majors that this version is for and whose -dev once held the headers; 13 began with the new layout.
    once = [f"libcudnn9-dev-cuda-{major} (<< {version})" for major in row["majors"] if major < 13]

    def same(what: str) -> dict[str, str]:
        """One of a kind: the files are the same whatever CUDA they are for."""
        return {"Source": "cudnn", "Provides": what, "Conflicts": what, "Replaces": what}

    scripts = {"triggers": _LDCONFIG, **contents.scripts_for(f"libcudnn9-cuda-{cuda}", "", "", "")}
    yield nvidia_package(
        f"libcudnn9-cuda-{cuda}",
        full,
        {**same("libcudnn9"), "Depends": "zlib1g"},
        _cudnn_libraries(version, parts),
        scripts,
    )
    headers: dict[str, File | str] = {
        f"{INCLUDE}/cudnn_v9.h": "#include <cudnn_version.h>\n",
        f"{INCLUDE}/cudnn_version_v9.h": cudnn_header(version),
    }
    runtime = f"libcudnn9-cuda-{cuda} (= {full})"
    static = {f"{LIB}/libcudnn_static_v9.a": File(b"!<arch>\n")}
    if new:
        links = {f"{INCLUDE}/{name}.h": File(link=f"{name}_v9.h") for name in ("cudnn", "cudnn_version")}
        breaks = {"Breaks": ", ".join(once)} if once else {}
        fields = {**same("libcudnn9-headers"), **breaks}
        fields["Conflicts"] = ", ".join(["libcudnn8-dev", *once, "libcudnn9-headers"])
        fields["Replaces"] = ", ".join([*once, "libcudnn9-headers"])
        yield nvidia_package(f"libcudnn9-headers-cuda-{cuda}", full, fields, {**headers, **links})
        libraries = {f"{LIB}/libcudnn{part}.so": File(link=f"libcudnn{part}.so.9") for part in ("", *parts)}
        fields = {**same("libcudnn9-dev"), **breaks}
        fields["Depends"] = f"libcudnn9-headers-cuda-{cuda} (= {full}), {runtime}"
        yield nvidia_package(f"libcudnn9-dev-cuda-{cuda}", full, fields, dict(libraries))
    else:
        install, remove = _cudnn_alternatives(9, parts)
        scripts = {"postinst": f"#!/bin/sh\nset -e\n{install}", "prerm": f"#!/bin/sh\nset -e\n{remove}"}
        yield nvidia_package(
            f"libcudnn9-dev-cuda-{cuda}", full, {**same("libcudnn9-dev"), "Depends": runtime}, headers, scripts
        )
    yield nvidia_package(
        f"libcudnn9-static-cuda-{cuda}",
        full,
        {**same("libcudnn9-static"), "Depends": f"libcudnn9-dev-cuda-{cuda} (= {full})"},
        dict(static),
    )
    dashed = f"cudnn9-cuda-{row['minors'][cuda].replace('.', '-')}"
    parts_of = ", ".join(f"libcudnn9-{part}cuda-{cuda} (= {full})" for part in ("", "dev-", "static-"))
    yield nvidia_package(dashed, full, {"Depends": parts_of})
    yield nvidia_package(f"cudnn9-cuda-{cuda}", full, {"Depends": f"{dashed} (= {full})"})


def nccl(ubuntu: str, *, later: bool = False) -> Iterator[Package]:
    """NCCL: one pair of names for every CUDA, tied by an exact version."""
    rows = {**data()["nccl"], **(data()["nccl_later"] if later else {})}
    for version, suffixes in rows.items():
        for suffix in suffixes:
            if numbers(suffix) < numbers(data()["nccl_first"][ubuntu]):
                continue
            full = f"{version}-1+cuda{suffix}"
            yield from nccl_pair(version, full, nvidia_package)


def nccl_pair(version: str, full: str, package: Any) -> Iterator[Package]:
    """libnccl2 and libnccl-dev of one version; package makes a Package of (name, version, fields, files, scripts)."""
    major, minor, patch = (int(part) for part in version.split("."))
    number = major * 10000 + minor * 100 + patch
    library: dict[str, File | str] = {
        f"{LIB}/libnccl.so.{version}": File(sofile.build("libnccl.so.2", {"ncclGetVersion": sofile.stores(number)})),
        f"{LIB}/libnccl.so.2": File(link=f"libnccl.so.{version}"),
    }
    yield package("libnccl2", full, {"Source": "nccl", "Section": "libs"}, library, {"triggers": _LDCONFIG})
    header = (
        f"#define NCCL_MAJOR {major}\n#define NCCL_MINOR {minor}\n#define NCCL_PATCH {patch}\n"
        f'#define NCCL_SUFFIX ""\n#define NCCL_VERSION_CODE {number}\n'
    )
    files: dict[str, File | str] = {"/usr/include/nccl.h": header, f"{LIB}/libnccl.so": File(link="libnccl.so.2")}
    yield package(
        "libnccl-dev", full, {"Source": "nccl", "Section": "libdevel", "Depends": f"libnccl2 (= {full})"}, files
    )


def _profiler(kind: str, full: str) -> str:
    return f"{kind}-{'.'.join(full.split('.')[:3])}"


def _package(
    name: str,
    upstream: str,
    fields: dict[str, str],
    files: dict[str, File | str] | None = None,
    scripts: dict[str, str] | None = None,
    conffiles: list[str] | None = None,
    *,
    arch: str = "amd64",
    inferred: bool = False,
) -> Package:
    """A package at the first revision of an upstream version."""
    extra = {"X-Lab": "inferred"} if inferred else {}
    package = nvidia_package(name, f"{upstream}-1", {**fields, **extra}, files, scripts, conffiles)
    package.arch = arch
    return package


def nvidia_package(
    name: str,
    version: str,
    fields: dict[str, str],
    files: dict[str, File | str] | None = None,
    scripts: dict[str, str] | None = None,
    conffiles: list[str] | None = None,
) -> Package:
    return Package(
        name,
        version,
        "amd64",
        {"Section": "multiverse/devel", **fields},
        files or {},
        scripts or {},
        conffiles or [],
        name,
        "",
    )
