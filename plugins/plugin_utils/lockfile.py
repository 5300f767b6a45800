# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Which lock of versions belongs to an inventory: where it is, and for which inventory it was written.

Used by the command and by action plugins alike; nothing heavy is imported here.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

# Variable (an extra variable of the command, any variable in plain Ansible): a lock's path, "none" for no lock at all.
VARIABLE = "gpu_provision_lock"
# The first inventory of a folder; every other one there has INVENTORY.lock.yml.
NAME = "fleet.lock.yml"
_LINE = re.compile(r"^inventory:[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|([^#'\"\s][^#\n]*?))[ \t]*(?:#.*)?$", re.MULTILINE)
_HEAD = 4096


def source_of(sources):
    """Return the inventory that a lock belongs to, of all of a call: the first file or folder, else the list of hosts."""
    files = [str(source) for source in sources if "," not in str(source) and Path(source).exists()]
    return str(Path(files[0]).absolute()) if files else ",".join(map(str, sources)).rstrip(",") + ","


def of_play(task_vars):
    """Return the same from the variables of a play."""
    return source_of(task_vars.get("ansible_inventory_sources") or [task_vars.get("inventory_file") or "localhost,"])


def places(source):
    """Return where the lock of an inventory may be, the preferred place for a new one first.

    Beside its file; above its folder, since Ansible reads every file inside; in the current folder for a list of hosts.
    """
    if "," in source:
        return [Path.cwd() / NAME]
    path = Path(source)
    return [path.parent / NAME, path.parent / f"{path.name if path.is_dir() else path.stem}.lock.yml"]


def is_for(path, inventory, source):
    """Whether the inventory that a lock names is this one. Lists of hosts are one: each call names other hosts."""
    if "," in inventory or "," in source:
        return "," in inventory and "," in source
    return (path.parent / inventory).resolve() == Path(source).resolve()


def relative(path, source):
    """Return an inventory as its lock names it: relative to the lock, so that both can move together."""
    return source if "," in source else os.path.relpath(Path(source).resolve(), path.parent.resolve())


def find(source):
    """Return the lock of an inventory, None where there is none.

    A lock that names no inventory counts (version 0.1 wrote such ones), and so does one whose inventory is gone: that
    inventory may have been renamed to this one, and whoever reads the lock refuses it.
    """
    for path in reversed(places(source)):
        if path.is_file():
            inventory = _named(path)
            if inventory is None or is_for(path, inventory, source) or not _is_there(path, inventory):
                return path
    return None


def _is_there(path, inventory):
    return "," in inventory or (path.parent / inventory).exists()


def _named(path):
    with path.open(encoding="utf-8", errors="replace") as file:
        found = _LINE.search(file.read(_HEAD))
    return next(filter(None, found.groups())) if found else None
