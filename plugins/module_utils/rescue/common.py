# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What purge and undo share: commands that must work, and what has to be made anew after files and packages changed.

Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import os
import shutil

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError


def has(program):
    """True when a program is there: a container has no depmod and no initramfs, a host may have dracut."""
    return shutil.which(program, path=apt_common.environment()["PATH"]) is not None


def command(argv, timeout):
    """Run a command that must work; AptError ``rescue.command_failed`` with its own message where it does not."""
    result = apt_common.run(argv, timeout)
    if result.rc != 0 or result.timed_out:
        said = result.text.strip().splitlines()[-5:]
        end = "did not end within %d s" % timeout if result.timed_out else "exit code %d" % result.rc
        raise AptError(
            "rescue.command_failed",
            "%s failed: %s" % (" ".join(argv), said[-1] if said else end),
            because=said,
            hint="check free space with df -h /boot /; the next run continues from here",
        )


def rebuild_initramfs():
    """Rebuild the initramfs of every kernel, by the tool that this release has; nothing where it has none."""
    if has("update-initramfs"):
        command(["update-initramfs", "-u", "-k", "all"], 1800)
    elif has("dracut"):
        command(["dracut", "--regenerate-all", "--force"], 1800)


def list_modules(kernels):
    """depmod for those of the releases that are there."""
    for kernel in sorted(kernels):
        if has("depmod") and os.path.isdir("/lib/modules/" + kernel):
            command(["depmod", kernel], 300)


def reload_units():
    """systemctl daemon-reload where systemd runs."""
    if os.path.isdir("/run/systemd/system"):
        command(["systemctl", "daemon-reload"], 60)


def purge_configuration(rows, lock_timeout):
    """dpkg --purge of names of which only configuration is left. Returns (purged, [warning]).

    A vendor's postrm that ends with an error (field report G8) leaves its row; nothing of it runs any more.
    """
    purged, warnings = [], []
    for name in rows:
        apt_common.wait_for_locks(apt_common.DPKG_LOCKS, lock_timeout)
        result = apt_common.run(["dpkg", "--purge", name], 300)
        if result.rc == 0:
            purged.append(name)
        else:
            said = (result.text.strip().splitlines() or [""])[-1]
            warnings.append("the configuration of %s stays: its script failed: %s" % (name, said))
    return purged, warnings


def autoremovable():
    """Names that ``apt-get autoremove`` would take now; nothing is removed. Empty where apt cannot say."""
    result = apt_common.run(["apt-get"] + apt_common.option_args() + ["-s", "autoremove"], 120)
    if result.rc != 0:
        return set()
    changes = apt_query.parse_simulation(result.out)
    return {change["name"].split(":")[0] for change in changes if change["action"] == "remove"}
