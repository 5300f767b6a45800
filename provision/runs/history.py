"""What was done to hosts, by whom, with which inventory and lock: kept with each run on this machine, and on the hosts.

A run's folder has ``history.json`` (who, what, its sessions, and a record of each host), beside the plan, the events and the
result, and ``before.lock.yml``: what its hosts had before, as a lock, which is what a rollback holds them to. Both are of the
run: a session that goes on with it adds to what the earlier ones did, and replaces nothing of it.

``Recorder`` is the observer with which apply takes the hosts' locks and writes all this; ``runs`` reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.probe.facts import is_interesting
from ansible_collections.gpu.provision.plugins.plugin_utils import runlock, runrecord
from provision import remote
from provision.documents import PlanDocument
from provision.errors import Exit, Issue, ProvisionError, UsageError
from provision.facts import Package
from provision.inventory import Host
from provision.lib import own_state
from provision.lib.text import plural
from provision.lock.pin import path_of
from provision.planning import read_facts
from provision.rollout.observers import RunObserver
from provision.rollout.state import FILE as STATE
from provision.rollout.state import RunState
from provision.runs.cards import Tried
from provision.runs.fleet import Silent, ask_all
from provision.runs.run_lock import HostLocks, folder_of

if TYPE_CHECKING:
    from provision.documents import AppliedHost, ApplyDocument
    from provision.parts.plan import HostPlan
    from provision.runs.fleet import Fleet, Talk

FILE = "history.json"
BEFORE = "before.lock.yml"
SCHEMA = "provision/history-run/1"
# Nothing was done to a host with one of these: it gets no record.
_UNTOUCHED = frozenset({"unchanged", "checked", "blocked", "busy", "skipped", "not_started"})
# What was planned for a host with one of these is not what was done there.
_UNFINISHED = frozenset({"failed", "interrupted", "unreachable"})
# Events of so many runs are read for how long reboots took.
_REBOOTS_OF = 20
_REBOOTED = re.compile(
    r'"host": "(?P<host>[^"]+)".*"action": "ansible\.builtin\.reboot".*"duration": (?P<seconds>[0-9.]+).*"event": "ok"'
)


class InventoryState(BaseModel):
    """Which inventory it was. commit: None without git; dirty: files differed from that commit."""

    folder: str | None = None
    commit: str | None = None
    dirty: bool | None = None


class LockState(BaseModel):
    """The lock of versions that hosts were held to."""

    path: str = ""
    sha256: str = ""


class Judged(BaseModel):
    """How many checks said what. failed: names of those that failed."""

    passed: int = Field(0, alias="pass")
    warn: int = 0
    fail: int = 0
    skip: int = 0
    failed: list[str] = Field(default_factory=list)

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


class HostRecord(BaseModel):
    """What a run did to one host, as the host keeps it. packages: [name, version before, version after], null for none."""

    run: str
    status: str
    command: str = ""
    who: str = ""
    git: str | None = None
    # UTC
    started: str = ""
    ended: str = ""
    inventory: InventoryState | None = None
    lock: LockState | None = None
    packages: list[tuple[str, str | None, str | None]] = Field(default_factory=list)
    rebooted: bool = False
    verify: Judged | None = None
    took_lock_of: dict[str, str | None] | None = None
    # who found it cut off, and removed its lock
    ended_by: str | None = None
    # of sick cards: a rescue from another machine does not try them again
    repairs: list[Tried] = Field(default_factory=list)


class Session(BaseModel):
    """One session of a run: its first, or one that went on with it. ended: None while it lasts, or where it was cut off."""

    started: str = ""
    ended: str | None = None
    exit_code: int | None = None
    who: str = ""
    inventory: InventoryState | None = None
    lock: LockState | None = None
    # what it left each host as
    hosts: dict[str, str] = Field(default_factory=dict)


class Run(BaseModel):
    """One run, as its folder on this machine tells it. ended: None while it goes on, or where it was cut off."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    schema_id: str = Field(default=SCHEMA, alias="schema")
    run: str
    command: str = ""
    who: str = ""
    git: str | None = None
    started: str = ""
    ended: str | None = None
    exit_code: int | None = None
    inventory: InventoryState | None = None
    lock: LockState | None = None
    # hosts that it was to change
    planned: list[str] = Field(default_factory=list)
    hosts: dict[str, HostRecord] = Field(default_factory=dict)
    # host -> why: busy, blocked, …
    left_alone: dict[str, str] = Field(default_factory=dict)
    # oldest first; none: an earlier version wrote it
    sessions: list[Session] = Field(default_factory=list)
    folder: str | None = None
    # it goes on: its process is there
    active: bool = False
    # of one that was interrupted: why its last session has no end, and the command that goes on
    cut_off: str | None = None
    again: str | None = None
    _unreadable: bool = PrivateAttr(default=False)

    @property
    def unreadable(self) -> bool:
        """Nothing is known of it but its name: its record is broken."""
        return self._unreadable

    @property
    def state(self) -> str:
        """done, failed (a host is not as it should be), interrupted, at work, or cut off."""
        if self.ended is None:
            return "at work" if self.active else "cut off"
        if self.exit_code == Exit.INTERRUPTED:
            return "interrupted"
        return "done" if self.exit_code in (0, int(Exit.REBOOT_NEEDED)) else "failed"


