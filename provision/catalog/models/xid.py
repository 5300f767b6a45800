"""xid.yml: the errors that the driver logs as Xid and SXid, and what NVIDIA's catalogue says has to be done."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from provision.catalog.models.base import Data, Fact, Topic

# NVIDIA's resolution buckets, those of 154's words, and NONE: the driver says that nothing has to be done.
Action = Literal[
    "NONE",
    "IGNORE",
    "RESTART_APP",
    "WORKFLOW_XID_45",
    "XID_154",
    "XID_154_EVAL",
    "CHECK_UVM",
    "WORKFLOW_XID_48",
    "WORKFLOW_NVLINK_ERR",
    "WORKFLOW_NVLINK5_ERR",
    "DRAIN_P2P",
    "DRAIN_AND_RESET",
    "RESET_GPU",
    "RESTART_VM",
    "RESTART_BM",
    "CHECK_MECHANICALS",
    "UPDATE_SWFW",
    "CONTACT_SUPPORT",
]
# 32 bits from the highest on; - is any.
Bits = Annotated[str, StringConstraints(pattern=r"^[01-]{32}$")]


class Xid(Fact):
    mnemonic: str
    immediate: Action | None = None
    investigatory: str = ""
    # this project's action where NVIDIA names none
    judged: Action | None = None
    meaning: str = ""
    # the driver's recovery action (Xid 154, NVML) follows it: what the action says of the card holds for this error
    linked: bool = False
    # not printed for Ampere and newer cards
    unused: bool = False


class Nvlink5Rule(Data):
    """What an interrupt word and an error status of Xid 144 to 150 mean. status: empty for any."""

    xid: int
    unit: str
    before_575: Bits
    from_575: Bits
    status: tuple[int, ...] = ()
    action: Action


class RecoveryWords(Data):
    has: str
    action: Action


class Recovery(Fact):
    numbers: dict[int, Action]
    words: tuple[RecoveryWords, ...]


class Sxids(Fact):
    actions: dict[Action, tuple[int, ...]]


class Xids(Topic):
    xid: dict[int, Xid]
    nvlink5: tuple[Nvlink5Rule, ...]
    recovery: Recovery
    sxid: Sxids
