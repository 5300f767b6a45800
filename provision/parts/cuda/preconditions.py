"""What is on a host that concerns its toolkits: links, folders, compilers, other people's CUDA. Pure."""

from __future__ import annotations

import re

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.cuda import files as cuda_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.catalog import Catalog, CudaMinor, Gpu
from provision.catalog.toolkits import c_library, host_compiler
from provision.facts import CudaLink, Facts
from provision.parts.cuda.checks import gutted, put_back
from provision.parts.cuda.desired import CudaConfig, CudaDecision
from provision.parts.cuda.packages import installed_toolkits, is_there, of_kind, parts_of
from provision.parts.decision import join_and

LINK = "/usr/local/cuda"
_ALTERNATIVES = "/etc/alternatives/"
_FOLDER = re.compile(r"/cuda-([0-9]+\.[0-9]+)/?$")


def current_default(facts: Facts) -> str | None:
    """The minor of the toolkit that /usr/local/cuda leads to, None where it leads to none."""
    for link in facts.cuda.links:
        match = _FOLDER.search(link.resolved or "") if link.path == LINK else None
        if match:
            return match[1]
        known = next((t for t in facts.cuda.toolkits if link.path == LINK and t.path == link.resolved), None)
        if known:
            return known.version
    return None


def was_managed(facts: Facts) -> bool:
    """True when an earlier run set toolkits up here: our files for the shells, or our repository and our holds."""
    if any(map(cuda_files.is_own, facts.own_files)):
        return True
    rows = facts.packages
    parts = [name for version in installed_toolkits(rows) for name in parts_of(rows, version)]
    held = all(rows[name].held for name in parts if is_there(rows, name))
    return apt_files.sources_path("cuda") in facts.own_files and held


def leave(config: CudaConfig) -> str:
    """The settings that leave CUDA on a host alone, as a hint has them."""
    parts = ["cuda_toolkit_versions: []"]
    # "auto" is what goes with the toolkits: nothing, where there are none.
    named = [name for name in ("cudnn", "nccl") if getattr(config, name) not in ("none", "auto")]
    parts += [f"cuda_toolkit_{name}: none" for name in named]
    return " and ".join(parts) + " leaves CUDA on this host alone"


def check_system(facts: Facts, config: CudaConfig, out: CudaDecision) -> None:
    """Refuse what is not Ubuntu."""
    host = facts.host.os
    if host.id != "ubuntu":
        out.block(
            "cuda.not_ubuntu",
            f"{host.pretty or host.id} is not Ubuntu",
            ["this tool provisions Ubuntu hosts"],
            leave(config),
        )


def check_folders(facts: Facts, config: CudaConfig, minors: list[str], out: CudaDecision) -> None:
    """Refuse what stands where a toolkit or its link has to go and is not ours to delete; name what is taken over."""
    majors = {minor.split(".")[0] for minor in minors}
    links = [LINK, *[f"{LINK}-{major}" for major in sorted(majors, key=int)]]
    for link in facts.cuda.links:
        if link.path not in links:
            continue
        if link.kind != "link":
            out.block(
                "cuda.link_in_the_way",
                f"{link.path} is a {link.kind}, not a link",
                [
                    "somebody else put it there; gpu-provision does not delete it",
                    f"the toolkits need {link.path} as a link to one of them",
                ],
                f"move it away, for example: mv {link.path} {link.path}.old; or {leave(config)}",
            )
        elif not _is_alternative(facts, link):
            out.warn(
                "cuda.link_taken_over",
                f"{link.path} is a link made by hand, and update-alternatives will manage it",
                [f"it leads to {link.target}, as a runfile or a person left it"],
                "nothing that it leads to is removed",
            )
    for toolkit in facts.cuda.toolkits:
        files = toolkit.compiler or toolkit.headers
        apt_has_it = any(is_there(facts.packages, name) for name in parts_of(facts.packages, toolkit.version or ""))
        ours = toolkit.path == f"{LINK}-{toolkit.version}"
        if toolkit.version in minors and ours and toolkit.package is None and files and not apt_has_it:
            out.block(
                "cuda.folder_in_the_way",
                f"{toolkit.path} holds a toolkit that apt does not own",
                ["a runfile or a person put it there; apt would write its files among those"],
                f"remove it first (a runfile brings {toolkit.path}/bin/cuda-uninstaller); or {leave(config)}",
            )


