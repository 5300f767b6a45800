"""What has to change for containers: the difference between a host and the decision of resolve.

Pure. The spec is exactly the arguments of the module container_runtime; the steps and reasons are what people read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import trusted_keys
from provision.catalog import Catalog
from provision.facts import Facts
from provision.parts.apt import AptPart, PartPlan
from provision.parts.check import ContainersExpect
from provision.parts.containers.desired import ContainersConfig, ContainersDecision, ContainersTarget
from provision.parts.containers.packages import LEGACY_URIS, old_keys_that_go, toolkit_entries
from provision.parts.containers.preconditions import has_docker_cdi
from provision.parts.decision import join_and
from provision.parts.plan import Step

# What unattended-upgrades must leave alone where only the toolkit is held.
UNATTENDED = ("nvidia-container-", "libnvidia-container")


def plan_containers(
    config: ContainersConfig, facts: Facts, decision: ContainersDecision, source: dict[str, Any] | None
) -> PartPlan:
    """Return what has to change. source: the toolkit's repository as apt.query's SourceSpec."""
    target = decision.target
    if target is None:
        return PartPlan({"runtimes": None}, None, [])
    apt = AptPart(
        install=sorted(f"{name}={version}" for name, version in target.packages.items()), remove=sorted(target.remove)
    )
    if source:
        keys = old_keys_that_go(config, facts)
        spec = {
            **source,
            "legacy_uris": LEGACY_URIS if config.remove_legacy else [],
            "legacy_keys": [trusted_keys.CONTAINER_TOOLKIT] if keys else [],
        }
        apt.repositories.append((spec, "the toolkit comes from NVIDIA's repository for it"))
        apt.omitted = toolkit_entries(facts) if config.remove_legacy else []
        apt.old_keys = keys
    if config.hold:
        apt.unattended = list(UNATTENDED)
        apt.unattended_because = "unattended-upgrades must not update the container toolkit"
    steps = [*_packages(target), *_hold(config, facts, target, apt), *_runtimes(config, facts, target)]
    moves = bool(target.todo or target.packages or target.remove)
    return PartPlan({"runtimes": dict(target.spec) if moves else None}, apt, steps, _summary(target))


def _summary(target: ContainersTarget) -> str:
    names = [f"{name} {version}".strip() for name, version in target.runtimes.items()]
    return f"container toolkit {target.version}" + (f" for {join_and(names)}" if names else "")


def _step(name: str, title: str, because: str, details: Sequence[str] = (), line: Sequence[str] = ()) -> Step:
    """line: its sign, what and value; see Step."""
    shown = dict(zip(("sign", "what", "value"), line, strict=False))
    step = {"id": name, "part": "containers", "title": title, "because": because, "details": list(details), **shown}
    return Step.model_validate(step)


def _packages(target: ContainersTarget) -> Iterator[Step]:
    """Steps whose details are the packages that they bring; the one without details brings all others, dependencies too."""
    toolkit = [name for name in target.packages if name in target.names]
    if toolkit:
        yield _step(
            "packages",
            f"install NVIDIA's container toolkit {target.version}",
            "container_toolkit_runtimes is not empty, and its packages belong together at one version",
            toolkit if target.installs else [],
            ("+", "containers", f"NVIDIA container toolkit {target.version}"),
        )
    for runtime, package in (("docker", "docker.io"), ("podman", "podman")):
        if runtime in target.installs:
            yield _step(
                "packages",
                f"install {package} {target.packages[package]}",
                f"container_toolkit_install_{runtime} is true",
                [] if runtime == target.installs[0] else [package],
                ("+", "containers", f"{package} {target.packages[package]}"),
            )
    if target.remove:
        yield _step(
            "packages",
            f"remove {join_and(list(target.remove))}",
            "the container toolkit replaced them (container_toolkit_remove_legacy)",
            target.remove,
            ("-", "containers", join_and(list(target.remove))),
        )


def _hold(config: ContainersConfig, facts: Facts, target: ContainersTarget, apt: AptPart) -> Iterator[Step]:
    rows = facts.packages
    here = [name for name in target.names if name in rows and rows[name].status[1] not in "nc"]
    if not config.hold:
        apt.extra_release = list(target.names)
        held = [name for name in here if rows[name].held]
        if held:
            why = "container_toolkit_hold is false"
            yield _step("hold", f"release {len(held)} holds", why, held, ("-", "hold", "container toolkit"))
        return
    apt.extra_hold = list(target.names)
    loose = [name for name in here if not rows[name].held]
    coming = [name for name in target.packages if name in target.names]
    if loose or coming:
        title = "hold the toolkit's packages by their exact names" if coming else f"hold {len(loose)} packages"
        because = "an update must not move them apart, nor to a version that the runtimes cannot work with"
        yield _step("hold", title, because, [] if coming else loose, ("~", "hold", "container toolkit"))


def _runtimes(config: ContainersConfig, facts: Facts, target: ContainersTarget) -> Iterator[Step]:
    if target.todo:
        names = join_and(list(target.runtimes)) or "rootless docker"
        yield _step(
            "containers",
            f"give GPUs to containers of {names}",
            "only the necessary keys are changed, everything else stays",
            target.todo,
            ("~", names if target.runtimes else "containers", "; ".join(target.todo)),
        )
    docker = facts.containers.docker
    if target.restart:
        waits = bool(target.disturbed) and config.restart != "always" or config.restart == "never"
        details = [f"would end {title}" if waits else f"ends {title}" for title in target.disturbed]
        yield _step(
            "restart",
            "restart docker" + (", left to you (exit code 6)" if waits else ""),
            target.restart,
            details,
            ("!", "restart", "; ".join(["docker" + ", left to you" * (config.restart == "never"), *details])),
        )
    elif target.keys and docker.pid:
        yield _step(
            "restart",
            "have docker read its file again",
            "it takes this up without a restart; containers keep running",
            line=("~", "docker", "reads its file again, containers keep running"),
        )


def containers_expectation(
    config: ContainersConfig, facts: Facts, catalog: Catalog, decision: ContainersDecision
) -> ContainersExpect:
    """What verify holds the host to. Of a host that asks for nothing only what is there is judged."""
    target = decision.target
    return ContainersExpect(
        manage=config.wanted,
        runtimes=list(config.runtimes),
        rootless=list(config.rootless_users),
        names=list(catalog.container_toolkit.packages.set),
        legacy=list(catalog.container_toolkit.legacy.remove_packages),
        version=(config.version.split("-")[0] if config.wanted else "") or None,
        hold=config.wanted and config.hold,
        default_runtime=config.default_runtime if config.wanted else "",
        shm_size=config.shm_size if config.wanted else "",
        users=list(config.docker_users) if config.docker else [],
        cdi=bool(target.spec.get("cdi"))
        if target
        else config.wanted and ("podman" in config.runtimes or config.cdi == "always"),
        device_links=config.wanted and config.device_links,
        refused=[issue.message for issue in decision.blockers],
    )


def containers_to_run(config: ContainersConfig, facts: Facts, catalog: Catalog) -> dict[str, Any]:
    """What the host is to start containers with; see provecontainer.plan. Only runtimes that the inventory asks for."""
    return {
        "docker": config.docker,
        "docker_cdi": has_docker_cdi(facts, catalog),
        "podman": "podman" in config.runtimes,
        "image": config.test_image,
        "gpus": len(facts.smi.gpus),
    }
