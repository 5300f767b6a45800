"""What ``--undo`` would take back on a host, as data for people and for the module rescue_snapshot. Changes nothing.

The host itself compares its snapshot with what is there now (plugins/module_utils/rescue/undo.py); this puts it into the
words of a plan.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from provision.errors import Issue
from provision.lib.text import answered
from provision.parts.plan import PackageChange, Step
from provision.planning import Call


class SnapshotRow(BaseModel):
    """A snapshot on a host. whole: False for one that was interrupted; it cannot be gone back to."""

    model_config = ConfigDict(extra="ignore")

    id: str
    made: str
    reason: str | None = None
    whole: bool = True
    finished: bool = True
    kernel: str | None = None


class FileBack(BaseModel):
    path: str
    # restore | remove
    action: str


class NotBack(BaseModel):
    """Something that does not go back, and why."""

    what: str
    why: str


class UndoPlan(BaseModel):
    """One host. id, made, reason: of the snapshot that is gone back to."""

    model_config = ConfigDict(extra="ignore")

    id: str
    made: str
    reason: str | None = None
    # name=version
    install: list[str] = Field(default_factory=list)
    remove: list[str] = Field(default_factory=list)
    hold: list[str] = Field(default_factory=list)
    release: list[str] = Field(default_factory=list)
    files: list[FileBack] = Field(default_factory=list)
    changes: list[PackageChange] = Field(default_factory=list)
    left: list[NotBack] = Field(default_factory=list)
    blockers: list[Issue] = Field(default_factory=list)
    nothing: bool = True
    raw_changes: list[dict[str, Any]] = Field(default_factory=list)

    @property
    def steps(self) -> list[Step]:
        """What is done, in its order."""
        found = []
        if self.changes:
            title = f"bring {len(self.changes)} packages back to what they were"
            details = [f"{c.name} {c.from_version or 'absent'} -> {c.version or 'absent'}" for c in self.changes]
            found.append(_step(title, f"the rescue of {self.made} changed them", details))
        for title, names in (("hold again", self.hold), ("lift holds that the rescue set", self.release)):
            if names:
                found.append(_step(title, "as the snapshot has it", names))
        for action, title in (("restore", "restore files"), ("remove", "remove files that came with the rescue")):
            paths = [file.path for file in self.files if file.action == action]
            if paths:
                found.append(_step(title, "nobody has changed them since", paths))
        return found

    def arguments(self) -> dict[str, Any]:
        """Arguments of the module rescue_snapshot: what was shown, and nothing more."""
        return {"action": "undo", "id": self.id, "expect": self.raw_changes}


def read_undo(host: str, call: Call, id_: str | None = None) -> UndoPlan:
    """Ask a host what going back to a snapshot would change there. id_: None for the newest; an id, or its end.

    Raises UnreachableError, or HostFailedError from ``call`` (also where there is no such snapshot: ``snapshot.none``,
    ``snapshot.unknown``, ``snapshot.cut_off``).
    """
    return undo_plan(host, answered(call("rescue.undo", {"op": "plan", "id": id_}), problems=list, changes=list))


def undo_plan(host: str, answer: dict[str, Any]) -> UndoPlan:
    """The plan of what rescueundo.plan answered. Pure."""
    blockers = [
        Issue.model_validate(problem).model_copy(update={"host": host}).model_dump() for problem in answer["problems"]
    ]
    return UndoPlan.model_validate({**answer, "blockers": blockers, "raw_changes": answer["changes"]})


def read_snapshots(call: Call) -> list[SnapshotRow]:
    """The snapshots of a host, newest first."""
    answer = answered(call("rescue.snapshot", {"op": "list"}), snapshots=list)
    return [SnapshotRow.model_validate(row) for row in answer["snapshots"]]


def _step(title: str, because: str, details: list[str]) -> Step:
    return Step(id="undo", title=title, because=because, details=details)