def check_files(facts: Facts, config: CudaConfig, minors: list[str], out: CudaDecision) -> None:
    """Refuse to build on toolkits that dpkg has and whose files somebody deleted: apt takes them for installed."""
    here = {toolkit.version: toolkit for toolkit in facts.cuda.toolkits if toolkit.path == f"{LINK}-{toolkit.version}"}
    installed = [name for name, package in facts.packages.items() if package.installed]
    with_compiler = [version for version, toolkit in here.items() if toolkit.compiler]
    with_runtime = [version for version, toolkit in here.items() if toolkit.runtime]
    for version in gutted(installed, with_compiler, with_runtime):
        if version in minors:
            folder = f"{LINK}-{version}"
            out.block(
                "cuda.files_gone",
                f"files of packages are gone from {folder}",
                ["somebody deleted them; for dpkg the packages are installed, so apt would do nothing"],
                f"{put_back(folder)}; or {leave(config)}",
            )


def _is_alternative(facts: Facts, link: CudaLink) -> bool:
    return bool(link.target and link.target.startswith(_ALTERNATIVES)) or any(
        group.link == link.path and link.target in group.choices for group in facts.cuda.alternatives
    )


def check_host(
    facts: Facts, catalog: Catalog, config: CudaConfig, gpus: list[Gpu], toolkits: list[CudaMinor], out: CudaDecision
) -> None:
    """Warn of what will not work for those who use the toolkits."""
    if config.profile != "runtime":
        _compilers(facts, toolkits, out)
        _c_library(facts, catalog, toolkits, out)
    _forward_compatibility(facts, catalog, gpus, out)
    _pulls_driver(facts, config, out)


def _compilers(facts: Facts, toolkits: list[CudaMinor], out: CudaDecision) -> None:
    have = facts.cuda.compilers
    for toolkit in toolkits:
        limit = host_compiler(toolkit, have.gcc, have.available)
        if limit:
            message = f"gcc {have.gcc} is too new for nvcc of CUDA {toolkit.version}"
            out.warn("cuda.compiler_too_new", message, [limit[0]], limit[1])


def _c_library(facts: Facts, catalog: Catalog, toolkits: list[CudaMinor], out: CudaDecision) -> None:
    release = catalog.ubuntu_data.releases.get(facts.host.os.version_id)
    for toolkit in toolkits:
        clash = c_library(catalog, toolkit, release.glibc if release else None)
        if release and clash:
            message = f"glibc {release.glibc} of Ubuntu {facts.host.os.version_id} is too new for nvcc of CUDA {toolkit.version}"
            out.warn("cuda.c_library_too_new", message, [clash[0]], clash[1])


def _forward_compatibility(facts: Facts, catalog: Catalog, gpus: list[Gpu], out: CudaDecision) -> None:
    """cuda-compat stands in front of the driver's libcuda; on GeForce that ends in error 804 (scenario H6)."""
    found = of_kind(facts.packages, "compat")
    segments = catalog.cuda_data.apt.forward_compat.segments
    others = [gpu for gpu in gpus if gpu.segment not in segments]
    if found and others:
        out.warn(
            "cuda.forward_compatibility",
            f"{join_and(found)} is for data-center GPUs, not for {join_and([g.name for g in others])}",
            [
                "programs that find its libcuda end with error 804: forward compatibility was attempted on non supported HW"
            ],
            f"apt-get remove {' '.join(found)}",
        )


def _pulls_driver(facts: Facts, config: CudaConfig, out: CudaDecision) -> None:
    found = of_kind(facts.packages, "meta_with_driver")
    if found:
        kept = "held with the toolkits, so that it does not" if config.hold else "not held: cuda_toolkit_hold is false"
        out.warn(
            "cuda.metapackage_with_driver",
            f"a next version of {join_and(found)} would bring another driver",
            [kept, "toolkits need cuda-toolkit-X-Y only"],
            f"apt-get remove {' '.join(found)} removes nothing else; the toolkits stay",
        )


def warn_half_installed(facts: Facts, mended: set[str], out: CudaDecision) -> None:
    """Name CUDA packages that dpkg left unfinished and that this decision does not mend."""
    broken = sorted(
        name
        for name, package in facts.packages.items()
        if package.broken and name not in mended and cuda_names.is_cuda_package(name, package.version)
    )
    if broken:
        out.warn(
            "cuda.half_installed",
            f"dpkg left CUDA packages unfinished: {', '.join(broken[:6])}",
            ["no requested change repairs them"],
            "dpkg --configure -a, then check with dpkg --audit",
        )
