# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""CUDA's driver API by ctypes, and the jobs that compute on one card with it: no toolkit is needed.

Jobs (run by proverun in a child): ``visible`` lists what a CUDA program sees, ``compute`` proves one card.
Source: cuda.h; the names with _v2 are what the header has meant since CUDA 3.2 and 4.0.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import time

from ansible_collections.gpu.provision.plugins.module_utils.prove import nvml
from ansible_collections.gpu.provision.plugins.module_utils.prove import ptx as prove_ptx
from ansible_collections.gpu.provision.plugins.module_utils.prove import tensor as prove_tensor

MIB = 1 << 20
THREADS = 256
# The product is periodic by these primes, so that a few dot products on the CPU prove every element of it.
ROWS, COLUMNS = 31, 29
# What the driver itself and other small allocations need besides the tested memory.
KEEP_FREE = 600 * MIB

_u64, _int, _void = ctypes.c_uint64, ctypes.c_int, ctypes.c_void_p


class CudaError(Exception):
    """A call of the driver API failed. code: CUresult; name: what was called."""

    def __init__(self, code, call, text):
        super(CudaError, self).__init__("%s returned %d (%s)" % (call, code, text))
        self.code, self.name = code, call


class Driver(object):
    """libcuda.so.1, loaded and initialised. Raises OSError when it cannot be loaded, CudaError when it fails."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)

    def call(self, name, *arguments):
        """Call a function of the driver API; raises CudaError when it returns anything but success."""
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(code, name, (text.value or b"unknown").decode())

    def number(self, name, *arguments, kind=_int):
        """Call a function whose first parameter is a pointer to a number, and return the number."""
        value = kind()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def version(self):
        """Version of CUDA that the driver is of, as "13.0"."""
        value = self.number("cuDriverGetVersion")
        return "%d.%d" % (value // 1000, value % 1000 // 10)

    def count(self):
        return self.number("cuDeviceGetCount")


# CUdevice_attribute
_SM_COUNT, _CC_MAJOR, _CC_MINOR, _PCI_BUS, _PCI_DEVICE, _PCI_DOMAIN = 16, 75, 76, 33, 34, 50


class Card(object):
    """One CUDA device, its primary context made current (what the CUDA runtime, cuDNN and NCCL use too)."""

    def __init__(self, driver, index):
        self.driver = driver
        self.device = driver.number("cuDeviceGet", index)
        self.cc = (self.attribute(_CC_MAJOR), self.attribute(_CC_MINOR))
        self.processors = self.attribute(_SM_COUNT)
        self.context = _void()
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.use()
        self.module = None

    def use(self):
        self.driver.call("cuCtxSetCurrent", self.context)

    def attribute(self, number):
        return self.driver.number("cuDeviceGetAttribute", number, self.device)

    def describe(self):
        """{name, uuid, bus_id, cc, processors, memory_bytes} of the device."""
        return describe(self.driver, self.device)

    def load(self):
        """Compile the shipped PTX for this card by the driver. Raises CudaError (218, 221, 222, …)."""
        self.module = self.compile(prove_ptx.text(self.cc))

    def compile(self, text, missing=()):
        """Module of PTX that the driver compiles; None where it answers one of the codes in missing. Raises CudaError."""
        module = _void()
        try:
            self.driver.call("cuModuleLoadData", ctypes.byref(module), text.encode("ascii") + b"\0")
        except CudaError as error:
            if error.code not in missing:
                raise
            return None
        return module

    def allocate(self, size):
        """Address of size bytes of the card's memory; freed with the context or by free()."""
        address = _u64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def free(self, address):
        self.driver.call("cuMemFree_v2", _u64(address))

    def memory(self):
        """(free, total) bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def clear(self, address, size):
        """Zeros, so that a result that was never written is not taken for the one before."""
        self.driver.call("cuMemsetD8_v2", _u64(address), ctypes.c_ubyte(0), ctypes.c_size_t(size))

    def put(self, address, data):
        view = (ctypes.c_char * len(data)).from_buffer(data)
        self.driver.call("cuMemcpyHtoD_v2", _u64(address), view, ctypes.c_size_t(len(data)))

    def get(self, address, size):
        data = bytearray(size)
        view = (ctypes.c_char * size).from_buffer(data)
        self.driver.call("cuMemcpyDtoH_v2", view, _u64(address), ctypes.c_size_t(size))
        return data

    def launch(self, name, arguments, grid=None, block=None, stream=None, module=None):
        """Start a kernel of module, or of what load() compiled. arguments: ctypes values in order; the grid fills the card
        when none is given."""
        function = _void()
        self.driver.call("cuModuleGetFunction", ctypes.byref(function), module or self.module, name.encode())
        pointers = (_void * len(arguments))(*[ctypes.addressof(value) for value in arguments])
        grid, block = grid or (self.processors * 16, 1, 1), block or (THREADS, 1, 1)
        self.driver.call(
            "cuLaunchKernel", function, *(list(grid) + list(block)), 0, stream or _void(0), pointers, _void(0)
        )

    def synchronize(self):
        self.driver.call("cuCtxSynchronize")

    def counted_wrong(self, kernel, address, parameter, count):
        """Run a comparing kernel and return (how many differ, lowest index that does or None)."""
        wrong = self.allocate(8)
        self.put(wrong, bytearray(array.array("I", [0, 0xFFFFFFFF]).tobytes()))
        self.launch(kernel, [_u64(address), parameter, _u64(wrong), ctypes.c_uint(count)])
        self.synchronize()
        many, first = array.array("I", bytes(self.get(wrong, 8)))
        self.free(wrong)
        return many, first if many else None

    def seconds(self, work):
        """Run work() between two events and return the seconds that the card took for it."""
        events = [_void(), _void()]
        for event in events:
            self.driver.call("cuEventCreate", ctypes.byref(event), 0)
        self.driver.call("cuEventRecord", events[0], _void(0))
        work()
        self.driver.call("cuEventRecord", events[1], _void(0))
        self.driver.call("cuEventSynchronize", events[1])
        milliseconds = ctypes.c_float()
        self.driver.call("cuEventElapsedTime", ctypes.byref(milliseconds), events[0], events[1])
        for event in events:
            self.driver.call("cuEventDestroy_v2", event)
        return max(milliseconds.value, 1e-6) / 1e3

    def close(self):
        self.driver.call("cuDevicePrimaryCtxRelease_v2", self.device)


def describe(driver, device):
    """{name, uuid, bus_id, cc, processors, memory_bytes} of a device by its handle."""
    name, uuid = ctypes.create_string_buffer(100), (ctypes.c_ubyte * 16)()
    driver.call("cuDeviceGetName", name, 100, device)
    # _v2 names the MIG instance where there is one; drivers before 470 have only the first.
    by_instance = hasattr(driver.library, "cuDeviceGetUuid_v2")
    driver.call("cuDeviceGetUuid_v2" if by_instance else "cuDeviceGetUuid", uuid, device)
    attribute = [
        driver.number("cuDeviceGetAttribute", number, device)
        for number in (_PCI_DOMAIN, _PCI_BUS, _PCI_DEVICE, _CC_MAJOR, _CC_MINOR, _SM_COUNT)
    ]
    return {
        "name": name.value.decode("utf-8", "replace"),
        "uuid": _uuid(bytes(uuid)),
        "bus_id": "%04x:%02x:%02x.0" % tuple(attribute[:3]),
        "cc": "%d.%d" % tuple(attribute[3:5]),
        "processors": attribute[5],
        "memory_bytes": driver.number("cuDeviceTotalMem_v2", device, kind=ctypes.c_size_t),
    }


def _uuid(raw):
    text = raw.hex()
    return "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]])


# --- jobs --------------------------------------------------------------------------------------------------


def visible(args, say):
    """Job: what a CUDA program sees in this environment: {"cuda", "cards": [describe()]}, without touching memory."""
    say("loading libcuda.so.1")
    driver = Driver()
    cards = [describe(driver, driver.number("cuDeviceGet", index)) for index in range(driver.count())]
    return {"cuda": driver.version(), "cards": cards}


def compute(args, say):
    """Job: prove the one card that CUDA_VISIBLE_DEVICES leaves.

    args: {"uuid": for NVML's readings under load or None, "load_s": seconds of matrix work, "deep": bool,
    "deep_s": most seconds for memory, "lock": file that lets one card after another use the bus}. Returns
    {"card", "cuda", "numbers", "wrong": [sentences], "load": samples of prove.nvml.Watch} and what prove.tensor adds.
    """
    say("initialising the driver")
    driver = Driver()
    say("making a context")
    card = Card(driver, 0)
    result = {"card": card.describe(), "cuda": driver.version(), "numbers": {}, "wrong": [], "load": []}
    started = time.monotonic()
    say("compiling PTX")
    card.load()
    result["numbers"]["jit_ms"] = round((time.monotonic() - started) * 1e3, 1)
    for what, test in (("vector add", _vector), ("matrix product", _matrix), ("copying memory", _copy)):
        say(what)
        test(card, args, result)
    say("tensor cores and FP64")
    prove_tensor.prove(card, result)
    if args.get("deep"):
        say("writing and reading memory")
        _memory(card, args, result)
    card.close()
    return result


def _vector(card, args, result):
    """c = a + b over 2**20 values, compared bit by bit with the CPU's; then the bus is timed."""
    count = 1 << 20
    a = array.array("f", [float(i * 7 % 1021) for i in range(1021)] * (count // 1021 + 1))[:count]
    b = array.array("f", [float(i * 13 % 509) for i in range(509)] * (count // 509 + 1))[:count]
    right = array.array("f", [x + y for x, y in zip(a, b)]).tobytes()  # noqa: B905 -- Python 3.8
    size = count * 4
    pa, pb, pc = [card.allocate(size) for _ in range(3)]
    card.put(pa, bytearray(a.tobytes()))
    card.put(pb, bytearray(b.tobytes()))
    card.launch("add", [_u64(pa), _u64(pb), _u64(pc), ctypes.c_uint(count)])
    card.synchronize()
    _compare(result, "vector add", bytes(card.get(pc, size)), right)
    for address in (pa, pb, pc):
        card.free(address)
    # Cards that share a PCIe switch would halve each other's rate: they take turns.
    with open(args["lock"], "w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        _bus(card, result)


def _bus(card, result):
    """Time pinned memory to the card and back."""
    size = 128 * MIB
    host, address = _void(), card.allocate(size)
    card.driver.call("cuMemAllocHost_v2", ctypes.byref(host), ctypes.c_size_t(size))
    whole = ctypes.c_size_t(size)
    for name, call, pair in (
        ("host_to_card", "cuMemcpyHtoDAsync_v2", (_u64(address), host)),
        ("card_to_host", "cuMemcpyDtoHAsync_v2", (host, _u64(address))),
    ):

        def work(call=call, pair=pair):
            card.driver.call(call, pair[0], pair[1], whole, _void(0))

        best = min(card.seconds(work) for _ in range(3))
        result["numbers"][name + "_gb_per_s"] = round(size / best / 1e9, 2)
    card.driver.call("cuMemFreeHost", host)
    card.free(address)


def pattern_product(n, rows=ROWS, columns=COLUMNS):
    """Return (A, B, product) as bytes, product as {(row, column): row pattern}.

    A[i][k] = (i + 2k) mod rows, B[k][j] = (3k + j) mod columns: the product at (i, j) depends on i mod rows and j mod
    columns only, and is exact in float while rows * columns * n < 2**24. product: the first ``rows`` rows as bytes.
    """
    a_rows = [array.array("f", [float((i + 2 * k) % rows) for k in range(n)]) for i in range(rows)]
    b_rows = [array.array("f", [float((k + j) % columns) for j in range(n)]) for k in range(columns)]
    a = b"".join(a_rows[i % rows].tobytes() for i in range(n))
    b = b"".join(b_rows[3 * k % columns].tobytes() for k in range(n))
    product = []
    for i in range(rows):
        # Values of B are the same for all k of one residue: sum A by residue first.
        by_residue = [0.0] * columns
        for k in range(n):
            by_residue[3 * k % columns] += a_rows[i][k]
        cycle = [
            sum(weight * ((residue + j) % columns) for residue, weight in enumerate(by_residue)) for j in range(columns)
        ]
        product.append(array.array("f", (cycle * (n // columns + 1))[:n]).tobytes())
    return a, b, product


class Product(object):
    """C = A B on a card, every element known to the CPU."""

    def __init__(self, card):
        self.card, self.n = card, 4096 if card.memory()[0] > 1024 * MIB else 1024
        a, b, product = pattern_product(self.n)
        self.size = self.n * self.n * 4
        self.places = [card.allocate(self.size) for _ in range(3)]
        card.put(self.places[0], bytearray(a))
        card.put(self.places[1], bytearray(b))
        self.right = b"".join(product[i % ROWS] for i in range(self.n))

    def clear(self):
        self.card.clear(self.places[2], self.size)

    def once(self):
        tiles = (self.n // prove_ptx.TILE, self.n // prove_ptx.TILE, 1)
        arguments = [_u64(place) for place in self.places] + [ctypes.c_uint(self.n)]
        self.card.launch("matmul", arguments, grid=tiles, block=(16, 16, 1))

    def seconds(self, times):
        return self.card.seconds(lambda: [self.once() for _ in range(times)])

    def gflops(self, times, seconds):
        return round(2.0 * self.n**3 * times / seconds / 1e9, 1)

    def compare(self, result, what):
        """Add to result["wrong"] what differs from the CPU's product."""
        _compare(result, what, bytes(self.card.get(self.places[2], self.size)), self.right)

    def close(self):
        for place in self.places:
            self.card.free(place)


def _matrix(card, args, result):
    """C = A B, every element compared with the CPU's; then load for load_s seconds, watched by NVML."""
    product = Product(card)
    product.once()
    card.synchronize()
    product.compare(result, "matrix product")
    watch = nvml.Watch(args.get("uuid"))
    launches, seconds = max(1, min(3000, int(args.get("load_s", 1.0) / product.seconds(1)))), 0.0
    # Several short batches: the readings between them are of a card at work, and no display has to wait for long.
    batch = max(1, launches // 10)
    done = 0
    while done < launches:
        seconds += card.seconds(lambda: [product.once() for _ in range(batch)] and watch.sample())
        done += batch
    result["numbers"]["gflops"] = product.gflops(done, seconds)
    # The last product must be as right as the first: a card that is sick under load shows here.
    product.compare(result, "matrix product after %.1f s of load" % seconds)
    result["load"] = watch.samples
    product.close()


def _compare(result, what, got, right):
    if got == right:
        return
    have, want = array.array("f", got), array.array("f", right)
    differ = [index for index, (x, y) in enumerate(zip(have, want)) if x != y]  # noqa: B905 -- Python 3.8
    first = differ[0]
    result["wrong"].append(
        "%s: %d of %d values are wrong; the first is number %d: %r, the CPU has %r"
        % (what, len(differ), len(want), first, have[first], want[first])
    )


def _copy(card, args, result):
    """Bandwidth of the card's memory by a copying kernel: bytes read and written a second."""
    free, _ = card.memory()
    size = min(1024 * MIB, free // 8) // MIB * MIB
    source, target = card.allocate(size), card.allocate(size)
    card.launch("ramp", [_u64(source), ctypes.c_float(1.0), ctypes.c_uint(size // 4)])
    work = [_u64(source), _u64(target), ctypes.c_uint(size // 16)]
    card.synchronize()
    best = min(card.seconds(lambda: card.launch("copy", work)) for _ in range(5))
    result["numbers"]["memory_gb_per_s"] = round(2.0 * size / best / 1e9, 1)
    many, first = card.counted_wrong("ramp_wrong", target, ctypes.c_float(1.0), size // 4)
    if many:
        result["wrong"].append(
            "copied memory: %d of %d words are wrong, the first at byte %d" % (many, size // 4, first * 4)
        )
    card.free(source)
    card.free(target)


def _memory(card, args, result):
    """Write and read nearly all free memory twice, a word of its own at every address, then its complement."""
    free, total = card.memory()
    chunk, chunks, left = 2048 * MIB, [], free - KEEP_FREE
    while left >= 64 * MIB:
        size = min(chunk, left) // MIB * MIB
        try:
            chunks.append((card.allocate(size), size))
        except CudaError as error:
            # Memory is in pieces: take what there is.
            if error.code != 2:
                raise
            if chunk <= 64 * MIB:
                break
            chunk //= 2
            continue
        left -= size
    deadline, passes = time.monotonic() + args.get("deep_s", 120.0), 0
    for seed in (0x5A5A5A5A, 0xA5A5A5A5):
        if time.monotonic() > deadline:
            break
        for number, (address, size) in enumerate(chunks):
            card.launch("fill", [_u64(address), ctypes.c_uint(seed ^ number), ctypes.c_uint(size // 4)])
        card.synchronize()
        for number, (address, size) in enumerate(chunks):
            many, first = card.counted_wrong("fill_wrong", address, ctypes.c_uint(seed ^ number), size // 4)
            if many:
                result["wrong"].append(
                    "memory: %d words of chunk %d are wrong, the first %d MiB into it"
                    % (many, number, first * 4 // MIB)
                )
        passes += 1
    tested = sum(size for _, size in chunks)
    result["numbers"].update(
        memory_tested_gib=round(tested / 2.0**30, 2),
        memory_tested_percent=round(100.0 * tested / total, 1),
        memory_passes=passes,
    )
    for address, _ in chunks:
        card.free(address)
