"""Xid and SXid errors in the kernel's log: which of them stand, and what has to be done about them. Pure.

What each number means is data (``catalog/data/xid.yml``, NVIDIA's catalogue): its action decides how bad it is and what helps.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.prove.outcome import Outcome
from provision.catalog.models.xid import Action, Xids
from provision.lib.text import LATEST
from provision.parts.proof import Verdict

Status = Literal["fail", "warn", "pass"]
# The boot (0 is this one, -1 the one before), when the line was logged (seconds since 1970, None: nobody knows), and the line.
Event = tuple[int, float | None, str]
DAY_S = 86400.0
# An error that was mended counts as one that comes back for so long,
_AGAIN_S = 7 * DAY_S
# and one that comes so often in a day on one card matters whatever its action is. Lines of one burst count once.
_OFTEN, _BURST_S = 3, 60.0

# tee: the line that nvidia-smi prints goes to the kernel's log too, and ends what the card had before.
_RESET = "nvidia-smi --gpu-reset -i {bus} | tee /dev/kmsg (as root, while nobody uses the card)"
# What an action means here, the worst first: how bad it is, and what has to be done.
ADVICE: dict[Action, tuple[Status, str]] = {
    "CHECK_MECHANICALS": ("fail", "switch the machine off; check the card's seat, its cables and its cooling"),
    "RESTART_BM": ("fail", "systemctl reboot; a power cycle where the card does not come back"),
    "RESTART_VM": ("fail", "systemctl reboot (where the card is handed to a virtual machine: of that one)"),
    "RESET_GPU": ("fail", _RESET),
    "DRAIN_AND_RESET": ("fail", f"start nothing new on the card and let what runs end; then {_RESET}"),
    "DRAIN_P2P": ("fail", "end what copies between cards; then nvidia-smi -q -i {bus} names the next recovery action"),
    "CONTACT_SUPPORT": ("warn", "nvidia-bug-report.sh, for NVIDIA or the vendor"),
    "UPDATE_SWFW": ("warn", "the vGPU's driver in the guest and on its host have to fit"),
    "RESTART_APP": ("pass", "start the program again"),
    "WORKFLOW_XID_45": ("pass", "nothing: it follows from another error or from the end of a program"),
    "IGNORE": ("pass", "nothing"),
    "NONE": ("pass", "nothing: it has recovered"),
}
_SAME: dict[Action, Action] = {
    "WORKFLOW_XID_48": "RESET_GPU",
    "WORKFLOW_NVLINK_ERR": "RESET_GPU",
    # CUDA uses UVM
    "CHECK_UVM": "RESET_GPU",
    # where the driver names nothing (154)
    "XID_154_EVAL": "RESTART_APP",
}
_ORDER = {action: place for place, action in enumerate(ADVICE)}
# What these do not mend, no recovery ends.
_LASTING = frozenset({"CHECK_MECHANICALS", "CONTACT_SUPPORT", "UPDATE_SWFW"})
# What NVIDIA looks for where an error comes back, by the word that its investigatory action begins with.
_NEXT = {
    "CONTACT": "nvidia-bug-report.sh, for NVIDIA or the vendor",
    "INVESTIGATE_LINK": "the link's bridge, cable or board",
    "INVESTIGATE_SW": "the program that ran, and another driver version",
    "WORKFLOW_XID_48": "the card needs replacing",
}
_BUS = r"\((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\)"
_XID = re.compile(rf"\bXid {_BUS}: ([0-9]{{1,6}})\b(?:, ?(.*))?$")
_SXID = re.compile(rf"\bSXid {_BUS}: ([0-9]{{1,6}}), (Fatal|Non-fatal)?,? ?(.*)$")
_RECOVERY = re.compile(r"recovery action changed from .*? to 0x([0-9a-fA-F]+) \(([^)]*)\)", re.I)
_WORDS = re.compile(r"\(0x([0-9a-fA-F]{1,8}) 0x([0-9a-fA-F]{1,8})\b")
_BOOTED, _LOADED, _WAS_RESET = "before a boot", "before the module was loaded again", "before the card was reset"
_RECOVERED, _NAMED = "the driver says since that it has recovered", "the driver has named since what the card needs"
_MENDED = (_BOOTED, _LOADED, _WAS_RESET, _RECOVERED)
# What ends errors: of every card, the start of a kernel or of the module; of one, the line that nvidia-smi prints.
_ENDS = (
    (re.compile(r"\bLinux version [0-9]"), _BOOTED),
    (re.compile(r"NVRM: loading NVIDIA UNIX"), _LOADED),
    (re.compile(r"\bGPU ([0-9A-Fa-f:.]+) was successfully reset"), _WAS_RESET),
)


@dataclass
class Row:
    """One kind of error of one card, and where more than one line has it, how often. action: what has to be done."""

    kind: Literal["xid", "sxid"]
    number: int
    bus_id: str
    words: str
    action: Action
    meaning: str
    # what NVIDIA looks for where it comes back
    next: str | None
    note: str
    line: str
    # the driver's recovery action follows it
    linked: bool = False
    when: list[float | None] = field(default_factory=list)
    # why it is history; None: it stands
    ended: str | None = None
    # why the action that its number names is not enough
    again: str = ""

    @property
    def name(self) -> str:
        return f"{'SXid' if self.kind == 'sxid' else 'Xid'} {self.number} at {self.bus_id}"

    @property
    def status(self) -> Status:
        status = "pass" if self.ended else ADVICE[self.action][0]
        return "warn" if status == "pass" and self.again else status

    @property
    def repair(self) -> str:
        """What has to be done, with the command, and what where it comes back."""
        if self.again:
            return f"{self.next or _NEXT['CONTACT']}: {self.again}"
        text = advice(self.action, self.bus_id)
        return text + (f"; where it comes back: {self.next}" if self.next and self.status == "fail" else "")

    @property
    def told(self) -> str:
        """``Xid 48 at 0000:18:00: an uncorrectable error in the card's memory``."""
        return f"{self.name}: {self.meaning}" + (f"; {self.again}" if self.again else "")


