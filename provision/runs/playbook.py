"""ansible-playbook, loaded before it is known what to play. Runs as a program of its own; see engine.make_ready.

stdin: one line, a JSON object {arguments, inventory, limit, vault_password, extra_vars, folder, log, events}; what follows it is
ansible-playbook's own (a password). The end of stdin before that line: nothing is to be played.

What must lie in a file by Ansible's rules lies in memory of this process: a process that is killed leaves nothing.

Half a second of imports goes by while hosts are read, or while a person reads the plan.

Should the process that started this one be killed, this one ends the play as Ctrl-C would: a run that nobody follows, nobody
can stop, and the next one would have to wait for it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

# seconds
_POLL_SECONDS = 0.5
_ANSIBLE_POLL_SECONDS = 0.005
_PATIENCE = 15.0

# What a run over ssh loads first. Only a head start: what is missing here is loaded when it is needed.
_USUAL = (
    "ansible.executor.playbook_executor",
    "ansible.executor.task_queue_manager",
    "ansible.executor.module_common",
    "ansible.plugins.strategy.linear",
    "ansible.plugins.connection.ssh",
    "ansible.plugins.become.sudo",
    "ansible.plugins.shell.sh",
    "ansible.plugins.action.normal",
)


def _load() -> Callable[[], object]:
    """Return ansible-playbook's main."""
    main: Callable[[], object] = importlib.import_module("ansible.cli.playbook").main
    for name in _USUAL:
        importlib.import_module(name)
    # How often Ansible asks its workers whether they are done: a thousand times a second otherwise, while apt runs for minutes.
    vars(importlib.import_module("ansible.constants"))["DEFAULT_INTERNAL_POLL_INTERVAL"] = _ANSIBLE_POLL_SECONDS
    # What is loaded stays: the processes that Ansible forks need neither search it for garbage nor copy it.
    gc.freeze()
    return main


def _end_with(parent: int) -> None:
    """Wait until this process has another parent, that is, until its own has died; then end, more and more firmly."""
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        os.killpg(os.getpgrp(), number)
        time.sleep(_PATIENCE)


def _in_memory(text: str) -> str:
    """Return the path of a file that is nowhere but in memory, and ends with this process."""
    file = os.memfd_create("gpu-provision")
    # Ansible would run a source that is executable.
    os.fchmod(file, 0o600)
    with open(file, "w", encoding="utf-8", closefd=False) as out:
        out.write(text)
    return f"/proc/self/fd/{file}"


def _once(text: str) -> str:
    """Return the path of a pipe that gives a text to the first reader; then it is empty."""
    read, write = os.pipe()
    os.write(write, text.encode())
    os.close(write)
    return f"/proc/self/fd/{read}"


def _fifo(text: str, folder: str) -> str:
    """Return the path of a named pipe that gives a text to the first reader: for where Ansible resolves links."""
    path = os.path.join(folder, f"pipe-{os.getpid()}")  # noqa: PTH118 - imported anyway
    os.mkfifo(path, 0o600)

    def give() -> None:
        with open(path, "w", encoding="utf-8") as out:
            os.unlink(path)  # noqa: PTH108
            out.write(text)

    threading.Thread(target=give, name="give", daemon=True).start()
    return path


def _arguments(request: dict[str, Any]) -> list[str]:
    arguments: list[str] = [*request["arguments"], "--limit", f"@{_in_memory(request['limit'])}"]
    if request["inventory"] is not None:
        arguments += ["-i", _in_memory(request["inventory"])]
    if request["vault_password"] is not None:
        arguments += ["--vault-password-file", _once(request["vault_password"])]
    return [*arguments, "--extra-vars", f"@{_fifo(request['extra_vars'], request['folder'])}"]


def main() -> int:
    """Load, wait for a request, play."""
    parent = os.getppid()
    play, failure = None, None
    try:
        play = _load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - reported below, where there is a log
        failure = error
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0
    request = json.loads(line)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if play is None:
        raise failure or RuntimeError("Ansible is not loaded")
    os.environ["GPU_PROVISION_EVENTS"] = request["events"]
    sys.argv = ["ansible-playbook", *_arguments(request)]
    threading.Thread(target=_end_with, args=(parent,), name="watch the parent", daemon=True).start()
    play()
    return 0


if __name__ == "__main__":
    sys.exit(main())
