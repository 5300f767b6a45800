# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Bring files, alternatives and the loader's cache of a host with CUDA toolkits to what is asked for.

Reads first and refuses before anything is changed; starts a program only where something has to change.
Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import os

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, own_files

LD_SO_CONF_D = "/etc/ld.so.conf.d"


class CudaEnvError(Exception):
    """A refusal or failure. code is stable; because is a list of lines; hint is a way out; done is what was done before."""

    def __init__(self, code, message, hint, because=(), done=()):
        Exception.__init__(self, message)
        self.code, self.message, self.hint = code, message, hint
        self.because, self.done = list(because), list(done)


class Group(object):
    """One group of update-alternatives as its files say: manual, link, choices ({path: priority}), current, there."""

    def __init__(self, name, text, current):
        self.name, self.current, self.there = name, current, text is not None
        self.manual, self.link, self.choices = False, None, {}
        lines = (text or "").splitlines()
        if len(lines) < 2:
            return
        # Mode and link; name and link of every slave; an empty line; then every choice: path, priority, one line a slave
        # (source: update-alternatives(1), FILES, and the program's own output).
        self.manual, self.link = lines[0] == "manual", lines[1]
        end = next((at for at in range(2, len(lines), 2) if not lines[at]), len(lines))
        width = 2 + (end - 2) // 2
        for at in range(end + 1, len(lines) - 1, width):
            if lines[at]:
                self.choices[lines[at]] = host_tree.integer(lines[at + 1]) or 0

    @property
    def summary(self):
        """The group in one line, for diffs."""
        if not self.there:
            return ""
        return "%s %s\n" % ("manual" if self.manual else "auto", self.current)


