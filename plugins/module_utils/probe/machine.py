# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What stands on the machine's labels: vendor, model, serial numbers, firmware, and which slot of the board a card is in.

``main`` returns {"dmi": {name of a file in /sys/class/dmi/id: text}, "slots": {PCI address: name of the slot}, "own": of
probe.export.read_own}. Serial numbers are root's to read; what is not said is left out. Standard library only, Python 3.8 and
later.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import export

_DMI = (
    "sys_vendor",
    "product_name",
    "product_serial",
    "chassis_vendor",
    "chassis_serial",
    "board_vendor",
    "board_name",
    "board_serial",
    "bios_vendor",
    "bios_version",
    "bios_date",
)


def main(args):
    """Entry of the fast read. args: root (of a host that is not this one)."""
    tree = HostTree(args.get("root") or "/")
    dmi = {name: tree.word("/sys/class/dmi/id/" + name) for name in _DMI}
    slots = {}
    for name in tree.names("/sys/bus/pci/slots"):
        address = tree.word("/sys/bus/pci/slots/%s/address" % name)
        if address:
            slots[address] = name
    return {"dmi": {name: text for name, text in dmi.items() if text}, "slots": slots, "own": export.read_own(tree)}
