"""A host's variables, narrowed to what a rescue may do: what is there stays what it is, unless that cannot work. Pure.

apply brings a host to its inventory; rescue brings it back. So a repair through the roles is planned first with the very
version that is installed, then with its series, and only then with what the inventory leaves open; toolkits, cuDNN and NCCL
that no finding names are not installed, and nothing is updated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.facts import Facts
from provision.parts.driver.installed import InstalledDriver, installed_driver
from provision.rescue.model import RescueStep

_NO_UPDATE = {
    "nvidia_driver_update": False,
    "cuda_toolkit_update": False,
    "cuda_toolkit_prune": False,
    "container_toolkit_update": False,
}


def parts_of(steps: Iterable[RescueStep]) -> list[str]:
    """The parts of a plan that steps name; the driver where they name none."""
    named = [str(part) for step in steps for part in step.args.get("parts") or ["driver"]]
    return list(dict.fromkeys(named))


def narrowed(values: Mapping[str, Any], facts: Facts, steps: Sequence[RescueStep]) -> list[dict[str, Any]]:
    """Return the variables to plan with, the narrowest first; the first whose plan changes something is taken.

    steps: of one round, with args parts, toolkits (CUDA minors that a finding names) and values (variables that it names).
    """
    named = {key: value for step in steps for key, value in (step.args.get("values") or {}).items()}
    base = {**values, **{key: value for key, value in _NO_UPDATE.items() if key in values}, **named}
    parts = parts_of(steps)
    bare = base
    if "cuda" in parts:
        base["cuda_toolkit_versions"] = _toolkits(values, facts, steps)
        bare = {**base, **_without(facts, steps)}
    wider = [bare] if bare == base else [bare, base]
    if "driver" not in parts or any(key.startswith("nvidia_driver_") for key in named):
        return wider
    return [*({**bare, **kept} for kept in _kept(base, facts)), *wider]


def _without(facts: Facts, steps: Sequence[RescueStep]) -> dict[str, Any]:
    """Variables that leave out cuDNN and NCCL where they are not installed and no finding is about them."""
    about = {step.finding.split(".")[0] for step in steps}
    there = {
        kind
        for kind in ("cudnn", "nccl")
        for name, row in facts.packages.items()
        if row.installed and name.startswith(f"lib{kind}")
    }
    return {f"cuda_toolkit_{kind}": "none" for kind in ("cudnn", "nccl") if kind not in about | there}


def _kept(values: Mapping[str, Any], facts: Facts) -> list[dict[str, Any]]:
    """What the installed driver is, as variables."""
    if not values.get("nvidia_driver_manage", True):
        return []
    return [values_ for one in _drivers(facts) for values_ in _like(one, values, facts)]


def _drivers(facts: Facts) -> list[InstalledDriver]:
    """The installed driver; where its packages are of several branches (G6: another one's, forced over it), each of them.

    The one that most packages are of comes first: fewest move. Then the one that is loaded, then the newest.
    """
    whole = installed_driver(facts)
    if whole.series is not None:
        return [whole]
    loaded = facts.module.loaded.version if facts.module.loaded else None
    found = []
    for series in whole.all_series:
        other = {
            name
            for name, version in whole.packages.items()
            if version
            and driver_names.is_version_locked(name)
            and (driver_names.parse(name).series or driver_names.branch(version)) != series
        }
        rest = {name: package for name, package in facts.packages.items() if name not in other}
        one = installed_driver(facts.model_copy(update={"packages": rest}))
        if one.series is not None:
            found.append(one)
    return sorted(
        found,
        key=lambda one: (len(one.packages), loaded in one.versions, _key(max(one.versions, key=_key))),
        reverse=True,
    )


def _like(have: InstalledDriver, values: Mapping[str, Any], facts: Facts) -> list[dict[str, Any]]:
    """One driver, as variables: to the digit, then only its series."""
    like: dict[str, Any] = {"nvidia_driver_branch": have.series}
    for variable, value in (
        ("nvidia_driver_channel", have.channel),
        ("nvidia_driver_modules", have.flavour),
        ("nvidia_driver_build", have.build),
        ("nvidia_driver_variant", have.variant),
    ):
        if value and values.get(variable, "auto") == "auto":
            like[variable] = value
    # Of several versions the one that most packages have: fewest move. Then the one that is loaded, which needs no reboot.
    count = Counter(
        driver_names.upstream(version)
        for name, version in have.packages.items()
        if driver_names.is_version_locked(name)
    )
    loaded = facts.module.loaded.version if facts.module.loaded else None
    order = sorted(have.versions, key=lambda one: (count[one], one == loaded, _key(one)), reverse=True)
    exact = [{**like, "nvidia_driver_version": version} for version in order]
    open_build = {key: value for key, value in like.items() if key != "nvidia_driver_build"}
    return [*exact, {**like, "nvidia_driver_version": ""}, {**open_build, "nvidia_driver_version": ""}]


def _toolkits(values: Mapping[str, Any], facts: Facts, steps: Sequence[RescueStep]) -> list[str]:
    """Those of the requested toolkits that are there or that a finding names; all of them where that leaves none."""
    requested = [str(version) for version in values.get("cuda_toolkit_versions") or ()]
    named = {str(item) for step in steps for item in step.args.get("toolkits") or ()}
    there = {toolkit.version for toolkit in facts.cuda.toolkits if toolkit.version}
    kept = [version for version in requested if _minor(version) in there or named & {version, _minor(version)}]
    return kept or requested


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
