# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Folders for temporary files, removed when they are left, and after a kill by the next process that makes one.

A folder's name says whose it is: ``gpu-provision-KIND-PID-START-NAMESPACE-…``. START, the clock ticks from the boot to the start of
the process, tells it from a later process with its number; NAMESPACE, of process ids, tells containers apart that share a
folder for temporary files: what they run cannot be seen from here, so their folders stay.

Standard library only, any Python from 3.8. Used on hosts and on the controller.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re

PREFIX = "gpu-provision-"
_OWNER = lazy_re.compile(r"^gpu-provision-(?:[a-z]+-)?([0-9]+)-(?:([0-9]+)-([0-9]+)-)?[a-z0-9_]+$")


class Folder(object):
    """Context: the path of a new folder of mode 0700. kind: a word in its name. base: where; uid: who owns it."""

    def __init__(self, kind, base=None, uid=None):
        self.kind, self.base, self.uid = kind, base, uid

    def __enter__(self):
        self.path = make(self.kind, self.base)
        if self.uid is not None:
            os.chown(self.path, self.uid, -1)
        return self.path

    def __exit__(self, *unused):
        remove(self.path)


def make(kind, base=None, pid=None):
    """Return a new folder of mode 0700, after folders that killed processes left in the same place were removed.

    pid: the process that the folder ends with; this one where None.
    """
    base = base or tempfile.gettempdir()
    remove_left_behind(base)
    pid = pid or os.getpid()
    name = "%s%s-%d-%s-%s-" % (PREFIX, kind, pid, started(pid), _namespace())
    return tempfile.mkdtemp(prefix=name, dir=base)


def remove_left_behind(base):
    """Remove the folders of this user whose process has ended. Folders of others, and what is no folder, stay."""
    for name in os.listdir(base):
        owner = _OWNER.match(name)
        if owner is None:
            continue
        path = os.path.join(base, name)
        try:
            found = os.lstat(path)
        except OSError:
            continue
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        near = owner.group(3) in (None, _namespace())
        if ours and near and not _lives(int(owner.group(1)), owner.group(2)):
            # What the killed one had started may still write there, or have something mounted: the next one tries again.
            with contextlib.suppress(OSError):
                remove(path)


def remove(path):
    """Remove a folder; that its files go at the same time (what was just ended removes them too) is no error."""
    while os.path.isdir(path):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)


def _lives(pid, start):
    try:
        now = started(pid)
        return bool(now) and start in (None, now)
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except PermissionError:
        # Another user's, and /proc is mounted with hidepid: it is there, and more is not known.
        return True
    except OSError:
        return False
    return False


def started(pid):
    """Clock ticks from the boot to the start of a process, as text (man proc_pid_stat: field 22); "" where it has ended.

    Raises OSError where there is no such process, or none that this user may see.
    """
    with open("/proc/%d/stat" % pid, "rb") as file:
        # The name of the program, in brackets, may hold anything.
        fields = file.read().rpartition(b")")[2].split()
    return "" if fields[0] in b"ZX" else fields[19].decode("ascii")


def _namespace():
    return "".join(letter for letter in os.readlink("/proc/self/ns/pid") if letter.isdigit())
