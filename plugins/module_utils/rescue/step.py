# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Carry out the smallest repairs on a host: what rescue does before any package is chosen anew (levels 0 to 2).

``run`` is what the module rescue_step calls. Every step looks first whether there is anything to do, keeps a copy of
each file that it changes, and says what it did or why it could not; one that could not does not end the others.
Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import glob
import os
import re
import shutil

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import conf as apt_conf
from ansible_collections.gpu.provision.plugins.module_utils.apt import configure as apt_configure
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version, own_files, redact
from ansible_collections.gpu.provision.plugins.module_utils.rescue import modules as rescue_modules

_ASIDE = ".gpu-provision-disabled"
LISTS = "/var/lib/apt/lists"
# an initramfs with every module on a slow disk
_BUILD_SECONDS = 900
_UPDATE_SECONDS = 900
# each kernel rebuilds its initramfs and GRUB's menu
_REMOVE_SECONDS = 1800
_OF_A_KERNEL = re.compile(r"^linux-(?:image|image-unsigned|modules|modules-extra|headers|tools|buildinfo)-[0-9]")
# What makes every further step about packages fail in the same way: they are not begun.
_FOR_ALL = ("apt.lock_timeout", "apt.not_root")


def run(params, check=False, log_dir=apt_transaction.LOGS):
    """Carry out steps in their order and return {"changed", "steps", "backup"}.

    params: steps ([{"action", "words", "args"}], see provision.diagnose.finding.ACTIONS), stop_holders (whether services
    that hold the kernel modules may be stopped for a moment), lock_timeout (seconds), environment (see proxies.within).
    check: say what would be done. Each of the steps comes back as {"action", "words", "ok", "changed", "said" (lines)}, with
    "code" and "hint" of what could not be done.
    """
    steps = Steps(params, check, log_dir)
    results = []
    stopped = None
    with apt_query.proxy(params.get("environment")):
        for step in params["steps"]:
            # One that cannot get dpkg's lock says so for all that follow.
            lines = None if stopped is None else dict(stopped, said=["not begun: " + stopped["said"][0]])
            result = lines or steps.carry_out(step)
            result.update(action=step["action"], words=step.get("words") or "")
            if result.get("code") in _FOR_ALL:
                stopped = result
            results.append(result)
    return {"changed": any(result["changed"] for result in results), "steps": results, "backup": steps.backup}


