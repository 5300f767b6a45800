"""What diagnose says: findings, and the repairs that rescue can carry out. Data only."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from provision.lib.findings import Finding

# See lib.findings.
Level = Literal["error", "warning", "note"]

# What rescue can do, from the smallest on. ``Repair.action`` is one of these; docs/rescue.md explains them.
ACTIONS: dict[str, int] = {
    # 0: nothing but a reload or a reboot
    # stop what holds the modules (consent), unload, load again
    "module.reload": 0,
    # args: cards (bus ids) that are reset one by one, while nobody uses a GPU
    "gpu.reset": 0,
    "reboot": 0,
    # 1: finish what was cut off
    # dpkg --configure -a, then what apt calls --fix-broken; args: none
    "dpkg.configure": 1,
    # make room in /boot; args: packages (exact names of old kernels), files
    "boot.room": 1,
    # args: kernels
    "initramfs.build": 1,
    # 2: mend what steers apt and the modules
    # args: packages (exact names)
    "holds.clear": 2,
    # args: entries [{file, line}] to comment out
    "sources.drop": 2,
    # args: entries [{file, line, uri, to}]
    "sources.rewrite": 2,
    # args: name of a catalog repository whose key file is to be written
    "sources.key": 2,
    # downloaded lists that contradict each other are fetched anew
    "lists.clean": 2,
    # args: paths that are renamed to PATH.gpu-provision-disabled
    "file.aside": 2,
    # args: packages (exact names) that a removal took along and that concern no driver
    "packages.install": 2,
    # 3 and 4: let the inventory's roles do it: headers, modules, holds, one family at one version
    # args: parts (driver, cuda, conda, containers)
    "apply": 3,
    # as apply, where versions of one family have to move; args: parts
    "realign": 4,
    # 5: remove every trace of the driver, then install by the inventory
    "runfile.uninstall": 5,
    "purge": 5,
    # no program can do it: firmware, hardware, a decision. args: none; words tells the person what to do
    "manual": 9,
    # a person at the machine, or at its BMC; args: none
    "power.cycle": 9,
}


class Repair(BaseModel):
    """One step of the smallest repair."""

    action: str
    # "install linux-headers-6.8.0-45-generic and build the module": what it does here, for people
    words: str
    args: dict[str, Any] = Field(default_factory=dict)

    @property
    def level(self) -> int:
        return ACTIONS[self.action]


class Cause(Finding):
    """One named cause on one host; it has repairs in place of a hint."""

    level: Level
    # what does not work because of it
    breaks: str = ""
    # in order; the first level that does is the smallest
    repairs: list[Repair] = Field(default_factory=list)
    # the repair ends with one
    reboot: bool = False
    # what would have kept it from happening
    prevent: str = ""
    # bus ids of the cards that are sick, where it is about them and not about the driver
    cards: list[str] = Field(default_factory=list)
    # symptoms that follow from this one
    folded: list[Cause] = Field(default_factory=list)


class Diagnosis(BaseModel):
    """What is wrong with one host: what has to be mended first stands first."""

    findings: list[Cause] = Field(default_factory=list)
    # symptoms that no rule explains, and what was looked at
    unknown: list[str] = Field(default_factory=list)
    # what could not be read, so that silence proves nothing
    unread: list[str] = Field(default_factory=list)

    @property
    def errors(self) -> list[Cause]:
        return [finding for finding in self.findings if finding.level == "error"]
