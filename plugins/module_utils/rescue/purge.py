# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Remove every trace of a driver by exact names, and nothing else: the last resort before an installation from nothing.

``plan`` says what would go and changes nothing; ``run`` does it, in an order in which every step can be cut off and the
next run finishes: the .run file's own uninstaller, the packages (one transaction, held to the plan), the configuration
that dpkg kept of them, DKMS trees, files that no package owns, then loader cache, module lists and initramfs. Names come
from dpkg's status file and from names.is_driver_package; what no package owns from rescuetraces. Small files are in the
snapshot before they go, large ones are listed there.

Never touched: kernels (also linux-*-nvidia), their headers, the container toolkit, CUDA, cuDNN, NCCL, the desktop. apt's
answer is refused when anything but the driver would change. Nothing is auto-removed, and what only the driver's packages
had kept from a later autoremove is marked as wanted (field report G8). Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import os
import re
import shutil

from ansible_collections.gpu.provision.plugins.module_utils.apt import changes as apt_changes
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import (
    cuda_names,
    driver_names,
    host_tree,
    own_files,
    own_state,
)
from ansible_collections.gpu.provision.plugins.module_utils.rescue import common as rescue_common
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot
from ansible_collections.gpu.provision.plugins.module_utils.rescue import traces as rescue_traces

JOURNAL = apt_transaction.STATE + "/purge.json"
_INFO = "/var/lib/dpkg/info"
# what the .run file's uninstaller may take: it removes files and runs depmod
UNINSTALL_S = 600
# Drivers from before 2018, which names does not know: nothing installs them any more.
LEGACY = (
    "^(nvidia-[0-9][0-9][0-9](-updates)?(-dev|-uvm)?|nvidia-current(-updates)?|libcuda1-[0-9][0-9][0-9](-updates)?|"
    "nvidia-(opencl-icd|libopencl1)-[0-9][0-9][0-9](-updates)?|nvidia-experimental-[0-9][0-9][0-9])$"
)


def main(args):
    """Entry of the fast read: args["op"] is ``plan`` (default); the rest goes to ``plan``. Needs root for a sure answer."""
    args = dict(args)
    if args.pop("op", "plan") != "plan":
        raise AptError("purge.usage", "unknown operation")
    return plan(**args)


def is_ours(name):
    """True for a package that a purge removes: every driver, of any branch, channel and age. Names alone decide."""
    bare = name.split(":")[0]
    return driver_names.is_driver_package(bare) or bool(re.match(LEGACY, bare))


# --- plan


def plan(allow=(), root="/"):
    """Return what a purge would do; changes nothing.

    allow: names of packages besides the driver's that may go (consent of a person). Returns {"packages": [names as apt
    takes them], "config": [names of which only configuration is left], "changes": apt's answer, "kept": [{"name",
    "because"}], "uninstaller", "files", "trees", "aside", "dkms": [[name, version]], "kernels", "left": [{"path", "why"}],
    "problems": [{"code", "message", "because", "hint"}], "unfinished": a purge was interrupted, "nothing": bool}.
    With root, a recorded host, apt is not asked and changes are empty.
    """
    tree = host_tree.HostTree(root)
    packages = apt_common.read_status(tree.real(apt_common.DPKG_STATUS))
    remove, config, kept = select(packages)
    traces = rescue_traces.find(tree, with_packages=bool(remove))
    changes, problems = [], []
    if remove and tree.live:
        changes, problems = _ask(packages, remove, allow)
    uninstaller = rescue_traces.uninstaller(tree)
    unfinished = tree.stat(JOURNAL, follow=False) is not None
    return {
        "packages": remove,
        "config": config,
        "kept": kept,
        "changes": changes,
        "problems": problems,
        "uninstaller": uninstaller,
        "files": traces.files,
        "trees": traces.trees,
        "aside": traces.aside,
        "dkms": [list(pair) for pair in traces.dkms],
        "kernels": traces.kernels,
        "unfinished": unfinished,
        "left": [{"path": path, "why": why} for path, why in traces.left],
        "nothing": not (remove or config or traces.any or uninstaller or unfinished),
    }