class Steps(object):
    """The steps of one run: a method an action, each returns (changed, lines that say what was done)."""

    def __init__(self, params, check=False, log_dir=apt_transaction.LOGS, root="/", command=apt_common.run):
        self.check, self.log_dir, self.root, self.command = check, log_dir, root, command
        self.stop_holders = bool(params.get("stop_holders"))
        self.lock_timeout = int(params.get("lock_timeout") or 600)
        # the folder with the files as they were, once there is one
        self.backup = None
        self.actions = {
            "module.reload": self.module_reload,
            "gpu.reset": self.gpu_reset,
            "dpkg.configure": self.dpkg_configure,
            "boot.room": self.boot_room,
            "initramfs.build": self.initramfs_build,
            "holds.clear": self.holds_clear,
            "sources.drop": self.sources_drop,
            "sources.rewrite": self.sources_rewrite,
            "sources.key": self.sources_key,
            "lists.clean": self.lists_clean,
            "file.aside": self.file_aside,
            "packages.install": self.packages_install,
        }

    def carry_out(self, step):
        """One step's result, without its own words. Raises AptError for an action that nobody knows."""
        action = self.actions.get(step["action"])
        if action is None:
            raise AptError("rescue.usage", "no such step: %s" % step["action"])
        try:
            changed, said = action(dict(step.get("args") or {}))
        except AptError as error:
            return {
                "ok": False,
                "changed": False,
                "said": [error.message] + list(error.because)[:8],
                "code": error.code,
                "hint": error.hint,
            }
        except own_files.FileError as error:
            return {"ok": False, "changed": False, "said": [error.message], "code": "rescue.file", "hint": error.hint}
        return {"ok": True, "changed": changed, "said": said}

    # --- 0: the modules that are loaded

    def module_reload(self, args):
        """Load the module that is on the disk in place of the one that runs. args: none."""
        return rescue_modules.reload_nvidia(self.command, self.root, self.stop_holders, self.check)

    def gpu_reset(self, args):
        """Reset cards that nobody uses. args: cards (bus ids)."""
        return rescue_modules.reset(self.command, self.root, args.get("cards") or (), self.check)

    # --- 1: what was cut off

    def dpkg_configure(self, args):
        """Finish half-configured packages and what an interrupted transaction of ours left; fetch what they lack."""
        unfinished = _unfinished()
        journal = os.path.lexists(apt_transaction.JOURNAL)
        if not unfinished and not journal:
            return False, ["dpkg has nothing unfinished"]
        lines = "finished %s" % _few(unfinished) if unfinished else "restored the holds"
        if self.check:
            return True, [lines]
        self._transaction()
        left = _unfinished()
        if left:
            raise AptError("apt.dpkg_failed", "dpkg could not finish %s" % _few(left))
        return True, [lines]

    def boot_room(self, args):
        """Make room in /boot. args: packages (exact names of old kernels), files."""
        packages = [p.name for p in apt_common.read_status() if p.present and p.name in set(args.get("packages") or ())]
        kernels = {m.group(1) for m in map(re.compile(r"^linux-image-(?:unsigned-)?([0-9].*)$").match, packages) if m}
        newest = self._newest_kernel()
        for kernel, why in ((os.uname()[2], "runs"), (newest, "is the newest")):
            if kernel in kernels:
                raise AptError("rescue.running_kernel", "the kernel %s %s: it stays" % (kernel, why))
        files = [path for path in args.get("files") or () if os.path.lexists(self.path(path))]
        # The image of a kernel that goes takes the most room, and removing the package needs some.
        files += [p for p in ("/boot/initrd.img-" + k for k in sorted(kernels)) if os.path.lexists(self.path(p))]
        if not files and not packages:
            return False, ["it is already removed"]
        said = ["moved %s" % path for path in files] + ["removed %s" % name for name in packages]
        if self.check:
            return True, said
        before = self._boot_free()
        for path in files:
            self._move_to_backup(path)
        if packages:
            try:
                self._remove_kernels(packages)
            except AptError:
                for path in files:
                    if os.path.basename(path).replace("initrd.img-", "") in kernels:
                        self._move_back(path)
                raise
        return True, said + ["%d MiB more are free in /boot" % ((self._boot_free() - before) >> 20)]

    def _newest_kernel(self):
        releases = [os.path.basename(path)[len("vmlinuz-") :] for path in glob.glob(self.path("/boot/vmlinuz-*"))]
        return max(releases, key=deb_version.natural_key) if releases else None

    def _remove_kernels(self, packages):
        """Remove packages of old kernels, and refuse where apt would do anything else."""
        odd = [name for name in packages if not _OF_A_KERNEL.match(name)]
        if odd:
            raise AptError("rescue.usage", "%s belongs to no single kernel" % odd[0])
        argv = ["apt-get"] + apt_common.option_args(
            apt_common.OPTIONS + ("DPkg::Lock::Timeout=%d" % self.lock_timeout,)
        )
        apt_common.wait_for_locks(apt_common.DPKG_LOCKS, self.lock_timeout)
        simulated = self.command(argv + ["-s", "remove"] + packages, 120)
        changes = apt_query.parse_simulation(simulated.out) if simulated.rc == 0 else []
        more = [c["name"] for c in changes if c["action"] != "remove" or c["name"].split(":")[0] not in packages]
        if simulated.rc != 0 or more:
            raise AptError(
                "apt.removes",
                "apt would do more than remove these kernels",
                because=more[:6] or apt_query.error_lines(simulated.text)[:6],
                hint="remove what depends on them first, or free space in /boot by hand",
            )
        self._do(argv + ["-y", "remove"] + packages, _REMOVE_SECONDS, "dpkg --audit says what is half done")

    def initramfs_build(self, args):
        """Build the initramfs of kernels anew, as the system's own tool does. args: kernels (releases; all when empty)."""
        kernels = args.get("kernels") or sorted(
            os.path.basename(path)[len("vmlinuz-") :] for path in glob.glob(self.path("/boot/vmlinuz-*"))
        )
        if not kernels:
            return False, ["no kernel is in /boot"]
        said = ["built the initramfs of %s" % ", ".join(kernels)]
        if self.check:
            return True, said
        tool = next((t for t in ("update-initramfs", "dracut") if shutil.which(t, path=_PATH)), None)
        if tool is None:
            raise AptError(
                "boot.no_initramfs_tool",
                "neither update-initramfs nor dracut is installed",
                hint="install initramfs-tools, or rebuild the initramfs as this system does",
            )
        for kernel in kernels:
            image = "/boot/initrd.img-" + kernel
            how = "-u" if os.path.exists(self.path(image)) else "-c"
            argv = (
                ["update-initramfs", how, "-k", kernel]
                if tool == "update-initramfs"
                else ["dracut", "--force", image, kernel]
            )
            self._do(argv, _BUILD_SECONDS, "check free space in /boot (df -h /boot) and run it by hand")
        return True, said

    # --- 2: what steers apt and the modules

    def holds_clear(self, args):
        """Lift holds. args: packages (exact names)."""
        wanted = set(args.get("packages") or ())
        packages = apt_common.read_status()
        native = apt_common.native_arch(packages)
        held = [p for p in packages if p.held and (p.name in wanted or apt_common.selection_name(p, native) in wanted)]
        if not held:
            return False, ["none of them is on hold"]
        said = ["lifted %d hold%s: %s" % (len(held), "s" if len(held) > 1 else "", _few(sorted(p.name for p in held)))]
        if self.check:
            return True, said
        apt_common.wait_for_locks(apt_common.DPKG_LOCKS, self.lock_timeout)
        text = "".join("%s %s\n" % (apt_common.selection_name(p, native), _free_selection(p)) for p in held)
        result = self.command(["dpkg", "--set-selections"], 120, stdin=text)
        if result.rc != 0:
            raise AptError("apt.hold", "the holds could not be lifted", because=result.text.strip().splitlines()[-4:])
        return True, said

    def sources_drop(self, args):
        """Take entries out of sources files. args: entries [{file, line}]; an entry without a line is the whole file."""
        return self._edit_sources(args.get("entries") or (), self._without)

    def sources_rewrite(self, args):
        """Give entries another address. args: entries [{file, line, uri, to}]."""
        return self._edit_sources(args.get("entries") or (), self._rewritten)

    def _edit_sources(self, entries, edit):
        by_file = {}
        for entry in entries:
            by_file.setdefault(entry["file"], []).append(entry)
        said = []
        for path, mine in sorted(by_file.items()):
            _refuse_elsewhere(path)
            data = own_files.read(self.path(path))
            if data is None:
                continue
            text = data.decode("utf-8", "replace")
            new, lines = edit(text, path, mine)
            if new == text or not lines:
                continue
            said += lines
            if not self.check:
                self._keep(path)
                own_files.write(self.path(path), new.encode("utf-8"))
        return bool(said), said or ["the entries no longer exist"]

    @staticmethod
    def _without(text, path, entries):
        whole = [entry for entry in entries if not entry.get("line")]
        if whole:
            rows = text.splitlines(True)
            return "".join(map(_off, rows)), ["commented out every entry of %s" % path]
        readable, broken = _by_readable(text, path, entries)
        # Broken stanzas first: "Enabled: no" would be another line of what apt cannot read, and no line number moves.
        rows = text.splitlines(True)
        for entry in broken:
            for number in range(int(entry["line"]) - 1, len(rows)):
                if not rows[number].strip():
                    break
                rows[number] = _off(rows[number])
        lines = ["disabled the entry in line %d of %s" % (entry["line"], path) for entry in readable + broken]
        return apt_sources.without("".join(rows), path, readable), lines

    @staticmethod
    def _rewritten(text, path, entries):
        lines, notes = text.splitlines(True), []
        for entry in entries:
            at, uri = int(entry["line"]) - 1, entry["uri"]
            end = at + 1
            if path.endswith(".sources"):
                # A stanza goes on to the next empty line.
                end = next((n for n in range(at, len(lines)) if not lines[n].strip()), len(lines))
            for number in range(at, min(end, len(lines))):
                # The order knows addresses without their logins: those stay on the host, and are put back here.
                words = [*lines[number].split(), *lines[number].replace(":", ": ", 1).split()]
                real = next((word for word in words if redact.text(word) == uri), None)
                if real is not None:
                    login = real.rpartition("@")[0].rpartition("://")[2]
                    lines[number] = lines[number].replace(real, entry["to"].replace(redact.STARS, login))
                    notes.append("%s line %d: %s is %s now" % (path, number + 1, uri, entry["to"]))
        return "".join(lines), notes

    def sources_key(self, args):
        """Write a repository's entry with its present key, in place of others of it. args: repository (a SourceSpec)."""
        result = apt_configure.apply({"repositories": [args["repository"]]}, self.check)
        self.backup = result["backup"] or self.backup
        said = ["%s %s" % (file["action"], file["path"]) for file in result["files"]]
        return result["changed"], said or ["the key is there"]

    def lists_clean(self, args):
        """Fetch the lists of the repositories anew; the old ones come back where none could be fetched. args: none."""
        said = ["fetched the lists of every repository again"]
        if self.check:
            return True, said
        apt_common.wait_for_locks((apt_common.LISTS_LOCK,) + apt_common.DPKG_LOCKS, self.lock_timeout)
        folder, aside = self.path(LISTS), self.path(apt_transaction.STATE) + "/lists"
        if os.path.isdir(aside) and not _has_lists(folder):
            # an earlier run was cut off between the two
            _move_files(aside, folder)
        if os.path.isdir(aside):
            shutil.rmtree(aside)
        _move_files(folder, aside)
        argv = ["apt-get"] + apt_common.option_args(apt_common.OPTIONS) + ["update"]
        result = apt_query.update(argv, _UPDATE_SECONDS)
        if _has_lists(aside) and not _has_lists(folder):
            _move_files(aside, folder)
            raise AptError(
                "apt.fetch",
                "no repository could be read: the old lists are restored",
                because=apt_query.error_lines(result.text)[:4] + [apt_query.way()],
                hint="check the network, the proxy (gpu_proxy_http, gpu_proxy_https) and DNS of the host",
            )
        shutil.rmtree(aside)
        problems = [apt_transaction.describe_update_problem(p) for p in apt_query.parse_update_errors(result.text)]
        return True, said + problems

    def file_aside(self, args):
        """Rename files so that nobody reads them any more. args: paths."""
        said = []
        for path in args.get("paths") or ():
            real = self.path(path)
            if not os.path.lexists(real):
                continue
            said.append("%s is %s now" % (path, os.path.basename(path) + _ASIDE))
            if not self.check:
                self._keep(path)
                own_files.rename(real, real + _ASIDE)
        return bool(said), said or ["they no longer exist"]

    def packages_install(self, args):
        """Install again what a removal took along. args: packages (exact names); nothing else may be moved or removed."""
        there = {p.name for p in apt_common.read_status() if p.present}
        wanted = [name for name in args.get("packages") or () if name.split(":")[0] not in there]
        if not wanted:
            return False, ["they are installed"]
        odd = [name for name in wanted if not _NAME.match(name)]
        if odd:
            raise AptError("rescue.usage", "%s is not a package name" % odd[0])
        argv = ["apt-get"] + apt_common.option_args(
            apt_common.OPTIONS + ("DPkg::Lock::Timeout=%d" % self.lock_timeout,)
        )
        argv.append("--no-install-recommends")
        gone = [name for name in wanted if _NOWHERE.search(self.command(argv + ["-s", "install", name], 120).text)]
        available = [name for name in wanted if name not in gone]
        if not available:
            raise _not_available(gone)
        simulated = self.command(argv + ["-s", "install"] + available, 120)
        changes = apt_query.parse_simulation(simulated.out) if simulated.rc == 0 else []
        more = ["%s %s" % (c["action"], c["name"]) for c in changes if c["action"] != "install"]
        if simulated.rc != 0 or more:
            raise AptError(
                "apt.removes",
                "apt would do more than install %s" % _few(available),
                because=more[:6] or apt_query.error_lines(simulated.text)[:6],
                hint="install them by hand, one after the other",
            )
        if not self.check:
            apt_common.wait_for_locks(apt_common.DPKG_LOCKS, self.lock_timeout)
            self._do(argv + ["-y", "install"] + available, _REMOVE_SECONDS, "dpkg --audit says what is half done")
        if gone:
            raise _not_available(gone, ["installed %s" % _few(available)])
        return True, ["installed %s" % _few(available)]

    # --- helpers

    def path(self, path):
        """The file of a path below the root."""
        return path if self.root == "/" else os.path.join(self.root, path.lstrip("/"))

    def _transaction(self):
        """A transaction that asks for nothing: what is unfinished is set up, with what it waits for; holds stay as they are."""
        # a full disk may be what is being mended
        params = {"install": [], "remove": [], "hold": False, "lock_timeout": self.lock_timeout, "reserve_mib": 0}
        return apt_transaction.run(params, False, self.log_dir)

    def _do(self, argv, seconds, hint):
        result = self.command(argv, seconds)
        if result.rc != 0 or result.timed_out:
            how = "did not end within %d s" % seconds if result.timed_out else "ended with %d" % result.rc
            raise AptError(
                "rescue.command",
                "%s %s" % (" ".join(argv), how),
                because=[line for line in result.text.strip().splitlines() if line.strip()][-6:],
                hint=hint,
            )
        return result

    def _folder(self):
        if self.backup is None:
            self.backup = own_files.dated(apt_configure.BACKUP + "/")
        return self.path(self.backup)

    def _keep(self, path):
        """Copy a file as it is into the folder of backups."""
        target = self._folder() + path
        if not os.path.isdir(os.path.dirname(target)):
            os.makedirs(os.path.dirname(target))
        shutil.copy2(self.path(path), target, follow_symlinks=False)

    def _move_to_backup(self, path):
        self._keep(path)
        os.unlink(self.path(path))

    def _move_back(self, path):
        shutil.copy2(self._folder() + path, self.path(path), follow_symlinks=False)

    def _boot_free(self):
        state = os.statvfs(self.path("/boot"))
        return state.f_bavail * state.f_frsize


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


