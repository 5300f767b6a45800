# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Files of a host, read below any root: a recorded host is a folder. The one place that opens what others own.

Absent files are normal and give None or nothing. What is there and cannot be read is noted in ``unreadable``, so that
nobody takes "could not look" for "is not there": a path alone where it is not permitted, ``PATH: why`` otherwise.

Any user can put anything where a file is expected. So what is opened is looked at first and never set going (a FIFO
waits for its writer, a watchdog starts counting when it is opened), it has to be a regular file, and of every file and
folder no more is read than a limit. What none of this helps against is a file system that does not answer (a dead NFS
server): then the caller's deadline ends the read.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import stat

# Of a file whose reader names no limit. dpkg's status of 5,000 packages has 6 MB.
MOST_BYTES = 32 << 20
MOST_NAMES = 50000
_SHORT = 4096
_OPEN = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NULL = os.makedev(1, 3)
# Files that the kernel makes as they are read: they have no size of their own, and errors say that there is no value.
_KERNEL = ("/proc/", "/sys/")
_DENIED = frozenset([errno.EACCES, errno.EPERM])
# By their classes: thousands of places are looked at where nothing is. A path that no file can have (ValueError: it
# holds a NUL) is absent too.
_ABSENT = (FileNotFoundError, NotADirectoryError, ValueError)


class OddFileError(OSError):
    """Something else than a file of the expected kind or size; strerror says what."""

    def __init__(self, path, why, number=errno.EINVAL):
        OSError.__init__(self, number, why, path)


def open_regular(path):
    """Return (descriptor, os.stat_result) of a regular file, opened for reading. Raises OddFileError or OSError.

    /dev/null counts as an empty file: a link to it is how administrators mask one.
    """
    # This handle only names the file: nothing happens to it, and nobody can exchange it between the look and the read.
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found = _regular(path, os.fstat(handle))
        try:
            return os.open("/proc/self/fd/%d" % handle, _OPEN), found
        except OSError:
            # No /proc, or a process that was root: it may not look into its own folder there.
            again = os.open(path, _OPEN)
    finally:
        os.close(handle)
    try:
        return again, _regular(path, os.fstat(again))
    except OSError:
        os.close(again)
        raise


def _regular(path, found):
    if stat.S_ISREG(found.st_mode) or (stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL):
        return found
    if stat.S_ISDIR(found.st_mode):
        raise OddFileError(path, os.strerror(errno.EISDIR), errno.EISDIR)
    raise OddFileError(path, "not a regular file")


def open_file(path):
    """A regular file as a Python file of bytes, for who reads it piece by piece. Raises OddFileError or OSError."""
    return os.fdopen(open_regular(path)[0], "rb")


def read_file(path, limit=MOST_BYTES):
    """Content of a regular file as bytes. Raises OddFileError (for a larger one too) or OSError."""
    return read_stat(path, limit)[0]


def read_stat(path, limit=MOST_BYTES):
    """The same with the os.stat_result of what was read."""
    data, more, found = _read(path, limit)
    if more:
        raise OddFileError(path, "larger than " + _size(limit))
    return data, found


def read_text(path, limit=MOST_BYTES, errors="backslashreplace"):
    """The same as text, undecodable bytes escaped."""
    return read_file(path, limit).decode("utf-8", errors)


def _read(path, limit):
    """(the first limit bytes of a regular file, whether there is more, os.stat_result)."""
    handle, found = open_regular(path)
    try:
        # A file that grows while it is read ends where it ended when it was opened.
        kernel = path.startswith(_KERNEL)
        parts, left = [], limit if kernel else min(limit, found.st_size)
        while left > 0:
            part = os.read(handle, min(left, 65536) if kernel else left)
            if not part:
                break
            parts.append(part)
            left -= len(part)
    except BlockingIOError:
        # The kernel's own logs have nothing more to say at the moment.
        pass
    finally:
        os.close(handle)
    return b"".join(parts), not kernel and found.st_size > limit, found


def _size(number):
    return "%d MiB" % (number >> 20) if number >= 1 << 20 else "%d KiB" % (number >> 10)


def integer(text):
    """The whole number that a text says in ASCII digits, or None: int() also takes ``²``'s kin, and fails at 5,000 digits."""
    return int(text) if text and re.match(r"[-+]?[0-9]{1,18}\Z", text) else None


def decimal(text):
    """The same of a number like ``8.25``, without a sign."""
    return float(text) if text and re.match(r"[0-9]{1,18}(?:\.[0-9]{1,18})?\Z", text) else None


