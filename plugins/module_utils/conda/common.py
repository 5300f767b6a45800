# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What everything that changes a conda shares: running programs as their owner, locks, files, errors.

What is there is read by condaread. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import io
import json
import os
import pwd
import re
import stat
import subprocess
import sys
import time

from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from ansible_collections.gpu.provision.plugins.module_utils.lib import (
    host_tree,
    outputs,
    own_files,
    own_state,
    redact,
    run_as,
)

SCHEMA = 1
_WRITE_TRIES = 20

# What comes from the caller's environment into conda's and pip's: proxies, certificates, pip's file; nothing else.
_PASSED = (
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CONFIG_FILE",
    "TZ",
)
PROFILE = "/etc/profile.d/gpu-provision-conda.sh"
# seconds that a run before may still take
_LOCK_WAIT = 900
_FULL = ("No space left on device", "Not enough free disk space", "[Errno 28]", "NoSpaceLeftError")
_QUOTA = ("Disk quota exceeded", "[Errno 122]")


class CondaError(Exception):
    """An expected failure. code is stable (``conda.disk_full``); because is a list of lines; hint is a way out."""

    def __init__(self, code, message, because=(), hint=None):
        Exception.__init__(self, message)
        self.code, self.message, self.hint = code, redact.text(message), hint
        self.because = [redact.text(line) for line in because]

    def as_dict(self):
        """The error as plain data, for a module's fail_json."""
        return {"code": self.code, "because": self.because, "hint": self.hint}


def last_lines(text, count=8):
    """Return the last lines of a program's output that say something, redacted; progress bars are left out."""
    lines = [line.split("\r")[-1].rstrip() for line in redact.text(text).split("\n")]
    return [line for line in lines if line.strip() and not re.search(r"\|\s*#+|\d+%\s*$", line)][-count:]


# --- as whom


class Owner(object):
    """A user by name: name, uid, gid (of group when one is given), home. Raises CondaError when there is none."""

    def __init__(self, name, group=None):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise CondaError(
                "conda.no_user",
                "there is no user %s on this host" % name,
                hint="create the user first, or name another one",
            ) from None
        self.name, self.uid, self.gid, self.home = entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir
        if group:
            import grp

            try:
                self.gid = grp.getgrnam(group).gr_gid
            except KeyError:
                raise CondaError(
                    "conda.no_group",
                    "there is no group %s on this host" % group,
                    hint="create the group first, or leave the group empty",
                ) from None
        if os.geteuid() not in (0, self.uid):
            raise CondaError(
                "conda.not_root", "only root can work as %s" % name, hint="become: true, or connect as %s" % name
            )

    def become(self, umask):
        """Give up everything that is not this user's, for good. Called in a child process."""
        if os.geteuid() == 0 and self.uid != 0:
            os.initgroups(self.name, self.gid)
            os.setgid(self.gid)
            os.setuid(self.uid)
        elif os.geteuid() == 0:
            os.setgid(self.gid)
        os.umask(umask)


def expand(path):
    """Write out a leading ``~USER``; raises CondaError when there is no such user or the path is not absolute."""
    if path.startswith("~"):
        name, _, rest = path[1:].partition("/")
        path = Owner(name).home + "/" + rest if name else os.path.expanduser(path)
    if not path.startswith("/"):
        raise CondaError("conda.prefix_relative", "%s is not an absolute path" % path, hint="write the whole path")
    return os.path.normpath(path)


def as_owner(owner, umask, function, *args):
    """Call function(*args) as a user, in a child process; returns what it returns (plain data only).

    Nothing in a user's folders is touched by root: a link that the user put there would lead root astray. Raises what
    the function raises where that is a CondaError or an OSError.
    """
    read, write = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            try:
                owner.become(umask)
                os.chdir("/")
                answer = json.dumps(["value", function(*args)])
            except CondaError as error:
                answer = json.dumps(["conda", [error.code, error.message, error.because, error.hint]])
            except OSError as error:
                answer = json.dumps(["os", [error.errno, error.strerror, error.filename]])
            except Exception as error:
                # the parent must hear of it; it raises
                answer = json.dumps(["other", ["%s: %s" % (type(error).__name__, error)]])
            with os.fdopen(write, "w") as pipe:
                pipe.write(answer)
        finally:
            # Whatever happened (Ctrl-C as well): no second copy of the caller goes on.
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    kind, told = json.loads(text) if text else ("other", ["the child process died"])
    if kind != "value":
        raise {"conda": CondaError, "os": OSError, "other": RuntimeError}[kind](*told)
    return told


class OtherRun(Exception):
    """Another run was at work in the same place, and has changed what we saw: look again."""


