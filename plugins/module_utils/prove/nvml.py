# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""NVML by ctypes: what the driver says of its cards, links and health. Reads only; no nvidia-smi is needed.

Jobs (run by proverun in a child): ``survey`` reads everything once. ``Watch`` samples one card while it works.
What a card or driver does not know is None, never guessed. Source: nvml.h (the numbers of enumerations are its).
"""

from __future__ import annotations

import ctypes

_u32, _u64, _void = ctypes.c_uint, ctypes.c_ulonglong, ctypes.c_void_p

# nvmlReturn_t: what a card, a driver or a user simply does not have.
# not supported, no permission, not found, function not found
_ABSENT = (3, 4, 6, 13)
NAME_SIZE = 96

# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo -m`.
LEVELS = {0: "SELF", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
# nvmlGpuFabricState_t
FABRIC_STATES = {0: "not supported", 1: "not started", 2: "in progress", 3: "completed"}
MAX_NVLINKS = 36
# nvmlNvlinkVersion_t: the version, and GB/s of one direction of one link where the driver does not say (data sheets).
NVLINK_VERSIONS = {
    1: ("1.0", 20.0),
    2: ("2.0", 25.0),
    3: ("2.2", 25.0),
    4: ("3.0", 25.0),
    5: ("3.1", 25.0),
    6: ("4.0", 25.0),
    7: ("5.0", 50.0),
}


class NvmlError(Exception):
    """A call of NVML failed. code: nvmlReturn_t; name: what was called."""

    def __init__(self, code, call, text):
        super(NvmlError, self).__init__("%s returned %d (%s)" % (call, code, text))
        # Kept apart from CUDA's codes, which proveerrors explains.
        self.nvml_code, self.call = code, call


class _Pci(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        ("domain", _u32),
        ("bus", _u32),
        ("device", _u32),
        ("ids", _u32),
        ("subsystem", _u32),
        ("bus_id", ctypes.c_char * 32),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [("total", _u64), ("free", _u64), ("used", _u64)]


class _Process(ctypes.Structure):
    _fields_ = [("pid", _u32), ("memory", _u64), ("gpu_instance", _u32), ("compute_instance", _u32)]


class _Fabric(ctypes.Structure):
    _fields_ = [("cluster", ctypes.c_ubyte * 16), ("status", _u32), ("clique", _u32), ("state", ctypes.c_ubyte)]


class _Field(ctypes.Structure):
    _fields_ = [
        ("field", _u32),
        ("scope", _u32),
        ("timestamp", ctypes.c_int64),
        ("latency", ctypes.c_int64),
        ("kind", _u32),
        ("code", _u32),
        ("value", _u64),
    ]


class _SramErrors(ctypes.Structure):
    """nvmlEccSramErrorStatus_v1_t: counts of errors over the card's life, since the driver was loaded, and by their place."""

    _fields_ = [
        ("version", _u32),
        ("aggregate", _u64 * 3),
        ("volatile", _u64 * 3),
        ("places", _u64 * 5),
        ("threshold_exceeded", _u32),
    ]


class _Repair(ctypes.Structure):
    _fields_ = [("version", _u32), ("channel", _u32), ("tpc", _u32)]


class _Margin(ctypes.Structure):
    _fields_ = [("version", _u32), ("celsius", ctypes.c_int)]


class _Histogram(ctypes.Structure):
    _fields_ = [(name, _u32) for name in ("max", "high", "partial", "low", "none")]


