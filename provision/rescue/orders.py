"""A round as the role gpu_rescue carries it out, and what came back of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from provision.diagnose.finding import Diagnosis
from provision.errors import Issue
from provision.rescue.model import History, Round
from provision.rescue.rounds import Limits, next_level, to_mend
from provision.rescue.session import environment_of, roles_of

# Carried out by tasks of their own, not by the module rescue_step.
_NOT_STEPS = ("reboot", "apply", "realign", "purge", "undo")


def orders(found: Round | None, values: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Return what the role gets for one host; see plugins/modules/rescue_round.py. found: None for nothing to do."""
    steps = [step for step in found.steps if step.ok is None] if found else []
    reboots = [step for step in steps if step.action == "reboot"]
    plan = found.plan if found else None
    return {
        "kind": found.kind if found else "none",
        "steps": [
            {"action": step.action, "words": step.words, "args": step.args}
            for step in steps
            if step.action not in _NOT_STEPS
        ],
        "plan": plan.model_dump(mode="json") if plan else None,
        "apt": plan.spec["apt"] if plan else None,
        "roles": roles_of(plan),
        "purge": _arguments(found.purge.arguments(""), "snapshot") if found and found.purge else None,
        "undo": _arguments(found.undo.arguments(), "action") if found and found.undo else None,
        "reboot": {
            "needed": bool(reboots),
            "because": [step.words for step in reboots],
            "policy": "never" if limits.local else limits.reboot,
            "timeout": int(values.get("nvidia_driver_reboot_timeout") or 900),
        },
        "stop_holders": limits.stop_holders,
        "lock_timeout": int(values.get("nvidia_driver_lock_timeout") or 600),
        "environment": environment_of(values),
        "reason": "rescue: " + ", ".join(dict.fromkeys(step.finding for step in steps)),
        "paths": paths_of(steps),
        # Of a play that looks again by itself; see plugins/action/rescue_round.py.
        "left": [],
        "history": {},
        "again": False,
    }


def _arguments(arguments: dict[str, Any], but: str) -> dict[str, Any]:
    """Arguments of a module, but for one that the role gives."""
    return {key: value for key, value in arguments.items() if key != but}


def paths_of(steps: Iterable[Any]) -> list[str]:
    """Files that steps will write, move or rename: the snapshot keeps them."""
    found: list[str] = []
    for step in steps:
        args = step.args
        found += [str(path) for key in ("paths", "files") for path in args.get(key) or ()]
        found += [str(entry["file"]) for entry in args.get("entries") or ()]
    return list(dict.fromkeys(found))


def record(history: History, done: Sequence[Mapping[str, Any]], failed: Issue | None = None) -> None:
    """Write into the last round of a history what came of it.

    done: the answers of rescue_step, in the order of the steps that it was given. What other tasks do has been done where
    nothing failed: a play that goes on says so. failed: what ended the play.
    """
    if not history.rounds:
        return
    answers = list(done)
    for step in history.rounds[-1].steps:
        if step.ok is not None:
            continue
        if step.action not in _NOT_STEPS and answers:
            answer = answers.pop(0)
            step.ok, step.changed = bool(answer["ok"]), bool(answer["changed"])
            step.said = [str(line) for line in answer.get("said") or ()]
            step.code, step.hint = answer.get("code"), answer.get("hint")
        elif failed is not None:
            step.ok, step.said = False, [failed.message, *failed.because[:6]]
            step.code, step.hint = failed.code, failed.hint
        elif step.action in _NOT_STEPS:
            step.ok, step.changed = True, True


def left_text(diagnosis: Diagnosis, history: History) -> list[str]:
    """What stays broken, a line each, and what the next level would be."""
    errors = [finding for finding in to_mend(diagnosis) if finding.level == "error"]
    lines = [f"{finding.code}: {finding.message}" for finding in errors]
    lines += [line for line in diagnosis.unknown[:1] if not errors]
    following = next_level(errors, history)
    return [*lines, *([f"next: {following}"] if following and lines else [])]
