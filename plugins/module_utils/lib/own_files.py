# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read, write and remove whole files of ours: in one step, so that nobody ever reads half of one.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree

HEADER = "written by gpu-provision"
# Names of folders that hold our files only: /etc/gpu-provision, and cuda among the modulefiles.
OWN_FOLDERS = ("gpu-provision", "cuda")


class FileError(Exception):
    """A file that could not be read, written or removed; what was there before is still there.

    message names file and reason, hint says what to do, path the file.
    """

    def __init__(self, path, verb, error):
        self.path, self._verb, self.reason = path, verb, error.strerror or str(error)
        self.message = "cannot %s %s: %s" % (verb, path, self.reason)
        Exception.__init__(self, self.message)

    @property
    def hint(self):
        if self._verb == "read":
            return "check it with stat %s, and move it away if it is not yours" % self.path
        return "check with df -h %s and mount whether there is space and the file system is writable" % (
            os.path.dirname(self.path)
        )


def read(path, most=host_tree.MOST_BYTES, follow=True):
    """Content of a file as bytes, or None when nothing is there (a link that leads nowhere is nothing).

    Raises FileError for what is no regular file or larger than most; nothing that lies there is waited for. follow: take what
    a link leads to; without it, a link is an error.
    """
    try:
        if not follow and os.path.islink(path):
            raise host_tree.OddFileError(path, "a link")
        return host_tree.read_file(path, most)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(path, "read", error) from None


def has_header(data):
    """True when one of the first three lines (bytes) says that we wrote the file."""
    return any(HEADER.encode("ascii") in line for line in data.split(b"\n", 3)[:3])


def is_ours(path, data):
    """True when a file may be overwritten: it bears our name, or says that we wrote it."""
    return "gpu-provision" in path or has_header(data)


def needs_write(path, data, mode=0o644):
    """True when the file is not there, holds something else, or has another mode or (as root) owner."""
    if read(path) != data:
        return True
    found = os.stat(path)
    return stat.S_IMODE(found.st_mode) != mode or (os.geteuid() == 0 and (found.st_uid, found.st_gid) != (0, 0))


def write(path, data, mode=0o644):
    """Put a file in place in one step, with the folders above it (0755). Raises FileError; the old file then stays.

    data: bytes. The new file belongs to who runs this (root), whoever had the old one; a link is replaced by a file.
    """
    try:
        _make_folders(os.path.dirname(path))
        with replacing(path) as file:
            file.write(data)
            os.fchmod(file.fileno(), mode)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), 0, 0)
    except OSError as error:
        raise FileError(path, "write", error) from None


@contextlib.contextmanager
def replacing(path, sync=True):
    """An open new file (bytes, 0600) that takes the place of path when the block ends well; else the old one stays.

    sync: content and name are on the disk afterwards. Raises OSError.
    """
    folder, name = os.path.split(path)
    # Programs that read a whole folder take neither names with a dot in front nor what ends in a tilde. Always the same
    # name: what a run left that was interrupted is replaced by the next one.
    temporary = os.path.join(folder, ".%s~" % name)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        rename(temporary, path, sync)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def rename(old, new, sync=True):
    """Give a file or folder another name, and have that on the disk: both folders are synced. Raises OSError."""
    os.rename(old, new)
    for folder in sorted({os.path.dirname(old) or ".", os.path.dirname(new) or "."}) if sync else ():
        sync_folder(folder)


def sync_folder(folder):
    """Have the names in a folder on the disk, where its file system can do that."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def remove(path):
    """Remove a file, and the folder it was in when that is empty now and was made for us alone. Raises FileError."""
    folder = os.path.dirname(path)
    try:
        os.unlink(path)
        if os.path.basename(folder) in OWN_FOLDERS and not os.listdir(folder):
            os.rmdir(folder)
    except OSError as error:
        raise FileError(path, "remove", error) from None


def _make_folders(folder):
    if os.path.isdir(folder):
        return
    _make_folders(os.path.dirname(folder))
    os.mkdir(folder)
    os.chmod(folder, 0o755)  # noqa: S103 - whatever the umask of this run is, users must get in


def dated(base, end="", now=None):
    """A path that nothing has yet: base, the time in UTC (now: in seconds), end; counted on where two fall in one second.

    So that no backup, log or export ever takes the place of an earlier one.
    """
    stamped = base + time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
    path, number = stamped + end, 1
    while os.path.lexists(path):
        number += 1
        path = "%s-%d%s" % (stamped, number, end)
    return path


def show(data):
    """Content for a diff: text as it is, anything else by its size."""
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError:
        return "(binary, %d bytes)\n" % len(data)
