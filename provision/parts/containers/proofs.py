"""The check that starts a container with the GPUs. What the host measured is judged here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.parts.proof import Bounds, Judging, Row, Verdict

# How an attempt fails, and what helps; the first that is in the output counts.
FAILURES = (
    (
        r"could not select device driver",
        "the daemon does not know NVIDIA's toolkit",
        "systemctl restart docker, where the toolkit came after it; see container.runtime",
    ),
    (
        r"unknown or invalid runtime name: nvidia",
        "the daemon has no runtime nvidia",
        "provision apply registers it; see container.runtime",
    ),
    (
        r"cgroup subsystem devices not found",
        "the container toolkit is too old for cgroup v2",
        "1.8.0 is the first that works; see container.packages",
    ),
    (
        r"unresolvable CDI devices|CDI device injection failed|unknown CDI",
        "no CDI specification knows the GPUs",
        "see container.cdi: systemctl restart nvidia-cdi-refresh.service, or nvidia-ctk cdi generate",
    ),
    (
        r"CDI.*(?:not (?:enabled|supported)|disabled)|custom device.*nvidia\.com",
        "CDI is switched off in this daemon",
        "container_toolkit_docker_cdi: always",
    ),
    (
        r"Failed to initialize NVML: Unknown Error",
        "the container lost its GPUs",
        "see container.links: a systemctl daemon-reload does that",
    ),
    (
        r"Driver/library version mismatch",
        "the driver on the disk is another one than is loaded",
        "see driver.versions; a reboot is due",
    ),
    (
        r"driver not loaded|libnvidia-ml\.so\.1|nvml error",
        "the toolkit does not find the driver",
        "see driver.versions and driver.devices",
    ),
    (
        r"stat failed: .*: no such file|failed to fulfil mount request|lstat .*no such file",
        "what is to be mounted is not there: a CDI specification or cache of another driver",
        "see container.cdi; ldconfig, then systemctl restart nvidia-cdi-refresh.service",
    ),
    (
        r"exec.*nvidia-smi.*(?:not found|no such file)",
        "nvidia-smi did not reach the container",
        "see container.runtime; nvidia-container-cli list shows what the toolkit would mount",
    ),
)
_GPU_LINE = re.compile(r"^GPU \d+: ", re.M)


def judge(rc: int | None, text: str, where: str, gpus: int, seconds: float, evidence: Sequence[str]) -> Verdict:
    """Judge one attempt. rc: None where it was ended for its time; text: of both outputs.

    gpus: how many the host has, 0 not known.
    """
    seen = len(_GPU_LINE.findall(text)) if rc == 0 else 0
    lines = [line.rstrip() for line in text.splitlines() if line.strip()][-6:]
    status, message, hint = _said(rc, text, where, gpus, seen, lines)
    numbers: dict[str, float] = {"start_s": round(seconds, 2)}
    if seen:
        numbers["gpus"] = seen
    return status, message, [*evidence, *lines], hint, numbers


def _said(
    rc: int | None, text: str, where: str, gpus: int, seen: int, lines: Sequence[str]
) -> tuple[str, str, str | None]:
    """(status, message, hint) of one attempt; seen: GPUs in the container."""
    if rc is None:
        return "fail", f"{where} did not end in time", "see whether nvidia-smi answers on the host itself"
    if rc != 0:
        for pattern, message, hint in FAILURES:
            if re.search(pattern, text):
                return "fail", f"{where}: {message}", hint
        if re.search(r"No such image|image not known|manifest unknown|Unable to find image", text):
            return "not_run", f"{where}: the image is gone", None
        last = lines[-1] if lines else f"exit code {rc}"
        return "fail", f"{where}: {last}", "see container.runtime, container.cdi and journalctl -u docker"
    if not seen:
        return "fail", f"{where}: the container sees no GPU", "see container.runtime and driver.devices"
    if gpus and seen < gpus:
        what = f"{where}: the container sees {seen} GPUs, the host has {gpus}"
        return "warn", what, "see container.cdi: its specification may be older than the cards"
    return "pass", f"{where}: {seen} GPUs", None


def _run(found: Row, bounds: Bounds) -> Verdict:
    return judge(found["rc"], found["text"], found["where"], found["gpus"], found["seconds"], found["evidence"])


PROOFS: dict[str, Judging] = {"container.run": _run}
