# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What still runs on a host of a run that was interrupted: its transaction of packages, and tasks that lost their Ansible.

A task's program goes on when the connection that started it is gone. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.apt import settle as apt_settle
from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction

# How Ansible starts a task's program: with sudo, and without. Source: ansible/plugins/become/__init__.py, plugins/shell/sh.py.
_TASK = re.compile(rb"BECOME-SUCCESS-[a-z]{8,64}|&& sleep 0")
_MOST = 8


def main(args):
    """Return {"running": [text]}; empty where nothing of a run is there any more."""
    return {"running": running()}


def running(lock=apt_transaction.LOCK):
    """Say what still runs, as texts; the transaction first. lock: of transactions."""
    packages = apt_settle.settle(lock, 0)
    if not packages["settled"]:
        return ["the change of packages (%s)" % (packages["by"] or "a process that is not seen from here")]
    return ["%s (process %d)" % (name, pid) for pid, name in _leaves()][:_MOST]


def _leaves():
    """[(pid, name)] of programs at the end of what tasks started: not the shells and sudo between them and Ansible."""
    parents, names, tasks = {}, {}, set()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            with open("/proc/%d/stat" % pid, "rb") as file:
                head, _, rest = file.read().decode("utf-8", "replace").rpartition(")")
            with open("/proc/%d/cmdline" % pid, "rb") as file:
                command = file.read(1 << 16)
        except OSError:
            # it has ended since
            continue
        fields = rest.split()
        if fields[0] in "ZX":
            continue
        parents[pid], names[pid] = int(fields[1]), head.partition("(")[2]
        if _TASK.search(command):
            tasks.add(pid)
    inner = set(parents.values())
    return sorted((pid, names[pid]) for pid in parents if pid not in inner and _lineage(pid, parents) & tasks)


def _lineage(pid, parents):
    found = set()
    while pid in parents and pid not in found:
        found.add(pid)
        pid = parents[pid]
    return found
