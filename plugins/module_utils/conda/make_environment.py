# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Make a conda environment as it was asked for, and prove from its files that it is.

While it is made, a marker lies beside it (conda wants no foreign folder in its place): what carries one was begun by us
and is made anew by the next run. An environment of anyone else is never touched. One that differs is replaced only when
that is asked for; its export is saved, and it comes back when the new one cannot be made. Standard library only, any
Python from 3.8.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from urllib.parse import urlsplit

from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.conda import condarc
from ansible_collections.gpu.provision.plugins.module_utils.conda import environment as conda_environment
from ansible_collections.gpu.provision.plugins.module_utils.conda import errors as conda_errors
from ansible_collections.gpu.provision.plugins.module_utils.conda import marker as conda_marker
from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError, Work, read_text, write_text
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files, redact, scratch

EXPORTS = "/var/backups/gpu-provision/conda"


def run(params, check=False):
    """Bring one environment to what params ask for; returns what was done. Raises CondaError.

    params: the options of the module conda_environment. check: change nothing, say what would be. Returns {"changed",
    "done" (sentences), "diff", "path", "export" (folder of what was saved, or None)}.
    """
    return _Environment(params, check).carry_out()


def decide(state, action, params):
    """Return what to do to an environment: ``create``, ``finish``, ``rebuild`` or None. Raises CondaError.

    state: as environment_state says, with marked; action: what was planned; params: what is asked for. It is as it should
    be when our record says that it was made for the same configuration. A planned rebuild with the same one is done where its
    packages are others now, or where what is there differs from the request.
    """
    found, record = state["state"], state["record"]
    if state["marked"]:
        return "finish"
    if found in ("absent", "empty"):
        if action == "configure":
            raise CondaError("conda.plan_moved", "the environment no longer exists", hint="plan again")
        return "create"
    if found == "foreign":
        raise CondaError(
            "conda.environment_foreign",
            "its path contains something other than an environment",
            hint="give the environment another name, or move the existing files away",
        )
    made = (record or {}).get("spec") or {}
    same = record is not None and made.get("wish") == (params.get("wish") or {})
    if action == "rebuild":
        return None if found == "whole" and same and _is_made_so(made, params, state) else "rebuild"
    if found == "whole" and (action == "configure" or same):
        return None
    because = ["it is not ours" if record is None else "it was made from: %s" % json.dumps(made.get("wish"))]
    raise CondaError(
        "conda.environment_differs",
        "an environment of that name differs from the request",
        because,
        "miniconda_rebuild: true saves its export and rebuilds it; another name keeps it",
    )


def _is_made_so(made, params, state):
    """True when an environment was made from these very packages and still has them."""
    now = {key: redact.data(params.get(key)) for key in ("packages", "pip", "file_kind", "file_content")}
    wrong = conda_marker.mismatches(params, state["packages"], state["pip"])
    return not wrong and all(made.get(key) == value for key, value in now.items())


def check_name(name):
    """Raise CondaError for a name that conda would not take, or that leads elsewhere."""
    if not re.match(r"[A-Za-z0-9_][\w.+-]*$", name) or name == "base":
        raise CondaError(
            "conda.environment_name",
            "%s is not a valid name for an environment" % name,
            hint="use letters, digits, and _ . - inside; base is conda's own",
        )


def check_channels(channels):
    """Raise CondaError where a channel's URL carries a password, which every user could read in conda's argv."""
    for channel in channels:
        if redact.has_secret(channel):
            raise CondaError(
                "conda.channel_secret",
                "the channel %s has a user or token in its URL" % redact.text(channel),
                ["it would be in the arguments of conda, which every user of the host can read"],
                "put it into ~/.netrc of the owner, or into channel_alias of a .condarc that only the owner reads",
            )


def pip_command(python, step):
    """Return (argv, environment) of one pip step; an index with a password goes through the environment.

    step: {"packages", "index_url", "extra_index_urls"}.
    """
    argv, extra = (
        [python, "-m", "pip", "install", "--no-input", "--progress-bar", "off"],
        {"PIP_ROOT_USER_ACTION": "ignore"},
    )
    index, more = step.get("index_url") or "", list(step.get("extra_index_urls") or ())
    for host in plain_http([index, *more]):
        argv += ["--trusted-host", host]
    if any(redact.has_secret(url) for url in [index, *more]):
        if index:
            extra["PIP_INDEX_URL"] = index
        if more:
            extra["PIP_EXTRA_INDEX_URL"] = " ".join(more)
        return argv + list(step["packages"]), extra
    argv += ["--index-url", index] if index else []
    for url in more:
        argv += ["--extra-index-url", url]
    return argv + list(step["packages"]), extra


def plain_http(urls):
    """HOST[:PORT] of indexes over http. A plan has such ones only where the inventory allows them (miniconda_allow_http)."""
    return [urlsplit(url).netloc.rpartition("@")[2] for url in urls if url.startswith("http://")]


