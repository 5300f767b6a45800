"""The state of a run on disk: written whole and atomically after each event, so that --resume finds it after a kill -9.

``state.json`` lies in the run's folder: names of hosts, what became of them, and how the run was started, as far as that
is no secret.
"""

from __future__ import annotations

import os
import shlex
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from provision.errors import UsageError
from provision.lib import own_state
from provision.rollout.options import RolloutOptions
from provision.rollout.waves import Wave, WaveKind

FILE = "state.json"
SCHEMA = "provision/run/1"
# A host is through with: nothing is left to do there in this run.
DONE = frozenset({"done", "unchanged"})
# States of a host that nothing was begun on.
UNTOUCHED = frozenset({"waiting", "blocked", "busy", "skipped", "not_started"})
# What counts against --max-failures.
FAILURES = frozenset({"failed", "check_failed", "unreachable"})
_SHOWN_RUNS = 5


class Process(BaseModel):
    """A process of this machine, distinguished from a later one with its number."""

    # the most that the kernel gives out (man proc: pid_max)
    pid: int = Field(gt=0, le=1 << 22)
    # clock ticks since boot: /proc/PID/stat
    started: str | None = None
    boot_id: str | None = None

    @classmethod
    def of(cls, pid: int) -> Process:
        return cls(pid=pid, started=_started(pid), boot_id=own_boot_id())

    def alive(self) -> bool:
        """True while it runs. Of another boot, or another process by that number, it does not."""
        if self.boot_id != own_boot_id():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return self.started == _started(self.pid)
        return self.started == _started(self.pid)


class HostState(BaseModel):
    """One host of a run. status: waiting, running, or what AppliedHost says once it is known."""

    status: str = "waiting"
    # a change was begun, by this session or one before: it may be half-way
    began: bool = False
    summary: str = ""
    canary: bool = False
    wave: int | None = None
    # tried: begun, and nobody saw the end
    drain: Literal["none", "tried", "ok", "failed"] = "none"
    # due: drain was tried, and this has to follow
    resume: Literal["none", "due", "ok", "failed"] = "none"

    @property
    def owes_resume(self) -> bool:
        return self.resume in ("due", "failed")


class WaveState(BaseModel):
    kind: WaveKind
    hosts: list[str]
    status: Literal["waiting", "running", "done", "stopped", "not_begun"] = "waiting"
    seconds: float | None = None


class Where(BaseModel):
    """How a run was started: --resume starts it in the same way. extra_vars: names of variables whose values may be secrets."""

    sources: list[str] = Field(default_factory=list)
    limit: str | None = None
    # of -e: what is no secret, and files, which are read again
    values: dict[str, Any] = Field(default_factory=dict)
    files: list[str] = Field(default_factory=list)
    extra_vars: list[str] = Field(default_factory=list)
    # LABEL@FILE
    vault_password_files: list[str] = Field(default_factory=list)
    # options that ask for a password
    asks: list[str] = Field(default_factory=list)
    forks: int | None = None
    # another folder than the program's own
    catalog: str | None = None
    run_dir: str | None = None


class RunState(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True)

    schema_id: str = Field(default=SCHEMA, alias="schema")
    run: str = ""
    command: str = "apply"
    options: RolloutOptions = RolloutOptions()
    where: Where = Where()
    # UTC
    begun: str = ""
    # host name of the machine that runs it
    controller: str = ""
    # the command
    process: Process | None = None
    # ansible-playbook, which outlives a killed command
    playbook: Process | None = None
    # 1, and one more for each --resume
    sessions: int = 1
    # hosts to change: what percentages are of
    total: int = 0
    waves: list[WaveState] = Field(default_factory=list)
    hosts: dict[str, HostState] = Field(default_factory=dict)
    # of a rollback: hosts of the run before it that stay as they are -> why
    left_out: dict[str, str] = Field(default_factory=dict)
    # why no further wave was begun
    stopped: str | None = None
    # UTC; None while it runs, or after a kill
    ended: str | None = None
    exit_code: int | None = None

    def left(self) -> list[str]:
        """Return the hosts that are not done."""
        return [name for name, host in self.hosts.items() if host.status not in DONE]

    def owing(self) -> list[str]:
        """Return the hosts that were drained and not resumed."""
        return [name for name, host in self.hosts.items() if host.owes_resume]

    def canaries_left(self) -> int:
        """Return how many canaries are still to be done: canaries that were proven are not chosen again."""
        proven = sum(host.canary and host.status in DONE for host in self.hosts.values())
        return max(0, self.options.canary - proven)

    @property
    def again(self) -> str:
        """The command that goes on with it, as it has to be typed. Secrets are not kept, so they have to be given again."""
        words = ["provision", "apply", "--resume", self.run]
        if self.where.run_dir:
            words += ["--run-dir", self.where.run_dir]
        # A shell refuses the bracket: nobody goes on with a placeholder by accident.
        secrets = [f"-e <{name}=...>" for name in self.where.extra_vars]
        return " ".join([shlex.join([*words, *self.where.asks]), *secrets])

    def cut_off(self) -> str | None:
        """Why its last session did not finish; None where it did."""
        if self.ended is not None or self.process is None:
            return None
        if self.controller != socket.gethostname():
            return f"it was started on {self.controller}, and did not end there"
        if self.process.boot_id != own_boot_id():
            return "this machine was restarted or lost power in the middle of it"
        return f"its process ({self.process.pid}) was killed"

    def count(self) -> str:
        done = sum(host.status in DONE for host in self.hosts.values())
        return f"{done} of {len(self.hosts)} hosts done"


