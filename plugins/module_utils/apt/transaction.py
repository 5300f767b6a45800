# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""One apt transaction that keeps a box alive: simulate, judge, unhold, change, hold again, also when it failed.

``run`` is what the module apt_transaction calls. The change happens in a worker that no closed connection ends; it
holds again whatever happens, and a journal lets the next run finish what a power cut left. Standard library only,
any Python from 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import grp
import io
import os
import re
import time
import traceback

from ansible_collections.gpu.provision.plugins.module_utils.apt import alone as apt_alone
from ansible_collections.gpu.provision.plugins.module_utils.apt import changes as apt_changes
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import configure as apt_configure
from ansible_collections.gpu.provision.plugins.module_utils.apt import detached as apt_detached
from ansible_collections.gpu.provision.plugins.module_utils.apt import disk as apt_disk
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import progress as apt_progress
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names, host_tree, own_files, own_state

STATE = own_state.FOLDER
JOURNAL = STATE + "/transaction.json"
# The same once more, written before it and removed after it: what holds must come back is known though one is damaged.
COPY = STATE + "/transaction-copy.json"
LOCK = STATE + "/transaction.lock"
LOGS = "/var/log/gpu-provision"

_JOURNAL = {
    "schema": (None, 1),
    "hold": bool,
    "release": bool,
    "extra_hold": [str],
    "extra_release": (None, [str]),
    "held_before": [str],
    "started": (None, str),
    "log": (None, str),
    "pid": (None, int),
}
# A process of another user that has the lock is none of ours: it is not waited for as long as a transaction.
_PATIENCE_S = 10

# characters of apt's output that are looked through for a cause
_TEXT = 60000
# What apt says as long as the repository that the plan rests on is not configured.
_NOT_YET = ("apt.package_not_found", "apt.version_not_found", "apt.signed_by_conflict", "apt.sources")
# What lists that are behind their repository can lead to; a failed fetch has changed no package.
_STALE = _NOT_YET + (
    "apt.plan_moved",
    "apt.unmet",
    "apt.held",
    "apt.fetch",
    "apt.key",
    "apt.removes",
    "apt.unrelated",
    "apt.family",
    "apt.protected",
    "apt.failed",
)
# Held while packages are unpacked, and while they are fetched (unattended-upgrades fetches ahead).
_LOCKS = apt_common.DPKG_LOCKS + (apt_common.ARCHIVES + "/lock",)


def run(params, check=False, log_dir=LOGS):
    """Bring packages and holds to what params ask for, and return what was done. Raises AptError.

    params: configure (files to write first, see apt.configure.apply), before ({"install", "remove"} in a transaction of
    its own first), install (["name=version"]), remove ([names]), expect ([changes] or None), family_version, hold,
    release, extra_hold, extra_release, update_cache, lock_timeout, timeout, own_uris, reserve_mib, environment (see
    proxies.within), alone (see aptalone); see the module apt_transaction. check: simulate only. Returns {"changed",
    "changes", "held", "unheld", "waited_for", "log", "recovered", "warnings", "files", "diff"}.
    """
    if os.geteuid() != 0:
        raise AptError("apt.not_root", "packages can be changed by root only", hint="become: true")
    try:
        with apt_query.proxy(params.get("environment")):
            return _run(params, check, log_dir)
    except own_files.FileError as error:
        raise AptError("apt.state", error.message, hint=error.hint) from None


def _run(params, check, log_dir):
    files = {"changed": False, "files": [], "diff": []}
    if params.get("configure"):
        files = apt_configure.apply(params["configure"], check)
    with apt_alone.within(params.get("alone")):
        return _change(params, check, log_dir, files)


def _change(params, check, log_dir, files):
    before = params.get("before") or {}
    results, finished = [], {}
    # Packages that ship apt preferences come first: what follows must be solved with them in place. In check mode they
    # are not there, and the plan's own changes are shown.
    if (before.get("install") or before.get("remove")) and not check:
        first = dict(params, **before)
        first.update(expect=None, family_version=None, hold=False, release=False, extra_hold=[], extra_release=[])
        results.append(_transact(first, check, log_dir, finished))
    results.append(_transact(params, check, log_dir, finished))
    last = results[-1]
    return dict(
        last,
        changed=files["changed"] or any(result["changed"] for result in results),
        changes=[change for result in results for change in result["changes"]],
        warnings=[text for result in results for text in result["warnings"]],
        files=files["files"],
        diff=files["diff"] + [result["diff"] for result in results],
    )


