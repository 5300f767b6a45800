"""Ways out of a refusal: the smallest change of what is asked for that works, tried by deciding again, never guessed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

Change = dict[str, Any]


def suggest(changes: Iterable[Change], works: Callable[[Change], bool]) -> Change | None:
    """The first of these changes (field to its new value, the smallest first) that works; None: none of them does."""
    return next((change for change in changes if works(change)), None)


def combined(singles: Sequence[tuple[str, Any]], most: int = 3) -> Iterator[Change]:
    """Changes of one field, then of two, up to ``most``, made of single ones, the smallest first."""
    for number in range(1, most + 1):
        for some in itertools.combinations(singles, number):
            change = dict(some)
            if len(change) == number:
                yield change
