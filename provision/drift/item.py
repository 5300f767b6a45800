"""One thing that drifted, and which of several that say the same is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel

Against = Literal["inventory", "lock", "peers", "hardware"]


class Item(BaseModel):
    """code is stable; its first word is the area: packages, holds, sources, boot, files, containers, conda, hardware, …"""

    code: str
    what: str
    expected: str
    found: str
    against: Against
    hint: str | None = None

    @property
    def area(self) -> str:
        return self.code.split(".")[0]


# An item of a check, or one that only says "packages have to change", tells nothing new where another of these areas is told.
# What a check judges -> the areas that explain it.
ECHOES: dict[str, tuple[str, ...]] = {
    "packages.driver": ("packages", "boot", "lock"),
    "packages.cuda": ("packages", "lock"),
    "packages.containers": ("packages", "lock"),
    "reboot.pending": ("boot",),
    "check.apt.hold": ("holds", "packages"),
    "check.cuda.hold": ("holds", "packages"),
    "check.apt.packages": ("packages", "blocked"),
    "check.apt.sources": ("sources",),
    "check.boot.next": ("boot",),
    "check.boot.nouveau": ("boot",),
    "check.driver.": ("packages", "blocked", "boot", "reboot", "hardware", "lock"),
    "check.gpu.": ("hardware",),
    "check.service.": ("services", "packages", "boot", "hardware"),
    "check.cuda.": ("files", "packages", "lock", "blocked"),
    "check.conda.": ("conda", "lock", "blocked"),
    "check.container.": ("containers", "packages", "lock", "blocked"),
}


def without_echoes(items: Sequence[Item]) -> list[Item]:
    """Items without those that only follow from another one, and each only once."""
    kept: list[Item] = []
    seen: set[tuple[str, str]] = set()
    for item in items:
        if (item.code, item.what) in seen or _is_echo(item, items):
            continue
        seen.add((item.code, item.what))
        kept.append(item)
    return kept


def _is_echo(item: Item, items: Sequence[Item]) -> bool:
    areas = next((areas for start, areas in ECHOES.items() if item.code.startswith(start)), ())
    return any(other is not item and other.area in areas and not _weak(other) for other in items)


def _weak(item: Item) -> bool:
    """Items that may be echoes themselves explain nothing."""
    return any(item.code.startswith(start) for start in ECHOES)
