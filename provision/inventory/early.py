"""Starts the process that reads the inventory before the program itself is loaded: both import for a third of a second.

Next to nothing is imported here. A process that gets no request ends when its stdin does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from provision.lib import scratch

# Words that may follow on the command line without a need for an inventory, or for Ansible to read it.
_WITHOUT = frozenset(("init", "compat", "--help", "-h", "--version", "completion", "--local"))
_COMMANDS = frozenset(("scan", "plan", "apply", "verify"))
_started: list[subprocess.Popen[str]] = []


def begin(arguments: list[str]) -> None:
    """Start the process where the command line will probably ask for it."""
    words = set(arguments)
    if words & _COMMANDS and not words & _WITHOUT:
        _started.append(spawn())


def spawn() -> subprocess.Popen[str]:
    """Start a reader of inventories; see dump.py for what it takes and gives."""
    # -P: the folder of the program, full of modules of ours, is not put before Ansible's imports.
    return subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("dump.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "ANSIBLE_LOCAL_TEMP": str(scratch.folder())},
    )


def take() -> subprocess.Popen[str]:
    """Return the process that was started, else a new one."""
    return _started.pop() if _started else spawn()
