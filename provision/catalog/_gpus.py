"""GPUs by PCI id and by the names that people write. Pure functions of the data in gpus.yml and
architectures.yml."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any, NamedTuple

from provision.catalog.models.answers import Gpu, GpuMatch
from provision.catalog.models.base import Fabric, Flavour
from provision.catalog.models.gpus import Architectures, Board, ComputeCapability, Device, FirstBranches, Gpus
from provision.catalog.versions import key

# Words that tell one board of a product from another: a name without them means any of those boards.
_BRANDS = frozenset(
    {
        "ada",
        "ampere",
        "blackwell",
        "card",
        "edition",
        "dgx",
        "geforce",
        "generation",
        "gpu",
        "graphics",
        "gt",
        "gtx",
        "hgx",
        "kepler",
        "lovelace",
        "maxwell",
        "nvidia",
        "pascal",
        "pro",
        "quadro",
        "rtx",
        "tesla",
        "turing",
        "volta",
    }
)
_FORMS = frozenset(
    {
        "ac",
        "active",
        "cnx",
        "dgxs",
        "fhhl",
        "grace",
        "hbm2",
        "hbm2e",
        "hbm3",
        "hbm3e",
        "jm",
        "lc",
        "nvl",
        "pcie",
        "server",
        "sff",
        "sxm",
        "workstation",
    }
)
# Whole systems, whose cards sit on sockets.
_SYSTEMS = frozenset({"dgx", "hgx"})
# A name with one of these is meant only by somebody who writes it.
_RARE = frozenset(
    {
        "a",
        "drive",
        "embedded",
        "engineering",
        "es",
        "hash",
        "int",
        "laptop",
        "lhr",
        "lite",
        "mac",
        "maxq",
        "mining",
        "mobile",
        "oem",
        "rate",
        "refresh",
        "reserved",
        "rev",
        "sample",
        "sku",
        "usm",
        "vgpu",
    }
)
_QUALIFIER = re.compile(r"^(\d+gb|sxm\d*|hbm\d\w*)$")
_HEAD = re.compile(r"^(rtx|gtx|gt)(?:(pro))?(\d.*)$")
_TAIL = re.compile(r"^(.*\d[a-z]?)(super|ti|sxm\d?|pcie|nvl)$")
# "8x H100"
_COUNT = re.compile(r"^\d+\s*x\s+")
_ID = re.compile(r"^(?:(?:10de|0x10de)[: ])?(?:0x)?([0-9a-f]{4})$", re.IGNORECASE)
# Chips whose boards may sit on NVSwitch: a board that is not listed is "unknown" there, "never" elsewhere.
_FABRIC_CHIPS = frozenset({"GV100", "GA100", "GH100", "GB100", "GB102", "GB110", "GB112", "GR100", "GR102"})


class _Name(NamedTuple):
    core: frozenset[str]
    qualifiers: frozenset[str]
    device_id: str
    text: str


class GpuIndex:
    """Answers about GPUs. One object holds the two files and the index of names, built when first needed."""

    def __init__(self, gpus: Gpus, architectures: Architectures, first: FirstBranches) -> None:
        self.data = gpus
        self._first, self._by_515 = first.devices, frozenset(first.by_515)
        self.arch = architectures
        self._boards: dict[str, Board] = {i: board for board in gpus.boards for i in board.ids}
        self._mig_drivers = {i: row.driver for row in gpus.mig_drivers for i in row.ids}

    def by_id(self, device_id: str, subsystem: str | None = None) -> Gpu:
        """Return the GPU of a PCI device id ("2330", "0x2330", "10de:2330").

        An id that is not listed is answered from its range (certainty "inferred"), or as unknown:
        architecture None, with ``turing_or_newer`` by the number. ``subsystem`` ("10de:157e") tells boards
        that share an id apart.
        """
        match = _ID.match(device_id.strip())
        if not match:
            raise ValueError(f"not a PCI device id: {device_id!r}")
        found = match.group(1).lower()
        device = self.data.devices.get(found)
        return self._known(found, device, subsystem) if device else self._unlisted(found)

    def _known(self, device_id: str, device: Device, subsystem: str | None = None) -> Gpu:
        chip = self.data.chips[device.chip]
        board = self._boards.get(device_id)
        capability = self.arch.compute_capabilities[chip.cc]
        architecture = self.arch.architectures[chip.architecture]
        modules, certainty = architecture.modules, architecture.certainty
        if board and board.modules:
            modules, certainty = board.modules, board.modules_certainty
        fabric: Fabric = "never"
        if device.chip in _FABRIC_CHIPS and device.segment in ("datacenter", "other"):
            fabric = "unknown"
        mig = {None: False, "unknown": None}.get(device.mig, True)
        name = device.name
        if board:
            fabric = board.fabric
            name = self._board_name(device, board)
            name = board.subsystems.get(subsystem or "", name)
        notes = [n for n in (board.note if board else None, board.fabric_note if board else None, chip.note) if n]
        return Gpu(
            ids=(device_id,),
            name=name,
            architecture=chip.architecture,
            cc=chip.cc,
            segment=device.segment,
            mig=mig,
            mig_driver=self._mig_drivers.get(device_id),
            fabric=fabric,
            **self._since(device_id, capability),
            last_branch=architecture.last_branch,
            modules=modules,
            modules_certainty=certainty,
            turing_or_newer=self._turing(device_id),
            machine=board.machine if board else None,
            certainty=chip.certainty,
            note="; ".join(notes) or None,
        )

    def _since(self, device_id: str, capability: ComputeCapability) -> dict[str, Any]:
        """Since which branch a device is driven: by NVIDIA's table where that lists it, else by its compute capability."""
        listed = self._first.get(device_id)
        if listed:
            return {"first_branch": listed.first, "listed_from": listed.first, "without": listed.without}
        return {
            "first_branch": capability.first_branch,
            "first_branch_certainty": capability.first_branch_certainty,
            "listed_from": 515 if device_id in self._by_515 else None,
        }

    @staticmethod
    def _board_name(device: Device, board: Board) -> str:
        """The device's own name, which also tells the memory, where it is the product's: pci.ids has internal and
        combined ones ("PCIe Faber", "H100L 94GB", "A2 / A16"), and there NVIDIA's or the board's is better."""
        product = {word for text in (board.name, *board.aliases) for word in _tokens(text)[0]}
        if " / " not in device.name and _tokens(device.name)[0] & product:
            return device.name
        if len(board.ids) == 1 or not device.also:
            return board.name
        return device.also[0].removeprefix("NVIDIA ")

    def _turing(self, device_id: str) -> bool:
        return int(device_id, 16) >= int(self.arch.turing_or_newer.first_id, 16)

    def _unlisted(self, device_id: str) -> Gpu:
        number = int(device_id, 16)
        for span in self.data.id_ranges:
            if int(span.first, 16) <= number <= int(span.last, 16):
                break
        else:
            newer = self._turing(device_id)
            return Gpu(
                ids=(device_id,),
                name=f"unknown GPU {device_id}",
                turing_or_newer=newer,
                certainty="unknown",
                mig=None,
                modules=("open",) if newer else (),
                modules_certainty="unknown",
                note="newer than the catalog" if newer else "not among the GPUs from Kepler on: older, or no GPU",
            )
        architecture = self.arch.architectures[span.architecture]
        capability = self.arch.compute_capabilities.get(span.cc or "")
        return Gpu(
            ids=(device_id,),
            name=f"{span.architecture} GPU {device_id}",
            architecture=span.architecture,
            cc=span.cc,
            mig=None,
            first_branch=capability.first_branch if capability else None,
            first_branch_certainty="inferred",
            last_branch=architecture.last_branch,
            modules=architecture.modules,
            modules_certainty="inferred",
            turing_or_newer=self._turing(device_id),
            certainty="inferred",
            note=f"not listed; by the id range {span.first} to {span.last}",
        )

    def find(self, text: str) -> GpuMatch:
        """Return what a name, an id or an nvidia-smi name means.

        Names win over bare hexadecimal ("2080" is a GeForce). Boards that differ only in form factor or
        memory are one family when architecture and compute capability are the same, else they are the
        candidates.
        """
        core, qualifiers = _tokens(text)
        found = self._named(text, core, qualifiers)
        if not found and qualifiers & _SYSTEMS:
            # DGX H100, HGX A100: the board of that system, which is the one on a socket
            asked = qualifiers - _SYSTEMS
            found = self._named(text, core, asked | {"sxm"}) or self._named(text, core, asked)
        if found:
            return self._answer(text, found)
        match = _ID.match(text.strip())
        if match:
            return GpuMatch(text=text, gpu=self.by_id(text))
        return GpuMatch(text=text, nearest=self._nearest(text))

    def _named(self, text: str, core: frozenset[str], qualifiers: frozenset[str]) -> list[_Name]:
        # a name of words that tell boards apart, and of nothing else ("INT SKU"), is meant only as it is
        exact = text.strip().lower()
        found = [
            n
            for n in self._names
            if n.core == core and qualifiers <= n.qualifiers and (core or n.text.lower() == exact)
        ]
        # a chip (GH100) or a bare brand word that is the product (TITAN)
        if not found and core:
            found = [n for n in self._chip_names if n.core == core and not qualifiers - _BRANDS]
        plain = [n for n in found if not (n.qualifiers & _RARE) - qualifiers]
        return plain or found

    def _answer(self, text: str, names: list[_Name]) -> GpuMatch:
        groups: dict[tuple[str, str], list[_Name]] = {}
        for name in names:
            chip = self.data.chips[self.data.devices[name.device_id].chip]
            groups.setdefault((chip.architecture, chip.cc), []).append(name)
        families = [self._family(group) for _, group in sorted(groups.items(), key=lambda item: key(item[0][1]))]
        if len(families) == 1:
            return GpuMatch(text=text, gpu=families[0])
        return GpuMatch(text=text, candidates=tuple(families))

    def _family(self, names: list[_Name]) -> Gpu:
        ids = sorted({name.device_id for name in names})
        members = [self.by_id(device_id) for device_id in ids]
        first = members[0]
        shortest = min((name.text for name in names), key=lambda t: (len(t), t)).removeprefix("NVIDIA ")
        if len(members) == 1:
            # One id may stand for several products (A2 and A16): the one that was asked for gives the name.
            named = {core for name in names for core in name.core} & _tokens(first.name)[0]
            return first if named else first.model_copy(update={"name": shortest})
        fabrics = {m.fabric for m in members} - {"unknown"}
        migs = {m.mig for m in members}
        mig_drivers = [m.mig_driver for m in members if m.mig_driver]
        modules: tuple[Flavour, ...] = tuple(f for f in first.modules if all(f in m.modules for m in members))
        # What some board of the family gets, the family gets; a board that no table lists has no say beside one that is listed.
        listed = [m for m in members if m.listed_from]
        oldest = min(listed or members, key=lambda m: m.first_branch or 0)
        return first.model_copy(
            update={
                "ids": tuple(ids),
                "name": _family_name(shortest),
                "segment": first.segment if len({m.segment for m in members}) == 1 else _common_segment(members),
                "fabric": fabrics.pop() if len(fabrics) == 1 else "depends" if fabrics else "unknown",
                "mig": migs.pop() if len(migs) == 1 else None,
                "mig_driver": min(mig_drivers, key=key, default=None),
                "modules": modules or first.modules,
                "first_branch": oldest.first_branch,
                "first_branch_certainty": oldest.first_branch_certainty,
                "listed_from": oldest.listed_from,
                "without": tuple(b for b in oldest.without if all(m.why_not(b) for m in listed)),
                "note": None,
            }
        )

    def _nearest(self, text: str) -> tuple[str, ...]:
        wanted = " ".join(sorted(_split(text)))
        known = {" ".join(sorted(n.core)): n for n in self._names if not n.qualifiers & _RARE}
        core = " ".join(sorted(_tokens(text)[0])) or wanted
        hits = difflib.get_close_matches(core, known, n=4, cutoff=0.5)
        return tuple(dict.fromkeys(_family_name(known[hit].text.removeprefix("NVIDIA ")) for hit in hits))

    @cached_property
    def _names(self) -> list[_Name]:
        names = []
        for device_id, device in self.data.devices.items():
            board = self._boards.get(device_id)
            extra = (board.name, *board.aliases) if board else ()
            architecture = frozenset(self.data.chips[device.chip].architecture.lower().split())
            for text in dict.fromkeys((device.name, *_variants(device.name), *device.also, *extra)):
                core, qualifiers = _tokens(text)
                # "Titan X Pascal", "RTX 6000 Turing"
                qualifiers |= architecture
                if device.mobile and not qualifiers & _RARE:
                    qualifiers |= {"mobile"}
                if device.rare:
                    qualifiers |= {"oem"}
                names.append(_Name(core, qualifiers, device_id, text))
        return names

    @cached_property
    def _chip_names(self) -> list[_Name]:
        return [
            _Name(frozenset({device.chip.lower()}), frozenset(), device_id, device.chip)
            for device_id, device in self.data.devices.items()
        ]


