"""What a check that runs something is judged by: what the host measured, and what the inventory and the catalog say.

The host's program (plugins/module_utils/prove) measures and judges nothing. Each part has the judges of its checks beside
it, as a mapping ``PROOFS`` from the check's code to a function of what was measured and ``Bounds``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.prove.outcome import Outcome
from provision.catalog.models.gpus import Bandwidth
from provision.lib.text import Answer, DataOfLines, Line

Row = Mapping[str, Any]
# status (pass, warn, fail, skip; not_run and no_card, see prove.proofs.skipped), message, evidence, hint, numbers
Verdict = tuple[str, str, list[str], str | None, dict[str, float]]
Judging = Callable[[Row, "Bounds"], Verdict]


class Measured(Answer):
    """What a host says of one check. skip: why nothing could be measured, status: see prove.proofs.skipped; found: what was
    measured, by names that its judge knows."""

    id: Line
    seconds: float = 0.0
    skip: Line | None = None
    status: Literal["skip", "not_run", "no_card"] = "skip"
    evidence: list[Line] = []
    found: dict[Line, DataOfLines] = {}


class Proofs(Answer):
    """The answer of the host's program ``prove``."""

    measured: list[Measured]


@dataclass(frozen=True)
class Bounds:
    """What measurements are held against."""

    # "8x H100" or "8"; empty: as many as there are
    cards: str = ""
    # how many the driver should have; 0: checks that find no card to use are skipped
    gpus: int = 0
    # names of checks that are skipped, not failed, where they find no card to use (gpu_verify_excuse)
    excused: Sequence[str] = ()
    # None: rates are not judged
    bandwidth: Bandwidth | None = None
    # of allreduce, peer, host, memory: GB/s of the user's own in place of the catalog's
    least: Mapping[str, float] = field(default_factory=dict)
    # bus ids of cards of which the driver says that they need nothing
    recovered: Sequence[str] = ()
    # of cudnn, nccl: versions that headers or packages on the host say
    installed: Mapping[str, str] = field(default_factory=dict)


def no_answer(what: str, said: str) -> Verdict:
    """What is said of an answer that is none: programs that somebody else may have written give them."""
    return "fail", f"{what} gave an invalid answer", [said], "check what it imports", {}


def outcome(row: Row) -> Outcome:
    """How a job on the host ended, as its own code has it."""
    return Outcome(**row)
