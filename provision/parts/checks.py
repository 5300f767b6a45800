"""The checks of ``verify``, of all parts: pure functions from facts to what is to be said of a host; see check."""

from __future__ import annotations

from provision.facts import Facts
from provision.lib.findings import Check
from provision.parts.check import Expect, Judge
from provision.parts.conda import checks as conda_checks
from provision.parts.containers import checks as containers_checks
from provision.parts.cuda import checks as cuda_checks
from provision.parts.cuda import library_checks
from provision.parts.driver import checks as driver_checks

CHECKS: tuple[Judge, ...] = (
    *driver_checks.CHECKS,
    *cuda_checks.CHECKS,
    *library_checks.CHECKS,
    *conda_checks.CHECKS,
    *containers_checks.CHECKS,
)


def run(facts: Facts, expect: Expect) -> list[Check]:
    """Return what every check says of a host, in the order in which a person would look."""
    return [check(facts, expect) for check in CHECKS]
