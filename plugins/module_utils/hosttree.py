# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Files of a host, read below any root: a recorded host is a folder.

Absent files are normal and give None or nothing; files that are there and may not be read are noted in
``unreadable``, so that nobody takes "could not look" for "is not there".
"""

from __future__ import annotations

import os
import stat


class HostTree(object):
    """Reads below root. Paths go in and come out as the host sees them (``/etc/os-release``)."""

    def __init__(self, root="/"):
        self.root = "" if root in ("", "/") else os.path.abspath(root)
        self.unreadable = []

    @property
    def live(self):
        """True when this is the running host and not a recorded one."""
        return not self.root

    def real(self, path):
        """Path for open() and friends; links that lead outside the tree are followed inside it."""
        return self.root + self.resolve(path) if self.root else path

    def note(self, path):
        """Remember a path as unreadable."""
        if path not in self.unreadable:
            self.unreadable.append(path)

    def read_bytes(self, path, limit=-1):
        """Content of a file, or None when it is absent or unreadable."""
        try:
            with open(self.real(path), "rb") as file:
                return file.read(limit)
        except PermissionError:
            self.note(path)
        except OSError:
            # Absent, or sysfs and efivarfs saying that there is no value (ENODEV, EIO, EINVAL).
            pass
        return None

    def read(self, path, limit=-1):
        """Text of a file (undecodable bytes escaped), or None."""
        data = self.read_bytes(path, limit)
        return None if data is None else data.decode("utf-8", "backslashreplace")

    def word(self, path):
        """Text of a one-value file without surrounding space; None when absent, unreadable or empty."""
        text = self.read(path, 4096)
        return (text or "").strip() or None

    def names(self, path):
        """Sorted names in a folder; empty when it is absent or unreadable."""
        try:
            return sorted(os.listdir(self.real(path)))
        except PermissionError:
            self.note(path)
        except OSError:
            pass
        return []

    def stat(self, path, follow=True):
        """os.stat result, or None when there is no such file (or it may not be looked at)."""
        try:
            if follow:
                return os.stat(self.real(path))
            folder, name = os.path.split(path)
            return os.lstat(os.path.join(self.real(folder), name))
        except PermissionError:
            self.note(path)
        except OSError:
            pass
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
        except OSError:
            return None

    def resolve(self, path):
        """Path with all links resolved, as the host sees it; missing parts stay as they are."""
        if not self.root:
            return os.path.realpath(path)
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
            except OSError:
                done += "/" + part
                continue
            links += 1
            if links > 40:
                return path
            if target.startswith("/"):
                done = ""
            rest = [piece for piece in target.split("/") if piece] + rest
        return done or "/"
