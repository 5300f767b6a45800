"""catalog for people. check: how many of each kind, then the lines; facts that are not sure with -v alone. update: as a plan."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import RenderableType

from provision.commands.catalog import CatalogDocument, CatalogUpdateDocument
from provision.render.base import indented, text

_KINDS = {
    "contradictions": "rows that contradict each other",
    "missing": "facts that are missing for existing rows",
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


def updated(document: CatalogUpdateDocument) -> Iterable[RenderableType]:
    """Return what is to be printed of a comparison with sources."""
    yield text(document.folder, f"  facts of {document.catalog}", styles=("bold", ""))
    for change in document.changes:
        yield text(f"  {change.sign} ", change.row, styles=("green" if change.sign == "+" else "yellow", "bold"))
        yield indented(text(change.fields), 6)
        if change.note:
            yield indented(text("people's note stays: ", change.note, styles=("dim",)), 6)
    if document.left:
        yield text("left to you", styles=("bold",))
        for line in document.left:
            yield indented(text(line), 2)
    if not document.changes:
        yield text("nothing to change")
    elif document.written:
        yield text(f"written into {document.folder}; provision compat --catalog {document.folder} answers from it")
    else:
        yield text("nothing was written: --catalog DIR --yes writes it into that folder")
