# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Load the NVIDIA module that is on the disk in place of the one that runs, without a reboot.

Nobody's work is ended for that: a process that holds a GPU and is not a service that may be stopped for a moment ends
the attempt, with its name. The driver's own daemons are stopped and started again; other services only on consent.
Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import re

from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree

# Part of the driver itself: they hold nothing that somebody else waits for. Source: NVIDIA's units, branches 470 to 620.
OWN_UNITS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service", "nvidia-powerd.service")
# A session on the screen ends with the service that started it. Source: names of the programs as the kernel cuts them.
DISPLAY = frozenset(
    [
        "Xorg",
        "Xwayland",
        "gnome-shell",
        "gdm-x-session",
        "gdm-wayland-ses",
        "sddm",
        "sddm-greeter",
        "lightdm",
        "kwin_x11",
        "kwin_wayland",
        "plasmashell",
        "mutter",
    ]
)
DISPLAY_UNIT = "display-manager.service"
_SECONDS = 60
# eight cards without persistence mode
_SMI_SECONDS = 90
# login.defs: ids of people start here
_FIRST_USER = 1000
_BUS_ID = re.compile(r"^(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$")
_NODE = re.compile(r"^/dev/nvidia")


def reload_nvidia(command, root="/", stop_holders=False, check=False):
    """Return (changed, lines). Raises AptError where it cannot be done; what ran before runs again then.

    command: aptcommon.run or its like. stop_holders: services beside the driver's own may be stopped for a moment.
    """
    tree = host_tree.HostTree(root)
    loaded, on_disk = tree.word("/sys/module/nvidia/version"), _on_disk(command)
    if on_disk is None:
        raise AptError(
            "module.not_on_disk",
            "the running kernel has no nvidia module to load",
            hint="it has to be installed or built first: provision plan says how",
        )
    if loaded is None:
        if check:
            return True, ["would load nvidia %s" % on_disk]
        _do(command, ["modprobe", "nvidia"])
        return True, ["loaded nvidia %s" % on_disk] + _wake(command, ["nvidia-persistenced.service"], start_only=True)
    if loaded == on_disk:
        return False, ["nvidia %s is loaded, as on the disk" % loaded]
    units, others = who_holds(tree)
    stop = [unit for unit in units if unit in OWN_UNITS or stop_holders]
    left = [words for unit, words in units.items() if unit not in stop] + others
    if left:
        more = "; --stop-holders stops these services for a moment" if any(u not in stop for u in units) else ""
        raise AptError(
            "module.in_use",
            "nvidia %s cannot be unloaded: it is in use" % loaded,
            because=left[:8],
            hint="wait for them or end them, or let the host reboot later" + more,
        )
    order = unload_order(modules(_do(command, ["lsmod"]).out))
    if check:
        return True, ["would load nvidia %s in place of %s" % (on_disk, loaded)]
    return True, _reload(command, order, _with_own(tree, stop), loaded, on_disk)


def reset(command, root, cards, check=False):
    """Reset cards one by one, and return (changed, lines). Raises AptError where one cannot be.

    nvidia-smi's own line goes to the kernel's log: drivers before 570 write no end of a reset there, and the errors of a card
    end with it (provision.parts.driver.xid).
    """
    odd = [bus_id for bus_id in cards if not _BUS_ID.match(bus_id)]
    if odd or not cards:
        raise AptError("rescue.usage", "%r is no address of a card" % (odd[0] if odd else ""))
    tree = host_tree.HostTree(root)
    units, others = who_holds(tree)
    left = [words for unit, words in units.items() if unit not in OWN_UNITS] + others
    if left:
        raise AptError("gpu.in_use", "no card is reset while GPUs are in use", left[:8], "wait for them or end them")
    if check:
        return True, ["would reset %s" % ", ".join(cards)]
    daemon = OWN_UNITS[0]
    stopped = [daemon] if daemon in units or _runs(tree, daemon) else []
    said = []
    try:
        for unit in stopped:
            _do(command, ["systemctl", "stop", unit])
        for bus_id in cards:
            result = command(["nvidia-smi", "--gpu-reset", "-i", bus_id], _SMI_SECONDS)
            lines = [line.strip() for line in result.text.splitlines() if line.strip()]
            done = [line for line in lines if "was successfully reset" in line]
            if result.rc != 0 or not done:
                hint = "a reboot resets every card; some boards reset all of their cards together only"
                if result.timed_out:
                    lines.append("nvidia-smi did not end within %d s" % _SMI_SECONDS)
                    hint = "a reboot resets every card; where that hangs too, the host has to be powered off and on"
                raise AptError("gpu.reset_failed", "%s cannot be reset" % bus_id, lines[-4:], hint)
            _log(tree, done[0])
            said.append("reset %s" % bus_id)
    finally:
        for unit in stopped:
            command(["systemctl", "start", unit], _SECONDS)
    return True, said


def _log(tree, line):
    """Write a line to the kernel's log; where that cannot be, the driver's own lines have to do."""
    try:
        with open(tree.real("/dev/kmsg"), "w") as log:
            log.write(line[:400] + "\n")
    except OSError:
        return


