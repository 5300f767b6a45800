"""What rules a toolkit out on a host: its driver, its GPUs, its Ubuntu. Pure; the rules' data is the catalog's."""

from __future__ import annotations

from provision.catalog import Catalog, Gpu
from provision.catalog.toolkits import elsewhere, holders, newest_run, runs, targets
from provision.errors import UsageError
from provision.facts import Facts
from provision.parts.cuda.desired import CudaConfig, CudaDecision
from provision.parts.cuda.preconditions import leave
from provision.parts.cuda.variables import Wanted
from provision.parts.decision import CHANNELS, Decision, join_and


def driver_version(facts: Facts, driver: Decision) -> str | None:
    """The driver that will run the toolkits; None where there is none, or none is decided."""
    if driver.ask is not None or driver.blockers:
        return None
    if driver.target:
        return driver.target.version
    loaded = facts.module.loaded
    return loaded.version if loaded else driver.installed.version


def check_driver(catalog: Catalog, wanted: list[Wanted], version: str | None, out: CudaDecision) -> None:
    """Refuse toolkits that a driver version cannot run at all, warn of those that it runs in part (scenario H6)."""
    if version is None:
        return
    newest, partly = newest_run(catalog, version), []
    for item in wanted:
        degree = runs(catalog, item.minor, version)
        if degree == "minor":
            partly.append(item.minor)
        elif degree == "none":
            able = f"runs CUDA up to {newest}" if newest else "runs no toolkit of the catalog"
            out.block(
                "cuda.driver_too_old",
                f"driver {version} cannot run CUDA {item.text}",
                [
                    f"CUDA {item.toolkit.major}.x needs driver {item.toolkit.min_driver} or newer",
                    f"driver {version} {able}",
                ],
            )
    if partly:
        out.warn(
            "cuda.minor_compatibility",
            f"driver {version} runs CUDA {join_and(partly)} by minor-version compatibility only",
            [
                f"in full it runs CUDA up to {newest}",
                "compiled code runs; PTX of a newer toolkit does not: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)",
            ],
            "compile for the GPUs' own compute capability (nvcc -arch=native), or take a newer driver branch",
        )


def check_gpus(catalog: Catalog, config: CudaConfig, wanted: list[Wanted], gpus: list[Gpu], out: CudaDecision) -> None:
    """Refuse a toolkit that compiles for none of the GPUs; where it serves a part of them, name the others."""
    for item in wanted:
        degrees = {gpu.name: catalog.toolkit_support(item.minor, gpu) for gpu in gpus}
        late = [gpu for gpu in gpus if degrees[gpu.name] not in ("native", "binary")]
        if not late:
            continue
        known = [gpu for gpu in late if gpu.cc]
        because = [f"{gpu.name}: {targets(catalog, gpu)}" for gpu in known]
        # A card newer than the catalog: nobody knows, so nothing is refused.
        because += [f"{gpu.name} is not in the catalog" for gpu in late if not gpu.cc]
        if any(degrees[gpu.name] == "jit" for gpu in late):
            because.append("programs that carry PTX may still start; nvcc and the libraries have no code for it")
        message = f"CUDA {item.text} does not compile for {join_and([gpu.name for gpu in late])}"
        if len(known) == len(gpus) and config.unsupported_gpu != "warn":
            out.block("cuda.gpu_not_supported", message, because)
        else:
            out.warn("cuda.gpu_not_supported" if known else "catalog.uncertain", message, because)


def check_repository(catalog: Catalog, facts: Facts, config: CudaConfig, out: CudaDecision) -> None:
    """Refuse a release or architecture that NVIDIA has no repository for (scenario N1), where that is needed."""
    ubuntu, arch = facts.host.os.version_id, facts.host.arch
    if config.repo_url or out.channel == "ubuntu":
        return
    try:
        catalog.repository("cuda", ubuntu=ubuntu, arch=arch)
    except UsageError as error:
        rows = catalog.repositories.repositories["cuda"]
        out.block(
            "cuda.no_repository",
            f"there is no repository of NVIDIA for Ubuntu {ubuntu} on {arch}",
            [error.issue.message, f"there are some for Ubuntu {', '.join(rows.ubuntu)} on {', '.join(rows.machines)}"],
            f"{leave(config)}; CUDA from conda, wheels or a container needs no repository",
        )


def check_available(catalog: Catalog, ubuntu: str, config: CudaConfig, wanted: list[Wanted], out: CudaDecision) -> None:
    """Refuse toolkits that the repository of this Ubuntu is not known to hold, before apt is asked."""
    for item in wanted:
        if not config.repo_url and not catalog.cuda_in_repository(
            item.release or item.minor, ubuntu=ubuntu, channel=out.channel
        ):
            refuse_not_available(catalog, ubuntu, item, [], out)


def refuse_unread(errors: list[str], out: CudaDecision) -> None:
    """Refuse to plan from a repository that apt could not read (scenario F4): it may hold what is wanted."""
    out.block(
        "cuda.repository_unread",
        f"{CHANNELS[out.channel]} cannot be read from this host",
        errors[:4],
        "make it reachable from there (network, proxy, key), or name a mirror (cuda_toolkit_repo_url), then plan again",
    )


def refuse_not_available(catalog: Catalog, ubuntu: str, item: Wanted, errors: list[str], out: CudaDecision) -> None:
    """Say where else a toolkit comes from. errors: of the repository, where it could not be read."""
    data, archive = catalog.cuda_data, out.channel == "ubuntu"
    span = (data.archive_ranges if archive else data.repository_ranges).get(ubuntu)
    held, because = holders(catalog, item.release or item.minor, out.channel), list(errors[:4])
    if span and span.first == span.last:
        because.append(f"it has {(archive and data.archive_ranges[ubuntu].release) or span.first} only")
    elif span:
        because.append(f"it begins with {span.first} and ends with {span.last or 'the current one'}")
    if ubuntu in held and archive:
        because.append("the catalog knows it there, in multiverse: is that among the components of the host's sources?")
    elif ubuntu in held:
        because.append("the catalog knows it there: a mirror may hold a part only, or NVIDIA removed it")
    elif held:
        because.append(f"that of Ubuntu {join_and(held)} has it")
    other = "cuda" if archive else "ubuntu"
    if ubuntu in holders(catalog, item.release or item.minor, other):
        because.append(f"{CHANNELS[other]} has it there; one host takes all its toolkits from one of the two")
    out.block(
        "cuda.not_in_repository",
        f"{CHANNELS[out.channel]} for Ubuntu {ubuntu} has no CUDA {item.text}",
        because,
        elsewhere(catalog, item.release if item.release in item.toolkit.releases else item.minor),
    )
