# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The controller's side of the lock on a host: who we are, and how somebody else's lock is shown.

Used by the command and by the action plugin host_lock alike. What the lock is: module_utils/run/lock.py. Nothing heavy is
imported here: Ansible loads an action plugin's imports anew for every host.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import multiprocessing
import os
import socket
import subprocess
import time

from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock

# A controller that is gone is noticed by other machines after so many seconds; by its own machine at once.
LEASE = 600
# Where nobody renews: longer than the longest task (apt_transaction may wait ten minutes and then take an hour).
LONG_LEASE = 2 * 3600
_GIT_SECONDS = 5.0


def process():
    """Return the id of this ansible-playbook, whichever of its workers asks."""
    main = multiprocessing.parent_process()
    return main.pid if main is not None else os.getpid()


def fact(task_vars, name):
    """Return what an earlier task of this ansible-playbook left with ``keep``, or None.

    Facts are there as variables or not, as Ansible is configured. With a cache of facts (fact_caching) they outlive the run: what
    another run has left there is not this one's, which would take that run's lock for its own.
    """
    found = task_vars.get(name) or (task_vars.get("ansible_facts") or {}).get(name)
    if not isinstance(found, dict) or found.get("by") != _this_run():
        return None
    return {key: value for key, value in found.items() if key != "by"}


def keep(name, value):
    """Return the ansible_facts that leave a dict for later tasks of this ansible-playbook; see ``fact``."""
    return {name: dict(value, by=_this_run())}


def _this_run():
    """What no other ansible-playbook has in common with this one: machine, boot, pid namespace, process and its start."""
    text = json.dumps(run_lock.controller([process()]), sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:12]


def new_run():
    """Return a name for this ansible-playbook as a run; in containers many have the same number, so the name tells more."""
    return "%s-ansible-%s" % (time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()), _this_run()[:6])


def holder(command, run, processes, folder, person=None):
    """Return what a lock says of its run.

    command: as a person knows it, without values. processes: ids of those that the run consists of. folder: of the
    inventory, for git. person: who it is, where something else knows better than this process.
    """
    return {
        "run": run,
        "command": command,
        "who": person or who(),
        "git": git_identity(folder),
        "controller": run_lock.controller(processes),
    }


def who():
    """Return ``user@machine`` of whoever runs this; behind sudo, who called it."""
    try:
        user = os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        # no entry in passwd: a container that runs as a number
        user = str(os.getuid())
    return "%s@%s" % (user, socket.gethostname())


def git_identity(folder):
    """Name and address by which git knows whoever runs this: it tells people apart who share an account. None without."""
    said = git(folder, "config", "--get-regexp", r"^user\.(name|email)$") or ""
    found = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
    name, mail = found.get("user.name"), found.get("user.email")
    return "%s <%s>" % (name, mail) if name and mail else name or mail


def git(folder, *arguments):
    """Return the output of git in a folder; None where it fails, takes long, or there is no git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder)] + list(arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            env=dict(os.environ, GIT_OPTIONAL_LOCKS="0", LC_ALL="C"),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def refused(lock):
    """Return the error for a host that another run holds: {"code", "message", "because", "hint"}."""
    name = (lock.get("controller") or {}).get("name") or "an unknown machine"
    because = "it was started on %s and has not ended, as far as this machine knows" % name
    if lock.get("lease"):
        because += "; not renewed for %s, its lock counts as stale" % run_lock.span(float(lock["lease"]))
    return {
        "code": "host.locked",
        "message": "another run is changing this host: %s" % run_lock.describe(lock),
        "because": [because],
        "hint": "wait for it, then run this again. If you know that it is dead: --break-lock, or with plain Ansible "
        "-e gpu_provision_break_lock=true",
    }


def took(was, why):
    """Return the warning for a lock that was taken over: {"code", "message", "because"}. why: the proof; None: by force."""
    if why is None:
        return {
            "code": "host.lock_broken",
            "message": "broke the lock of %s" % run_lock.describe(was),
            "because": ["that was asked for (--break-lock)"],
        }
    return {
        "code": "host.lock_stale",
        "message": "took over the stale lock of %s" % run_lock.describe(was),
        "because": [why],
    }


def record_of(text):
    """Return the record of a lock from the text of its file, {} where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return run_lock.sound(found) if isinstance(found, dict) and isinstance(found.get("run"), str) else {}


def proven(answer):
    """Return the proof that the lock in an answer of run.lock.acquire is stale, by what this machine knows; or None."""
    return run_lock.stale(answer["held"], None, run_lock.controller()) if answer["held"] else None