def _transact(params, check, log_dir, finished):
    task = _Task(params, check, log_dir, finished)
    try:
        return task.run()
    except AptError as error:
        error.because += [text for text in task.warnings if text not in error.because]
        raise
    finally:
        task.close()


class _Task(object):
    """One run: the steps of ``run``, and what they have found so far."""

    def __init__(self, params, check, log_dir, finished=None):
        # What was set up of an earlier run that was interrupted, as changes by name: the plan may have been made before that.
        self.finished = {} if finished is None else finished
        self.install, self.remove = list(params.get("install") or ()), list(params.get("remove") or ())
        self.expect, self.family = params.get("expect"), params.get("family_version")
        self.hold, self.release = bool(params.get("hold", True)), bool(params.get("release", False))
        self.extra_hold = list(params.get("extra_hold") or ())
        self.extra_release = list(params.get("extra_release") or ())
        self.update_cache, self.own_uris = (bool(params.get("update_cache")), list(params.get("own_uris") or ()))
        self.lock_timeout, self.timeout = (int(params.get("lock_timeout", 600)), int(params.get("timeout", 3600)))
        self.reserve = params.get("reserve_mib")
        self.check, self.log_dir = check, log_dir
        self.log_path, self.waited_for, self.recovered, self.warnings = None, None, None, []
        self.update_problems, self.lock_file, self.unfinished = [], None, None
        # which packages of a run that was interrupted were configured first
        self.finished_first = None
        # a change began and failed: newer lists do not help against that
        self.touched = False

    # -- steps

    def run(self):
        before = apt_common.read_status()
        if self._is_done(before) and not os.path.lexists(JOURNAL):
            if not self.check:
                self._forget_unfinished(before)
            return self._result(before, before, [])
        if self.check:
            return self._preview(before)
        self._take_turn()
        self._recover()
        self._wait()
        if self.update_cache and self._half_unpacked(before) and not apt_query.lists_are_current():
            # apt unpacks again only what its lists have
            self._update()
        self._finish_packages()
        if self.update_cache and not apt_changes.packages_done(apt_common.read_status(), self.install, self.remove):
            # Young lists that give exactly what was agreed to need no refresh; anything else than that gets one.
            if self.expect is not None and apt_query.lists_are_current():
                try:
                    self._carry_out()
                except AptError as error:
                    if error.code not in _STALE or self.touched:
                        raise
                    self._update()
                    self._carry_out()
            else:
                self._update()
                self._carry_out()
        else:
            self._carry_out()
        after = apt_common.read_status()
        self._forget_unfinished(after)
        if self.unfinished is not None and any(package.unfinished for package in after):
            # The packages are there, so apt had nothing to change, but they still cannot be set up.
            raise failure(self.unfinished, False, self.timeout, self.log_path, sorted(p.name for p in after if p.held))
        return self._result(before, after, apt_changes.differences(before, after))

    def _carry_out(self):
        """Simulate, judge and change; holds too."""
        for _ in range(3):
            packages = apt_common.read_status()
            stamp = _stamp()
            if self._is_done(packages):
                return
            changes = self._simulate(packages)
            if self._change(packages, changes, stamp):
                return
            # somebody else changed packages between the look and the change: look again
            self._wait()
        raise AptError("apt.busy", "another program keeps changing packages", hint="run it again when that is done")

    def _is_done(self, packages):
        """True when dpkg's own record says that nothing has to change: then nothing at all is started."""
        return (
            apt_changes.packages_done(packages, self.install, self.remove)
            and not self._selections(packages)
            and not apt_common.interrupted()
        )

    def _forget_unfinished(self, packages):
        """Nothing is left to do: an earlier change that was not finished is over, unless this one says nothing of it."""
        lines = []
        note = own_state.take(apt_common.UNFINISHED, apt_common.UNFINISHED_SHAPE, lines)
        self.warnings += lines
        if note and (
            self.install or self.remove or apt_changes.packages_done(packages, note["install"], note["remove"])
        ):
            _forget(apt_common.UNFINISHED)

    def _preview(self, before):
        changes = []
        if not apt_changes.packages_done(before, self.install, self.remove):
            try:
                changes = self._simulate(before)
            except AptError as error:
                # In check mode nobody has written the sources or fetched the lists; the plan asked apt with them.
                if self.expect is None or error.code not in _NOT_YET:
                    raise
                changes = self.expect
                self.warnings.append("the changes are those of the plan: %s" % error.message)
        for package in before:
            if package.unfinished:
                self.warnings.append("%s is %s: dpkg --configure -a would run first" % (package.name, package.state))
        after = apt_changes.applied(before, changes)
        return self._result(before, after, changes, assume_holds=True)

    def _take_turn(self):
        """One transaction a host: wait for a worker that an earlier, killed run left behind."""
        own_state.make_folder(STATE)
        own_state.move(STATE, self.warnings)
        self.lock_file = os.fdopen(own_state.open_lock(LOCK, self.warnings), "r+b")
        begun, patience = time.monotonic(), _PATIENCE_S
        while True:
            try:
                fcntl.flock(self.lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            waited = time.monotonic() - begun
            if waited > min(patience, self.lock_timeout):
                self._judge_holders(waited)
                patience += _PATIENCE_S
            self.waited_for = {"pid": self._worker(), "comm": "gpu-provision", "lock": LOCK}
            time.sleep(0.5)

    def _worker(self):
        try:
            return (own_state.read(JOURNAL, _JOURNAL) or {}).get("pid") or 0
        except own_state.Damaged:
            # reported by _recover, when it is our turn
            return 0

    def _judge_holders(self, waited):
        """Raise AptError where the wait is over, and at once where no process of root has the lock."""
        holders = own_state.lock_holders(self.lock_file.fileno())
        if holders and not any(holder["root"] for holder in holders):
            raise AptError(
                "apt.lock_timeout",
                "%s is held by %s, which is no run of gpu-provision"
                % (LOCK, " and ".join(holder["words"] for holder in holders)),
                because=["it opened the file while every user was allowed to; now only root is"],
                hint="end it (kill %s), then run this again" % " ".join(holder["pid"] for holder in holders),
            )
        if waited > self.lock_timeout:
            raise AptError(
                "apt.lock_timeout",
                "an earlier transaction of gpu-provision is still running after %d s" % waited,
                because=["%s has the lock" % holder["words"] for holder in holders],
                hint="see the newest log in %s" % self.log_dir,
            )

    def close(self):
        if self.lock_file is not None:
            self.lock_file.close()

    def _recover(self):
        """A journal without a worker: power was cut or the worker was killed. Its holds come back first."""
        if not os.path.lexists(JOURNAL):
            return
        packages, lines = apt_common.read_status(), []
        journal = own_state.take(JOURNAL, _JOURNAL, lines)
        if journal is None and lines:
            journal = own_state.take(COPY, _JOURNAL, lines)
            how = "its holds were restored from its copy"
            if journal is None:
                journal = self._journal_of_what_is_installed(packages)
                how = (
                    "what this run holds, and what is installed and named in %s, is on hold again"
                    % apt_files.UNATTENDED
                )
            lines[-1] += "; " + how
        held = apt_changes.restore_holds(journal, packages, self._set_selections)
        _forget(JOURNAL, COPY)
        self.warnings += lines
        self.recovered = {"started": journal.get("started"), "log": journal.get("log"), "held": held}

    def _journal_of_what_is_installed(self, packages):
        """A journal in the place of one that is lost: our list for unattended-upgrades is there while we hold packages."""
        listed = own_files.read(apt_files.UNATTENDED) or b""
        present = [p.name for p in packages if p.present]
        return {
            "hold": self.hold,
            "release": self.release,
            "extra_hold": self.extra_hold,
            "extra_release": self.extra_release,
            "held_before": apt_files.unattended_names(listed, present),
        }

    def _wait(self):
        with contextlib.ExitStack() as shown:

            def seen(busy):
                apt_progress.waiting(shown.enter_context(apt_progress.written()), busy)

            waited = apt_common.wait_for_locks(_LOCKS, self.lock_timeout, seen=seen)
        self.waited_for = waited or self.waited_for

    def _finish_packages(self):
        """Finish what dpkg left half-done. A failure is not the end: the transaction may replace the culprit."""
        before, cut_off = apt_common.read_status(), apt_common.interrupted() or self.recovered is not None
        rest = apt_changes.half_purged(before, self.remove)
        if not cut_off and not rest and not any(package.unfinished for package in before):
            return
        result = self._in_worker(lambda log: self._configure_pending(rest, log), before)
        packages = apt_common.read_status()
        # Ours first: somebody else's may be in no repository any more.
        for lost in self._half_unpacked(packages):
            # What waited for these is set up by the same call of apt.
            result = self._in_worker(lambda log, lost=lost: self._unpack_again(lost, packages, log), packages)
        self.finished.update(
            (change["name"], change) for change in apt_changes.differences(before, apt_common.read_status())
        )
        if self.finished:
            why = "an earlier run was interrupted; its" if cut_off else "unfinished"
            self.finished_first = "%s packages were configured first: %s" % (why, ", ".join(sorted(self.finished)))
            self.warnings.append(self.finished_first)
        if result["rc"] != 0:
            self.unfinished = result.get("text") or ""
            broken = ", ".join(parse_dpkg_failure(self.unfinished)["packages"]) or "dpkg --configure -a"
            self.warnings.append("%s could not be finished before the change" % broken)

    def _half_unpacked(self, packages):
        return apt_changes.half_unpacked(packages, self.install, [*self.extra_hold, *self.remove])

    def _configure_pending(self, rest, log):
        # Some versions of dpkg pass over held packages here; their holds come back with all others.
        native = apt_common.native_arch(apt_common.read_status())
        held = [p for p in apt_common.read_status() if p.unfinished and p.held]
        self._set_selections([(apt_common.selection_name(p, native), "install") for p in held])
        calls = [["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"]]
        if rest:
            calls.insert(0, ["dpkg", "--purge"] + rest)
        results = [apt_common.run(argv, self.timeout, log=log) for argv in calls]
        worst = next((result for result in results if result.timed_out or result.rc), results[-1])
        return {"rc": 1 if worst.timed_out else worst.rc, "text": worst.out[-_TEXT:]}

    def _unpack_again(self, lost, packages, log):
        native = apt_common.native_arch(packages)
        names_lost = {item.partition("=")[0] for item in lost}
        held = [p for p in packages if p.held and (p.name in names_lost or p.unfinished)]
        self._set_selections([(apt_common.selection_name(p, native), "install") for p in held])
        argv = ["apt-get"] + apt_common.option_args(self._apt_options()) + ["-y", "--reinstall"]
        result = apt_common.run(argv + apt_query.change_args(lost, (), False), self.timeout, log=log)
        return {"rc": 1 if result.timed_out else result.rc, "text": result.out[-_TEXT:]}

    def _update(self):
        waited = apt_common.wait_for_locks((apt_common.LISTS_LOCK,), self.lock_timeout)
        self.waited_for = waited or self.waited_for
        with self._log() as log:
            argv = ["apt-get"] + apt_common.option_args(self._apt_options()) + ["update"]
            result = apt_query.update(argv, min(self.timeout, 900), log=log)
        self.update_problems = apt_query.parse_update_errors(result.text)
        own = own_repositories(self.own_uris)
        for problem in self.update_problems:
            text = describe_update_problem(problem)
            if problem["fatal"] or apt_sources.normalise(problem["repository"] or "") in own:
                raise AptError(
                    problem["code"],
                    text,
                    because=[problem["message"], apt_query.way()],
                    hint=_UPDATE_HINTS.get(problem["code"]),
                    log=self.log_path,
                )
            self.warnings.append(text)
        if result.rc != 0 and not self.update_problems:
            code, message = apt_query.classify(result.text)
            raise AptError(
                code,
                "the lists could not be refreshed: %s" % message,
                because=apt_query.error_lines(result.text) + [apt_query.way()],
                log=self.log_path,
            )

    def _simulate(self, packages):
        """Ask apt, judge the answer, compare it with the plan, look at the disks. Returns the changes."""
        if apt_changes.packages_done(packages, self.install, self.remove):
            return []
        asked = [item.partition("=")[0] for item in self.install]
        answer = apt_query.simulate(
            install=self.install,
            remove=apt_changes.present_names(packages, self.remove),
            unhold=self._may_unhold(packages),
        )
        if not answer["ok"]:
            raise self._refused(answer, packages)
        installed = {p.name: p.version for p in packages if p.present}
        # A removal that stood in the plan was agreed to, as long as it is the driver's own.
        planned = [
            c["name"]
            for c in self.expect or ()
            if c["action"] == "remove" and driver_names.is_driver_package(c["name"])
        ]
        problems = apt_query.judge(
            answer["changes"],
            allowed_remove=self.remove + planned,
            family_version=self.family,
            requested=asked,
            installed=installed,
            essential=[p.name for p in packages if p.essential],
            running_kernel=os.uname()[2],
        )
        if problems:
            raise AptError(
                problems[0]["code"],
                "refused before anything was changed: " + problems[0]["message"],
                because=[line for p in problems for line in [p["message"]] + ["  " + b for b in p["because"]]][1:],
                hint=problems[0]["hint"],
                problems=problems,
            )
        moved = (
            []
            if self.expect is None
            else apt_changes.compare_with_plan(
                apt_changes.without_finished(self.expect, self.finished, packages), answer["changes"]
            )
        )
        if moved and self.finished_first:
            moved.append(self.finished_first)
        if moved:
            raise AptError(
                "apt.plan_moved",
                "apt's answer differs from the plan"
                if self.finished_first
                else "the repository changed since the plan",
                because=moved,
                hint="plan again",
            )
        full = apt_disk.full(answer, self.reserve)
        if full:
            raise AptError(because=full, **apt_disk.REFUSED)
        return answer["changes"]

    def _refused(self, answer, packages):
        code, message, because = answer["code"], answer["message"], answer["because"]
        hint = _HINTS.get(code)
        if code in ("apt.version_not_found", "apt.package_not_found") and self.update_problems:
            # A repository that could not be read is the likely cause, not a missing package (F4); a key most of all.
            likely = min(self.update_problems, key=lambda problem: list(_UPDATE_TEXTS).index(problem["code"]))
            code, hint = likely["code"], _UPDATE_HINTS.get(likely["code"])
            message += " that could be read"
            because = because + [describe_update_problem(problem) for problem in self.update_problems]
        ours = set(self._may_unhold(packages))
        others = sorted(p.name for p in packages if p.held and p.name not in ours)
        if code in ("apt.unmet", "apt.held") and others:
            hint = "these are on hold and gpu-provision does not change them: %s; %s" % (", ".join(others), hint)
        return AptError(code, message, because=because, hint=hint, unmet=answer["unmet"])

    def _may_unhold(self, packages):
        """Names whose hold is ours to lift: the driver, what we are asked to hold, what was asked for by name."""
        named = {item.partition("=")[0] for item in self.install}.union(
            self.extra_hold, self.extra_release, self.remove
        )
        return sorted(
            {p.name for p in packages if p.held and (p.name in named or driver_names.is_driver_package(p.name))}
        )

    def _change(self, packages, changes, stamp):
        """Unhold, change, hold again, in the worker. Returns False when the packages moved meanwhile."""
        native = apt_common.native_arch(packages)
        free = set(self._may_unhold(packages))
        unhold = [(apt_common.selection_name(p, native), "install") for p in packages if p.held and p.name in free]
        downgrade = any(change["action"] == "downgrade" for change in changes)
        what = apt_query.change_args(self.install, apt_changes.present_names(packages, self.remove), downgrade)

        def work(log):
            if _stamp() != stamp:
                return {"moved": True}
            if not changes:
                return {"rc": 0}
            self._set_selections(unhold)
            with apt_progress.written() as shown:
                options = apt_common.option_args(self._apt_options() + apt_progress.options(shown))
                result = apt_common.run(["apt-get", *options, "-y", *what], self.timeout, log=log, keep=shown)
            return {"rc": result.rc, "timed_out": result.timed_out, "text": result.out[-_TEXT:]}

        result = self._in_worker(work, packages, whole=True)
        if result.get("moved"):
            return False
        if result["rc"] != 0:
            self.touched = bool(apt_changes.differences(packages, apt_common.read_status()))
            error = failure(
                result.get("text") or "",
                result.get("timed_out"),
                self.timeout,
                self.log_path,
                result.get("held") or [],
                -min(result["rc"], 0),
            )
            if error.code == "apt.fetch":
                error.because.append(apt_query.way())
            raise error
        return True

    # -- the worker

    def _in_worker(self, work, packages, whole=False):
        """Call work(log) in a detached process, then hold again there; returns what work returned.

        The journal stands as long as holds are lifted, apt_common.UNFINISHED until work that does the whole change ends well.
        """
        journal = {
            "schema": 1,
            "started": _now(),
            "hold": self.hold,
            "release": self.release,
            "extra_hold": self.extra_hold,
            "extra_release": self.extra_release,
            "held_before": sorted(p.name for p in packages if p.held),
            "install": self.install,
            "remove": self.remove,
            "boot_id": _boot_id(),
        }
        log = self._log()
        journal["log"] = self.log_path

        def body():
            result = {}
            try:
                for path in (COPY, JOURNAL):
                    own_state.write(path, dict(journal, pid=os.getpid()))
                if whole:
                    note = {key: journal[key] for key in apt_common.UNFINISHED_SHAPE}
                    own_state.write(apt_common.UNFINISHED, note)
                result = work(log)
            except own_files.FileError as error:
                result = {"error": {"code": "apt.state", "message": error.message, "hint": error.hint}}
            except AptError as error:
                result = {"error": error.as_dict()}
            except Exception:
                # the holds come first; the trace goes to the log and to the caller
                result = {"error": {"code": "apt.worker", "message": traceback.format_exc()}}
            try:
                now = apt_common.read_status()
                result["held"] = apt_changes.restore_holds(journal, now, self._set_selections)
                # Killed, or failed in a hook, after the last package was set up: nothing of the change is left to do.
                ended = result.get("rc") is not None and apt_changes.packages_done(now, self.install, self.remove)
                done = whole and (ended or not result.get("rc", 1))
                _forget(JOURNAL, COPY, *([apt_common.UNFINISHED] if done else []))
            except AptError as error:
                # The journal stays: the next run holds again.
                result["error"] = error.as_dict()
            return result

        try:
            result = apt_detached.detached(body, log, self.lock_file)
        finally:
            log.close()
        if "error" in result:
            error = dict(result["error"], log=self.log_path)
            raise AptError(
                error.pop("code"), error.pop("message"), error.pop("because", ()), error.pop("hint", None), **error
            )
        return result

    def _set_selections(self, pairs):
        """dpkg --set-selections in one call: pairs of name and ``hold``, ``install``, ``deinstall`` or ``purge``."""
        if not pairs:
            return
        text = "".join("%s %s\n" % pair for pair in pairs)
        for _ in range(5):
            # Another apt may have slipped in; its end is waited for, or the holds could not be written.
            apt_common.wait_for_locks(apt_common.DPKG_LOCKS, self.lock_timeout)
            result = apt_common.run(["dpkg", "--set-selections"], 120, stdin=text)
            if result.rc == 0:
                return
        raise AptError(
            "apt.hold",
            "the holds could not be written",
            because=result.text.strip().split("\n")[-5:],
            hint="run it again: the next run writes them",
        )

    def _apt_options(self):
        # Locks were waited for above; this is the second belt, for who slips in between (apt from 1.9.11 knows it).
        return apt_common.OPTIONS + ("DPkg::Lock::Timeout=%d" % self.lock_timeout,)

    def _log(self):
        if self.log_path is None:
            _make_dir(self.log_dir, 0o755)
            self.log_path = own_files.dated(self.log_dir + "/apt-", "-%d.log" % os.getpid())
        handle = os.open(self.log_path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        os.fchmod(handle, 0o640)
        try:
            os.fchown(handle, 0, grp.getgrnam("adm").gr_gid)
        except KeyError:
            # no group adm here: root alone reads it
            pass
        return io.open(self.log_path, "ab", opener=lambda path, flags: handle)

    # -- the answer

    def _result(self, before, after, changes, assume_holds=False):
        """The module's answer. assume_holds: count the holds that a run would write (check mode)."""
        held_before = {p.name for p in before if p.held}
        held_after = {p.name for p in after if p.held}
        if assume_holds:
            for name, selection in self._selections(after):
                (held_after.add if selection == "hold" else held_after.discard)(name.split(":")[0])
        touched = {change["name"].split(":")[0] for change in changes} | (held_before ^ held_after)
        return {
            "changed": bool(touched) or self.recovered is not None,
            "changes": changes,
            "held": sorted(held_after - held_before),
            "unheld": sorted(held_before - held_after),
            "holds": sorted(held_after),
            "waited_for": self.waited_for,
            "log": self.log_path,
            "recovered": self.recovered,
            "warnings": self.warnings,
            "diff": {
                "before_header": "packages",
                "after_header": "packages",
                "before": apt_changes.diff_text(before, held_before, touched),
                "after": apt_changes.diff_text(after, held_after, touched),
            },
        }

    def _selections(self, packages):
        return apt_changes.holds_from_status(
            packages, self.hold, self.release, self.extra_hold, extra_release=self.extra_release
        )


_FAILED = re.compile(r"^dpkg: error processing (?:package|archive) (\S+) \(--(\w+)\):$", re.M)
_SCRIPT = re.compile(
    r"^ (?:installed|new|old) (\S+) package (\S+) (?:maintainer )?script subprocess (?:returned error exit status "
    r"([0-9]+)|was killed by signal \(([^)]*)\))",
    re.M,
)
# Of many archives apt makes numbered links in a folder of its own and gives dpkg those.
_ARCHIVE = re.compile(r"(?:/apt-dpkg-install-[^/\s]+/[0-9]+-|/|^)([^/\s]+)_[^/_\s]+_[^/_\s]+\.deb$")
_MAKE_LOG = re.compile(r"(/var/lib/dkms/\S+?/make\.log)")


def parse_dpkg_failure(text):
    """Return {"packages", "script", "status", "lines", "make_log", "signal"}: which package failed, and its message.

    lines are the last 15 that the package printed itself before dpkg gave up on it; packages that only wait for
    the first one follow it in packages.
    """
    result = {"packages": [], "script": None, "status": None, "signal": None, "lines": [], "make_log": None}
    first = _FAILED.search(text)
    for match in _FAILED.finditer(text):
        archive = _ARCHIVE.search(match.group(1))
        name = archive.group(1) if archive else match.group(1)
        if name not in result["packages"]:
            result["packages"].append(name)
    if first is None:
        return result
    own = text[: first.start()].rstrip("\n").split("\n")
    for at in range(len(own) - 1, -1, -1):
        if re.match(r"^(Setting up|Unpacking|Preparing to unpack|Removing|Processing triggers for) ", own[at]):
            own = own[at + 1 :]
            break
    result["lines"] = [line.rstrip() for line in own if line.strip()][-15:]
    rest = text[first.end() :]
    script = _SCRIPT.match(rest.lstrip("\n"))
    if script:
        result["script"], result["status"] = (script.group(2), int(script.group(3)) if script.group(3) else None)
        result["signal"] = script.group(4)
    else:
        result["lines"] += [line.strip() for line in rest.split("\n")[1:2] if line.strip()]
    make_log = _MAKE_LOG.search(text)
    result["make_log"] = make_log.group(1) if make_log else None
    return result


def failure(text, timed_out, timeout, log, held, signal_number=0):
    """The AptError for a failed change: stable code, real cause, the holds that stand, where the log is.

    signal_number: what ended apt-get itself, 0 where nothing did.
    """
    code, message = apt_query.classify(text)
    found = parse_dpkg_failure(text)
    because, hint = apt_query.error_lines(text), _HINTS.get(code)
    if timed_out:
        code, message = "apt.timeout", "apt did not end within %d s and was stopped" % timeout
        because = text.rstrip().split("\n")[-5:]
        hint = "the log says what it was doing; the next run completes the unfinished change"
    elif found["packages"] and code != "apt.disk_full":
        code = "apt.dpkg_failed"
        message = "%s failed%s" % (found["packages"][0], _script_text(found))
        because = found["lines"] or because
        if found["make_log"]:
            because = because + ["the compiler's messages: %s" % found["make_log"]]
        hint = _HINTS["apt.dpkg_failed"]
    elif signal_number:
        code, message = ("apt.killed", "apt-get was killed by signal %d in the middle of the change" % signal_number)
        because = text.rstrip().split("\n")[-5:]
        hint = "dmesg shows whether memory ran out; the next run completes the unfinished change"
    return AptError(code, message, because=because, hint=hint, log=log, failed=found["packages"], held=held)


def _script_text(found):
    if found["script"] is None:
        return ""
    end = "exit status %d" % found["status"] if found["status"] is not None else "signal %s" % found["signal"]
    return ": its %s script ended with %s" % (found["script"], end)


def own_repositories(own_uris=()):
    """Normalised URIs of the repositories whose failure is fatal: those in our own files, and own_uris."""
    sources, _, _ = apt_sources.read_sources()
    ours = [s for s in sources if os.path.basename(s["file"]).startswith(apt_common.OWN_PREFIX) and s["enabled"]]
    uris = [uri for source in ours for uri in source["uris"]] + list(own_uris)
    return {apt_sources.normalise(uri) for uri in uris}


def describe_update_problem(problem):
    """One line in plain words: which repository, what, which key."""
    where = "the repository %s" % problem["repository"] if problem["repository"] else "apt's sources"
    if problem["key"]:
        return "%s could not be refreshed: key %s (%s)" % (where, problem["key"], _UPDATE_TEXTS[problem["code"]])
    return "%s could not be refreshed: %s" % (where, _UPDATE_TEXTS[problem["code"]])


_UPDATE_TEXTS = {
    "apt.signed_by_conflict": "two sources files list it with different keys",
    "apt.key": "the installed keys do not verify its signature",
    "apt.no_release": "it has no Release file",
    "apt.expired": "its Release file is expired or not valid yet",
    "apt.release_changed": "it changed its name or suite, and apt asks for confirmation",
    "apt.fetch": "it cannot be reached or lacks a file",
    "apt.mirror_sync": "the mirror is being updated",
    "apt.sources": "a sources file cannot be read",
    "apt.lock_timeout": "another program holds the lock of the lists",
}
_UPDATE_HINTS = {
    "apt.signed_by_conflict": "remove one of the two entries; apt_sources does that for the repositories it manages",
    "apt.key": "check the fingerprint of the repository's current key, then install it",
    "apt.no_release": "the repository moved or ended: correct its address or remove it",
    "apt.expired": "check the host's clock; if it is right, the mirror is no longer updated",
    "apt.release_changed": "if the change is right: apt-get update --allow-releaseinfo-change",
    "apt.fetch": "check the address, the proxy (gpu_proxy_http, gpu_proxy_https) and DNS",
    "apt.mirror_sync": "try again in a few minutes",
    "apt.sources": "correct the file that the message names",
}
_HINTS = {
    "apt.unmet": "plan again: the requested versions conflict with each other or with installed packages",
    "apt.held": "remove the hold, or request a version that does not change this package",
    "apt.version_not_found": "refresh the lists and plan again: the repository may have dropped that version",
    "apt.package_not_found": "check whether the sources include the repository that has it",
    "apt.dpkg_failed": "fix the cause, then run it again: the next run completes the unfinished change",
    "apt.fetch": "refresh the lists and try again; behind a proxy check gpu_proxy_http and gpu_proxy_https",
    "apt.disk_full": "free some space, then run it again: the next run completes the unfinished change",
    "apt.key": "check the fingerprint of the repository's current key, then install it",
    "apt.signed_by_conflict": "remove one of the two entries; apt_sources does that for the repositories it manages",
    "apt.sources": "correct the file that the message names",
    "apt.needs_reinstall": "add the repository that has the package, or remove the package with dpkg --force-remove-reinstreq",
    "apt.lock_timeout": "wait for the other program to end, or give more time (nvidia_driver_lock_timeout)",
}


# --- small I/O


def _make_dir(path, mode):
    try:
        os.makedirs(path, mode, exist_ok=True)
        found = os.stat(path).st_mode & 0o777
        if found & 0o022:
            os.chmod(path, found & ~0o022)
    except OSError as error:
        raise own_files.FileError(path, "make", error) from None


def _forget(*paths):
    for path in paths:
        if os.path.lexists(path):
            os.unlink(path)
    own_files.sync_folder(STATE)


def _stamp():
    """Changes whenever dpkg writes its status file."""
    info = os.stat(apt_common.DPKG_STATUS)
    return [info.st_ino, info.st_mtime_ns, info.st_size]


def _now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _boot_id():
    try:
        return host_tree.read_text("/proc/sys/kernel/random/boot_id").strip()
    except OSError:
        return None