def json_object(text):
    """A JSON object, or None where a text holds none; numbers that no machine has become None."""
    try:
        found = json.loads(text or "", parse_int=integer, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class HostTree(object):
    """Reads below root. Paths go in and come out as the host sees them (``/etc/os-release``)."""

    def __init__(self, root="/"):
        self.root = "" if root in ("", "/") else os.path.abspath(root)
        self._noted = {}

    @property
    def live(self):
        """True when this is the running host and not a recorded one."""
        return not self.root

    @property
    def unreadable(self):
        """What was noted: ``PATH`` where it is not readable, ``PATH: why`` otherwise."""
        return [path + (": " + why if why else "") for path, why in self._noted.items()]

    def is_noted(self, path):
        """True when a path is among the unreadable ones."""
        return path in self._noted

    def real(self, path):
        """Path for open() and friends; links that lead outside the tree are followed inside it."""
        return self.root + self.resolve(path) if self.root else path

    def note(self, path, why=""):
        """Remember a path (or a part of the facts) as unreadable."""
        self._noted.setdefault(path, why)

    def missed(self, path, error):
        """Note why a path could not be read, where that is not normal: it is there."""
        if isinstance(error, _ABSENT):
            return
        if error.errno in _DENIED:
            self.note(path)
        elif isinstance(error, OddFileError) or not (path.startswith(_KERNEL) or error.errno == errno.ENAMETOOLONG):
            self.note(path, "link loop" if error.errno == errno.ELOOP else error.strerror)

    def read_bytes(self, path, limit=None, head=False):
        """Content of a file, or None when it is absent or unreadable.

        limit: the most that its reader takes, MOST_BYTES without one. Of a larger file the first limit bytes are returned
        (nothing without a limit) and its path is noted, unless head says that the beginning is all that is wanted.
        """
        try:
            data, more, _ = _read(self.real(path), limit or MOST_BYTES)
        except _ABSENT:
            return None
        except OSError as error:
            self.missed(path, error)
            return None
        if more and not head:
            self.note(path, "larger than " + _size(limit or MOST_BYTES))
            return data if limit else None
        return data

    def tail(self, path, size):
        """The last size bytes of a file, or None when it is absent or unreadable."""
        try:
            with open_file(self.real(path)) as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - size))
                return file.read(size)
        except _ABSENT:
            return None
        except OSError as error:
            self.missed(path, error)
        return None

    def read(self, path, limit=None, head=False):
        """Text of a file (undecodable bytes escaped, and noted), or None; limit, head: of read_bytes."""
        data = self.read_bytes(path, limit, head)
        if data is None:
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            # The limit may have cut a character in two.
            if error.start + 4 <= len(data) or len(data) != limit:
                self.note(path, "not UTF-8")
            return data.decode("utf-8", "backslashreplace")

    def word(self, path):
        """Text of a one-value file without surrounding space; None when absent, unreadable, empty or no such file."""
        text = self.read(path, _SHORT) or ""
        # A list of the kernel's may be longer (cgroup.procs), and its beginning says enough.
        return (text.strip() or None) if len(text) < _SHORT or path.startswith(_KERNEL) else None

    def names(self, path):
        """Sorted names in a folder; empty when it is absent or unreadable. Of MOST_NAMES and more only so many."""
        # Processes are as many as they are, and each may have a GPU open.
        most = None if path == "/proc" else MOST_NAMES + 1
        try:
            with os.scandir(self.real(path)) as entries:
                found = [entry.name for entry in itertools.islice(entries, most)]
        except NotADirectoryError:
            # What no program takes for a folder is reported where one is meant: below /etc, and where a read would hang.
            found = self.stat(path)
            if found is not None and (path.startswith("/etc/") or not stat.S_ISREG(found.st_mode)):
                self.note(path, "not a folder")
            return []
        except (OSError, ValueError) as error:
            self.missed(path, error)
            return []
        if len(found) == most:
            self.note(path, "more than %d entries" % MOST_NAMES)
            found.pop()
        return sorted(found)

    def stat(self, path, follow=True):
        """os.stat result, or None when there is no such file (or it may not be looked at)."""
        try:
            if follow:
                return os.stat(self.real(path))
            folder, name = os.path.split(path)
            return os.lstat(os.path.join(self.real(folder), name))
        except _ABSENT:
            return None
        except OSError as error:
            self.missed(path, error)
        return None

    def exists(self, path):
        """True when a file or folder is there (links followed)."""
        return self.stat(path) is not None

    def is_dir(self, path):
        """True for a folder (links followed)."""
        found = self.stat(path)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def is_link(self, path):
        """True for a symbolic link, dangling or not."""
        found = self.stat(path, follow=False)
        return found is not None and stat.S_ISLNK(found.st_mode)

    def link(self, path):
        """Target of a symbolic link as written, or None."""
        folder, name = os.path.split(path)
        try:
            return os.readlink(os.path.join(self.real(folder), name))
        except (OSError, ValueError):
            return None

    def resolve(self, path):
        """Path with all links resolved, as the host sees it; missing parts stay as they are."""
        if not self.root:
            try:
                return os.path.realpath(path)
            except (OSError, ValueError, RecursionError):
                # No path at all, or a chain of a thousand links.
                return path
        done, rest, links = "", [part for part in path.split("/") if part], 0
        while rest:
            part = rest.pop(0)
            if part == ".":
                continue
            if part == "..":
                done = os.path.dirname(done) if done else ""
                done = "" if done == "/" else done
                continue
            try:
                target = os.readlink(self.root + done + "/" + part)
            except (OSError, ValueError):
                done += "/" + part
                continue
            links += 1
            if links > 40:
                return path
            if target.startswith("/"):
                done = ""
            rest = [piece for piece in target.split("/") if piece] + rest
        return done or "/"
