"""The run: a lab of hosts of one kind, points in batches, and a row for each host and kill."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.lab import Lab, LabHost
from tests.lab.engine import Engine, engine

from . import judge, victims
from .kinds import Kind
from .moments import Eyes, Point, Timeline, point

ROOT = Path(__file__).parents[3]
# seconds that a command may take before it counts as one that never ends
LIMIT = 900.0
# victims on this machine: one kill for all hosts of a command
_HERE = ("controller", "tree")
_TICK = 0.02


@dataclass
class Run:
    """One command that has ended: its exit code (None: it was ended after LIMIT), what it printed, how long it took."""

    code: int | None
    out: str
    err: str
    seconds: float


@dataclass
class Target:
    """A point and the host that it is tried on, with what came of it."""

    point: Point
    host: LabHost
    eyes: Eyes
    # whose moment it is: the first of the command where the victim is here, else the point itself
    lead: Point
    # of each run: names of what was killed
    killed: list[list[str]] = field(default_factory=list)
    at: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    @property
    def init(self) -> str:
        return self.eyes.pid_file.read_text().strip()

    @property
    def root(self) -> Path:
        return self.eyes.whole


class Harness:
    """Hosts of one kind, and what a clean run does to them. Use as a context; ``work`` tries points and yields rows."""

    def __init__(self, kind: Kind, *, batch: int, jobs: int, evidence: Path | None = None) -> None:
        self.kind, self.batch, self.jobs, self.evidence = kind, batch, jobs, evidence
        self.commit = _commit()
        self._exit = contextlib.ExitStack()
        self._numbers = itertools.count(1)
        self._guard = threading.Lock()

    def __enter__(self) -> Harness:
        with self._exit:
            self.folder = Path(self._exit.enter_context(tempfile.TemporaryDirectory(prefix="kill-", dir="/var/tmp")))
            if self.kind.private_cgroup:
                _private_cgroup(self._exit)
            self.lab = self._exit.enter_context(Lab.start([]))
            self.lab.served.add_release("24.04")
            if self.kind.publish:
                self.kind.publish(self.lab)
            folder = self.lab.inventory.parent / "group_vars"
            folder.mkdir(exist_ok=True)
            (folder / "all.yml").write_text(yaml.safe_dump(self.kind.config()))
            names = [f"k{number}" for number in range(1, self.batch * self.jobs + 1)]
            hosts = self.lab.add([{"name": name, **self.kind.spec} for name in names])
            self.slots = [hosts[at : at + self.batch] for at in range(0, len(hosts), self.batch)]
            self._calibrate()
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    # --- points

    def work(self, seeds: Sequence[int], victims_: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Try the points of these seeds, several batches at a time; yields a row for each as it is done."""
        points = [point(self.kind.name, seed, victims_, self.timeline) for seed in seeds]
        groups: dict[tuple[str, bool], list[Point]] = {}
        for item in points:
            key = (item.victim if item.victim in _HERE else "host", item.again is not None)
            groups.setdefault(key, []).append(item)
        # One moment for all hosts of a command is little to learn from: half as many share one.
        sizes = {key: max(1, self.batch // 2) if key[0] in _HERE else self.batch for key in groups}
        batches = [
            group[at : at + sizes[key]] for key, group in groups.items() for at in range(0, len(group), sizes[key])
        ]
        batches.sort(key=lambda batch: batch[0].seed)
        free = list(self.slots)

        def one(batch: list[Point]) -> list[dict[str, Any]]:
            with self._guard:
                slot = free.pop()
            try:
                return self._batch(batch, slot)
            finally:
                with self._guard:
                    free.append(slot)

        with ThreadPoolExecutor(self.jobs) as pool:
            for rows in pool.map(one, batches):
                yield from rows

    def _batch(self, points: list[Point], slot: list[LabHost]) -> list[dict[str, Any]]:
        begun = time.monotonic()
        hosts = slot[: len(points)]
        eyes = self._reset(hosts)
        targets = [
            Target(item, host, eye, points[0] if item.victim in _HERE else item)
            for item, host, eye in zip(points, hosts, eyes, strict=True)
        ]
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            place = Place(self, Path(name))
            runs = self._tries(place, targets)
            seconds = round((time.monotonic() - begun) / len(points), 1)
            return [self._row(target, runs, seconds) for target in targets]

    def _tries(self, place: Place, targets: list[Target]) -> dict[str, Run]:
        names = [target.host.name for target in targets]
        words = self.kind.command(self.kind.words, names)
        runs = {"first": place.killed(words, targets, again=False)}
        if targets[0].point.again is not None:
            self._up(targets)
            runs["second"] = place.killed(words, targets, again=True)
        self._up(targets)
        for name, run in runs.items():
            for target in targets:
                _add(target, judge.wrong_cause(run.out + run.err), name)
                if run.code is None:
                    _add(target, {"no end": f"the killed run was not over after {LIMIT:.0f} s"}, name)
        last = self._reached(place, words, targets)
        if _has_error(last, "host.locked") and victims.marked(place.mark):
            # Documented: another run is at work there. It is what the killed controller left, and it ends by itself.
            for target in targets:
                target.notes.append("refused while the processes of the killed run were at work")
            place.until_alone()
            last = self._reached(place, words, targets)
        runs["last"] = last
        files = {}
        for target in targets:
            _add(target, self._judged(last, target, self.kind.ends), "")
            now = judge.Host.read(target.root, target.init)
            _add(target, judge.of_host(self.kind, self.start, now, self.clean), "")
            files[target.host.name] = _stamp(target.root)
        runs["settled"] = self._reached(place, self.kind.command(self.kind.settled, names), targets)
        for target in targets:
            _add(target, self._judged(runs["settled"], target, self.kind.rests), "third run: ")
            if _stamp(target.root) != files[target.host.name]:
                _add(target, {"third run changes": "dpkg's record is another one after it"}, "")
            _add(target, judge.left_here(place.temporary), "")
        place.end()
        return runs

    def _reached(self, place: Place, words: list[str], targets: list[Target]) -> Run:
        """Run a command; again, with a note in the row, where a loaded machine kept ssh or sudo from answering in time."""
        for _ in range(2):
            run = place.run(words)
            if run.code != 4 or not _has_error(run, "connect."):
                return run
            for target in targets:
                target.notes.append("a host was not reached in time (exit code 4): the command was run again")
            self._up(targets)
        return place.run(words)

    def _judged(self, run: Run, target: Target, statuses: frozenset[str]) -> dict[str, str]:
        if run.code is None:
            return {"no end": f"not over after {LIMIT:.0f} s: {(run.out + run.err)[-500:]}"}
        return judge.of_document(run.out + run.err, run.code, target.host.name, statuses)

    def _row(self, target: Target, runs: dict[str, Run], seconds: float) -> dict[str, Any]:
        item = target.point
        row = {
            "kind": item.kind,
            "seed": item.seed,
            "victim": item.victim,
            "moment": str(target.lead.moment),
            "part": item.apt_part if item.victim == "apt" else None,
            "lead": target.lead.seed,
            "killed": target.killed,
            "at": target.at,
            "notes": target.notes,
            "lost": target.lost,
            "seconds": seconds,
            "commit": self.commit,
            "runs": {name: {"code": run.code, "seconds": round(run.seconds, 1)} for name, run in runs.items()},
            "when": time.strftime("%H:%M:%S"),
        }
        if target.lost and self.evidence:
            self._keep(self.evidence / f"{item.kind}-{item.seed}", target, runs, row)
        return row

    def _keep(self, folder: Path, target: Target, runs: dict[str, Run], row: dict[str, Any]) -> None:
        """What somebody needs who wants to know why: outputs, the host's own records and logs."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "row.json").write_text(json.dumps(row, indent=1))
        for name, run in runs.items():
            (folder / f"{name}.txt").write_text(f"exit {run.code}\n{run.out}\n{run.err}")
        for path in ("var/lib/gpu-provision", "var/log/gpu-provision", "var/log/dpkg.log"):
            there = target.root / path
            if there.is_dir():
                shutil.copytree(there, folder / "host" / path, symlinks=True)
            elif there.exists():
                shutil.copy(there, folder / "host")

    # --- hosts

    def _calibrate(self) -> None:
        """Run the command once without a kill: the start, the phases, and the end that every other end is compared with."""
        slot = self.slots[0]
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            place = Place(self, Path(name))
            eyes = [_eyes(host) for host in slot]
            targets = [
                Target(_nobody(self.kind), host, eye, _nobody(self.kind)) for host, eye in zip(slot, eyes, strict=True)
            ]
            names = [host.name for host in slot]
            self.start = judge.Host.read(eyes[0].whole, targets[0].init)
            first = place.killed(self.kind.command(self.kind.words, names), targets, again=False, watch_only=True)
            lost = {
                host.name: judge.of_document(first.out + first.err, first.code or 0, host.name, self.kind.ends)
                for host in slot
            }
            rest = place.run(self.kind.command(self.kind.settled, names))
            for host in slot:
                lost[host.name].update(
                    judge.of_document(rest.out + rest.err, rest.code or 0, host.name, self.kind.rests)
                )
            wrong = {host: loss for host, loss in lost.items() if loss}
            if wrong:
                raise RuntimeError(
                    f"{self.kind.name}: a run that nobody killed ends wrong: {json.dumps(wrong, indent=1)}\n{rest.out[-6000:]}"
                )
            begun = eyes[0].seen["start"]
            marks = sorted(((mark, at - begun) for mark, at in eyes[0].seen.items()), key=lambda mark: mark[1])
            self.timeline = Timeline(marks, first.seconds, eyes[0].lines)
            self.clean = judge.Host.read(eyes[0].whole, targets[0].init)

    def _reset(self, hosts: list[LabHost]) -> list[Eyes]:
        """Bring hosts back to the prepared disk. Not host.reset(): that writes the lab's record, which is one for all."""

        def one(host: LabHost) -> Eyes:
            engine().remove([host.container])
            host.container = self.lab.start_container(host.spec, host.address, host.port, host.image)
            host.wait(120)
            return _eyes(host)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(one, hosts))

    def _up(self, targets: list[Target]) -> None:
        """Wait for hosts that were switched off: the engine starts them again."""
        for target in targets:
            target.host.wait(120)

    def new_number(self) -> int:
        return next(self._numbers)


class Place:
    """Where the commands of one batch run: a home, a folder for temporary files, one for state, all empty at first."""

    def __init__(self, harness: Harness, folder: Path) -> None:
        self.harness, self.mark, self.pace = harness, uuid.uuid4().hex, 1.0
        self.temporary = folder / "tmp"
        for name in ("home", "tmp", "state"):
            (folder / name).mkdir()
        self.folder = folder
        self.env = {
            **os.environ,
            "HOME": str(folder / "home"),
            "TMPDIR": str(self.temporary),
            "XDG_STATE_HOME": str(folder / "state"),
            "NO_COLOR": "1",
            "PYTHONPATH": str(ROOT),
            victims.MARK: self.mark,
        }
        self.env.pop("ANSIBLE_CONFIG", None)

    def _start(self, words: list[str], out: Path) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "provision", "-i", str(self.harness.lab.inventory), *words]
        with out.open("wb") as file, out.with_suffix(".err").open("wb") as talk:
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=file, stderr=talk, env=self.env, cwd=ROOT, start_new_session=True
            )

    def run(self, words: list[str]) -> Run:
        """Run a command to its end."""
        return self._follow(words, lambda process: None)

    def _follow(self, words: list[str], look: Callable[[subprocess.Popen[bytes]], None]) -> Run:
        out = self.folder / f"{self.harness.new_number()}.out"
        begun = time.monotonic()
        process = self._start(words, out)
        while process.poll() is None and time.monotonic() - begun < LIMIT:
            look(process)
            time.sleep(_TICK)
        code = process.poll()
        if code is None:
            victims.kill_tree(self.mark)
            process.wait()
        return Run(
            code,
            out.read_text(errors="replace"),
            out.with_suffix(".err").read_text(errors="replace"),
            time.monotonic() - begun,
        )

    def killed(self, words: list[str], targets: list[Target], *, again: bool, watch_only: bool = False) -> Run:
        """Run a command and kill each target's victim at its moment; those of this machine at that of the first."""
        begun = time.monotonic()
        for target in targets:
            target.eyes.begin(begun)
        open_ = [] if watch_only else list(targets)
        here = open_ and open_[0].point.victim in _HERE

        def look(process: subprocess.Popen[bytes]) -> None:
            now = time.monotonic()
            for target in targets:
                if watch_only or target in open_:
                    target.eyes.look(now)
            if here and open_ and self._is_due(open_[0], begun, now, again):
                gone = [target for target in targets if target in open_]
                names = self._kill_here(open_[0].point.victim, process)
                open_.clear()
                for target in gone:
                    _note(target, names, begun)
            for target in [] if here else list(open_):
                if self._is_due(target, begun, now, again):
                    names = victims.kill_on_host(target.point.victim, target.point.apt_part, target.init)
                    if names:
                        open_.remove(target)
                        _note(target, names, begun)

        run = self._follow(words, look)
        self.pace = self.harness.timeline.pace(targets[0].eyes.seen) if not watch_only else 1.0
        for target in open_:
            target.killed.append([])
            target.at.append("nothing was left to kill")
        return run

    def _is_due(self, target: Target, begun: float, now: float, again: bool) -> bool:
        timeline = self.harness.timeline
        if again:
            return now - begun >= (target.lead.again or 0.0) * timeline.seconds * self.pace
        return target.point.moment.is_due(target.eyes.seen, target.eyes.lines, timeline, now)

    def _kill_here(self, victim: str, process: subprocess.Popen[bytes]) -> list[str]:
        if victim == "tree":
            return victims.kill_tree(self.mark)
        process.kill()
        return ["provision"]

    def until_alone(self) -> None:
        """Wait until nothing of the earlier commands is at work here, apart from connections that ssh keeps for a minute."""
        deadline = time.monotonic() + 180
        while victims.marked(self.mark) and time.monotonic() < deadline:
            time.sleep(0.2)

    def end(self) -> None:
        victims.kill_tree(self.mark)


