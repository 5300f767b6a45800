# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What everything about apt shares: how programs are started, dpkg's status file, locks, errors.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, outputs, own_state, redact

DPKG_STATUS = "/var/lib/dpkg/status"
# Files with numbers for names: what dpkg has not yet written into its status file when it is cut off.
DPKG_UPDATES = "/var/lib/dpkg/updates"
DPKG_LOCKS = ("/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/lock")
LISTS_LOCK = "/var/lib/apt/lists/lock"
ARCHIVES = "/var/cache/apt/archives"
OWN_PREFIX = "gpu-provision-"
# What a change of packages is to bring, as long as it has not: diagnose says that it was cut off or failed.
UNFINISHED = own_state.FOLDER + "/unfinished.json"
UNFINISHED_SHAPE = {
    "schema": (None, 1),
    "started": str,
    "log": str,
    "install": [str],
    "remove": [str],
    "hold": bool,
    "extra_hold": [str],
}
# Name in this process's environment: configuration that apt reads before the host's own (see aptalone).
ALONE = "GPU_PROVISION_APT_CONFIG"

# Nothing may ask a question: debconf, needrestart (which since 22.04 restarts services or prompts inside apt),
# apt-listchanges and ucf each have a switch of their own.
ENVIRONMENT = {
    "APT_LISTBUGS_FRONTEND": "none",
    "APT_LISTCHANGES_FRONTEND": "none",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBIAN_PRIORITY": "critical",
    "LANG": "C",
    "LANGUAGE": "C",
    "LC_ALL": "C",
    "NEEDRESTART_MODE": "l",
    "NEEDRESTART_SUSPEND": "1",
    "UCF_FORCE_CONFFOLD": "1",
}

# Given on every command line, because a command line beats whatever the host's apt.conf.d says.
OPTIONS = (
    # phasing goes by machine-id: equal hosts would differ
    "APT::Get::Always-Include-Phased-Updates=true",
    "APT::Get::Never-Include-Phased-Updates=false",
    "APT::Get::AutomaticRemove=false",
    "APT::Get::Remove=true",
    "APT::Install-Recommends=false",
    "APT::Install-Suggests=false",
    "APT::Color=0",
    "Dpkg::Progress-Fancy=0",
    # the pty would be a terminal, and a maintainer script could wait on it for ever
    "Dpkg::Use-Pty=0",
    "Dpkg::Options::=--force-confdef",
    "Dpkg::Options::=--force-confold",
    "Acquire::Retries=3",
    "quiet=1",
)


class AptError(Exception):
    """An expected failure. code is stable (``apt.unmet``); because is a list of lines; hint is a way out or None.

    data holds more for machines, such as ``{"unmet": […]}``.
    """

    def __init__(self, code, message, because=(), hint=None, **data):
        Exception.__init__(self, message)
        self.code, self.message, self.because, self.hint, self.data = code, message, list(because), hint, data

    def as_dict(self):
        """The error as plain data: code, message, because, hint and what data holds."""
        result = {"code": self.code, "message": self.message, "because": self.because, "hint": self.hint}
        result.update(self.data)
        return result


class Result(object):
    """What a program left: rc, out (text), err (text), timed_out. text is both, errors last."""

    __slots__ = ("err", "out", "rc", "timed_out")

    def __init__(self, rc, out="", err="", timed_out=False):
        self.rc, self.out, self.err, self.timed_out = rc, out, err, timed_out

    @property
    def text(self):
        return self.out + self.err


