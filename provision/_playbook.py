"""ansible-playbook, loaded before it is known what to play. Runs as a program of its own; see engine.make_ready.

stdin: one line, a JSON object {arguments, log, events}; what follows it is ansible-playbook's own (a password). The
end of stdin before that line: nothing is to be played.

Half a second of imports goes by while hosts are read, or while a person reads the plan.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from collections.abc import Callable

# What a run over ssh loads first. Only a head start: what is missing here is loaded when it is needed.
_USUAL = (
    "ansible.executor.playbook_executor", "ansible.executor.task_queue_manager", "ansible.executor.module_common",
    "ansible.plugins.strategy.linear", "ansible.plugins.connection.ssh", "ansible.plugins.become.sudo",
    "ansible.plugins.shell.sh", "ansible.plugins.action.normal",
)  # fmt: skip


def _load() -> Callable[[], object]:
    """Return ansible-playbook's main."""
    main: Callable[[], object] = importlib.import_module("ansible.cli.playbook").main
    for name in _USUAL:
        importlib.import_module(name)
    # What is loaded stays: the processes that Ansible forks need neither search it for garbage nor copy it.
    gc.freeze()
    return main


def main() -> int:
    """Load, wait to be told, play."""
    play, trouble = None, None
    try:
        play = _load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - told below, where there is a log to tell it to
        trouble = error
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        return 0
    request = json.loads(line)
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    if play is None:
        raise trouble or RuntimeError("Ansible is not loaded")
    os.environ["GPU_PROVISION_EVENTS"] = request["events"]
    sys.argv = ["ansible-playbook", *request["arguments"]]
    play()
    return 0


if __name__ == "__main__":
    sys.exit(main())
