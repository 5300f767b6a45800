# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What the module container_runtime does things with: files in one step with a backup, programs, processes, our mark.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time

from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, outputs, own_files, own_state

PROGRAM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class ContainerError(Exception):
    """A refusal or failure. code is stable; because is a list of lines; hint is a way out; done is what was done before."""

    def __init__(self, code, message, hint, because=(), done=()):
        Exception.__init__(self, message)
        self.code, self.message, self.hint = code, message, hint
        self.because, self.done = list(because), list(done)


class File(object):
    """A file as it is: data (None: not there), mode, uid, gid; path is the real one, behind links."""

    def __init__(self, path, data=None, mode=0o644, uid=0, gid=0):
        self.path, self.data, self.mode, self.uid, self.gid = path, data, mode, uid, gid


class Host(object):
    """One run on one host. tree: HostTree to read; check: nothing is changed; backup: folder for the old files.

    run(argv, timeout, user, fds) starts a program and returns (rc, out, err); tests give their own. Collects what the
    module reports: done, diff, warnings, backups, restart_because, in_the_way.
    """

    def __init__(self, tree, check=False, backup=containers_files.BACKUP, run=None, clock=time):
        self.tree, self.check, self.backup, self.clock = tree, check, backup, clock
        self.run = run or start
        self.done, self.diff, self.warnings, self.backups = [], [], [], {}
        self.restart_because, self.in_the_way = [], []

    def fail(self, code, message, hint, because=()):
        raise ContainerError(code, message, hint, because, self.done)

    def warn(self, message):
        if message not in self.warnings:
            self.warnings.append(message)

    @property
    def systemd(self):
        return self.tree.is_dir("/run/systemd/system")

    # ---- files

    def read(self, path):
        """The File at a path, links followed. Raises ContainerError where it cannot be read."""
        real = self.tree.real(path)
        real = os.path.realpath(real) if self.tree.live else real
        try:
            data, found = host_tree.read_stat(real)
        except FileNotFoundError:
            return File(real)
        except OSError as error:
            self._file_error(own_files.FileError(path, "read", error))
        return File(real, data, stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid)

    def replace(self, path, old, data, write=None):
        """Put data in the place of a File in one step, with its mode and owner; the old content is kept as a backup.

        write: does that instead of write_as.
        """
        self.show(path, old.data, data)
        if not self.check:
            if old.data is not None:
                self.backups[path] = self.keep(path, old)
            (write or write_as)(path, old, data, self._file_error)
        self.done.append("%s %s" % ("wrote" if old.data is None else "changed", path))

    def keep(self, path, old):
        """Save a File's content below the backup folder; returns the copy's path. The same content is kept once."""
        folder = self.tree.real(self.backup) + os.path.dirname(path)
        base = os.path.basename(path)
        try:
            os.makedirs(folder, 0o700, exist_ok=True)
            last = sorted(name for name in os.listdir(folder) if name.startswith(base + "."))[-1:]
            if last and own_files.read(os.path.join(folder, last[0])) == old.data:
                return os.path.join(folder, last[0])
            copy = own_files.dated(os.path.join(folder, base + "."), now=self.clock.time())
            own_files.write(copy, old.data, old.mode & 0o700)
        except OSError as error:
            self._file_error(own_files.FileError(folder, "write a backup to", error))
        except own_files.FileError as error:
            self._file_error(error)
        return copy

    def write_own(self, path, text):
        """Write a file that is ours where it differs."""
        real, data = self.tree.real(path), text.encode("utf-8")
        try:
            there = own_files.read(real)
            if there is not None and not own_files.is_ours(path, there):
                self.fail(
                    "containers.foreign_file",
                    "%s is there and was not written by gpu-provision" % path,
                    "move it away (mv %s %s.own) and run again" % (path, path),
                )
            if there == data:
                return
            self.show(path, there, data)
            if not self.check:
                own_files.write(real, data)
        except own_files.FileError as error:
            self._file_error(error)
        self.done.append("wrote " + path)

    def remove_own(self, path):
        """Remove a file of ours where it is there."""
        real = self.tree.real(path)
        try:
            there = own_files.read(real)
            if there is None or not own_files.has_header(there):
                return
            self.show(path, there, None)
            if not self.check:
                own_files.remove(real)
        except own_files.FileError as error:
            self._file_error(error)
        self.done.append("removed " + path)

    def show(self, path, before, after):
        """Note a change for --diff."""
        self.diff.append(
            {
                "before_header": path if before is not None else path + " (absent)",
                "after_header": path if after is not None else path + " (absent)",
                "before": own_files.show(before or b""),
                "after": own_files.show(after or b""),
            }
        )

    def _file_error(self, error):
        because = ["the existing file is unchanged"]
        self.fail("containers.file", error.message, error.hint, because)

    # ---- our mark: written before a file is replaced, gone when the daemon has taken the file up

    def pending(self):
        """{daemon: {started, keys}} of what an earlier run, cut off or told to wait, has left to be taken up."""
        path, lost = (
            self.tree.real(containers_files.PENDING),
            "restart docker and containerd if their files were changed",
        )
        lines = []
        if self.check:
            return pending(self.tree)
        marks = own_state.take(path, containers_files.MARKS, lines, lost)
        self.warnings += lines
        return marks or {}

    def mark(self, daemon, started, keys):
        """Note that a daemon (started then) has keys of a file to take up."""
        marks = self.pending()
        before = marks.get(daemon) or {}
        keys = sorted(set(keys) | set(before.get("keys") or () if before.get("started") == started else ()))
        marks[daemon] = {"started": started, "keys": keys}
        self._write_marks(marks)

    def unmark(self, daemon):
        marks = self.pending()
        if marks.pop(daemon, None) is not None:
            self._write_marks(marks)

    def _write_marks(self, marks):
        if self.check:
            return
        path = self.tree.real(containers_files.PENDING)
        try:
            if marks:
                own_state.write(path, marks, 0o644)
            elif own_files.read(path) is not None:
                own_files.remove(path)
        except own_files.FileError as error:
            self._file_error(error)

    # ---- programs

    def command(self, argv, done, code, hint):
        """Start a program that changes something; fails with its own message. In check mode only said."""
        if not self.check:
            rc, out, err = self.run(argv, 120.0)
            if rc != 0:
                said = (err or out).strip().splitlines()
                self.fail(
                    code, "%s failed: %s" % (" ".join(argv), said[-1] if said else "exit code %d" % rc), hint, said[-8:]
                )
        if done:
            self.done.append(done)

    def journal(self, unit):
        """The last lines of a unit's journal."""
        rc, out, _ = self.run(["journalctl", "-b", "-u", unit, "-n", "8", "--no-pager", "-o", "cat"], 20.0)
        return out.strip().splitlines()[-8:] if rc == 0 else []

    def unit_state(self, unit):
        """active, inactive, failed, activating, … of a unit, as systemd says."""
        return self.run(["systemctl", "is-active", unit], 20.0)[1].strip()


