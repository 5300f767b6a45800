"""The checks of ``verify``, of all parts: pure functions from facts to what is to be said of a host; see check."""

from __future__ import annotations

from provision.facts import Facts
from provision.lib.findings import Check
from provision.parts.check import Expect, Judge
from provision.parts.registry import PARTS


def every() -> list[Judge]:
    """Every check, in the order in which a person would look."""
    return [check for part in PARTS for check in part.checks]


def run(facts: Facts, expect: Expect) -> list[Check]:
    """Return what every check says of a host."""
    return [check(facts, expect) for check in every()]
