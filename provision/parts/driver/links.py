"""How the cards of a host are joined, and how fast that should be. Pure functions.

Thresholds are the catalog's bandwidth.yml: shares of the nominal rate. Source of the ways: `nvidia-smi topo -m`'s legend.
"""

from __future__ import annotations

from collections.abc import Sequence

from provision.catalog.models.gpus import Bandwidth, Share
from provision.parts.proof import Row

# From near to far; what `nvidia-smi topo -m` calls them.
LINK_TYPES = ("nvlink", "pix", "pxb", "phb", "node", "sys")
LINK_TEXTS = {
    "nvlink": "NVLink",
    "pix": "one PCIe switch",
    "pxb": "several PCIe switches",
    "phb": "a PCIe host bridge",
    "node": "host bridges of one socket",
    "sys": "the link between sockets",
}


def way(pair: Row) -> str:
    """The way between two cards, from a pair of prove.nvml.survey."""
    if pair["nvlinks"]:
        return "nvlink"
    level = (pair["level"] or "").lower()
    return level if level in LINK_TYPES else "sys"


def topology_name(pair: Row) -> str:
    """What `nvidia-smi topo -m` prints for a pair: NV18, PIX, SYS."""
    return f"NV{pair['nvlinks']}" if pair["nvlinks"] else (pair["level"] or "?")


def pcie_gb_per_s(card: Row, bandwidth: Bandwidth) -> float | None:
    """Nominal GB/s of one direction of a card's PCIe link at its best, or None. bandwidth: of the catalog."""
    pcie = card["pcie"]
    lane = {row.generation: row.gb_per_s for row in bandwidth.pcie}.get(pcie["max_generation"])
    return None if lane is None or not pcie["max_width"] else round(lane * pcie["max_width"], 1)


def expected(cards: Sequence[Row], pairs: Sequence[Row], bandwidth: Bandwidth) -> Row:
    """Return {"way", "gb_per_s", "words"} for an all-reduce over cards: the slowest way decides.

    gb_per_s: nominal rate of one direction of what a card has on that way; None where it is not known.
    """
    indexes = {card["index"] for card in cards}
    joined = [pair for pair in pairs if pair["a"] in indexes and pair["b"] in indexes]
    worst = max((way(pair) for pair in joined), key=LINK_TYPES.index)
    if worst == "nvlink":
        # Through switches every link serves every pair; between cards directly the links of all pairs add up.
        rates = []
        for card in cards:
            mine = [pair for pair in joined if card["index"] in (pair["a"], pair["b"])]
            switched = [pair["nvlink_gb_per_s"] for pair in mine if pair["switched"]]
            rates.append(max(switched) if switched else sum(pair["nvlink_gb_per_s"] for pair in mine))
        links = min(pair["nvlinks"] for pair in joined)
        versions = sorted({pair["version"] for pair in joined if pair["version"]})
        through = " through switches" if all(pair["switched"] for pair in joined) else ""
        words = f"{links} links of NVLink {'/'.join(versions) or '?'}{through}"
        return {"way": worst, "gb_per_s": round(min(rates), 1), "words": words}
    nominal = [pcie_gb_per_s(card, bandwidth) for card in cards]
    slowest = min(cards, key=lambda card: pcie_gb_per_s(card, bandwidth) or 0.0)["pcie"]
    words = f"PCIe {slowest['max_generation']} x{slowest['max_width']} through {LINK_TEXTS[worst]}"
    return {
        "way": worst,
        "gb_per_s": None if None in nominal else min(filter(None, nominal), default=None),
        "words": words,
    }


def expected_pair(pair: Row, cards: Sequence[Row], bandwidth: Bandwidth) -> Row:
    """The same for one pair of cards: {"way", "gb_per_s", "words"}."""
    two = [card for card in cards if card["index"] in (pair["a"], pair["b"])]
    return expected(two, [pair], bandwidth)


def judge_rate(
    measured: float, nominal: float | None, share: Share | None, least: float | None = None
) -> tuple[str, str]:
    """Return (status, sentence) for a rate in GB/s.

    nominal: GB/s or None (not judged then); share: {"warn", "fail"} of it; least: a bound of the user's own in GB/s,
    which takes the place of both.
    """
    if least is not None:
        if measured < least:
            return "fail", f"{measured:.1f} GB/s, at least {least:.1f} is asked for"
        return "pass", f"{measured:.1f} GB/s, at least {least:.1f} was asked for"
    if nominal is None or share is None:
        return "pass", f"{measured:.1f} GB/s, not judged: the nominal rate is not known"
    reached = measured / nominal
    status = "fail" if reached < share.fail else "warn" if reached < share.warn else "pass"
    return status, f"{measured:.1f} GB/s, {100 * reached:.0f} % of the {nominal:.1f} that the links carry"
