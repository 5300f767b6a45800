"""From a pasted error or a log to the rules that know it: no host, no inventory. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.catalog import Catalog
from provision.catalog.models import Trap
from provision.diagnose import registry
from provision.diagnose.rule import Rule

# What logs put before the words of a message.
_PREFIX = re.compile(
    r"^(?:[A-Z][a-z]{2}\s+[0-9]+ [0-9:]{8} \S+ |[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.+Z-]+ (?:\S+ )?)?(?:kernel: ?)?"
    r"(?:\[\s*[0-9.]+\] ?)?(?:NVRM: +)?"
)
_LEAST = 18  # characters of an error that are enough to know it by
_MOST = 2_000_000  # characters of a log that are looked at, from its end


@dataclass(frozen=True)
class Match:
    """A rule that knows a text: the line that it knew, and how much of it."""

    rule: Rule
    line: str
    length: int  # characters that matched: more of them is surer
    lines: int  # how many lines it knew


def matches(text: str) -> list[Match]:
    """Return the rules that know an error or a log, the surest first.

    Every line is tried, and the whole with its lines joined: the driver and apt break their messages over several.
    """
    lines = [line.strip() for line in text[-_MOST:].splitlines() if line.strip()]
    joined = " ".join(_PREFIX.sub("", line).strip() for line in lines)
    found = [match for rule in registry.all_rules() if (match := _match(rule, lines, joined))]
    return sorted(found, key=lambda match: (-match.length, registry.area_rank(match.rule.code)))


def traps(text: str, catalog: Catalog) -> list[tuple[Trap, str]]:
    """Return the catalog's known errors that a text holds, the longest match first, each with the line that it knew.

    They are about programs of users more than about hosts: what no rule can see on a host is known here all the same.
    """
    found: list[tuple[int, Trap, str]] = []
    for line in text[-_MOST:].splitlines():
        for trap in catalog.traps:
            length = max((len(words) for words in _known(trap) if words in line.lower()), default=0)
            if length and trap.id not in {other.id for _, other, _ in found}:
                found.append((length, trap, line.strip()))
    return [(trap, line) for _, trap, line in sorted(found, key=lambda row: -row[0])]


def _known(trap: Trap) -> list[str]:
    """Pieces of an error that stand in it literally: what the catalog leaves open (…, NNN, X) divides them."""
    if trap.kind != "error":
        return []
    pieces = [
        piece.strip(" \"'<>()") for words in (trap.match, *trap.also)
        for piece in re.split(r"\.\.\.|…|N{2,}[.N]*|<[A-Za-z]+>|\b[XY]\b", words)
    ]  # fmt: skip
    return [piece.lower() for piece in pieces if len(piece) >= _LEAST]


def _match(rule: Rule, lines: list[str], joined: str) -> Match | None:
    length, known, told = 0, 0, ""
    for pattern in map(re.compile, rule.texts, [re.I] * len(rule.texts)):
        hits = [(len(hit.group(0)), line) for line in lines if (hit := pattern.search(line))]
        whole = pattern.search(joined) if not hits else None
        if whole:
            hits = [(len(whole.group(0)), _shortened(joined, whole))]
        known += len(hits)
        if hits and hits[-1][0] > length:
            length, told = hits[-1]
    return Match(rule, told, length, known) if known else None


def _shortened(joined: str, match: re.Match[str]) -> str:
    start, end = match.span()
    return ("… " if start else "") + joined[start : min(end + 40, start + 240)].strip()
