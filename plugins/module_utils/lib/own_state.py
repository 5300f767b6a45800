# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Our own state on a host: journals, records, marks and locks, each of which may have been damaged.

What counts is a regular file of a sane size with JSON of the shape that its writer gives. Anything else (empty, cut off, of
another version, a folder or a link in its place) is damage: who changes the host puts it aside and goes on, who only reads says
so. Standard library only, any Python from 3.8.

All of it lies in FOLDER. Earlier versions kept the lock of runs, their records and the snapshots in OLDER: the first change of a
host moves them (``move``), and until that is done every name is read where it lies (``place``, ``names``).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files

FOLDER = "/var/lib/gpu-provision"
OLDER = "/var/lib/provision"
# What is ours in OLDER: other programs may use a folder of such a name too. Files are recognised by how their names begin.
_FOLDERS = ("history", "snapshots")
_FILES = ("lock.json", ".lock.json~", ".guard")
MOST_BYTES = 16 << 20


class Damaged(Exception):
    """A file of our state that does not hold what we write; why is a text."""

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
        raise Damaged(path, "it is empty" if not data else "it contains only blanks")
    try:
        found = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        raise Damaged(path, "it is not UTF-8") from None
    except (ValueError, RecursionError):
        raise Damaged(path, "it is not JSON, or only the beginning of it") from None
    if not fits(found, shape):
        raise Damaged(path, "it contains something other than this version writes")
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


def take(path, shape, warnings, lost=None):
    """As read, for who changes the host: what is damaged is put aside, warnings gets a line that says so, and None comes back.

    lost: what is done without the file, for that line.
    """
    try:
        return read(path, shape)
    except Damaged as damage:
        warnings.append("; ".join(filter(None, (put_aside(damage), lost))))
        return None


def put_aside(damage):
    """Give a damaged file (or folder) another name beside it; returns what was done, as text."""
    aside = own_files.dated(damage.path + ".damaged-")
    try:
        own_files.rename(damage.path, aside)
    except OSError as error:
        return "%s, and cannot be renamed (%s)" % (damage, error.strerror)
    return "%s; it was renamed to %s" % (damage, os.path.basename(aside))


def write(path, data, mode=0o600):
    """Write a file of our state in one step, and have it on the disk. Raises ownfiles.FileError."""
    own_files.write(path, (json.dumps(data, sort_keys=True) + "\n").encode("ascii"), mode)


def make_folder(folder):
    """Make FOLDER (below any root), which everybody may read, whatever the umask. Raises ownfiles.FileError."""
    try:
        os.makedirs(folder, 0o755, exist_ok=True)
        if stat.S_IMODE(os.stat(folder).st_mode) != 0o755:
            os.chmod(folder, 0o755)  # noqa: S103 - anybody may read whose lock it is, and what was done
    except OSError as error:
        raise own_files.FileError(folder, "make", error) from None


def places(path):
    """Where a path in FOLDER may lie, in the order to look: there, where earlier versions had it, and there again.

    Again, because it may be moved between two looks.
    """
    root, ours, rest = path.partition(FOLDER)
    return [path, root + OLDER + rest, path] if ours and not _fault(root + OLDER) else [path]


def place(path):
    """Where a path in FOLDER lies; path itself where it is nowhere."""
    return next((one for one in places(path) if os.path.lexists(one)), path)


def names(folder):
    """Sorted names in a folder in FOLDER, and in the same folder in OLDER. Raises OSError."""
    found = set()
    # The older one first: what is moved between the two looks is seen in the second.
    for one in places(folder)[-2:]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found.update(os.listdir(one))
    return sorted(found)


