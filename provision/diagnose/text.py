"""From a pasted error or a log to the findings that know it: no host, no inventory. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from provision.catalog import Catalog, Trap, load_catalog
from provision.diagnose import pages
from provision.diagnose.pages import Page
from provision.parts.driver import fabric, xid

# What logs put before the words of a message.
_PREFIX = re.compile(
    r"^(?:[A-Z][a-z]{2}\s+[0-9]+ [0-9:]{8} \S+ |[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.+Z-]+ (?:\S+ )?)?(?:kernel: ?)?"
    r"(?:\[\s*[0-9.]+\] ?)?(?:NVRM: +)?"
)
# Colours and other orders to a terminal (ECMA-48), as ``script``, CI logs and a pasted prompt have them.
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_XID_PAGE, _FABRIC_PAGE = "gpus.xid", "fabric.errors"
_FABRIC_WORDS = ("fatal error", "multicast team", "system topology", "trunk port failure")
_FABRIC_STARTED = re.compile(r"Started (?:nvidia-fabricmanager\.service|NVIDIA fabric manager)")
# A DKMS module of the driver, as dkms, make, dpkg and gcc name it: nvidia-fs and the like are others.
_OURS = re.compile(
    r"\bnvidia(?:-current|-open|-srv|-[0-9]+)?(?:-open)?(?:/[0-9]|\([0-9]+\)|\.ko)|\bnvidia-(?:dkms|kernel)"
    r"|\bmodule:? nvidia(?![\w-])|\bnvidia\S*/\S+\.[cho]\b"
)
# apt's two closing lines: the installed packages are broken, or only what was asked for cannot be met.
_SET_BROKEN, _REQUEST_UNMET = "unmet dependencies. try", "unable to correct problems, you have held broken packages"
_HOLDS = re.compile(r"on hold|held packages|kept back|apt-mark|package not in .*database")
# characters of an error that are enough to know it by
_LEAST = 18
# characters of a log that are looked at, from its end
MOST = 64_000_000
# lines up to which a text is one message, with words of any two lines together
_PASTE = 400
# lines of a log on each side of one that may belong to its message
_CONTEXT_LINES = 8
# places of a log at which a pattern is tried over several lines
_HITS = 200


@dataclass(frozen=True)
class Match:
    """A finding that knows a text: the line that it knew, and how much of it."""

    page: Page
    line: str
    # characters that matched: more of them is surer
    length: int
    # how many lines it knew
    lines: int


class _Text:
    """A text by its lines, and where a word stands in it: most of a log holds no word of any pattern."""

    def __init__(self, text: str) -> None:
        plain = _TERMINAL.sub("", text[-MOST:])
        self.lines = [line for line in (line.strip() for line in plain.splitlines()) if line]
        self.lower = "\n".join(self.lines).lower()
        # lower() keeps the number of lines, if not of characters.
        self.short = len(self.lines) <= _PASTE
        self._at: dict[str, list[int]] = {}

    def with_any(self, words: Sequence[str]) -> list[int]:
        """Numbers of the lines that hold one of these words (in lower case); all lines where there are no words."""
        if not words:
            return list(range(len(self.lines)))
        return sorted({number for word in words for number in self._with(word)})

    def _with(self, word: str) -> list[int]:
        if word not in self._at:
            found, at, number, counted = [], self.lower.find(word), 0, 0
            while at >= 0:
                number += self.lower.count("\n", counted, at)
                found.append(number)
                counted = at
                end = self.lower.find("\n", at)
                at = self.lower.find(word, end) if end >= 0 else -1
            self._at[word] = found
        return self._at[word]

    def messages(self, numbers: Sequence[int]) -> Iterator[str]:
        """The lines of a message as one, without what a log puts before them; of a log those around these lines."""
        if self.short:
            yield _joined(self.lines)
            return
        last = -1
        for number in numbers[:_HITS]:
            if number > last:
                last = number + _CONTEXT_LINES
                yield _joined(self.lines[max(0, number - _CONTEXT_LINES) : last + _CONTEXT_LINES + 1])


def _joined(lines: Sequence[str]) -> str:
    return " ".join(_PREFIX.sub("", line).strip() for line in lines)


def matches(text: str) -> list[Match]:
    """Return the findings that know an error or a log: causes before what follows from them, messengers last.

    Every line is tried, and the whole with its lines joined: the driver and apt break their messages over several. Of a log
    (more than a paste) only lines around those that hold a word of the pattern are joined.
    """
    given = _Text(text)
    found = [match for page in pages.all_pages() if (match := _match(page, given))]
    if any(match.page.code == "kernel.other_module" for match in found) and not _OURS.search(given.lower):
        # dkms says of every module that its build failed
        found = [match for match in found if match.page.code != "kernel.build_failed"]
    denied = _denied(given.lower, {match.page.code for match in found})
    found = [match for match in found if match.page.code not in denied]
    return _ordered([known for match in found if (known := _judged(match, given))])


def _denied(text: str, codes: set[str]) -> set[str]:
    """Codes that apt's closing line denies, of a text that lists unmet dependencies: holds, unless it shows one too."""
    broken = _SET_BROKEN in text
    # A driver's own family has pages that say more.
    of_driver = codes & {"driver.mixed_versions", "apt.mixed_origins"}
    if "depends:" not in text or not broken and (_REQUEST_UNMET not in text or of_driver):
        return set()
    holds = set() if _HOLDS.search(text) else {"holds.block_change", "holds.not_installed"}
    return holds if broken else {"dpkg.unmet", *holds}


