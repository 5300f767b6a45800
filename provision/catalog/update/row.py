"""What a source says of the catalog, row by row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Final versions alone, as models.base.Version has them, and not longer than any real one.
VERSION = re.compile(r"^[0-9]{1,9}(\.[0-9]{1,9}){0,6}(\.post[0-9]{1,4})?$")


@dataclass(frozen=True)
class Row:
    """What a source says of one row.

    table: the file and the way to the table in it. key: that of a row in a mapping; the fields that name one in a list;
    None for a row that is only ever added. origin: the source's name among the file's sources, and its address.
    """

    table: tuple[str, ...]
    key: str | int | Mapping[str, Any] | None
    fields: Mapping[str, Any]
    origin: tuple[str, str]


@dataclass(frozen=True)
class Left:
    """What a source says and the catalog cannot take by itself: for a person."""

    address: str
    why: str
