"""What the driver itself says of a card: what it needs to recover, and which repairs wait or have failed. Pure.

nvidia-smi and NVML say the same; older drivers say less, and what is not said is not judged. Source: NVIDIA, GPU Memory
Error Management ("Error Recovery and Response Flags"), and nvml.h.
"""

from __future__ import annotations

from collections.abc import Iterable

from provision.catalog.models.xid import Action, Xids
from provision.parts.driver import xid

# status, sentence, hint, the action of NVIDIA's catalogue
Sick = tuple[xid.Status, str, str, Action]
_REPLACE = "the card needs replacing: nvidia-bug-report.sh, for NVIDIA or the vendor"
# What nvidia-smi -q -x says Yes to (names of its tags) -> status, sentence, hint; None: a reset of the card.
FLAGS: dict[str, tuple[xid.Status, str, str | None]] = {
    "sram_threshold_exceeded": ("fail", "its SRAM exceeded NVIDIA's threshold of uncorrectable errors", _REPLACE),
    "unrepairable_memory": ("fail", "faulty memory cannot be repaired any more", _REPLACE),
    "remapped_row_failure": ("fail", "a faulty memory row could not be remapped", _REPLACE),
    "remapped_row_pending": ("fail", "faulty memory rows wait to be remapped", None),
    "pending_retirement": ("fail", "faulty memory pages wait to be retired", None),
    "channel_repair_pending": ("warn", "a repair of a memory channel waits", None),
    "tpc_repair_pending": ("warn", "a repair of a processing cluster waits", None),
}


def judge(recovery: str | int | None, flags: Iterable[str], bus_id: str, table: Xids) -> list[Sick]:
    """Return what is wrong with a card, the driver's own word first.

    recovery: the recovery action as nvidia-smi words it or as NVML numbers it, None where the driver has none; flags: of FLAGS.
    """
    found: list[Sick] = []
    if recovery is not None:
        number, words = (recovery, "") if isinstance(recovery, int) else (None, recovery)
        action = xid.named(number, words, table)
        if action != "NONE":
            said = words or f"recovery action {number}"
            advice = xid.advice(action, bus_id)
            found.append((xid.ADVICE[action][0], f"the driver says that it needs: {said}", advice, action))
    for flag, (status, sentence, hint) in FLAGS.items():
        if flag in flags:
            needs: Action = "CONTACT_SUPPORT" if hint else "RESET_GPU"
            found.append((status, sentence, hint or xid.advice(needs, bus_id), needs))
    return found


def recovered(cards: Iterable[tuple[str | int | None, str | None]], table: Xids) -> list[str]:
    """Bus ids of the cards of which the driver says that they need nothing. cards: recovery action and bus id of each."""
    return [bus_id for said, bus_id in cards if said is not None and bus_id and not judge(said, (), bus_id, table)]
