"""When to kill: moments that a seed chooses, and the eyes that see on a host's disk how far a run is.

A run is cut into phases at what it leaves on the host's disk (its lock, a source, the journal, the first line of dpkg's log, a
restart, a record …), which is read from outside, from the layer that the container writes. A clean run of each kind says which of
them come, in which order, after how long, and how many lines dpkg writes. A seed names a phase and a part of it; where that part
takes longer or shorter than in the clean run, the kill stays within the phase.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

VICTIMS = ("controller", "tree", "ssh", "apt", "power")
# What is killed of a running change of packages: everything, apt and dpkg, the process that started them, dpkg alone.
APT_PARTS = ("all", "programs", "worker", "dpkg")
_OWN = "var/lib/gpu-provision"
# Name of a phase: what stands on the host's disk from then on, as the folder and the beginning of the name of a file there.
_MARKS = {
    "lock": (_OWN, "lock.json"),
    "snapshot": (f"{_OWN}/snapshots", ""),
    "purge": (_OWN, "purge.json"),
    "source": ("etc/apt/sources.list.d", "gpu-provision"),
    "key": ("etc/apt/keyrings", "gpu-provision"),
    "apt.conf": ("etc/apt/apt.conf.d", "52gpu-provision"),
    "journal": (_OWN, "transaction.json"),
    "modprobe": ("etc/modprobe.d", "gpu-provision"),
    "drop-in": ("etc/systemd/system/nvidia-persistenced.service.d", "gpu-provision"),
    "profile": ("etc/profile.d", "gpu-provision"),
    "daemon.json": ("etc/docker", "daemon.json"),
    "conda": ("opt/miniconda3", ""),
    "environment": ("opt/miniconda3/envs", ""),
    "record": (f"{_OWN}/history", ""),
}
_DPKG_LOG = "var/log/dpkg.log"
# Its multiples, without the whole numbers, lie evenly between 0 and 1, however many there are.
_GOLDEN = 0.6180339887498949


@dataclass
class Timeline:
    """A clean run: (phase, seconds after the start) in order, its length, the lines of dpkg's log."""

    marks: list[tuple[str, float]]
    seconds: float
    lines: int

    def phase_at(self, seconds: float) -> tuple[str, float]:
        """The phase at a time of the clean run, and the part of it that is over."""
        ends = [*(at for _, at in self.marks[1:]), self.seconds]
        for (name, begins), end in zip(self.marks, ends, strict=True):
            if seconds < end:
                return name, (seconds - begins) / max(end - begins, 0.001)
        return self.marks[-1][0], 1.0

    def pace(self, seen: dict[str, float]) -> float:
        """How many times slower than the clean run this one is, by the time to its second phase; 1 before that."""
        name, at = self.marks[min(1, len(self.marks) - 1)]
        return max(0.1, (seen[name] - seen["start"]) / at) if at > 0 and name in seen else 1.0

    def length(self, phase: str) -> float:
        names = [name for name, _ in self.marks]
        at = names.index(phase)
        end = self.marks[at + 1][1] if at + 1 < len(self.marks) else self.seconds
        return end - self.marks[at][1]


@dataclass(frozen=True)
class Moment:
    """A part (0 to 1) of a phase; line: instead, the n-th line that dpkg's log grows by."""

    phase: str
    part: float
    line: int | None = None

    def __str__(self) -> str:
        return f"dpkg line {self.line}" if self.line else f"{self.phase} + {self.part:.0%}"

    def is_due(self, seen: dict[str, float], lines: int, timeline: Timeline, now: float) -> bool:
        """True once a run is as far as this, or further."""
        if self.line:
            return lines >= self.line
        names = [name for name, _ in timeline.marks]
        if any(name in seen for name in names[names.index(self.phase) + 1 :]):
            return True
        begun = seen.get(self.phase)
        return begun is not None and now - begun >= self.part * timeline.length(self.phase) * timeline.pace(seen)


