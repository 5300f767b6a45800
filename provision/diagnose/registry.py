"""All rules, found by themselves: every module of ``rules/`` with a tuple ``RULES``."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache

from provision.diagnose import rules as _rules
from provision.diagnose.rule import Rule
from provision.errors import UsageError

# What is mended first where neither ``after`` nor the level says: from what stands in every way to what only annoys.
# The first part of a code; areas that are not listed come last, by name.
AREAS = (
    "host",
    "disk",
    "dpkg",
    "apt",
    "holds",
    "boot",
    "secureboot",
    "kernel",
    "driver",
    "nouveau",
    "gpus",
    "fabric",
    "mig",
    "reboot",
    "desktop",
    "cuda",
    "cudnn",
    "nccl",
    "containers",
    "conda",
    "proxy",
    "shell",
)


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return the rules of all modules, in the order of AREAS; codes are unique (ValueError otherwise)."""
    found: list[Rule] = []
    for module in sorted(pkgutil.iter_modules(_rules.__path__), key=lambda row: row.name):
        found += importlib.import_module(f"{_rules.__name__}.{module.name}").RULES
    codes = [rule.code for rule in found]
    twice = sorted({code for code in codes if codes.count(code) > 1})
    if twice:
        raise ValueError(f"codes of more than one rule: {', '.join(twice)}")
    return tuple(sorted(found, key=lambda rule: (area_rank(rule.code), rule.code)))


@cache
def by_code() -> dict[str, Rule]:
    """Return all rules by their code."""
    return {rule.code: rule for rule in all_rules()}


def area(code: str) -> str:
    """``driver`` of ``driver.stale_module``."""
    return code.split(".")[0]


def area_rank(code: str) -> tuple[int, str]:
    """Sort key of a code: its area's place in AREAS."""
    name = area(code)
    return (AREAS.index(name) if name in AREAS else len(AREAS), name)


def rule_named(code: str) -> Rule:
    """Return the rule of a code; UsageError (exit 64) that names the nearest codes."""
    rules = by_code()
    wanted = code.strip().lower()
    if wanted in rules:
        return rules[wanted]
    areas = sorted({area(name) for name in rules})
    of_area = [name for name in rules if area(name) == wanted.rstrip(".*")]
    near = of_area or difflib.get_close_matches(wanted, list(rules), n=3, cutoff=0.6)
    near = near or [name for name in rules if len(wanted) > 3 and wanted in name][:5]
    raise UsageError(
        "diagnose.unknown_code",
        f"no such code: {code}" if wanted else "no code was given",
        hint=f"{'its codes are' if of_area else 'did you mean'} {', '.join(near)}{'' if of_area else '?'}"
        if near
        else f"an area lists its codes: --explain {areas[0]} ({', '.join(areas)}); --text finds one by its error",
    )
