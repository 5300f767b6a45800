"""What fabric manager's log and its starts say of the NVLink fabric: which errors stand, and whether the service stays. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import fabric_log
from provision.catalog.models.xid import Xids
from provision.parts.driver import xid
from provision.parts.proof import Verdict

# A start that systemd repeats by itself ends what was before only if the service then stays for so long.
_STAYS_S = 600.0
# So many starts after the first one within a day are too many: whatever runs on NVLink ends with each.
_OFTEN = 3
_HEAD = re.compile(r"^(?:\[[A-Z]+\] ?)?(?:\[tid [0-9]+\] ?)?")
_SXID = re.compile(r"detected NVSwitch fatal error ([0-9]{1,6}).*?\bpci bus id ([0-9A-Fa-f:.]+)")
_RESET = "end what runs on the cards, then nvidia-smi --gpu-reset (all of them); where it comes back, reboot"
_SUPPORT = "nvidia-bug-report.sh, for NVIDIA or the vendor"
# How bad it is, what it means and what has to be done. Sources: as lib.fabric_log; of errors with a number the catalogue decides.
_KINDS: tuple[tuple[re.Pattern[str], xid.Status, str, str], ...] = (
    (re.compile(r"failed to find the GPU handle"), "fail", "a card has lost its NVLinks to the switches", _RESET),
    (
        re.compile(r"don't match with any supported system topology"),
        "fail",
        "an NVSwitch or one of its links is missing",
        f"switch the machine off and on; where it stays so, {_SUPPORT}",
    ),
    (re.compile(r"GPU NVL Fatal error"), "fail", "an NVLink of a card has failed", _RESET),
    (
        re.compile(r"Trunk port failure"),
        "warn",
        "a link between two switches has failed",
        f"check the link's cable; {_SUPPORT}",
    ),
    (
        re.compile(r"not all local fabric manager instances finished|failed to configure all the available GPUs"),
        "fail",
        "not every card and switch was set up",
        "systemctl restart nvidia-fabricmanager, once nvidia-smi lists every card",
    ),
)


@dataclass
class Row:
    """One error: what it means, how often it was logged since the last start that stayed, and what has to be done."""

    words: str
    status: xid.Status
    meaning: str
    repair: str
    when: list[float] = field(default_factory=list)

    @property
    def told(self) -> str:
        return f"fabric manager: {self.meaning}: {self.words}"

    @property
    def line(self) -> str:
        """``3 times, last 2026-11-29 10:00 UTC: the words of the log``."""
        often = f"{len(self.when)} times" if len(self.when) > 1 else "once"
        return f"{often}, last {_clock(self.when[-1])}: {self.words}"


@dataclass
class Unit:
    """One service in this boot. starts: those that systemd reports; failures: how often it ended by itself."""

    name: str
    starts: list[float] = field(default_factory=list)
    failures: list[float] = field(default_factory=list)
    running: bool = False
    rows: list[Row] = field(default_factory=list)
    # of the last start: when it began, and whether systemd repeated it by itself; scheduled: it will
    begun: float = 0.0
    repeated: bool = False
    scheduled: bool = False

    def restarts(self, now: float) -> list[float]:
        """Starts of the last day but the first one of the boot."""
        return [when for when in self.starts[1:] if now - when < xid.DAY_S]

    def flaps(self, now: float) -> bool:
        """It runs, and does not stay."""
        return self.running and len(self.restarts(now)) >= _OFTEN

    def told(self, now: float) -> str:
        again = self.restarts(now)
        return f"{self.name} was started again {len(again)} times within a day"

    def lines(self, now: float) -> list[str]:
        """Evidence of a service that does not stay."""
        failed = sum(now - when < xid.DAY_S for when in self.failures)
        return [
            f"{self.name}.service: failures within a day: {failed}",
            "started: " + ", ".join(_clock(when) for when in self.restarts(now)[-6:]),
        ]


def _clock(when: float) -> str:
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%d %H:%M} UTC"


def read(events: Iterable[xid.Event], table: Xids, now: float | None = None) -> tuple[list[Unit], float]:
    """Return (the services of a log, with the errors that stand; when the log was read).

    events: as lib.fabric_log has them; now: None for the last line's time.
    """
    units: dict[str, Unit] = {}
    timed = sorted((when, text) for _, said, text in events if (when := xid.a_time(said)) is not None)
    now = now or (timed[-1][0] if timed else 0.0)
    for when, text in timed:
        name, _, words = text.partition(": ")
        if name not in fabric_log.UNITS:
            continue
        unit = units.setdefault(name, Unit(name))
        if words.startswith("Starting "):
            unit.begun, unit.repeated, unit.scheduled = when, unit.scheduled, False
        elif words.startswith("Started "):
            unit.begun = unit.begun or when
            unit.starts.append(when)
            unit.running = True
            _stayed(unit, when)
        elif ": Failed with result" in words:
            unit.failures.append(when)
            _stayed(unit, when)
            unit.running, unit.begun = False, 0.0
        elif ": Scheduled restart job" in words:
            unit.scheduled = True
        else:
            _add(unit, when, _HEAD.sub("", words), table)
    for unit in units.values():
        _stayed(unit, now)
    return list(units.values()), now


def _stayed(unit: Unit, now: float) -> None:
    """End what was before a start that stayed."""
    if unit.running and unit.begun and (not unit.repeated or now - unit.begun >= _STAYS_S):
        for row in unit.rows:
            row.when = [when for when in row.when if when >= unit.begun]
        unit.rows = [row for row in unit.rows if row.when]


def _add(unit: Unit, when: float, words: str, table: Xids) -> None:
    known = next((row for row in unit.rows if row.words == words), None)
    if known is None:
        known = parse(words, table)
        if known is None:
            return
        unit.rows.append(known)
    # The file and the journal say the same within a moment.
    if all(abs(when - other) > 2.0 for other in known.when):
        known.when.append(when)


def parse(words: str, table: Xids) -> Row | None:
    """What a line means; None where nothing has to be done. Of an NVSwitch's fatal error the catalogue's action counts."""
    if match := _SXID.search(words):
        error = xid.parse(f"SXid (PCI:{match[2]}): {match[1]}, Fatal, {words}", table)
        if error is None or error.status == "pass":
            return None
        return Row(words, error.status, f"SXid {match[1]} of the NVSwitch at {match[2]}", error.repair)
    known = next((kind for kind in _KINDS if kind[0].search(words)), None)
    return Row(words, *known[1:]) if known else None


def standing(units: Sequence[Unit]) -> list[Row]:
    """Errors about which something has to be done, failures first."""
    return sorted((row for unit in units for row in unit.rows), key=lambda row: row.status != "fail")


def with_fabric(verdict: Verdict, events: Iterable[xid.Event], table: Xids, now: float | None) -> Verdict:
    """Return the verdict of gpu.xid with what fabric manager's log adds: the worse of both, the card's own error first."""
    status, message, evidence, hint, numbers = verdict
    units, now = read(events, table, now)
    rows, flapping = standing(units), [unit for unit in units if unit.flaps(now)]
    found: list[tuple[str, str, str]] = [(row.status, row.told, row.repair) for row in rows]
    found += [("warn", unit.told(now), f"journalctl -u {unit.name} says what ends it") for unit in flapping]
    evidence = [*evidence, *(row.line for row in rows), *(line for unit in flapping for line in unit.lines(now))]
    if not found:
        return verdict
    worst = found[0]
    if status == "fail" or (status == "warn" and worst[0] != "fail"):
        return status, f"{message}; {worst[1]}", evidence, hint, numbers
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return worst[0], worst[1] + more, evidence, worst[2], numbers
