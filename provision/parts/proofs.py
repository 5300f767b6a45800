"""The checks that run something, of all parts: what a host measured becomes what is to be said of it; see proof."""

from __future__ import annotations

from provision.lib.findings import Check
from provision.lib.text import one_line
from provision.parts.proof import Bounds, Judging, Measured, Proofs, Verdict, no_answer
from provision.parts.registry import PARTS

PROOFS: dict[str, Judging] = {code: judge for part in PARTS for code, judge in part.proofs.items()}


def judged(answer: object, bounds: Bounds) -> list[Check]:
    """Judge what a host's program ``prove`` answered. Raises HostFailedError for what is no answer."""
    return [judge(measured, bounds) for measured in Proofs.of_host(answer).measured]


def judge(measured: Measured, bounds: Bounds) -> Check:
    """Judge what was measured for one check; an answer that is none fails it."""
    if measured.skip is not None:
        return _check(measured, ("skip", measured.skip, measured.evidence, None, {}))
    try:
        return _check(measured, PROOFS[measured.id.split("[")[0]](measured.found, bounds))
    except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        what = measured.id.partition("[")[2].removesuffix("]") or "the host"
        return _check(measured, no_answer(what, f"{type(error).__name__}: {error}"))


def _check(measured: Measured, verdict: Verdict) -> Check:
    status, message, evidence, hint, numbers = verdict
    return Check.model_validate(
        {
            "id": measured.id,
            "status": status,
            "message": one_line(message),
            "evidence": [one_line(line) for line in evidence],
            "hint": hint and one_line(hint),
            "seconds": measured.seconds,
            "numbers": numbers,
        }
    )