_NAME = re.compile(r"^[a-z0-9][a-z0-9+.-]+(?::[a-z0-9]+)?$")


# Source: apt-get 2.0 to 2.9, in the C locale that aptcommon gives it.
_NOWHERE = re.compile(r"Unable to locate package|has no installation candidate")


def _not_available(gone, done=()):
    return AptError(
        "apt.not_offered",
        "no repository of this host has %s" % _few(gone),
        because=list(done),
        hint="add the repository that they came from, then install them by these names",
    )


def _has_lists(folder):
    return any(re.search(r"_Packages|Release$", name) for name in os.listdir(folder))


def _move_files(source, target):
    """Move the files of a folder (not apt's lock) into another one; the folder itself may be a file system of its own."""
    if not os.path.isdir(target):
        os.makedirs(target)
    for name in os.listdir(source):
        # Lists of a folder are links to its files, which may be gone.
        if name != "lock" and not os.path.isdir(os.path.join(source, name)):
            shutil.move(os.path.join(source, name), os.path.join(target, name))


def _few(items, shown=6):
    """Items with commas; after some of them, how many more."""
    rest = len(items) - shown
    return ", ".join(items[:shown]) + (" and %d more" % rest if rest > 0 else "")


def _unfinished():
    """Names of what dpkg left half-done."""
    return sorted(p.name for p in apt_common.read_status() if p.unfinished)


def _free_selection(package):
    """What a package is, once no hold is on it: holds on what is not there make apt refuse it later (G2)."""
    if package.present:
        return "install"
    return "deinstall" if package.state == "config-files" else "purge"


def _off(row):
    """A line of a sources file that apt no longer reads."""
    return "# taken out by gpu-provision: " + row if row.strip() and not row.startswith("#") else row


def _by_readable(text, path, entries):
    """(entries that ``aptsources.without`` can take out, stanzas that cannot be read). Entries are {file, line}.

    What is a comment by now, switched off or gone is neither.
    """
    rows = text.splitlines()
    entries = [e for e in entries if e["line"] <= len(rows) and not rows[e["line"] - 1].lstrip().startswith("#")]
    if not path.endswith(".sources"):
        return entries, []
    found = {source["line"]: source["enabled"] for source in apt_conf.parse_deb822(text, path)[0]}
    return [e for e in entries if found.get(e["line"])], [e for e in entries if e["line"] not in found]


def _refuse_elsewhere(path):
    """Only apt's own folder is edited, whatever a finding says."""
    if not os.path.normpath(path).startswith("/etc/apt/"):
        raise AptError("rescue.usage", "%s is not a file of apt" % path)
