# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What makes cards slow or silent to each other: ``host_hints`` reads sysfs."""

from __future__ import annotations

import os

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree


def redirects(config):
    """True when a PCIe bridge's access control sends peer traffic up to the root (ACS request or completion redirect).

    config: bytes of /sys/bus/pci/devices/*/config; root reads all 4096, others 64 (then None: not known).
    Source: PCI Express base specification, ACS extended capability (000Dh), control register at +6.
    """
    if len(config) < 0x104:
        return None
    position = 0x100
    for _ in range(96):
        head = int.from_bytes(config[position : position + 4], "little")
        if head & 0xFFFF == 0x000D:
            control = int.from_bytes(config[position + 6 : position + 8], "little")
            return bool(control & 0x0C)
        position = head >> 20
        if position < 0x100 or position + 8 > len(config):
            return False
    return False


def host_hints(root=""):
    """Sentences about what on this host is known to make peer traffic slow, wrong or silent (scenario J5)."""
    found = []
    kinds = set()
    groups = root + "/sys/kernel/iommu_groups"
    for name in _names(groups):
        kinds.add(_read("%s/%s/type" % (groups, name)).decode("ascii", "replace").strip())
    if kinds & {"DMA", "DMA-FQ"}:
        found.append(
            "the IOMMU translates (%s): iommu=pt on the kernel's command line lets devices pass"
            % "/".join(sorted(kinds))
        )
    base, acs = root + "/sys/bus/pci/devices", []
    for slot in _names(base):
        if _read("%s/%s/class" % (base, slot))[2:6] == b"0604" and redirects(_read("%s/%s/config" % (base, slot))):
            acs.append(slot)
    if acs:
        more = " and %d more" % (len(acs) - 3) if len(acs) > 3 else ""
        found.append(
            "ACS redirects peer traffic on PCI bridges (%s%s): the BIOS or setpci switches it off"
            % (", ".join(acs[:3]), more)
        )
    return found


def _names(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _read(path):
    try:
        return host_tree.read_file(path)
    except OSError:
        return b""
