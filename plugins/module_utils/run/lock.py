# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""One run at a time may change a host: the lock on the host, and the rule of when it is stale.

A run is many short connections and may reboot the host, so no open file can be the lock. It is a record in PATH: who,
from where, since when, with which command and run. It is made and changed under a flock that lasts for one call.

THE RULE. A lock is stale, and the next run takes it over and says why, when one of these is proven:

1. its process has ended: whoever asks runs on the same kernel and in the same pid namespace as the process that took it
   (same boot_id and namespace, so that process ids mean the same), and none of its processes is there any more. Start times
   tell a process from another one with its number; a zombie has ended.
2. the machine that it was started from was restarted: same machine, neither side in a container, another boot_id.
3. its lease is over: nobody has renewed it for that long. The command renews every minute or two while it works; plain
   Ansible has no process that could, and takes a lease that is longer than the longest task. The host's clock counts: the one
   that no setting of the time moves, while the host has not rebooted; after a reboot the wall clock, or the time since.

A reboot of the host proves nothing: runs reboot hosts. Nothing else makes a lock stale; --break-lock takes one anyway.
dpkg's own lock is another thing: apt.transaction waits for it, and for a transaction that a killed run has left behind.

Standard library only, any Python from 3.8. Used on hosts, and on the controller for rules 1 and 2.
"""

from __future__ import annotations

import calendar
import contextlib
import hashlib
import os
import socket
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files, own_state

PATH = own_state.FOLDER + "/lock.json"
# The name that the kernel gives the first pid namespace (PROC_PID_INIT_INO); in any other one, this is a container.
_FIRST_NAMESPACE = "pid:[4026531836]"
_MOST_ANCESTORS = 8
_GUARD_SECONDS = 20.0
_MOST_BYTES = 1 << 20


class LockError(Exception):
    """The lock can be neither read nor taken; nothing was changed. code, message, because and hint are an Issue's fields."""

    def __init__(self, code, message, because=(), hint=None):
        Exception.__init__(self, message)
        self.code, self.because, self.hint = code, list(because), hint


def main(args):
    """The fast read's way in: args["op"] is acquire, renew, release or read, the rest is that function's."""
    args = dict(args)
    op = {"acquire": acquire, "renew": renew, "release": release, "read": read}[args.pop("op")]
    return op(**args)


# ---- what a run does with it -------------------------------------------------------------------------------------------


def acquire(holder, lease, over=None, force=False, path=PATH, check=False):
    """Take the lock for a run, or say whose it is.

    holder: {"run", "command", "who", "git", "controller"} of the run, see controller(). lease: seconds for which nobody takes
    it away although it is not renewed. over: run whose lock the caller has proven to be stale (rules 1 and 2). force: take it
    whoever has it. check: change nothing.
    Returns {"taken": bool, "held": record of another run or None, "replaced": record that was in the way or None,
    "why": why that could be taken, or None}. Raises LockError.
    """
    with _guard(path, check):
        have = _read(path)
        replaced = why = None
        if have is not None and have.get("run") != holder["run"]:
            why = stale(have, now(), controller())
            if why is None and over is not None and have.get("run") == over:
                why = "proven where it was started"
            if why is None and not force:
                return {"taken": False, "held": have, "replaced": None, "why": None}
            replaced = have
        if not check:
            if replaced is not None and replaced.get("trouble"):
                own_state.put_aside(own_state.Damaged(own_state.place(path), replaced["trouble"]))
            record = dict(holder, schema=1, since=utc(time.time()), lease=lease)
            record["from"] = origin()
            if replaced is not None:
                record["took"] = {"run": replaced.get("run"), "who": replaced.get("who"), "forced": why is None}
            _write(path, dict(record, **now()))
        return {"taken": True, "held": None, "replaced": replaced, "why": why}


def renew(run, path=PATH):
    """Have the lease begin anew. Returns {"kept": bool, "held": record of who has the lock now, or None}."""
    with _guard(path):
        have = _read(path)
        if have is None or have.get("run") != run:
            return {"kept": False, "held": have}
        _write(path, dict(have, **now()))
        return {"kept": True, "held": None}


def admit(run, path=PATH):
    """Let a change begin that is part of a run: renew its lease, or raise LockError where the host is another run's by now.

    run: None for a play that takes no lock. A controller that slept for longer than its lease finds out here, before anything
    is touched. A host without a lock, or with a stale one, admits everybody.
    """
    if not os.path.lexists(own_state.place(path)):
        return
    with _guard(path):
        have = _read(path)
        if have is None:
            return
        if run is not None and have.get("run") == run:
            _write(path, dict(have, **now()))
        elif stale(have, now(), controller()) is None:
            raise LockError(
                "host.locked",
                "another run is changing this host: %s" % describe(have),
                ["this run has lost its lock, or never had it; nothing was changed by this task"],
                "wait for it, then run this again",
            )


