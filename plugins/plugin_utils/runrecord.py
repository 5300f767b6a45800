# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The short record of a run that a host keeps (module_utils/run/record.py): what, when, who, by which inventory and lock.

Used by the command and by the action plugin host_lock alike; nothing heavy is imported here.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from ansible_collections.gpu.provision.plugins.plugin_utils import lockfile, runlock

# The variable that names the lock of versions, see provision/lock.
_LOCK = "gpu_provision_lock"


def record(run, status, packages=(), checks=None, rebooted=False, took=None, repairs=()):
    """Return a record.

    run: {"run", "command", "who", "git", "started", "inventory", "lock"}, what is the same on every host. status: as apply
    says it (done, failed, reboot_needed, …). packages: of the plan, each with name, from_version and version. checks: verdicts
    of verify, None where it was not run. took: record of the run whose lock was taken over. repairs: of sick cards, as
    provision.runs.cards.Tried has them.
    """
    found = dict(run, schema="provision/record/1", ended=now(), status=status, rebooted=bool(rebooted))
    found["packages"] = [[change["name"], change.get("from_version"), change.get("version")] for change in packages]
    found["verify"] = judged(checks) if checks is not None else None
    if repairs:
        found["repairs"] = list(repairs)
    if took:
        found["took_lock_of"] = {key: took.get(key) for key in ("run", "who")}
    return found


def judged(checks):
    """Count verdicts: {"pass": 20, "warn": 1, "fail": 0, "skip": 3, "failed": [names of those]}."""
    statuses = [check["status"] for check in checks]
    counts = {status: statuses.count(status) for status in ("pass", "warn", "fail", "skip")}
    return dict(counts, failed=[check["id"] for check in checks if check["status"] == "fail"])


def inventory_state(folder):
    """Which inventory it was: {"folder", "commit", "dirty"}. commit: of its git repository, None without one.

    dirty: files of the folder differ from that commit, so that it alone does not say what was asked for.
    """
    commit = runlock.git(folder, "rev-parse", "HEAD")
    changed = runlock.git(folder, "status", "--porcelain", "--", ".") if commit else None
    return {
        "folder": str(folder),
        "commit": commit.strip() if commit else None,
        "dirty": bool(changed.strip()) if changed is not None else None,
    }


def lock_state(path):
    """Which lock of versions it was: {"path", "sha256"}; None without one."""
    if not path or not Path(path).is_file():
        return None
    return {"path": str(path), "sha256": hashlib.sha256(Path(path).read_bytes()).hexdigest()}


def now():
    """This moment as ``2026-11-28T09:30:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def of_play(run, task_vars):
    """Return the record of a play of ours on one host, from what its roles have left in the host's variables.

    None where the play changed nothing there: a host that is as it should be keeps no record of that.
    """
    plan = (runlock.fact(task_vars, "gpu_provision_play_plan") or {}).get("plan")
    if not plan or not plan.get("steps"):
        return None
    verified = task_vars.get("__gpu_verify") or {}
    if verified.get("checks"):
        status = "check_failed" if verified.get("failed") else "done"
    elif _true(task_vars.get("nvidia_driver_reboot_required")):
        status = "reboot_needed"
    else:
        status = "failed"
    folder = task_vars.get("inventory_dir") or task_vars.get("playbook_dir") or Path.cwd()
    named = str(task_vars.get(_LOCK) or "")
    lock = Path(folder, named) if named else lockfile.find(lockfile.of_play(task_vars))
    known = dict(run, inventory=inventory_state(folder), lock=lock_state(lock))
    packages = [] if status == "failed" else plan.get("packages") or []
    rebooted = status in ("done", "check_failed") and plan["reboot"]["needed"]
    return record(known, status, packages, verified.get("checks"), rebooted)


def _true(value):
    return value is True or str(value).lower() == "true"
