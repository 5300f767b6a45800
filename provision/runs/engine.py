"""Changes hosts: ansible-playbook as a process of its own, watched through the events of our callback plugin.

ansible-playbook's exit code is not the judge (4 means 'unreachable' and 'parser error' alike): the events are.
Passwords and variables reach it on its stdin, and lie in no file and in no argument list.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from provision.collection import COLLECTIONS_PATH, ROOT
from provision.errors import Exit, HostFailedError, Issue
from provision.inventory import Host, Inventory
from provision.lib import load, own_state, scratch
from provision.remote import answers, explain

Event = dict[str, Any]
HostStatus = Literal["ok", "changed", "failed", "unreachable", "interrupted", "not_started"]
_POLL = 0.05
# Of ansible-playbook's output: how much is read for its last lines.
_LAST_BYTES = 64 * 1024
# How long a host may take to log us in and to make us root, while this machine is quiet. Ansible's own default is 10 s.
_ANSWER_SECONDS = 60
_LOCAL_SUDO = "ansible_local_become_success_timeout"
# Hosts whose connection broke before anything was changed are played once more.
_TRIES = 2
# Ansible's text for a connection that never came about, or for a sudo that did not say that it is through: the program
# of the task was not sent. Sources: ansible/plugins/connection/ssh.py and local.py (2.19), OpenSSH's ssh.c and kex.c.
_NOT_BEGUN = re.compile(
    r"waiting for privilege escalation prompt|Timed out waiting for become success|ssh: connect to host|"
    r"during banner exchange|kex_exchange_identification|Could not resolve hostname"
)
_AROUND = re.compile(
    r"^(?:Task failed: )?(?:Failed to connect to the host via ssh: |Data could not be sent to [^:]*: )?"
)
# What may be over in a moment; a refused connection or login is not.
_AGAIN = frozenset({explain.SLOW, "connect.closed", "connect.lost", "connect.timeout"})
# Tasks that only read, and those of ours that send one program, at once.
_READS = frozenset({"gather_facts", "gpu_facts", "gpu_verify", "host_may_reboot", "host_plan", "ping", "setup"})
_ONE_PROGRAM = frozenset({"apt_sources", "apt_transaction", "driver_boot", "host_packages"})
# host_plan takes the plan that was made.
_ON_HOST = (_READS | _ONE_PROGRAM) - {"host_plan"}
# After Ctrl-C: how long ansible-playbook may take to end, before it is told again and then made to.
_PATIENCE = (20.0, 5.0)


@dataclass
class HostOutcome:
    """What a run did on one host."""

    status: HostStatus = "not_started"
    # names of the tasks that changed something
    changed: list[str] = field(default_factory=list)
    failed_task: str | None = None
    # a task of this run ran on it
    reached: bool = False
    # it failed, and nothing was changed before
    untouched: bool = False
    # where it was when the run was cut off
    running_task: str | None = None
    # the module of the task that failed
    failed_action: str | None = None
    # the reboot of a task was seen through: another boot answers
    rebooted: bool = False
    reboot_required: bool = False
    # why it is left to the owner
    reboot_because: list[str] = field(default_factory=list)
    # why a daemon has to be restarted, and who is in the way
    restart_required: list[str] | None = None
    issue: Issue | None = None
    # what our modules went on with
    warnings: list[Issue] = field(default_factory=list)

    @property
    def exit_code(self) -> Exit:
        if self.status == "unreachable":
            return Exit.UNREACHABLE
        if self.status == "interrupted":
            return Exit.INTERRUPTED
        if self.status in ("failed", "not_started"):
            return Exit.FAILED
        waits = self.reboot_required or self.restart_required is not None
        return Exit.REBOOT_NEEDED if waits else Exit.OK


@dataclass
class RunResult:
    """What a run did: outcome by host name, in the order asked for."""

    hosts: dict[str, HostOutcome]
    run_dir: Path
    rc: int
    interrupted: bool = False
    seconds: float = 0.0


def runs_folder() -> Path:
    """Return the state folder's ``runs``, where runs are kept unless --run-dir says otherwise."""
    return own_state.folder() / "runs"


def new_run_dir(command: str, base: Path | None = None) -> Path:
    """Make ``<UTC timestamp>-<command>-<short id>`` (mode 0700) under base, by default the state folder's ``runs``."""
    base = base or runs_folder()
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = base / f"{stamp}-{command}-{secrets.token_hex(3)}"
    folder.mkdir(mode=0o700, parents=True)
    return folder


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
        out.write(text)


