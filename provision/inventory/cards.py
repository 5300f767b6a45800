"""The cards that gpu_verify_expect names. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.catalog import load_catalog

# What a card says that it is: a name, and its PCI device id ("2330").
Card = tuple[str, str]
_FORMS = 'write it as "8", "8x H100" or "2x H100 + 1x T4"'
# Cards that the catalog does not know, as init writes them: "unknown GPU 3abc".
_BY_ID = re.compile(r"GPU [0-9a-f]{4}$")


def read(value: object) -> tuple[list[tuple[int, str]], int]:
    """Return ([(count, name)], total) for "8x H100", "8" or "2x H100 + 1x T4"; raises ValueError."""
    rows = []
    for item in str(value).split("+"):
        match = re.match(r"^\s*([0-9]{1,3})\s*(?:$|[xX]\s*(\S.*?)\s*$)", item)
        if not match:
            raise ValueError(f"{value!r} does not say how many cards: {_FORMS}")
        rows.append((int(match[1]), match[2] or ""))
    return rows, sum(count for count, _ in rows)


def count(value: object) -> int:
    """Number of cards; 0 where nothing is expected."""
    return read(value)[1] if value else 0


def check(value: object) -> None:
    """Raise ValueError (message, and a hint where there is one) for a text without a number, and for a name of no card."""
    for _, name in read(value)[0] if value else ():
        if not name or _BY_ID.search(name):
            continue
        match = load_catalog().find_gpu(name)
        if not (match.gpu or match.candidates):
            hint = f"did you mean {match.nearest[0]}?" if match.nearest else "provision scan shows the cards of a host;"
            raise ValueError(
                f"the catalog has no card {name!r}", f"{hint} a card newer than the catalog is expected by number alone"
            )


def matches(wanted: str, card: Card) -> bool:
    """True when a card is of an expected kind: every word of it is in the card's name, the catalog gives the card's id that
    name, or the catalog does not know the id and so cannot tell."""
    name, device = card
    have = re.split(r"[\s/]+", name.lower())
    if all(word in have for word in wanted.lower().split()):
        return True
    catalog = load_catalog()
    found = catalog.find_gpu(wanted)
    known = [gpu for gpu in (found.gpu, *found.candidates) if gpu is not None]
    return any(device in gpu.ids for gpu in known) or catalog.gpu_by_id(device).certainty != "sourced"


def differs(expected: str, cards: Sequence[Card]) -> list[str]:
    """Sentences about how cards differ from what is expected; empty when they agree."""
    rows, total = read(expected)
    said = []
    if len(cards) != total:
        said.append(f"{len(cards)} cards, {total} expected")
    left = list(cards)
    # The longest names first, so that "H100" does not take what "H100 NVL" is meant for.
    for count, wanted in sorted(rows, key=lambda row: -len(row[1].split())):
        taken = [card for card in left if matches(wanted, card)][:count]
        for card in taken:
            left.remove(card)
        if wanted and len(taken) < count and len(cards) >= total:
            said.append(f"{len(taken)} of {count} are {wanted}")
    if not said and left:
        said.append(f"not expected: {', '.join(name for name, _ in left)}")
    return said
