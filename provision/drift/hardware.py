"""Cards and memory against what the lock saw of them: missing, new, exchanged, narrower or slower on the bus, elsewhere. Pure."""

from __future__ import annotations

from provision.drift.item import Item
from provision.facts import Facts, Gpu, SmiGpu
from provision.lock.make import gib, short
from provision.lock.model import HostLock, LockedGpu


def against_hardware(facts: Facts, lock: HostLock | None) -> list[Item]:
    """Items of a host's cards. A host that the lock does not name has nothing to be compared with but itself."""
    items = _lost_in_the_driver(facts)
    if lock is None or not lock.listed:
        return items
    items += _memory(lock.host.memory, gib(facts))
    if not lock.host.gpus:
        return items
    now = {short(gpu.slot): gpu for gpu in facts.gpus}
    before = {short(gpu.slot): gpu for gpu in lock.host.gpus}
    for slot, card in before.items():
        gpu = now.get(slot)
        if gpu is None:
            items.append(
                _item(
                    "card_missing",
                    f"card {card.slot}",
                    f"{card.name}{_uuid(card)}",
                    "no card on the bus",
                    "check power, seating and the BIOS; if the card was removed on purpose: provision lock",
                )
            )
            continue
        if gpu.device != card.device:
            items.append(
                _item(
                    "card_other", f"card {card.slot}", f"{card.name} (10de:{card.device})", f"10de:{gpu.device}", _NEW
                )
            )
            continue
        items += _of_card(card, gpu, _smi(facts, slot), bool(facts.gpu_users))
    for slot, gpu in now.items():
        if slot not in before:
            items.append(_item("card_new", f"card {gpu.slot}", "no card", f"10de:{gpu.device}", _NEW))
    return items


_NEW = "if the change is intended: provision lock accepts it"


def _item(code: str, what: str, expected: str, found: str, hint: str) -> Item:
    return Item(code=f"hardware.{code}", what=what, expected=expected, found=found, against="hardware", hint=hint)


# One of 32 modules is 3.1 %; what the kernel keeps for itself moves by less.
_LOST_SHARE = 0.03


def _memory(before: int | None, now: int | None) -> list[Item]:
    """Memory that is gone: a module that failed or sits loose. More of it than before is nobody's fault."""
    if not before or now is None or now > before * (1 - _LOST_SHARE):
        return []
    hint = "dmidecode -t memory, ipmitool sel list and dmesg | grep -i -e edac -e mce name the module; or a crashkernel= that grew"
    return [_item("memory", "memory", f"{before} GiB", f"{now} GiB", hint)]


def _uuid(card: LockedGpu) -> str:
    return f" {card.uuid}" if card.uuid else ""


def _smi(facts: Facts, slot: str) -> SmiGpu | None:
    return next((card for card in facts.smi.gpus if card.bus_id and short(card.bus_id) == slot), None)


def _of_card(card: LockedGpu, gpu: Gpu, seen: SmiGpu | None, busy: bool) -> list[Item]:
    items = []
    if seen and seen.uuid and card.uuid and seen.uuid != card.uuid:
        items.append(_item("card_exchanged", f"card {card.slot}", card.uuid, seen.uuid, _NEW))
    if seen and card.mig and seen.mig and seen.mig != card.mig:
        items.append(
            _item(
                "mig",
                f"MIG of card {card.slot}",
                card.mig,
                seen.mig,
                "nvidia-smi -mig sets it; or provision lock accepts it",
            )
        )
    if card.numa is not None and gpu.numa_node is not None and card.numa != gpu.numa_node:
        hint = "check the BIOS (NUMA nodes per socket, a missing processor) and the slot; pinned jobs use the old node"
        items.append(_item("numa", f"NUMA node of card {card.slot}", str(card.numa), str(gpu.numa_node), hint))
    link = gpu.pcie
    if link and link.width and card.width and link.width < card.width:
        items.append(
            _item(
                "pcie_width",
                f"PCIe width of card {card.slot}",
                f"x{card.width}",
                f"x{link.width}",
                "reseat the card, check riser and slot; a reboot trains the link again",
            )
        )
    # An idle card may lower its speed to save power, a busy one does not; what it can do at most never falls by itself.
    top = link.max_speed if link else None
    speed = link.speed if link and busy else None
    lower = min((value for value in (top, speed) if value), default=None)
    if lower and card.speed and lower < card.speed:
        items.append(
            _item(
                "pcie_speed",
                f"PCIe speed of card {card.slot}",
                f"{card.speed:g} GT/s",
                f"{lower:g} GT/s",
                "check the BIOS setting of the slot and 'dmesg | grep AER'; a reboot trains the link again",
            )
        )
    return items


def _lost_in_the_driver(facts: Facts) -> list[Item]:
    """A card that is on the bus and that the driver lost: it answers no more."""
    if facts.host.container or not facts.smi.gpus:
        return []
    seen = {short(card.bus_id) for card in facts.smi.gpus if card.bus_id}
    mine = [gpu for gpu in facts.gpus if gpu.driver == "nvidia"]
    if not seen or len(facts.smi.gpus) >= len(mine):
        return []
    return [
        _item(
            "card_lost",
            f"card {gpu.slot}",
            "the driver sees it",
            "nvidia-smi does not list it",
            "dmesg | grep -e NVRM -e Xid says why; provision diagnose names the cause",
        )
        for gpu in mine
        if short(gpu.slot) not in seen
    ]
