"""The cards that gpu_verify_expect names. Pure."""

from __future__ import annotations

import re

from provision.catalog import load_catalog

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
    """Raise ValueError for a text that says no number, and for names that no card has."""
    for _, name in read(value)[0] if value else ():
        if not name or _BY_ID.search(name):
            continue
        match = load_catalog().find_gpu(name)
        if not (match.gpu or match.candidates):
            nearest = (
                f"did you mean {match.nearest[0]}?" if match.nearest else "provision scan shows the cards of a host"
            )
            raise ValueError(
                f"the catalog has no card {name!r}: {nearest} A card newer than the catalog is expected by number alone"
            )
