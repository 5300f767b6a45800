"""catalog: does a catalog fit together, what grew old in it, and what is not sure. No host is asked."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from pydantic import Field

from provision.catalog import load_catalog, read_catalog, review
from provision.documents import Document
from provision.errors import Exit


class CatalogDocument(Document):
    """What a review of the catalog found, one line each; only contradictions make it fail."""

    schema_id: str = Field(default="provision/catalog/1", alias="schema")
    folder: str
    # day of the facts
    catalog: str
    contradictions: list[str]
    missing: list[str]
    stale: list[str]
    unlinked: list[str]
    unsure: list[str]


def check(folder: Path | None, *, today: date | None = None) -> CatalogDocument:
    """Review the catalog of a folder (None: the program's own): exit code 3 where rows contradict each other.

    Raises UsageError for a folder that holds no catalog.
    """
    catalog = read_catalog(folder) if folder else load_catalog()
    document = CatalogDocument(
        folder=str(catalog.folder),
        catalog=str(catalog.drivers.as_of),
        contradictions=review.contradictions(catalog),
        missing=review.gaps(catalog),
        stale=review.stale(catalog, today or date.today()),
        unlinked=review.unlinked(catalog),
        unsure=review.unsure(catalog),
    )
    return document.conclude([Exit.CHECK_FAILED if document.contradictions else Exit.OK])