def among_others(write, *args):
    """Call a function that writes a file which no lock keeps other runs from writing: one of theirs may come or go meanwhile.

    Raises OSError where that goes on, or where the folder is not there.
    """
    for _ in range(_WRITE_TRIES - 1):
        try:
            return write(*args)
        except (FileExistsError, FileNotFoundError):
            time.sleep(0.05)
    return write(*args)


@contextlib.contextmanager
def locked(marker, prefix):
    """Hold the lock of what is being made at a path: programs that we started for it hold it as long as they live.

    marker: file that is there while the work goes on. Gives its descriptor. Waits for a run before us and raises OtherRun
    where that came to its end, and CondaError where it goes on too long.
    """
    try:
        handle = os.open(marker, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise OtherRun() from None
    there = None
    try:
        if not own_state.wait_for(handle, _LOCK_WAIT):
            raise CondaError(
                "conda.busy",
                "another run still works at %s" % prefix,
                _working(prefix),
                "wait for it or end it, then run again to finish",
            )
        with contextlib.suppress(FileNotFoundError):
            there = os.lstat(marker).st_ino
        if there != os.fstat(handle).st_ino:
            raise OtherRun()
        yield handle
    finally:
        os.close(handle)


def _working(prefix):
    """Programs that have the prefix in their command line, as lines."""
    found = []
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        try:
            argv = host_tree.read_text("/proc/%s/cmdline" % pid, errors="replace").split("\0")
        except OSError:
            # it ended meanwhile
            continue
        if int(pid) != os.getpid() and any(part.startswith(prefix) for part in argv):
            found.append(redact.text("process %s: %s" % (pid, " ".join(argv).strip())))
    return found


class Result(object):
    """What a program left: rc, signal (that ended it or what it started, else 0), text (output and errors, redacted), timed_out."""

    def __init__(self, rc, text, timed_out):
        self.rc, self.text, self.timed_out = rc, text, timed_out
        self.signal = abs(rc) % 128 if rc < 0 or rc in (137, 143) else 0


def environment(owner, extra=None):
    """Environment for conda, pip and installers: small and known. extra: names and values on top."""
    env = {name: os.environ[name] for name in _PASSED if os.environ.get(name)}
    env.update(
        {
            "HOME": owner.home,
            "LOGNAME": owner.name,
            "USER": owner.name,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            # A module in ~/.local would be found before the environment's own.
            "PYTHONNOUSERSITE": "1",
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "CONDA_QUIET": "1",
        }
    )
    env.update(extra or {})
    return env


def run(argv, owner, umask, timeout, extra=None, inherit=(), cwd=None):
    """Run a program as a user without a terminal and wait: returns Result.

    One of a prefix, by its path, is run as root only where no other user may write to it: raises CondaError.
    timeout: seconds, then the whole session is ended and timed_out is set; extra: environment on top of ours; inherit:
    file descriptors to pass on (a lock stays held while the program lives, even when we die).
    """
    if os.path.isabs(argv[0]):
        refuse_foreign(argv[0], owner)
    process = subprocess.Popen(  # noqa: PLW1509 - one thread
        argv,
        env=environment(owner, extra),
        cwd=cwd or "/",
        start_new_session=True,
        pass_fds=inherit,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: owner.become(umask),
    )
    out, _, timed_out = outputs.Output(process).end(timeout)
    return Result(process.returncode, redact.text(out.decode("utf-8", "replace")), timed_out)


def refuse_foreign(program, owner):
    """Raise CondaError where root would run a program that another user may write to, or what it imports."""
    if owner.uid != 0 or os.geteuid() != 0:
        return
    prefix = os.path.dirname(os.path.dirname(program))
    packages = glob.glob(prefix + "/lib/python3*/site-packages")
    found = run_as.strangers(program, prefix + "/bin/python", *packages, *(folder + "/conda" for folder in packages))
    if found:
        who = ", ".join("everybody" if uid == run_as.EVERYBODY else "uid %d" % uid for uid in sorted(found))
        raise CondaError(
            "conda.foreign_prefix",
            "%s is not run as root: %s may write to it" % (program, who),
            ["whoever can write to a prefix controls its conda"],
            "name its owner with miniconda_owner, or give it to root: chown -R root: %s && chmod -R o-w %s"
            % (prefix, prefix),
        )


# --- files


def read_text(path):
    """Text of a file, or None when there is none."""
    try:
        return host_tree.read_text(path, errors="surrogateescape")
    except FileNotFoundError:
        return None


def create_text(path, text):
    """Write a file that is not there yet; raises FileExistsError when it is. It is a lock: who can open it can hold it."""
    with io.open(path, "x", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(text)


def overwrite_text(path, text):
    """Write a file anew in its place, so that a lock on it stays."""
    with io.open(path, "r+", encoding="utf-8") as file:
        file.truncate()
        file.write(text)


def write_text(path, text):
    """Write a file in one step; an existing one keeps its rights."""
    mask = os.umask(0o022)
    os.umask(mask)
    mode = stat.S_IMODE(os.stat(path).st_mode) if os.path.exists(path) else 0o666 & ~mask
    with own_files.replacing(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))
        os.fchmod(file.fileno(), mode)


def render_profile(prefix, owner="root", umask="022"):
    """Content of our file in /etc/profile.d: ``conda`` can be called, and nothing is activated.

    conda's shell function comes from a script in the prefix. Where others than root can change that, it is not read at
    everyone's login, and only the folder of the program is put at the end of PATH.
    """
    head = "# written by gpu-provision; changes here are overwritten\n"
    if owner == "root" and int(umask, 8) & 0o022 == 0o022:
        return head + 'if [ -r "%s/etc/profile.d/conda.sh" ]; then\n    . "%s/etc/profile.d/conda.sh"\nfi\n' % (
            prefix,
            prefix,
        )
    return head + (
        'case ":$PATH:" in\n    *":%s/condabin:"*) ;;\n    *) PATH="$PATH:%s/condabin" ;;\nesac\n' % (prefix, prefix)
    )


class Work(object):
    """One run for what lies at a path, with our marker while it goes on. done and diff: what the module reports."""

    def __init__(self, params, check, path, marker):
        self.params, self.check, self.path, self.marker = params, check, path, marker
        self.owner = Owner(params["owner"], params.get("group"))
        self.umask = int(params.get("umask") or "022", 8)

    def carry_out(self):
        """Run until no other run comes between; returns what run returns, and what was done. Raises CondaError."""
        try:
            for _ in range(5):
                self.done, self.diff = [], []
                try:
                    answer = self.run()
                    return dict(answer, changed=bool(self.done), done=self.done, diff=self.diff)
                except OtherRun:
                    continue
        except OSError as error:
            raise not_writable(self.path, self.owner, error) from None
        raise CondaError("conda.busy", "other runs are changing the same place", hint="wait for them, and run again")

    def as_owner(self, function, *args):
        return as_owner(self.owner, self.umask, function, *args)

    def note(self):
        """What the marker says, or nothing."""
        return conda_read.read_note(self.marker)

    def put_marker(self, text):
        """Begin, unless another run was faster."""
        try:
            self.as_owner(create_text, self.marker, text)
        except FileExistsError:
            raise OtherRun() from None

    def put(self, path, before, text, said=None):
        """Have a text in a file of the owner's; before: what is in it, None where it is not there."""
        if before == text:
            return
        self.done.append(said or "wrote " + path)
        self.show(path, before, text)
        if not self.check:
            self.write(path, text)

    def write(self, path, text):
        among_others(self.as_owner, write_text, path, text)

    def show(self, path, before, after):
        """Note a change for --diff."""
        before, after = redact.text(before or ""), redact.text(after)
        self.diff.append({"before_header": path, "after_header": path, "before": before, "after": after})


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# --- what went wrong


def full_disk(text):
    """True when a program's words say that a disk or a quota is full."""
    return any(word in text for word in _FULL + _QUOTA)


def disk_error(path, text="", kept=""):
    """Return the CondaError for a disk or quota that filled up while path was written; kept: what is left now."""
    quota = any(word in text for word in _QUOTA)
    return CondaError(
        "conda.disk_full",
        "the %s ran full while %s was written" % ("quota" if quota else "disk", path),
        ["%s free at %s" % (size(free_bytes(path)), path)] + last_lines(text, 4) + ([kept] if kept else []),
        "make room there or choose another place, then run again",
    )


def not_writable(path, owner, error):
    """Return the CondaError for an OSError of writing at path as owner."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return disk_error(path, "[Errno 122]" if error.errno == errno.EDQUOT else "")
    return CondaError(
        "conda.not_writable",
        "%s cannot write to %s" % (owner.name, error.filename or path),
        [os.strerror(error.errno)],
        "mount that file system so that it can be written to, or choose a place on another"
        if error.errno == errno.EROFS
        else "give %s the right to write there, or choose another prefix or owner" % owner.name,
    )


def free_bytes(path):
    """Bytes that an ordinary user can still write where path lies or would lie."""
    while not os.path.isdir(path):
        path = os.path.dirname(path) or "/"
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def size(number):
    """Bytes as people write them: ``974 MB`` (of 1024 kB), ``1.5 GB``."""
    return "%.1f GB" % (number / float(1 << 30)) if number >= 1 << 30 else "%d MB" % (number >> 20)