def release(run, path=PATH):
    """Give the lock back where the run still has it. Returns {"released": bool, "held": record of another run or None}."""
    if not os.path.lexists(own_state.place(path)):
        return {"released": False, "held": None}
    with _guard(path):
        have = _read(path)
        if have is None or have.get("run") != run:
            return {"released": False, "held": have}
        own_state.move(os.path.dirname(path))
        try:
            os.unlink(own_state.place(path))
        except OSError as error:
            raise _unusable(path, error.strerror) from None
        return {"released": True, "held": None}


def read(path=PATH):
    """Return {"held": record or None, "stale": why it is stale by what the host knows, or None}. Changes nothing."""
    have = _read(path)
    return {"held": have, "stale": have and stale(have, now(), controller())}


# ---- the rule ----------------------------------------------------------------------------------------------------------


def stale(record, at, here):
    """Return the proof that a lock is stale, as text for people, or None.

    record: of the lock. at: now() of the host; None where its clocks are not known (then rule 3 is left out). here:
    controller() of whoever asks.
    """
    theirs = record.get("controller")
    if isinstance(theirs, dict):
        why = ended(theirs, here)
        if why:
            return why
    renewed, uptime, lease = record.get("renewed"), record.get("uptime"), record.get("lease")
    if at is None or renewed is None or uptime is None or lease is None:
        return None
    if at["boot_id"] and at["boot_id"] == record.get("boot_id"):
        quiet = at["uptime"] - uptime
    else:
        # It was renewed before this boot, whatever the wall clock said then: a clock that was ahead keeps no lock for years.
        quiet = max(at["renewed"] - renewed, at["uptime"] if at["boot_id"] and record.get("boot_id") else 0)
    if quiet > lease:
        return "nobody has renewed it for %s; its lease was %s" % (span(quiet), span(lease))
    return None


def ended(theirs, here, alive=None):
    """Return why the run that was started from theirs has certainly ended (rules 1 and 2), or None.

    theirs, here: as controller() gives them. alive: is_alive, or another one for tests.
    """
    alive = alive or is_alive
    name = theirs.get("name")
    if theirs.get("boot_id") and theirs.get("boot_id") == here["boot_id"]:
        if not theirs.get("namespace") or theirs["namespace"] != here["namespace"]:
            return None
        processes = theirs.get("processes") or []
        if not processes or any(alive(process["pid"], process["started"]) for process in processes):
            return None
        return "its process %d on %s has ended" % (processes[0]["pid"], name)
    same = theirs.get("machine") and theirs["machine"] == here["machine"] and name == here["name"]
    contained = {theirs.get("namespace"), here["namespace"]} != {_FIRST_NAMESPACE}
    if same and not contained and theirs.get("boot_id") and here["boot_id"]:
        return "%s, from which it was started, was restarted since" % name
    return None


def is_alive(pid, started):
    """True while the process is there: same number, same start (clock ticks after boot), and no zombie."""
    found = _stat(pid)
    return found is not None and found["started"] == started and found["state"] not in "ZX"


# ---- who and where ---------------------------------------------------------------------------------------------------


def controller(pids=None):
    """Where a run is started from: {"name", "machine", "boot_id", "namespace", "processes": [{"pid", "started"}]}.

    pids: the processes that make up the run; this one where None. machine is a hash of the machine's id, which is not to be
    told around (man machine-id). What the system does not tell is None: then only the lease counts.
    """
    machine = _first_line("/etc/machine-id")
    found = [(pid, _stat(pid)) for pid in ([os.getpid()] if pids is None else pids)]
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = None
    return {
        "name": socket.gethostname(),
        "machine": hashlib.sha256(b"gpu-provision " + machine.encode()).hexdigest()[:16] if machine else None,
        "boot_id": _first_line("/proc/sys/kernel/random/boot_id"),
        "namespace": namespace,
        "processes": [{"pid": pid, "started": stat["started"]} for pid, stat in found if stat is not None],
    }


def now():
    """The clocks of this host, as a record keeps them: {"renewed": seconds of the epoch, "uptime": seconds, "boot_id"}."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return {
        "renewed": round(time.time(), 3),
        "uptime": round(time.clock_gettime(clock), 3) if clock is not None else round(time.monotonic(), 3),
        "boot_id": _first_line("/proc/sys/kernel/random/boot_id"),
    }


def origin():
    """The address that this host was reached from, as sshd told the session's processes; "this host" without ssh."""
    pid = os.getpid()
    for _ in range(_MOST_ANCESTORS):
        # sudo hands its command a clean environment; its own and the shell's still have the variable.
        try:
            with open("/proc/%d/environ" % pid, "rb") as file:
                variables = file.read().split(b"\0")
        except OSError:
            variables = []
        for variable in variables:
            if variable.startswith(b"SSH_CONNECTION="):
                return variable.split(b"=", 1)[1].decode("ascii", "replace").split(" ")[0]
        found = _stat(pid)
        if found is None or found["parent"] <= 1:
            break
        pid = found["parent"]
    return "this host"