class _Loading:
    """A process that has Ansible loaded, or is about to, and waits to be told what to play."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # -P: the folder of the program, full of modules of ours, is not put before Ansible's imports.
        self.environment = dict(environment)
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("playbook.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment,
            start_new_session=True,
        )

    def play(self, request: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """Tell it what to play; raises BrokenPipeError when it is gone. Its stdin is Ansible's from then on."""
        stdin = self.process.stdin
        if stdin is None:
            raise BrokenPipeError
        stdin.write(json.dumps(request).encode() + b"\n")
        stdin.flush()
        return self.process

    def forget(self) -> None:
        """End it. Should this process die first, the end of its stdin ends it too."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()


_loading: list[_Loading] = []
# how many plays of this process may have changed something
plays = 0
_loading_lock = threading.Lock()


def make_ready(inventory: Inventory) -> None:
    """Begin to load Ansible in a process of its own, for a run_playbook that will probably follow.

    That process knows no host and no secret, and ends by itself when nothing is to be played.
    """
    with _loading_lock:
        if not _loading:
            _loading.append(_Loading(_environment(inventory)))


def processes() -> list[int]:
    """Process ids of what make_ready began: they are part of this run, and may outlive this process for a moment."""
    with _loading_lock:
        return [loading.process.pid for loading in _loading]


def dismiss() -> None:
    """End what make_ready began, where nothing came of it."""
    with _loading_lock:
        while _loading:
            _loading.pop().forget()


def run_playbook(
    playbook: Path,
    inventory: Inventory,
    hosts: Sequence[str],
    extra_vars: Mapping[str, Any],
    run_dir: Path,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    forks: int | None = None,
    check: bool = False,
    verbosity: int = 0,
    pythons: Mapping[str, Mapping[str, str | None]] | None = None,
    skip_tags: Sequence[str] = (),
    on_start: Callable[[int], None] = lambda pid: None,
) -> RunResult:
    """Run a playbook on hosts and return each one's outcome; on_event sees every event as it happens.

    The inventory is read again by ansible-playbook from the same sources, with the same vault secrets and -e
    variables; extra_vars come on top. run_dir gets events.jsonl and ansible.log. pythons: the Python of hosts,
    {"path", "version"} by name, for those whose inventory leaves it to Ansible to find one. on_start: called with the process id,
    since the run outlives a caller that is killed.
    skip_tags: tags of tasks that are left out.
    Hosts whose connection broke before anything was changed are played once more, after the others.
    Ctrl-C is passed on once, waited for, and the result says what was done, with ``interrupted`` set.
    Raises HostFailedError when ansible-playbook cannot be started.
    """
    global plays
    started = time.monotonic()
    names = list(hosts)
    log, events = run_dir / "ansible.log", run_dir / "events.jsonl"
    write_private(log, "")
    write_private(events, "")
    state = _State(names)
    interrupted = False
    with events.open(encoding="utf-8") as lines:
        reader = _complete_lines(lines.read)
        for attempt in range(_TRIES):
            if attempt:
                names = state.begin_again()
            if not names or interrupted:
                break
            request = _request(
                playbook, inventory, names, extra_vars, forks, check, verbosity, pythons or {}, skip_tags
            )
            process = _start(request, inventory, log, events)
            plays += not check
            try:
                on_start(process.pid)
                _send_password(process, inventory.become_password)
                interrupted = _watch(process, reader, state, on_event)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    return RunResult(
        hosts=state.outcomes(interrupted, _why_ended(process.returncode, log), run_dir),
        run_dir=run_dir,
        rc=process.returncode,
        interrupted=interrupted,
        seconds=time.monotonic() - started,
    )


# ---- the process -------------------------------------------------------------------------------------------


def _start(request: Mapping[str, Any], inventory: Inventory, log: Path, events: Path) -> subprocess.Popen[bytes]:
    """Start ansible-playbook, in the process that has loaded it meanwhile where there is one."""
    environment = _environment(inventory)
    with _loading_lock:
        loading = _loading.pop() if _loading else None
    if loading is not None and loading.environment != environment:
        # Settings that changed since would be its old ones.
        loading.forget()
        loading = None
    complete = {**request, "log": str(log), "events": str(events)}
    if loading is not None:
        with contextlib.suppress(BrokenPipeError):
            return loading.play(complete)
        loading.forget()
    try:
        return _Loading(environment).play(complete)
    except OSError as error:
        raise HostFailedError(
            "engine.no_ansible",
            "ansible-playbook cannot be started",
            because=[str(error)],
            hint="pip install ansible-core, beside gpu-provision",
        ) from error


def _request(
    playbook: Path,
    inventory: Inventory,
    hosts: Sequence[str],
    extra_vars: Mapping[str, Any],
    forks: int | None,
    check: bool,
    verbosity: int,
    pythons: Mapping[str, Mapping[str, str | None]],
    skip_tags: Sequence[str],
) -> dict[str, Any]:
    """Return the request to _playbook.py: arguments, and beside them what no argument list and no file may hold."""
    command = [str(playbook)]
    for source in inventory.sources:
        command += ["-i", source]
    command += [word for tag in skip_tags for word in ("--skip-tags", tag)]
    command += ["--forks", str(forks or min(max(len(hosts), 1), 64))]
    for given in inventory.vault_ids:
        command += ["--vault-id", given]
    if inventory.become_password is not None:
        command += ["--become-password-file", "-"]
    if check:
        command += ["--check", "--diff"]
    if verbosity:
        command.append("-" + "v" * min(verbosity, 4))
    more = _host_vars(inventory, hosts, pythons)
    return {
        "arguments": command,
        "inventory": json.dumps({"all": {"hosts": more}}) if more else None,
        # A file of names: what is a pattern in --limit is a name there.
        "limit": "".join(f"{name}\n" for name in hosts),
        "vault_password": inventory.vault_password,
        "extra_vars": json.dumps({**inventory.extra_vars, **extra_vars}),
        "folder": str(scratch.folder()),
    }


def _host_vars(
    inventory: Inventory, hosts: Sequence[str], pythons: Mapping[str, Mapping[str, str | None]]
) -> dict[str, dict[str, Any]]:
    """Return what we know about hosts and their inventory leaves open. What hosts said of themselves is marked as data."""
    found: dict[str, dict[str, Any]] = {}
    wanted = set(hosts)
    for host in inventory.hosts:
        if host.implicit_local:
            # ansible-playbook goes to a localhost that is named in a host list by ssh; we do not, so say so.
            found[host.name] = _local_vars(host)
        elif host.name in wanted and host.connection.python is None:
            # The fast read found it and ran with it: Ansible's own search is a round trip and a process more.
            python = pythons.get(host.name, {})
            path, version = python.get("path"), python.get("version") or ""
            if path and f"python{'.'.join(version.split('.')[:2])}" in inventory.settings.get("pythons", ()):
                # Ansible trusts an inventory: without the mark a template in it would run here.
                found[host.name] = {"ansible_python_interpreter": {"__ansible_unsafe": path}}
        if host.name in wanted and host.connection.kind == "local" and _LOCAL_SUDO not in host.vars:
            # The limit on sudo of the connection "local" can be set nowhere else.
            found.setdefault(host.name, {})[_LOCAL_SUDO] = _ANSWER_SECONDS * _patience(len(inventory.hosts))
    return found


def _local_vars(host: Host) -> dict[str, str]:
    """The system's Python first: apt and dpkg belong to it, and this program's may lie in a virtual environment."""
    python = host.connection.python or ("/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable)
    return {"ansible_connection": "local", "ansible_python_interpreter": python}


def _environment(inventory: Inventory) -> dict[str, str]:
    """The user's environment, with our collection and callback added to what the user has configured."""
    settings = inventory.settings
    patience = _patience(len(inventory.hosts))
    seconds = max(int(settings.get("timeout") or 0), _ANSWER_SECONDS * patience)
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": ":".join([str(COLLECTIONS_PATH), *settings.get("collections_paths", [])]),
        "ANSIBLE_ROLES_PATH": ":".join([*settings.get("roles_path", []), str(ROOT / "roles")]),
        "ANSIBLE_CALLBACKS_ENABLED": ",".join(
            ["gpu.provision.gpu_provision_events", *settings.get("callbacks_enabled", [])]
        ),
        # Its copies of what it sends to hosts: in ~/.ansible/tmp those of a killed run would stay.
        "ANSIBLE_LOCAL_TEMP": str(scratch.folder()),
        # And the folders that Python's multiprocessing makes for Ansible's workers.
        "TMPDIR": str(scratch.for_sockets()),
        "ANSIBLE_NOCOLOR": "1",
        # For connections and for sudo: the larger of the user's value and ours. Both names, since which one wins differs.
        "ANSIBLE_TIMEOUT": str(seconds),
        "ANSIBLE_SSH_TIMEOUT": str(seconds),
        "ANSIBLE_RETRY_FILES_ENABLED": "false",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("ANSIBLE_FORCE_COLOR", None)
    if not settings.get("pipelining_configured"):
        environment["ANSIBLE_PIPELINING"] = "true"
    arguments = str(settings.get("ssh_args") or "")
    if "serveralive" not in (arguments + _ssh_config()).lower():
        # A half-open connection after a reboot ends in 15 seconds (more on a busy machine) instead of hanging.
        alive = f"-o ServerAliveInterval=5 -o ServerAliveCountMax={3 * patience}"
        environment["ANSIBLE_SSH_ARGS"] = f"{arguments} {alive}".strip()
    return environment


