"""A host against what the inventory asks for: the steps of a plan that needs no apt, and the checks that read. Pure."""

from __future__ import annotations

import re
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.catalog import Catalog
from provision.drift.item import Item
from provision.facts import Facts
from provision.parts.containers.packages import is_toolkit_uri
from provision.parts.desired import Desired
from provision.parts.driver.installed import driver_packages, is_cuda_uri, is_ppa_uri, next_boot_problems
from provision.parts.plan import HostPlan, Step
from provision.parts.registry import title_of
from provision.planning import plan_without_apt
from provision.planning.verification import read_checks

_APPLY = "provision apply corrects it"
_FILE = re.compile(r"^(?P<verb>write|remove) (?P<path>/\S+?):?(?: .*)?$")
_PERSISTENCED = "nvidia-persistenced"


def against_inventory(name: str, facts: Facts, values: dict[str, Any], catalog: Catalog) -> list[Item]:
    """Items of a host against its role variables, with those of the lock where it has one."""
    plan, asking = plan_without_apt(name, facts, values, catalog)
    ids = {step.id for step in plan.steps}
    items = [
        item
        for step in plan.steps
        # A daemon that is to take up what is written anew is no second thing.
        if not (step.id == "reboot" or (step.id == "restart" and "containers" in ids))
        for item in _of_step(step, facts)
    ]
    items += _next_boot(facts, plan)
    items += _blockers(plan)
    items += [
        Item(
            code=f"packages.{part}",
            what=title_of(part),
            expected="as the inventory asks",
            found="its packages have to change",
            against="inventory",
            hint="provision plan says how",
        )
        for part in asking
    ]
    items += _sources(facts)
    if not any(item.what == apt_files.UNATTENDED for item in items):
        items += _unattended(facts, values)
    items += _reboot(facts, plan)
    items += _checks(facts, values, catalog)
    return items


def _item(code: str, what: str, expected: str, found: str, hint: str | None = _APPLY) -> Item:
    return Item(code=code, what=what, expected=expected, found=found, against="inventory", hint=hint)


def _of_step(step: Step, facts: Facts) -> list[Item]:
    """What a step would put right, as what is wrong now."""
    if step.id == "hold":
        return _of_hold(step)
    part = title_of(step.part)
    if step.id == "packages":
        return [_item(f"packages.{step.part}", part, step.title, step.because)]
    files = [(match["verb"], match["path"]) for match in map(_FILE.match, step.details) if match]
    items = [_of_file(step, verb, path, facts) for verb, path in files]
    rest = [line for line in step.details if not _FILE.match(line)]
    if step.id == "boot":
        return items + _of_boot(step, bool(files), facts)
    if step.id == "sources":
        return items + [
            _item("sources.entry", line, "one entry of a repository", "another entry of it") for line in rest
        ]
    area = _AREAS.get(step.id, "files")
    if step.id in ("environment", "containers", "restart"):
        items += [_item(f"{area}.{step.id}", line, "as asked", "otherwise") for line in rest]
    return items or [_item(f"{area}.{step.id}", step.title, "done", step.because)]


# Step of a plan -> area of what it puts right.
_AREAS = {
    "sources": "sources",
    "boot": "boot",
    "containers": "containers",
    "restart": "containers",
    "conda": "conda",
    "environments": "conda",
}


def _of_hold(step: Step) -> list[Item]:
    """Nothing where the step goes with packages that are to change."""
    loose = [name for name in step.details if not name.startswith(("kernel: ", "not installed: "))]
    stale = [name.removeprefix("not installed: ") for name in step.details if name.startswith("not installed: ")]
    if not loose and not stale:
        return []
    found = f"not held: {', '.join(loose[:4])}" if loose else f"held and not installed: {', '.join(stale[:4])}"
    found += f" and {len(loose) - 4} more" if len(loose) > 4 else ""
    return [_item(f"holds.{step.part}", f"holds of {title_of(step.part)}", "every package held", found)]