def _family_name(text: str) -> str:
    """Name without what tells boards apart: ``Tesla V100 FHHL`` gives ``Tesla V100``."""
    kept = []
    for word in text.split():
        parts = re.findall(r"[a-z0-9]+", word.lower())
        if not parts or not all(p in _FORMS or p in ("edition", "generation") or _QUALIFIER.match(p) for p in parts):
            kept.append(word)
    return " ".join(kept)


def _common_segment(members: list[Gpu]) -> str:
    """Most frequent segment; the first of equals."""
    segments = [m.segment for m in members]
    return max(dict.fromkeys(segments), key=segments.count)


def _variants(name: str) -> Iterable[str]:
    """Names that a combined one stands for: ``GeForce 945M / 945A`` gives ``GeForce 945M``, ``GeForce
    945A``."""
    parts = [part.strip() for part in name.split(" / ")]
    if len(parts) == 1:
        return parts
    brand = " ".join(word for word in parts[0].split() if word.lower() in _BRANDS)
    return [
        parts[0],
        *(
            part if any(c.isdigit() for c in part) and len(part.split()) > 1 else f"{brand} {part}".strip()
            for part in parts[1:]
        ),
    ]


def _split(text: str) -> list[str]:
    """Lower-case words; ``rtx3090`` and ``1080ti`` come apart, ``max-q`` stays together."""
    lowered = _COUNT.sub("", text.lower().strip()).replace("max-q", "maxq")
    words: list[str] = []
    for found in re.findall(r"[a-z0-9]+", lowered):
        word = found
        tails: list[str] = []
        if head := _HEAD.match(word):
            words += [part for part in head.groups()[:2] if part]
            word = head.group(3)
        while tail := _TAIL.match(word):
            word = tail.group(1)
            tails.insert(0, tail.group(2))
        words += [word, *tails]
    # "80 GB" is one word
    joined: list[str] = []
    for word in words:
        if word in ("gb", "g") and joined and joined[-1].isdigit():
            joined[-1] += "gb"
        else:
            joined.append(word)
    return joined


def _tokens(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Split a name into what makes the product and what only tells boards apart."""
    core: set[str] = set()
    qualifiers: set[str] = set()
    for word in _split(text):
        if word in _BRANDS or word in _FORMS or word in _RARE or _QUALIFIER.match(word):
            qualifiers.add(word)
            if re.fullmatch(r"sxm\d", word):
                qualifiers.add("sxm")
            if word == "laptop":
                qualifiers.add("mobile")
        else:
            core.add(word)
    return frozenset(core), frozenset(qualifiers)
