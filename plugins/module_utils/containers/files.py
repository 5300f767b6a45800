# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The files of ours around containers: units that keep the CDI specification current, the rule for /dev/char.

Runs on hosts: standard library only, any Python from 3.8.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.lib import own_state

UDEV_RULE = "/etc/udev/rules.d/71-gpu-provision-nvidia-dev-char.rules"
CDI_SERVICE = "/etc/systemd/system/gpu-provision-cdi.service"
CDI_PATH = "/etc/systemd/system/gpu-provision-cdi.path"
WANTS = "/etc/systemd/system/multi-user.target.wants"
PENDING = "/run/gpu-provision/container-runtime.json"
MARKS = {str: {"started": (None, int, float, str), "keys": (None, [str])}}
BACKUP = own_state.FOLDER + "/backup"
CTK = "/usr/bin/nvidia-ctk"
# The toolkit's own units, from 1.18 on (source: deployments/systemd in NVIDIA's nvidia-container-toolkit).
TOOLKIT_UNITS = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
VENDOR_UNITS = ("/usr/lib/systemd/system", "/lib/systemd/system")

# Source: NVIDIA's documentation, container-toolkit/troubleshooting, "Containers losing access to GPUs".
UDEV_TEXT = """\
# written by gpu-provision
# systemd knows devices by their names in /dev/char: without these a reload takes the GPUs from running containers.
ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="/usr/bin/nvidia-ctk system create-dev-char-symlinks --create-all"
"""

SERVICE_TEXT = """\
# written by gpu-provision
[Unit]
Description=Write the CDI specification of NVIDIA's GPUs
ConditionPathExists=/usr/bin/nvidia-ctk
After=nvidia-persistenced.service

[Service]
Type=oneshot
# A driver that is on the disk and not loaded yet has nothing to say: the next boot asks again.
ExecCondition=/usr/bin/test -e /proc/driver/nvidia/version
ExecStart=/usr/bin/nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml

[Install]
WantedBy=multi-user.target
"""

PATH_TEXT = """\
# written by gpu-provision
[Unit]
Description=Write the CDI specification anew when a driver is installed

[Path]
PathChanged=/lib/modules/%v/modules.dep
PathChanged=/usr/bin/nvidia-ctk
Unit=gpu-provision-cdi.service

[Install]
WantedBy=multi-user.target
"""

CDI_UNITS = {CDI_SERVICE: SERVICE_TEXT, CDI_PATH: PATH_TEXT}
"""Path -> text of our units."""


def has_toolkit_units(tree):
    """True when the toolkit brings units that keep the specification current."""
    return all(any(tree.exists("%s/%s" % (folder, unit)) for folder in VENDOR_UNITS) for unit in TOOLKIT_UNITS)


def device_links_missing(tree):
    """Names of NVIDIA's devices that have no link in /dev/char, in order: [/dev/nvidia0, …]."""
    import os
    import stat

    missing = []
    names = ["/dev/" + name for name in tree.names("/dev") if name.startswith("nvidia")]
    names += ["/dev/nvidia-caps/" + name for name in tree.names("/dev/nvidia-caps")]
    for path in names:
        found = tree.stat(path)
        if found is None or not stat.S_ISCHR(found.st_mode):
            continue
        link = "/dev/char/%d:%d" % (os.major(found.st_rdev), os.minor(found.st_rdev))
        if not tree.is_link(link) and not tree.exists(link):
            missing.append(path)
    return missing
