"""rescue: broken hosts back by the smallest repairs, round by round, proven by a fresh read.

Each round reads every host, diagnoses it, plans, shows, asks, and has ansible-playbook carry it out. A run that was interrupted
is finished by the next one: nothing is kept here, every round begins with what is there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.plugin_utils import runlock, runrecord
from provision.catalog import load_catalog
from provision.collection import ROOT
from provision.commands import verify
from provision.commands.history import of_host
from provision.commands.outcomes import reboot_issue, show_event
from provision.diagnose.finding import Cause, Diagnosis
from provision.errors import Exit, HostFailedError, Issue, ProvisionError, UsageError
from provision.facts import Facts
from provision.inventory import Host
from provision.lib import own_state
from provision.lock.pin import path_of
from provision.remote import Session
from provision.rescue.again import past_of, tries
from provision.rescue.model import History, OfflineDocument, OfflineHost, RescuedHost, RescueDocument, RescueStep
from provision.rescue.offline import known_of, offline_script
from provision.rescue.orders import orders, record
from provision.rescue.rounds import Limits, next_level, to_mend
from provision.rescue.session import Inspection, Mode, inspect_host, limits_of
from provision.rescue.touched import configured, touched
from provision.runs import engine, history, left_behind
from provision.runs.cards import Tried
from provision.runs.engine import Event, HostOutcome
from provision.runs.fleet import Fleet, Silent, Talk, ask_all, release
from provision.runs.following import following
from provision.runs.run_lock import HostLocks, folder_of
from provision.runs.run_lock import left_behind as left_lock

_PLAYBOOK = ROOT / "playbooks/rescue.yml"
# a broken host answers slowly: dmesg, systemctl and nvidia-smi may each run into their limit
_READ_SECONDS = 120.0
_CODES = {
    "well": Exit.OK,
    "undone": Exit.OK,
    "rescued": Exit.OK,
    "planned": Exit.CHANGES,
    "left": Exit.CHECK_FAILED,
    "check_failed": Exit.CHECK_FAILED,
    "reboot_needed": Exit.REBOOT_NEEDED,
    "blocked": Exit.REFUSED,
    "failed": Exit.FAILED,
    "unreachable": Exit.UNREACHABLE,
    "interrupted": Exit.INTERRUPTED,
}
_OVER = ("left", "failed")
OFFLINE = "at its console: provision rescue {host} --offline-script writes a script to carry there"


@dataclass(frozen=True)
class Options:
    """What a person said. stop_holders: services that hold the modules may stop for a moment; snapshot: id, for undo."""

    mode: Mode = "mend"
    snapshot: str | None = None
    stop_holders: bool = False
    dry_run: bool = False
    break_lock: bool = False
    run_base: Path | None = None
    verbosity: int = 0


@dataclass
class _Rescued:
    """One host on its way."""

    history: History = field(default_factory=History)
    first: Inspection | None = None
    last: Inspection | None = None
    # what ended the last round
    issue: Issue | None = None
    snapshot: str | None = None
    # set once its fate is known
    end: RescuedHost | None = None


def run(
    fleet: Fleet,
    talk: Talk | None = None,
    options: Options = Options(),  # noqa: B008 - frozen
    agree: Callable[[RescueDocument], bool] = lambda document: True,
) -> RescueDocument:
    """Rescue every host of the fleet. agree: shown each round before it is carried out; False ends the rescue there.

    Exit codes by host: 0 well or rescued and proven, 1 a step failed, 3 something stays broken or a check failed,
    4 unreachable, 5 something must be waited for, 6 a reboot is left to the owner, 2 planned only.
    """
    return _Run(fleet, talk or Silent(), options, agree).run()


class _Run:
    def __init__(self, fleet: Fleet, talk: Talk, options: Options, agree: Callable[[RescueDocument], bool]) -> None:
        self.fleet, self.talk, self.options, self.agree = fleet, talk, options, agree
        self.hosts = {host.name: _Rescued() for host in fleet.hosts}
        self.limits = {host.name: self._limits(host) for host in fleet.hosts}
        self.errors: list[Issue] = []
        self.run_dir: Path | None = None
        self.locks: HostLocks | None = None
        self.seconds, self.interrupted = 0.0, False
        self.warnings: list[Issue] = []
        self.started = runrecord.now()
        self.memory = verify.memory_of(self.options.run_base)
        self.past: dict[str, list[Tried]] = {}

    def run(self) -> RescueDocument:
        try:
            while self._open():
                self._read()
                names = self._to_carry_out()
                if not names:
                    break
                if self.options.dry_run or not self.agree(self._next_rounds()):
                    break
                self._carry_out(names)
                if self.interrupted:
                    break
            self._prove()
            self._end_what_was_left()
        finally:
            engine.dismiss()
            self._let_go()
            self._remember()
            release(self.fleet)
        document = self._document()
        if self.run_dir is not None:
            own_state.write(self.run_dir / "result.json", document.to_json())
        return document

    def _let_go(self) -> None:
        """Give the locks back, with a record of what was done on each host."""
        if self.locks is None or self.run_dir is None:
            return
        document = self._document()
        place, values = folder_of(self.fleet), next(iter(self.fleet.values.values()), {})
        about = {
            "run": self.run_dir.name,
            "command": "provision rescue",
            "who": runlock.who(),
            "git": runlock.git_identity(place),
            "started": self.started,
            "inventory": runrecord.inventory_state(place),
            "lock": runrecord.lock_state(path_of(values)),
        }
        held = {name: host for name, host in document.hosts.items() if name in self.locks.taken}
        records = {
            name: runrecord.record(
                about,
                "done" if host.status in ("rescued", "undone") else host.status,
                [change.model_dump() for change in host.packages],
                [check.model_dump() for check in host.checks] or None,
                bool(host.reboots),
                self.locks.took.get(name),
                [one.model_dump() for one in self._tries(name)],
            )
            for name, host in held.items()
        }
        self.warnings += [*self.locks.give_back(records), *self.locks.notes]
        kept = history.Run.model_validate(
            {
                **about,
                "planned": list(held),
                "folder": str(self.run_dir),
                "ended": runrecord.now(),
                "exit_code": document.exit_code,
                "hosts": records,
            }
        )
        own_state.write(self.run_dir / history.FILE, kept.model_dump_json(by_alias=True, indent=1))

    def _tries(self, name: str) -> list[Tried]:
        """Repairs of sick cards that this rescue tried."""
        host = self.hosts[name]
        if host.first is None or host.last is None:
            return []
        return tries(name, host.first.facts, host.first.shown.findings, host.history.rounds, host.last.shown.findings)

    def _remember(self) -> None:
        """Keep what was tried with the cards. A dry run tries and advises nothing."""
        for name in self.hosts if not self.options.dry_run else ():
            try:
                self.memory.tried(self._tries(name))
            except HostFailedError as error:
                self.warnings.append(error.issue.model_copy(update={"host": name}))

    def _limits(self, host: Host) -> Limits:
        local = host.connection.kind == "local"
        return limits_of(self.fleet.values[host.name], local=local, stop_holders=self.options.stop_holders)

    def _open(self) -> list[str]:
        return [name for name, host in self.hosts.items() if host.end is None]

    # --- reading

    def _read(self) -> None:
        """Read every host whose fate is open and plan its next round; those with nothing to do come to their end."""
        catalog = load_catalog()
        names = set(self._open())
        again = any(self.hosts[name].first is not None for name in names)

        def ask(host: Host, session: Session) -> Inspection:
            def call(program: str, args: dict[str, Any]) -> Any:
                return session.call(program, args, timeout=_READ_SECONDS)

            history = self.hosts[host.name].history
            values = dict(self.fleet.values[host.name])
            limits = self.limits[host.name]

            def past(diagnosis: Diagnosis, facts: Facts) -> list[Tried]:
                """Repairs of its sick cards before this rescue: by the host's own records, and by this machine's memory."""
                if host.name not in self.past:
                    runs = of_host(host.name, call)[0].runs
                    known = past_of(self.memory, host.name, facts, diagnosis.findings)
                    self.past[host.name] = [*(one for run in runs for one in run.repairs), *known]
                return self.past[host.name]

            mode, snapshot = self.options.mode, self.options.snapshot
            return inspect_host(host.name, call, values, catalog, history, limits, mode, snapshot, past)

        hosts = [host for host in self.fleet.hosts if host.name in names]
        answers = ask_all(self.fleet, hosts, "looking again" if again else "looking", ask, self.talk)
        for name, answer in answers.items():
            host = self.hosts[name]
            if isinstance(answer, ProvisionError):
                self._lost(name, answer)
                continue
            host.first = host.first or answer
            host.last = answer
            self._judge(name, answer)

    def _lost(self, name: str, error: ProvisionError) -> None:
        unreachable = error.exit_code == Exit.UNREACHABLE
        issue = error.issue.model_copy(update={"host": name})
        if unreachable:
            way = OFFLINE.format(host=name)
            asks = (issue.hint or "").endswith("?")
            issue.hint = f"{issue.hint}{' ' if asks else '; '}{way}" if issue.hint else way
        self.errors.append(issue)
        self._end(name, "unreachable" if unreachable else "failed", issue.message)

    def _judge(self, name: str, seen: Inspection) -> None:
        host, found = self.hosts[name], seen.round
        if found is None and self.options.mode == "undo":
            gone = [one.undo for one in host.history.rounds if one.undo]
            if host.issue is not None:
                self.errors.append(host.issue)
            text = f"back to the state of {gone[0].made}" if gone else "nothing to go back to"
            self._end(name, "failed" if host.issue else "undone" if gone else "well", text)
        elif seen.errors and (locked := _lock_timeout(host.history)):
            # Every further step would wait as long for the same lock.
            self.errors.append(Issue(code="apt.lock_timeout", host=name, message=locked.said[0], hint=locked.hint))
            self._end(name, "blocked", locked.said[0])
        elif found is None:
            if seen.errors:
                if host.issue is not None:
                    self.errors.append(host.issue)
                self._end(name, "failed" if host.issue else "left", _count_left(seen))
            elif not self._rounds_done(name):
                self._end(name, "well", "nothing to rescue")
        elif found.blockers:
            self.errors += [issue.model_copy(update={"host": name}) for issue in found.blockers]
            self._end(name, "blocked", found.blockers[0].message)
        elif found.kind == "restart" and found.reboot and self._reboot_is_the_owners(name):
            self._wait_for_reboot(name, [step.words for step in found.steps])

    def _reboot_is_the_owners(self, name: str) -> bool:
        limits = self.limits[name]
        return limits.local or limits.reboot == "never"

    def _wait_for_reboot(self, name: str, because: list[str]) -> None:
        issue = reboot_issue(name, because)
        issue.hint = f"reboot it when convenient, then run again: provision rescue {name}"
        self.errors.append(issue)
        self._end(name, "reboot_needed", "a reboot is needed, and left to you")

    def _end(self, name: str, status: str, summary: str = "") -> None:
        self.hosts[name].end = RescuedHost.model_validate({"status": status, "summary": summary})

    # --- changing

    def _to_carry_out(self) -> list[str]:
        return [name for name in self._open() if (seen := self.hosts[name].last) is not None and seen.round is not None]

    def _carry_out(self, names: list[str]) -> None:
        """Have ansible-playbook do one round on these hosts."""
        if self.run_dir is None:
            self.run_dir = engine.new_run_dir("rescue", self.options.run_base)
        names = self._locked(names)
        if not names:
            return
        shown = {}
        for name in names:
            seen = self.hosts[name].last
            assert seen is not None and seen.round is not None  # noqa: S101 - _to_carry_out
            shown[name] = orders(seen.round, self.fleet.values[name], self.limits[name])
            self.hosts[name].history.rounds.append(seen.round)
        number = max(len(self.hosts[name].history.rounds) for name in names)
        folder = self.run_dir / f"round-{number}"
        while folder.exists():
            number += 1
            folder = self.run_dir / f"round-{number}"
        folder.mkdir(mode=0o700)
        own_state.write(folder / "rescue.json", json.dumps({"hosts": shown}, default=str))
        answers: dict[str, list[Any]] = {name: [] for name in names}
        assert self.locks is not None  # noqa: S101 - _locked
        self.talk.begin("rescuing", names)
        try:
            with (
                self.locks.kept(),
                following(self.fleet, self.talk, lambda event: self._event(event, answers)) as on_event,
            ):
                result = engine.run_playbook(
                    _PLAYBOOK,
                    self.fleet.inventory,
                    names,
                    {"gpu_provision_rescue_file": str(folder / "rescue.json"), "gpu_provision_run": self.run_dir.name},
                    folder,
                    on_event,
                    forks=self.fleet.forks,
                    verbosity=self.options.verbosity,
                    pythons=self._pythons(names),
                )
        finally:
            self.talk.end()
        self.seconds += result.seconds
        self.interrupted = result.interrupted
        middle = [name for name, outcome in result.hosts.items() if outcome.status == "interrupted"]
        for name, still in left_behind.still_running(self.fleet, middle).items():
            issue = result.hosts[name].issue
            if issue is not None:
                issue.because.append(still)
        for name in names:
            self._take(name, result.hosts[name], answers[name])

    def _locked(self, names: list[str]) -> list[str]:
        """Take the locks of these hosts; those that somebody else is at work on are left alone."""
        assert self.run_dir is not None  # noqa: S101
        if self.locks is None:
            self.locks = HostLocks(
                self.fleet, "provision rescue", self.run_dir.name, self.talk, force=self.options.break_lock
            )
        wanted = [name for name in names if name not in self.locks.taken]
        refused = self.locks.take(wanted) if wanted else {}
        for name, error in refused.items():
            self.errors.append(error.issue)
            self._end(name, error.host_status if error.exit_code != Exit.REFUSED else "blocked", error.issue.message)
        return [name for name in names if name not in refused]

    def _pythons(self, names: list[str]) -> Mapping[str, Mapping[str, str | None]]:
        found: dict[str, Mapping[str, str | None]] = {}
        for name in names:
            seen = self.hosts[name].last
            if seen is not None:
                found[name] = {"path": seen.facts.host.python_path, "version": seen.facts.host.python}
        return found

    def _event(self, event: Event, answers: dict[str, list[Any]]) -> None:
        host = event.get("host")
        if host in answers and event.get("steps"):
            answers[host] = list(event["steps"])
        if host in answers and event.get("path") and self.hosts[host].snapshot is None:
            self.hosts[host].snapshot = str(event["path"])
        show_event(self.talk, event)

    def _take(self, name: str, outcome: HostOutcome, answers: list[Any]) -> None:
        """Write down what a round did on a host."""
        host = self.hosts[name]
        host.issue = outcome.issue
        self.warnings += outcome.warnings
        if outcome.status in ("ok", "changed"):
            record(host.history, answers)
            if outcome.reboot_required:
                self._wait_for_reboot(name, outcome.reboot_because)
            return
        if outcome.status in ("interrupted", "not_started"):
            if outcome.issue is not None:
                self.errors.append(outcome.issue)
            self._end(name, "interrupted", outcome.issue.message if outcome.issue else "interrupted")
            return
        # The host is read again anyway: what failed shows in what is there.
        record(host.history, [*answers], failed=outcome.issue)

    # --- the end

    def _prove(self) -> None:
        """Hosts on which nothing is left: success is what verify says."""
        names = [name for name in self._open() if self._rounds_done(name) and not self._waits(name)]
        if not names or self.interrupted:
            return
        hosts = [host for host in self.fleet.hosts if host.name in names]
        verified = verify.run(self.fleet, self.talk, hosts, keep=True, memory=self.memory)
        self.errors += verified.errors
        for name, result in verified.hosts.items():
            status = {"fail": "check_failed", "unreachable": "unreachable", "failed": "failed"}.get(
                result.status, "rescued"
            )
            self._end(name, status)
            end = self.hosts[name].end
            assert end is not None  # noqa: S101
            end.checks = result.checks
        self._finish([name for name in names if self._status(name) == "rescued"])

    def _end_what_was_left(self) -> None:
        """A run that was killed when all was done left its lock on a host with nothing to rescue."""
        names = {
            name
            for name, host in self.hosts.items()
            if self._status(name) == "well" and host.last is not None and left_lock(name, host.last.facts)
        }
        if names and not self.options.dry_run:
            self.warnings += left_behind.end(self.fleet, names, self.options.run_base or engine.runs_folder())

    def _finish(self, names: list[str]) -> None:
        """Tell hosts that are proven that their snapshot is whole; see plugins/module_utils/rescue/snapshot.py."""
        hosts = [host for host in self.fleet.hosts if host.name in names and self.hosts[host.name].snapshot]

        def finish(host: Host, session: Session) -> Any:
            id_ = str(self.hosts[host.name].snapshot).rpartition("/")[2]
            return session.call("rescue.snapshot", {"op": "finish", "id": id_})

        for name, answer in (
            ask_all(self.fleet, hosts, "recording", finish, Silent(), reads=False).items() if hosts else ()
        ):
            if isinstance(answer, ProvisionError):
                self.errors.append(answer.issue.model_copy(update={"host": name}))

    def _rounds_done(self, name: str) -> bool:
        return any(step.ok for one in self.hosts[name].history.rounds for step in one.steps)

    def _waits(self, name: str) -> bool:
        """True for a host whose next round was shown and not carried out."""
        seen = self.hosts[name].last
        return seen is not None and seen.round is not None and not _carried(self.hosts[name].history, seen)

    def _status(self, name: str) -> str:
        end = self.hosts[name].end
        return end.status if end is not None else "planned"

    def _next_rounds(self) -> RescueDocument:
        """What is about to be done, without the hosts on which nothing is."""
        document = self._document()
        names = set(self._to_carry_out())
        if len(names) < len(document.hosts) and self.run_dir is not None:
            document.hosts = {name: host for name, host in document.hosts.items() if name in names}
        return document

    def _document(self) -> RescueDocument:
        document = RescueDocument(
            errors=list(self.errors),
            warnings=list(self.warnings),
            run_dir=str(self.run_dir) if self.run_dir else None,
            seconds=round(self.seconds, 1) if self.seconds else None,
        )
        document.hosts = {name: self._result(name) for name in self.hosts}
        codes = [_CODES[host.status] for host in document.hosts.values()]
        return document.conclude([*codes, *([Exit.INTERRUPTED] if self.interrupted else [])])

    def _result(self, name: str) -> RescuedHost:
        host = self.hosts[name]
        result = (host.end or RescuedHost(status="planned")).model_copy(deep=True)
        if host.first is None or host.last is None:
            return result
        result.found = to_mend(host.first.shown)
        result.rounds = list(host.history.rounds)
        if host.end is None and host.last.round is not None and not _carried(host.history, host.last):
            result.rounds.append(host.last.round)
        # later rounds write into them
        result.rounds = [one.model_copy(deep=True) for one in result.rounds]
        result.left = to_mend(host.last.shown)
        result.packages = touched(host.first.facts, host.last.facts, host.history)
        result.configured = configured(host.first.facts, host.last.facts)
        result.reboots, result.snapshot = host.history.reboots, host.snapshot
        result.next = next_level(host.last.shown.findings, host.history) if result.status in _OVER else ""
        return result


def _lock_timeout(history: History) -> RescueStep | None:
    """The step of the last round that another program's lock stopped."""
    steps = history.rounds[-1].steps if history.rounds else []
    return next((step for step in steps if step.code == "apt.lock_timeout" and not step.ok), None)