_OF_SESSION = {"started", "ended", "exit_code", "who", "inventory", "lock"}


class Recorder(RunObserver):
    """Takes the lock of each host before it is touched; gives it back, with a record of the run, when it is done with.

    command: as a person typed it, without values. before: host -> lock entry of what it had, see ``keep_before``. force: take
    locks of others (--break-lock).
    """

    def __init__(
        self,
        fleet: Fleet,
        plans: Mapping[str, HostPlan],
        command: str,
        talk: Talk,
        *,
        force: bool = False,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        self._fleet, self._plans, self._command, self._talk, self._force = fleet, plans, command, talk, force
        self._before = before or {}
        self._renewing, self._renews = ExitStack(), False
        # hosts to let go
        self._through: dict[str, AppliedHost] = {}
        # of the sessions before this one
        self._earlier: list[PlanDocument] = []
        self._issues: list[Issue] = []

    def begin(self, folder: Path) -> None:
        """Write down who begins what, with which inventory and lock."""
        self._folder = folder
        self._locks = HostLocks(self._fleet, self._command, folder.name, self._talk, force=self._force)
        place = folder_of(self._fleet)
        values = next(iter(self._fleet.values.values()), {})
        self._about: dict[str, Any] = {
            "run": folder.name,
            "command": self._command,
            "who": runlock.who(),
            "git": runlock.git_identity(place),
            "started": runrecord.now(),
            "inventory": runrecord.inventory_state(place),
            "lock": runrecord.lock_state(path_of(values)),
        }
        earlier = own_state.take(folder / FILE, Run, self._talk.note)
        planned = [name for name, plan in self._plans.items() if plan.status == "changes"]
        self._run = Run.model_validate({**self._about, "planned": planned, "folder": str(folder)})
        self._run.sessions = [Session.model_validate(self._run.model_dump(include=_OF_SESSION))]
        if earlier is not None:
            self._about["started"] = self._run.started = earlier.started
            self._run.hosts, self._run.left_alone = earlier.hosts, earlier.left_alone
            self._run.planned = list(dict.fromkeys([*earlier.planned, *planned]))
            before = earlier.sessions or [Session.model_validate(earlier.model_dump(include=_OF_SESSION))]
            self._run.sessions = [*before, *self._run.sessions]
            self._earlier = (plans_of(folder) or [])[: len(before)]
        self._save()
        state = own_state.read_or_none(folder / STATE, RunState)
        begun = [name for name, host in state.hosts.items() if host.began] if state and earlier else []
        keep_before({name: entry for name, entry in self._before.items() if name not in begun}, folder / BEFORE)

    def before_wave(self, wave: int, hosts: Sequence[str]) -> Mapping[str, Issue]:
        """Take the locks; the first time, begin to renew them."""
        if not self._renews:
            self._renewing.enter_context(self._locks.kept())
            self._renews = True
        seen = len(self._locks.notes)
        refused = {name: error.issue for name, error in self._locks.take(hosts).items()}
        for note in self._locks.notes[seen:]:
            self._talk.note(f"{note.host}: {note.message}" + "".join(f" ({why})" for why in note.because))
        return refused

    def after_host(self, host: str, result: AppliedHost) -> None:
        """Collect what is to be recorded; hosts of a wave are let go together, at the same time."""
        self._through[host] = result
        if result.status in _UNTOUCHED - {"unchanged"} and host not in self._run.hosts:
            self._run.left_alone[host] = result.status
        if self._locks.taken <= set(self._through):
            self._let_go()

    def at_end(self, document: ApplyDocument) -> None:
        """Let go of what is left, and write the end of the run's record."""
        self._let_go()
        self._renewing.close()
        document.warnings += [*self._locks.notes, *self._issues]
        self._run.ended, self._run.exit_code = runrecord.now(), document.exit_code
        session = self._run.sessions[-1]
        session.ended, session.exit_code = self._run.ended, self._run.exit_code
        session.hosts = {name: document.hosts[name].status for name in self._plans if name in document.hosts}
        self._save()

    def _let_go(self) -> None:
        touched = {name: result for name, result in self._through.items() if result.status not in _UNTOUCHED}
        changed = self._changed(touched)
        records = {name: self._record(name, result, changed[name]) for name, result in touched.items()}
        for name, record in records.items():
            self._run.hosts[name] = HostRecord.model_validate(record)
            self._run.left_alone.pop(name, None)
        self._issues += self._locks.give_back(records)
        self._through = {}
        self._save()

    def _changed(self, touched: Mapping[str, AppliedHost]) -> dict[str, list[dict[str, Any]]]:
        """Changes of packages on hosts since the run began: what its sessions planned, as far as it is there now.

        A host that this session alone has changed, and changed to the end, has all of its plan: it is not read again.
        """
        found, unsure = {}, []
        for name, result in touched.items():
            plans = [document.hosts[name] for document in self._earlier if name in document.hosts]
            found[name] = merged([*plans, *([self._plans[name]] if name in self._plans else [])])
            if found[name] and (plans or result.status in _UNFINISHED):
                unsure.append(name)

        def read(host: Host, session: remote.Session) -> Mapping[str, Package]:
            return read_facts(session.call, self._fleet.values[host.name]).packages

        hosts = [host for host in self._fleet.hosts if host.name in unsure]
        for name, answer in ask_all(self._fleet, hosts, "recording", read, Silent()).items() if hosts else ():
            whole = touched[name].status not in _UNFINISHED
            if not isinstance(answer, ProvisionError):
                found[name] = present(found[name], answer, whole=whole)
            elif not whole:
                found[name] = []
        return found

    def _record(self, host: str, result: AppliedHost, packages: list[dict[str, Any]]) -> dict[str, Any]:
        earlier = self._run.hosts.get(host)
        checks = [check.model_dump() for check in result.checks] or None
        took = self._locks.took.get(host) or (earlier.took_lock_of if earlier else None)
        rebooted = result.rebooted or bool(earlier and earlier.rebooted)
        record: dict[str, Any] = runrecord.record(self._about, result.status, packages, checks, rebooted, took)
        return record

    def _save(self) -> None:
        own_state.write(self._folder / FILE, self._run.model_dump_json(by_alias=True, indent=1))


# ---- reading it back ---------------------------------------------------------------------------------------------------


def read(folder: Path) -> Run | None:
    """Return the run of a folder; None where it has none, or none that can be read."""
    run = own_state.read_or_none(folder / FILE, Run)
    if run is None:
        return None
    if run.state in ("cut off", "interrupted"):
        state = own_state.read_or_none(folder / STATE, RunState)
        run.active = run.ended is None and bool(state and state.process and state.process.alive())
        if state is not None and not run.active:
            run.cut_off, run.again = state.cut_off(), state.again
    return run


def folders(base: Path) -> list[Path]:
    """Return the folders of runs below a folder, newest first: their names begin with the time."""
    found = {path.parent for path in base.glob(f"*/{FILE}")} if base.is_dir() else set()
    return sorted(found, key=lambda folder: folder.name, reverse=True)


def reboots(base: Path, hosts: Collection[str]) -> dict[str, float]:
    """Return how many seconds the last reboot of each of these hosts took, by the events of the newest runs of this machine."""
    found: dict[str, float] = {}
    for folder in folders(base)[:_REBOOTS_OF]:
        try:
            events = own_state.text(folder / "events.jsonl") or ""
        except own_state.Damaged:
            continue
        for line in events.splitlines():
            if (took := _REBOOTED.search(line)) and took["host"] in hosts:
                found.setdefault(took["host"], float(took["seconds"]))
    return found


def runs(base: Path) -> list[Run]:
    """Return every run below a folder, newest first; one whose record is broken too, so that no older one is the last."""
    return [read(folder) or _unread(folder) for folder in folders(base)]


def _unread(folder: Path) -> Run:
    run = Run(run=folder.name, folder=str(folder))
    run._unreadable = True
    return run


def find(word: str, base: Path) -> Run | None:
    """Return the run below a folder that a word means, see ``meant``, and read no other; None for no run's."""
    known = {folder.name: folder for folder in folders(base)}
    name = meant(word, list(known))
    return None if name is None else read(known[name]) or _unread(known[name])


def meant(word: str, known: Sequence[str]) -> str | None:
    """Return the name of the run that a word means: ``last``, its name or folder, or a part of it that no other has.

    known: names of runs, newest first. None for no run's; UsageError where it means more than one.
    """
    if word == "last":
        return known[0] if known else None
    plain = word.rstrip("/").rpartition("/")[2]
    nearest = [name for name in known if name == plain] or [name for name in known if plain in name]
    if len(nearest) > 1:
        raise UsageError(
            "usage.run", f"{len(nearest)} runs match {word}", because=nearest[:5], hint="say more of its name"
        )
    return nearest[0] if nearest else None


# ---- what its sessions planned, and what came of it ----------------------------------------------------------------------


def plans_of(folder: Path) -> list[PlanDocument] | None:
    """Return the plans of a run's sessions, oldest first; None where there is none, or one that cannot be read."""
    paths = sorted(folder.glob("plan*.json"), key=lambda path: (len(path.name), path.name))
    found = [own_state.read_or_none(path, PlanDocument) for path in paths]
    whole = [document for document in found if document is not None]
    return whole if whole and len(whole) == len(found) else None


def merged(plans: Iterable[HostPlan]) -> list[dict[str, Any]]:
    """Changes of packages of one host over all plans: from what the first one found to what the last one wanted."""
    found: dict[str, dict[str, Any]] = {}
    for plan in plans:
        for change in plan.packages:
            first = found.get(change.name, {}).get("from_version", change.from_version)
            found[change.name] = {**change.model_dump(), "from_version": first}
    return [change for change in found.values() if change["from_version"] != change["version"]]


def present(
    changes: Sequence[dict[str, Any]], packages: Mapping[str, Package], *, whole: bool = False
) -> list[dict[str, Any]]:
    """Those changes that a host shows. packages: of its facts, which tell of those that matter to us.

    whole: its plan was carried out to the end, which is what is known of other packages.
    """
    found = []
    for change in changes:
        row = packages.get(change["name"])
        version = row.version if row and row.there else None
        if version == change["version"] if is_interesting(change["name"].encode()) else whole:
            found.append(change)
    return found


def describe_changes(packages: Iterable[tuple[str, str | None, str | None]]) -> str:
    """Say what changed: ``driver 580.95.05 to 580.126.20, 12 packages``."""
    rows = list(packages)
    if not rows:
        return ""
    return ", ".join([*_moves(rows), plural(len(rows), "package")])


def _moves(rows: Sequence[tuple[str, str | None, str | None]]) -> list[str]:
    """The moves that people think in: the driver's version, toolkits' releases, cuDNN and NCCL."""
    from ansible_collections.gpu.provision.plugins.module_utils.lib import cuda_names, driver_names

    old: dict[str, set[str]] = {}
    new: dict[str, set[str]] = {}
    for name, before, after in rows:
        for version, found in ((before, old), (after, new)):
            if version is None:
                continue
            plain = name.split(":")[0]
            cuda = cuda_names.parse(plain, version)
            if cuda is not None and cuda.kind in ("cudnn", "nccl"):
                word = {"cudnn": "cuDNN", "nccl": "NCCL"}[cuda.kind]
                found.setdefault(word, set()).add(str(cuda_names.upstream(version)))
            elif cuda is not None and cuda.version:
                found.setdefault("CUDA", set()).add(cuda.version)
            elif driver_names.is_version_locked(plain) and not plain.startswith("linux-"):
                found.setdefault("driver", set()).add(driver_names.upstream(version))
    return [
        f"{word} {_from_to(old.get(word, set()), new.get(word, set()))}"
        for word in ("driver", "CUDA", "cuDNN", "NCCL")
        if word in old or word in new
    ]


def _from_to(old: set[str], new: set[str]) -> str:
    gone, came = ", ".join(sorted(old - new)), ", ".join(sorted(new - old))
    if gone and came:
        return f"{gone} to {came}"
    return came or (f"{gone} removed" if gone else ", ".join(sorted(new)))


# ---- before a run --------------------------------------------------------------------------------------------------------


def keep_before(entries: Mapping[str, Any], path: Path) -> None:
    """Add what hosts had before a run touched them to its lock, each host its own group: nothing is averaged."""
    from provision.lock.model import Lock, dump, load

    if not entries:
        return
    lock = load(path) if path.exists() else Lock()
    lock.groups.update({name: entry.group for name, entry in entries.items()})
    lock.hosts.update({name: entry.host.model_copy(update={"group": name}) for name, entry in entries.items()})
    own_state.write(path, dump(lock))