def with_channels(text, channels):
    """An environment.yml that says from where: channels are put in where it names none, and no default ones with them."""
    if not channels or "channels" in conda_read.condarc(text):
        return text
    return condarc.merge(text, {"channels": [*channels, "nodefaults"]}, "the environment file")


class _Environment(Work):
    """One run: decide, make, prove, and what lies around it."""

    def __init__(self, params, check):
        check_name(params["name"])
        check_channels(params.get("channels") or ())
        self.prefix = conda_common.expand(params["prefix"])
        path = "%s/envs/%s" % (self.prefix, params["name"])
        Work.__init__(self, params, check, path, conda_read.environment_marker(path))
        self.aside = "%s/envs/.%s.before-rebuild" % (self.prefix, params["name"])
        self.conda = self.prefix + "/bin/conda"
        self.lock = None

    def run(self):
        self.export = None
        state = self.state()
        what = decide(state, self.params["action"], self.params)
        if what:
            self.must_have_conda()
            word = {"create": "made", "finish": "finished", "rebuild": "rebuilt"}[what]
            before = conda_marker.describe(state["packages"], state["pip"])
            self.show(self.path, before, conda_marker.asked(self.params))
            if not self.check:
                {"create": self.create, "finish": self.finish, "rebuild": self.rebuild}[what]()
            self.done.append("%s the environment %s" % (word, self.params["name"]))
        if self.params.get("library_path"):
            self.library_path()
        if self.params.get("lib64_link"):
            self.lib64()
        return {"path": self.path, "export": self.export}

    def state(self):
        return conda_read.environment_state(self.path)

    def must_have_conda(self):
        state = conda_read.prefix_state(self.prefix)["state"]
        if state != "whole" and not (self.check and state in ("absent", "empty")):
            raise CondaError(
                "conda.no_conda",
                "the conda at %s is %s" % (self.prefix, state),
                hint="install the prefix first: miniconda_install; miniconda_repair: true completes a partial one",
            )

    # --- making it

    def create(self):
        self.mark(aside=None, moved=False)
        with conda_common.locked(self.marker, self.path) as self.lock:
            self.make()
            self.as_owner(os.unlink, self.marker)

    def rebuild(self):
        state = self.state()
        self.save(state)
        self.mark(aside=self.aside, moved=False)
        with conda_common.locked(self.marker, self.path) as self.lock:
            self.replace()

    def replace(self):
        """Move the environment that is there aside, make the new one, and only then let the old one go."""
        if os.path.lexists(self.path):
            self.as_owner(os.rename, self.path, self.aside)
        self.mark(aside=self.aside, moved=True)
        self.make()
        self.let_go()

    def let_go(self):
        self.as_owner(_remove, self.aside)
        self.as_owner(os.unlink, self.marker)

    def finish(self):
        """Take up what a run before left: it is begun anew, unless all was done but the tidying up."""
        with conda_common.locked(self.marker, self.path) as self.lock:
            note = self.note()
            aside = note.get("aside")
            moved = bool(aside) and (note.get("moved") or os.path.lexists(self.aside))
            record = conda_read.environment_state(self.path)["record"]
            if record is not None and (moved or not aside) and self.is_asked(record):
                self.let_go()
                return
            if aside and not moved:
                # cut off before the old one was moved: it still stands there, whole
                self.replace()
                return
            self.as_owner(_remove, self.path)
            self.make()
            self.let_go()

    def is_asked(self, record):
        return (record.get("spec") or {}).get("wish") == (self.params.get("wish") or {})

    def mark(self, aside, moved):
        """Put our marker beside the place, or, once we hold it, say in it how far we are."""
        note = json.dumps({"prefix": self.path, "started": conda_common.now(), "aside": aside, "moved": moved}) + "\n"
        if moved:
            self.as_owner(conda_common.overwrite_text, self.marker, note)
            return
        self.as_owner(os.makedirs, os.path.dirname(self.path), 0o777, True)
        self.put_marker(note)

    def make(self):
        """Make the environment in an empty place, prove it and write its record; else the place is as it was before."""
        try:
            self.conda_part()
            for step in self.params.get("pip") or ():
                argv, extra = pip_command(self.path + "/bin/python", step)
                urls = [step.get("index_url") or "pip's own index", *(step.get("extra_index_urls") or ())]
                self.call(argv, extra, "pip", urls)
            state = conda_read.environment_state(self.path)
            wrong = conda_marker.mismatches(self.params, state["packages"], state["pip"])
            if wrong:
                raise CondaError(
                    "conda.environment_wrong",
                    "what was installed in %s differs from the request" % self.params["name"],
                    wrong,
                    conda_marker.hint(wrong),
                )
            self.write_record()
        except CondaError as error:
            if error.code not in ("conda.killed", "conda.slow"):
                self.undo(error)
            raise

    def undo(self, error):
        """After a failure that we have seen: nothing half-made stays, and what was replaced comes back."""
        try:
            self.as_owner(_remove, self.path)
            if os.path.lexists(self.aside):
                self.as_owner(os.rename, self.aside, self.path)
                error.because.append("the earlier environment is restored")
            self.as_owner(os.unlink, self.marker)
        except OSError as again:
            error.because.append("cleanup failed (%s): the next run rebuilds it" % again.strerror)

    def conda_part(self):
        params, extra = self.params, {}
        if params.get("override_cuda"):
            extra["CONDA_OVERRIDE_CUDA"] = params["override_cuda"]
        channels = []
        for channel in params.get("channels") or ():
            channels += ["-c", channel]
        if not params.get("file_kind"):
            argv = ["create", "--yes", "--prefix", self.path, "--override-channels", *channels, *params["packages"]]
            self.call([self.conda, *argv], extra, "conda", params.get("channels") or ())
            return
        folder = self.as_owner(scratch.make, "conda", None, os.getpid())
        try:
            if params["file_kind"] == "explicit":
                file = folder + "/list.txt"
                self.as_owner(write_text, file, params["file_content"])
                argv = ["create", "--yes", "--prefix", self.path, "--file", file]
            else:
                file = folder + "/environment.yml"
                text = with_channels(params["file_content"], params.get("channels") or ())
                self.as_owner(write_text, file, text)
                argv = ["env", "create", "--prefix", self.path, "--file", file]
                if params.get("pip_index_url"):
                    extra["PIP_INDEX_URL"] = params["pip_index_url"]
                    extra["PIP_TRUSTED_HOST"] = " ".join(plain_http([params["pip_index_url"]]))
            self.call([self.conda, *argv], extra, "conda", params.get("channels") or ())
        finally:
            self.as_owner(scratch.remove, folder)

    def call(self, argv, extra, who, sources):
        try:
            result = conda_common.run(
                argv, self.owner, self.umask, self.params.get("timeout") or 7200, extra, inherit=(self.lock,)
            )
        except OSError as error:
            raise CondaError(
                "conda.failed",
                "cannot run %s" % argv[0],
                [os.strerror(error.errno)],
                "an environment with pip packages needs python among its packages",
            ) from None
        if result.rc != 0:
            raise conda_errors.explain(result, who, self.params["name"], self.path, sources)

    def write_record(self):
        spec = {
            key: redact.data(value)
            for key, value in self.params.items()
            if key not in ("action", "timeout") and not key.startswith("_")
        }
        record = {
            "schema": conda_common.SCHEMA,
            "kind": "environment",
            "name": self.params["name"],
            "spec": spec,
            "digest": conda_environment.digest(self.path),
            "time": conda_common.now(),
        }
        text = json.dumps(record, indent=1, sort_keys=True) + "\n"
        self.as_owner(write_text, self.path + "/" + conda_read.RECORD, text)

    def save(self, state):
        """Save what is in the environment before it goes: in conda's own words, of a part the names of its packages."""
        folder = own_files.dated("%s/%s-" % (self.params.get("export_to") or EXPORTS, self.params["name"]))
        os.makedirs(folder, 0o700, exist_ok=True)
        self.export = folder
        self.done.append("saved the export of %s in %s" % (self.params["name"], folder))
        if state["state"] != "whole":
            write_text(folder + "/packages.txt", conda_marker.describe(state["packages"], state["pip"]))
            return
        for name, argv in (
            ("environment.yml", [self.conda, "env", "export", "--prefix", self.path]),
            ("explicit.txt", [self.conda, "list", "--prefix", self.path, "--explicit"]),
        ):
            result = conda_common.run(argv, self.owner, self.umask, 600)
            if result.rc != 0:
                raise CondaError(
                    "conda.export",
                    "the export of %s could not be saved, so it stays as it is" % self.params["name"],
                    conda_common.last_lines(result.text),
                    "save by hand what you need of it and remove it: conda env remove -p %s" % self.path,
                )
            write_text(folder + "/" + name, result.text)

    # --- around it

    def library_path(self):
        for path, text in conda_marker.library_path_scripts(self.path):
            before = self.as_owner(read_text, path) if os.path.isdir(self.path) else None
            if before is None and not self.check:
                self.as_owner(os.makedirs, os.path.dirname(path), 0o777, True)
            self.put(path, before, text)

    def lib64(self):
        link = self.path + "/lib64"
        if os.path.lexists(link):
            return
        self.done.append("linked %s to lib" % link)
        if not self.check:
            self.as_owner(os.symlink, "lib", link)


def _remove(path):
    """Remove a folder that we made, or nothing when it is not there; a link is removed and not followed."""
    if os.path.islink(path):
        os.unlink(path)
    elif os.path.lexists(path):
        shutil.rmtree(path)