@dataclass(frozen=True)
class Point:
    """One kill: which victim, when. again: for one in five, the second run is killed too, at this part of a clean run's length."""

    kind: str
    seed: int
    victim: str
    moment: Moment
    apt_part: str = "all"
    again: float | None = None


def point(kind: str, seed: int, victims: Sequence[str], timeline: Timeline) -> Point:
    """The point of a seed. Seeds that follow each other take the victims in turn and walk through all phases."""
    dice = random.Random(f"{kind}:{seed}")  # noqa: S311 - to be repeated, not to be secret
    victim, turn = victims[seed % len(victims)], seed // len(victims)
    apt_part = APT_PARTS[turn % len(APT_PARTS)]
    again = dice.random() if turn % 5 == 4 else None
    return Point(kind, seed, victim, _moment(victim, seed, turn, dice, timeline), apt_part, again)


def _moment(victim: str, seed: int, turn: int, dice: random.Random, timeline: Timeline) -> Moment:
    """Every second one walks through the phases; the others are spread over dpkg's log and over the clock."""
    part, anywhere = dice.random(), (seed * _GOLDEN + dice.random() * 0.02) % 1
    if timeline.lines and (victim == "apt" or turn % 4 == 1):
        return Moment("dpkg", part, 1 + int(anywhere * timeline.lines))
    if turn % 4 == 3:
        return Moment(*timeline.phase_at(anywhere * timeline.seconds))
    return Moment(timeline.marks[(turn // 2 + seed) % len(timeline.marks)][0], part)


@dataclass
class Eyes:
    """What is seen of one host, again and again: look() returns the phases that have begun since the last look."""

    # what the container has written, as a tree
    layer: Path
    # the disk, as the container sees it
    whole: Path
    pid_file: Path
    # phase -> time of the first look that saw it
    seen: dict[str, float] = field(default_factory=dict)
    lines: int = 0
    _size: int = 0
    _pid: str = ""
    _next: float = 0.0
    _unseen: set[str] = field(default_factory=set)

    def begin(self, now: float) -> None:
        """Take what is there now for the beginning."""
        self.seen, self.lines = {"start": now}, 0
        # What the layer has already, from the image's start or from a run before, marks nothing.
        self._unseen = {name for name, mark in _MARKS.items() if not self._there(*mark)}
        self._size, self._pid = (self.whole / _DPKG_LOG).stat().st_size, self._read_pid()

    def look(self, now: float) -> None:
        """Note what has begun. dpkg's log is looked at every time, the rest ten times a second."""
        self._look_at_log(now)
        if now < self._next:
            return
        self._next = now + 0.1
        for name in sorted(self._unseen):
            if self._there(*_MARKS[name]):
                self._unseen.discard(name)
                self.seen[name] = now
        if "journal" in self.seen and "journal-gone" not in self.seen and not self._there(*_MARKS["journal"]):
            self.seen["journal-gone"] = now
        pid = self._read_pid()
        if pid != self._pid and "restart" not in self.seen:
            self.seen["restart"] = now

    def _look_at_log(self, now: float) -> None:
        size = self._log_size()
        if size > self._size:
            self.seen.setdefault("dpkg", now)
            with (self.layer / _DPKG_LOG).open("rb") as log:
                log.seek(self._size)
                self.lines += log.read(size - self._size).count(b"\n")
            self._size = size

    def _there(self, folder: str, name: str) -> bool:
        path = self.layer / folder
        if name.endswith(".json"):
            return (path / name).exists()
        try:
            return any(entry.startswith(name) for entry in os.listdir(path))  # noqa: PTH208 - names only, hundreds of times a second
        except OSError:
            return False

    def _log_size(self) -> int:
        try:
            return (self.layer / _DPKG_LOG).stat().st_size
        except OSError:
            # not written yet, or the disk of a host that is off
            return self._size

    def _read_pid(self) -> str:
        try:
            return self.pid_file.read_text().strip() or self._pid
        except OSError:
            return self._pid