def advice(action: Action, bus_id: str) -> str:
    """What has to be done about a card, with the command."""
    return ADVICE[action][1].format(bus=bus_id if "." in bus_id else bus_id + ".0")


def parse(line: str, table: Xids) -> Row | None:
    """Return the error of a line of the kernel's log, or None."""
    if match := _SXID.search(line):
        return _sxid(match, table)
    match = _XID.search(line)
    if match is None:
        return None
    number, words = int(match.group(2)), (match.group(3) or "").strip()
    known = table.xid.get(number)
    action = (known and (known.immediate or known.judged)) or "CONTACT_SUPPORT"
    meaning = known.meaning if known else "NVIDIA's catalogue does not list it"
    if known and not meaning:
        meaning = known.mnemonic + (", which NVIDIA does not use since Ampere" if known.unused else "")
    if action == "XID_154":
        action, meaning = recovery(words, table)
    elif action == "WORKFLOW_NVLINK5_ERR":
        action, unit = _nvlink5(number, words, table)
        meaning += f" ({unit})"
    following = next((text for word, text in _NEXT.items() if known and known.investigatory.startswith(word)), None)
    return Row(
        kind="xid",
        number=number,
        bus_id=match.group(1).lower(),
        words=words,
        action=_SAME.get(action, action),
        meaning=meaning,
        next=following,
        note=(known.note if known else None) or "",
        line=line,
        linked=bool(known and known.linked),
    )


def _sxid(match: re.Match[str], table: Xids) -> Row:
    number, fatal, words = int(match.group(2)), match.group(3) == "Fatal", match.group(4).strip()
    listed: Action | None = next((action for action, of in table.sxid.actions.items() if number in of), None)
    return Row(
        kind="sxid",
        number=number,
        bus_id=match.group(1).lower(),
        words=words,
        action=listed or ("RESTART_BM" if fatal else "IGNORE"),
        meaning=f"NVSwitch: {words or 'no words'}",
        next=_NEXT["CONTACT"] if fatal else None,
        note="",
        line=match.string,
    )


