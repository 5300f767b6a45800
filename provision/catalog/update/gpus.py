"""What supported-gpus.json of a driver's packages says: devices that a branch drives.

It names no chip, so a device that the catalog lacks is told and not added. A card that an old driver drives is in the file
of a new one too: it can only lower the branch that is known as a device's first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from provision.catalog import Catalog
from provision.catalog.update.place import Place, nothing
from provision.catalog.update.row import Left, Row
from provision.catalog.versions import key

_DRIVER = re.compile(r"(?<![\d.])(\d{3}(?:\.\d{1,3}){1,2})(?![\d.])")


def read(place: Place, catalog: Catalog) -> Iterator[Row | Left]:
    """Yield what every supported-gpus.json in a folder says; the driver's version is a part of its path."""
    found, unknown = False, set()
    for path in place.files("*supported-gpus.json"):
        data, address = place.json(path), place.address(path)
        if data is None:
            continue
        found, version = True, _DRIVER.findall(address)
        chips = data.get("chips")
        if not version or not isinstance(chips, list):
            yield Left(
                address, "its path does not name the driver's version" if not version else "it has no list of chips"
            )
            continue
        branch, origin = key(version[-1])[0], (f"supported_gpus_{key(version[-1])[0]}", address)
        for chip in chips:
            device = str(chip.get("devid", "")).lower().removeprefix("0x") if isinstance(chip, dict) else ""
            if not re.fullmatch(r"[0-9a-f]{4}", device) or chip.get("legacybranch"):
                continue
            if device not in catalog.gpu_data.devices:
                if device not in unknown:
                    yield Left(address, f"device {device}, {str(chip.get('name'))[:80]}: gpus.yml has no row")
                unknown.add(device)
                continue
            first = catalog.first_branches.devices.get(device)
            if first and branch < first.first:
                fields = {"first": branch, "version": version[-1]}
                yield Row(("first_branch", "devices"), device, fields, origin)
    if not found:
        raise nothing(place, "supported-gpus.json")
