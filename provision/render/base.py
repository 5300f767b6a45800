"""What the views print with: a console for each stream, paragraphs that fold under their first word, columns."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, cast

import rich.text
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment, Segments
from rich.table import Table

from provision.render.text import STATUS_TEXTS, STYLES, clean, format_hosts

# A pipe has no width; wide enough that hardly anything is folded.
_PIPE_WIDTH = 160
# Text is easier to read when lines are not longer than this, however wide the terminal is.
_TEXT_WIDTH = 120
# Where a long text goes on below its first line: nothing of ours begins there.
_HANG = 3


class Text(rich.text.Text):
    """A line. Whatever is put into it is cleaned: the views use no other text."""

    def __init__(self, text: object = "", style: Any = "", **options: Any) -> None:
        super().__init__(clean(text), style, **options)

    def append(self, text: Any, style: Any = None) -> rich.text.Text:
        return super().append(text if isinstance(text, rich.text.Text) else clean(text), style)


def stacked(lines: Iterable[str]) -> rich.text.Text:
    """Return lines one below the other, for a cell of a table."""
    return rich.text.Text("\n").join(Text(line) for line in lines)


class Hanging:
    """A line that goes on further to the right where it is folded, so that no part of it looks like a line of its own."""

    def __init__(self, line: rich.text.Text, indent: int) -> None:
        self.line, self.indent = line, indent

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = max(_HANG, options.max_width - self.indent - _HANG)
        for number, part in enumerate(self.line.wrap(console, room, overflow="fold")):
            yield Padding(part, (0, 0, 0, self.indent + (_HANG if number else 0)), expand=False)


def console(file: Any, *, stderr: bool) -> Console:
    """Return a console for stdout or stderr; NO_COLOR and COLUMNS are rich's to honour."""
    terminal = file.isatty()
    width = None if terminal or "COLUMNS" in os.environ else _PIPE_WIDTH
    return Console(stderr=stderr, highlight=False, emoji=False, markup=False, width=width)


def put(where: Console, thing: RenderableType) -> None:
    """Print a thing without the blanks that columns leave at the ends of lines: text is copied out of terminals."""
    if isinstance(thing, rich.text.Text) and thing.no_wrap:
        where.print(thing, soft_wrap=True)
        return
    printed: list[Segment] = []
    thing = Hanging(thing, 0) if isinstance(thing, rich.text.Text) else thing
    for line in where.render_lines(thing, pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style, line[-1].control)
        printed += [*line, Segment.line()]
    where.print(Segments(printed), end="")


def whole(text: str, style: str = "") -> Text:
    """Return a line that the terminal breaks, not we: a break of ours in the middle of a command would be pasted with it."""
    return Text(text, style, no_wrap=True)


def text(*parts: object, styles: Sequence[str] = ()) -> Text:
    """Return parts as one text, each with its style."""
    padded = [*styles, *[""] * len(parts)]
    return cast("Text", Text.assemble(*((str(part), style) for part, style in zip(parts, padded, strict=False))))


def indented(thing: RenderableType, indent: int) -> RenderableType:
    if isinstance(thing, rich.text.Text):
        return Hanging(thing, indent)
    return Padding(thing, (0, 0, 0, indent), expand=False)


def headline(names: Sequence[str], status: str, rest: str = "", *, everything: bool = False) -> Text:
    """Return ``gpu01  to change  2 x H100``."""
    parts = [(format_hosts(names, everything=everything), "bold"), ("  ", "")]
    parts.append((STATUS_TEXTS.get(status, status), STYLES.get(status, "")))
    if rest:
        parts += [("  ", ""), (rest, "")]
    return cast("Text", Text.assemble(*parts))


def columns(
    rows: Sequence[tuple[str | rich.text.Text, str | rich.text.Text]],
    indent: int = 2,
    *,
    style: str = "bold",
    gap: int = 2,
) -> RenderableType:
    """Return a word and what is said of it, row by row; the text folds in its own column."""
    table = Table.grid(padding=(0, gap, 0, 0))
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold", max_width=_TEXT_WIDTH)
    for word, shown in rows:
        table.add_row(*(cell if isinstance(cell, rich.text.Text) else Text(cell) for cell in (word, shown)))
    return indented(table, indent)
