"""What ``--purge`` would remove on a host, as data for people and for the module rescue_purge. Changes nothing.

The host itself says what is there (plugins/module_utils/rescue/purge.py, by names that dpkg and its lists of files know);
this puts it into the words of a plan. After a purge the inventory's roles install the driver from nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from provision.errors import Issue
from provision.lib.text import answered
from provision.parts.plan import PackageChange, Step
from provision.planning import Call


class Left(BaseModel):
    """Something that was seen and stays, or goes without a copy."""

    path: str
    why: str


class PurgePlan(BaseModel):
    """One host. packages: names as apt takes them; config: names of which only configuration is left."""

    model_config = ConfigDict(extra="ignore")

    packages: list[str] = Field(default_factory=list)
    config: list[str] = Field(default_factory=list)
    changes: list[PackageChange] = Field(default_factory=list)
    # of NVIDIA's .run file
    uninstaller: str | None = None
    dkms: list[tuple[str, str]] = Field(default_factory=list)
    files: list[str] = Field(default_factory=list)
    trees: list[str] = Field(default_factory=list)
    # settings: moved into the snapshot
    aside: list[str] = Field(default_factory=list)
    # companions that something else needs
    kept: list[Left] = Field(default_factory=list)
    left: list[Left] = Field(default_factory=list)
    # a purge was interrupted on this host
    unfinished: bool = False
    blockers: list[Issue] = Field(default_factory=list)
    nothing: bool = True

    @property
    def steps(self) -> list[Step]:
        """What is done, in its order."""
        found = []
        if self.uninstaller:
            found.append(
                _step("run NVIDIA's own uninstaller", "a .run file installed a driver", [f"{self.uninstaller} -s"])
            )
        if self.packages:
            title = f"remove {len(self.packages)} packages of the driver, by their exact names"
            found.append(
                _step(title, "every branch goes; kernels, containers, CUDA and the desktop stay", self.packages)
            )
        if self.config:
            found.append(
                _step(f"purge what {len(self.config)} removed packages left", "their configuration", self.config)
            )
        if self.dkms:
            trees = [f"{name}/{version}" for name, version in self.dkms]
            found.append(_step("remove DKMS trees", "no package owns them", trees))
        strays = [*self.files, *(f"{tree}/" for tree in self.trees)]
        if strays:
            title = f"remove {len(strays)} files and folders that no package owns"
            found.append(
                _step(title, "pieces of a driver that apt does not know; small ones go into the snapshot", strays)
            )
        if self.aside:
            found.append(_step("move settings into the snapshot", "they came with the driver", self.aside))
        if found or self.unfinished:
            because = "a purge was interrupted" if not found else "the module must not be found again"
            found.append(_step("bring loader cache, module lists and initramfs up to date", because, []))
        return found

    def arguments(self, snapshot: str) -> dict[str, Any]:
        """Arguments of the module rescue_purge: what was shown, and nothing more."""
        return {"snapshot": snapshot, "expect": self.packages}


def read_purge(host: str, call: Call, allow: Iterable[str] = ()) -> PurgePlan:
    """Ask a host what a purge would remove there.

    allow: packages besides the driver's that may go. Raises UnreachableError or HostFailedError from ``call``.
    """
    answer = answered(call("rescue.purge", {"op": "plan", "allow": list(allow)}), kept=list, problems=list)
    return purge_plan(host, answer)


def purge_plan(host: str, answer: dict[str, Any]) -> PurgePlan:
    """The plan of what rescuepurge.plan answered. Pure."""
    kept = [{"path": row["name"], "why": row["because"]} for row in answer["kept"]]
    blockers = [Issue.model_validate(problem).model_copy(update={"host": host}) for problem in answer["problems"]]
    return PurgePlan.model_validate({**answer, "kept": kept, "blockers": [b.model_dump() for b in blockers]})


def _step(title: str, because: str, details: list[str]) -> Step:
    return Step(id="purge", title=title, because=because, details=details)