def _judged(match: Match, given: _Text) -> Match | None:
    """Errors of the driver are judged together: what stands at the text's end counts, and its number says what to do."""
    if match.page.code == _FABRIC_PAGE:
        return _of_fabric(match, given)
    if match.page.code != _XID_PAGE:
        return match
    lines = [
        given.lines[number] for number in given.with_any(("xid", "linux version", "nvrm: loading", "was successfully"))
    ]
    rows = xid.read(((0, None, line) for line in lines), load_catalog().xids)
    # Xid 79 has its own page.
    others = [row for row in rows if row.number != 79]
    if not others:
        return None
    stand = xid.standing(others)
    row = stand[0] if stand else others[-1]
    repair = row.repair if not row.ended else f"nothing: {row.ended}"
    said = {
        "title": row.told,
        "repair": repair + (f"; {row.note}" if row.note else ""),
        "level": {"fail": "error", "warn": "warning", "pass": "note"}[row.status],
        # what needs no repair explains nothing
        "messenger": not stand,
    }
    return Match(match.page.model_copy(update=said), row.line, match.length, match.lines)


def _of_fabric(match: Match, given: _Text) -> Match | None:
    """The worst error of fabric manager since its last start in the text; None where the catalogue requires nothing."""
    numbers = given.with_any(_FABRIC_WORDS)
    starts = [number for number in given.with_any(["started"]) if _FABRIC_STARTED.search(given.lines[number])]
    since = [number for number in numbers if number > max(starts, default=-1)]
    ended = bool(numbers) and not since
    lines = [given.lines[number] for number in since or numbers] or [match.line]
    rows = [row for line in lines if (row := fabric.parse(line, load_catalog().xids))]
    if not rows:
        return None
    row = min(rows, key=lambda row: row.status != "fail")
    said = {
        "title": f"fabric manager: {row.meaning}",
        "repair": "nothing: the service was started since" if ended else row.repair,
        "level": "note" if ended else "error" if row.status == "fail" else "warning",
        "messenger": ended,
    }
    return Match(match.page.model_copy(update=said), row.words, match.length, match.lines)


def _ordered(found: Sequence[Match]) -> list[Match]:
    """By what the pages say of each other, never by length alone: a summary is often the longest line of a text.

    A page that is a symptom of another one comes behind it, where another line of the text names that one; a note behind errors.
    """
    left = sorted(found, key=lambda match: (match.page.messenger, -match.length, pages.area_rank(match.page.code)))
    ordered: list[Match] = []
    while left:
        first = next((match for match in left if not any(_explains(other, match) for other in left)), left[0])
        left.remove(first)
        ordered.append(first)
    return ordered


def _explains(cause: Match, match: Match) -> bool:
    behind = match.page.level == "note" and cause.page.level == "error"
    return (
        (behind or cause.page.code in match.page.symptom_of)
        and cause.line not in match.line
        and match.line not in cause.line
    )


