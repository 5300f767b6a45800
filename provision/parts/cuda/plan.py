"""What has to change for CUDA in userland: the difference between a host and the decision of resolve.

Pure. The spec is what roles/cuda_toolkit carries out; the steps and reasons are what people read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import PurePosixPath
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.cuda import files as cuda_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names
from provision.facts import Facts
from provision.parts.apt import AptPart, PartPlan
from provision.parts.cuda.files import absent_files, wanted_files
from provision.parts.cuda.resolve import CudaConfig, CudaDecision, CudaTarget
from provision.parts.decision import cuda_key, join_and
from provision.parts.driver.plan import LEGACY_URIS, cuda_entries
from provision.parts.plan import Step

LINK = "/usr/local/cuda"
# What unattended-upgrades must leave alone where only the toolkits are held; cuda-drivers are the driver's.
UNATTENDED = ("cuda-(?!drivers)", "libcudnn", "libnccl")


def plan_cuda(config: CudaConfig, facts: Facts, decision: CudaDecision, source: dict[str, Any] | None) -> PartPlan:
    """Return what has to change for decided toolkits. source: NVIDIA's repository as apt.query's SourceSpec."""
    target = decision.target
    steps: list[Step] = []
    if target is None:
        environment = _environment_gone(facts, steps)
        return PartPlan({"environment": environment}, None, steps)
    apt = AptPart(
        install=sorted(f"{name}={version}" for name, version in target.packages.items()), remove=sorted(target.remove)
    )
    if source and target.versions:
        apt.repositories.append(({**source, "legacy_uris": LEGACY_URIS}, "the toolkits come from NVIDIA's repository"))
        apt.omitted = cuda_entries(facts)
    if config.hold and target.versions:
        apt.unattended = list(UNATTENDED)
        apt.unattended_because = "unattended-upgrades must not update the toolkits"
    _packages(facts, target, steps)
    _hold(config, facts, target, apt, steps)
    environment = _environment(config, facts, decision, target, steps)
    return PartPlan({"environment": environment}, apt, steps, _summary(target))


def _summary(target: CudaTarget) -> str:
    names = [
        version + (" (default)" if version == target.default and len(target.versions) > 1 else "")
        for version in target.versions
    ]
    libraries = [f"cuDNN {version}" for version in sorted(set(target.cudnn.values()))]
    if target.nccl:
        libraries.append(f"NCCL {target.nccl}")
    return ", ".join([f"CUDA {join_and(names)}" if names else "no CUDA", *libraries])


def _packages(facts: Facts, target: CudaTarget, steps: list[Step]) -> None:
    if target.packages:
        new = [v for v in target.versions if any(_toolkit_of(name) == v for name in target.packages)]
        what = [f"CUDA {join_and(new)}"] if new else []
        kinds = {package.kind for package in map(cuda_names.parse, target.packages) if package}
        what += [word for kind, word in (("cudnn", "cuDNN"), ("nccl", "NCCL")) if kind in kinds]
        because = "cuda_toolkit_versions lists " + ("it" if len(new) == 1 else "them")
        if not new:
            because = ("it goes" if len(what) == 1 else "they go") + " with the toolkits that are listed"
        elif len(what) > 1:
            because += ", and the rest goes with " + ("it" if len(new) == 1 else "them")
        # cuda-toolkit-config-common and its like
        if not what:
            what, because = ["what toolkits share"], "it goes with the toolkits that are listed"
        title = f"install {join_and(what)}"
        value = _value(target, new, kinds) or title
        steps.append(Step(id="packages", part="cuda", title=title, because=because, sign="+", what="CUDA", value=value))
    if target.remove:
        gone = sorted({_toolkit_of(name) or name for name in target.remove}, key=_version_key)
        gone = [f"CUDA {item}" if item[0].isdigit() else item for item in gone]
        because = "; ".join(dict.fromkeys(_why_removed(facts, name) for name in sorted(target.remove)))
        shown = join_and(gone) if len(gone) <= 4 else f"{', '.join(gone[:4])} and {len(gone) - 4} more"
        names = sorted(target.remove)
        steps.append(
            Step(
                id="packages",
                part="cuda",
                title=f"remove {shown}",
                because=because,
                details=names,
                sign="-",
                what="CUDA",
                value=shown,
            )
        )


def _value(target: CudaTarget, new: Sequence[str], kinds: Collection[str]) -> str:
    """Return ``12.8.1, 13.0.2 (default); cuDNN 9.14.0.64 (CUDA 13); NCCL 2.28.3 (CUDA 13.0)``: what comes."""
    shown = [target.releases.get(v, v) + " (default)" * (v == target.default and len(target.versions) > 1) for v in new]
    if new and target.default not in new:
        shown[-1] += f" ({target.default} stays the default)"
    parts = [", ".join(shown)] if shown else []
    if "cudnn" in kinds:
        parts.append("cuDNN " + ", ".join(f"{version} (CUDA {major})" for major, version in target.cudnn.items()))
    if "nccl" in kinds and target.nccl:
        version, _, cuda = target.nccl.partition("+cuda")
        parts.append(f"NCCL {version.split('-')[0]} (CUDA {cuda})")
    return "; ".join(parts)


def _why_removed(facts: Facts, name: str) -> str:
    row = facts.packages.get(name)
    package = cuda_names.parse(name, row.version if row else None)
    if package and package.kind == "distribution":
        return "not NVIDIA's, and cuda_toolkit_remove_distribution is true"
    if package and package.kind in ("cudnn", "nccl"):
        return "conflicts with the requested cuDNN"
    return "not listed, and cuda_toolkit_prune is true"


def _toolkit_of(name: str) -> str | None:
    """The toolkit that a package is a part of: cuda-nvcc-12-4 gives 12.4."""
    package = cuda_names.parse(name)
    return package.version if package and package.kind in ("toolkit", "compat") else None


def _version_key(text: str) -> tuple[Any, ...]:
    return (0, cuda_key(text), "") if text[0].isdigit() else (1, (), text)


def _hold(config: CudaConfig, facts: Facts, target: CudaTarget, apt: AptPart, steps: list[Step]) -> None:
    here = sorted(name for name in target.names if name in facts.packages and facts.packages[name].installed)
    coming = sorted(target.packages)
    if not config.hold:
        apt.extra_release = sorted(target.names)
        held = [name for name in here if facts.packages[name].held]
        if held:
            steps.append(
                Step(
                    id="hold",
                    part="cuda",
                    title=f"release {len(held)} holds",
                    because="cuda_toolkit_hold is false",
                    details=held,
                    sign="-",
                    what="hold",
                    value="CUDA",
                )
            )
        return
    apt.extra_hold = sorted(set(target.names) - set(target.remove))
    loose = [name for name in here if not facts.packages[name].held and name not in target.remove]
    if coming or loose:
        title = "hold every package of the toolkits by its exact name" if coming else f"hold {len(loose)} packages"
        because = "an update must not move cuDNN or NCCL to another CUDA, nor a toolkit under somebody's build"
        steps.append(
            Step(
                id="hold",
                part="cuda",
                title=title,
                because=because,
                details=[] if coming else loose,
                what="hold",
                value="CUDA",
            )
        )


def _environment(
    config: CudaConfig, facts: Facts, decision: CudaDecision, target: CudaTarget, steps: list[Step]
) -> dict[str, Any] | None:
    """Files, links and what of ours is no longer wanted; None where all is as it should be."""
    files: dict[str, str] = {}
    if config.environment:
        files = wanted_files(
            target.versions,
            target.default,
            ld_library_path=config.ld_library_path,
            shells=facts.cuda.shells,
            arch=facts.host.arch,
        )
    theirs = sorted(path for path in facts.cuda.other_modulefiles if files.pop(path, None))
    if theirs:
        decision.warn(
            "cuda.other_modulefiles",
            f"modulefiles of somebody else stay, and gpu-provision's are not written: {', '.join(theirs)}",
            ["module load takes what they say, which may be another toolkit's folder"],
            f"to get gpu-provision's, move them away, for example: mv {theirs[0]} /root/; cuda-select works without",
        )
    write = {path: text for path, text in files.items() if facts.own_files.get(path) != apt_files.sha256(text)}
    absent = absent_files(facts.own_files, files)
    links = _links(facts, target)
    gone = _alternatives_gone(facts, target)
    lags = cuda_files.LD_SO_CONF in files and cuda_files.LD_SO_CONF not in write and _loader_lags(facts)
    if not (write or absent or links or gone or lags):
        return None
    details = [f"write {path}" for path in sorted(write)] + [f"remove {path}" for path in absent]
    details += ["rebuild the loader's cache (ldconfig)"] if lags else []
    details += [f"{item['link']} leads to {item['path']}, and stays there" for item in links]
    details += [f"forget {item['path']} as a choice for {item['name']}" for item in gone]
    because = []
    if lags:
        because.append("the loader does not know the libraries' folders yet: ldconfig was interrupted, or never ran")
    if absent and not target.versions:
        because.append("cuda_toolkit_versions is empty")
    elif write or absent:
        because.append("nvcc on the PATH of every login, libraries through ld.so.conf.d")
    if gone and not links:
        because.append("a toolkit that is gone is no choice")
    elif links:
        because.append("the order of installation must not decide which toolkit is the default")
    steps.append(
        Step(
            id="environment",
            part="cuda",
            title="make the toolkits reachable" if target.versions else "remove gpu-provision's files for the shells",
            because="; ".join(because),
            details=details,
            what="CUDA paths",
            value="; ".join(
                [f"{item['link']} -> {item['path'].rpartition('/')[2]}" for item in links if item["name"] == "cuda"]
                + [one for one in details if not one.startswith(("write ", "/"))]
            ),
        )
    )
    return {
        "files": [{"path": path, "content": text} for path, text in sorted(write.items())],
        "absent": absent,
        "alternatives": links,
        "alternatives_gone": gone,
        "ldconfig": lags,
    }


def _loader_lags(facts: Facts) -> bool:
    """True when the loader's cache has nothing of a folder that our file names and that holds libraries."""
    cached: dict[str, list[bool | None]] = {
        folder: [] for folder in facts.cuda.ld_so_conf.get(cuda_files.LD_SO_CONF, [])
    }
    for library in facts.cuda.libraries:
        places = {str(PurePosixPath(path).parent) for path in (library.path, library.target) if path}
        for folder in places & set(cached):
            cached[folder].append(library.in_cache)
    return any(found and not any(found) for found in cached.values())