def move(folder, warnings=None):
    """Move what earlier versions kept in OLDER to folder (FOLDER below any root); nothing in it is replaced.

    Raises ownfiles.FileError where folder cannot be made; what cannot be moved is no error, since it is read where it lies.
    Every step is one system call, so that a name is in one of both places, or in both, whenever this is cut off; the next call
    goes on. Of two names that differ the newer counts and the older stays. warnings: gets lines on what cannot be moved, and
    on what is put aside because it is no folder of root's own; without it, that is left to a caller who can say it.
    """
    older = folder[: -len(FOLDER)] + OLDER
    ours = folder.endswith(FOLDER) and any(os.path.lexists(os.path.join(older, name)) for name in _FOLDERS + _FILES)
    if not ours or not _is_sound(older, warnings):
        return
    make_folder(folder)
    try:
        for name in sorted(os.listdir(older)):
            path, new = os.path.join(older, name), os.path.join(folder, name)
            if name in _FOLDERS and os.path.isdir(new) and _is_sound(path, warnings):
                # Both have it: an earlier version was used again, or this was cut off.
                for inner in sorted(os.listdir(path)):
                    _move(os.path.join(path, inner), os.path.join(new, inner))
                _remove_empty(path)
            elif name.startswith(_FILES) or (
                name in _FOLDERS and not os.path.lexists(new) and _is_sound(path, warnings)
            ):
                _move(path, new)
        _remove_empty(older)
    except OSError as error:
        # Gone: another process moves it too.
        if warnings is not None and error.errno != errno.ENOENT:
            warnings.append("%s is used where it is: it cannot be moved to %s (%s)" % (older, folder, error.strerror))


def _move(old, new):
    """Give a file or folder another name, unless there is something of that name."""
    try:
        if stat.S_ISDIR(os.lstat(old).st_mode):
            if not os.path.lexists(new):
                own_files.rename(old, new)
            return
        os.link(old, new, follow_symlinks=False)
        own_files.sync_folder(os.path.dirname(new))
    except FileExistsError:
        # Locks for one call say nothing (their names begin with a dot).
        if os.path.basename(old)[0] != "." and not os.path.samestat(os.lstat(old), os.lstat(new)):
            return
    except FileNotFoundError:
        # Another process moves it too.
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(old)


def _remove_empty(folder):
    try:
        os.rmdir(folder)
        own_files.sync_folder(os.path.dirname(folder))
    except OSError as error:
        # What others keep there, and of two names that differ the older one, stays.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise


def _is_sound(folder, warnings):
    why = _fault(folder)
    if why and warnings is not None:
        warnings.append(put_aside(Damaged(folder, why)))
    return not why


def _fault(folder):
    """Why a path is no folder that only root (or who runs this) can write to; None where it is one, or nothing is there."""
    try:
        found = os.lstat(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISDIR(found.st_mode):
        return "it is a link" if stat.S_ISLNK(found.st_mode) else "it is no folder"
    if found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
        return "others than root can write to it"
    return None


def open_lock(path, warnings):
    """Descriptor of a lock file that root alone can open, made where it is not there; raises ownfiles.FileError.

    The content of the file means nothing. warnings: gets a line where something else lay in its place and was put aside.
    """
    if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        warnings.append(put_aside(Damaged(path, "it is not a regular file")))
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        handle = os.open(path, flags, 0o600)
        # Earlier versions let everybody open this file, and who can open it can lock it.
        if stat.S_IMODE(os.fstat(handle).st_mode) != 0o600:
            os.fchmod(handle, 0o600)
    except OSError as error:
        raise own_files.FileError(path, "open", error) from None
    return handle


def wait_for(handle, seconds):
    """Lock an open file, which other processes may have for that long; returns success. Raises OSError."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)


@contextlib.contextmanager
def locked(path, seconds, busy):
    """Hold a lock file while a block runs: the kernel lets go of it with the process. Raises busy, and ownfiles.FileError.

    seconds: how long another process may have it. What lay in its place says nothing: it is only there to be locked.
    """
    handle = open_lock(path, [])
    try:
        try:
            mine = wait_for(handle, seconds)
        except OSError as error:
            raise own_files.FileError(path, "lock", error) from None
        if not mine:
            raise busy
        yield
    finally:
        os.close(handle)


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
