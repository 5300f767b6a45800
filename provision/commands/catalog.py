"""catalog: does a catalog fit together, what grew old in it, what do its sources say now. No host is asked."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pydantic import BaseModel, Field

from provision.catalog import FOLDER, Catalog, load_catalog, read_catalog, review, update
from provision.documents import Document
from provision.errors import Exit, UsageError
from provision.lib import files

_COPY = "--catalog DIR names the folder that is written; where there is none, it begins as a copy of the program's own"


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
        catalog=catalog.day,
        contradictions=review.contradictions(catalog),
        missing=review.gaps(catalog),
        stale=review.stale(catalog, today or date.today()),
        unlinked=review.unlinked(catalog),
        unsure=review.unsure(catalog),
    )
    return document.conclude([Exit.CHECK_FAILED if document.contradictions else Exit.OK])


class CatalogChange(BaseModel):
    """A row that is new ("+") or differs ("~"); note: what people wrote into it, which stays."""

    sign: str
    row: str
    fields: str
    source: str
    note: str | None


class CatalogUpdateDocument(Document):
    """How machine-readable sources differ from a catalog. left: what a person has to put in, one line each."""

    schema_id: str = Field(default="provision/catalog-update/1", alias="schema")
    folder: str
    # day of the facts, before
    catalog: str
    changes: list[CatalogChange]
    left: list[str]
    written: bool


def update_(
    folder: Path | None, sources: Sequence[str], *, yes: bool, today: date | None = None
) -> CatalogUpdateDocument:
    """Compare the catalog of a folder (None: the program's own) with sources; ``yes``: write what differs into the folder.

    Exit code 2 where something differs and nothing was written. Raises UsageError for sources and folders that cannot be read,
    for the program's own folder, and for a result that would contradict itself; nothing is written then.
    """
    if not sources:
        raise UsageError(
            "usage.arguments", "no source is named", hint="--from python=PLACE, and others (docs/catalog.md)"
        )
    own = load_catalog()
    target = folder if yes else None
    if yes and (target is None or target.resolve() == FOLDER.resolve()):
        raise UsageError("catalog.folder", "the catalog of the program itself is not written", hint=_COPY)
    catalog = own if folder is None or (target and not target.exists()) else read_catalog(folder)
    difference = update.compare(catalog, sources, today or date.today())
    if target:
        _write(catalog, target, difference.changes)
    changes = [
        CatalogChange(
            sign=c.sign, row=c.where, fields=update.shown(c.fields, c.sign == "+"), source=c.row.origin[1], note=c.note
        )
        for c in difference.changes
    ]
    document = CatalogUpdateDocument(
        folder=str(folder or own.folder), catalog=catalog.day, changes=changes, left=difference.left, written=yes
    )
    return document.conclude([Exit.CHANGES if changes and not yes else Exit.OK])


def _write(catalog: Catalog, folder: Path, changes: Sequence[update.Change]) -> None:
    """Write a catalog with changes into a folder, once all of it was read back and contradicts itself nowhere anew."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in catalog.folder.glob("*.yml")}
    before = dict(texts) if catalog.folder == folder else {}
    for name in {change.row.table[0] for change in changes}:
        own = [change for change in changes if change.row.table[0] == name]
        texts[f"{name}.yml"] = update.edited(texts[f"{name}.yml"], own)
    tried = Path(tempfile.mkdtemp(prefix="provision-catalog-"))
    try:
        for name, text in texts.items():
            (tried / name).write_text(text, encoding="utf-8")
        found = review.contradictions(read_catalog(tried))
    finally:
        shutil.rmtree(tried)
    known = review.contradictions(catalog)
    new = [line for line in found if line not in known]
    if new:
        hint = "a row that it needs is missing: docs/catalog.md says which; put it into the folder first"
        raise UsageError(
            "catalog.contradiction", "what the sources say does not fit this catalog", because=new, hint=hint
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if before.get(name) != text:
            files.write(folder / name, text, _COPY)
