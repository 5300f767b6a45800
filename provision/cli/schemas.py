"""The JSON schema of every document, for the documentation and for those who read ``--json``."""

from __future__ import annotations

from typing import Any

from provision.commands.compat import CompatDocument
from provision.commands.diagnose import DiagnoseDocument, ExplainDocument
from provision.commands.drift import DriftDocument
from provision.commands.history import HistoryDocument
from provision.commands.lock import LockDocument
from provision.commands.mirror import MirrorDocument
from provision.documents import DOCUMENTS, Document
from provision.rescue.model import OfflineDocument, RescueDocument

_MODELS: tuple[type[Document], ...] = (
    *DOCUMENTS,
    CompatDocument,
    DiagnoseDocument,
    ExplainDocument,
    DriftDocument,
    HistoryDocument,
    LockDocument,
    MirrorDocument,
    OfflineDocument,
    RescueDocument,
)


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON schema of every document by its id, such as ``provision/plan/1``."""
    return {model.model_fields["schema_id"].default: model.model_json_schema(by_alias=True) for model in _MODELS}
