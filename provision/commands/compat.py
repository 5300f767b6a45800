"""compat: what fits together, from the catalog alone. No host is asked."""

from __future__ import annotations

from datetime import date

from provision.catalog import load_catalog
from provision.compat import compat
from provision.compat.answer import CompatAnswer, CompatRequest
from provision.documents import Document
from provision.errors import Exit, UsageError


class CompatDocument(CompatAnswer, Document):
    """compat's answer as a command's document; errors holds the conflicts, hosts is empty."""


def run(request: CompatRequest) -> CompatDocument:
    """Answer what fits: exit code 0 when it does, 5 when items clash. UsageError for what does not exist."""
    if not any(request.model_dump().values()):
        raise UsageError(
            "usage.arguments", "nothing to compare", hint="provision compat --gpu 'RTX 3090' --cuda 12.4 --torch 2.6"
        )
    answer = compat(request, load_catalog(), today=date.today())
    document = CompatDocument(errors=answer.conflicts, **dict(answer))
    return document.conclude([Exit.OK if answer.fits else Exit.REFUSED])
