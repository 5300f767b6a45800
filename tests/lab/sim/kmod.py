"""modprobe, rmmod, lsmod and dmesg of a host whose real kernel has no such modules."""

from __future__ import annotations

import os
import shutil
import sys

from . import nvidia, state
from .modprobe_conf import blacklisted
from .nvidia import CannotLoad

SUFFIXES = (".ko", ".ko.zst", ".ko.xz", ".ko.gz")


def find(name, release):
    """Path of a module in /lib/modules/RELEASE, ``updates`` before the rest as depmod searches; None when absent."""
    top = "/lib/modules/" + release
    wanted = name.replace("-", "_")
    hits = []
    for folder, _, files in os.walk(top):
        for file in files:
            if file.endswith(SUFFIXES) and file.partition(".ko")[0].replace("-", "_") == wanted:
                hits.append(os.path.join(folder, file))
    return min(hits, key=lambda path: (not path.startswith(top + "/updates"), path), default=None)


def load(name):
    """Load one module with what it needs; raises CannotLoad or LookupError (not on disk)."""
    name = name.replace("-", "_")
    modules = state.loaded()
    if name in modules:
        return
    release = state.release()
    path = find(name, release)
    if path is None:
        raise LookupError(name)
    info = state.modinfo(path)
    for needed in filter(None, info.get("depends", "").split(",")):
        load(needed)
    if info.get("vermagic", release).split()[0] != release:
        state.log(
            "%s: version magic '%s' should be '%s SMP preempt mod_unload modversions '"
            % (name, info["vermagic"], release)
        )
        raise CannotLoad("Exec format error")
    nvidia.check_signature(info)
    flavour = "open" if "GPL" in info.get("license", "") else "proprietary"
    version = info.get("version", "")
    if name == "nvidia":
        nvidia.attach(version, flavour, nvidia.probe(version, flavour))
    elif name == "nouveau":
        _nouveau()
    modules = state.loaded()
    modules[name] = {"version": version, "flavour": flavour, "path": path}
    state.set_loaded(modules)
    folder = "%s/sys-module/%s" % (state.RUN, name)
    state.write(folder + "/initstate", "live\n")
    state.write(folder + "/refcnt", "0\n")
    state.write(folder + "/coresize", "16384\n")
    if version:
        state.write(folder + "/version", version + "\n")
    if info.get("srcversion"):
        state.write(folder + "/srcversion", info["srcversion"] + "\n")
    state.write(folder + "/taint", {"nvidia": "OE" if flavour == "open" else "POE"}.get(name, "") + "\n")
    os.makedirs(folder + "/holders", exist_ok=True)
    for needed in filter(None, info.get("depends", "").split(",")):
        holders = "%s/sys-module/%s/holders/%s" % (state.RUN, needed.replace("-", "_"), name)
        os.makedirs(holders, exist_ok=True)
    _proc_modules()
    if name == "nvidia":
        for dependent in nvidia.DEPENDENTS:
            if find(dependent, release):
                load(dependent)


def unload(name):
    """Remove one module; raises CannotLoad with what the tools print after 'Module NAME '."""
    name = name.replace("-", "_")
    modules = state.loaded()
    if name not in modules:
        raise LookupError(name)
    holders = "%s/sys-module/%s/holders" % (state.RUN, name)
    by = sorted(os.listdir(holders)) if os.path.isdir(holders) else []
    if by:
        raise CannotLoad("is in use by: " + " ".join(by))
    used = nvidia.users() if name.startswith("nvidia") else {}
    if name == "nouveau" and state.host().get("desktop"):
        raise CannotLoad("is in use")
    if used:
        raise CannotLoad("is in use")
    del modules[name]
    state.set_loaded(modules)
    shutil.rmtree("%s/sys-module/%s" % (state.RUN, name))
    for other in modules:
        link = "%s/sys-module/%s/holders/%s" % (state.RUN, other, name)
        if os.path.isdir(link):
            os.rmdir(link)
    if name == "nvidia":
        nvidia.detach()
    elif name == "nouveau":
        for gpu in state.host()["gpus"]:
            if nvidia.bound_to(gpu["slot"]) == "nouveau":
                nvidia.bind(gpu["slot"], None)
    _proc_modules()


