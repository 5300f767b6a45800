# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Our own state on a host: journals, records, marks and locks, each of which may have been damaged.

What counts is a regular file of a sane size with JSON of the shape that its writer gives. Anything else (empty, cut off, of
another version, a folder or a link in its place) is damage: who changes the host puts it aside and goes on, who only reads says
so. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import json
import os
import stat
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files

MOST_BYTES = 16 << 20


class Damaged(Exception):
    """A file of our state that does not hold what we write; why is in words."""

    def __init__(self, path, why):
        Exception.__init__(self, "%s is damaged: %s" % (path, why))
        self.path, self.why = path, why


def read(path, shape, most=MOST_BYTES):
    """What a file of our state holds, or None where there is none. Changes nothing; raises Damaged.

    shape: see fits.
    """
    try:
        data = own_files.read(path, most, follow=False)
    except own_files.FileError as error:
        raise Damaged(path, error.reason) from None
    return None if data is None else parse(data, shape, path)


def parse(data, shape, path):
    """What bytes hold that were read from path; raises Damaged."""
    if not data.strip(b"\0 \t\r\n"):
        raise Damaged(path, "it is empty" if not data else "it holds nothing but blanks")
    try:
        found = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise Damaged(path, "it is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Damaged(path, "it is not JSON, or only the beginning of it") from None
    if not fits(found, shape):
        raise Damaged(path, "it holds something else than this version writes")
    return found


def fits(value, shape):
    """True when a value is of a shape.

    A shape is a type (bool is no int), None, a tuple of shapes (one of them), [shape] (a list of it), {str: shape} (an object of
    it), {key: shape} (an object with these keys at least; a key may be missing where its shape takes None), a function that
    says, or the value itself.
    """
    if isinstance(shape, tuple):
        return any(fits(value, one) for one in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(one, shape[0]) for one in value)
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return False
        if str in shape:
            return all(fits(one, shape[str]) for one in value.values())
        return all(fits(value.get(key), one) for key, one in shape.items())
    if shape is str:
        return isinstance(value, str) and _is_text(value)
    if isinstance(shape, type):
        return type(value) is shape
    return bool(shape(value)) if callable(shape) else type(value) is type(shape) and value == shape


def _is_text(value):
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def absolute(value):
    """A shape: the path of a file, without steps up."""
    return fits(value, str) and value[:1] == "/" and "\0" not in value and ".." not in value.split("/")


def take(path, shape, told, lost=None):
    """As read, for who changes the host: what is damaged is put aside, told gets a line that says so, and None comes back.

    lost: what is done without the file, for that line.
    """
    try:
        return read(path, shape)
    except Damaged as damage:
        told.append("; ".join(filter(None, (put_aside(damage), lost))))
        return None


def put_aside(damage):
    """Give a damaged file (or folder) another name beside it; returns what was done, in words."""
    aside = base = "%s.damaged-%s" % (damage.path, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    number = 1
    while os.path.lexists(aside):
        number += 1
        aside = "%s-%d" % (base, number)
    try:
        own_files.rename(damage.path, aside)
    except OSError as error:
        return "%s, and cannot be put aside (%s)" % (damage, error.strerror)
    return "%s; it was put aside as %s" % (damage, os.path.basename(aside))


def write(path, data, mode=0o600):
    """Write a file of our state in one step, and have it on the disk. Raises ownfiles.FileError."""
    own_files.write(path, (json.dumps(data, sort_keys=True) + "\n").encode("ascii"), mode)


def open_lock(path, told):
    """Descriptor of a lock file that root alone can open, made where it is not there; raises ownfiles.FileError.

    The content of the file means nothing. told: gets a line where something else lay in its place and was put aside.
    """
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        told.append(put_aside(Damaged(path, "it is not a regular file")))
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        handle = os.open(path, flags, 0o600)
        # Earlier versions let everybody open this file, and who can open it can lock it.
        if stat.S_IMODE(os.fstat(handle).st_mode) != 0o600:
            os.fchmod(handle, 0o600)
    except OSError as error:
        raise own_files.FileError(path, "open", error) from None
    return handle


def lock_holders(handle):
    """Who holds a flock on an open file: [{"pid", "root": bool, "words": ``process 4711 (flock) of lab``}].

    Source: man proc_locks. A lock whose process has ended is held by a child of it, which has the file open.
    """
    own = os.fstat(handle)
    pids = []
    with open("/proc/locks", encoding="ascii", errors="replace") as locks:
        for line in locks:
            words = line.split()
            if len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(own.st_ino):
                pids.append(words[4])
    named = [pid for pid in pids if _has_open(pid, own)]
    everybody = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) != os.getpid()]
    found = [_process(pid) for pid in named or [pid for pid in everybody if _has_open(pid, own)]]
    return [holder for holder in found if holder is not None]


def _has_open(pid, own):
    folder = "/proc/%s/fd" % pid
    try:
        for name in os.listdir(folder):
            try:
                found = os.stat("%s/%s" % (folder, name))
            except OSError:
                continue
            if (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino):
                return True
    except OSError:
        return False
    return False


def _process(pid):
    import pwd

    try:
        uid = os.stat("/proc/%s" % pid).st_uid
        with open("/proc/%s/comm" % pid, "rb") as file:
            name = file.read().decode("utf-8", "replace").strip()
    except OSError:
        # it has ended since
        return None
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = "user %d" % uid
    return {"pid": pid, "root": uid == 0, "words": "process %s (%s) of %s" % (pid, name, user)}
