"""The JSON schema of every document, for the documentation and for those who read ``--json``."""

from __future__ import annotations

from typing import Any

from provision.commands.catalog import CatalogDocument, CatalogUpdateDocument
from provision.commands.compat import CompatDocument
from provision.commands.diagnose import DiagnoseDocument, ExplainDocument
from provision.commands.dossier import DossierDocument
from provision.commands.drift import DriftDocument
from provision.commands.history import HistoryDocument
from provision.commands.lock import LockDocument
from provision.commands.mirror import MirrorDocument
from provision.commands.report import ReportDocument
from provision.documents import DOCUMENTS, Document
from provision.rescue.model import OfflineDocument, RescueDocument

MODELS: tuple[type[Document], ...] = (
    *DOCUMENTS,
    CatalogDocument,
    CatalogUpdateDocument,
    CompatDocument,
    DiagnoseDocument,
    ExplainDocument,
    DriftDocument,
    HistoryDocument,
    LockDocument,
    MirrorDocument,
    OfflineDocument,
    DossierDocument,
    ReportDocument,
    RescueDocument,
)


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of every document by its id, such as ``provision/plan/1``.

    Each fits the documents of one kind and nothing else: the id is a constant, every field is required, objects are closed.
    """
    found = {}
    for model in MODELS:
        schema = model.model_json_schema(by_alias=True, mode="serialization")
        name = model.model_fields["schema_id"].default
        schema["properties"]["schema"] = {"const": name}
        found[name] = _closed(schema)
    return found


def _closed(part: Any) -> Any:
    """A schema whose objects have the fields that it names, all of them and no other."""
    if isinstance(part, list):
        return [_closed(item) for item in part]
    if not isinstance(part, dict):
        return part
    part = {key: _closed(value) for key, value in part.items()}
    if part.get("type") == "object" and "properties" in part:
        part |= {"required": list(part["properties"]), "additionalProperties": False}
    return part
