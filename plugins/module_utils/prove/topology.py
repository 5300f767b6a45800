# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""How the cards of a host are joined, and how fast that should be. Pure functions; ``host_hints`` reads sysfs.

Thresholds are the catalog's bandwidth.yml as a dict: {"pcie": [{"generation", "gb_per_s"}], "allreduce": {way: {"warn",
"fail"}}, "peer": the same, ..}: shares of the nominal rate. Source of the ways: `nvidia-smi topo -m`'s legend.
"""

from __future__ import annotations

import os
import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree

# From near to far; what `nvidia-smi topo -m` calls them.
WAYS = ("nvlink", "pix", "pxb", "phb", "node", "sys")
WORDS = {
    "nvlink": "NVLink",
    "pix": "one PCIe switch",
    "pxb": "several PCIe switches",
    "phb": "a PCIe host bridge",
    "node": "host bridges of one socket",
    "sys": "the link between sockets",
}


def way(pair):
    """The way between two cards, from a pair of provenvml.survey."""
    if pair["nvlinks"]:
        return "nvlink"
    level = (pair["level"] or "").lower()
    return level if level in WAYS else "sys"


def word(pair):
    """What `nvidia-smi topo -m` prints for a pair: NV18, PIX, SYS."""
    return "NV%d" % pair["nvlinks"] if pair["nvlinks"] else (pair["level"] or "?")


def read_topology(text):
    """Parse `nvidia-smi topo -m`: {(a, b): word} for cards a < b; network cards and affinities are left out."""
    columns, found = [], {}
    for line in text.splitlines():
        # The header is underlined by an escape sequence.
        cells = [cell.strip() for cell in re.sub(r"\x1b\[[0-9;]*m", "", line).split("\t")]
        if not columns and "GPU0" in cells[1:]:
            columns = cells
            continue
        row = re.match(r"GPU([0-9]+)$", cells[0])
        for name, cell in zip(columns, cells) if row else ():  # noqa: B905 -- Python 3.8
            column = re.match(r"GPU([0-9]+)$", name)
            if column and int(row.group(1)) < int(column.group(1)):
                found[(int(row.group(1)), int(column.group(1)))] = cell
    return found


def pcie_gb_per_s(card, bandwidth):
    """Nominal GB/s of one direction of a card's PCIe link at its best, or None. bandwidth: of the catalog."""
    pcie = card["pcie"]
    lane = {row["generation"]: row["gb_per_s"] for row in bandwidth["pcie"]}.get(pcie["max_generation"])
    return None if lane is None or not pcie["max_width"] else round(lane * pcie["max_width"], 1)


def expected(cards, pairs, bandwidth):
    """Return {"way", "gb_per_s", "words"} for an all-reduce over cards: the slowest way decides.

    gb_per_s: nominal rate of one direction of what a card has on that way; None where it is not known.
    """
    indexes = {card["index"] for card in cards}
    joined = [pair for pair in pairs if pair["a"] in indexes and pair["b"] in indexes]
    worst = max((way(pair) for pair in joined), key=WAYS.index)
    if worst == "nvlink":
        # Through switches every link serves every pair; between cards directly the links of all pairs add up.
        rates = []
        for card in cards:
            mine = [pair for pair in joined if card["index"] in (pair["a"], pair["b"])]
            switched = [pair["nvlink_gb_per_s"] for pair in mine if pair["switched"]]
            rates.append(max(switched) if switched else sum(pair["nvlink_gb_per_s"] for pair in mine))
        links = min(pair["nvlinks"] for pair in joined)
        versions = sorted({pair["version"] for pair in joined if pair["version"]})
        words = "%d links of NVLink %s%s" % (
            links,
            "/".join(versions) or "?",
            " through switches" if all(pair["switched"] for pair in joined) else "",
        )
        return {"way": worst, "gb_per_s": round(min(rates), 1), "words": words}
    rates = [pcie_gb_per_s(card, bandwidth) for card in cards]
    slowest = min(cards, key=lambda card: pcie_gb_per_s(card, bandwidth) or 0.0)["pcie"]
    words = "PCIe %s x%s through %s" % (slowest["max_generation"], slowest["max_width"], WORDS[worst])
    return {"way": worst, "gb_per_s": None if None in rates else min(rates), "words": words}


def expected_pair(pair, cards, bandwidth):
    """The same for one pair of cards: {"way", "gb_per_s", "words"}."""
    two = [card for card in cards if card["index"] in (pair["a"], pair["b"])]
    return expected(two, [pair], bandwidth)


def judge_rate(measured, nominal, share, least=None):
    """Return (status, sentence) for a rate in GB/s.

    nominal: GB/s or None (not judged then); share: {"warn", "fail"} of it; least: a bound of the user's own in GB/s,
    which takes the place of both.
    """
    if least is not None:
        if measured < least:
            return "fail", "%.1f GB/s, at least %.1f is asked for" % (measured, least)
        return "pass", "%.1f GB/s, at least %.1f was asked for" % (measured, least)
    if nominal is None or share is None:
        return "pass", "%.1f GB/s, not judged: the nominal rate is not known" % measured
    reached = measured / nominal
    status = "fail" if reached < share["fail"] else "warn" if reached < share["warn"] else "pass"
    return status, "%.1f GB/s, %.0f %% of the %.1f that the links carry" % (measured, 100 * reached, nominal)


# --- what makes cards slow or silent to each other -------------------------------------------------------------


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