def named(number: int | None, words: str, table: Xids) -> Action:
    """Return the recovery action that the driver names by a number and in words."""
    lower = words.lower()
    worded: Action = next((row.action for row in table.recovery.words if row.has in lower), "CONTACT_SUPPORT")
    return worded if number is None else table.recovery.numbers.get(number, worded)


def recovery(words: str, table: Xids) -> tuple[Action, str]:
    """Return the action that a line of Xid 154 names, and what is said of it."""
    match = _RECOVERY.search(words)
    if match is None:
        return "CONTACT_SUPPORT", "the driver names a recovery that is not known here"
    action = named(int(match.group(1), 16), match.group(2), table)
    if action == "NONE":
        return action, "the driver says that the card has recovered"
    return action, f"to recover, the driver says, the card needs: {match.group(2)}"


def _nvlink5(number: int, words: str, table: Xids) -> tuple[Action, str]:
    """(the action of a line of Xid 144 to 150, the unit that it is about). Source: NVIDIA's table "Xid 144-150 Decode"."""
    unit = words.split(" ", 1)[0]
    if registers := _WORDS.search(words):
        interrupt, status = (int(word, 16) for word in registers.groups())
        bits = f"{interrupt:032b}"
        for rule in table.nvlink5:
            if rule.xid != number or (rule.status and status not in rule.status):
                continue
            if any(_fits(bits, pattern) for pattern in (rule.before_575, rule.from_575)):
                return rule.action, rule.unit
    # A link that failed needs a reset; other errors of links are told for those who read them.
    return ("RESET_GPU" if re.search(r"\b(?:Link )?Fatal\b", words) else "IGNORE"), f"{unit}: not in NVIDIA's table"


def _fits(bits: str, pattern: str) -> bool:
    return all(wanted in ("-", bit) for bit, wanted in zip(bits, pattern, strict=True))


def read(events: Iterable[Event], table: Xids, now: float | None = None, recovered: Collection[str] = ()) -> list[Row]:
    """Return the errors of a log, in the order in which they came first; what was ended since says by what.

    Of a card's lines of Xid 154 the last one counts: it says what the card needs for all that came before it. now: when the log
    was read, as events have it; None: at its last line. recovered: bus ids of cards of which the driver
    says that they need nothing.
    """
    rows: list[Row] = []
    last = None
    for boot, when, line in events:
        if last is not None and boot != last:
            _end(rows, None, _BOOTED)
        last = boot
        for pattern, why in _ENDS:
            if match := pattern.search(line):
                _end(rows, match.group(1) if pattern.groups else None, why)
        error = parse(line, table)
        if error is None:
            continue
        when = a_time(when)
        if error.kind == "xid" and error.number == 154:
            _end(rows, error.bus_id, _RECOVERED if error.action == "NONE" else _NAMED)
        known = next((row for row in rows if _key(row) == _key(error) and not row.ended), None)
        if known is None:
            rows.append(known := error)
        known.when.append(when)
    # What is left of earlier boots has ended with them.
    if last:
        _end(rows, None, _BOOTED)
    for row in rows:
        if not row.ended and row.linked and any(_same_card(row.bus_id, bus_id) for bus_id in recovered):
            row.ended = _RECOVERED
    _weigh(rows, now or max((when for row in rows for when in row.when if when is not None), default=0.0))
    return rows


def a_time(when: float | None) -> float | None:
    """What a host says of when a line was logged, None where it cannot be."""
    return when if when is not None and 0 < when < LATEST else None