def _nouveau():
    took = 0
    for gpu in state.host()["gpus"]:
        if nvidia.bound_to(gpu["slot"]) is None:
            nvidia.bind(gpu["slot"], "nouveau")
            state.log("nouveau %s: NVIDIA %s" % (gpu["slot"], gpu.get("chip", "GPU")))
            took += 1
    if not took:
        raise CannotLoad("No such device")


def _proc_modules():
    lines = []
    for name in reversed(list(state.loaded())):
        holders = "%s/sys-module/%s/holders" % (state.RUN, name)
        by = sorted(os.listdir(holders)) if os.path.isdir(holders) else []
        lines.append("%s 16384 %d %s Live 0x0000000000000000\n" % (name, len(by), "".join(h + "," for h in by) or "-"))
    state.write(state.RUN + "/proc-modules", "".join(lines))


def modprobe(argv):
    """modprobe [-r] [-a] [-q] [-n] [-b] NAME…; what only shows something goes to the real program."""
    shows = {"-c", "--showconfig", "--show-depends", "-R", "--resolve-alias", "--dump-modversions", "-V", "--version"}
    if shows.intersection(argv):
        os.execv("/usr/sbin/modprobe.real", ["modprobe", *argv])  # noqa: S606 - becomes the real program
    flags = {flag for flag in argv if flag.startswith("-")}
    letters = "".join(flag[1:] for flag in flags if not flag.startswith("--"))
    remove, quiet = "r" in letters or "--remove" in flags, "q" in letters or "--quiet" in flags
    dry = "n" in letters or "--dry-run" in flags
    several = remove or "a" in letters or "--all" in flags
    honour_blacklist = "b" in letters or "--use-blacklist" in flags
    names = [word for word in argv if not word.startswith("-") and "=" not in word]
    rc = 0
    for name in names if several else names[:1]:
        name = name.replace("-", "_")
        try:
            if remove:
                unload(name)
            elif dry and find(name, state.release()) is None:
                raise LookupError(name)
            elif not dry and not (honour_blacklist and name in blacklisted()):
                fresh = "nvidia" not in state.loaded()
                load(name)
                if fresh and "nvidia" in state.loaded():
                    nvidia.start_services()
        except LookupError:
            if remove:
                message = "" if name in _on_disk() else "FATAL: Module %s not found." % name
                rc = rc if not message else 1
            else:
                message, rc = ("FATAL: Module %s not found in directory /lib/modules/%s" % (name, state.release()), 1)
            if message and not quiet:
                print("modprobe: " + message, file=sys.stderr)
        except CannotLoad as problem:
            text = (
                "FATAL: Module %s %s." % (name, problem)
                if remove
                else "ERROR: could not insert '%s': %s" % (name, problem)
            )
            print("modprobe: " + text, file=sys.stderr)
            rc = 1
    return rc


def _on_disk():
    names = set()
    for _, _, files in os.walk("/lib/modules/" + state.release()):
        names.update(file.partition(".ko")[0].replace("-", "_") for file in files if file.endswith(SUFFIXES))
    return names


def rmmod(argv):
    rc = 0
    for name in (word for word in argv if not word.startswith("-")):
        try:
            unload(name)
        except LookupError:
            print("rmmod: ERROR: Module %s is not currently loaded" % name, file=sys.stderr)
            rc = 1
        except CannotLoad as problem:
            print("rmmod: ERROR: Module %s %s" % (name, problem), file=sys.stderr)
            rc = 1
    return rc


def lsmod(argv):
    print("Module                  Size  Used by")
    for line in (state.read(state.RUN + "/proc-modules") or "").splitlines():
        name, size, count, by = line.split()[:4]
        print("%-19s %8s  %s %s" % (name, size, count, by.rstrip(",").replace("-", "")))
    return 0


def dmesg(argv):
    print(state.read(state.LOG) or "")
    return 0
