# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""A host as the rescue at its console sees it: the probe's facts, what is right, and what is wrong by diagnose's codes.

Reads only. Whether a driver came from outside apt is decided here with the places that the probe does not look into
(/opt, /usr/local/nvidia without an entry of the loader): no controller can be asked. Standard library only, Python 3.8.
"""

from __future__ import annotations

import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import dpkg_logs, dpkg_state
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names, host_tree
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from ansible_collections.gpu.provision.plugins.module_utils.rescue import purge as rescue_purge
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot
from ansible_collections.gpu.provision.plugins.module_utils.rescue import traces as rescue_traces

# Where images and operators put a driver that apt does not own; a star stands for one folder.
_LIBRARIES = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/local/lib", "/opt/lib64", "/opt/*/lib64")
_LIBRARIES += ("/opt/*/lib", "/run/nvidia/driver/usr/lib/*")
_PROGRAMS = ("/opt/bin", "/opt/*/bin", "/run/nvidia/driver/usr/bin")
_CONTAINER = "/run/nvidia/driver"
# CUDA's forward compatibility and the stubs that programs are linked with are no driver.
_NO_DRIVER = re.compile(r"/compat[^/]*/|/stubs/")
_CONFLICT = "Conflicting values"
# the next initramfs is written beside the old one
BOOT_BYTES = 64 << 20


class State(object):
    """One look at a host. root: a folder that stands for ``/``; run: as the probe takes it."""

    def __init__(self, root="/", run=None):
        self.root, self._run, self._works = root, run, None
        self.tree = host_tree.HostTree(root)
        self.facts = probe_facts.collect_all(root, run)
        self.packages = apt_common.read_status(self.tree.real(apt_common.DPKG_STATUS))
        self._read_boot()
        self._read_packages()
        self.loaded = (self.facts["module"]["loaded"] or {}).get("version") or ""
        self.nouveau = any(gpu["driver"] == "nouveau" for gpu in self.facts["gpus"])
        self.library_path = self._library()
        target = self.tree.resolve(self.library_path) if self.library_path else ""
        version = re.search(r"\.so\.([0-9]+\.[0-9.]+)$", target)
        self.library = version.group(1) if version else ""
        # The loader's cache may say /lib for /usr/lib.
        self.usual = os.path.dirname(target) in rescue_traces.LIBRARY_FOLDERS
        self.smi = self.facts["smi"]["path"] or self._first(_PROGRAMS, "nvidia-smi")
        self.outside = self._outside()

    def _read_boot(self):
        kernels = self.facts["kernels"]
        self.running = kernels["running"]
        self.next = kernels["next"] or self.running
        row = next((row for row in kernels["installed"] if row["release"] == self.next), {})
        self.headers, self.no_initramfs = bool(row.get("headers")), bool(row.get("image")) and not row.get("initrd")
        self.module = next((row for row in self.facts["module"]["on_disk"] if row["kernel"] == self.next), None)
        self.unsigned = bool(self.module and self.facts["secure_boot"]["enabled"] and not self.module["signed"])

    def _read_packages(self):
        native = apt_common.native_arch(self.packages)
        ours = [p for p in self.packages if rescue_purge.is_ours(p.name)]
        self.driver = [p for p in ours if p.present]
        self.removed = [p.name for p in ours if p.state == "config-files"]
        self.unfinished = [p for p in self.packages if p.unfinished]
        self.absent_holds = [p.name for p in ours if p.held and not p.present]
        locked = [p for p in self.driver if driver_names.is_version_locked(p.name)]
        self.locked = sorted(apt_common.selection_name(p, native) for p in locked)
        self.versions = sorted({driver_names.upstream(p.version) for p in locked if p.version})
        # Companions (libxnvctrl0, nvidia-settings) and the fabric's programs alone make no driver.
        self.core = [p.name for p in self.driver if _makes_a_driver(p.name)]
        # What these need, and a removal by force took: apt brings it only where it is named.
        unmet = [row for row in dpkg_state.unmet(dpkg_state.read(self.tree)[0]) if rescue_purge.is_ours(row["name"])]
        needed = {re.split(r"[ :(|]", row["needs"], maxsplit=1)[0] for row in unmet if row["found"] is None}
        self.lost = sorted(filter(rescue_purge.is_ours, needed))
        self.has_dkms = any(p.name.startswith("nvidia-dkms") for p in self.driver)

    def _library(self):
        """Path of the library that programs get: by the loader, else where drivers from outside apt lie."""
        known = {row["soname"]: row["path"] for row in self.facts["libraries"]}
        given = os.environ.get("LD_LIBRARY_PATH", "").split(":") if self.tree.live else []
        for soname in ("libnvidia-ml.so.1", "libcuda.so.1"):
            first = self._first([folder for folder in given if folder.startswith("/")], soname)
            path = first or known.get(soname) or self._first(_LIBRARIES, soname)
            if path:
                return path
        return ""

    def _first(self, folders, name):
        for folder in folders:
            before, star, after = folder.partition("*")
            inner = self.tree.names(before.rstrip("/")) if star else [""]
            for path in ("%s%s%s/%s" % (before, one, after, name) for one in inner):
                if self.tree.exists(path) and not _NO_DRIVER.search(path + "/"):
                    return path
        return ""

    def works(self):
        """True where the loaded module is of the libraries' version and nvidia-smi answers."""
        if self._works is None:
            self._works = bool(self.loaded and self.loaded == self.library and self.smi) and self._answers()
        return self._works

    def _answers(self):
        if self.usual and self.smi == self.facts["smi"]["path"]:
            return self.facts["smi"]["rc"] == 0
        # The real one fails where the loader does not find its library.
        argv = ["env", "LD_LIBRARY_PATH=" + os.path.dirname(self.library_path), self.smi]
        if self._run is not None:
            return self._run(argv, 120)[0] == 0
        return self.tree.live and apt_common.run(argv, 120).rc == 0

    def _owner(self, path):
        real = self.tree.resolve(path)
        return rescue_traces.owners(self.tree, [real]).get(real)

    def _outside(self):
        """What shows that the driver here is not apt's; empty where it is, or where there is none."""
        found = []
        uninstaller = self.facts["runfile"]["uninstaller"]
        if uninstaller:
            found.append("%s of a .run file" % uninstaller)
        if self.library_path and self._owner(self.library_path) is None:
            # Beside apt's driver, a library in apt's own folder may be a leftover; where the whole works, it is the driver.
            if not self.core or not self.usual or self.works():
                found.append("%s of no package" % self.library_path)
        elif self.library_path and not self.core:
            found.append("%s of a package that is none of the driver's" % self.library_path)
        if self.loaded and not self.core:
            if self.smi and self._owner(self.smi) is None:
                found.append("%s of no package" % self.smi)
            if self.module is None and not self._was_removed():
                found.append("module %s, loaded from nowhere on this disk" % self.loaded)
        return found

    def _was_removed(self):
        """Did apt remove a driver here? Then a loaded module is what it left in memory."""
        if self.removed or rescue_snapshot.Host(self.root).unfinished():
            return True
        changes = (
            change
            for row in dpkg_logs.transactions(dpkg_logs.history(self.tree))
            for change in row["changes"]
            if change["action"] in ("remove", "purge")
        )
        return any(rescue_purge.is_ours(change["name"]) for change in changes)

    def elsewhere(self):
        """Parts of a driver from outside apt that a purge does not reach: it knows the places of packages and .run files."""
        found = []
        if self.library_path and not self.usual and self._owner(self.library_path) is None:
            found.append(self.library_path)
        if self.smi and os.path.dirname(self.smi) not in ("/usr/bin", "/bin") and self._owner(self.smi) is None:
            found.append(self.smi)
        if self.tree.is_dir(_CONTAINER + "/usr"):
            found.append(_CONTAINER)
        return found

    def right_on_disk(self):
        """The kernel that boots next has a module of the libraries' version, and dpkg is done with the driver."""
        if not self.module or not self.library or self.module["version"] != self.library or self.unsigned:
            return False
        return not any(rescue_purge.is_ours(p.name) for p in self.unfinished)

    def right_now(self):
        """What brings a driver from outside apt need not lie on this disk: that it works is all that can be asked."""
        return (bool(self.outside) or (self.right_on_disk() and self.running == self.next)) and self.works()

    def apt_errors(self):
        """(errors of entries that contradict each other, other errors), as apt prints them."""
        errors = self.facts["apt"]["errors"]
        return [e for e in errors if e.startswith(_CONFLICT)], [e for e in errors if not e.startswith(_CONFLICT)]

    def lines(self):
        """What the host is, for people."""
        module = self.module["version"] if self.module else None
        return [
            "Kernel:  %s runs, %s boots next" % (self.running, self.next),
            "Driver:  libraries %s, module for %s %s, loaded %s"
            % (self.library or "none", self.next, module or "none", self.loaded or "none"),
        ]

    def notes(self):
        """What is no finding and explains why nothing is done, a line each."""
        if not self.outside:
            return []
        lines = [] if self.core else ["this driver came from outside apt: " + ", ".join(self.outside)]
        if self.works():
            lines.append("it works: module and libraries are %s, nvidia-smi answers" % self.library)
        return lines

    def findings(self):
        """[(code, message)] of what is wrong, by the codes of ``provision diagnose --explain CODE``."""
        found = []
        if not self.facts["gpus"]:
            found.append(
                ("gpus.missing", "no NVIDIA GPU is on the PCI bus: check the card, its power and the firmware")
            )
        if self.unfinished:
            names = " ".join(p.name for p in self.unfinished)
            found.append(("dpkg.unfinished", "dpkg was interrupted or failed at: %s" % names))
        if self.absent_holds:
            text = "holds on packages that are not installed make installations fail: %s" % " ".join(self.absent_holds)
            found.append(("holds.not_installed", text))
        conflicts, malformed = self.apt_errors()
        found += [("apt.signed_by_conflict", "apt reads nothing: %s" % "; ".join(conflicts))] if conflicts else []
        found += (
            [("apt.malformed_source", "apt cannot read its sources: %s" % "; ".join(malformed))] if malformed else []
        )
        if self.outside and self.core:
            text = "a driver from outside apt (%s) and apt's packages overwrite each other" % ", ".join(self.outside)
            found.append(("driver.two_installers", text))
        if len(self.versions) > 1:
            text = "packages of the driver have different versions: %s" % " ".join(self.versions)
            found.append(("driver.mixed_versions", text))
        return found + self._of_the_driver() + self._of_the_boot()

    def _of_the_driver(self):
        found = []
        if not self.library and self.outside:
            found.append(("driver.library_missing", "no library of the driver is in the loader's folders"))
        elif not self.library and self.core:
            text = "packages of the driver are there, its libraries are not: %s"
            found.append(("driver.library_missing", text % (" ".join(self.lost) or "removed by hand")))
        elif not self.library:
            found.append(("driver.missing", "no driver is installed"))
        elif self.module is None:
            # What brings a module from outside apt at boot is known to whoever installed it.
            if not (self.outside and self.loaded and self.running == self.next):
                text = "kernel %s has no nvidia module: after a reboot there is no GPU" % self.next
                found.append(("kernel.no_module_for_next_boot", text))
                if self.has_dkms and not self.headers:
                    text = "linux-headers-%s is not there, so DKMS cannot build the module" % self.next
                    found.append(("kernel.headers_missing", text))
        elif self.module["version"] != self.library:
            text = "the module for %s is %s, the libraries are %s"
            text = text % (self.next, self.module["version"] or "of no version", self.library)
            found.append(("kernel.module_version", text))
        elif self.unsigned:
            text = "Secure Boot is on and %s is not signed" % self.module["path"]
            found.append(("secureboot.unsigned_module", text))
        if self.library and not self.loaded:
            found.append(("driver.not_loaded", "the nvidia module is not loaded"))
        elif self.library and self.loaded != self.library:
            text = "module %s is loaded, the libraries are %s: a reboot fixes that" % (self.loaded, self.library)
            found.append(("driver.stale_module", text))
        return found

    def _of_the_boot(self):
        found = [("nouveau.still_loaded", "nouveau has the GPUs")] if self.nouveau else []
        free = {row["path"]: row["free"] for row in self.facts["disks"]}.get("/boot")
        if free is not None and free < BOOT_BYTES:
            text = "less than 64 MiB are free for /boot: remove a kernel that is not %s or %s by its exact name"
            found.append(("disk.boot_full", text % (self.running, self.next)))
        if self.no_initramfs:
            text = "/boot/initrd.img-%s is not there: kernel %s would not find its disks" % (self.next, self.next)
            found.append(("boot.initramfs_broken", text))
        return found


def _makes_a_driver(name):
    package = driver_names.parse(name)
    if package is None:
        # of before 2018
        return True
    if package.base.startswith(("linux-modules", "linux-objects")):
        return True
    fabric = package.base in driver_names.FABRIC or package.base == "cuda-drivers-fabricmanager"
    return driver_names.is_version_locked(name) and not fabric
