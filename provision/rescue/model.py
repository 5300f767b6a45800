"""What a rescue says of itself: steps, rounds, hosts. Data only."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, Field

from provision.diagnose.finding import ACTIONS, Cause
from provision.documents import Document
from provision.errors import Issue
from provision.lib.findings import Check
from provision.parts.plan import HostPlan, PackageChange
from provision.rescue.purge import PurgePlan
from provision.rescue.undo import UndoPlan

Kind = Literal["mend", "apply", "restart", "purge", "undo"]
Status = Literal[
    "well",
    "planned",
    "rescued",
    "left",
    "check_failed",
    "reboot_needed",
    "blocked",
    "failed",
    "unreachable",
    "interrupted",
    "undone",
]


class RescueStep(BaseModel):
    """One repair of one finding; after its round with what came of it."""

    # code
    finding: str
    action: str
    words: str
    args: dict[str, Any] = Field(default_factory=dict)
    # None: not carried out
    ok: bool | None = None
    changed: bool = False
    # what was done, or why it could not be
    said: list[str] = Field(default_factory=list)
    # of what could not be done
    code: str | None = None
    hint: str | None = None

    @property
    def level(self) -> int:
        # undo is none of a finding's
        return ACTIONS.get(self.action, 9)

    @property
    def key(self) -> str:
        """What makes a step the same step in a later round."""
        return json.dumps([self.finding, self.action, self.args], sort_keys=True, default=str)


class Round(BaseModel):
    """What is done before the host is read again.

    mend: steps of levels 1 and 2. apply: a plan of the inventory's roles, narrowed (levels 3 and 4). restart: modules
    loaded anew, or a reboot (level 0).
    """

    kind: Kind
    steps: list[RescueStep] = Field(default_factory=list)
    plan: HostPlan | None = None
    purge: PurgePlan | None = None
    undo: UndoPlan | None = None
    # this round ends with one
    reboot: bool = False
    # what stops for a moment, for people
    stops: list[str] = Field(default_factory=list)
    blockers: list[Issue] = Field(default_factory=list)

    @property
    def level(self) -> int:
        """The level of the largest step."""
        return max((step.level for step in self.steps), default=0)

    @property
    def changed(self) -> bool:
        return any(step.changed for step in self.steps)


class History(BaseModel):
    """What was tried on a host in this rescue, and the boots that were seen."""

    rounds: list[Round] = Field(default_factory=list)
    # boot ids, oldest first, each once
    boots: list[str] = Field(default_factory=list)
    # something did not work when it was first looked at
    broken: bool = False

    @property
    def reboots(self) -> int:
        return max(0, len(self.boots) - 1)


class RescuedHost(BaseModel):
    status: Status
    summary: str = ""
    # at the beginning
    found: list[Cause] = Field(default_factory=list)
    # at the end
    left: list[Cause] = Field(default_factory=list)
    rounds: list[Round] = Field(default_factory=list)
    # installed, moved, removed
    packages: list[PackageChange] = Field(default_factory=list)
    # packages that dpkg had left unfinished
    configured: list[str] = Field(default_factory=list)
    reboots: int = 0
    # of the state before, on the host
    snapshot: str | None = None
    # what comes next where something is left
    next: str = ""
    checks: list[Check] = Field(default_factory=list)


class RescueDocument(Document):
    schema_id: str = Field(default="provision/rescue/1", alias="schema")
    hosts: dict[str, RescuedHost] = Field(default_factory=dict)
    # a lock that was taken over, a record that was not written
    warnings: list[Issue] = Field(default_factory=list)
    run_dir: str | None = None
    seconds: float | None = None


class OfflineHost(BaseModel):
    status: Literal["written", "failed"] = "written"
    # None: the script is in the document alone
    path: str | None = None
    script: str = ""
    # where the driver's exact versions come from, as text; empty: from the inventory and the host itself
    source: str = ""


class OfflineDocument(Document):
    schema_id: str = Field(default="provision/offline/1", alias="schema")
    hosts: dict[str, OfflineHost] = Field(default_factory=dict)