def select(packages):
    """Return (names to remove, names of which only configuration is left, [{"name", "because"}] of what is kept).

    A companion of the driver (nvidia-settings, an EGL platform) that something else depends on stays: it is no driver.
    """
    native = apt_common.native_arch(packages)
    ours = [p for p in packages if is_ours(p.name)]
    kept = []
    for package in ours:
        companion = package.name in driver_names.COMPANIONS or package.name.startswith("libnvidia-egl-")
        needs = _needed_by(package.name, packages) if companion and package.present else None
        if needs:
            kept.append({"name": package.name, "because": "%s needs it" % needs})
    staying = {row["name"] for row in kept}
    gone = [p for p in ours if p.name not in staying]
    remove = sorted({apt_common.selection_name(p, native) for p in gone if p.present})
    config = sorted({apt_common.selection_name(p, native) for p in gone if p.state == "config-files"})
    return remove, config, kept


def _needed_by(name, packages):
    """Name of a package that is not ours and has no other choice than this one; None without."""
    for package in packages:
        if package.present and not is_ours(package.name) and any(name in group for group in _needs_ours(package)):
            return package.name
    return None


def _needs_ours(package):
    """[names] of each dependency of a package that a driver's packages alone can meet."""
    groups = []
    for group in (package.fields.get("Depends") or "").split(","):
        choices = {re.split(r"[ :(\[]", choice.strip(), maxsplit=1)[0] for choice in group.split("|")}
        if all(map(is_ours, choices)):
            groups.append(choices)
    return groups


def _ask(packages, remove, allow):
    """Ask apt what the removal would do, and judge it. Returns (changes, problems)."""
    if half_unpacked(packages):
        # apt will not remove what it wants to unpack again first, and there may be no archive any more: dpkg does.
        return _by_dpkg(packages, remove, allow)
    unhold = ["all_driver"] + [name.split(":")[0] for name in remove] + list(allow)
    answer = apt_query.simulate(remove=list(remove) + apt_changes.present_names(packages, allow), unhold=unhold)
    if not answer["ok"]:
        return [], [
            {
                "code": answer["code"],
                "message": "apt finds no way to remove the driver: %s" % answer["message"],
                "because": answer["because"],
                "hint": "repair apt first: provision diagnose names the cause, provision rescue without --purge repairs it",
            }
        ]
    essential = [p.name for p in packages if p.essential]
    return answer["changes"], judge(answer["changes"], remove, allow, essential, os.uname()[2])


def half_unpacked(packages):
    """Names of driver packages that dpkg was killed at while it unpacked them."""
    return [p.name for p in packages if p.present and p.flag == "reinstreq" and is_ours(p.name)]


def _by_dpkg(packages, remove, allow):
    """(changes, problems) of a removal by dpkg alone, which takes exactly the names that it is given."""
    native = apt_common.native_arch(packages)
    versions = {apt_common.selection_name(p, native): p.version for p in packages}
    also = apt_changes.present_names(packages, list(allow))
    changes = [
        {"action": "remove", "name": name, "version": None, "from_version": versions.get(name), "origin": None}
        for name in list(remove) + also
    ]
    needed = sorted(
        {p.name for p in packages if p.present and not is_ours(p.name) and p.name not in also and _needs_ours(p)}
    )
    extra = [dict(changes[0], name=name) for name in needed]
    return changes, judge(changes + extra, remove, allow, [p.name for p in packages if p.essential], os.uname()[2])