def environment():
    """Environment for apt and dpkg: ours over the caller's, a sane PATH, no debconf pipe of an outer run."""
    env = dict(os.environ)
    env.update(ENVIRONMENT)
    for name in ("DEBCONF_PIPE", "DPKG_FRONTEND_LOCKED", "APT_CONFIG"):
        env.pop(name, None)
    if ALONE in env:
        env["APT_CONFIG"] = env.pop(ALONE)
    path = env.get("PATH", "").split(":")
    path += [part for part in ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin") if part not in path]
    env["PATH"] = ":".join(part for part in path if part)
    return env


def run(argv, timeout, stdin=None, log=None, cwd="/", keep=None):
    """Start a program without a terminal and wait: returns Result; raises AptError when it is not there.

    The program gets a session of its own, so /dev/tty cannot be opened; stdin is empty unless text is given.
    log: a file object (binary); output then goes there and is also returned, in ``out``; both redacted. When the time (seconds)
    is over, the whole session gets TERM and after 20 seconds KILL; timed_out says so. keep: a descriptor that it may write to.
    """
    mark = None
    if log is not None:
        log.flush()
        mark = log.tell()
    try:
        process = subprocess.Popen(
            argv,
            env=environment(),
            cwd=cwd,
            start_new_session=True,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE if log is None else log,
            stderr=subprocess.PIPE if log is None else subprocess.STDOUT,
            pass_fds=() if keep is None else (keep,),
        )
    except FileNotFoundError:
        raise AptError(
            "apt.no_program", "%s is not installed" % argv[0], hint="only hosts with apt are managed"
        ) from None
    data = None if stdin is None else stdin.encode("utf-8")
    out, err, timed_out = outputs.Output(process, data).end(timeout)
    if log is not None:
        log.flush()
        with host_tree.open_file(log.name) as written:
            written.seek(mark)
            out, err = written.read(outputs.MOST_BYTES), b""
        redacted = _text(out).encode("utf-8")
        if redacted != out:
            log.truncate(mark)
            log.seek(mark)
            log.write(redacted)
        log.seek(0, os.SEEK_END)
    return Result(process.returncode, _text(out), _text(err), timed_out)


def _text(data):
    return redact.text((data or b"").decode("utf-8", "replace"))


def option_args(options=OPTIONS):
    """``-o`` arguments for apt programs."""
    args = []
    for option in options:
        args += ["-o", option]
    return args


# --- dpkg's status file


class Installed(object):
    """One package that dpkg knows: name, arch, version, want, flag, state (dpkg's words), essential, fields (dict)."""

    __slots__ = ("arch", "essential", "fields", "flag", "name", "state", "version", "want")

    def __init__(self, fields):
        status = (fields.get("Status", "") + " ? ? ?").split()
        self.name, self.arch = fields.get("Package", ""), fields.get("Architecture", "")
        self.version, self.fields = fields.get("Version"), fields
        self.want, self.flag, self.state = status[0], status[1], status[2]
        self.essential = "yes" in (fields.get("Essential"), fields.get("Protected"))

    @property
    def held(self):
        return self.want == "hold"

    @property
    def installed(self):
        return self.state == "installed"

    @property
    def present(self):
        """Files of it are on the disk: installed, or cut off on the way."""
        return self.state not in ("not-installed", "config-files")

    @property
    def unfinished(self):
        """dpkg was cut off here: half-installed, unpacked, half-configured, or waiting for triggers."""
        return self.present and not (self.installed and self.flag == "ok")


_FIELDS = frozenset(
    (
        "Package",
        "Architecture",
        "Version",
        "Status",
        "Essential",
        "Protected",
        "Installed-Size",
        "Depends",
        "Multi-Arch",
        "Source",
    )
)


def parse_stanzas(text, wanted=None):
    """Yield one dict a stanza of a control file; continuation lines are joined by newlines. wanted: field names."""
    for block in re.split(r"\n[ \t]*\n", text):
        fields = {}
        name = None
        for line in block.split("\n"):
            if line[:1] in (" ", "\t"):
                if name is not None:
                    fields[name] += "\n" + line
                continue
            name, colon, value = line.partition(":")
            if not colon or name.startswith("#") or (wanted is not None and name not in wanted):
                name = None
                continue
            fields[name] = value.strip()
        if fields:
            yield fields


def parse_status(text):
    """Return every Installed of a dpkg status file, in its order."""
    return [Installed(fields) for fields in parse_stanzas(text, _FIELDS) if "Package" in fields]


def status_text(path=DPKG_STATUS):
    """Text of the status file with the journal of a dpkg that was interrupted, which is the newer word, as dpkg reads both.

    apt does not read the journal. Raises AptError when a file cannot be read.
    """
    try:
        text = host_tree.read_text(path, errors="replace")
        folder = os.path.join(os.path.dirname(path), os.path.basename(DPKG_UPDATES))
        newer = [host_tree.read_text(file, errors="replace") for file in _journal(folder)]
    except (IOError, OSError) as error:
        raise AptError("apt.no_dpkg", "dpkg's status file cannot be read: %s" % error) from None
    return merged(text, newer) if newer else text


def merged(status, newer):
    """Text of a status file in which stanzas of later files replace those of the same package."""
    stanzas = {}
    for text in [status, *newer]:
        for stanza in re.split(r"\n[ \t]*\n", text):
            package = re.search(r"^Package: *(\S+)", stanza, re.M)
            arch = re.search(r"^Architecture: *(\S+)", stanza, re.M)
            if package:
                key = (package.group(1), arch.group(1) if arch else "")
                if not arch:
                    # What is gone has no architecture any more.
                    key = next((known for known in stanzas if known[0] == key[0]), key)
                stanzas[key] = stanza.strip("\n")
    return "\n\n".join(stanzas.values()) + "\n"


def read_status(path=DPKG_STATUS):
    """Every Installed of dpkg's record (see status_text). Raises AptError when it cannot be read."""
    return parse_status(status_text(path))


def interrupted(path=DPKG_UPDATES):
    """True when dpkg was cut off and its status file is behind what it did (apt then does nothing)."""
    return bool(_journal(path))


def _journal(folder):
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    return [os.path.join(folder, name) for name in sorted(names) if name.isdigit()]


def native_arch(packages):
    """dpkg's own architecture, from dpkg's own record; ``amd64`` where there is none."""
    for package in packages:
        if package.name == "dpkg" and package.arch:
            return package.arch
    return "amd64"


def selection_name(package, native):
    """Name for dpkg --set-selections: qualified when the architecture is a foreign one."""
    if package.arch in ("", "all", native):
        return package.name
    return "%s:%s" % (package.name, package.arch)


# --- locks


def lock_holder(path):
    """Return (pid, comm) of the process that holds a dpkg or apt lock, or None when it is free.

    pid 0 means that the holder lives outside this container. Takes no lock itself (fcntl F_GETLK).
    """
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except PermissionError:
        raise AptError("apt.not_root", "the lock %s can be read by root only" % path, hint="become: true") from None
    try:
        request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi", fcntl.fcntl(handle, fcntl.F_GETLK, request))
    finally:
        os.close(handle)
    return None if kind == fcntl.F_UNLCK else (pid, comm(pid))


def comm(pid):
    """Name of a process, or ``?`` when it is gone or cannot be seen."""
    try:
        return host_tree.read_text("/proc/%d/comm" % pid, 64).strip() or "?"
    except (IOError, OSError):
        return "?"


def wait_for_locks(paths, timeout, poll=0.5, clock=time.monotonic, sleep=time.sleep, seen=lambda busy: None):
    """Wait until nobody holds any of the locks.

    Returns None when they were free at once, else {"pid", "comm", "lock", "seconds"} of the last holder.
    Raises AptError ``apt.lock_timeout``, naming the holder, after timeout seconds. Lock files are never removed.
    seen: called once with the first holder.
    """
    start = clock()
    last = None
    while True:
        busy = None
        for path in paths:
            holder = lock_holder(path)
            if holder is not None:
                busy = {"pid": holder[0], "comm": holder[1], "lock": path}
                break
        waited = clock() - start
        if busy is None:
            if last is not None:
                last["seconds"] = round(waited, 1)
            return last
        if last is None:
            seen(busy)
        last = dict(busy, seconds=round(waited, 1))
        if waited >= timeout:
            raise AptError(
                "apt.lock_timeout",
                "%s is still held by process %d (%s) after %d s" % (busy["lock"], busy["pid"], busy["comm"], waited),
                hint="wait for it to end, or give more time (nvidia_driver_lock_timeout); never remove lock files",
                holder=busy,
            )
        sleep(min(poll, max(0.05, timeout - waited)))