class Environment(object):
    """One run. start(argv) starts a program and returns (rc, out, err); check: nothing is changed.

    The folders are those of dpkg; tests give their own.
    """

    def __init__(
        self,
        start,
        check=False,
        admindir="/var/lib/dpkg/alternatives",
        altdir="/etc/alternatives",
        ld_cache="/etc/ld.so.cache",
        ld_so_conf_d=LD_SO_CONF_D,
    ):
        self.start, self.check = start, check
        self.admindir, self.altdir, self.ld_cache, self.ld_so_conf_d = (admindir, altdir, ld_cache, ld_so_conf_d)
        self.done, self.diff, self.replaced, self.left = [], [], {}, []

    def apply(self, files=(), absent=(), alternatives=(), alternatives_gone=(), ldconfig=False):
        """Do all of it; returns the module's result without ``changed`` if nothing was. Raises CudaEnvError.

        files: [{path, content (text), mode (int, 0o644 when missing)}]; absent: [path]; alternatives: [{name, link, path,
        priority}]; alternatives_gone: [{name, path}]; ldconfig: True to rebuild the cache in any case.
        Result: changed, done (words, in order), diff (Ansible's), replaced ({link: where it led}), left (files that were
        to go and are not ours).
        """
        try:
            for item in files:
                self._may_write(item["path"], item["content"].encode("utf-8"))
            for item in alternatives:
                self._may_link(item)
            for item in alternatives_gone:
                self._forget(item["name"], item["path"])
            for item in alternatives:
                self._choose(item)
            for item in files:
                self._write(item["path"], item["content"].encode("utf-8"), item.get("mode") or 0o644)
            for path in absent:
                self._remove(path)
            paths = [item["path"] for item in files] + list(absent)
            self._ldconfig(ldconfig, [path for path in paths if os.path.dirname(path) == self.ld_so_conf_d])
        except own_files.FileError as error:
            raise CudaEnvError("cuda.file", error.message, error.hint, done=self.done) from None
        return {
            "changed": bool(self.done),
            "done": self.done,
            "diff": self.diff,
            "replaced": self.replaced,
            "left": self.left,
        }

    # ---- refusals

    def _may_write(self, path, data):
        if not own_files.has_header(data):
            raise CudaEnvError(
                "cuda.usage",
                "the content for %s does not say that gpu-provision wrote it" % path,
                "put '%s' into one of its first three lines: without it the file cannot be recognised later"
                % own_files.HEADER,
            )
        there = own_files.read(path)
        if there is not None and not own_files.is_ours(path, there):
            raise CudaEnvError(
                "cuda.foreign_file",
                "%s is there and was not written by gpu-provision" % path,
                "move it away (mv %s %s.own) and run again, or set cuda_toolkit_environment: false" % (path, path),
            )

    def _may_link(self, item):
        link, path = item["link"], item["path"]
        if os.path.lexists(link) and not os.path.islink(link):
            kind = "directory" if os.path.isdir(link) else "file"
            raise CudaEnvError(
                "cuda.link_is_directory",
                "%s is a %s, not a link, and is not changed" % (link, kind),
                "move it away (mv %s %s.own) and run again" % (link, link),
                ["it should lead to %s" % path, "somebody unpacked or copied a toolkit there; it may be in use"],
            )
        if not self.check and not os.path.isdir(path):
            raise CudaEnvError(
                "cuda.no_toolkit",
                "%s cannot lead to %s: no such folder" % (link, path),
                "install the toolkit first: provision apply does both",
            )

    # ---- alternatives

    def group(self, name):
        """Read one Group as it is now."""
        data = own_files.read(os.path.join(self.admindir, name))
        return Group(
            name, None if data is None else data.decode("utf-8", "replace"), self._leads(self.altdir + "/" + name)
        )

    def _leads(self, link):
        return os.readlink(link) if os.path.islink(link) else None

    def _forget(self, name, path):
        """Take a choice out whose folder is gone; one whose folder is still there is somebody's, and stays."""
        before = self.group(name)
        if path not in before.choices or os.path.isdir(path):
            return
        self._alternatives(["--remove", name, path], "removed %s as a choice for %s" % (path, name))
        self._show(before, "%s without %s\n" % (before.summary.strip(), path))

    def _choose(self, item):
        """Have link lead to path for good: registered, in manual mode, so that no installation moves it."""
        name, link, path = item["name"], item["link"], item["path"]
        before = self.group(name)
        led = self._leads(link)
        right = led == os.path.join(self.altdir, name)
        registered = path in before.choices and before.link == link
        if registered and before.manual and before.current == path and right:
            return
        if led is not None and not right:
            self.replaced[link] = led
        if not registered:
            self._alternatives(["--install", link, name, path, str(item["priority"])], None)
        self._alternatives(["--set", name, path], "%s leads to %s, and stays there" % (link, path))
        self._show(before, "manual %s\n" % path)
        if self.check:
            return
        after = self.group(name)
        if not after.manual or os.path.realpath(link) != os.path.realpath(path) or after.current != path:
            raise CudaEnvError(
                "cuda.alternatives_failed",
                "%s does not lead to %s, although update-alternatives was called" % (link, path),
                "update-alternatives --display %s says what it knows" % name,
                done=self.done,
            )

    def _alternatives(self, arguments, done):
        argv = ["update-alternatives", "--altdir", self.altdir, "--admindir", self.admindir]
        self._run(
            argv + arguments,
            done,
            "cuda.alternatives_failed",
            "update-alternatives --display %s says what it knows"
            % (arguments[2] if arguments[0] == "--install" else arguments[1]),
        )

    def _show(self, before, after):
        header = "update-alternatives " + before.name
        self.diff.append({"before_header": header, "after_header": header, "before": before.summary, "after": after})

    # ---- files

    def _write(self, path, data, mode):
        if not own_files.needs_write(path, data, mode):
            return
        before = own_files.read(path)
        self.diff.append(
            {
                "before_header": path if before is not None else path + " (absent)",
                "after_header": path,
                "before": own_files.show(before),
                "after": own_files.show(data),
            }
        )
        if not self.check:
            own_files.write(path, data, mode)
        self.done.append("wrote " + path)

    def _remove(self, path):
        before = own_files.read(path)
        if before is None:
            return
        if not own_files.has_header(before):
            self.left.append(path)
            return
        self.diff.append(
            {"before_header": path, "after_header": path + " (absent)", "before": own_files.show(before), "after": ""}
        )
        if not self.check:
            own_files.remove(path)
        self.done.append("removed " + path)

    # ---- the loader

    def _ldconfig(self, asked, paths):
        changed = any("%s %s" % (verb, path) in self.done for verb in ("wrote", "removed") for path in paths)
        if asked or changed or (paths and self._cache_is_older(paths)):
            hint = "run ldconfig by hand: it says which file it cannot read"
            self._run(["ldconfig"], "rebuilt the loader's cache (ldconfig)", "cuda.ldconfig_failed", hint)

    def _cache_is_older(self, paths):
        """True when a run was cut off between our file and ldconfig: the cache is older than file or folder."""
        if not os.path.exists(self.ld_cache):
            return True
        cache = os.stat(self.ld_cache).st_mtime_ns
        there = [path for path in paths + [self.ld_so_conf_d] if os.path.exists(path)]
        return any(os.stat(path).st_mtime_ns > cache for path in there)

    def _run(self, argv, done, code, hint):
        if not self.check:
            rc, out, err = self.start(argv)
            if rc != 0:
                said = (err or out).strip().splitlines()
                raise CudaEnvError(
                    code,
                    "%s failed: %s" % (" ".join(argv), said[-1] if said else "exit code %d" % rc),
                    hint,
                    said[-8:],
                    self.done,
                )
        if done:
            self.done.append(done)