def pending(tree):
    """As Host.pending, for those who only read."""
    try:
        return own_state.read(tree.real(containers_files.PENDING), containers_files.MARKS) or {}
    except own_state.Damaged:
        return {}


def start(argv, timeout=60.0, user=None, fds=()):
    """Start a program without a shell and return (rc, out, err): 127 when it is not there, 124 when it took too long.

    user: (uid, gid) to run as, without other groups. fds: descriptors that it keeps.
    """
    environment = {"PATH": PROGRAM_FOLDERS, "LC_ALL": "C", "HOME": "/"}
    drop = (lambda: _become(user)) if user else None
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            pass_fds=fds,
            preexec_fn=drop,
            start_new_session=True,  # noqa: PLW1509 - one thread, and user= came with Python 3.9
        )
    except OSError as error:
        return 127, "", "%s: %s" % (argv[0], error.strerror)
    output = outputs.Output(process)
    try:
        out, err = output.wait(timeout)
    except subprocess.TimeoutExpired:
        output.kill()
        return 124, "", "%s gave no answer in %d seconds" % (argv[0], timeout)
    return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def _become(user):
    os.setgroups([])
    os.setgid(user[1])
    os.setuid(user[0])


def write_as(path, old, data, failed):
    """Replace old.path in one step, with the mode, owner and extended attributes that it has.

    failed(FileError) is called, and must raise, when that cannot be done; the old file is then as it was.
    """
    folder = os.path.dirname(old.path)
    try:
        os.makedirs(folder, 0o755, exist_ok=True)
        with own_files.replacing(old.path) as file:
            file.write(data)
            file.flush()
            if os.geteuid() == 0:
                os.fchown(file.fileno(), old.uid, old.gid)
            if old.data is not None:
                _copy_attributes(old.path, file.fileno())
            os.fchmod(file.fileno(), old.mode)
    except OSError as error:
        failed(own_files.FileError(path, "write", error))


def _copy_attributes(path, handle):
    """Access lists and labels, where the file system has them."""
    try:
        for name in os.listxattr(path):
            os.setxattr(handle, name, os.getxattr(path, name))
    except OSError as error:
        if error.errno not in (errno.ENOTSUP, errno.ENODATA, errno.EPERM):
            raise
