# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Make a conda prefix as it should be: absent, whole and partial are distinguished, and a run that was interrupted is finished.

An installer writes its prefix into every script, so nothing can be unpacked elsewhere and moved: it runs in the prefix
itself, beside a marker of ours that goes when the prefix is whole. What carries the marker was begun by us, and the
next run finishes it without asking; any other partial prefix is repaired only when that is asked for. Standard library
only, any Python from 3.8.
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import re
import shutil

from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.conda import condarc
from ansible_collections.gpu.provision.plugins.module_utils.conda import fetch as conda_fetch
from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import (
    PROFILE,
    CondaError,
    Owner,
    Work,
    read_text,
    write_text,
)
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, redact

CACHE = "/var/cache/gpu-provision/conda"
# the installer's own reserve on the disk of the prefix
BUFFER = 50 << 20
# Miniconda py313_25.9.1-3: an installer of 158 MB wants 974 MB. Older ones do not say.
_UNPACKED = 7
_HEADER = 1 << 16


def run(params, check=False):
    """Bring one prefix to what params ask for; returns what was done. Raises CondaError.

    params: the options of the module conda_install. check: change nothing, say what would be. Returns {"changed",
    "done" (sentences), "diff", "state", "version", "warnings"}.
    """
    return _Install(params, check).carry_out()


def check_prefix(prefix):
    """Raise CondaError for a prefix that no installer takes."""
    if re.search(r"\s", prefix):
        raise CondaError(
            "conda.prefix_space",
            "conda cannot be installed in '%s': its installers refuse a path with a space" % prefix,
            ["ERROR: Cannot install into directories with spaces"],
            "give a prefix without one, such as miniconda_prefix: /opt/miniconda3; a home with a space does no harm then",
        )
    # conda writes the prefix over a placeholder of 255 characters in binary files (conda, core/portability.py).
    if len(os.fsencode(prefix)) > 240:
        raise CondaError(
            "conda.prefix_long",
            "the prefix has %d characters, and conda can take 255 with an environment's" % len(prefix),
            hint="give a shorter prefix",
        )
    if prefix == "/" or prefix.count("/") < 2:
        raise CondaError(
            "conda.prefix_top", "%s is no place for conda" % prefix, hint="give a prefix such as /opt/miniconda3"
        )


def decide(state, action, version):
    """Return what to do to a prefix: ``install``, ``finish``, ``repair``, ``update`` or None. Raises CondaError.

    state: as prefix_state says; action: what was planned (install, update, repair, configure); version: of the
    installer, ``26.5.3-1`` or ``latest``.
    """
    found = state["state"]
    if found == "foreign":
        raise CondaError(
            "conda.prefix_foreign",
            "the prefix contains something other than conda",
            hint="set another miniconda_prefix, or move the existing files away",
        )
    if state["marked"]:
        return "finish"
    if found == "partial" and action != "repair":
        raise CondaError(
            "conda.partial",
            "the conda at the prefix is incomplete, and gpu-provision did not install it",
            conda_read.partial_because(state),
            "miniconda_repair: true runs the installer over it (-u), which keeps its environments",
        )
    if found == "partial":
        return "repair"
    if found in ("absent", "empty"):
        if action in ("configure", "update"):
            raise CondaError("conda.plan_moved", "the prefix no longer contains conda", hint="plan again")
        return "install"
    return "update" if action == "update" and _is_newer(version, state) else None


def header(path):
    """What an installer says of itself: {"kib"}, its size when unpacked or None; None for what is none."""
    with host_tree.open_file(path) as file:
        text = file.read(_HEADER).decode("utf-8", "replace")
    if not text.startswith("#!"):
        return None
    match = re.search(r'^total_installation_size_kb="([0-9]{1,18})"', text, re.M)
    return {"kib": int(match.group(1)) if match else None}


def explain(result, prefix, installer, kept):
    """Return the CondaError for an installer that failed; kept: what is left at the prefix now."""
    text = result.text
    if conda_common.full_disk(text):
        return conda_common.disk_error(prefix, text, kept)
    lines = conda_common.last_lines(text) + [kept]
    if result.timed_out:
        return CondaError(
            "conda.installer_slow", "%s did not end in time" % installer, lines, "is the disk slow or a network disk?"
        )
    if result.signal:
        return CondaError(
            "conda.installer_killed",
            "%s was ended by signal %d" % (installer, result.signal),
            lines,
            "run again to finish it; dmesg shows whether memory ran out",
        )
    if "requires GLIBC" in text:
        return CondaError(
            "conda.glibc", "%s is too new for this Ubuntu" % installer, lines, "give an older miniconda_version"
        )
    if "Permission denied" in text:
        hint = "a file system mounted noexec stops it, and so does a folder that its user may not write to"
        return CondaError("conda.installer_failed", "%s was not allowed to run" % installer, lines, hint)
    return CondaError(
        "conda.installer_failed",
        "%s ended with exit code %d" % (installer, result.rc),
        lines,
        "its last lines say why; fix that, then run again",
    )