def judge(changes, remove, allow=(), essential=(), running_kernel=None):
    """Return the problems of apt's answer to a purge, as apt.query.judge does; an empty list means that it is exact.

    Besides what every transaction is held to, nothing may be installed or moved, and nothing but remove and allow may go.
    """
    may = {name.split(":")[0] for name in remove} | set(allow)
    problems, extra = [], []
    for change in changes:
        bare = change["name"].split(":")[0]
        if change["action"] != "remove":
            problems.append(
                _problem(
                    "purge.installs",
                    "apt would %s %s %s" % (change["action"], bare, change.get("version") or ""),
                    "a package that stays depends on a driver, and apt would install another driver for it",
                    "see which: apt-cache rdepends --installed %s; remove that first, if it is not needed" % bare,
                )
            )
        elif bare not in may:
            extra.append(bare)
        else:
            why = None if is_ours(bare) else apt_query.judge([change], may, None, (), {}, essential, running_kernel)
            problems += why or []
    if not extra:
        return problems
    protected = ["%s: %s" % (n, apt_query.protection(n, essential, running_kernel)) for n in extra]
    protected = [line for line in protected if not line.endswith("None")]
    code = "purge.protected" if protected else "purge.removes"
    because = protected + [
        "%s depends on the driver" % n for n in extra if not any(p.startswith(n + ":") for p in protected)
    ]
    return [
        _problem(
            code,
            "apt would remove %s too" % ", ".join(extra),
            because,
            "a purge removes only the driver; if these are not needed, remove them first (%ssudo apt-get remove %s), then purge"
            % (_keep_toolkits(extra), " ".join(extra)),
        )
    ] + problems


def _keep_toolkits(extra):
    """Command that keeps the toolkits of CUDA's metapackages, which a later autoremove would take otherwise."""
    versions = sorted({m.group(1) for m in (re.match(r"^cuda(?:-runtime)?-([0-9]+-[0-9]+)$", n) for n in extra) if m})
    return "sudo apt-mark manual %s && " % " ".join("cuda-toolkit-" + v for v in versions) if versions else ""


def _problem(code, message, because, hint):
    because = [because] if isinstance(because, str) else list(because)
    return {"code": code, "message": message.strip(), "because": because, "hint": hint}


# --- run


def run(snapshot, allow=(), expect=None, lock_timeout=600, timeout=3600, check=False, log_dir=apt_transaction.LOGS):
    """Purge. Returns {"changed", "done": [lines], "removed": [package names], "deleted": [paths], "left": [{"path", "why"}],
    "warnings": [lines], "snapshot"}. Raises AptError (also when apt's answer is refused; nothing was touched then).

    snapshot: id of the snapshot that what is deleted goes into. expect: names of packages that the plan showed; others
    would be refused with ``purge.moved``. A run that finds nothing to do does nothing.
    """
    if os.geteuid() != 0:
        raise AptError("purge.not_root", "a driver can be removed by root only", hint="become: true")
    # A run that was killed may have left its transaction at work: what that does is seen before anything is planned.
    apt_common.wait_for_locks(apt_common.DPKG_LOCKS, lock_timeout)
    found = plan(allow)
    if found["problems"]:
        first = found["problems"][0]
        raise AptError(
            first["code"],
            "refused before anything was changed: " + first["message"],
            because=first["because"] + [p["message"] for p in found["problems"][1:]],
            hint=first["hint"],
            problems=found["problems"],
        )
    unexpected = sorted(set(found["packages"]) - set(expect)) if expect is not None else []
    if unexpected:
        raise AptError(
            "purge.moved",
            "packages of a driver were installed since the plan: %s" % ", ".join(unexpected),
            hint="plan again",
        )
    work = _Purge(snapshot, found, allow, lock_timeout, timeout, log_dir)
    if check or found["nothing"]:
        return dict(work.answer(), changed=not found["nothing"], removed=found["packages"], deleted=found["files"])
    return work.run()


