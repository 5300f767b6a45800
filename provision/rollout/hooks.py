"""Drain and resume hooks: what the inventory says (gpu_rollout_drain, gpu_rollout_resume), checked, and what went wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from provision.errors import Issue, UsageError

Phase = Literal["drain", "resume"]
# Beyond the command's own limit: to end it, and for the way there and back.
SPARE_SECONDS = 30.0


@dataclass(frozen=True)
class Hook:
    """A command of the owner's. on: controller or host; timeout: seconds."""

    command: tuple[str, ...]
    on: str = "host"
    timeout: float = 600

    def environment(self, phase: str, host: str, run: str, wave: int) -> dict[str, str]:
        """Return the command's environment."""
        return {
            "GPU_ROLLOUT_HOST": host,
            "GPU_ROLLOUT_PHASE": phase,
            "GPU_ROLLOUT_RUN": run,
            "GPU_ROLLOUT_WAVE": str(wave),
        }


def hook_of(host: str, values: Mapping[str, Any], phase: Phase) -> Hook | None:
    """Return the hook of a host's role variables, None where there is none. Raises UsageError for one that cannot be run."""
    given = values.get(f"gpu_rollout_{phase}") or {}
    if not given:
        return None
    command = tuple(str(word) for word in given.get("command") or ())
    if not command or not command[0]:
        raise UsageError(
            "usage.hook",
            f"gpu_rollout_{phase} has no command",
            host=host,
            hint="command: a list, the program first: [scontrol, update, 'nodename={{ inventory_hostname }}', state=resume]",
        )
    timeout = float(given.get("timeout") or 600)
    if timeout < 0:
        raise UsageError(
            "usage.hook", f"gpu_rollout_{phase}: timeout {timeout:.0f}", host=host, hint="seconds, more than 0"
        )
    return Hook(command, str(given.get("on") or "host"), timeout)


def hooks_of(host: str, values: Mapping[str, Any]) -> dict[str, Hook]:
    """Return the hooks of a host by phase. Raises UsageError where a resume hook would never run."""
    found = {phase: hook for phase in ("drain", "resume") if (hook := hook_of(host, values, phase))}
    if "resume" in found and "drain" not in found:
        raise UsageError(
            "usage.hook",
            "gpu_rollout_resume without gpu_rollout_drain: it would never run",
            host=host,
            hint='give a drain hook too: ["true"] where there is nothing to drain',
        )
    return found


def judge(phase: str, host: str, hook: Hook, answer: Mapping[str, Any], again: str) -> Issue | None:
    """Return what is wrong with a hook that ran, None for one that did its work. answer: of hookrun.run; again: see failed."""
    if answer["rc"] == 0:
        return None
    if answer["timed_out"]:
        how = f"did not end within {hook.timeout:.0f} s"
    elif answer["rc"] is None:
        how = "could not be started"
    elif answer["rc"] < 0:
        how = f"was ended by signal {-answer['rc']}"
    else:
        how = f"ended with {answer['rc']}"
    return failed(
        phase, host, hook, how, [line for line in str(answer["output"]).splitlines() if line.strip()][-6:], again
    )


def failed(phase: str, host: str, hook: Hook, how: str, because: list[str], again: str) -> Issue:
    """What a hook that did not do its work means for its host. again: the command that goes on with the run."""
    where = "here" if hook.on == "controller" else "on the host"
    program = hook.command[0]
    if phase == "drain":
        return Issue(
            code="rollout.drain_failed",
            host=host,
            message=f"not drained, so not changed: {program} ({where}) {how}",
            because=because,
            hint=f"fix the hook (gpu_rollout_drain), then: {again}",
        )
    return Issue(
        code="rollout.resume_failed",
        host=host,
        message=f"STILL DRAINED: the resume hook {program} ({where}) {how}",
        because=because,
        hint=f"resume it by hand, or have it tried again: {again}",
    )