class _Install(Work):
    """One run: decide, install, then what lies around the prefix."""

    def __init__(self, params, check):
        self.prefix = conda_common.expand(params["prefix"])
        check_prefix(self.prefix)
        Work.__init__(self, params, check, self.prefix, self.prefix + "/" + conda_read.MARKER)

    def run(self):
        self.warnings = []
        state = self.state()
        what = decide(state, self.params["action"], self.params.get("version") or "")
        if what:
            self.base(what, state)
        self.condarc()
        self.terms()
        self.profile()
        for user in self.params.get("shell_init") or ():
            self.shell_init(user)
        after = state if self.check else self.state()
        return {"warnings": self.warnings, "state": after["state"], "version": after["version"]}

    def state(self):
        return conda_read.prefix_state(self.prefix)

    # --- the prefix itself

    def base(self, what, state):
        word = {"install": "installed", "finish": "finished", "repair": "repaired", "update": "updated"}[what]
        said = "%s %s %s at %s" % (word, self.params["distribution"], self.params.get("version") or "", self.prefix)
        asked = "whole %s\n" % (self.params.get("version") or "").rsplit("-", 1)[0]
        self.show(self.prefix, "%s %s\n" % (state["state"], state["version"] or ""), asked)
        if self.check:
            self.done.append(said)
            return
        self.must_be_writable(state)
        if what == "finish":
            with conda_common.locked(self.marker, self.prefix) as lock:
                state = self.state()
                if not state["missing"] and not state["leftovers"] and self.works():
                    # An installer that went on alone came to its end after we had died.
                    self.finished(None)
                else:
                    self.finish(state, lock)
        else:
            fetched = self.fetch(state)
            if what == "update" and (state["record"] or {}).get("sha256") == fetched["sha256"]:
                # 'latest' is what is there
                return
            self.begin(fetched, over=what != "install")
        self.done.append(said)

    def fetch(self, state):
        """Have the installer, and know that its unpacked size fits: the answer of conda.fetch, and ``kib``."""
        try:
            fetched = conda_fetch.fetch(
                self.params.get("url") or self.params["file"],
                self.params.get("cache_dir") or CACHE,
                self.params["installer"],
                self.params.get("sha256") or "",
            )
            info = header(fetched["path"])
            if info is None:
                raise CondaError(
                    "conda.no_installer",
                    "%s is not an installer" % self.params["installer"],
                    ["it does not begin as a shell script"],
                    "give the .sh of Miniconda or Miniforge",
                )
            self.must_fit(info, fetched)
        except CondaError:
            if state["state"] in ("absent", "empty") and not os.path.lexists(self.marker):
                # the empty folder that we just made
                self.wipe(True)
            raise
        return fetched

    def begin(self, fetched, over):
        """Put our marker into the prefix, and install under it."""
        self.put_marker(self.marker_text(fetched, over))
        with conda_common.locked(self.marker, self.prefix) as lock:
            self.install(fetched, over, lock)

    def finish(self, state, lock):
        """Take up what a run before left. What we began from nothing is begun anew, anything else is installed over."""
        over = self.has_environments(state)
        if not over:
            # first, for its room
            self.wipe(False)
        fetched = self.fetch(state)
        self.as_owner(conda_common.overwrite_text, self.marker, self.marker_text(fetched, over))
        self.install(fetched, over, lock)

    def marker_text(self, fetched, over):
        note = {
            "installer": self.params["installer"],
            "sha256": fetched["sha256"],
            "fresh": not over,
            "started": conda_common.now(),
        }
        if over:
            # Installers write their own .condarc over the one that is there, also with -u.
            kept = self.note().get("condarc")
            note["condarc"] = kept or self.as_owner(read_text, self.prefix + "/.condarc")
        return json.dumps(note) + "\n"

    def must_be_writable(self, state):
        """Have the folder of the prefix and a home that the installer can use, or say what is in the way."""
        try:
            # The installer makes ~/.conda, and ends when it cannot.
            self.as_owner(_make_folder, self.owner.home + "/.conda")
        except OSError as error:
            raise conda_common.not_writable(self.owner.home + "/.conda", self.owner, error) from None
        try:
            self.as_owner(_make_folder, self.prefix)
        except OSError as error:
            inside = (self.prefix + "/").startswith(self.owner.home.rstrip("/") + "/")
            if error.errno != errno.EACCES or os.geteuid() != 0 or (inside and self.owner.uid != 0):
                raise conda_common.not_writable(self.prefix, self.owner, error) from None
            self.make_for_owner()
        if state["state"] in ("absent", "empty") and self.params.get("group") and not self.umask & 0o020:
            # Whoever of the group adds a file later: it stays the group's.
            self.as_owner(os.chmod, self.prefix, 0o2777 & ~self.umask)

    def make_for_owner(self):
        """As root, make a folder where its owner may not make one (/opt), and give it to them."""
        os.makedirs(os.path.dirname(self.prefix), 0o755, exist_ok=True)
        if not os.path.isdir(self.prefix):
            os.mkdir(self.prefix, 0o755)
        handle = os.open(self.prefix, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.listdir(handle):
                raise CondaError(
                    "conda.not_writable",
                    "%s may not write to %s" % (self.owner.name, self.prefix),
                    hint="chown it, or name its owner with miniconda_owner",
                )
            os.fchown(handle, self.owner.uid, self.owner.gid)
            os.fchmod(handle, 0o777 & ~self.umask)
        finally:
            os.close(handle)

    def has_environments(self, state):
        """True when somebody made environments in it meanwhile: then it is not wiped but installed over."""
        folder = self.prefix + "/envs"
        made = os.path.isdir(folder) and any(os.path.isdir(folder + "/" + name) for name in os.listdir(folder))
        return made or not state["fresh"]

    def must_fit(self, info, fetched):
        need = (info["kib"] << 10 if info["kib"] else fetched["size"] * _UNPACKED) + BUFFER
        free = conda_common.free_bytes(self.prefix)
        if free < need:
            raise CondaError(
                "conda.disk_full",
                "%s needs %s at %s, and %s are free"
                % (self.params["installer"], conda_common.size(need), self.prefix, conda_common.size(free)),
                ["by its own header" if info["kib"] else "guessed from its size"],
                "make room there, or choose another place: miniconda_prefix, for users miniconda_users_prefix",
            )

    def install(self, fetched, over, lock):
        """Run the installer in the prefix under our marker; over: onto what is there (-u), else from nothing."""
        installer = self.params["installer"]
        if over:
            conda_common.refuse_foreign(self.prefix + "/bin/conda", self.owner)
        # -f: the folder is there, with our marker in it.
        argv = ["bash", fetched["path"], "-b", "-u" if over else "-f", "-p", self.prefix]
        result = conda_common.run(argv, self.owner, self.umask, self.params.get("timeout") or 3600, inherit=(lock,))
        state = self.state()
        if result.rc != 0 or state["missing"] or state["leftovers"] or not self.works():
            # the marker is ours, now
            result.text += "\n" + "\n".join(conda_read.partial_because(dict(state, marked=False)))
            kept = "the existing files stay, and the next run completes them"
            if not over and not result.signal and self.wipe(True):
                kept = "nothing was left at " + self.prefix
            raise explain(result, self.prefix, installer, kept)
        self.finished(fetched)

    def works(self):
        """True when the conda of the prefix answers."""
        try:
            result = conda_common.run([self.prefix + "/bin/conda", "--version"], self.owner, self.umask, 120)
        except OSError:
            # no interpreter, or a file system without programs
            return False
        return result.rc == 0

    def wipe(self, whole):
        """Take away what lies in a prefix that we began from nothing; whole: the folder too. Returns success."""
        return self.as_owner(_wipe, self.prefix, conda_read.MARKER, whole)

    def finished(self, fetched):
        """Write what was made, and take the marker away: only now the prefix is whole."""
        old = self.note()
        if old.get("condarc") is not None:
            self.as_owner(write_text, self.prefix + "/.condarc", old["condarc"])
        record = {
            "schema": conda_common.SCHEMA,
            "kind": "base",
            "distribution": self.params["distribution"],
            "version": self.params.get("version") or "",
            "installer": old.get("installer") or self.params["installer"],
            "sha256": fetched["sha256"] if fetched else old.get("sha256"),
            "accept_tos": [],
            "time": conda_common.now(),
        }
        self.write_record(record)
        self.as_owner(os.unlink, self.marker)

    def write_record(self, record):
        self.write(self.prefix + "/" + conda_read.RECORD, json.dumps(record, indent=1) + "\n")

    # --- around it

    def condarc(self):
        wanted = self.params.get("condarc") or {}
        if not wanted:
            return
        path = self.prefix + "/.condarc"
        before = self.as_owner(read_text, path)
        after = condarc.merge(before or "", wanted, path)
        self.put(path, before, after, "set %s in %s" % (", ".join(sorted(wanted)), path))

    def terms(self):
        """Accept terms that are not accepted yet, and note them: the next plan needs no conda to know."""
        root = self.prefix + "/" + conda_read.TERMS
        there = conda_read.accepted_terms(root)
        for channel in self.params.get("accept_tos") or ():
            if channel in there:
                continue
            said = "accepted the terms of %s, as miniconda_accept_tos says" % redact.text(channel)
            if not self.check:
                words = ["tos", "accept", "--system", "--override-channels", "--channel", channel]
                result = conda_common.run([self.prefix + "/bin/conda", *words], self.owner, self.umask, 300)
                if result.rc == 2 and "invalid choice" in result.text:
                    self.warnings.append("this conda has no terms plugin: it asks for no acceptance")
                    return
                if result.rc != 0 or channel not in conda_read.accepted_terms(root):
                    raise CondaError(
                        "conda.terms",
                        "the terms of %s could not be accepted" % channel,
                        conda_common.last_lines(result.text),
                        "conda fetches them from the channel: can the host reach it? Else leave miniconda_accept_tos "
                        "and use conda-forge",
                    )
            self.done.append(said)
            record = self.state()["record"]
            if record and not self.check:
                record["accept_tos"] = sorted({*(record.get("accept_tos") or ()), channel})
                self.write_record(record)

    def profile(self):
        if not self.params.get("profile"):
            return
        text = conda_common.render_profile(self.prefix, self.params["owner"], self.params.get("umask") or "022")
        before = read_text(PROFILE)
        if before == text:
            return
        self.done.append("wrote " + PROFILE)
        self.show(PROFILE, before, text)
        if not self.check:
            conda_common.among_others(write_text, PROFILE, text)
            os.chmod(PROFILE, 0o644)

    def shell_init(self, name):
        user = Owner(name)
        shell, rc = conda_read.init_file(pwd.getpwnam(name).pw_shell)
        path = user.home + "/" + rc
        before = conda_common.as_owner(user, 0o022, read_text, path)
        block = conda_read.init_block(before or "")
        if block == self.prefix:
            return
        if block is not None:
            raise CondaError(
                "conda.shell_init",
                "%s has the block of another conda: %s" % (path, block or "unknown"),
                hint="%s runs conda init --reverse %s with that conda first" % (name, shell),
            )
        self.done.append("initialised %s for %s" % (shell, name))
        if self.check:
            return
        result = conda_common.run([self.prefix + "/bin/conda", "init", shell], user, 0o022, 120)
        after = conda_common.as_owner(user, 0o022, read_text, path)
        if result.rc != 0 or conda_read.init_block(after or "") != self.prefix:
            raise CondaError(
                "conda.shell_init",
                "conda init failed for %s" % name,
                conda_common.last_lines(result.text),
                "can %s read %s and write %s?" % (name, self.prefix, path),
            )
        self.show(path, before, after)


def _is_newer(version, state):
    record = state["record"] or {}
    if version == "latest":
        # the checksum of what is fetched decides
        return True
    if record.get("version") == version:
        return False
    return _key(version.rsplit("-", 1)[0]) > _key(state["version"] or "") or (
        (record.get("version") or "").rsplit("-", 1)[0] == version.rsplit("-", 1)[0]
        and _key(version) > _key(record["version"])
    )


def _key(version):
    return [int(part) for part in re.findall(r"\d+", version)]


def _make_folder(path):
    os.makedirs(path, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _wipe(prefix, keep, whole):
    """Remove everything in prefix but ``keep``, or the folder itself; False when something would not go."""
    try:
        for name in os.listdir(prefix):
            path = os.path.join(prefix, name)
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            elif name != keep:
                os.unlink(path)
    except OSError:
        # what is left is known by its marker
        return False
    if whole:
        # The marker goes last, so that a cut at any moment leaves what the next run knows as ours.
        if os.path.lexists(os.path.join(prefix, keep)):
            os.unlink(os.path.join(prefix, keep))
        try:
            os.rmdir(prefix)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EBUSY, errno.EPERM, errno.EROFS):
                raise
    return True
