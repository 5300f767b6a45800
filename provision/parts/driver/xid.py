"""Xid and SXid errors in the kernel's log since boot, and what they mean.

Source: NVIDIA's XID error documentation and the NVSwitch section of the fabric manager guide; which weight an error has here
is this project's reading of them.
"""

from __future__ import annotations

import re
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.prove.outcome import Outcome
from provision.parts.proof import Row, Verdict

# number: (meaning, weight). hardware: the card or its links; reset: the card needs a reset or reboot; driver: driver or
# firmware; program: usually a program's own fault, and normal on shared machines.
XIDS = {
    8: ("a kernel ran too long and was stopped", "program"),
    13: ("a program's kernel made the engine fail (illegal address or instruction)", "program"),
    31: ("a program touched GPU memory that is not its own", "program"),
    32: ("invalid commands from a program or over the bus", "driver"),
    38: ("the driver's firmware failed", "driver"),
    43: ("a program's channel stopped", "program"),
    45: ("a program ended and its work was cleared away", "program"),
    48: ("an uncorrectable error in the card's memory", "hardware"),
    56: ("the display engine failed", "driver"),
    61: ("the card's microcontroller stopped (breakpoint)", "driver"),
    62: ("the card's microcontroller halted", "hardware"),
    63: ("a faulty memory row or page was set aside: it is replaced at the next reset", "reset"),
    64: ("a faulty memory row or page could not be set aside", "hardware"),
    68: ("the video decoder failed", "program"),
    69: ("a program's graphics commands failed", "program"),
    74: ("an NVLink failed", "hardware"),
    78: ("a virtual GPU could not start", "driver"),
    79: ("the card fell off the bus", "hardware"),
    92: ("many correctable memory errors", "hardware"),
    94: ("an uncorrectable memory error, contained: the program that had the memory was ended", "reset"),
    95: ("an uncorrectable memory error that was not contained", "hardware"),
    109: ("a context switch timed out", "driver"),
    110: ("a security fault", "hardware"),
    119: ("the card's GSP firmware did not answer", "driver"),
    120: ("the card's GSP firmware failed", "driver"),
    121: ("a link between chips had a correctable error", "hardware"),
    140: ("an unrecovered memory error", "hardware"),
    143: ("the card failed to initialise", "hardware"),
    144: ("NVLink: a link failed", "hardware"),
    145: ("NVLink: a link failed", "hardware"),
    149: ("NVLink: the network failed", "hardware"),
    154: ("the driver says what the card needs to recover", "reset"),
}
HINTS = {
    "hardware": "reseat or power-cycle; a card that does it again needs replacing: nvidia-bug-report.sh for the vendor",
    "reset": "reset the card or reboot while nobody uses it: nvidia-smi --gpu-reset",
    "driver": "another driver version, or a power cycle: see the newest of the branch (provision plan)",
}
_XID = re.compile(r"NVRM: (?:GPU at )?(?:PCI:)?.*?Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\): ([0-9]+)(?:, (.*))?$")
_SXID = re.compile(r"SXid \(PCI:([0-9a-fA-F:.]+)[^)]*\): ([0-9]+), (Fatal|Non-fatal)?,? ?(.*)$")


def parse(line: str) -> dict[str, Any] | None:
    """Return {"kind": xid | sxid, "number", "bus_id", "fatal", "words"} for a line of the kernel's log, or None."""
    match = _SXID.search(line)
    if match:
        return {
            "kind": "sxid",
            "number": int(match.group(2)),
            "bus_id": match.group(1).lower(),
            "fatal": match.group(3) == "Fatal",
            "words": match.group(4).strip(),
        }
    match = _XID.search(line)
    if match:
        return {
            "kind": "xid",
            "number": int(match.group(2)),
            "bus_id": match.group(1).lower(),
            "fatal": False,
            "words": (match.group(3) or "").strip(),
        }
    return None


def judge(outcome: Outcome) -> Verdict:
    """Return (status, message, evidence, hint, numbers) for gpu.xid; outcome: of the job read."""
    if not outcome.ok:
        return "not_run", f"the kernel's log cannot be read: {outcome.message}", [], None, {}
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    for when, line in outcome.result["lines"]:
        error = parse(line)
        if error is None:
            continue
        key = (error["kind"], error["number"], error["bus_id"])
        if key not in found:
            found[key] = dict(error, count=0, first=when)
        found[key]["count"] += 1
        found[key]["last"] = when
    numbers = {
        "xids": sum(row["count"] for row in found.values() if row["kind"] == "xid"),
        "sxids": sum(row["count"] for row in found.values() if row["kind"] == "sxid"),
    }
    partial = outcome.result["first"]
    note = [f"the kernel's log no longer reaches back to the boot: {partial} lines are gone"] if partial else []
    if not found:
        return "pass", "no Xid since boot" if not note else "no Xid in the kernel's log", note, None, numbers
    weights: dict[str, list[Row]] = {}
    evidence = []
    for row in found.values():
        meaning, weight = _meaning(row)
        weights.setdefault(weight, []).append(row)
        evidence.append(f"{_name(row)}, {row['count']} times, last {row['last'] / 1e6:.0f} s after boot: {meaning}")
    for weight, status in (("hardware", "fail"), ("reset", "fail"), ("driver", "warn")):
        if weight in weights:
            first = weights[weight][0]
            return status, f"{_name(first)}: {_meaning(first)[0]}", evidence + note, HINTS[weight], numbers
    return ("pass", f"{numbers['xids']} Xids since boot, of programs' own faults", evidence + note, None, numbers)


def _name(row: Row) -> str:
    return f"{'SXid' if row['kind'] == 'sxid' else 'Xid'} {row['number']} at {row['bus_id']}"


def _meaning(row: Row) -> tuple[str, str]:
    if row["kind"] == "sxid":
        return f"NVSwitch: {row['words'] or 'no words'}", "hardware" if row["fatal"] else "program"
    meaning, weight = XIDS.get(row["number"], ("not known here: NVIDIA's XID catalogue tells", "driver"))
    return meaning, weight
