# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Keep a host's CDI specification current, and its GPUs known to systemd by their links in /dev/char.

No daemon-reload anywhere: it is what takes GPUs from running containers. systemd loads a new unit when it is started,
and finds links in multi-user.target.wants at the next boot.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

import os

from ansible_collections.gpu.provision.plugins.module_utils.containers import cdi_spec
from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files


def ensure_cdi(host):
    """Units that write the specification, the toolkit's where it has some, and a specification that fits the driver."""
    if not _has_toolkit(host, "will keep the CDI specification current"):
        return
    if containers_files.has_toolkit_units(host.tree):
        drop_units(host)
        units = list(containers_files.TOOLKIT_UNITS)
        folders = containers_files.VENDOR_UNITS
    else:
        for path, text in sorted(containers_files.CDI_UNITS.items()):
            host.write_own(path, text)
        units = [os.path.basename(path) for path in sorted(containers_files.CDI_UNITS)]
        folders = ("/etc/systemd/system",)
    for unit in units:
        target = next(("%s/%s" % (f, unit) for f in folders if host.tree.exists("%s/%s" % (f, unit))), None)
        fresh = _want(host, unit, target or "%s/%s" % (folders[0], unit))
        if unit.endswith(".path") and host.systemd and (fresh or host.unit_state(unit) != "active"):
            host.command(
                ["systemctl", "start", unit],
                "started " + unit,
                "containers.cdi_unit",
                "systemctl status %s says why" % unit,
            )
    _write_specs(host)


def _has_toolkit(host, message):
    """True when nvidia-ctk is there; in check mode it may be on its way, and message says what it will do."""
    if host.tree.exists(containers_files.CTK):
        return True
    if not host.check:
        host.fail(
            "containers.no_toolkit",
            "%s is not there" % containers_files.CTK,
            "install NVIDIA's container toolkit first: provision apply does both",
        )
    host.done.append(message)
    return False


def ensure_device_links(host):
    """The rule that makes links in /dev/char when the driver is loaded, and the links that are missing now."""
    # udevd takes up new rules by itself.
    host.write_own(containers_files.UDEV_RULE, containers_files.UDEV_TEXT)
    missing = containers_files.device_links_missing(host.tree)
    if not missing or not _has_toolkit(host, "will make links in /dev/char"):
        return
    host.command(
        [containers_files.CTK, "system", "create-dev-char-symlinks", "--create-all"],
        "made links in /dev/char for %s" % ", ".join(missing),
        "containers.device_links",
        "run it by hand with --dry-run: it says what it cannot make",
    )
    left = [] if host.check else containers_files.device_links_missing(host.tree)
    if left:
        host.fail(
            "containers.device_links",
            "%s still have no link in /dev/char" % ", ".join(left),
            "nvidia-ctk system create-dev-char-symlinks --create-all --dry-run says what it would make",
        )


def drop_units(host):
    """Our units go; the specification stays, since containers may be started with it."""
    for path in sorted(containers_files.CDI_UNITS):
        unit = os.path.basename(path)
        link = host.tree.real(containers_files.WANTS) + "/" + unit
        if os.path.islink(link):
            if host.systemd and unit.endswith(".path"):
                host.command(
                    ["systemctl", "stop", unit], None, "containers.cdi_unit", "systemctl status %s says why" % unit
                )
            if not host.check:
                os.unlink(link)
        host.remove_own(path)


def _want(host, unit, target):
    """Have a unit started at boot, without systemctl enable, which reloads; True when that is new."""
    link = host.tree.real(containers_files.WANTS) + "/" + unit
    if os.path.lexists(link):
        return False
    if not host.check:
        try:
            os.makedirs(os.path.dirname(link), 0o755, exist_ok=True)
            os.symlink(target, link)
        except OSError as error:
            wrong = own_files.FileError(link, "make", error)
            host.fail("containers.file", wrong.message, wrong.hint)
    host.done.append("will start %s at every boot" % unit)
    return True


def _write_specs(host):
    """Have every specification that does not fit the loaded driver written anew; without a driver there is nothing to say."""
    tree = host.tree
    version = cdi_spec.driver(tree)
    if not version:
        host.warn("no driver is loaded: the CDI specification is written when it is, by the unit")
        return
    outdated = cdi_spec.outdated(tree)
    for path, _ in outdated:
        before = tree.read(path)
        host.command(
            [containers_files.CTK, "cdi", "generate", "--output=" + path],
            None,
            "containers.cdi",
            "run it by hand: it says what of the driver it cannot find",
        )
        # Of a card that nvidia-ctk leaves out there is nothing to say, however often it is asked.
        if host.check or tree.read(path) != before:
            host.done.append("wrote %s for driver %s: %s" % (path, version, outdated[0][1]))
    if host.check or not outdated:
        return
    left = list(filter(None, (cdi_spec.stale(spec, version) for spec in cdi_spec.read(tree))))
    if left:
        host.fail(
            "containers.cdi",
            "the CDI specification was written and does not fit: %s" % left[0],
            "nvidia-smi says which driver runs; other specifications below /etc/cdi may be removed",
            left,
        )