class Nvml(object):
    """libnvidia-ml.so.1, loaded and initialised. Raises OSError when it cannot be loaded, NvmlError when it fails."""

    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.library.nvmlErrorString.restype = ctypes.c_char_p
        self.call("nvmlInit_v2")

    def call(self, name, *arguments):
        """Call a function; raises NvmlError unless it succeeds, with code 13 where the driver has no such function."""
        function = getattr(self.library, name, None)
        code = 13 if function is None else function(*arguments)
        if code != 0:
            raise NvmlError(code, name, self.library.nvmlErrorString(code).decode())

    def ask(self, name, *arguments, kind=_u32, many=1):
        """Return what a function writes to its last ``many`` parameters (one: the value, more: a list), or None.

        None is for what the card or the driver does not have; other errors raise.
        """
        values = [kind() for _ in range(many)]
        try:
            self.call(name, *(list(arguments) + [ctypes.byref(value) for value in values]))
        except NvmlError as error:
            if error.nvml_code in _ABSENT:
                return None
            raise
        plain = [value.value if hasattr(value, "value") else value for value in values]
        return plain[0] if many == 1 else plain

    def text(self, name, *arguments):
        buffer = ctypes.create_string_buffer(NAME_SIZE)
        try:
            self.call(name, *(list(arguments) + [buffer, NAME_SIZE]))
        except NvmlError as error:
            if error.nvml_code in _ABSENT:
                return None
            raise
        return buffer.value.decode("utf-8", "replace")

    def field(self, card, number, scope=0):
        """Value of a field (NVML_FI_...) as an unsigned number, or None."""
        field = _Field(field=number, scope=scope)
        try:
            self.call("nvmlDeviceGetFieldValues", card, 1, ctypes.byref(field))
        except NvmlError as error:
            if error.nvml_code in _ABSENT + (2,):
                return None
            raise
        return (field.value & 0xFFFFFFFF) if field.code == 0 else None

    def structure(self, name, card, kind):
        """What a function writes to a structure, or None. The first field of one that has a version is its size and 1."""
        value = kind()
        if kind._fields_[0][0] == "version":
            value.version = ctypes.sizeof(kind) | 1 << 24
        try:
            self.call(name, card, ctypes.byref(value))
        except NvmlError as error:
            # 2, 25: another driver knows other structures
            if error.nvml_code in _ABSENT + (2, 25):
                return None
            raise
        return value

    def count(self):
        return self.ask("nvmlDeviceGetCount_v2")

    def card(self, index):
        return self.ask("nvmlDeviceGetHandleByIndex_v2", index, kind=_void, many=1)

    def card_by_uuid(self, uuid):
        return self.ask("nvmlDeviceGetHandleByUUID", uuid.encode("ascii"), kind=_void)


