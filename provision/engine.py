"""Changes hosts: ansible-playbook as a process of its own, watched through the events of our callback plugin.

ansible-playbook's exit code is not the judge (4 means 'unreachable' and 'parser error' alike): the events are.
Passwords reach it on its stdin or in a file of mode 0600 that is removed as soon as it was read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
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

Event = dict[str, Any]
HostStatus = Literal["ok", "changed", "failed", "unreachable", "interrupted", "not_started"]
_POLL = 0.05
# After Ctrl-C: how long ansible-playbook may take to end, before it is told again and then made to.
_PATIENCE = (20.0, 5.0)


@dataclass
class HostOutcome:
    """What a run did on one host."""

    status: HostStatus = "not_started"
    changed: list[str] = field(default_factory=list)  # names of the tasks that changed something
    failed_task: str | None = None
    running_task: str | None = None  # where it was when the run was cut off
    failed_action: str | None = None  # the module of the task that failed
    rebooted: bool = False  # the reboot of a task was seen through: another boot answers
    reboot_required: bool = False
    reboot_because: list[str] = field(default_factory=list)  # why it is left to the owner
    restart_required: list[str] | None = None  # why a daemon has to be restarted, and who is in the way
    issue: Issue | None = None

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
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "gpu-provision" / "runs"


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
            [sys.executable, "-P", str(Path(__file__).with_name("_playbook.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=self.environment, start_new_session=True,
        )  # fmt: skip

    def play(self, arguments: Sequence[str], log: Path, events: Path) -> subprocess.Popen[bytes]:
        """Tell it what to play; raises BrokenPipeError when it is gone. Its stdin is Ansible's from then on."""
        request = {"arguments": list(arguments), "log": str(log), "events": str(events)}
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
    on_start: Callable[[int], None] = lambda pid: None,
) -> RunResult:
    """Run a playbook on hosts and return each one's outcome; on_event sees every event as it happens.

    The inventory is read again by ansible-playbook from the same sources, with the same vault secrets and -e
    variables; extra_vars come on top. run_dir gets events.jsonl and ansible.log. pythons: the Python of hosts,
    {"path", "version"} by name, for those whose inventory leaves it to Ansible to find one. on_start: told the process id,
    since the run outlives a caller that is killed.
    Ctrl-C is passed on once, waited for, and the result says what was done, with ``interrupted`` set.
    Raises HostFailedError when ansible-playbook cannot be started.
    """
    started = time.monotonic()
    names = list(hosts)
    events = run_dir / "events.jsonl"
    write_private(events, "")
    with tempfile.TemporaryDirectory(prefix="gpu-provision-") as private:
        scratch = Path(private)
        arguments = _arguments(
            playbook, inventory, names, extra_vars, scratch, forks, check, verbosity, pythons or {}
        )
        process = _start(arguments, inventory, run_dir / "ansible.log", events)
        state = _State(names)
        try:
            on_start(process.pid)
            _send_password(process, inventory.become_password)
            interrupted = _watch(process, events, scratch, state, on_event)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return RunResult(
        hosts=state.outcomes(interrupted, _last_words(run_dir / "ansible.log"), run_dir),
        run_dir=run_dir,
        rc=process.returncode,
        interrupted=interrupted,
        seconds=time.monotonic() - started,
    )


# ---- the process -------------------------------------------------------------------------------------------


