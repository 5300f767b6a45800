"""What is killed, always by process ids: the command here, processes on a simulated host, a whole host."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# in the environment of a command and of all that it starts
MARK = "GPU_KILL_HARNESS"
_APT = ("apt-get", "dpkg", "dpkg-deb")


def _processes() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - thousands of times


def _read(pid: str, name: str) -> bytes:
    try:
        return Path("/proc", pid, name).read_bytes()
    except OSError:
        # it has ended
        return b""


def _kill(pids: list[str]) -> list[str]:
    """Kill processes; returns the names of those that were there."""
    killed = []
    for pid in pids:
        name = _read(pid, "comm").decode(errors="replace").strip()
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
        killed.append(name)
    return killed


def marked(mark: str) -> list[str]:
    """Ids of the processes of a command here, also of those that have left it (ssh's shared connections)."""
    line = f"{MARK}={mark}".encode()
    return [pid for pid in _processes() if line in _read(pid, "environ").split(b"\0")]


def kill_tree(mark: str) -> list[str]:
    """Kill a command and all that it started."""
    killed: list[str] = []
    for _ in range(20):
        there = [pid for pid in marked(mark) if not _is_zombie(pid)]
        if not there:
            break
        killed += _kill(there)
    return killed


def _is_zombie(pid: str) -> bool:
    return b"\nState:\tZ" in _read(pid, "status")


def on_host(init: str) -> list[str]:
    """Ids, as they are here, of the processes of the container whose first process has this id."""

    def namespace(pid: str) -> str:
        try:
            return str(Path("/proc", pid, "ns", "pid").readlink())
        except OSError:
            return ""

    own = namespace(init)
    return [pid for pid in _processes() if own and namespace(pid) == own]


def kill_on_host(victim: str, part: str, init: str) -> list[str]:
    """Kill ``ssh`` (the sessions), ``apt`` (by part: all, programs, worker, dpkg) or ``power`` (everything) on a host.

    Returns the names of what was killed; empty where nothing of it was there.
    """
    if victim == "power":
        # the kernel ends all others of the namespace with it
        return _kill([init])
    there = on_host(init)
    if victim == "ssh":
        return _kill([pid for pid in there if _read(pid, "cmdline").startswith((b"sshd: lab", b"sshd-session: lab"))])
    names = {pid: _read(pid, "comm").decode(errors="replace").strip() for pid in there}
    wanted = ("dpkg",) if part == "dpkg" else _APT
    programs = [pid for pid, name in names.items() if name in wanted]
    parents = {_parent(pid) for pid in programs}
    workers = [pid for pid in parents if names.get(pid, "").startswith("python")]
    return _kill({"all": workers + programs, "worker": workers}.get(part, programs))


def _parent(pid: str) -> str:
    for line in _read(pid, "status").decode(errors="replace").splitlines():
        if line.startswith("PPid:"):
            return line.split()[1]
    return ""
