# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read, write and remove whole files of ours: in one step, so that nobody ever reads half of one.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import os
import stat

from ansible_collections.gpu.provision.plugins.module_utils import hosttree

HEADER = "written by gpu-provision"
# Names of folders that hold our files only: /etc/gpu-provision, and cuda among the modulefiles.
OWN_FOLDERS = ("gpu-provision", "cuda")


class FileError(Exception):
    """A file that could not be read, written or removed; what was there before is still there.

    message names file and reason, hint is a way out, path the file.
    """

    def __init__(self, path, verb, error):
        self.path = path
        self.message = "cannot %s %s: %s" % (verb, path, error.strerror or error)
        Exception.__init__(self, self.message)

    @property
    def hint(self):
        return "see with df -h %s and mount whether there is room and the file system can be written" % (
            os.path.dirname(self.path)
        )


def read(path):
    """Content of a file as bytes, or None when nothing is there (a link that leads nowhere is nothing)."""
    try:
        return hosttree.read_file(path)
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
    return stat.S_IMODE(found.st_mode) != mode or (
        os.geteuid() == 0 and (found.st_uid, found.st_gid) != (0, 0)
    )


def write(path, data, mode=0o644):
    """Put a file in place in one step, with the folders above it (0755). Raises FileError; the old file then stays.

    data: bytes. The new file belongs to who runs this (root), whoever had the old one; a link is replaced by a file.
    """
    folder, name = os.path.split(path)
    # Programs that read a whole folder take neither names with a dot in front nor what ends in a tilde. Always the same
    # name: what a run left that was cut off is overwritten by the next one.
    temporary = os.path.join(folder, ".%s~" % name)
    try:
        _make_folders(folder)
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), mode)
                if os.geteuid() == 0:
                    os.fchown(file.fileno(), 0, 0)
                os.fsync(file.fileno())
            os.rename(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise FileError(path, "write", error) from None


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


def show(data):
    """Content for a diff: text as it is, anything else by its size."""
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError:
        return "(binary, %d bytes)\n" % len(data)
