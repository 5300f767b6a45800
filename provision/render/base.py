"""What the views print with: a console for each stream, paragraphs that fold under their first word, columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from provision.render.words import STATUS_WORDS, STYLES, clean, hosts_in_words

# A pipe has no width; wide enough that hardly anything is folded.
_PIPE_WIDTH = 160
# Text is easier to read when lines are not longer than this, however wide the terminal is.
_TEXT_WIDTH = 120


def console(file: Any, *, stderr: bool) -> Console:
    """Return a console for stdout or stderr; NO_COLOR and COLUMNS are rich's to honour."""
    terminal = file.isatty()
    width = None if terminal or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=width)


def put(where: Console, thing: RenderableType) -> None:
    """Print a thing without the blanks that columns leave at the ends of lines: text is copied out of terminals."""
    printed: list[Segment] = []
    for line in where.render_lines(thing, pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style, line[-1].control)
        printed += [*line, Segment.line()]
    where.print(Segments(printed), end="")


def text(*parts: object, styles: Sequence[str] = ()) -> Text:
    """Return parts as one text, each with its style."""
    padded = [*styles, *[""] * len(parts)]
    return Text.assemble(*((clean(part), style) for part, style in zip(parts, padded, strict=False)))


def indented(thing: RenderableType, indent: int) -> Padding:
    return Padding(thing, (0, 0, 0, indent), expand=False)


def headline(names: Sequence[str], status: str, rest: str = "", *, everything: bool = False) -> Text:
    """Return ``gpu01  to change  2 x H100``."""
    parts = [(clean(hosts_in_words(names, everything=everything)), "bold"), ("  ", "")]
    parts.append((STATUS_WORDS.get(status, status), STYLES.get(status, "")))
    if rest:
        parts += [("  ", ""), (clean(rest), "")]
    return Text.assemble(*parts)


def columns(
    rows: Sequence[tuple[str | Text, str | Text]], indent: int = 2, *, style: str = "bold", gap: int = 2
) -> Padding:
    """Return a word and what is said of it, row by row; the text folds in its own column."""
    table = Table.grid(padding=(0, gap, 0, 0))
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold", max_width=_TEXT_WIDTH)
    for word, told in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(clean(cell)) for cell in (word, told)))
    return indented(table, indent)
