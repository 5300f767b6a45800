"""Hosts with CUDA from a few words, as file trees: what NVIDIA's packages and runfiles put on a disk.

Keys of a description, besides those of trees:
    toolkits ["12.4", "11.8 runfile", "12.0 left", "13.1 ubuntu"]: of packages, of a runfile,
        of the Ubuntu archive's packages, or a folder that a removal left behind
    default: where /usr/local/cuda leads to, by update-alternatives; mode: manual or auto
    cudnn "9.14.0.64 13" or "8.9.7.29 12.2" · nccl "2.28.3 13.0": version and CUDA, each with header, library and packages
    login: true puts the role's own profile file there
    remove [paths], drop [packages], uncached [folders]: of all this taken away again
Source of names and places: a real host with CUDA 13.0 (tests/fixtures/h100x1), version numbers are made up.
"""

from __future__ import annotations

import copy

PARTS = {
    "cudart": "cuda-cudart",
    "cublas": "libcublas",
    "cublasLt": "libcublas",
    "cusparse": "libcusparse",
    "nvJitLink": "libnvjitlink",
    "nvrtc": "cuda-nvrtc",
}
MULTIARCH = "/usr/lib/x86_64-linux-gnu"
INCLUDE = "/usr/include/x86_64-linux-gnu"


def expand(description):
    """Return the description in the keys that trees.build knows."""
    own = copy.deepcopy(description)
    tree = {
        "files": {},
        "links": {} if own.get("base") else {"/lib": "usr/lib"},
        "owns": {},
        "packages": [],
        "cache": [],
    }
    toolkits = [row.split() for row in map(str, own.pop("toolkits", []))]
    default, mode = own.pop("default", None), own.pop("mode", "manual")
    # The loader's order: the default's folder first (000_cuda.conf).
    for version, *origin in sorted(toolkits, key=lambda row: row[0] != default):
        _toolkit(tree, version, origin[0] if origin else "apt")
    if default:
        _link(tree, "cuda", default, mode, [row[0] for row in toolkits])
    there = [row[0] for row in toolkits if row[1:] != ["left"]]
    for major in sorted({version.split(".")[0] for version in there}):
        mine = [version for version in there if version.split(".")[0] == major]
        _link(tree, f"cuda-{major}", default if default in mine else mine[-1], mode, mine)
    for name, put in (("cudnn", _cudnn), ("nccl", _nccl)):
        words = own.pop(name, None)
        if words:
            put(tree, *words.split())
    if own.pop("login", False):
        tree["files"]["/etc/profile.d/gpu-provision-cuda.sh"] = "# written by gpu-provision\n"
    for path in own.pop("remove", []):
        for key in ("files", "links"):
            tree[key] = {name: value for name, value in tree[key].items() if not (name + "/").startswith(path + "/")}
    for path in own.pop("uncached", []):
        tree["cache"] = [row for row in tree["cache"] if path not in row]
    gone = own.pop("drop", [])
    tree["packages"] = [row for row in tree["packages"] if row.split()[0] not in gone]
    # What the description itself says comes last.
    for key in ("files", "links"):
        tree[key] |= own.pop(key, {})
    for name, paths in own.pop("owns", {}).items():
        tree["owns"][name] = tree["owns"].get(name, []) + paths
    tree["packages"] += own.pop("packages", [])
    tree["cache"] = own.pop("cache", []) + tree["cache"]
    if not tree["cache"]:
        del tree["cache"]
    return {**tree, **own}


def _package(tree, name, version, paths=()):
    if not any(row.split()[0] == name for row in tree["packages"]):
        tree["packages"].append(f"{name} {version} hi")
    tree["owns"].setdefault(name, []).extend(paths)