def _carried(history: History, seen: Inspection) -> bool:
    return any(one is seen.round for one in history.rounds)


def _count_left(seen: Inspection) -> str:
    errors: list[Cause] = seen.errors
    return (
        errors[0].message if len(errors) == 1 else f"{len(errors)} findings stay: " + ", ".join(f.code for f in errors)
    )


def offline(fleet: Fleet, output: Path | None = None, run_base: Path | None = None) -> OfflineDocument:
    """Write the program that a host's console can run where ssh cannot reach it. Contacts no host.

    output: a file for one host, a folder for several; None: the script is in the document alone. Raises UsageError where it
    cannot be written.
    """
    document = OfflineDocument()
    codes: list[Exit] = []
    several = len(fleet.hosts) > 1
    if several and output is None:
        raise UsageError(
            "usage.output", f"{len(fleet.hosts)} hosts need a script each", hint="name one host, or a folder with -o"
        )
    for host in fleet.hosts:
        values = fleet.values[host.name]
        try:
            known = known_of(host.name, values, run_base or engine.runs_folder())
            script = offline_script(host.name, values, known)
        except ProvisionError as error:
            document.hosts[host.name] = OfflineHost(status="failed")
            document.errors.append(error.issue.model_copy(update={"host": host.name}))
            codes.append(error.exit_code)
            continue
        result = OfflineHost(script=script, source=known.source if known else "")
        if output is not None:
            path = output / f"{host.name}.py" if several or output.is_dir() else output
            _write_script(path, script)
            result.path = str(path)
        document.hosts[host.name] = result
    return document.conclude(codes)


def _write_script(path: Path, script: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script, encoding="utf-8")
        path.chmod(0o755)
    except OSError as error:
        raise UsageError(
            "usage.file",
            f"cannot write {path}",
            because=[str(error)],
            hint="name a file in a folder that you can write",
        ) from error
