"""catalog check for people: how many of each kind, then the lines; facts that are not sure with -v alone."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from provision.commands.catalog import CatalogDocument
from provision.render.base import indented, text

_KINDS = {
    "contradictions": "rows that contradict each other",
    "missing": "facts that are missing for rows that are there",
    "stale": "sources of what moves, older than 90 days",
    "unlinked": "sources without a link",
    "unsure": "facts that are not sure",
}


def view(document: CatalogDocument, verbosity: int) -> Iterable[RenderableType]:
    """Return what is to be printed of a review of the catalog."""
    yield text(document.folder, f"  facts of {document.catalog}", styles=("bold", ""))
    for name, words in _KINDS.items():
        lines = getattr(document, name)
        short = name == "unsure" and lines and not verbosity
        yield text(f"{len(lines):4}", f"  {words}", " (-v lists them)" if short else "", styles=("bold", "", "dim"))
        for line in () if short else lines:
            yield indented(text(line), 6)