class _Purge(object):
    """One run, step by step; each looks at the host anew, so that a run that was interrupted is finished by the next."""

    def __init__(self, snapshot, found, allow, lock_timeout, timeout, log_dir):
        self.snapshot, self.found, self.allow = snapshot, found, list(allow)
        self.lock_timeout, self.timeout, self.log_dir = lock_timeout, timeout, log_dir
        self.tree = host_tree.HostTree("/")
        self.done, self.warnings, self.removed, self.deleted = [], [], [], []
        self.left, self.kernels = list(found["left"]), set(found["kernels"])

    def run(self):
        journal = self.begin()
        self.keep(self.found["files"])
        self.keep(self.found["aside"], "aside")
        self.uninstall()
        self.packages()
        self.configuration()
        self.dkms()
        self.files()
        self.refresh()
        self.protect(set(journal["autoremovable"]))
        rescue_snapshot.mark(self.snapshot)
        os.unlink(JOURNAL)
        return self.answer()

    def answer(self):
        return {
            "changed": bool(self.done),
            "done": self.done,
            "removed": self.removed,
            "deleted": self.deleted,
            "left": self.left,
            "warnings": self.warnings,
            "snapshot": self.snapshot,
        }

    def begin(self):
        """The journal says that the caches of loader, modules and initramfs may be behind, until the end."""
        if os.path.lexists(JOURNAL):
            self.done.append("continued an interrupted purge")
            lost = "nothing is left to autoremove, and every kernel's initramfs is rebuilt"
            journal = own_state.take(JOURNAL, {"autoremovable": [str], "kernels": [str]}, self.warnings, lost)
            if journal is None:
                journal = {"autoremovable": [], "kernels": self.tree.names("/lib/modules")}
                own_state.write(JOURNAL, journal)
            self.kernels |= set(journal["kernels"])
            return journal
        # Packages that the driver's own rows name: their kernels lose a module too.
        packages = [driver_names.parse(name) for name in self.found["packages"]]
        self.kernels |= {p.kernel for p in packages if p and p.kernel and os.path.isdir("/lib/modules/" + p.kernel)}
        journal = {"autoremovable": sorted(rescue_common.autoremovable()), "kernels": sorted(self.kernels)}
        own_state.write(JOURNAL, journal)
        return journal

    def keep(self, paths, kind="deleted"):
        out = rescue_snapshot.keep_files(self.snapshot, paths, kind=kind)["left_out"] if paths else []
        self.left += [{"path": row["path"], "why": "not in the snapshot: " + row["why"]} for row in out]
        return {row["path"] for row in out}

    def uninstall(self):
        path = rescue_traces.uninstaller(self.tree)
        if path is None:
            return
        argv = [path, "-s"] if path.endswith("nvidia-uninstall") else [path, "--uninstall", "-s"]
        result = apt_common.run(argv, UNINSTALL_S)
        if result.rc == 0:
            self.done.append("ran %s" % " ".join(argv))
            return
        said = result.text.strip().splitlines()[-3:]
        end = "did not end within %d s" % UNINSTALL_S if result.timed_out else "ended with %d" % result.rc
        self.warnings.append(
            "%s %s%s; its files are removed by name" % (path, end, ": " + " ".join(said) if said else "")
        )

    def packages(self):
        if not self.found["packages"]:
            return
        # The uninstaller and the clock may have changed what dpkg says: the names are read again.
        packages = apt_common.read_status()
        remove = select(packages)[0]
        also = apt_changes.present_names(packages, self.allow)
        if not remove and not also:
            return
        if half_unpacked(packages):
            self.by_dpkg(remove + also)
            return
        result = self.transaction(remove + also)
        self.removed = [change["name"] for change in result["changes"] if change["action"] == "remove"]
        self.warnings += result["warnings"]
        self.done.append("removed %d packages" % len(self.removed))

    def by_dpkg(self, remove):
        """Remove exactly these with dpkg; see half_unpacked."""
        apt_common.wait_for_locks(apt_common.DPKG_LOCKS, self.lock_timeout)
        rescue_common.command(["dpkg", "--force-hold", "--force-remove-reinstreq", "--remove"] + remove, self.timeout)
        self.removed = list(remove)
        self.done.append("removed %d packages, with dpkg alone: some were half unpacked" % len(remove))

    def transaction(self, remove):
        """Remove packages in one transaction. One whose own script for that fails is removed without it (G8)."""
        expect = _removals(self.found["changes"])
        for _ in range(len(remove) + 1):
            try:
                return apt_transaction.run(
                    {
                        "remove": remove,
                        "hold": False,
                        "expect": expect,
                        "lock_timeout": self.lock_timeout,
                        "timeout": self.timeout,
                    },
                    log_dir=self.log_dir,
                )
            except AptError as error:
                failed = removal_script(error.message)
                if failed is None or not self.set_aside(*failed):
                    raise
            # some are gone by now; the transaction itself refuses to take anything that is not named
            expect = None
        raise AptError(
            "apt.dpkg_failed", "the packages of the driver cannot be removed", hint="dpkg --audit names them"
        )

    def set_aside(self, name, script):
        """Put a maintainer script that fails into the snapshot instead of running it. False where it is not ours or gone."""
        if not is_ours(name):
            return False
        native = apt_common.native_arch(apt_common.read_status())
        bare, _, arch = name.partition(":")
        for path in ("%s/%s:%s.%s" % (_INFO, bare, arch or native, script), "%s/%s.%s" % (_INFO, bare, script)):
            if os.path.exists(path):
                self.keep([path])
                os.unlink(path)
                self.warnings.append("the %s of %s failed and was set aside: %s" % (script, name, path))
                return True
        return False

    def configuration(self):
        """dpkg --purge of exactly the rows of which only configuration is left; one that fails stays and is named."""
        config = select(apt_common.read_status())[1]
        purged, warnings = rescue_common.purge_configuration(config, self.lock_timeout)
        rest = [name for name in config if name not in purged and self.set_aside(name, "postrm")]
        if rest:
            more, warnings = rescue_common.purge_configuration(rest, self.lock_timeout)
            purged += more
        self.warnings += warnings
        if purged:
            self.done.append("purged the configuration of %d packages" % len(purged))

    def dkms(self):
        for name, version in rescue_traces.find(self.tree).dkms:
            tree = "/var/lib/dkms/%s/%s" % (name, version)
            kernels = [k for k in self.tree.names(tree) if os.path.isdir("/lib/modules/" + k)]
            self.kernels |= set(kernels)
            if rescue_common.has("dkms"):
                apt_common.run(["dkms", "remove", "%s/%s" % (name, version), "--all"], 300)
            # dkms itself leaves a tree whose source is gone, and there may be no dkms: the folder decides.
            if os.path.isdir(tree):
                shutil.rmtree(tree)
            for kernel in kernels:
                _drop(["/var/lib/dkms/%s/kernel-%s-%s" % (name, kernel, arch) for arch in ("x86_64", "aarch64")])
            self.done.append("removed the DKMS tree %s/%s" % (name, version))
        for name in rescue_traces.DKMS_NAMES:
            folder = "/var/lib/dkms/" + name
            if os.path.isdir(folder) and not os.listdir(folder):
                os.rmdir(folder)

    def files(self):
        found = rescue_traces.find(self.tree)
        self.kernels |= set(found.kernels)
        self.keep(found.files + found.links)
        lost = self.keep(found.aside, "aside")
        for path in found.files + found.links:
            os.unlink(path)
            self.deleted.append(path)
        for path in found.aside:
            if path in lost:
                own_files.rename(path, path + ".gpu-provision-disabled")
            else:
                os.unlink(path)
            self.deleted.append(path)
        for path in found.trees:
            shutil.rmtree(path)
            self.deleted.append(path + "/")
        if self.deleted:
            self.done.append("removed %d files and folders that no package owns" % len(self.deleted))
        if any(path.endswith(".service") for path in self.deleted):
            rescue_common.reload_units()

    def refresh(self):
        """What the loader, modprobe and the initramfs know of the driver; repeated after a cut, as the journal stood."""
        rescue_common.command(["ldconfig"], 120)
        rescue_common.list_modules(self.kernels)
        rescue_common.rebuild_initramfs()

    def protect(self, before):
        """Mark what only the driver had kept from autoremove: kernels, toolkits, CUDA, desktop (field report G8)."""
        packages = {p.name for p in apt_common.read_status() if p.present}
        now = rescue_common.autoremovable() - before
        keep = sorted(n for n in now & packages if apt_query.protection(n) or cuda_names.parse(n) is not None)
        if keep:
            rescue_common.command(["apt-mark", "manual"] + keep, 60)
            self.done.append("marked as manually installed, so that autoremove keeps them: %s" % ", ".join(keep))


def removal_script(message):
    """(package, prerm | postrm) of a failed transaction's message, where a script for removing failed; else None."""
    found = re.match(r"^(\S+) failed: its (pre|post)-removal script ", message)
    return (found.group(1), found.group(2) + "rm") if found else None


def _removals(changes):
    return [change for change in changes if change["action"] == "remove"]


def _drop(paths):
    for path in paths:
        if os.path.lexists(path):
            os.unlink(path)
