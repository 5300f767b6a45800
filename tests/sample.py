"""How much of a large table, and how many made-up examples, one run tries: a share in make test, everything in make test-all.

A test marked ``thorough`` runs in make test-all only: HYPOTHESIS_PROFILE=thorough.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "quick")
THOROUGH = PROFILE == "thorough"
Row = TypeVar("Row")


def share(rows: Sequence[Row], of: int) -> Sequence[Row]:
    """One of so many rows, evenly over the table."""
    return rows if THOROUGH else rows[::of]


def turn(rows: Sequence[Row], number: int, count: int = 1) -> Sequence[Row]:
    """Those whose turn it is at the row with this number of another table: each pairs with each only in make test-all."""
    if THOROUGH or len(rows) <= count:
        return rows
    return [rows[(number * count + step) % len(rows)] for step in range(count)]
