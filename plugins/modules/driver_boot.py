#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: driver_boot
short_description: Make the driver come up, now and at every boot
version_added: "0.1.0"
description:
  - Writes small files of its own (modprobe.d, modules-load.d, systemd drop-ins), rebuilds the initramfs of every kernel when
    asked, has units started at every boot, and, where no reboot is to come, loads the modules and starts the units.
  - One module for all of it, so that a host is asked once. What is as it should be is not changed.
options:
  build:
    description: Kernel releases for which DKMS is to build its modules.
    type: list
    elements: str
    default: []
  files:
    description: Files to write, each with C(path) and C(content); 0644, owned by root.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path of the file.
        type: path
        required: true
      content:
        description: What is in it.
        type: str
        required: true
  initramfs:
    description:
      - Rebuild the initramfs of every kernel. nouveau is loaded from there, before modprobe.d of the root file system
        counts.
    type: bool
    default: false
  modules:
    description: Modules of the kernel that units need, loaded before them.
    type: list
    elements: str
    default: []
  units:
    description: Units that must run.
    type: list
    elements: str
    default: []
  restart:
    description: Units among them that run and do not do their work, as a persistence daemon whose mode was switched off.
    type: list
    elements: str
    default: []
  start:
    description: Load the module and start the units now. Set to false when a reboot follows.
    type: bool
    default: true
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: Shows the files before and after.
    support: full
author: the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Keep nouveau away and have persistence at every boot
  gpu.provision.driver_boot:
    files:
      - path: /etc/modprobe.d/gpu-provision.conf
        content: |
          blacklist nouveau
    initramfs: true
    units: [nvidia-persistenced]
"""

RETURN = r"""
done:
  description: What was done (in check mode, what would be), in order.
  returned: success
  type: list
  elements: str
  sample: [wrote /etc/modprobe.d/gpu-provision.conf, rebuilt every initramfs, loaded nvidia, started nvidia-persistenced]
"""

import os

from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule

WANTS = "/etc/systemd/system/multi-user.target.wants"


class DriverBoot(object):
    """One run: every step says what it did and does nothing where all is well."""

    def __init__(self, module):
        self.module, self.done, self.diff, self.restart = module, [], [], set()

    def run(self):
        params = self.module.params
        self.restart |= set(params["restart"])
        unit_files = [self.write(item["path"], item["content"]) for item in params["files"]]
        for kernel in params["build"]:
            self.command(["dkms", "autoinstall", "-k", kernel], "built the modules for %s" % kernel)
        if params["initramfs"]:
            self.rebuild_initramfs()
        systemd = os.path.isdir("/run/systemd/system")
        linked = [self.start_at_boot(unit) for unit in params["units"]] if systemd else []
        if systemd and (any(linked) or any(unit_files)):
            self.command(["systemctl", "daemon-reload"], None)
        if params["start"]:
            self.load()
            for name in params["modules"]:
                if not os.path.isdir("/sys/module/" + name):
                    self.command(["modprobe", name], "loaded " + name)
            for unit in params["units"] if systemd else []:
                self.start(unit)
        self.module.exit_json(changed=bool(self.done), done=self.done, diff=self.diff)

    def write(self, path, content):
        """Write a file where it differs; returns True when it is part of a unit and changed."""
        data = content.encode("utf-8")
        try:
            if not own_files.needs_write(path, data):
                return False
            before = own_files.read(path)
            if not self.module.check_mode:
                own_files.write(path, data)
        except own_files.FileError as error:
            self.fail("boot.file", error.message, error.hint)
        self.done.append("wrote " + path)
        self.diff.append(
            {"before_header": path, "after_header": path, "before": own_files.show(before), "after": content}
        )
        folder = os.path.basename(os.path.dirname(path))
        if folder.endswith(".service.d"):
            self.restart.add(folder[: -len(".service.d")])
            return True
        return False

    def rebuild_initramfs(self):
        # Ubuntu up to 25.04 has initramfs-tools; from 25.10 on dracut is the default and may lack the wrapper.
        if self.module.get_bin_path("update-initramfs"):
            self.command(["update-initramfs", "-u", "-k", "all"], "rebuilt every initramfs")
        elif self.module.get_bin_path("dracut"):
            self.command(["dracut", "--regenerate-all", "--force"], "rebuilt every initramfs")
        else:
            self.fail(
                "boot.no_initramfs_tool",
                "neither update-initramfs nor dracut is installed",
                "install initramfs-tools, or rebuild the initramfs as this system does",
            )

    def start_at_boot(self, unit):
        """Have a unit started at boot, static ones too; returns True when that is new."""
        link = "%s/%s.service" % (WANTS, unit)
        if os.path.lexists(link):
            return False
        self.command(
            ["systemctl", "add-wants", "multi-user.target", unit + ".service"], "will start %s at every boot" % unit
        )
        return True

    def load(self):
        if os.path.exists("/proc/driver/nvidia/version"):
            return
        self.command(["modprobe", "nvidia"], "loaded nvidia")

    def start(self, unit):
        rc = self.module.run_command(["systemctl", "is-active", "--quiet", unit])[0]
        if rc == 0 and unit not in self.restart:
            return
        verb, word = ("restart", "restarted ") if rc == 0 else ("start", "started ")
        self.command(["systemctl", verb, unit], word + unit)

    def command(self, argv, done):
        """Run a command that changes something; fails with its own message."""
        if done:
            self.done.append(done)
        if self.module.check_mode:
            return
        rc, out, err = self.module.run_command(argv)
        if rc != 0:
            said = (err or out).strip().splitlines()
            self.fail(
                "boot.command_failed",
                "%s failed: %s" % (" ".join(argv), said[-1] if said else "exit code %d" % rc),
                self.hint(argv),
                said[-8:],
            )

    def hint(self, argv):
        if argv[0] == "dkms":
            return (
                "the newest make.log below /var/lib/dkms/nvidia has the compiler's words; kernel and driver may not fit"
            )
        if argv[0] == "modprobe" and argv[1] != "nvidia":
            return "apt-get install linux-modules-extra-%s, where it is not there" % os.uname()[2]
        if argv[0] == "modprobe":
            return "dmesg | grep -e NVRM -e nvidia says why; provision verify names what is missing"
        if argv[0] == "systemctl":
            return "journalctl -b -u %s says why" % argv[-1]
        return "check free space in /boot and run it by hand"

    def fail(self, code, message, hint, because=()):
        self.module.fail_json(
            msg=message, code=code, because=list(because), hint=hint, done=self.done, changed=bool(self.done)
        )


def main():
    DriverBoot(
        HostModule(
            argument_spec={
                "build": {"type": "list", "elements": "str", "default": []},
                "files": {
                    "type": "list",
                    "elements": "dict",
                    "default": [],
                    "options": {
                        "path": {"type": "path", "required": True},
                        "content": {"type": "str", "required": True},
                    },
                },
                "initramfs": {"type": "bool", "default": False},
                "modules": {"type": "list", "elements": "str", "default": []},
                "units": {"type": "list", "elements": "str", "default": []},
                "restart": {"type": "list", "elements": "str", "default": []},
                "start": {"type": "bool", "default": True},
            },
            supports_check_mode=True,
        )
    ).run()


if __name__ == "__main__":
    main()
