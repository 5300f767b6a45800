# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""As whom a program, a library or a Python environment runs that root did not install alone. The one rule, in one place.

Whoever may write what a process loads decides what it does. So when we are root:

1. What lies in one person's folders runs as that person, if nobody else may write to anything in it.
2. Everything else runs as nobody, whoever owns it.
3. It runs as root only where nobody cannot use it (a folder or GPUs that are closed to others) and root alone may write
   to all that it loads: every file of the environment, and what its links and ``.pth`` files lead to.

Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import glob
import os
import re
import stat

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree

NOBODY = (65534, 65534, "/")
# in a set of user ids: a group, or anybody
EVERYBODY = -1
# Their files are not one environment: of them only Python's own folders are judged as a whole.
_SYSTEM = ("/", "/usr", "/usr/local")
_MOST_FILES = 500000
_MOST_LINKS = 40
# Files that lead an interpreter elsewhere: site's, those of editable installations.
_LEADS = re.compile(r"(?:\.pth|\.egg-link|^__editable__.*\.py|^_editable_.*\.py|^pyvenv\.cfg)$")
_ACL = "system.posix_acl_access"


def account(*paths):
    """(uid, gid, home) as which to run what lies at paths (programs, folders of libraries) when we are root; None: as root.

    Paths that are not there do not count.
    """
    if os.geteuid() != 0:
        return None
    trees = [tree for path in paths for tree in _trees(path)]
    above = set()
    for path in list(paths) + trees:
        above |= _above(path)
    people = above - {0}
    if not people and _open_to_all(list(paths) + trees):
        return NOBODY
    if len(people) > 1 or EVERYBODY in people or not _inside(trees) <= people | {0}:
        return NOBODY
    return _person(people.pop()) if people else None


def become(user, groups):
    """Give up root for good and be user, (uid, gid, …), with these groups alone. Called in a child process."""
    os.setgroups(groups)
    os.setgid(user[1])
    os.setuid(user[0])


def strangers(*paths):
    """User ids, other than root, that may write to paths or to a folder above them; EVERYBODY for anybody at all.

    A group does not count: who gave a folder to a group trusts its members.
    """
    found = set()
    for path in paths:
        found |= _above(path, groups=False) | _writers(path, groups=False)
    return found - {0}


def _trees(path):
    """Folders whose files a program at path may load: its environment's, and those of the interpreter behind it."""
    if os.path.isdir(path):
        return [path]
    prefixes = {os.path.dirname(os.path.dirname(one)) for one in (os.path.abspath(path), os.path.realpath(path))}
    found = []
    for prefix in sorted(prefixes):
        if prefix in _SYSTEM:
            found += glob.glob(os.path.join(prefix, "lib/python3*"))
        else:
            found.append(prefix)
    return found


def _places(path, links=0):
    """A path and every folder above it, each link on the way with what it leads to; outermost first."""
    if links > _MOST_LINKS:
        return
    at, parts = "/", [part for part in os.path.abspath(path).split("/") if part]
    yield at
    for number, part in enumerate(parts):
        at = os.path.join(at, part)
        yield at
        try:
            target = os.readlink(at)
        except OSError:
            # no link, or nothing there
            continue
        rest = parts[number + 1 :]
        yield from _places(os.path.join(os.path.dirname(at), target, *rest), links + 1)
        return


def _above(path, groups=True):
    found = set()
    for place in _places(path):
        found |= _writers(place, True, groups)
    return found


def _writers(path, above=False, groups=True):
    """User ids that may write to a file or folder. above: it is on the way, where a sticky folder (/tmp) keeps others' entries."""
    try:
        info = os.lstat(path)
    except OSError:
        return set()
    found = {info.st_uid}
    if stat.S_ISLNK(info.st_mode) or (above and stat.S_ISDIR(info.st_mode) and info.st_mode & stat.S_ISVTX):
        return found
    if info.st_mode & stat.S_IWOTH or (groups and info.st_mode & stat.S_IWGRP and _shared(path, info)):
        found.add(EVERYBODY)
    return found


