# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The state of a host before a rescue: one folder on the host, from which ``rescueundo`` goes back.

How rescue uses it::

    taken = take("rescue: driver.stale_module", paths=[files that the repairs name])   # before anything
    mark(taken["id"])          # after every step: what the host looks like now is ours, not somebody else's
    keep_files(taken["id"], paths)   # before a file is deleted: small ones are copied, the rest is listed
    finish(taken["id"])        # when the host is proven; until then the snapshot is never pruned

A second ``take`` after a run that was interrupted goes on with the same snapshot: what undo must lead back to is the state
before the first change. Its format is plain text, for people::

    /var/lib/gpu-provision/snapshots/20261128T093012Z-1f2e3d/    0700
        unfinished       there until ``finish``
        packages.tsv     name, architecture, version, status (dpkg's three words) of every row of dpkg's status file
        extended_states  apt's own record of what was installed automatically
        host.txt         kernel, boot id, images in /boot, DKMS trees, loaded modules
        files/…          copies with mode and owner, links as links
        after/…          packages.tsv and files.tsv as the last ``mark`` saw them
        manifest.json    written last, in one step: a folder without it is a snapshot that was interrupted

/etc/apt/auth.conf and auth.conf.d are not copied: they hold passwords and nothing here changes them. Other files that may
hold one (a proxy's address, a sources list) keep their mode, inside a folder that root alone can enter.

Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import calendar
import hashlib
import json
import os
import re
import shutil
import stat
import time

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, openpgp, own_files, own_state

SNAPSHOTS = own_state.FOLDER + "/snapshots"
SCHEMA = "provision/snapshot/1"
NAME = re.compile(r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{6}$")
KEEP = 10
# What one snapshot may hold: configuration is small, and a driver's library is listed, not copied.
MOST_BYTES_A_FILE, MOST_BYTES, MOST_FILES = 1 << 20, 64 << 20, 4000
# A run that was interrupted is gone on with for so long; after that its snapshot is of another time.
RESUME_S = 24 * 3600
# Folders that are copied with all they hold (two levels), and single files.
FOLDERS = (
    "/etc/apt/sources.list.d",
    "/etc/apt/keyrings",
    "/etc/apt/trusted.gpg.d",
    "/etc/apt/preferences.d",
    "/etc/apt/apt.conf.d",
    "/usr/share/keyrings",
    "/etc/modprobe.d",
    "/etc/modules-load.d",
    "/etc/ld.so.conf.d",
    "/etc/X11/xorg.conf.d",
    "/etc/default/grub.d",
    "/etc/dkms",
    "/etc/initramfs-tools",
    "/etc/dracut.conf.d",
    "/etc/gpu-provision",
    "/etc/OpenCL/vendors",
    "/etc/vulkan",
    "/etc/cdi",
)
FILES = (
    "/etc/apt/sources.list",
    "/etc/apt/trusted.gpg",
    "/etc/apt/preferences",
    "/etc/apt/apt.conf",
    "/etc/modules",
    "/etc/X11/xorg.conf",
    "/etc/default/grub",
    "/etc/ld.so.conf",
    "/etc/docker/daemon.json",
    "/etc/containerd/config.toml",
    "/etc/profile.d/gpu-provision-cuda.sh",
)
# and what lies in auth.conf.d
SECRET = ("/etc/apt/auth.conf",)
_SHAPE = {
    "schema": SCHEMA,
    "made": str,
    "reason": str,
    "kernel": str,
    "packages": int,
    "data": {str: str},
    "undo_of": (None, str),
    "left_out": [{"path": own_state.absolute, "why": str}],
    "files": [
        {
            "path": own_state.absolute,
            "kind": str,
            "state": (None, str),
            "mode": (None, int),
            "uid": (None, int),
            "gid": (None, int),
            "size": (None, int),
        }
    ],
}
_EXTENDED = "/var/lib/apt/extended_states"
_DKMS = "/var/lib/dkms"


class SnapshotError(Exception):
    """An expected failure: stable code (``snapshot.unknown``), message, because (lines), hint."""

    def __init__(self, code, message, because=(), hint=None):
        Exception.__init__(self, message)
        self.code, self.message, self.because, self.hint = code, message, list(because), hint

    def as_dict(self):
        """The error as plain data."""
        return {"code": self.code, "message": self.message, "because": self.because, "hint": self.hint}


def main(args):
    """Entry of the fast read: args["op"] is ``list`` (default): {"snapshots": listing()}, or ``finish`` with ``id``."""
    op = args.get("op", "list")
    if op == "finish":
        return finish(args["id"])
    if op != "list":
        raise SnapshotError("snapshot.usage", "unknown operation %r" % op)
    return {"snapshots": listing()}


# --- what rescue calls


def take(reason, paths=(), root="/", resume=True, keep=KEEP, check=False, undo_of=None):
    """Make a snapshot, or go on with the one that an unfinished run of the last day made.

    reason: one line for people; paths: files that the repairs of this run will write, move or remove (absent ones are
    noted as absent); undo_of: id that an undo goes back to. Returns {"id", "path", "resumed", "changed", "files",
    "bytes", "left_out": [{"path", "why"}],
    "pruned": [ids], "warnings": [lines]}. Raises SnapshotError. check: makes nothing.
    """
    host = Host(root)
    lines = host.warnings
    if not check:
        with host.lock():
            lines += host.put_damaged_aside()
    open_one = host.unfinished() if resume else None
    if open_one is not None:
        manifest = host.manifest(open_one)
        known = {entry["path"] for entry in manifest["files"]}
        missing = [path for path in _clean(paths) if path not in known]
        if missing and not check:
            with host.lock():
                host.add(open_one, manifest, missing, "named")
        return dict(host.answer(open_one, manifest, resumed=True, changed=bool(missing)), warnings=lines)
    if check:
        return {
            "id": None,
            "path": None,
            "resumed": False,
            "changed": True,
            "files": 0,
            "bytes": 0,
            "left_out": [],
            "pruned": [],
        }
    with host.lock():
        id_, manifest = host.make(reason, _clean(paths), undo_of)
        pruned = host.prune(keep, id_)
    return dict(host.answer(id_, manifest, resumed=False, changed=True), pruned=pruned, warnings=lines)


def mark(id_, root="/"):
    """Note how packages and files are now, as what this run made of them. Cheap; after every step."""
    host = Host(root)
    with host.lock():
        id_ = host.find(id_)
        host.mark(id_, host.manifest(id_))
    return {"id": id_}


def keep_files(id_, paths, root="/", kind="deleted"):
    """Put files that are about to be deleted into the snapshot. Returns {"kept": [paths], "left_out": [{path, why}]}.

    kind: ``deleted`` for pieces of a driver, which undo does not put back one by one; ``aside`` for settings, which it does.
    What is too large is listed in the manifest with its size, and stays deletable: it can be had from its installer.
    """
    host = Host(root)
    with host.lock():
        id_ = host.find(id_)
        manifest = host.manifest(id_)
        known = {entry["path"] for entry in manifest["files"]}
        before = len(manifest["left_out"])
        host.add(id_, manifest, [path for path in _clean(paths) if path not in known], kind)
        out = manifest["left_out"][before:]
    lost = {entry["path"] for entry in out}
    return {"kept": [path for path in _clean(paths) if path not in lost], "left_out": out}


def finish(id_, root="/"):
    """The rescue is done: note the state once more and let the snapshot grow old. A second call changes nothing."""
    host = Host(root)
    with host.lock():
        id_ = host.find(id_)
        open_ = os.path.exists(host.inside(id_, "unfinished"))
        if open_:
            host.mark(id_, host.manifest(id_))
            os.unlink(host.inside(id_, "unfinished"))
    return {"id": id_, "changed": open_}


def listing(root="/"):
    """[{"id", "made", "reason", "whole", "finished", "kernel", "packages", "files"}], newest first.

    whole: False for a folder that was interrupted before its manifest was written; it cannot be gone back to.
    """
    host = Host(root)
    rows = []
    for id_ in reversed(host.ids()):
        row = {
            "id": id_,
            "made": _made(id_),
            "reason": None,
            "whole": False,
            "finished": True,
            "kernel": None,
            "packages": 0,
            "files": 0,
        }
        manifest = host.manifest(id_, or_none=True)
        if manifest is not None:
            row.update(
                reason=manifest["reason"],
                whole=True,
                kernel=manifest["kernel"],
                packages=manifest["packages"],
                finished=not os.path.exists(host.inside(id_, "unfinished")),
                files=len(manifest["files"]),
            )
        rows.append(row)
    return rows


# --- reading what was kept


def read_packages(text):
    """Rows of a packages.tsv as {(name, arch): {"version" (or None), "want", "state"}}; other lines are passed over."""
    rows = {}
    for line in text.split("\n"):
        fields = line.split("\t")
        if len(fields) != 4:
            continue
        words = (fields[3] + " ? ? ?").split()
        rows[(fields[0], fields[1])] = {"version": fields[2] or None, "want": words[0], "state": words[2]}
    return rows


def read_auto(text):
    """Names (``name`` or ``name:arch``) that apt's extended_states marks as installed automatically: a set."""
    return {
        (fields["Package"], fields.get("Architecture", ""))
        for fields in apt_common.parse_stanzas(text)
        if "Package" in fields and fields.get("Auto-Installed") == "1"
    }


def fingerprint(real):
    """What a path holds now: ``sha256`` of a file in hex, ``link:TARGET`` of a link, None where nothing is."""
    try:
        info = os.lstat(real)
        if stat.S_ISLNK(info.st_mode):
            return "link:" + os.readlink(real)
        if not stat.S_ISREG(info.st_mode):
            return "other"
        digest = hashlib.sha256()
        with host_tree.open_file(real) as file:
            for chunk in iter(lambda: file.read(1 << 20), b""):
                digest.update(chunk)
        return digest.hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None


class Host(object):
    """Snapshots of one host below root: reading and writing. Ids are whole folder names here, except in ``find``."""

    def __init__(self, root="/"):
        self.root = "" if root == "/" else root.rstrip("/")
        self.folder = self.real(SNAPSHOTS)
        # what was put aside before a change, in lines for people
        self.warnings = []

    def real(self, path):
        return self.root + path

    def inside(self, id_, *parts):
        return os.path.join(own_state.place(os.path.join(self.folder, id_)), *parts)

    def ids(self):
        """Names of all snapshot folders, oldest first, cut-off ones too."""
        try:
            return [name for name in own_state.names(self.folder) if NAME.match(name)]
        except PermissionError:
            raise _not_root() from None

    def find(self, wanted=None):
        """The whole id that a person means: None the newest whole one, else an id, its beginning or its last part."""
        whole = [id_ for id_ in self.ids() if self.manifest(id_, or_none=True) is not None]
        if wanted is None:
            if not whole:
                raise SnapshotError(
                    "snapshot.none",
                    "there is no snapshot of this host",
                    hint="rescue makes one before it changes anything",
                )
            return whole[-1]
        found = [id_ for id_ in self.ids() if id_ == wanted or id_.startswith(wanted) or id_.endswith("-" + wanted)]
        if len(found) != 1 or not wanted:
            raise SnapshotError(
                "snapshot.unknown",
                "%s snapshot is called %s" % ("no" if not found else "more than one", wanted),
                because=found or whole[-3:],
                hint="name one of those: provision rescue HOST --undo ID",
            )
        if found[0] not in whole:
            raise SnapshotError(
                "snapshot.cut_off",
                "the snapshot %s was interrupted before it was complete" % found[0],
                because=["nothing was changed after it: a rescue changes nothing before its snapshot is complete"],
                hint="name another one, or none for the newest",
            )
        return found[0]

    def manifest(self, id_, or_none=False):
        """The manifest as a dict. or_none: None where it is missing or damaged, instead of SnapshotError."""
        path = self.inside(id_, "manifest.json")
        try:
            manifest = own_state.read(path, _SHAPE)
        except own_state.Damaged as damage:
            manifest, why = None, damage.why
        else:
            why = "it is not there"
        if manifest is None and os.geteuid() != 0 and not self.root:
            raise _not_root()
        if manifest is None and not or_none:
            raise SnapshotError(
                "snapshot.cut_off",
                "the manifest of snapshot %s cannot be read: %s" % (id_, why),
                hint="name another one: provision rescue HOST --undo ID",
            )
        return manifest

    def put_damaged_aside(self):
        """Give snapshots whose manifest is damaged another name, so that they are neither used nor pruned; returns lines."""
        lines = []
        for id_ in self.ids():
            try:
                own_state.read(self.inside(id_, "manifest.json"), _SHAPE)
            except own_state.Damaged as damage:
                lines.append(own_state.put_aside(own_state.Damaged(self.inside(id_), "its manifest: " + damage.why)))
        return lines

    def unfinished(self):
        """Id of the newest snapshot if its rescue is not finished and it is young enough to go on with; else None."""
        for row in reversed(self.ids()):
            if self.manifest(row, or_none=True) is None:
                continue
            age = time.time() - _seconds(row)
            return row if os.path.exists(self.inside(row, "unfinished")) and age < RESUME_S else None
        return None

    def lock(self):
        """Hold the lock of the snapshots in a with statement; a second one waits."""
        self.make_folder()
        busy = SnapshotError(
            "snapshot.busy", "another rescue on this host holds the snapshots", hint="wait for it to end"
        )
        return own_state.locked(os.path.join(self.folder, ".lock"), 60, busy)

    def make_folder(self):
        if os.geteuid() != 0 and not self.root:
            raise _not_root()
        own_state.make_folder(os.path.dirname(self.folder))
        own_state.move(os.path.dirname(self.folder), self.warnings)
        if not os.path.isdir(self.folder):
            os.mkdir(self.folder, 0o700)
        os.chmod(self.folder, 0o700)

    def text(self, id_, *parts):
        """Text of a file of the snapshot; empty where it is not there. Raises SnapshotError for another than was written."""
        path, name = self.inside(id_, *parts), "/".join(parts)
        try:
            data = own_files.read(path, follow=False)
        except own_files.FileError as error:
            raise _damaged(id_, name, error.reason) from None
        wanted = self.manifest(id_)["data"].get(name)
        if wanted is not None and hashlib.sha256(data or b"").hexdigest() != wanted:
            raise _damaged(id_, name, "its checksum is not that of the manifest")
        return (data or b"").decode("utf-8", "surrogateescape")

    def answer(self, id_, manifest, resumed, changed):
        return {
            "id": id_,
            "path": self.inside(id_),
            "resumed": resumed,
            "changed": changed,
            "pruned": [],
            "files": len(manifest["files"]),
            "bytes": sum(entry.get("size", 0) for entry in manifest["files"]),
            "left_out": manifest["left_out"],
        }

    # -- making one

    def make(self, reason, paths, undo_of):
        # Later than every other one, also where the clock was set back: their order is the order of their names.
        at = max([time.time()] + [_seconds(other) + 1 for other in self.ids()])
        id_ = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at)) + "-" + os.urandom(3).hex()
        os.mkdir(self.inside(id_), 0o700)
        _write(self.inside(id_, "unfinished"), b"")
        rows = self.package_rows()
        manifest = {
            "schema": SCHEMA,
            "id": id_,
            "made": _made(id_),
            "reason": reason,
            "by": "rescue",
            "kernel": os.uname()[2],
            "packages": len(rows),
            "files": [],
            "left_out": [],
            "data": {},
            "undo_of": undo_of,
        }
        data = {"packages.tsv": _lines(rows), "host.txt": _lines(self.host_lines())}
        states = _read(self.real(_EXTENDED))
        if states is not None:
            data["extended_states"] = states
        for name, content in data.items():
            _write(self.inside(id_, name), content)
            manifest["data"][name] = hashlib.sha256(content).hexdigest()
        self.add(id_, manifest, self.watched(), "watched", write=False)
        known = {entry["path"] for entry in manifest["files"]}
        self.add(id_, manifest, [path for path in paths if path not in known], "named")
        return id_, manifest

    def add(self, id_, manifest, paths, kind, write=True):
        """Copy paths into the snapshot and write the manifest anew; an old one is valid until then."""
        held = sum(entry.get("size", 0) for entry in manifest["files"])
        out = {entry["path"]: entry for entry in manifest["left_out"]}
        for path in paths:
            entry, why = self.copy(id_, path, kind, MOST_BYTES - held, len(manifest["files"]))
            if entry is None:
                out.setdefault(path, dict(why, path=path))
                continue
            out.pop(path, None)
            held += entry.get("size", 0)
            manifest["files"].append(entry)
        manifest["left_out"] = [out[path] for path in sorted(out)]
        if write:
            text = json.dumps(manifest, indent=1, sort_keys=True, ensure_ascii=True)
            _write(self.inside(id_, "manifest.json"), text.encode("ascii"))

    def copy(self, id_, path, kind, room, count):
        """Return (entry of the manifest, None), or (None, why it was left out)."""
        if path in SECRET or any(path.startswith(secret + ".d/") for secret in SECRET):
            return None, {"why": "it holds passwords; nothing here changes it"}
        if re.search(r"[\n\t]", path) or count >= MOST_FILES:
            return None, {"why": "an odd name" if count < MOST_FILES else "more than %d files" % MOST_FILES}
        real, target = self.real(path), self.inside(id_, "files") + path
        try:
            info = os.lstat(real)
        except (FileNotFoundError, NotADirectoryError):
            return {"path": path, "kind": kind, "state": None}, None
        entry = {"path": path, "kind": kind, "mode": stat.S_IMODE(info.st_mode), "uid": info.st_uid, "gid": info.st_gid}
        if stat.S_ISLNK(info.st_mode):
            _make_folders(os.path.dirname(target))
            _drop(target)
            os.symlink(os.readlink(real), target)
            return dict(entry, state=fingerprint(real)), None
        if not stat.S_ISREG(info.st_mode):
            return None, {"why": "neither a file nor a link"}
        if info.st_size > min(MOST_BYTES_A_FILE, room):
            return None, {"why": "larger than what is copied", "size": info.st_size}
        data = host_tree.read_file(real, MOST_BYTES_A_FILE)
        _make_folders(os.path.dirname(target))
        _write(target, data, stat.S_IMODE(info.st_mode), sync=False)
        if os.geteuid() == 0:
            os.chown(target, info.st_uid, info.st_gid)
            os.chmod(target, stat.S_IMODE(info.st_mode))
        entry.update(size=len(data), state=hashlib.sha256(data).hexdigest())
        keys = _keys(path, data)
        return (dict(entry, keys=keys) if keys else entry), None

    def watched(self):
        """Paths of the configuration that rescue and the roles touch: present files and links, sorted."""
        found = [path for path in FILES if os.path.lexists(self.real(path))]
        for folder in FOLDERS:
            found += self._walk(folder, 2)
        units = "/etc/systemd/system"
        for name in _names(self.real(units)):
            if name.startswith("nvidia-") and name.endswith(".service.d"):
                found += self._walk("%s/%s" % (units, name), 1)
        return sorted(set(found))

    def _walk(self, folder, depth):
        found = []
        for name in _names(self.real(folder)):
            path = "%s/%s" % (folder, name)
            if os.path.isdir(self.real(path)) and not os.path.islink(self.real(path)):
                found += self._walk(path, depth - 1) if depth > 1 else []
            else:
                found.append(path)
        return found

    def package_rows(self):
        """Lines of packages.tsv: every row of dpkg's status, also configuration that was left and holds on nothing."""
        packages = apt_common.read_status(self.real(apt_common.DPKG_STATUS))
        return ["\t".join((p.name, p.arch, p.version or "", "%s %s %s" % (p.want, p.flag, p.state))) for p in packages]

    def extended_states(self):
        """Text of apt's record of what was installed automatically, as it is now."""
        return (_read(self.real(_EXTENDED)) or b"").decode("utf-8", "replace")

    def host_lines(self):
        """Lines of host.txt, for people."""
        lines = ["kernel " + os.uname()[2]]
        boot_id = _read(self.real("/proc/sys/kernel/random/boot_id"))
        lines.append("boot_id " + (boot_id or b"").decode("ascii", "replace").strip())
        cmdline = _read(self.real("/proc/cmdline"))
        lines.append("cmdline " + (cmdline or b"").decode("utf-8", "replace").strip())
        for name in _names(self.real("/boot")):
            if name.startswith(("vmlinuz", "initrd.img")):
                lines.append("boot " + name)
        for module in _names(self.real(_DKMS)):
            for version in _names(self.real("%s/%s" % (_DKMS, module))):
                lines += ["dkms " + text for text in self._dkms(module, version)]
        for name in ("nvidia", "nouveau"):
            if os.path.isdir(self.real("/sys/module/" + name)):
                version = _read(self.real("/sys/module/%s/version" % name)) or b""
                lines.append(("loaded %s %s" % (name, version.decode("ascii", "replace").strip())).rstrip())
        return lines

    def _dkms(self, module, version):
        tree = "%s/%s/%s" % (_DKMS, module, version)
        if version == "kernel-" or os.path.islink(self.real(tree)) or not os.path.isdir(self.real(tree)):
            return []
        kernels = [name for name in _names(self.real(tree)) if name[:1].isdigit()]
        return ["%s/%s %s" % (module, version, kernel) for kernel in kernels] or ["%s/%s" % (module, version)]

    # -- afterwards

    def mark(self, id_, manifest):
        """Write after/: packages and files as they are now."""
        folder = self.inside(id_, "after")
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o700)
        paths = {entry["path"] for entry in manifest["files"]} | set(self.watched())
        lines = ["%s\t%s" % (fingerprint(self.real(path)) or "-", path) for path in sorted(paths) if "\n" not in path]
        _write(os.path.join(folder, "files.tsv"), _lines(lines))
        _write(os.path.join(folder, "packages.tsv"), _lines(self.package_rows()))

    def after(self, id_):
        """({(name, arch): row}, {path: fingerprint or None}) of the last mark; (None, None) where there was none."""
        packages, files = self.text(id_, "after", "packages.tsv"), self.text(id_, "after", "files.tsv")
        if not packages:
            return None, None
        rows = (line.split("\t", 1) for line in files.split("\n") if "\t" in line)
        return read_packages(packages), {path: None if state == "-" else state for state, path in rows}

    def prune(self, keep, newest):
        """Remove what is older than the newest ``keep`` whole ones, and folders that were cut off. Returns the ids.

        The newest unfinished one stays whatever its age: the next rescue goes on from it, and undo goes back to it.
        """
        ids = self.ids()
        whole = [id_ for id_ in ids if self.manifest(id_, or_none=True) is not None]
        open_ = [id_ for id_ in whole if os.path.exists(self.inside(id_, "unfinished"))]
        stay = set(whole[-max(1, keep) :]) | {newest} | set([id_ for id_ in open_ if id_ != newest][-1:])
        gone = [id_ for id_ in ids if id_ not in stay]
        for id_ in gone:
            # A folder without manifest is somebody's that was interrupted: this run holds the lock.
            shutil.rmtree(self.inside(id_))
        return gone