def _note(target: Target, names: list[str], begun: float) -> None:
    target.killed.append(sorted(set(names)))
    phases = sorted(target.eyes.seen, key=lambda name: target.eyes.seen[name])
    target.at.append(f"{time.monotonic() - begun:.1f} s, {phases[-1]}, dpkg line {target.eyes.lines}")


def _add(target: Target, lost: dict[str, str], where: str) -> None:
    for name, words in lost.items():
        target.lost.setdefault(f"{where}{name}" if where.endswith(": ") else name, f"{where} {words}".strip())


def _has_error(run: Run, code: str) -> bool:
    """True where the command told an error whose code begins so."""
    document = judge.parsed(run.out + run.err) or {}
    return any(str(error.get("code", "")).startswith(code) for error in document.get("errors", ()))


def _stamp(root: Path) -> tuple[int, int]:
    info = (root / "var/lib/dpkg/status").stat()
    return info.st_ino, info.st_mtime_ns


def _eyes(host: LabHost) -> Eyes:
    about = engine().inspect(host.container)
    data = about["GraphDriver"]["Data"]
    return Eyes(Path(data["UpperDir"]), Path(data["MergedDir"]), Path(about["PidFile"]))


def _nobody(kind: Kind) -> Point:
    from .moments import Moment

    return Point(kind.name, 0, "power", Moment("start", 0.0))


def _private_cgroup(exit_: contextlib.ExitStack) -> None:
    """A docker on a host needs a cgroup namespace of its own."""
    flags = Engine.boot_flags.fget  # type: ignore[attr-defined]
    Engine.boot_flags = property(lambda self: [*flags(self), "--cgroupns=private"])  # type: ignore[method-assign, assignment]

    def back() -> None:
        Engine.boot_flags = property(flags)  # type: ignore[method-assign, assignment]

    exit_.callback(back)


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=7"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "no git"
