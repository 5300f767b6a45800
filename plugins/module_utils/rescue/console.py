# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Rescue at the console of a host that no controller can reach: the online rescue's steps, in the order of its rounds.

``provision rescue HOST --offline-script`` packs this with everything that it imports. What takes the catalog or the lock was
decided before and comes as data (provision/rescue/offline.py); what can be seen on the host alone is decided here. It asks
before each step and stops as soon as the driver is right. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt import settle as apt_settle
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names, own_files, redact
from ansible_collections.gpu.provision.plugins.module_utils.rescue import common as rescue_common
from ansible_collections.gpu.provision.plugins.module_utils.rescue import purge as rescue_purge
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot
from ansible_collections.gpu.provision.plugins.module_utils.rescue import step as rescue_step
from ansible_collections.gpu.provision.plugins.module_utils.rescue import undo as rescue_undo
from ansible_collections.gpu.provision.plugins.module_utils.rescue.console_packages import (
    LOCK_SECONDS,
    SECONDS,
    Packages,
)
from ansible_collections.gpu.provision.plugins.module_utils.rescue.console_state import State

_FAILURES = (AptError, rescue_snapshot.SnapshotError, own_files.FileError)


class Ended(Exception):
    """The run is over: exit code and what is said last."""

    def __init__(self, rc, message):
        Exception.__init__(self, message)
        self.rc, self.message = rc, message


def main(decisions, argv, program):
    """Run, and return the exit code. decisions: see provision/rescue/offline.py; program: path of the file that was started."""
    options = _options(argv, program)
    no = "this must be run by root: sudo python3 %s" % program if os.geteuid() != 0 else None
    no = no or (None if os.path.exists(apt_common.DPKG_STATUS) else "this is no system with dpkg")
    if no:
        print(no, file=sys.stderr)
        return 64
    os.environ.update(apt_common.ENVIRONMENT, PATH=apt_common.environment()["PATH"])
    os.umask(0o022)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    console = Console(decisions, options)
    try:
        code = console.attempt(console.run)
        return 1 if code is None else code
    except Ended as end:
        console.say(end.message)
        return end.rc
    except KeyboardInterrupt:
        console.say("\nInterrupted. apt and dpkg finish what they were doing; run this again to continue.")
        return 130
    except OSError as error:
        console.say("%s: is the disk full or read-only?" % error)
        return 1
    finally:
        console.close()


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(64, "%s; --help tells which options there are\n" % message)


def _options(argv, program):
    parser = _Parser(prog="python3 " + program, allow_abbrev=False, description=__doc__.split("\n", 1)[0])
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask (it never reboots automatically)")
    parser.add_argument("-n", "--dry-run", action="store_true", help="show what it would do, change nothing")
    parser.add_argument("--look", action="store_true", help="look only")
    parser.add_argument("--debs", metavar="DIR", help="take packages from a folder with .deb files (a stick, a mirror)")
    parser.add_argument("--series", metavar="580", help="the newest of another branch than the inventory asks for")
    parser.add_argument("--purge", action="store_true", help="remove every trace of the driver by exact names first")
    parser.add_argument(
        "--undo", action="store_true", help="go back to the earlier state, as far as apt still has the packages"
    )
    options = parser.parse_args(argv)
    if options.debs is not None and not os.path.isdir(options.debs):
        parser.error("--debs needs a folder with .deb files")
    if options.series is not None and not driver_names.SERIES.match(options.series):
        parser.error("--series is a branch (580) or a series (580-server)")
    if options.purge and options.undo:
        parser.error("--purge and --undo exclude each other")
    return options


