"""What is said of one host, in one shape: by checks, diagnose, drift and scan; which of it is gravest, what follows from
what, and in which order it is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

# error: something does not work, or will not after the next boot or apt run. warning: it works, and one ordinary event
# breaks it. note: worth knowing; never counts against a host. pass, skip: of checks, which also say what is well.
Level = Literal["error", "warning", "note", "pass", "skip"]
# From the gravest on: the order of findings, and which level stands for several.
GRAVITY: tuple[Level, ...] = ("error", "warning", "note", "pass", "skip")

CheckStatus = Literal["pass", "warn", "fail", "skip"]
_STATUS: dict[str, CheckStatus] = {"error": "fail", "warning": "warn", "note": "pass", "pass": "pass", "skip": "skip"}
_LEVEL: dict[str, Level] = {"fail": "error", "warn": "warning"}


class Finding(BaseModel):
    """One thing that is said of a host. code: stable, ``area.what``. hint: what to do, where something is wrong."""

    code: str
    level: Level
    # this host's case in one line, with its versions and names
    message: str
    # the file, the line, the versions that disagree
    evidence: list[str] = Field(default_factory=list)
    hint: str | None = None

    @property
    def area(self) -> str:
        """``driver`` of ``driver.stale_module``."""
        return self.code.split(".")[0]

    @property
    def way_out(self) -> str:
        """The hint, as a repair's text."""
        return self.hint or ""

    @property
    def gravity(self) -> int:
        """Place of its level in GRAVITY: 0 is the gravest."""
        return GRAVITY.index(self.level)


F = TypeVar("F", bound=Finding)


def worst(findings: Iterable[Finding]) -> Level:
    """Return the gravest level among findings; skip when nothing was judged."""
    return min((finding.level for finding in findings), key=GRAVITY.index, default="skip")


def explained(findings: Sequence[F], causes: Callable[[F], Iterable[F]]) -> dict[int, F]:
    """Return the cause of every finding that only follows from another one, by the finding's ``id()``.

    causes: who may explain a finding, the likeliest first. Where findings name each other in a circle, the first stays.
    """
    parents: dict[int, F] = {}
    for finding in findings:
        cause = next((cause for cause in causes(finding) if not _above(cause, finding, parents)), None)
        if cause is not None:
            parents[id(finding)] = cause
    return parents


def _above(finding: F, other: F, parents: Mapping[int, F]) -> bool:
    """True when other is finding itself or stands over it."""
    at: F | None = finding
    while at is not None:
        if at is other:
            return True
        at = parents.get(id(at))
    return False


def in_order(
    findings: Iterable[F], before: Callable[[str], set[str]], rank: Callable[[str], tuple[int, str]]
) -> list[F]:
    """Order by what has to be mended first, then level, then rank, then as found.

    before: the codes that are mended before a code; rank: the place of a code.
    """
    waiting = list(enumerate(findings))
    done: list[F] = []
    while waiting:
        left = {finding.code for _, finding in waiting}
        ready = [row for row in waiting if not (before(row[1].code) & left - {row[1].code})]
        # A circle among the codes is a defect that a test of the rules finds; a host is judged anyway.
        chosen = min(ready or waiting, key=lambda row: (row[1].gravity, rank(row[1].code), row[0]))
        waiting.remove(chosen)
        done.append(chosen[1])
    return done


def status_of(level: Level) -> CheckStatus:
    """Return how documents of checks call a level."""
    return _STATUS[level]


# A level that documents write as pass, warn, fail or skip.
_Status = Annotated[
    Level,
    BeforeValidator(lambda word: _LEVEL.get(word, word) if isinstance(word, str) else word),
    PlainSerializer(status_of),
    WithJsonSchema({"enum": ["pass", "warn", "fail", "skip"], "type": "string"}),
]


class Check(Finding):
    """What a check says, as ``verify`` and the module gpu_verify write it: ``id`` and ``status`` for code and level."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    code: str = Field(alias="id")
    level: _Status = Field(alias="status")
    # of checks that run something
    seconds: float | None = None
    # measured, the unit in the name
    numbers: dict[str, float] = Field(default_factory=dict)
    # sentences: what of it was not run although there is something to prove
    not_run: list[str] = Field(default_factory=list)

    @property
    def status(self) -> CheckStatus:
        return status_of(self.level)
