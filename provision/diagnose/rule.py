"""What a rule of diagnose is: words for people, patterns of error texts, and a pure function of one host's facts.

Rules live in ``rules/``, a module a theme; each module has a tuple ``RULES``. A rule's words are the page of its code in
docs/findings, so that an error in a terminal leads to an explanation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from provision.catalog import Catalog
from provision.diagnose.finding import Level, Repair
from provision.facts import Facts


@dataclass(frozen=True)
class Case:
    """One host, as rules see it. values: its effective role variables, the wish."""

    facts: Facts
    values: Mapping[str, Any]
    catalog: Catalog

    @cached_property
    def driver_managed(self) -> bool:
        """False where the owner accepted a driver that is not ours to touch (nvidia_driver_manage: false)."""
        return bool(self.values.get("nvidia_driver_manage", True))

    @cached_property
    def expect(self) -> dict[str, Any]:
        """What ``verify`` holds this host to: rules that judge the same things ask its checks."""
        from provision.planning.verification import (
            # it knows planning, which most of what imports this does not need
            expect_of,
        )

        return expect_of(self.facts, dict(self.values), self.catalog)

    @cached_property
    def plain(self) -> dict[str, Any]:
        """The facts as the checks take them."""
        return self.facts.model_dump()


@dataclass(frozen=True)
class Found:
    """What a rule found on a host. Empty words are taken from the rule."""

    message: str
    evidence: tuple[str, ...] = ()
    repairs: tuple[Repair, ...] = ()
    level: Level | None = None
    reboot: bool | None = None


@dataclass(frozen=True)
class Rule:
    """One cause that can be named.

    code: stable, ``area.what``. texts: regular expressions over what people paste (``--text``), tried without case.
    after: codes that have to be mended before this one. symptom_of: codes that explain this finding where they are
    found on the same host too; it is folded under the first of them. entries: field reports that it was made from.
    """

    code: str
    level: Level
    # the cause in a few words: "the loaded module is older than the driver on the disk"
    title: str
    # how it comes about; paragraphs of plain Markdown
    explain: str
    breaks: str
    # the smallest repair in general words
    repair: str
    prevent: str
    find: Callable[[Case], Iterable[Found]]
    reboot: bool = False
    texts: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    symptom_of: tuple[str, ...] = ()
    # where the rule is taken from
    sources: tuple[str, ...] = field(default=())
