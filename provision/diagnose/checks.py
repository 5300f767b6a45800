"""The checks of ``verify``, as rules ask them: one judge for one thing. Pure."""

from __future__ import annotations

from provision.diagnose.finding import Level
from provision.diagnose.rule import Case
from provision.facts.diagnostics import UserDiagnostics
from provision.lib.findings import Check
from provision.parts.check import Judge

_NONE = UserDiagnostics()


def user(case: Case) -> UserDiagnostics:
    """What only diagnose reads of users' side; empty where it was not asked for."""
    return case.facts.trouble.user if case.facts.trouble else _NONE


def verdict(case: Case, check: Judge) -> Check:
    """What a check says of this host; the same as ``verify`` shows."""
    kept: dict[str, Check] = case.__dict__.setdefault("_verdicts", {})
    if check.code not in kept:
        kept[check.code] = check(case.facts, case.expect)
    return kept[check.code]


def level_of(said: Check) -> Level | None:
    """Its level where something is wrong, None for all that is well or was not judged."""
    return said.level if said.level in ("error", "warning") else None
