# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""How many cards there are on the bus, and why none of them can be used."""

from __future__ import annotations

import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree
from ansible_collections.gpu.provision.plugins.module_utils.prove import errors as prove_errors


def bus_cards(base="/sys/bus/pci/devices"):
    """[slot] of NVIDIA's display and 3D functions on the PCI bus, virtual functions left out."""
    found = []
    for slot in sorted(os.listdir(base)) if os.path.isdir(base) else []:
        words = []
        for name in ("vendor", "class"):
            try:
                words.append(host_tree.read_text("%s/%s/%s" % (base, slot, name)).strip())
            except OSError:
                words.append("")
        virtual = os.path.exists("%s/%s/physfn" % (base, slot))
        if words[0] == "0x10de" and words[1][2:6] in ("0300", "0302") and not virtual:
            found.append(slot)
    return found


def unloadable(survey):
    """True when the driver's library is not there, or is none that this interpreter can load."""
    return survey.status == "error" and (survey.message or "").startswith(("OSError", "AttributeError"))


def no_card(survey, bus, seen):
    """Why no check can use a card, or None. survey, seen: Outcomes of prove.nvml.survey and prove.cuda.visible."""
    if not survey.ok:
        # without the line of our own code that it comes from
        said = re.sub(r" \([^()]*:[0-9]+ in \w+\)$", "", survey.message or "")
        if unloadable(survey):
            if "cannot open shared object file" in said:
                why = "no NVIDIA driver is installed, or the loader does not find its libnvidia-ml.so.1"
                return why if bus else "no NVIDIA GPU and no driver"
            return "libnvidia-ml.so.1 cannot be loaded: %s" % said
        if not bus:
            return "no NVIDIA GPU on the PCI bus"
        return "the driver does not answer: %s: see driver.versions and driver.bound" % said
    if not survey.result["cards"]:
        return "the driver has no GPU" if bus else "no NVIDIA GPU"
    if not seen.ok:
        if seen.code == 100:
            return "CUDA sees no card: see gpu.count"
        return "CUDA does not start: %s" % prove_errors.ending(seen, "libcuda")[0]
    if not seen.result["cards"]:
        return "CUDA sees no card: see gpu.count"
    return None
