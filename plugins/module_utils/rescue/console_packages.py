# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Which packages a rescue at the console asks apt for, and how it installs them: by the online rescue's transaction.

Known versions come as data, then what is installed counts, then the branch that the inventory names, then what was there
before. apt simulates first, and nothing that is not the driver's may move. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import hashlib
import os

from ansible_collections.gpu.provision.plugins.module_utils.apt import changes as apt_changes
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names, host_tree, own_files, scratch
from ansible_collections.gpu.provision.plugins.module_utils.rescue import common as rescue_common
from ansible_collections.gpu.provision.plugins.module_utils.rescue import purge as rescue_purge
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot

# What a person may have to wait for: a DKMS build on a slow machine, a download by a thin line.
SECONDS = 3600
LOCK_SECONDS = 600
_TIMEOUTS = ("Acquire::http::Timeout=20", "Acquire::https::Timeout=20")


class Packages(object):
    """talk: the Console, which says and asks; debs: folder with .deb files or None. state is set anew after each look."""

    def __init__(self, decisions, talk, debs, dry):
        self.decisions, self.talk, self.debs, self.dry = decisions, talk, debs, dry
        self.state, self.work, self.fetched = None, None, False

    def remember(self):
        """What was there before anything: holds, the series, its packages; also before a run that was interrupted."""
        state, host = self.state, rescue_snapshot.Host()
        cut_off = host.unfinished()
        before = rescue_snapshot.read_packages(host.text(cut_off, "packages.tsv")) if cut_off else {}
        rows = {name: row for (name, _), row in before.items() if row["state"] not in ("not-installed", "config-files")}
        self.held = {name for name, row in rows.items() if row["want"] == "hold"}
        self.held.update(p.name for p in state.packages if p.held and p.present)
        names = {p.name for p in state.driver} | {name for name in rows if rescue_purge.is_ours(name)}
        parsed = [package for package in map(driver_names.parse, sorted(names)) if package]
        series = [package.series for package in parsed if package.base == "nvidia-utils" and package.series]
        version = (state.module or {}).get("version") or state.library or state.loaded
        self.series_before = max(series, key=lambda one: int(one[:3])) if series else driver_names.branch(version)
        self.before = [p.name for p in parsed if p.series == self.series_before and not p.base.startswith("linux-")]

    # --- which

    def wanted(self, gone=()):
        """([names, some with versions], why these), or None with the reason said. gone: what a purge will have removed."""
        decided, state = self.decisions, self.state
        series = decided["series"] or self.series_before
        if decided["wanted"]:
            names, why = decided["wanted"], "the versions that are known to be right here"
        elif state.core and not gone:
            names, why = state.locked + state.lost, "the newest version that apt has of each"
        elif decided["series"]:
            names, why = self.top(series), "what the inventory asks for"
        elif self.before:
            names, why = self.before, "what was installed before"
        elif series:
            names, why = self.top(series), "the earlier branch"
        else:
            why = "Which driver this host should have is not known here: provision plan shows it if the host can be reached"
            self.talk.say("4. " + why)
            return None
        jump = None if decided["wanted"] else self.jump(names, series, gone)
        if jump and decided["series"]:
            words = (
                "4. refused: branch %s has ended, and apt would install %s instead; the inventory has to ask for that"
            )
            self.talk.say(words % (series, jump))
            return None
        if jump:
            names, why, series = self.top(jump), "%s, because the earlier branch has ended" % jump, jump
        return self.with_module(names, series, gone), why

    def jump(self, names, series, gone):
        """A name is not a branch: the archive turns ended branches into packages that bring the next one. That one, or None."""
        coming = [change["name"] for change in self.simulate(names, gone)["changes"] if change["action"] != "remove"]
        parsed = [[p for p in map(driver_names.parse, some) if p and p.branch] for some in (coming, names)]
        asked = {series.split("-")[0]} | {p.branch for p in parsed[1]}
        return next((p.series for p in parsed[0] if p.base == "nvidia-utils" and p.branch not in asked), None)

    def top(self, series):
        """What apt is asked for, for a series: as the inventory decides, else by the Ubuntu archive's names."""
        decided = self.decisions
        channel = decided["channel"] if series == decided["series"] else "ubuntu"
        build = "signed" if decided["build"] == "auto" else decided["build"]
        return driver_names.top_packages(channel, series, self.flavour(series), build, decided["variant"])

    def flavour(self, series):
        return flavour(self.decisions, series, [gpu["device"] for gpu in self.state.facts["gpus"]])

    def with_module(self, names, series, gone):
        """The names with what brings the module: signed packages of the kernels, or headers for DKMS."""
        state, build = self.state, self.decisions["build"]
        signed = self.signed(state.next, series, gone)
        if state.has_dkms and not gone:
            build = "dkms"
        elif build == "auto" and not (signed and self.knows(signed, gone)):
            self.talk.say("  apt has no signed modules of that series for %s: DKMS builds them" % state.next)
            build, names = "dkms", [name.replace("nvidia-headless-no-dkms-", "nvidia-headless-") for name in names]
        if build == "dkms":
            return list(names) + ([] if state.headers else ["linux-headers-" + state.next])
        # The running kernel's too, where apt has it: an older kernel may still be chosen at boot.
        running = self.signed(state.running, series, gone) if state.running != state.next else ""
        more = [running] if running and self.knows(running, gone) else []
        return list(names) + ([signed] if signed else []) + more

    def signed(self, kernel, series=None, gone=()):
        """Package with signed modules for a kernel: like those that are installed, else as decided; empty without a series."""
        series = series or self.decisions["series"] or self.series_before
        parsed = [driver_names.parse(p.name) for p in self.state.driver if p.name not in gone]
        like = next((p for p in parsed if p and p.base == "linux-modules-nvidia"), None)
        if like:
            return driver_names.prebuilt_modules(like.series, "open" if like.open else "proprietary", kernel)
        return driver_names.prebuilt_modules(series, self.flavour(series), kernel) if series else ""

    # --- by apt

    def knows(self, name, gone):
        answer = self.simulate([name], gone)
        return answer["ok"] or answer["code"] != "apt.package_not_found"

    def simulate(self, names, gone=()):
        self.refresh()
        return apt_query.simulate(install=names, gone=gone)

    def installable(self, names, gone=()):
        """apt's changes where it finds a way that takes nothing else along; None, with what is needed said."""
        answer = self.simulate(names, gone)
        lines = [] if answer["ok"] else [answer["message"]] + answer["because"]
        if answer["ok"]:
            there = [p for p in self.state.packages if p.present and p.name not in gone]
            removed = [
                c["name"] for c in answer["changes"] if c["action"] == "remove" and rescue_purge.is_ours(c["name"])
            ]
            bare = [name.partition("=")[0] for name in names]
            essential = [p.name for p in there if p.essential]
            have = {p.name: p.version for p in there}
            problems = apt_query.judge(answer["changes"], removed, None, bare, have, essential, os.uname()[2])
            lines = ["refused: " + problem["message"] for problem in problems]
        if not lines:
            return answer["changes"]
        self.talk.say("\n    ".join(["  apt finds no way to install: " + " ".join(names)] + lines))
        if not self.debs:
            self.talk.say(
                "  without network: put these and what they depend on into a folder, and give it by --debs DIR"
            )
        return None

    def install(self, names, changes):
        """Make the changes that apt simulated for these names. Returns whether it was done."""
        for change in changes:
            self.talk.say(" ".join(filter(None, ("+", change["action"], change["name"], change["version"]))))
        if self.dry:
            return True
        versions = {change["name"]: change["version"] for change in changes}
        exact = ["%s=%s" % (name, versions[name]) if versions.get(name) else name for name in names]
        # What is named counts as asked for; what came by itself must stay so.
        auto = set(apt_common.run(["apt-mark", "showauto"], 60).out.split())
        params = {"install": exact, "expect": changes, "hold": self.decisions["hold"], "reserve_mib": 0}
        done = self.talk.attempt(apt_transaction.run, dict(params, lock_timeout=LOCK_SECONDS, timeout=SECONDS))
        marks = [name for name in (name.partition("=")[0] for name in names) if name in auto]
        if marks:
            self.talk.attempt(rescue_common.command, ["apt-mark", "auto"] + marks, 60)
        for line in done["warnings"] if done else ():
            self.talk.say("  " + line)
        return done is not None

    def fetch(self, gone):
        """Fetch what follows a purge: a host without network would be left with no driver at all. True when it is there."""
        found = self.wanted(gone)
        if found is None or self.installable(found[0], gone) is None:
            return False
        if self.dry:
            return True
        status = apt_query.without_packages(apt_common.status_text(), gone)
        path = self.folder() + "/status"
        own_files.write(path, status.encode("utf-8"))
        options = ("Dir::State::status=" + path, "Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache=")
        argv = ["apt-get", "-y", "-d", "--no-install-recommends", "install"] + found[0]
        return self.talk.command(argv, SECONDS, apt_common.OPTIONS + options)

    def hold(self, leave):
        """What was on hold and is still there; every package of the driver too, where the inventory holds it."""
        there = [p for p in apt_common.read_status() if p.present]
        names = [p.name for p in there if p.name in self.held]
        pairs = apt_changes.holds_from_status(there, self.decisions["hold"] and not leave, extra_hold=names)
        if pairs:
            self.talk.say("+ hold %d packages by their exact names" % len(pairs))
            apt_common.wait_for_locks(apt_common.DPKG_LOCKS, LOCK_SECONDS)
            apt_common.run(["dpkg", "--set-selections"], 120, stdin="".join("%s %s\n" % pair for pair in pairs))

    def refresh(self):
        """Fetch apt's lists once, or make the folder of --debs what apt reads; without network, old lists do."""
        if self.fetched:
            return
        self.fetched = True
        if self.debs:
            self.use_debs()
        elif not self.dry:
            self.talk.say("+ apt-get update")
            argv = ["apt-get"] + apt_common.option_args(apt_common.OPTIONS + _TIMEOUTS) + ["update"]
            result = apt_query.update(argv, 900)
            if result.rc != 0 or apt_query.parse_update_errors(result.text):
                self.talk.say("  no network, or a repository does not answer: continuing with the existing lists")

    def use_debs(self):
        """A repository of a folder's .deb files for apt alone, so that apt itself finds what belongs together."""
        self.talk.say("Reading the packages in %s" % self.debs)
        pool, stanzas = self.folder() + "/debs", []
        os.makedirs(pool)
        os.makedirs(self.work + "/lists/partial")
        found = [os.path.join(folder, name) for folder, _, names in os.walk(self.debs) for name in names]
        for number, path in enumerate(sorted(path for path in found if path.endswith(".deb") and os.path.isfile(path))):
            control = apt_common.run(["dpkg-deb", "-f", path], 60)
            if control.rc != 0:
                self.talk.say("  %s is not a package that dpkg can read: skipped" % path)
                continue
            os.symlink(os.path.realpath(path), "%s/%d.deb" % (pool, number))
            place = (number, os.path.getsize(path), _sha256(path))
            stanzas.append(control.out.strip() + "\nFilename: ./%d.deb\nSize: %d\nSHA256: %s\n" % place)
        settings = {
            "Dir::Etc::sourcelist": self.work + "/sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State::lists": self.work + "/lists",
            "Dir::Cache::pkgcache": "",
            "Dir::Cache::srcpkgcache": "",
            "APT::Sandbox::User": "root",
        }
        for name, text in (
            ("debs/Packages", "\n".join(stanzas)),
            ("sources.list", "deb [trusted=yes] file:%s ./\n" % pool),
            ("apt.conf", "".join('%s "%s";\n' % pair for pair in settings.items())),
        ):
            own_files.write("%s/%s" % (self.work, name), text.encode("utf-8"))
        os.environ[apt_common.ALONE] = self.work + "/apt.conf"
        result = apt_common.run(["apt-get"] + apt_common.option_args() + ["update"], 300)
        if result.rc != 0:
            raise AptError(
                "apt.debs", "apt cannot read the packages of " + self.debs, apt_query.error_lines(result.text)
            )

    def folder(self):
        """A folder for files of this run, of mode 0700; not in /tmp, which may be memory."""
        self.work = self.work or scratch.make("offline", "/var/tmp")  # noqa: S108
        return self.work

    def close(self):
        if self.work is not None:
            scratch.remove(self.work)


def flavour(decisions, series, devices):
    """open or proprietary: as decided, else the first of the branch's order that every card takes.

    decisions: "flavour", and where that is auto "orders" {branch: flavours} and "alone" {flavour: [[first, last]]}, ranges
    of PCI device ids that take this one alone. devices: ids in hexadecimal.
    """
    if decisions["flavour"] != "auto":
        return decisions["flavour"]
    order = decisions["orders"].get(series.split("-")[0], "open proprietary").split()
    numbers = [int(device, 16) for device in devices]
    takes = {
        kind
        for kind, ranges in decisions["alone"].items()
        if any(first <= number <= last for number in numbers for first, last in ranges)
    }
    # Where no flavour of this branch drives these cards, apt or the proof says so.
    return next((kind for kind in order if not takes - {kind}), order[0])


def _sha256(path):
    digest = hashlib.sha256()
    with os.fdopen(host_tree.open_regular(path)[0], "rb") as file:
        for part in iter(lambda: file.read(1 << 20), b""):
            digest.update(part)
    return digest.hexdigest()
