"""One thing that drifted, and which of several that say the same is reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from provision.lib.findings import Finding, Level, explained

Against = Literal["inventory", "lock", "peers", "hardware"]


class Item(Finding):
    """Areas are packages, holds, sources, boot, files, containers, conda, hardware, …; every item counts against a host."""

    level: Level = "error"
    message: str = ""
    what: str
    expected: str
    found: str
    against: Against

    def model_post_init(self, context: object) -> None:
        self.message = f"{self.what}: {self.found}; expected: {self.expected}"


# An item of a check, or one that only says "packages have to change", adds nothing where another of these areas is reported.
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
    strong = [item for item in items if _explained_by(item) is None]
    echoes = explained(items, lambda item: [other for other in strong if other.area in (_explained_by(item) or ())])
    left: dict[tuple[str, str], Item] = {}
    for item in items:
        if id(item) not in echoes:
            left.setdefault((item.code, item.what), item)
    return list(left.values())


def _explained_by(item: Item) -> tuple[str, ...] | None:
    """Areas whose items explain this one; None for items that stand for themselves, and alone explain others."""
    return next((areas for start, areas in ECHOES.items() if item.code.startswith(start)), None)
