# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""One conda environment by its files: Python, what of CUDA is in it, whether its framework can use a GPU.

Names say nearly all: conda's package records are called NAME-VERSION-BUILD.json, pip's folders
NAME-VERSION.dist-info. Only torch's version.py is opened, where the version of a wheel does not say its CUDA.
"""

from __future__ import annotations

import pwd
import re

from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from ansible_collections.gpu.provision.plugins.module_utils.lib import digests, lazy_re
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree

_PACKAGES = lazy_re.compile(
    r"^(pytorch(-cuda|-gpu|-mutex)?|libtorch|cpuonly|cudatoolkit|cuda-(version|cudart|toolkit|nvcc)|cudnn|nccl"
    r"|tensorflow(-base|-gpu)?|jax|jaxlib|numpy|mkl)\Z"
)
_PIP = lazy_re.compile(
    r"^(torch|torchvision|torchaudio|triton|tensorflow(-cpu|-gpu)?|jax|jaxlib|jax-cuda.*|numpy|nvidia-.*)$"
)
# The same software under conda's name and under pip's.
_ALSO = {"torch": "pytorch", "tensorflow": "tensorflow", "jax": "jax", "jaxlib": "jaxlib", "numpy": "numpy"}


def environments_of(tree, prefix, owners):
    """The environments in PREFIX/envs: [facts.CondaEnvironment], those that are being made among them."""
    base = prefix + "/envs"
    names = tree.names(base)
    mark = conda_read.BESIDE
    cut_off = {name[len(mark) :] for name in names if name.startswith(mark)}
    found = []
    for name in sorted({name for name in names if not name.startswith(".")} | cut_off):
        path = "%s/%s" % (base, name)
        # An empty folder is no environment, and takes one like no folder.
        if name in cut_off or (tree.is_dir(path) and tree.names(path)):
            found.append(read_environment(tree, path, prefix, owners))
    return found


def read_environment(tree, path, prefix=None, owners=None):
    """Return facts.CondaEnvironment of a folder as a dict."""
    found = conda_read.environment_state(path, tree)
    packages = {name: package for name, package in found["packages"].items() if _PACKAGES.match(name)}
    pip = {
        name: version
        for name, version in found["pip"].items()
        # conda's own packages leave the same traces as pip's.
        if _PIP.match(name) and not _same(packages.get(_ALSO.get(name, "")), version)
    }
    record, now = found["record"], digest(path, tree)
    site = conda_read.site_packages(path, tree, found["python"])
    builds, cuda = judge_builds(packages, pip, tree.read(site[0] + "/torch/version.py", 4096) if site else None)
    return {
        "name": path.rsplit("/", 1)[-1],
        "path": path,
        "prefix": prefix,
        "owner": owner(tree, path, owners or {}),
        "state": found["state"],
        "unfinished": found["marked"],
        "python": found["python"],
        "packages": packages,
        "pip": pip,
        "builds": builds,
        "cuda": cuda,
        "cudart_links": cudart_links(tree, path + "/lib"),
        "lib64": tree.exists(path + "/lib64"),
        "record": record,
        "digest": now,
        "changed": None if record is None or not record.get("digest") else record["digest"] != now,
    }


def digest(path, tree=None):
    """Return a checksum over the names of all packages of an environment: those of conda and those of pip."""
    tree = tree or HostTree()
    records = sorted(name for name in tree.names(path + "/conda-meta") if name.endswith(".json"))
    python = conda_read.package_names(path, tree).get("python", {}).get("version")
    folders = conda_read.metadata_folders(path, tree, python) if python else []
    text = "\n".join(records) + "\n--\n" + "\n".join(folders)
    return digests.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _same(package, version):
    return package is not None and package["version"] == version.split("+")[0]


def judge_builds(packages, pip, torch_version=None):
    """Return ({framework: "cuda" or "cpu"}, CUDA as "12.4" or None) of an environment.

    packages: {name: {"version", "build"}} of conda. pip: {name: version}. torch_version: text of torch's
    version.py, read where the version does not say it. A framework of which nothing is known is left out.
    """
    builds, cuda = {}, None
    package = packages.get("pytorch") or packages.get("pytorch-gpu")
    if package:
        builds["torch"], cuda = by_build(package["build"] or "")
    elif "torch" in pip:
        builds["torch"], cuda = _by_wheel(pip["torch"], torch_version)
    tensorflow = packages.get("tensorflow-base") or packages.get("tensorflow")
    if "tensorflow-gpu" in packages:
        builds["tensorflow"] = "cuda"
    elif tensorflow:
        builds["tensorflow"], tf_cuda = by_build(tensorflow["build"] or "")
        cuda = cuda or tf_cuda
    elif "tensorflow-cpu" in pip:
        builds["tensorflow"] = "cpu"
    elif "tensorflow" in pip or "tensorflow-gpu" in pip:
        # every plain wheel for Linux is
        builds["tensorflow"] = "cuda"
    plugins = [name for name in pip if re.match(r"^jax-cuda[0-9]+-(plugin|pjrt)$", name)]
    if plugins or "+cuda" in pip.get("jaxlib", ""):
        builds["jax"] = "cuda"
    elif "jaxlib" in packages:
        builds["jax"] = by_build(packages["jaxlib"]["build"] or "")[0]
    elif "jaxlib" in pip:
        builds["jax"] = "cpu"
    builds = {name: kind for name, kind in builds.items() if kind}
    return builds, cuda or _cuda_of_packages(packages, pip)


def by_build(build):
    """("cuda" or "cpu" or None, CUDA or None) of a build string: py3.11_cuda12.1_cudnn8.9.2_0, cuda118py311h…"""
    match = re.search(r"cuda_?([0-9]+\.[0-9]+|[0-9]{3})", build)
    if match:
        digits = match.group(1)
        return "cuda", digits if "." in digits else digits[:-1] + "." + digits[-1]
    if "cuda" in build or re.search(r"(^|_)gpu", build):
        return "cuda", None
    return ("cpu" if re.search(r"cpu|mkl|eigen", build) else None), None


def cuda_of_tag(tag):
    """CUDA of the local version of a wheel: cu124 -> 12.4; None where it names none."""
    match = re.match(r"cu(9|[0-9]{2})([0-9])(?![0-9])", tag)
    return "%s.%s" % match.groups() if match else None


def _by_wheel(version, text):
    """The same of a wheel of torch: by its local version, else by torch/version.py."""
    local = version.partition("+")[2]
    if cuda_of_tag(local):
        return "cuda", cuda_of_tag(local)
    if local.startswith("cpu"):
        return "cpu", None
    match = re.search(r"^cuda\b[^=\n]*=\s*(None|['\"]([0-9]+\.[0-9]+)[^'\"]*['\"])", text or "", re.M)
    if match is None or re.search(r"^hip\b[^=\n]*=\s*['\"]", text or "", re.M):
        return None, None
    return ("cuda", match.group(2)) if match.group(2) else ("cpu", None)


def _cuda_of_packages(packages, pip):
    for name in ("cuda-version", "cuda-cudart", "cudatoolkit", "cuda-toolkit"):
        if name in packages:
            return ".".join(packages[name]["version"].split(".")[:2])
    for name in sorted(pip):
        if re.match(r"^nvidia-cuda-runtime(-cu[0-9]+)?$", name):
            return ".".join(pip[name].split(".")[:2])
    return None


def cudart_links(tree, folder):
    """Links libcudart.so… in a folder that lead to another version than their name says: [facts.CudartLink]."""
    found = []
    for name in tree.names(folder):
        path = "%s/%s" % (folder, name)
        if re.match(r"^libcudart\.so\.[0-9]", name) and tree.is_link(path):
            target = tree.resolve(path)
            if not tree.exists(path):
                found.append({"path": path, "target": None, "version": None})
                continue
            version = soname_version(target)
            if version and not keeps_promise(soname_version(name), version):
                found.append({"path": path, "target": target, "version": version})
    return found


def soname_version(path):
    """Version at the end of a library's file name: libcudart.so.11.2.152 -> 11.2.152; None when there is none."""
    match = re.search(r"\.so\.([0-9][0-9.]*)$", path)
    return match.group(1) if match else None


def keeps_promise(name, real):
    """True when a library of version ``real`` is what the name ``name`` promises.

    Since CUDA 11 one name serves a whole major: libcudart.so.11.0 is what every 11.x is called, libcudart.so.12
    every 12.x. Before, each minor had its own.
    """
    asked, given = name.split("."), real.split(".")
    if asked[0] != given[0]:
        return False
    if len(asked[0]) > 1 and asked[0] != "10" and (len(asked) == 1 or asked[1:] == ["0"]):
        return True
    return given[: len(asked)] == asked


def owner(tree, path, owners):
    """Name of a file's owner; its number where there is no such user."""
    found = tree.stat(path)
    if found is None:
        return None
    if found.st_uid in owners:
        return owners[found.st_uid]
    if tree.live:
        try:
            return pwd.getpwuid(found.st_uid).pw_name
        except KeyError:
            # a user that no longer exists: the number is all there is
            pass
    return str(found.st_uid)