def _toolkit(tree, version, origin):
    base, dashed, major = f"/usr/local/cuda-{version}", version.replace(".", "-"), version.split(".")[0]
    if origin == "left":
        tree["files"][f"{base}/extras/README"] = ""
        return
    target, revision = f"{base}/targets/x86_64-linux", "0ubuntu1" if origin == "ubuntu" else "1"
    tree["links"] |= {f"{base}/lib64": "targets/x86_64-linux/lib", f"{base}/include": "targets/x86_64-linux/include"}
    tree["files"] |= {
        f"{base}/bin/nvcc": "\x7fELF",
        f"{base}/version.json": f'{{"cuda": {{"version": "{version}.1"}}, "cuda_nvcc": {{"version": "{version}.99"}}}}',
        f"{target}/include/cuda_runtime.h": "",
    }
    soname = "11.0" if major == "11" else major
    for part, package in PARTS.items():
        name = f"lib{part}.so.{soname if part == 'cudart' else major}"
        tree["files"][f"{target}/lib/lib{part}.so.{version}.99"] = ""
        tree["links"][f"{target}/lib/{name}"] = f"lib{part}.so.{version}.99"
        tree["cache"].append(f"{name} {target}/lib/{name}")
        if origin in ("apt", "ubuntu"):
            _package(
                tree,
                f"{package}-{dashed}",
                f"{version}.99-{revision}",
                [f"{target}/lib/{name}", f"{target}/lib/lib{part}.so.{version}.99"],
            )
    if origin == "runfile":
        tree["files"][f"{base}/bin/cuda-uninstaller"] = ""
    else:
        _package(tree, f"cuda-nvcc-{dashed}", f"{version}.99-{revision}", [f"{base}/bin/nvcc"])
        _package(tree, f"cuda-toolkit-{dashed}", f"{version}.1-{revision}")


def _link(tree, name, version, mode, versions):
    tree["links"] |= {
        f"/usr/local/{name}": f"/etc/alternatives/{name}",
        f"/etc/alternatives/{name}": f"/usr/local/cuda-{version}",
    }
    rows = "".join(f"/usr/local/cuda-{v}\n{v.replace('.', '')}\n" for v in versions)
    tree["files"][f"/var/lib/dpkg/alternatives/{name}"] = f"{mode}\n/usr/local/{name}\n\n{rows}\n"


def _cudnn(tree, version, cuda):
    own, short = version.split(".")[0], ".".join(version.split(".")[:3])
    library, header = f"{MULTIARCH}/libcudnn.so.{own}", f"{INCLUDE}/cudnn_version_v{own}.h"
    major, minor, patch = short.split(".")
    tree["files"] |= {
        f"{MULTIARCH}/libcudnn.so.{short}": "",
        header: f"#define CUDNN_MAJOR {major}\n#define CUDNN_MINOR {minor}\n#define CUDNN_PATCHLEVEL {patch}\n",
    }
    tree["links"] |= {library: f"libcudnn.so.{short}"}
    if own == "8" or (major == "9" and int(minor) < 10):
        tree["links"] |= {
            "/usr/include/cudnn_version.h": "/etc/alternatives/cudnn_version_h",
            "/etc/alternatives/cudnn_version_h": header,
        }
    else:
        tree["links"][f"{INCLUDE}/cudnn_version.h"] = f"cudnn_version_v{own}.h"
    tree["cache"].append(f"libcudnn.so.{own} /lib/x86_64-linux-gnu/libcudnn.so.{own}")
    names = [f"libcudnn{own}", f"libcudnn{own}-dev"]
    full = f"{version}-1+cuda{cuda}"
    if own != "8":
        names, full = [f"libcudnn{own}-cuda-{cuda}", f"libcudnn{own}-headers-cuda-{cuda}"], f"{version}-1"
    _package(tree, names[0], full, [library, f"{MULTIARCH}/libcudnn.so.{short}"])
    _package(tree, names[1], full, [header])


def _nccl(tree, version, cuda):
    major, minor, patch = version.split(".")
    tree["files"] |= {
        f"{MULTIARCH}/libnccl.so.{version}": "",
        "/usr/include/nccl.h": f"#define NCCL_MAJOR {major}\n#define NCCL_MINOR {minor}\n#define NCCL_PATCH {patch}\n",
    }
    tree["links"][f"{MULTIARCH}/libnccl.so.2"] = f"libnccl.so.{version}"
    tree["cache"].append("libnccl.so.2 /lib/x86_64-linux-gnu/libnccl.so.2")
    full = f"{version}-1+cuda{cuda}"
    _package(tree, "libnccl2", full, [f"{MULTIARCH}/libnccl.so.2", f"{MULTIARCH}/libnccl.so.{version}"])
    _package(tree, "libnccl-dev", full, ["/usr/include/nccl.h"])