def traps(text: str, catalog: Catalog) -> list[tuple[Trap, str]]:
    """Return the catalog's known errors that a text holds, the longest match first, each with the line that it knew.

    They are about programs of users more than about hosts: what no rule can see on a host is known here anyway.
    """
    given = _Text(text)
    whole = _joined(given.lines) if given.short else ""
    found: list[tuple[int, Trap, str]] = []
    for trap in catalog.traps:
        for words in sorted(_known(trap), key=len, reverse=True):
            numbers = given.with_any([words])
            if numbers:
                found.append((len(words), trap, given.lines[numbers[0]]))
                break
            # a terminal or a mail broke the line
            if whole and (at := whole.lower().find(words)) >= 0:
                found.append((len(words), trap, whole[at : at + 240]))
                break
    return [(trap, line) for _, trap, line in sorted(found, key=lambda row: -row[0])]


def _known(trap: Trap) -> list[str]:
    """Pieces of an error that stand in it literally: what the catalog leaves open (…, NNN, X) divides them."""
    if trap.kind != "error":
        return []
    pieces = [
        piece.strip(" \"'<>()")
        for words in (trap.match, *trap.also)
        for piece in re.split(r"\.\.\.|…|N{2,}[.N]*|<[A-Za-z]+>|\b[XY]\b", words)
    ]
    return [piece.lower() for piece in pieces if len(piece) >= _LEAST]


# re itself keeps fewer than the pages have: the next host's log would compile all of them again.
@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.I)


def _match(page: Page, text: _Text) -> Match | None:
    length, known, given = 0, 0, ""
    for words in page.texts:
        nearest = text.with_any(needed(words))
        if not nearest:
            continue
        pattern = _compiled(words)
        hits = [
            (len(hit.group(0)), text.lines[number]) for number in nearest if (hit := pattern.search(text.lines[number]))
        ]
        if not hits:
            for joined in text.messages(nearest):
                whole = pattern.search(joined)
                if whole:
                    hits.append((len(whole.group(0)), _shortened(joined, whole)))
        known += len(hits)
        if hits and hits[-1][0] > length:
            length, given = hits[-1]
    return Match(page, given, length, known) if known else None


def _shortened(joined: str, match: re.Match[str]) -> str:
    start, end = match.span()
    return ("… " if start else "") + joined[start : min(end + 40, start + 240)].strip()


@cache
def needed(pattern: str) -> tuple[str, ...]:
    """Words in lower case one of which stands in every text that a pattern of ours matches; () where none is sure.

    The longest run of plain characters outside of groups, classes and what may be absent, of each alternative. No blanks: lines
    are joined with one where a message was broken.
    """
    words = []
    for branch in _branches(pattern):
        runs = [run for run in _runs(branch) if len(run) >= 3 and run.isascii()]
        if not runs:
            return ()
        words.append(max(runs, key=len).lower())
    return tuple(dict.fromkeys(words))


_TOKEN = re.compile(r"\\.|\{[0-9]*,?[0-9]*\}|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]|[^\\\[()|]", re.S)


def _branches(pattern: str) -> Iterator[list[str]]:
    """Pieces of each alternative at the top; a group is one piece."""
    branch: list[str] = []
    depth = 0
    for piece in _TOKEN.findall(pattern):
        if depth or piece in "()":
            if not depth:
                branch.append("")
            branch[-1] += piece
            depth += {"(": 1, ")": -1}.get(piece, 0)
        elif piece == "|":
            yield branch
            branch = []
        else:
            branch.append(piece)
    yield branch


def _runs(tokens: Sequence[str]) -> Iterator[str]:
    run = ""
    for piece, after in zip(tokens, [*tokens[1:], ""], strict=True):
        plain = piece[-1] if re.fullmatch(r"[A-Za-z0-9_ :'\"<>=,/@%&#;!~`-]|\\[^A-Za-z0-9\s]", piece) else ""
        if after[:1] in ("?", "*", "{") or plain.isspace():
            # may be absent, or a line's end
            plain = ""
        if plain:
            run += plain
            if after != "+":
                continue
        yield run
        run = ""
    yield run
