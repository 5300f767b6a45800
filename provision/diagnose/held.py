"""The checks of ``verify``, as rules ask them: one judge for one thing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from provision.diagnose.finding import Level
from provision.diagnose.rule import Case
from provision.facts.diagnostics import UserTrouble

_NONE = UserTrouble()
_LEVELS: Mapping[str, Level] = {"fail": "error", "warn": "warning"}


def user(case: Case) -> UserTrouble:
    """What only diagnose reads of users' side; empty where it was not asked for."""
    return case.facts.trouble.user if case.facts.trouble else _NONE


def verdict(case: Case, check: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """What a check says of this host; the same dict as ``verify`` shows."""
    kept: dict[str, dict[str, Any]] = case.__dict__.setdefault("_verdicts", {})
    name = f"{check.__module__}.{check.__name__}"
    if name not in kept:
        kept[name] = check(case.plain, case.expect)
    return kept[name]


def level_of(said: Mapping[str, Any]) -> Level | None:
    """error for fail, warning for warn, None for all that is well or was not judged."""
    return _LEVELS.get(said["status"])