def describe(record):
    """Say whose lock it is, for messages: ``ada@desk (Ada L.) from 10.0.0.7 since 2026-11-28T09:30:00Z: provision apply, …``"""
    if not record.get("who"):
        return "an unknown run (%s)" % record.get("trouble", "its record says nothing")
    git = " (%s)" % record["git"] if record.get("git") else ""
    return "%s%s from %s since %s: %s, run %s" % (
        record["who"],
        git,
        record.get("from"),
        record.get("since"),
        record.get("command"),
        record.get("run"),
    )


def utc(seconds):
    """Seconds of the epoch as ``2026-11-28T09:30:00Z``."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def span(seconds):
    """A span of time for people: ``40 s``, ``12 min``, ``3 h``."""
    if seconds < 120:
        return "%d s" % seconds
    return "%d min" % (seconds // 60) if seconds < 7200 else "%d h" % (seconds // 3600)


def age(record, at=None):
    """Seconds since a lock was taken, by the wall clock; None where its record does not say."""
    try:
        since = calendar.timegm(time.strptime(record["since"], "%Y-%m-%dT%H:%M:%SZ"))
    except (KeyError, TypeError, ValueError):
        return None
    return max(0.0, (time.time() if at is None else at) - since)


# ---- files ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _guard(path, check=False):
    """One call at a time: whoever reads and writes the record holds this. The kernel lets go of it with the process."""
    if check:
        yield
        return
    folder = os.path.dirname(path)
    busy = LockError("host.lock_busy", "another program has locked %s" % folder, hint="fuser -v %s" % folder)
    try:
        own_state.make_folder(folder)
        with own_state.locked(os.path.join(folder, ".guard"), _GUARD_SECONDS, busy):
            yield
    except own_files.FileError as error:
        raise _unusable(path, error.reason) from None


def _read(path):
    """The record, or None without one. What cannot be read as one is somebody's anyway: it is nobody's to take."""
    for place in own_state.places(path):
        try:
            record = own_state.read(place, {"run": _is_name}, _MOST_BYTES)
        except own_state.Damaged as damage:
            return {"run": None, "trouble": "%s holds no record of a run: %s" % (place, damage.why)}
        if record is not None:
            return sound(record)
    return None


def _is_name(value):
    return own_state.fits(value, str) and bool(value)


def sound(record):
    """A record without what is of another kind than we write (by hand, by another version): that proves nothing."""
    kept = dict(record)
    for key, fits in [(key, _is_number) for key in ("renewed", "uptime", "lease")] + [
        (key, _is_text) for key in ("who", "git", "from", "since", "command", "boot_id")
    ]:
        if not fits(kept.get(key)):
            kept.pop(key, None)
    started = kept.get("controller")
    if not isinstance(started, dict):
        return dict(kept, controller={})
    processes = started.get("processes")
    whole = isinstance(processes, list) and all(
        isinstance(one, dict) and isinstance(one.get("pid"), int) and isinstance(one.get("started"), int)
        for one in processes
    )
    texts = {key: started.get(key) for key in ("name", "machine", "boot_id", "namespace") if _is_text(started.get(key))}
    return dict(kept, controller=dict(texts, processes=processes if whole else []))


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_text(value):
    return own_state.fits(value, str)


def _write(path, record):
    try:
        own_state.move(os.path.dirname(path))
        own_state.write(path, record, 0o644)
    except own_files.FileError as error:
        raise LockError("host.lock_unusable", error.message, hint=error.hint) from None


def _unusable(path, why):
    hint = (
        "become root (ansible_become: true)"
        if os.geteuid() != 0
        else (
            "check with df -h %s and mount whether there is space and the file system is writable"
            % os.path.dirname(path)
        )
    )
    return LockError(
        "host.lock_unusable", "the lock of runs in %s cannot be used: %s" % (os.path.dirname(path), why), hint=hint
    )


def _first_line(path):
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.readline().strip() or None
    except OSError:
        return None


def _stat(pid):
    """{"state", "parent", "started"} of a process (man proc_pid_stat: fields 3, 4 and 22), None where there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            # The name in parentheses may hold anything, spaces and parentheses too.
            rest = file.read().rpartition(b")")[2].split()
        return {"state": rest[0].decode("ascii"), "parent": int(rest[1]), "started": int(rest[19])}
    except (OSError, IndexError, ValueError):
        return None