def _shared(path, info):
    """Whether the right of a group to write gives it to others than the owner. A person's own group does not."""
    import grp
    import pwd

    try:
        # An access list of more than owner, group and others: its mask shows as the group's rights.
        if _ACL in os.listxattr(path):
            return True
    except OSError:
        # a file system without
        pass
    if info.st_gid == 0:
        return False
    try:
        entry, group = pwd.getpwuid(info.st_uid), grp.getgrgid(info.st_gid)
    except KeyError:
        return True
    return group.gr_name != entry.pw_name or group.gr_gid != entry.pw_gid or bool(set(group.gr_mem) - {entry.pw_name})


def _inside(trees):
    """User ids that may write to anything in folders, and to what their links and leading files lead to."""
    found, seen, left = set(), set(), _MOST_FILES
    roots = {os.path.realpath(tree) for tree in trees}
    todo = list(roots)
    while todo:
        folder = todo.pop()
        if folder in seen:
            continue
        seen.add(folder)
        found |= _writers(folder)
        try:
            entries = list(os.scandir(folder)) if os.path.isdir(folder) else []
        except OSError:
            # root may look everywhere: a file system that says no is not judged
            return found | {EVERYBODY}
        left -= len(entries)
        if left < 0 or EVERYBODY in found:
            return found | {EVERYBODY}
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)
                continue
            found |= _writers(entry.path)
            for lead in _leads(entry):
                real = os.path.realpath(lead)
                found |= _above(lead)
                if os.path.isdir(real) and real not in _SYSTEM and not roots & _parents(real):
                    roots.add(real)
                    todo.append(real)
    return found


def _parents(path):
    """A path and the folders above it, as they are written."""
    found = {path}
    while path != "/":
        path = os.path.dirname(path)
        found.add(path)
    return found


def _leads(entry):
    """Places outside its folder to which an entry of a folder leads."""
    if entry.is_symlink():
        return [entry.path] if "/" in os.readlink(entry.path) else []
    return _named(entry) if _LEADS.search(entry.name) else []


def _named(entry):
    """Places that a file like ``x.pth`` names: whole lines, and absolute paths anywhere in it."""
    try:
        text = host_tree.read_text(entry.path, 1 << 20)
    except OSError:
        return []
    folder = os.path.dirname(entry.path)
    words = [
        os.path.join(folder, line.strip()) for line in text.splitlines() if not line.startswith(("import ", "import\t"))
    ]
    words += re.findall(r"/[^\s'\",;:=()\[\]{}]+", text)
    # Also what is not there: who may write above it can make it.
    return [word for word in words if "\0" not in word]


def _open_to_all(paths):
    """Whether nobody can enter and read the places, and use the GPUs."""
    paths = paths + [one for path in paths for one in glob.glob(os.path.join(path, "lib/python3*/site-packages"))]
    wanted = {place: 0o1 for path in paths for place in _places(path)}
    wanted.update((os.path.realpath(path), 0o5) for path in paths)
    for device in glob.glob("/dev/nvidia[0-9]*") + ["/dev/nvidiactl", "/dev/nvidia-uvm"]:
        wanted[device] = 0o6
    for place, mode in wanted.items():
        try:
            info = os.stat(place)
        except OSError:
            continue
        if (mode != 0o1 or stat.S_ISDIR(info.st_mode)) and info.st_mode & mode != mode:
            return False
    return True


def _person(uid):
    import pwd

    try:
        entry = pwd.getpwuid(uid)
        return entry.pw_uid, entry.pw_gid, entry.pw_dir
    except KeyError:
        return uid, NOBODY[1], "/"


def groups(user):
    """Ids of the groups of an account: those that a login of that user has."""
    import pwd

    try:
        return os.getgrouplist(pwd.getpwuid(user[0]).pw_name, user[1]) if user[0] != NOBODY[0] else [user[1]]
    except KeyError:
        return [user[1]]
