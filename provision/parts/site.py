"""The site's own checks (gpu_verify_site): a program's one answer becomes a verdict like ours. Pure."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from provision.parts.proof import Bounds, Row, Verdict

_CONTRACT = "docs/prove.md says what a check of the site has to answer: one JSON object with status and message"
_LINES = 12


class Answer(BaseModel):
    """What a check of the site writes to its output."""

    model_config = ConfigDict(extra="ignore", strict=True)

    status: Literal["pass", "warn", "fail", "skip"]
    message: str = Field(min_length=1, max_length=500)
    hint: str | None = Field(default=None, max_length=500)
    evidence: list[str] = Field(default=[], max_length=100)


def judge(found: Row, bounds: Bounds) -> Verdict:
    """Return (status, message, evidence, hint, numbers) for site.check."""
    if found.get("refused"):
        return "fail", f"it was not run: {found['refused']}", [], "gpu_verify_site names program and user", {}
    said = [line for line in str(found["err"]).splitlines() if line.strip()][-_LINES:]
    if found["ended"]:
        why = f"did not end within {found['timeout_s']:g} s" if found["ended"] == "timeout" else "writes without end"
        return "fail", f"it {why} and was stopped", said, _CONTRACT, {}
    try:
        answer = Answer.model_validate(json.loads(found["out"]))
    except (ValueError, RecursionError, ValidationError):
        lines = [line for line in str(found["out"]).splitlines() if line.strip()][:3]
        evidence = [f"exit code {found['rc']}", *(f"output: {line[:200]}" for line in lines), *said]
        return "fail", "it gave an invalid answer", evidence, _CONTRACT, {}
    evidence = answer.evidence[:_LINES]
    if answer.status == "pass" and found["rc"] != 0:
        return "fail", f"it says pass and ended with {found['rc']}: {answer.message}", [*evidence, *said], _CONTRACT, {}
    return answer.status, answer.message, evidence, answer.hint, {}