@functools.cache
def _patience(hosts: int) -> int:
    """Decided once: a process that is loaded ahead has it already."""
    return load.patience(hosts)


def _ssh_config() -> str:
    path = Path("~/.ssh/config").expanduser()
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _send_password(process: subprocess.Popen[bytes], password: str | None) -> None:
    """ansible-playbook reads the become password from stdin ("-"); nobody else reads there."""
    stdin = process.stdin
    if stdin is None:
        return
    try:
        if password is not None:
            stdin.write(password.encode() + b"\n")
        stdin.close()
    except BrokenPipeError:
        # it ended at once; its log says why
        return


def _watch(
    process: subprocess.Popen[bytes], reader: Iterator[list[str]], state: _State, on_event: Callable[[Event], None]
) -> bool:
    """Follow the events until the process ends; return whether the user interrupted."""
    signals: list[int] = []
    answered = stops = 0
    deadline = float("inf")
    with _collected(signals):
        ended = False
        while not ended:
            ended = process.poll() is not None
            for line in next(reader):
                event = _event(line)
                if event is not None:
                    state.take(event)
                    on_event(event)
            new = len(signals) - answered
            if not ended and (new or time.monotonic() > deadline):
                answered += new
                stops += new or 1
                deadline = _stop(process, stops)
            time.sleep(0 if ended else _POLL)
    return bool(signals)


