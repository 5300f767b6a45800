"""The plan of one host: what has to change, and why. Data only."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from pydantic import BaseModel, Field

from provision.errors import Exit, Issue

Status = Literal["converged", "changes", "blocked", "unreachable", "failed"]


class Reason(BaseModel):
    """One choice that was made: what was decided, its value, and why."""

    what: str
    value: str
    because: str


class PackageChange(BaseModel):
    action: Literal["install", "upgrade", "downgrade", "remove"]
    name: str
    # None for removals
    version: str | None = None
    from_version: str | None = None
    download_bytes: int = 0
    disk_bytes: int = 0
    # of the plan that brings it
    part: str = "driver"
    # what it belongs to, where that is not the driver: "CUDA 12.4", "cuDNN", "NCCL"
    group: str = ""


class Step(BaseModel):
    """One thing that apply will do. id: sources, packages, hold, boot, environment, reboot, …; part: of which part.

    sign, what and value are its line in a plan at a glance: ``+ driver  580.126.20 open, signed``. value without what: the
    files among the details say it.
    """

    id: str
    part: str = "driver"
    title: str
    because: str
    details: list[str] = Field(default_factory=list)
    # added, changed, removed, interrupts work
    sign: Literal["+", "~", "-", "!"] = "~"
    what: str = ""
    value: str = ""


class Reboot(BaseModel):
    needed: bool = False
    because: list[str] = Field(default_factory=list)
    policy: str = "when_idle"
    # processes that use the GPUs
    blocked_by: list[str] = Field(default_factory=list)


class HostPlan(BaseModel):
    host: str
    status: Status
    # "2 x H100 SXM5 80GB"
    gpus: list[str] = Field(default_factory=list)
    # release: "24.04"
    ubuntu: str = ""
    # one line: "driver 580.126.20 open, signed modules, from the Ubuntu archive"
    summary: str = ""
    decisions: list[Reason] = Field(default_factory=list)
    steps: list[Step] = Field(default_factory=list)
    packages: list[PackageChange] = Field(default_factory=list)
    download_bytes: int = 0
    disk_bytes: int = 0
    reboot: Reboot = Reboot()
    blockers: list[Issue] = Field(default_factory=list)
    warnings: list[Issue] = Field(default_factory=list)
    # what the roles carry out; see the parts' plans
    spec: dict[str, Any] = Field(default_factory=dict)

    @property
    def exit_code(self) -> Exit:
        return {
            "converged": Exit.OK,
            "changes": Exit.CHANGES,
            "blocked": Exit.REFUSED,
            "unreachable": Exit.UNREACHABLE,
            "failed": Exit.FAILED,
        }[self.status]

    def lines(self) -> list[str]:
        """The plan as text for plain Ansible, a line a change; the command's own layout folds many hosts."""
        found = [f"{step.sign} {step.what or step.part}: {step.value or step.because}" for step in self.steps]
        counts = Counter(change.action for change in self.packages)
        if counts:
            found.append("packages: " + ", ".join(f"{count} to {action}" for action, count in counts.items()))
        if self.reboot.needed and not any(step.id == "reboot" for step in self.steps):
            found.append(f"! reboot: {'; '.join(self.reboot.because)}")
        if self.reboot.blocked_by:
            found.append(f"! in use now: {', '.join(self.reboot.blocked_by)}")
        return (found or ["nothing to change"]) + [f"warning: {warning.message}" for warning in self.warnings]