def _reload(command, order, stop, loaded, on_disk):
    stopped, gone = [], []
    try:
        for unit in stop:
            _do(command, ["systemctl", "stop", unit])
            stopped.append(unit)
        for name in order:
            _do(command, ["rmmod", name])
            gone.append(name)
    except AptError as error:
        _bring_back(command, gone, stopped)
        raise AptError(
            "module.in_use",
            "nvidia %s cannot be unloaded" % loaded,
            because=[error.message] + error.because,
            hint="something in the kernel holds it (a console, a display): only a reboot replaces it",
        ) from None
    try:
        _do(command, ["modprobe", "nvidia"])
    except AptError as error:
        _bring_back(command, [], stopped)
        raise AptError(
            "module.not_loaded",
            "nvidia %s does not load" % on_disk,
            because=[error.message] + error.because,
            hint="dmesg | grep -e NVRM -e nvidia says why",
        ) from None
    for name in reversed(order):
        if name != "nvidia":
            # one that is no more in the new driver is missed by nobody
            command(["modprobe", name], _SECONDS)
    said = ["loaded nvidia %s in place of %s" % (on_disk, loaded)]
    return said + _wake(command, stopped)


def _bring_back(command, gone, stopped):
    """After a failure: what was unloaded is loaded again, and the services run."""
    for name in reversed(gone):
        command(["modprobe", name], _SECONDS)
    for unit in stopped:
        command(["systemctl", "start", unit], _SECONDS)


def _wake(command, units, start_only=False):
    """Make the device nodes, as the first program that asks for a GPU does, and start services; returns lines."""
    command(["nvidia-smi", "-L"], _SMI_SECONDS)
    said = []
    for unit in units:
        if start_only and command(["systemctl", "cat", unit], _SECONDS).rc != 0:
            continue
        result = command(["systemctl", "start", unit], _SECONDS)
        said.append("started %s" % unit if result.rc == 0 else "%s does not start: journalctl -b -u %s" % (unit, unit))
    return said


def _with_own(tree, stop):
    """Units to stop: those named, and the driver's own that run without a file open at the moment."""
    return list(stop) + [unit for unit in OWN_UNITS if unit not in stop and _runs(tree, unit)]


def _runs(tree, unit):
    for base in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"):
        if tree.word("%s/system.slice/%s/cgroup.procs" % (base, unit)):
            return True
    return False


def who_holds(tree):
    """Return ({unit: words}, [words]): services that have a GPU open, and processes that are none.

    words: "nv-hostengine (pid 812, nvidia-dcgm.service)". A process of a person counts as work also inside a service.
    """
    units, others = {}, []
    init = tree.read("/proc/1/cgroup") or ""
    for pid in sorted((name for name in tree.names("/proc") if name.isdigit()), key=int):
        folder = "/proc/%s/fd" % pid
        if not any(_NODE.match(tree.link("%s/%s" % (folder, handle)) or "") for handle in tree.names(folder)):
            continue
        comm = tree.word("/proc/%s/comm" % pid)
        if not comm:
            # it has ended meanwhile
            continue
        unit = unit_of(tree.read("/proc/%s/cgroup" % pid) or "", init)
        person = _uid(tree.read("/proc/%s/status" % pid) or "") >= _FIRST_USER
        if comm in DISPLAY:
            unit, person = DISPLAY_UNIT, False
        if unit is None or person:
            others.append("%s (pid %s)" % (comm, pid))
        else:
            units.setdefault(unit, "%s (pid %s, %s)" % (comm, pid, unit))
    return units, others


def unit_of(text, init=""):
    """Name of the service that a /proc/PID/cgroup means; None for sessions, containers and jobs of a scheduler.

    init: /proc/1/cgroup, which says where this system's own groups begin (a container's begin below those of its machine).
    A scope, or what lies deeper than the service itself, is not the service's own process.
    """
    tops = {fields[0]: fields[2] for fields in map(_group, init.splitlines()) if fields}
    for fields in map(_group, text.splitlines()):
        if not fields:
            continue
        top = tops.get(fields[0], "").rpartition("/")[0]
        path = fields[2][len(top) :] if top and fields[2].startswith(top + "/") else fields[2]
        match = re.match(r"^/system\.slice/([^/]+\.service)$", path)
        if match:
            return match.group(1)
    return None


def _group(line):
    fields = line.split(":", 2)
    return fields if len(fields) == 3 else None


def _uid(status):
    match = re.search(r"^Uid:\s+([0-9]+)", status, re.M)
    return int(match.group(1)) if match else 0


def modules(text):
    """Parse lsmod: {name: [modules that use it]}."""
    found = {}
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 3:
            found[words[0]] = [name for name in (words[3] if len(words) > 3 else "").split(",") if name and name != "-"]
    return found


def unload_order(table, name="nvidia"):
    """Modules in the order in which they can be unloaded: what uses ``name``, directly or not, before it."""
    order = []

    def visit(module):
        if module in order or module not in table:
            return
        for user in table[module]:
            visit(user)
        order.append(module)

    visit(name)
    return order


def _on_disk(command):
    result = command(["modinfo", "-F", "version", "nvidia"], _SECONDS)
    return result.out.strip().splitlines()[0] if result.rc == 0 and result.out.strip() else None


def _do(command, argv):
    result = command(argv, _SECONDS)
    if result.rc != 0 or result.timed_out:
        said = [line for line in result.text.strip().splitlines() if line.strip()][-4:]
        raise AptError("rescue.command", "%s failed" % " ".join(argv), because=said)
    return result