@contextlib.contextmanager
def _collected(signals: list[int]) -> Iterator[None]:
    """Collect the signals that would raise KeyboardInterrupt: in the middle of an event that would lose it, and those after it."""
    handled = {}
    if threading.current_thread() is threading.main_thread():
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        handled = {number: signal.getsignal(number) for number in numbers if callable(signal.getsignal(number))}
    try:
        for number in handled:
            signal.signal(number, lambda number, frame: signals.append(number))
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)


def _event(line: str) -> Event | None:
    """Return an event of our callback; None for a line that is none (a full disk cuts one off): the run goes on without it."""
    try:
        event = answers.loads(line.encode("utf-8", "replace"))
    except answers.BadAnswer:
        return None
    return event if isinstance(event, dict) and isinstance(event.get("event"), str) else None


def _stop(process: subprocess.Popen[bytes], times: int) -> float:
    """Tell the run to end: first as Ctrl-C does, then harder. Return when to lose patience."""
    if process.poll() is None:
        os.killpg(process.pid, (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[min(times, 3) - 1])
    return time.monotonic() + _PATIENCE[min(times, len(_PATIENCE)) - 1]


def _complete_lines(read: Callable[[], str]) -> Iterator[list[str]]:
    """Yield the lines that are complete since last time; a half-written one waits for its end."""
    rest = ""
    while True:
        *lines, rest = (rest + read()).split("\n")
        yield lines


def _why_ended(code: int, log: Path) -> list[str]:
    """Why ansible-playbook ended before its hosts were done."""
    if code >= 0:
        return _last_lines(log)
    because = [f"it was ended by signal {-code} ({signal.strsignal(-code)})"]
    if -code == signal.SIGKILL:
        because.append(
            "Linux does that when memory runs out: dmesg names the process, and --forks changes fewer hosts at a time"
        )
    return because


def _last_lines(log: Path) -> list[str]:
    """Return the error lines of ansible-playbook's output, or its last lines."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_BYTES))
        text = file.read().decode("utf-8", "replace")
    lines = [line.strip()[:300] for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR!", "[ERROR]"))]
    return (errors or lines)[-4:]


# ---- what the events mean ------------------------------------------------------------------------------------


class _State:
    """The outcome of each host, built from events."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = {name: HostOutcome() for name in hosts}
        self._stats: dict[str, dict[str, int]] | None = None
        # hosts whose last task did not begin, since there was no connection for it
        self._repeat: set[str] = set()

    def take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "stats":
            self._stats = {**(self._stats or {}), **event["hosts"]}
            return
        outcome = self._hosts.get(event.get("host", ""))
        if outcome is None:
            return
        if kind == "host_start":
            outcome.running_task = event["task"]
            if outcome.status == "not_started":
                outcome.status = "ok"
            return
        outcome.running_task = None
        outcome.warnings += [
            Issue(code="host.warning", host=event["host"], message=text) for text in event.get("warnings") or ()
        ]
        if event.get("reboot_required"):
            outcome.reboot_required = True
            outcome.reboot_because = list(event.get("reboot_because") or [])
        if "restart_required" in event:
            outcome.restart_required = event["restart_required"]
        if kind == "ok":
            outcome.reached = outcome.reached or event["changed"] or module_of(event) in _ON_HOST
            outcome.status = "ok" if outcome.status == "not_started" else outcome.status
            if event["changed"]:
                outcome.changed.append(event["task"])
                outcome.rebooted = outcome.rebooted or is_reboot(event)
        elif kind == "unreachable" or (kind == "failed" and not event.get("ignored")):
            self._failed(event, outcome)

    def _failed(self, event: Event, outcome: HostOutcome) -> None:
        text, action = str(event.get("message") or ""), module_of(event)
        early = _NOT_BEGUN.search(text) is not None
        lost = event["event"] == "unreachable" or early
        outcome.untouched = not outcome.changed and (action in _READS or (early and action in _ONE_PROGRAM))
        outcome.failed_task, outcome.failed_action = event["task"], event.get("action")
        outcome.issue = _lost(event, said(event)) if lost else _issue(event)
        # A host that was reached in this run and then took too long is there.
        code = outcome.issue.code
        if lost and outcome.untouched and code in _AGAIN:
            self._repeat.add(event["host"])
        there = code == explain.SLOW or (code == "connect.timeout" and outcome.reached)
        outcome.status = "unreachable" if event["event"] == "unreachable" and not there else "failed"

    def begin_again(self) -> list[str]:
        """Return the hosts to play once more, and forget what became of them."""
        names = [name for name in self._hosts if name in self._repeat]
        self._repeat.clear()
        for name in names:
            self._hosts[name] = HostOutcome()
            (self._stats or {}).pop(name, None)
        return names

    def outcomes(self, interrupted: bool, why: list[str], run_dir: Path) -> dict[str, HostOutcome]:
        """Return the final word on each host."""
        for name, outcome in self._hosts.items():
            numbers = (self._stats or {}).get(name)
            if numbers is not None and not numbers["failures"] and not numbers["unreachable"]:
                # A failure that a rescue block took care of.
                outcome.status, outcome.failed_task, outcome.issue = "ok", None, None
                outcome.failed_action = None
            elif outcome.status in ("ok", "not_started") and numbers is None:
                self._unfinished(name, outcome, interrupted, why)
            if outcome.status == "ok" and outcome.changed:
                outcome.status = "changed"
            if outcome.issue is not None and outcome.issue.hint is None:
                outcome.issue.hint = f"see {run_dir / 'ansible.log'}"
        return self._hosts

    def _unfinished(self, name: str, outcome: HostOutcome, interrupted: bool, why: list[str]) -> None:
        task = outcome.running_task
        if interrupted:
            begun = outcome.status == "ok"
            where = f"in task {task!r}" if task else "between two tasks" if begun else "before it started"
            message = f"interrupted {where}"
            outcome.status = "interrupted" if begun else "not_started"
            hint = "run the command again: it continues where this one stopped"
            outcome.issue = Issue(code="run.interrupted", host=name, message=message, hint=hint)
        else:
            outcome.status = "failed"
            message = "ansible-playbook ended before the host was done"
            outcome.issue = Issue(code="engine.failed", host=name, message=message, because=why)


def is_reboot(event: Event) -> bool:
    """True for an event of a task that reboots its host."""
    return module_of(event) == "reboot"


def module_of(event: Event) -> str:
    """Return the name of the module of an event's task, without its collection."""
    return str(event.get("action") or "").rpartition(".")[2]


def said(event: Event) -> str:
    """Return why a task failed, without the words that Ansible puts around it."""
    text = str(event.get("message") or "failed (its output is not shown: no_log)").strip()
    return _AROUND.sub("", text).rstrip(": \n") or text


def _lost(event: Event, text: str) -> Issue:
    """What Ansible's connection said, as the fast read says it."""
    issue = explain.ssh_failed(text, host=event["host"], address=event["host"]).issue
    if issue.code == "connect.failed":
        issue.code, issue.message = "connect.lost", "the connection broke"
    issue.message = f"{event['task']}: {issue.message}"
    return issue


def _issue(event: Event) -> Issue:
    first, *rest = said(event).splitlines() or [""]
    because = event.get("because") or [line.strip() for line in rest if line.strip()][:8]
    return Issue(
        code=str(event.get("code") or "apply.task_failed"),
        host=event["host"],
        message=f"{event['task']}: {first.rstrip(': ')}",
        because=[str(line) for line in because] if isinstance(because, list) else [str(because)],
        hint=event.get("hint"),
    )
