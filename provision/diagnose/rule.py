"""What a rule of diagnose is: a pure function of one host's facts, named by its code.

Rules live in ``rules/``, a module a theme. What is said of a code on every host is its page in ``findings/``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from provision.catalog import Catalog
from provision.diagnose import rules
from provision.diagnose.finding import Level, Repair
from provision.diagnose.pages import FOLDER, codes
from provision.facts import Facts
from provision.parts.check import Expect

# lines of one finding
_EVIDENCE = 12


@dataclass(frozen=True)
class Case:
    """One host, as rules see it. values: its effective role variables."""

    facts: Facts
    values: Mapping[str, Any]
    catalog: Catalog

    @cached_property
    def driver_managed(self) -> bool:
        """False where the owner accepted a driver that is not ours to touch (nvidia_driver_manage: false)."""
        return bool(self.values.get("nvidia_driver_manage", True))

    @cached_property
    def expect(self) -> Expect:
        """What ``verify`` holds this host to: rules that judge the same things ask its checks."""
        from provision.planning.verification import (
            # it knows planning, which most of what imports this does not need
            expect_of,
        )

        return expect_of(self.facts, dict(self.values), self.catalog)


class Found:
    """What a rule found on a host. What is not said is taken from the page of its code."""

    def __init__(
        self,
        message: str,
        evidence: Iterable[str],
        *repairs: Repair,
        level: Level | None = None,
        reboot: bool | None = None,
        cards: Iterable[str] = (),
    ) -> None:
        self.message, self.repairs, self.level, self.reboot = message, repairs, level, reboot
        self.cards = list(dict.fromkeys(cards))
        self.evidence = clipped(evidence)


def clipped(lines: Iterable[str]) -> list[str]:
    """Lines for evidence: each once, not too many."""
    unique = list(dict.fromkeys(line for line in lines if line))
    if len(unique) > _EVIDENCE:
        unique = [*unique[: _EVIDENCE - 1], f"and {len(unique) - _EVIDENCE + 1} more lines"]
    return unique


Find = Callable[[Case], Iterable[Found]]
_FINDERS: dict[str, Find] = {}


def rule(code: str) -> Callable[[Find], Find]:
    """Make a function the one that finds a code on hosts."""

    def register(find: Find) -> Find:
        if code in _FINDERS:
            raise ValueError(f"two rules of one code: {code}")
        _FINDERS[code] = find
        return find

    return register


@cache
def finders() -> dict[str, Find]:
    """Return {code: function} of all modules of ``rules/``, in the order of their pages; codes without a page are refused."""
    for module in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{module.name}")
    unknown = set(_FINDERS) - set(codes())
    if unknown:
        raise ValueError(f"no page in {FOLDER} for {', '.join(sorted(unknown))}")
    return {code: _FINDERS[code] for code in codes() if code in _FINDERS}
