"""The checks that run something, of all parts: what a host measured becomes what is to be said of it; see proof."""

from __future__ import annotations

from typing import Any

from provision.lib.findings import Check
from provision.lib.text import one_line
from provision.parts import site
from provision.parts.proof import Bounds, Judging, Measured, Proofs, Verdict, no_answer
from provision.parts.registry import PARTS

_NO_CARD = (
    "see driver.smi and gpu.count; ldconfig -p | grep -e libcuda -e libnvidia-ml names the files that load; a host where"
    " nothing can compute says so with gpu_verify_excuse"
)
PROOFS: dict[str, Judging] = {code: judge for part in PARTS for code, judge in part.proofs.items()}
PROOFS["site.check"] = site.judge


def judged(answer: object, bounds: Bounds) -> list[Check]:
    """Judge what a host's program ``prove`` answered. Raises HostFailedError for what is no answer."""
    return [judge(measured, bounds) for measured in Proofs.of_host(answer).measured]


def judge(measured: Measured, bounds: Bounds) -> Check:
    """Judge what was measured for one check; an answer that is none fails it."""
    if measured.skip is not None:
        return _check(measured, (measured.status, measured.skip, measured.evidence, None, {}), bounds)
    try:
        return _check(measured, PROOFS[measured.id.split("[")[0]](measured.found, bounds), bounds)
    except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        what = measured.id.partition("[")[2].removesuffix("]") or "the host"
        return _check(measured, no_answer(what, f"{type(error).__name__}: {error}"), bounds)


def _check(measured: Measured, verdict: Verdict, bounds: Bounds) -> Check:
    """A host that should have cards fails a check that finds none to use, unless the inventory excuses that by name."""
    status, message, evidence, hint, numbers = verdict
    not_run: Any = measured.found.get("why", []) if status in ("pass", "warn") else []
    if status == "no_card" and bounds.gpus and measured.id.split("[")[0] not in bounds.excused:
        status, hint = "fail", hint or _NO_CARD
    elif status in ("no_card", "not_run"):
        if status == "not_run" or bounds.gpus:
            message = message if status == "not_run" else f"excused (gpu_verify_excuse): {message}"
            not_run = measured.found.get("why") or [message]
        status, hint = "skip", None
    return Check.model_validate(
        {
            "id": measured.id,
            "status": status,
            "message": one_line(message),
            "evidence": [one_line(line) for line in evidence],
            "hint": hint and one_line(hint),
            "seconds": measured.seconds,
            "numbers": numbers,
            "not_run": [one_line(line) for line in not_run],
        }
    )