def survey(args, say):
    """Job: read every card once: {"driver", "cuda", "cards": [..], "pairs": [..], "lost": [indexes that do not answer]}."""
    say("loading libnvidia-ml.so.1")
    nvml = Nvml()
    cuda = nvml.ask("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int)
    result = {
        "driver": _system_driver(nvml),
        "cuda": "%d.%d" % (cuda // 1000, cuda % 1000 // 10) if cuda else None,
        "cards": [],
        "pairs": [],
        "lost": [],
    }
    handles = {}
    for index in range(nvml.count()):
        say("reading card %d" % index)
        try:
            handles[index] = _void(nvml.card(index))
            result["cards"].append(read_card(nvml, handles[index], index))
        except NvmlError as error:
            # 15: fell off the bus; 999, 17, …: it is there and does not answer.
            handles.pop(index, None)
            result["lost"].append({"index": index, "error": str(error)})
    links = {card["index"]: [row for row in card["nvlinks"] if row["active"]] for card in result["cards"]}
    buses = {card["bus_id"]: card["index"] for card in result["cards"]}
    for a in sorted(handles):
        for b in sorted(handles):
            if a < b:
                result["pairs"].append(_pair(nvml, a, b, handles, links, buses))
    return result


def _system_driver(nvml):
    buffer = ctypes.create_string_buffer(NAME_SIZE)
    nvml.call("nvmlSystemGetDriverVersion", buffer, NAME_SIZE)
    return buffer.value.decode()


def read_card(nvml, card, index):
    """Return what is known of one card, as a dict; None for what it does not have."""
    pci = _Pci()
    nvml.call("nvmlDeviceGetPciInfo_v3", card, ctypes.byref(pci))
    memory = _Memory()
    nvml.call("nvmlDeviceGetMemoryInfo", card, ctypes.byref(memory))
    cc = nvml.ask("nvmlDeviceGetCudaComputeCapability", card, kind=ctypes.c_int, many=2)
    mig = nvml.ask("nvmlDeviceGetMigMode", card, many=2)
    sram = nvml.structure("nvmlDeviceGetSramEccErrorStatus", card, _SramErrors)
    repair = nvml.structure("nvmlDeviceGetRepairStatus", card, _Repair)
    margin = nvml.structure("nvmlDeviceGetMarginTemperature", card, _Margin)
    histogram = nvml.structure("nvmlDeviceGetRowRemapperHistogram", card, _Histogram)
    flags = (
        ("sram_threshold_exceeded", sram and sram.threshold_exceeded),
        ("channel_repair_pending", repair and repair.channel),
        ("tpc_repair_pending", repair and repair.tpc),
    )
    return {
        "index": index,
        "name": nvml.text("nvmlDeviceGetName", card),
        "uuid": nvml.text("nvmlDeviceGetUUID", card),
        "serial": nvml.text("nvmlDeviceGetSerial", card),
        "bus_id": "%04x:%02x:%02x.0" % (pci.domain, pci.bus, pci.device),
        "pci_id": "%04x" % (pci.ids >> 16),
        "minor": nvml.ask("nvmlDeviceGetMinorNumber", card),
        "cc": None if cc is None else "%d.%d" % tuple(cc),
        "memory_mib": memory.total >> 20,
        "used_mib": memory.used >> 20,
        "vbios": nvml.text("nvmlDeviceGetVbiosVersion", card),
        "persistence": _truth(nvml.ask("nvmlDeviceGetPersistenceMode", card)),
        "compute_mode": nvml.ask("nvmlDeviceGetComputeMode", card),
        "mig": None if mig is None else {"current": bool(mig[0]), "pending": bool(mig[1])},
        "mig_instances": _instances(nvml, card) if mig and mig[0] else [],
        # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, since 570
        "recovery": nvml.field(card, 230),
        # as nvidia-smi -q -x names what it says Yes to
        "flags": [name for name, yes in flags if yes],
        "sram_corrected": sram and sram.aggregate[2],
        "histogram": histogram and {name: getattr(histogram, name) for name, _ in _Histogram._fields_},
        "ecc": _ecc(nvml, card),
        "pcie": _pcie(nvml, card),
        "nvlinks": _nvlinks(nvml, card),
        "fabric": _fabric(nvml, card),
        "temperature": {
            "now": nvml.ask("nvmlDeviceGetTemperature", card, 0),
            "shutdown": nvml.ask("nvmlDeviceGetTemperatureThreshold", card, 0),
            "slowdown": nvml.ask("nvmlDeviceGetTemperatureThreshold", card, 1),
            "maximum": nvml.ask("nvmlDeviceGetTemperatureThreshold", card, 3),
            # NVML_FI_DEV_MEMORY_TEMP
            "memory": nvml.field(card, 82) or None,
            "memory_maximum": nvml.ask("nvmlDeviceGetTemperatureThreshold", card, 2) or None,
            # how far from the nearest slowdown
            "margin": margin and margin.celsius,
        },
        "power_limit_w": _watts(nvml.ask("nvmlDeviceGetEnforcedPowerLimit", card)),
        "max_sm_mhz": nvml.ask("nvmlDeviceGetMaxClockInfo", card, 1),
        "max_memory_mhz": nvml.ask("nvmlDeviceGetMaxClockInfo", card, 2),
        "users": _users(nvml, card),
    }


def _truth(value):
    return None if value is None else bool(value)


def _watts(milliwatts):
    return None if milliwatts is None else round(milliwatts / 1000.0, 1)


def _instances(nvml, card):
    found = []
    for index in range(nvml.ask("nvmlDeviceGetMaxMigDeviceCount", card) or 0):
        handle = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", card, index, kind=_void)
        if handle:
            instance = _void(handle)
            found.append(
                {"uuid": nvml.text("nvmlDeviceGetUUID", instance), "name": nvml.text("nvmlDeviceGetName", instance)}
            )
    return found


def _ecc(nvml, card):
    """Uncorrected and corrected errors, since the driver was loaded and over the card's life; rows and pages."""
    mode = nvml.ask("nvmlDeviceGetEccMode", card, many=2)
    rows = nvml.ask("nvmlDeviceGetRemappedRows", card, many=4)
    return {
        "on": None if mode is None else bool(mode[0]),
        "pending": None if mode is None else bool(mode[1]),
        "volatile_uncorrected": nvml.ask("nvmlDeviceGetTotalEccErrors", card, 1, 0, kind=_u64),
        "volatile_corrected": nvml.ask("nvmlDeviceGetTotalEccErrors", card, 0, 0, kind=_u64),
        "aggregate_uncorrected": nvml.ask("nvmlDeviceGetTotalEccErrors", card, 1, 1, kind=_u64),
        "aggregate_corrected": nvml.ask("nvmlDeviceGetTotalEccErrors", card, 0, 1, kind=_u64),
        "remapped": None
        if rows is None
        else {"corrected": rows[0], "uncorrected": rows[1], "pending": bool(rows[2]), "failed": bool(rows[3])},
        "retired_pages": [_retired(nvml, card, cause) for cause in (0, 1)],
        "retired_pending": _truth(nvml.ask("nvmlDeviceGetRetiredPagesPendingStatus", card)),
    }


def _retired(nvml, card, cause):
    """Number of pages retired for single (cause 0) or double bit errors (1); None on cards that remap rows."""
    count = _u32(0)
    try:
        nvml.call("nvmlDeviceGetRetiredPages", card, cause, ctypes.byref(count), None)
    except NvmlError as error:
        # "insufficient size": count says how many there are
        if error.nvml_code == 7:
            return count.value
        if error.nvml_code in _ABSENT:
            return None
        raise
    return count.value


def _pcie(nvml, card):
    """Generation and width now, the most that card and slot can do together, and the most of the card alone."""
    return {
        "generation": nvml.ask("nvmlDeviceGetCurrPcieLinkGeneration", card),
        "width": nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", card),
        "max_generation": nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", card),
        "max_width": nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", card),
        "card_generation": nvml.ask("nvmlDeviceGetGpuMaxPcieLinkGeneration", card),
        "replays": nvml.ask("nvmlDeviceGetPcieReplayCounter", card),
    }


def _nvlinks(nvml, card):
    """[{"link", "active", "version", "remote", "kind", "gb_per_s"}] of the card's links; kind: gpu, switch, npu."""
    found = []
    for link in range(MAX_NVLINKS):
        try:
            active = nvml.ask("nvmlDeviceGetNvLinkState", card, link)
        except NvmlError as error:
            # invalid argument: the card has fewer links
            if error.nvml_code == 2:
                break
            raise
        if active is None:
            break
        row = {"link": link, "active": bool(active), "version": None, "remote": None, "kind": None, "gb_per_s": None}
        if active:
            row["version"], nominal = NVLINK_VERSIONS.get(
                nvml.ask("nvmlDeviceGetNvLinkVersion", card, link), (None, None)
            )
            row["gb_per_s"] = _speed(nvml, card, link) or nominal
            pci = _Pci()
            try:
                nvml.call("nvmlDeviceGetNvLinkRemotePciInfo_v2", card, link, ctypes.byref(pci))
                row["remote"] = "%04x:%02x:%02x.0" % (pci.domain, pci.bus, pci.device)
            except NvmlError as error:
                # A switch that belongs to the machine outside has no address in a virtual one.
                if error.nvml_code not in _ABSENT + (2, 999):
                    raise
            kind = nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", card, link)
            row["kind"] = {0: "gpu", 1: "npu", 2: "switch"}.get(kind)
        found.append(row)
    return found


def _speed(nvml, card, link):
    """GB/s of one direction of a link: NVML_FI_DEV_NVLINK_GET_SPEED, else the field of that link's own; None if unsaid."""
    for number, scope in ((164, link), (84 + link if link < 6 else 126 + link if link < 12 else None, 0)):
        said = nvml.field(card, number, scope) if number else None
        if said and 1000 <= said <= 200000:
            return said / 1000.0
    return None


def _fabric(nvml, card):
    fabric = _Fabric()
    try:
        nvml.call("nvmlDeviceGetGpuFabricInfo", card, ctypes.byref(fabric))
    except NvmlError as error:
        if error.nvml_code in _ABSENT + (2,):
            return None
        raise
    return {
        "state": FABRIC_STATES.get(fabric.state, str(fabric.state)),
        "status": fabric.status,
        "clique": fabric.clique,
    }


def _users(nvml, card):
    """[pid] of processes that compute on the card; empty also where NVML does not say (other containers)."""
    rows = (_Process * 256)()
    count = _u32(256)
    try:
        nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", card, ctypes.byref(count), rows)
    except NvmlError as error:
        if error.nvml_code in _ABSENT + (7,):
            return []
        raise
    return [rows[index].pid for index in range(count.value)]


def _pair(nvml, a, b, handles, links, buses):
    """How two cards are joined: PCI level, NVLinks between them (directly, or by switches), what the driver allows.

    links: {index: [rows of _nvlinks that are active]}; buses: {bus_id: index}.
    """
    level = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
    direct = [row for row in links[a] if buses.get(row["remote"]) == b]
    # In a virtual machine the other end of a link to a switch is not shown: then whoever is no other card is one.
    switched = [[row for row in links[x] if buses.get(row["remote"]) is None] for x in (a, b)]
    through = direct or min(switched, key=len)
    status = {
        # nvmlGpuP2PCapsIndex_t: 0 read, 1 write, 2 NVLink; 0 is "ok"
        name: nvml.ask("nvmlDeviceGetP2PStatus", handles[a], handles[b], number)
        for name, number in (("read", 0), ("write", 1), ("nvlink", 2))
    }
    return {
        "a": a,
        "b": b,
        "level": LEVELS.get(level),
        "nvlinks": len(through),
        "switched": bool(through) and not direct,
        "version": next((row["version"] for row in through if row["version"]), None),
        "nvlink_gb_per_s": round(sum(row["gb_per_s"] or 0.0 for row in through), 1),
        "p2p": status,
    }


# NVML_FI_DEV_NVLINK_*_ERROR_COUNT_TOTAL of flow control CRC, data CRC, replay, recovery: over all links of a card.
_LINK_ERRORS = (38, 45, 52, 59)


def link_errors(uuids):
    """[how many errors the NVLinks of each card have counted, None where it does not say]; none of them without NVML."""
    try:
        nvml = Nvml()
        cards = [nvml.card_by_uuid(uuid) for uuid in uuids]
        counts = [[nvml.field(_void(card), number) for number in _LINK_ERRORS] if card else [] for card in cards]
    except (OSError, NvmlError):
        return []
    said = [[count for count in row if count is not None] for row in counts]
    return [sum(row) if row else None for row in said]


class Watch(object):
    """Samples of one card while it works: clocks, throttle reasons, temperature, power, PCIe link.

    Where NVML does not answer there are no samples; that is no failure of what is watched.
    """

    def __init__(self, uuid):
        self.samples, self.nvml, self.card = [], None, None
        if not uuid:
            return
        try:
            self.nvml = Nvml()
            handle = self.nvml.card_by_uuid(uuid)
            self.card = _void(handle) if handle else None
        except (OSError, NvmlError):
            self.card = None

    def sample(self):
        """Take one sample."""
        if self.card is None:
            return
        ask, card = self.nvml.ask, self.card
        self.samples.append(
            {
                "sm_mhz": ask("nvmlDeviceGetClockInfo", card, 1),
                "memory_mhz": ask("nvmlDeviceGetClockInfo", card, 2),
                "reasons": ask("nvmlDeviceGetCurrentClocksThrottleReasons", card, kind=_u64),
                "temperature": ask("nvmlDeviceGetTemperature", card, 0),
                "power_w": _watts(ask("nvmlDeviceGetPowerUsage", card)),
                "generation": ask("nvmlDeviceGetCurrPcieLinkGeneration", card),
                "width": ask("nvmlDeviceGetCurrPcieLinkWidth", card),
                "replays": ask("nvmlDeviceGetPcieReplayCounter", card),
            }
        )