def _environment_gone(facts: Facts, steps: list[Step]) -> dict[str, Any] | None:
    """No toolkit is wanted any more: our files go, and nothing else."""
    absent = absent_files(facts.own_files, {})
    if not absent:
        return None
    steps.append(
        Step(
            id="environment",
            part="cuda",
            title="remove gpu-provision's files for the shells",
            because="cuda_toolkit_versions is empty",
            details=[f"remove {path}" for path in absent],
            sign="-",
            what="CUDA paths",
            value=", ".join(absent),
        )
    )
    return {"files": [], "absent": absent, "alternatives": [], "alternatives_gone": [], "ldconfig": False}


def wanted_links(target: CudaTarget) -> dict[str, str]:
    """Return {name of the alternative: folder}: ``cuda`` and, for every major, ``cuda-NN``.

    The default's major follows the default, other majors their newest listed toolkit. Names and links are those that
    NVIDIA's packages register (source: postinst of cuda-toolkit-X-Y-config-common).
    """
    found = {"cuda": f"{LINK}-{target.default}"} if target.default else {}
    for version in sorted(target.versions, key=cuda_key):
        found[f"cuda-{version.split('.')[0]}"] = f"{LINK}-{version}"
    if target.default:
        found[f"cuda-{target.default.split('.')[0]}"] = f"{LINK}-{target.default}"
    return found


def _links(facts: Facts, target: CudaTarget) -> list[dict[str, Any]]:
    have = {group.name: group for group in facts.cuda.alternatives}
    kinds = {link.path: link for link in facts.cuda.links}
    todo = []
    for name, path in wanted_links(target).items():
        link = "/usr/local/" + name
        group, there = have.get(name), kinds.get(link)
        right = group is not None and group.manual and group.current == path
        if not right or there is None or there.resolved != path:
            major, minor = path.rsplit("-", 1)[-1].split(".")
            todo.append({"name": name, "link": link, "path": path, "priority": int(major) * 10 + int(minor)})
    return todo


def _alternatives_gone(facts: Facts, target: CudaTarget) -> list[dict[str, str]]:
    """Choices whose toolkit is gone or goes with this plan."""
    removed = {f"{LINK}-{version}" for version in map(_toolkit_of, target.remove) if version}
    wanted = set(wanted_links(target).values())
    return [
        {"name": group.name, "path": path}
        for group in facts.cuda.alternatives
        if re.fullmatch(r"cuda(-[0-9]+)?", group.name)
        for path in sorted(group.choices)
        if path not in wanted and (path in removed or path in group.dangling)
    ]