class Store:
    """A run's state, in memory and on disk. Changes go through ``change``; each is on disk when it ends.

    keep: false for a run that nobody goes on with (check mode).
    """

    def __init__(self, folder: Path, state: RunState, *, keep: bool = True) -> None:
        self.folder, self.state, self._keep = folder, state, keep
        self._lock = threading.Lock()

    @contextmanager
    def change(self) -> Iterator[RunState]:
        """Give the state to be changed, alone; write it afterwards."""
        with self._lock:
            yield self.state
            if self._keep:
                own_state.write(self.folder / FILE, self.state.model_dump_json(by_alias=True, indent=1))

    def host(self, name: str) -> HostState:
        return self.state.hosts[name]

    def mark(self, names: Sequence[str], status: str, *, began: bool | None = None, wave: int | None = None) -> None:
        with self.change() as state:
            for name in names:
                host = state.hosts[name]
                host.status = status
                if began is not None:
                    host.began = began
                if wave is not None:
                    host.wave = wave


def new_state(
    run: str, options: RolloutOptions, where: Where, waves: Sequence[WaveState], hosts: dict[str, HostState]
) -> RunState:
    """Return the state of a run that begins now, in this process."""
    return RunState(
        run=run,
        options=options,
        where=where,
        begun=now(),
        controller=socket.gethostname(),
        process=Process.of(os.getpid()),
        total=sum(len(wave.hosts) for wave in waves),
        waves=list(waves),
        hosts=hosts,
    )


def as_state(wave: Wave) -> WaveState:
    return WaveState(kind=wave.kind, hosts=list(wave.hosts))


def read(folder: Path) -> RunState:
    """Return the state of a run. Raises UsageError where it cannot be used."""
    try:
        found = own_state.read(folder / FILE, RunState)
        why = f"there is no {folder / FILE}"
    except own_state.Damaged as damage:
        found, why = None, str(damage)
    if found is None:
        raise UsageError(
            "usage.run",
            f"{folder} has no state to continue from",
            because=[why],
            hint="name the folder of a run of provision apply; or begin a new run: provision apply",
        )
    return found


def runs(base: Path) -> list[Path]:
    """Return the folders of runs that can be gone on with, newest first."""
    if not base.is_dir():
        return []
    return sorted((path.parent for path in base.glob(f"*/{FILE}")), key=lambda path: path.name, reverse=True)


def find(run: str, base: Path) -> Path:
    """Return the folder of a run: ``last``, a part of its name, or a path.

    Raises UsageError for none and for more than one, with those that there are.
    """
    known = runs(base)
    path = Path(run).expanduser()
    if "/" in run or path.is_absolute():
        if (path / FILE).is_file():
            return path.absolute()
        raise _unknown(f"--resume {run}: there is no run in that folder", known)
    if run == "last":
        if known:
            return known[0]
        raise _unknown("--resume last: there is no run yet", known)
    exact = [folder for folder in known if folder.name == run]
    nearest = exact or [folder for folder in known if run in folder.name]
    if len(nearest) == 1:
        return nearest[0]
    if nearest:
        raise _unknown(f"--resume {run}: {len(nearest)} runs match that name", nearest)
    raise _unknown(f"--resume {run}: no run has that name", known)


def _unknown(message: str, known: Sequence[Path]) -> UsageError:
    states = [(folder.name, own_state.read_or_none(folder / FILE, RunState)) for folder in known[:_SHOWN_RUNS]]
    listed = [f"{name}: {state.count() if state else 'its state cannot be read'}" for name, state in states]
    if len(known) > _SHOWN_RUNS:
        listed.append(f"and {len(known) - _SHOWN_RUNS} older ones")
    hint = (
        f"name one of them: provision apply --resume {known[0].name}"
        if known
        else "runs are in the state folder, or in --run-dir"
    )
    return UsageError("usage.run", message, because=listed, hint=hint)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def own_boot_id() -> str | None:
    return read_line(Path("/proc/sys/kernel/random/boot_id"))


def read_line(path: Path) -> str | None:
    """Return what a small file of the system says; None where there is none."""
    try:
        return path.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def _started(pid: int) -> str | None:
    text = read_line(Path(f"/proc/{pid}/stat"))
    # The name of the program, in brackets, may have blanks in it: fields are counted after it. Source: proc(5).
    return text.rpartition(")")[2].split()[19] if text else None