def _weigh(rows: Sequence[Row], now: float) -> None:
    """Mark what came back after it was mended, and what comes too often for a program's matter."""
    for row in rows:
        same = [other for other in rows if _key(other) == _key(row)]
        recent = sorted(when for other in same for when in other.when if when is not None and now - when < DAY_S)
        bursts, before = 0, float("-inf")
        for when in recent:
            bursts += when - before >= _BURST_S
            before = when
        needs_repair = ADVICE[row.action][0] == "fail"
        mended = [other for other in same if other.ended in _MENDED and _newest(other) > now - _AGAIN_S]
        if not row.ended and needs_repair and mended:
            times = "once" if len(mended) == 1 else f"{len(mended)} times"
            row.again = f"it came back after it was repaired ({times} in a week, {mended[-1].ended})"
        elif bursts >= _OFTEN and row is same[-1] and (needs_repair or _suspicious(row)):
            row.again = f"{bursts} times within a day on the same card"


def _suspicious(row: Row) -> bool:
    """A program's matter that is NVIDIA's where it comes back; 43 and 45 come with every program that ends."""
    return row.action == "RESTART_APP" and row.next == _NEXT["CONTACT"]


def _newest(row: Row) -> float:
    """When it came last. What has no time stands in one log with what it is compared to."""
    return max((when for when in row.when if when is not None), default=float("inf"))


def _key(row: Row) -> tuple[str, int, str, Action]:
    return row.kind, row.number, row.bus_id, row.action


def _end(rows: Sequence[Row], bus_id: str | None, why: str) -> None:
    """Errors that stand are history from here on. bus_id: of this card, None: of all."""
    # no recovery of the driver's mends a cable
    lasting = why not in (_RECOVERED, _NAMED)
    for row in rows:
        if row.ended or (bus_id and not _same_card(row.bus_id, bus_id)):
            continue
        if lasting or row.action not in _LASTING:
            row.ended = why


def _same_card(one: str, other: str) -> bool:
    """``0000:9b:00`` of the kernel's log and ``00000000:9B:00.0`` of nvidia-smi are one card."""
    return bare(one) == bare(other)


def bare(bus_id: str) -> str:
    """``0000:9b:00`` of any address of a card, with the domain's four digits."""
    domain, _, rest = bus_id.lower().split(".")[0].partition(":")
    return f"{domain[-4:]}:{rest}"


def standing(rows: Iterable[Row]) -> list[Row]:
    """Those about which something has to be done, the worst first."""
    return sorted((row for row in rows if row.status != "pass"), key=lambda row: _ORDER[row.action])


def judge(outcome: Outcome, table: Xids, recovered: Collection[str] = ()) -> Verdict:
    """Return (status, message, evidence, hint, numbers) for gpu.xid; outcome: of the job read; recovered: see read."""
    if not outcome.ok:
        return "not_run", f"the kernel's log cannot be read: {outcome.message}", [], None, {}
    rows = read(outcome.result["lines"], table, outcome.result.get("now"), recovered)
    numbers: dict[str, float] = {
        f"{kind}s": sum(len(row.when) for row in rows if row.kind == kind) for kind in ("xid", "sxid")
    }
    partial = outcome.result["first"]
    evidence = [describe(row) for row in rows]
    if partial:
        evidence.append(f"the kernel's log no longer reaches back to the boot: {partial} lines are gone")
    stand = standing(rows)
    if stand:
        worst = stand[0]
        more = f" and {len(stand) - 1} more" if len(stand) > 1 else ""
        return worst.status, worst.told + more, evidence, worst.repair, numbers
    if not rows:
        return "pass", "no Xid in the kernel's log" if partial else "no Xid since boot", evidence, None, numbers
    many = int(numbers["xids"] + numbers["sxids"])
    return (
        "pass",
        f"{many} {'error' if many == 1 else 'errors'} in the log, none needs a repair",
        evidence,
        None,
        numbers,
    )


def describe(row: Row) -> str:
    """One line about an error: how often, what it means, what has to be done or why nothing has."""
    last = max((when for when in row.when if when is not None), default=None)
    often = f", {len(row.when)} times" if len(row.when) > 1 else ""
    if last is not None:
        often += f", last {datetime.fromtimestamp(last, UTC):%Y-%m-%d %H:%M} UTC"
    then = row.ended if row.ended and not row.again else f"to do: {row.repair}"
    return f"{row.name}{often}: {row.meaning}; {then}" + (f"; {row.note}" if row.note else "")