def _not_root():
    return SnapshotError("snapshot.not_root", "snapshots can be read and made by root only", hint="become: true")


def _damaged(id_, name, why):
    return SnapshotError(
        "snapshot.damaged",
        "%s of snapshot %s is damaged: %s" % (name, id_, why),
        hint="name another one: provision rescue HOST --undo ID",
    )


def _clean(paths):
    """Paths without repeats, normalised; SnapshotError for one that is not absolute."""
    done = []
    for path in paths:
        if not path.startswith("/"):
            raise SnapshotError("snapshot.usage", "not an absolute path: %r" % path)
        path = os.path.normpath(path)
        if path not in done:
            done.append(path)
    return done


def _keys(path, data):
    """Fingerprints of the primary keys in a file that lies where apt's keys lie."""
    if not path.endswith((".gpg", ".asc", ".pgp")):
        return []
    try:
        return openpgp.primaries(data)
    except ValueError:
        # a keybox of GnuPG, or a file that only has the name of one
        return []


def _made(id_):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(_seconds(id_)))


def _seconds(id_):
    return calendar.timegm(time.strptime(id_[:16], "%Y%m%dT%H%M%SZ"))


def _names(folder):
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path):
    try:
        return host_tree.read_file(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _lines(rows):
    return "".join(row + "\n" for row in rows).encode("utf-8", "surrogateescape")


def _make_folders(path):
    if not os.path.isdir(path):
        os.makedirs(path, 0o700)


def _drop(path):
    if os.path.lexists(path):
        os.unlink(path)


def _write(path, data, mode=0o600, sync=True):
    """Write a file in one step; sync: it is on the disk before the name is."""
    with own_files.replacing(path, sync) as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