def _start(arguments: list[str], inventory: Inventory, log: Path, events: Path) -> subprocess.Popen[bytes]:
    """Start ansible-playbook, in the process that has loaded it meanwhile where there is one."""
    write_private(log, "")
    environment = _environment(inventory)
    with _loading_lock:
        loading = _loading.pop() if _loading else None
    if loading is not None and loading.environment != environment:
        # Settings that changed since would be its old ones.
        loading.forget()
        loading = None
    if loading is None and importlib.util.find_spec("ansible") is not None:
        loading = _Loading(environment)
    if loading is not None:
        with contextlib.suppress(BrokenPipeError):
            return loading.play(arguments, log, events)
        loading.forget()
    try:
        with log.open("ab") as out:
            return subprocess.Popen(
                [*_ansible_playbook(), *arguments], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
                env={**environment, "GPU_PROVISION_EVENTS": str(events)}, start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise HostFailedError(
            "engine.no_ansible", "ansible-playbook cannot be started", because=[str(error)],
            hint="pip install ansible-core, beside gpu-provision",
        ) from error  # fmt: skip


def _arguments(
    playbook: Path, inventory: Inventory, hosts: Sequence[str], extra_vars: Mapping[str, Any], scratch: Path,
    forks: int | None, check: bool, verbosity: int, pythons: Mapping[str, Mapping[str, str | None]],
) -> list[str]:  # fmt: skip
    command = [str(playbook)]
    for source in inventory.sources:
        command += ["-i", source]
    more = _host_vars(inventory, hosts, pythons)
    if more:
        write_private(scratch / "hosts.json", json.dumps({"all": {"hosts": more}}))
        command += ["-i", str(scratch / "hosts.json")]
    # In files: there may be thousands of names, and values may be secrets.
    write_private(scratch / "limit", "".join(f"{name}\n" for name in hosts))
    command += ["--limit", f"@{scratch / 'limit'}", "--forks", str(forks or min(max(len(hosts), 1), 64))]
    everything = {**inventory.extra_vars, **extra_vars}
    if everything:
        write_private(scratch / "extra_vars.json", json.dumps(everything))
        command += ["--extra-vars", f"@{scratch / 'extra_vars.json'}"]
    for path in inventory.vault_password_files:
        command += ["--vault-password-file", path]
    if inventory.vault_password is not None:
        write_private(scratch / "vault", inventory.vault_password)
        command += ["--vault-password-file", str(scratch / "vault")]
    if inventory.become_password is not None:
        command += ["--become-password-file", "-"]
    if check:
        command += ["--check", "--diff"]
    if verbosity:
        command.append("-" + "v" * min(verbosity, 4))
    return command


def _host_vars(
    inventory: Inventory, hosts: Sequence[str], pythons: Mapping[str, Mapping[str, str | None]]
) -> dict[str, dict[str, str]]:
    """Return what we know about hosts and their inventory leaves open."""
    found: dict[str, dict[str, str]] = {}
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
                found[host.name] = {"ansible_python_interpreter": path}
    return found


def _local_vars(host: Host) -> dict[str, str]:
    """The system's Python first: apt and dpkg belong to it, and this program's may lie in a virtual environment."""
    python = host.connection.python or (
        "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    )
    return {"ansible_connection": "local", "ansible_python_interpreter": python}


def _ansible_playbook() -> list[str]:
    """The one that belongs to this Python, else the one on PATH."""
    beside = Path(sys.executable).with_name("ansible-playbook")
    if beside.is_file():
        return [str(beside)]
    return [shutil.which("ansible-playbook") or "ansible-playbook"]


def _environment(inventory: Inventory) -> dict[str, str]:
    """The user's environment, with our collection and callback added to what the user has configured."""
    settings = inventory.settings
    environment = {
        **os.environ,
        "ANSIBLE_COLLECTIONS_PATH": ":".join([str(COLLECTIONS_PATH), *settings.get("collections_paths", [])]),
        "ANSIBLE_ROLES_PATH": ":".join([*settings.get("roles_path", []), str(ROOT / "roles")]),
        "ANSIBLE_CALLBACKS_ENABLED": ",".join(
            ["gpu.provision.gpu_provision_events", *settings.get("callbacks_enabled", [])]
        ),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_RETRY_FILES_ENABLED": "false",
        "PYTHONUNBUFFERED": "1",
    }
    environment.pop("ANSIBLE_FORCE_COLOR", None)
    if not settings.get("pipelining_configured"):
        environment["ANSIBLE_PIPELINING"] = "true"
    arguments = str(settings.get("ssh_args") or "")
    if "serveralive" not in (arguments + _ssh_config()).lower():
        # A half-open connection after a reboot ends in 15 seconds instead of hanging.
        environment["ANSIBLE_SSH_ARGS"] = (
            f"{arguments} -o ServerAliveInterval=5 -o ServerAliveCountMax=3".strip()
        )
    return environment


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
        return  # it ended at once; its log says why


def _watch(
    process: subprocess.Popen[bytes],
    events: Path,
    scratch: Path,
    state: _State,
    on_event: Callable[[Event], None],
) -> bool:
    """Follow the events until the process ends; return whether the user interrupted."""
    interrupts = 0
    deadline = float("inf")
    with events.open(encoding="utf-8") as lines:
        reader = _complete_lines(lines.read)
        while True:
            try:
                ended = process.poll() is not None
                for line in next(reader):
                    event = json.loads(line)
                    if event["event"] == "play_start":
                        (scratch / "vault").unlink(missing_ok=True)
                    state.take(event)
                    on_event(event)
                if ended:
                    return interrupts > 0
                if time.monotonic() > deadline:
                    interrupts += 1
                    deadline = _stop(process, interrupts)
                time.sleep(_POLL)
            except KeyboardInterrupt:
                interrupts += 1
                deadline = _stop(process, interrupts)


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


def _last_words(log: Path) -> list[str]:
    """Return the error lines of ansible-playbook's output, or its last lines."""
    lines = [
        line.strip()
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    errors = [line for line in lines if line.startswith(("ERROR!", "[ERROR]"))]
    return (errors or lines)[-4:]


# ---- what the events mean ------------------------------------------------------------------------------------


class _State:
    """The outcome of each host, built from events."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = {name: HostOutcome() for name in hosts}
        self._stats: dict[str, dict[str, int]] | None = None

    def take(self, event: Event) -> None:
        kind = event["event"]
        if kind == "stats":
            self._stats = event["hosts"]
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
        if event.get("reboot_required"):
            outcome.reboot_required = True
            outcome.reboot_because = list(event.get("reboot_because") or [])
        if "restart_required" in event:
            outcome.restart_required = event["restart_required"]
        if kind == "ok":
            outcome.status = "ok" if outcome.status == "not_started" else outcome.status
            if event["changed"]:
                outcome.changed.append(event["task"])
                outcome.rebooted = outcome.rebooted or is_reboot(event)
        elif kind == "unreachable" or (kind == "failed" and not event.get("ignored")):
            outcome.status = "unreachable" if kind == "unreachable" else "failed"
            outcome.failed_task, outcome.failed_action = event["task"], event.get("action")
            outcome.issue = _issue(event)

    def outcomes(self, interrupted: bool, last_words: list[str], run_dir: Path) -> dict[str, HostOutcome]:
        """Return the final word on each host."""
        for name, outcome in self._hosts.items():
            numbers = (self._stats or {}).get(name)
            if numbers is not None and not numbers["failures"] and not numbers["unreachable"]:
                # A failure that a rescue block took care of.
                outcome.status, outcome.failed_task, outcome.issue = "ok", None, None
                outcome.failed_action = None
            elif outcome.status in ("ok", "not_started") and numbers is None:
                self._unfinished(name, outcome, interrupted, last_words)
            if outcome.status == "ok" and outcome.changed:
                outcome.status = "changed"
            if outcome.issue is not None and outcome.issue.hint is None:
                outcome.issue.hint = f"see {run_dir / 'ansible.log'}"
        return self._hosts

    def _unfinished(self, name: str, outcome: HostOutcome, interrupted: bool, last_words: list[str]) -> None:
        task = outcome.running_task
        if interrupted:
            message = f"interrupted in task {task!r}" if task else "interrupted before it was its turn"
            outcome.status = "interrupted" if outcome.status == "ok" else "not_started"
            hint = "run the command again: it goes on where this one was cut off"
            outcome.issue = Issue(code="run.interrupted", host=name, message=message, hint=hint)
        else:
            outcome.status = "failed"
            message = "ansible-playbook ended before the host was done"
            outcome.issue = Issue(code="engine.failed", host=name, message=message, because=last_words)


def is_reboot(event: Event) -> bool:
    """True for an event of a task that reboots its host."""
    return str(event.get("action", "")).rpartition(".")[2] == "reboot"


def _issue(event: Event) -> Issue:
    first, *rest = str(
        event.get("message") or "failed (its output is not shown: no_log)"
    ).strip().splitlines() or [""]
    because = event.get("because") or [line.strip() for line in rest if line.strip()][:8]
    unreachable = event["event"] == "unreachable"
    return Issue(
        code=str(event.get("code") or ("connect.lost" if unreachable else "apply.task_failed")),
        host=event["host"],
        message=f"{event['task']}: {first}",
        because=[str(line) for line in because] if isinstance(because, list) else [str(because)],
        hint=event.get("hint"),
    )
