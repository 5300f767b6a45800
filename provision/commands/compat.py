"""compat: what fits together, from the catalog alone. No host is asked."""

from __future__ import annotations

from datetime import date

from pydantic import Field

from provision.catalog import Support, load_catalog
from provision.compat import compat
from provision.compat.answer import (
    CompatAnswer,
    CompatRequest,
    CudaAnswer,
    DriverAnswer,
    GpuAnswer,
    ImageAnswer,
    JaxAnswer,
    LibraryAnswer,
    Nearest,
    TensorflowAnswer,
    TorchAnswer,
)
from provision.documents import Document
from provision.errors import Exit, Issue, UsageError


class CompatDocument(Document):
    """compat's answer as a command's document; errors holds the conflicts, hosts is empty."""

    schema_id: str = Field(default="provision/compat/1", alias="schema")
    wishes: CompatRequest
    fits: bool
    support: Support | None
    conflicts: list[Issue]
    warnings: list[Issue]
    nearest: list[Nearest]
    gpus: list[GpuAnswer]
    driver: DriverAnswer
    cuda: CudaAnswer
    cudnn: LibraryAnswer | None
    nccl: LibraryAnswer | None
    torch: TorchAnswer | None
    tensorflow: TensorflowAnswer | None
    jax: JaxAnswer | None
    machine: str
    image: ImageAnswer | None
    python: list[str]
    # day of the facts
    catalog: str


def run(request: CompatRequest) -> CompatDocument:
    """Answer what fits: exit code 0 when it does, 5 when items clash. UsageError for what does not exist."""
    if not any(request.model_dump().values()):
        raise UsageError(
            "usage.arguments", "nothing to compare", hint="provision compat --gpu 'RTX 3090' --cuda 12.4 --torch 2.6"
        )
    answer = compat(request, load_catalog(), today=date.today())
    document = CompatDocument(
        errors=answer.conflicts,
        **{name: getattr(answer, name) for name in CompatAnswer.model_fields if name != "schema_"},
    )
    return document.conclude([Exit.OK if answer.fits else Exit.REFUSED])
