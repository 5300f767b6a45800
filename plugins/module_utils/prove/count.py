# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""How many cards there are: on the bus, for the driver, for a CUDA program, and in the inventory. Pure but bus_cards."""

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
    """Why no check can use a card, or None. survey, seen: Outcomes of provenvml.survey and provecuda.visible."""
    if not survey.ok:
        said = survey.message or ""
        if unloadable(survey):
            if "cannot open shared object file" in said:
                return "no NVIDIA driver is installed" if bus else "no NVIDIA GPU and no driver"
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


def read_expected(value):
    """Return ([(count, [words of the name])], total) for "8x H100", "8" or "2x H100 + 1x T4"; raises ValueError."""
    rows = []
    for item in str(value).split("+"):
        match = re.match(r"^\s*([0-9]+)\s*(?:$|[xX]\s*(\S.*?)\s*$)", item)
        if not match:
            raise ValueError("%r does not say how many cards: write 8x H100" % (value,))
        rows.append((int(match.group(1)), (match.group(2) or "").lower().split()))
    return rows, sum(count for count, _ in rows)


def matches(words, name):
    """True when every word of an expected name is in a card's name: "h100" in "NVIDIA H100 80GB HBM3"."""
    have = re.split(r"[\s/]+", name.lower())
    return all(word in have for word in words)


def differs(expected, names):
    """Sentences about how the cards' names differ from what is expected; empty when they agree."""
    rows, total = read_expected(expected)
    said = []
    if len(names) != total:
        said.append("%d cards, %d expected" % (len(names), total))
    left = list(names)
    # The longest names first, so that "H100" does not take what "H100 NVL" is meant for.
    for count, words in sorted(rows, key=lambda row: -len(row[1])):
        taken = [name for name in left if matches(words, name)][:count]
        for name in taken:
            left.remove(name)
        if words and len(taken) < count and len(names) >= total:
            said.append("%d of %d are %s" % (len(taken), count, " ".join(words)))
    if not said and left:
        said.append("not expected: %s" % ", ".join(left))
    return said


def judge(survey, bus, seen, hidden_by, expected):
    """Return (status, message, evidence, hint, numbers) for gpu.count."""
    if not survey.ok or not survey.result["cards"]:
        why = no_card(survey, bus, seen)
        # Without a driver the checks driver.* and gpu.bus have said what there is to say.
        if bus and not unloadable(survey):
            evidence = ["%s on the bus" % slot for slot in bus]
            return "fail", why, evidence, "see driver.bound and driver.smi", {"bus": len(bus)}
        return "skip", why, [], None, {}
    cards, lost = survey.result["cards"], survey.result["lost"]
    instances = [instance for card in cards for instance in card["mig_instances"]]
    plain = [card for card in cards if not (card["mig"] or {}).get("current")]
    visible = len(seen.result["cards"]) if seen.ok else 0
    numbers = {"bus": len(bus), "driver": len(cards), "mig_instances": len(instances), "cuda": visible}
    evidence = ["card %d: %s at %s" % (card["index"], card["name"], card["bus_id"]) for card in cards]
    evidence += ["card %d: %s" % (row["index"], row["error"]) for row in lost]
    for card in cards:
        evidence += ["card %d: MIG instance %s" % (card["index"], row["name"]) for row in card["mig_instances"]]
    if lost:
        hint = "dmesg | grep Xid; often only a power cycle helps"
        return "fail", "card %d does not answer" % lost[0]["index"], evidence, hint, numbers
    said, hints = [], []
    if expected:
        try:
            said += differs(expected, [card["name"] for card in cards])
        except ValueError as error:
            return "fail", str(error), evidence, "write the expectation as 8x H100", numbers
        hints += ["a card is missing or of another kind, or the inventory is out of date"] if said else []
    unmanaged = [card for card in cards if (card["mig"] or {}).get("current") and not card["mig_instances"]]
    if unmanaged:
        said.append("card %d is in MIG mode and has no instance" % unmanaged[0]["index"])
        hints.append("nvidia-smi mig -cgi ... -C makes instances; nvidia-smi -mig 0 ends MIG mode")
    # CUDA enumerates whole cards, or where every card is in MIG mode one instance a process.
    could = len(plain) or min(1, len(instances))
    only_hidden = False
    if hidden_by is not None and visible < could:
        only_hidden = not said and not expected and bool(visible)
        bare = {card["uuid"].lower() for card in seen.result["cards"]} if seen.ok else set()
        hidden = [str(card["index"]) for card in plain if card["uuid"].lower().split("-", 1)[-1] not in bare]
        what = "card %s" % ", ".join(hidden) if visible else "every card"
        said.append("CUDA_VISIBLE_DEVICES=%r hides %s" % (hidden_by, what))
        hints.append("unset CUDA_VISIBLE_DEVICES in the login's start files, or let only the job set it")
    elif not seen.ok and could:
        sentence, hint = prove_errors.ending(seen, "libcuda")
        said.append("the driver has %d cards, CUDA does not start: %s" % (len(cards), sentence))
        hints.append(hint)
    elif visible < could:
        said.append("CUDA sees %d of %d cards" % (visible, could))
        hints.append("dmesg | grep NVRM; see gpu.health")
    if said:
        return "warn" if only_hidden else "fail", "; ".join(said), evidence, hints[0], numbers
    message = "%d cards" % len(cards) if len(cards) != 1 else "1 card"
    if instances:
        message += ", %d MIG instances (a program sees one, or those that CUDA_VISIBLE_DEVICES names)" % len(instances)
    return "pass", message, evidence, None, numbers