def _of_boot(step: Step, has_files: bool, facts: Facts) -> list[Item]:
    """A unit that does not run, a module that is not loaded, an old initramfs; files of the step are reported by themselves."""
    if has_files:
        return []
    if not step.title.startswith("start "):
        return [_item("boot.driver", step.title, "done", step.because)]
    units = step.title.removeprefix("start ").split(",")[0]
    off = [f"GPU {gpu.index}" for gpu in facts.smi.gpus if gpu.persistence is False]
    found = f"persistence mode is off on {', '.join(off)}" if off and _PERSISTENCED in units else "not running"
    return [_item("services.unit", units, "running, now and at every boot", found)]


def _next_boot(facts: Facts, plan: HostPlan) -> list[Item]:
    """What would go wrong at the next boot, where a driver is there at all."""
    if any(issue.code == "driver.next_boot" for issue in plan.blockers) or not facts.module.loaded:
        return []
    problems = next_boot_problems(facts) if driver_packages(facts) else []
    hint = "do not reboot before provision apply has put a module there"
    return [_item("boot.module", "the next boot", "a module that fits", problem, hint) for problem in problems]


def _of_file(step: Step, verb: str, path: str, facts: Facts) -> Item:
    area = _AREAS.get(step.id, "files")
    if verb == "remove":
        return _item(f"{area}.own", path, "not there", "there")
    return _item(f"{area}.own", path, "as gpu-provision writes it", "changed" if path in facts.own_files else "missing")


def _blockers(plan: HostPlan) -> list[Item]:
    return [
        Item(
            code=f"{'boot' if issue.code == 'driver.next_boot' else 'blocked'}.{issue.code.split('.')[-1]}",
            what=issue.code,
            expected="possible",
            found=issue.message,
            against="inventory",
            hint=issue.hint,
        )
        for issue in plan.blockers
        if not issue.code.startswith("lock.")
    ]


def _sources(facts: Facts) -> list[Item]:
    """Entries of NVIDIA's repositories beside our own file for the same one: two of them contradict each other sooner or later."""
    items = []
    for kind, is_it in (("cuda", is_cuda_uri), ("container-toolkit", is_toolkit_uri), ("ppa", is_ppa_uri)):
        own = apt_files.sources_path(kind)
        if own not in facts.own_files:
            continue
        items += [
            _item(
                "sources.second",
                source.file,
                f"only {own} for this repository",
                ", ".join(source.uris[:1]),
                "remove the entry: provision apply does so when it changes packages",
            )
            for source in facts.apt.sources
            if source.enabled and source.file != own and "deb" in source.types and any(map(is_it, source.uris))
        ]
    return items


def _unattended(facts: Facts, values: dict[str, Any]) -> list[Item]:
    """Our list is there and apt reads another one: a later file may clear it."""
    config = Desired(values).driver
    if not (config.manage and config.hold and facts.apt.unattended and apt_files.UNATTENDED in facts.own_files):
        return []
    lost = [p for p in driver_names.UNATTENDED_PATTERNS if not any(p.startswith(one) for one in facts.apt.blacklist)]
    if not lost or not driver_packages(facts):
        return []
    return [
        _item(
            "sources.unattended",
            "Unattended-Upgrade::Package-Blacklist",
            "NVIDIA's names in it",
            f"without {lost[0]}",
            "check /etc/apt/apt.conf.d for a file that clears the list",
        )
    ]


def _reboot(facts: Facts, plan: HostPlan) -> list[Item]:
    if plan.reboot.needed:
        return [_item("reboot.pending", "a reboot", "none pending", "; ".join(plan.reboot.because))]
    ours = [
        name
        for name in facts.reboot_required.packages
        if name.startswith(("linux-", "nvidia-")) or driver_names.parse(name)
    ]
    if facts.reboot_required.required and ours:
        return [
            _item(
                "reboot.pending", "a reboot", "none pending", f"asked for by {', '.join(ours[:3])}", "reboot when idle"
            )
        ]
    return []


def _checks(facts: Facts, values: dict[str, Any], catalog: Catalog) -> list[Item]:
    """Failed checks: they see what no plan would change. A warning is the state of many healthy hosts."""
    return [
        _item(f"check.{check.code}", check.code, "pass", check.message, check.hint)
        for check in read_checks(facts, values, catalog)
        if check.level == "error"
    ]