class Console(object):
    """One run. state: the host as it was last read; taken: id of the snapshot, once there is one; leave: why, or empty."""

    def __init__(self, decisions, options):
        if options.series:
            decisions = dict(decisions, series=options.series, wanted=[])
        self.decisions, self.options, self.dry = decisions, options, options.dry_run
        self.taken, self.leave, self.log, self.state = None, "", None, None
        self.failed = self.declined = False
        self.packages = Packages(decisions, self, options.debs and os.path.abspath(options.debs), self.dry)

    # --- talk

    def say(self, text):
        """Print a text, and write it to the log. No password of the host's files is in it."""
        text = redact.text(text)
        print(text, flush=True)
        try:
            if self.log is not None:
                self.log.write(text + "\n")
                self.log.flush()
        except OSError as error:
            self.log = None
            print("  no log from here on: %s" % error, flush=True)

    def ask(self, text):
        """Ask before a step. One that is declined is not done; the next one is asked for anyway."""
        self.say("\n" + text)
        if self.options.yes or self.dry:
            return True
        print("Do this? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            return True
        self.say("  left out")
        self.declined = True
        return False

    def failure(self, error):
        """Say why something could not be done. A lock that others hold for so long ends the run."""
        code, because = getattr(error, "code", "rescue.file"), list(getattr(error, "because", ()))
        log = getattr(error, "data", {}).get("log")
        lines = ["  %s: %s" % (code, error.message)] + ["    " + line for line in because]
        lines += ["  hint: %s" % error.hint] if error.hint else []
        self.say("\n".join(lines + (["  what apt and dpkg said is in %s" % log] if log else [])))
        self.failed = True
        if code == "apt.lock_timeout":
            raise Ended(5, "Let that program end, then run this again. Nothing was changed by this step.")

    def attempt(self, work, *args, **kwargs):
        """What work(…) returns, or None where it failed, with the reason said."""
        try:
            return work(*args, **kwargs)
        except _FAILURES as error:
            self.failure(error)
            return None

    def command(self, argv, seconds=SECONDS, options=()):
        """Run a command, or say that it would be run; True when it went well. options: of apt, which are not shown."""
        self.say("+ " + " ".join(argv))
        argv = argv[:1] + apt_common.option_args(options) + argv[1:]
        if self.dry:
            return True
        result = self.attempt(apt_common.run, argv, seconds)
        if result is None:
            return False
        if result.rc != 0:
            self.failed = True
        end = ["  this ended with exit code %d" % result.rc] if result.rc != 0 else []
        self.say("\n".join([line for line in [result.text.strip()] if line] + end) or "  done")
        return result.rc == 0

    def step(self, question, action, args, paths=()):
        """One step of the online rescue: ask, keep what is there, carry it out."""
        if not self.ask(question):
            return
        self.snapshot(paths)
        params = {"steps": [{"action": action, "args": args}], "lock_timeout": LOCK_SECONDS}
        (done,) = rescue_step.run(params, self.dry)["steps"]
        if done["ok"]:
            self.say("\n".join("+ " + line for line in done["said"]))
        else:
            self.failure(AptError(done["code"], done["said"][0], done["said"][1:], done["hint"]))
        self.mark()

    # --- the run

    def run(self):
        """Everything, to the exit code."""
        if not (self.dry or self.options.look):
            self.open_log()
        # What an interrupted run began goes on to its end: nothing is judged in the middle of it.
        if not apt_settle.settle(apt_transaction.LOCK, LOCK_SECONDS)["settled"]:
            raise Ended(5, "A change of an earlier run is still running: let it end, then run this again.")
        if self.options.undo:
            return self.undo()
        self.read()
        self.packages.remember()
        self.whose()
        self.report()
        if self.options.look:
            return 0 if self.state.right_now() else 3
        self.refuse()
        if not self.options.purge and not self.has_work():
            self.say("The driver is correct: nothing to do.")
            return 0
        for level in (self.sources, self.holds, self.dpkg):
            level()
            self.read()
        if self.leave or not self.options.purge:
            self.initramfs()
        if not self.leave and self.options.purge:
            if self.purge():
                self.realign()
        elif not self.leave:
            self.missing_module()
            self.realign()
        self.read()
        if not self.leave and self.state.library:
            self.nouveau()
            self.initramfs()
        return self.conclude()

    def open_log(self):
        """A disk that is full or read-only may be the cause: then there is no log."""
        path = own_files.dated(apt_transaction.LOGS + "/offline-", ".log")
        try:
            os.makedirs(apt_transaction.LOGS, exist_ok=True)
            self.log = open(path, "a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
        except OSError as error:
            self.say("no log: %s" % error)

    def read(self):
        self.state = self.packages.state = State()

    def whose(self):
        """Whose driver it is: leave says why it is left alone."""
        outside = ", ".join(self.state.outside)
        if not self.decisions["managed"]:
            self.leave = (
                "the inventory says nvidia_driver_manage: false, so gpu-provision does not change this host's driver"
            )
        elif outside and not self.options.purge:
            self.leave = "it came from outside apt (%s), and packages beside it would break both" % outside
            self.leave += "" if self.state.elsewhere() else "; --purge removes it, then installs one"

    def report(self):
        state, count = self.state, len(self.state.facts["gpus"])
        head = "Host:    %s (%s), %d NVIDIA GPUs" % (self.decisions["host"], socket.gethostname(), count)
        found = ["  %s: %s" % pair for pair in state.findings()] or ["  nothing to repair"]
        self.say("\n".join([head] + state.lines() + ["Found:"] + ["  " + note for note in state.notes()] + found))
        if self.leave:
            self.say("The driver is not changed: %s" % self.leave)

    def refuse(self):
        if not self.state.facts["gpus"]:
            raise Ended(3, "Nothing to repair here: there is no GPU that a driver could drive.")
        if self.options.purge and self.leave:
            raise Ended(5, "refused: %s" % self.leave)
        elsewhere = self.state.elsewhere() if self.options.purge else []
        if elsewhere:
            message = "a driver from outside apt is where --purge removes nothing (%s): remove it with the tool that installed it"
            raise Ended(5, "refused: " + message % " ".join(elsewhere))

    def has_work(self):
        state = self.state
        half = state.unfinished or os.path.lexists(apt_transaction.JOURNAL)
        return half or state.absent_holds or any(state.apt_errors()) or state.no_initramfs or not state.right_now()

    # --- 1 and 2: mend in place

    def sources(self):
        """Entries of one repository that name different keys: one stays, whose key is there; our own goes before all."""
        facts, groups = self.state.facts, {}
        enabled = [row for row in facts["apt"]["sources"] if row["enabled"] and self.state.apt_errors()[0]]
        for row in enabled:
            for place in apt_sources.repositories(row, facts["host"]["arch"]):
                groups.setdefault(place, []).append(row)
        for (uri, _), rows in sorted(groups.items()):
            if len({row["signed_by"] or "" for row in rows}) < 2:
                continue
            keep = [row for row in rows if os.path.basename(row["file"]).startswith(apt_common.OWN_PREFIX)]
            keep = (keep or [row for row in rows if os.access(row["signed_by"] or "/-", os.R_OK)])[:1]
            others = [row for row in rows if row not in keep]
            files = [row["file"] for row in others]
            if not keep or any(len(row["uris"]) * len(row["suites"]) > 1 for row in others):
                message = (
                    "2. %s is listed in %s with different keys, and no entry can be removed alone: correct them by hand"
                )
                self.say(message % (uri, " ".join(row["file"] for row in rows)))
                continue
            question = "2. Keep %s in %s alone, and disable it elsewhere (%s)." % (
                uri,
                keep[0]["file"],
                " ".join(files),
            )
            entries = [{"file": row["file"], "line": row["line"]} for row in others]
            self.step(question, "sources.drop", {"entries": entries}, files)

    def holds(self):
        names = self.state.absent_holds
        if names:
            question = "2. Clear holds on packages that are not installed (%s)." % " ".join(names)
            self.step(question, "holds.clear", {"packages": names})

    def dpkg(self):
        names = " ".join(p.name for p in self.state.unfinished)
        if self.leave and names:
            self.dpkg_around(names)
        elif not self.leave and (names or os.path.lexists(apt_transaction.JOURNAL)):
            question = "1. Finish what dpkg left half done (%s). A driver's module is built again: that takes minutes."
            self.step(question % (names or "the holds of a run that was interrupted"), "dpkg.configure", {})

    def dpkg_around(self, left):
        """The driver is others': what of dpkg's is left half done is finished without it."""
        native = apt_common.native_arch(self.state.packages)
        others = [p for p in self.state.unfinished if not rescue_purge.is_ours(p.name) and p.state != "half-installed"]
        names = [apt_common.selection_name(p, native) for p in others]
        if not names:
            self.say("1. Left to whoever manages the driver: %s" % left)
            return
        if not self.ask("1. Finish what dpkg left half done, without the driver (%s)." % " ".join(names)):
            return
        self.snapshot()
        apt_common.wait_for_locks(apt_common.DPKG_LOCKS, LOCK_SECONDS)
        self.command(["dpkg", "--force-confdef", "--force-confold", "--configure"] + names)
        self.read()
        if any(not rescue_purge.is_ours(p.name) for p in self.state.unfinished):
            self.packages.refresh()
            argv, options = ["apt-get", "--no-remove", "--no-install-recommends", "-f", "install"], apt_common.OPTIONS
            asked = apt_common.run(argv[:1] + apt_common.option_args(options) + ["-s"] + argv[1:], 120)
            would = apt_query.parse_simulation(asked.out)
            theirs = [change["name"] for change in would if rescue_purge.is_ours(change["name"])]
            if theirs:
                self.say("  refused: apt would touch the driver for that: %s" % " ".join(theirs))
            else:
                self.command(argv + ["-y"], options=options)
        self.mark()

    def initramfs(self):
        if self.state.no_initramfs:
            question = "1. Make /boot/initrd.img-%s, which is not there." % self.state.next
            self.step(question, "initramfs.build", {"kernels": [self.state.next]})
            self.read()

    # --- 3 to 5: packages

    def missing_module(self):
        """The kernel that boots next has no module, and the driver that is there brings one."""
        state, names = self.state, []
        if state.module or not state.library or not state.core:
            return
        question = "3. Build the module for kernel %s with DKMS (minutes)." % state.next
        if not state.has_dkms:
            names = [self.packages.signed(state.next)]
            question = "3. Install the signed module for kernel %s (%s)." % (state.next, names[0])
        elif not state.headers:
            names = ["linux-headers-" + state.next]
            question = "3. Install %s, so that DKMS can build the module for it." % names[0]
        changes = self.packages.installable(names) if names else []
        if changes is None or not self.ask(question):
            return
        self.snapshot()
        if not names or self.packages.install(names, changes):
            self.read()
            if state.has_dkms and self.state.module is None:
                self.command(["dkms", "autoinstall", "-k", state.next])
        self.mark()

    def realign(self):
        """One version for the whole driver, or a driver where there is none."""
        self.read()
        found = None if self.state.right_on_disk() else self.packages.wanted()
        if found is None:
            return
        names, why = found
        # What cannot be had is said before anything of the driver changes. A dry purge has asked as if it had been.
        changes = [] if self.options.purge and self.dry else self.packages.installable(names)
        if changes is None:
            self.say("4. The driver was not changed: %s is not available (%s)" % (why, " ".join(names)))
        elif self.ask("4. Bring the driver to one version: %s (%s)." % (why, " ".join(names))):
            self.snapshot()
            self.packages.install(names, changes)
            self.mark()

    def purge(self):
        """Remove every trace of the driver as the online rescue does; True where an installation may follow."""
        found = rescue_purge.plan()
        if found["nothing"]:
            return True
        traces = found["files"] + [tree + "/" for tree in found["trees"]] + found["aside"]
        names = found["packages"] + found["config"]
        question = "5. Remove every trace of the driver: %s\n   and, where a .run file put it there, by NVIDIA's own uninstaller; "
        if not self.ask(question % " ".join(names) + "then %d files and folders that no package owns." % len(traces)):
            return False
        for problem in found["problems"]:
            self.say("\n    ".join(["  " + problem["message"]] + problem["because"]))
        if found["problems"]:
            hint = found["problems"][0]["hint"]
            raise Ended(5, "refused before anything was removed: a purge removes only the driver; %s" % hint)
        if not self.packages.fetch({name.split(":")[0] for name in names}):
            raise Ended(5, "refused before anything was removed: the driver to install next is not available")
        self.snapshot()
        settings = {"expect": found["packages"], "lock_timeout": LOCK_SECONDS, "check": self.dry}
        done = self.attempt(rescue_purge.run, self.taken, **settings)
        if done is None:
            self.say("  what is left of them is named by: dpkg --audit; this can be run again")
            return False
        lines = ["+ would remove " + path for path in traces] if self.dry else ["+ " + line for line in done["done"]]
        lines += ["  " + line for line in done["warnings"]] + ["  left %(path)s: %(why)s" % row for row in done["left"]]
        self.say("\n".join(lines))
        return True

    # --- 0, 2 and the end

    def nouveau(self):
        """Keep nouveau away from the next boot on, by the file that the driver's role writes."""
        (path, text), state = self.decisions["nouveau"], self.state
        image, data = "/boot/initrd.img-" + state.next, text.encode("utf-8")
        newer = os.path.exists(image) and os.path.exists(path) and os.path.getmtime(image) > os.path.getmtime(path)
        if not state.nouveau or (newer and own_files.read(path) == data):
            return
        if self.ask("2. Keep nouveau away from the GPUs (%s), and rebuild the initramfs of every kernel." % path):
            self.snapshot([path])
            self.say("+ write %s and rebuild every initramfs" % path)
            if not self.dry:
                self.attempt(own_files.write, path, data)
                self.attempt(rescue_common.rebuild_initramfs)
            self.mark()

    def conclude(self):
        """Holds again, the module loaded where no reboot is needed, and what a person has to do next."""
        if self.dry:
            self.say("\nNothing was changed.")
            return 0
        if self.taken is not None:
            self.attempt(self.packages.hold, self.leave)
        self.read()
        loadable = self.state.right_on_disk() and self.state.running == self.state.next and not self.state.nouveau
        if loadable and not self.leave and self.state.loaded != self.state.library:
            self.step("0. Load the module now (modprobe nvidia).", "module.reload", {})
            self.read()
        self.mark()
        self.say("")
        self.report()
        return self.verdict()

    def verdict(self):
        state, host = self.state, self.decisions["host"]
        right = state.right_now()
        # Two drivers over each other are not right, whatever versions they happen to have.
        if right or (state.right_on_disk() and not (self.leave and state.outside and state.core)):
            if self.taken is not None:
                rescue_snapshot.finish(self.taken)
            if right:
                message = (
                    "\nThe driver is correct: %s.\nNext: provision verify -l %s, from where the host can be reached; "
                )
                self.say(message % (state.library, host) + "provision apply for all the rest.")
            else:
                message = (
                    "\nThe driver is correct from the next boot on: %s with kernel %s.\nNext: systemctl reboot, then "
                )
                self.say(message % (state.library, state.next) + "provision verify -l %s." % host)
            return 0
        self.say("\nIt is still broken.")
        if self.leave and self.decisions["managed"]:
            return 5
        if not self.leave and not self.options.purge:
            self.say("Next: --purge removes every trace of the driver by exact names, then installs it.")
        elif not self.leave:
            self.say("Next: a branch that apt has, by --series; packages, by --debs; or provision apply -l %s." % host)
        if self.taken is not None:
            path = "%s/%s" % (rescue_snapshot.SNAPSHOTS, self.taken)
            self.say("The earlier state: %s (--undo, or provision rescue %s --undo, goes back to it)." % (path, host))
        return 5 if self.declined else 1 if self.failed else 3

    # --- what was there before, and back to it

    def snapshot(self, paths=()):
        """Keep what is there before the first change; a run that was interrupted has kept it already."""
        if self.dry or (self.taken is not None and not paths):
            return
        answer = rescue_snapshot.take("offline rescue", paths)
        message = (
            "Continuing with the snapshot of an interrupted run"
            if answer["resumed"]
            else "Snapshot of the current state"
        )
        lines = [] if self.taken else ["%s: %s" % (message, answer["path"])]
        self.taken = answer["id"]
        for line in lines + answer["warnings"]:
            self.say(line)

    def mark(self):
        """What is there now was made by this run: undo takes back this, and nothing that others change later."""
        if self.taken is not None:
            rescue_snapshot.mark(self.taken)

    def undo(self):
        found = rescue_undo.plan()
        for problem in found["problems"][:1]:
            self.failure(AptError(**{key: problem[key] for key in ("code", "message", "because", "hint")}))
            return 5
        lines = ["%s %s" % (row["action"], row.get("name") or row["path"]) for row in found["changes"] + found["files"]]
        lines += ["hold " + name for name in found["hold"]] + ["lift the hold of " + name for name in found["release"]]
        lines += ["leave %(what)s: %(why)s" % row for row in found["left"]]
        self.say("\n  ".join(["Back to the state of %s (%s):" % (found["made"], found["reason"])] + lines))
        if not found["nothing"] and not self.ask("Go back to it."):
            return 5
        done = rescue_undo.run(found["id"], expect=found["changes"], check=self.dry, lock_timeout=LOCK_SECONDS)
        for line in done["done"] + done["warnings"]:
            self.say("+ " + line)
        self.say("\nNothing was changed." if self.dry or found["nothing"] else "\nThe earlier state is restored.")
        return 0

    def close(self):
        self.packages.close()
        if self.log is not None:
            self.log.close()
