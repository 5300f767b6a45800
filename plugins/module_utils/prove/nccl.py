# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""All-reduce over all cards of the host with the installed NCCL, in one process; result compared, bandwidth judged.

Jobs: ``allreduce``; ``judge`` says what its Outcome means. Source: nccl.h; bus bandwidth as NVIDIA's nccl-tests define
it: 2 (n - 1) / n * bytes / time.
"""

from __future__ import annotations

import ctypes
import os
import time

from ansible_collections.gpu.provision.plugins.module_utils.prove import cuda as prove_cuda
from ansible_collections.gpu.provision.plugins.module_utils.prove import library as prove_library
from ansible_collections.gpu.provision.plugins.module_utils.prove.sizes import GIB, KIB, MIB, size_text

SIZES = (8, KIB, MIB, 32 * MIB, 256 * MIB, GIB)
# What a job of ours adds to the environment: warnings are evidence; multicast stays as the host has it, else off.
ENVIRONMENT = {"NCCL_DEBUG": "WARN", "NCCL_NVLS_ENABLE": "0"}
_FLOAT, _SUM = 7, 0
_void, _size = ctypes.c_void_p, ctypes.c_size_t


class NcclError(Exception):
    """A call of NCCL failed; the message has its code and its text."""


def version_text(number):
    """2.28.3 for what ncclGetVersion returns: 22803 (from 2.9 on), 2804 before."""
    if number < 10000:
        return "%d.%d.%d" % (number // 1000, number % 1000 // 100, number % 100)
    return "%d.%d.%d" % (number // 10000, number % 10000 // 100, number % 100)


class _Nccl(object):
    def __init__(self):
        self.library = prove_library.load(("libnccl.so.2",))
        self.library.ncclGetErrorString.restype = ctypes.c_char_p

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            text = self.library.ncclGetErrorString(code).decode()
            raise NcclError("%s returned %d (%s)" % (name, code, text))

    def version(self):
        value = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(value))
        return version_text(value.value)


def allreduce(args, say):
    """Job: {"version", "path", "cards", "rows": [{"bytes", "us", "bus_gb_per_s"}], "wrong": [sentences]}.

    args: {"most": largest size in bytes, "budget_s": stop growing after that}. Takes every card that is visible.
    """
    say("loading libnccl.so.2")
    nccl = _Nccl()
    result = {
        "version": nccl.version(),
        "path": prove_library.mapped("libnccl.so"),
        "cards": 0,
        "rows": [],
        "wrong": [],
    }
    say("initialising the driver")
    driver = prove_cuda.Driver()
    cards = [prove_cuda.Card(driver, index) for index in range(driver.count())]
    result["cards"] = count = len(cards)
    for card in cards:
        card.use()
        card.load()
    say("ncclCommInitAll over %d cards" % count)
    started = time.monotonic()
    communicators = (_void * count)()
    nccl.call("ncclCommInitAll", communicators, count, (ctypes.c_int * count)(*range(count)))
    result["init_ms"] = round((time.monotonic() - started) * 1e3)
    room = min(_free(card) for card in cards) // 3
    most = max(8, min(args["most"], room // MIB * MIB if room >= MIB else 8))
    streams, send, receive = [], [], []
    for card in cards:
        card.use()
        stream = _void()
        # CU_STREAM_NON_BLOCKING
        driver.call("cuStreamCreate", ctypes.byref(stream), 1)
        streams.append(stream)
        send.append(card.allocate(most))
        receive.append(card.allocate(most))
    for rank, card in enumerate(cards):
        card.use()
        card.launch("ramp", [ctypes.c_uint64(send[rank]), ctypes.c_float(rank + 1.0), ctypes.c_uint(most // 4)])
        card.synchronize()

    def once(values):
        nccl.call("ncclGroupStart")
        for rank in range(count):
            nccl.call(
                "ncclAllReduce",
                _void(send[rank]),
                _void(receive[rank]),
                _size(values),
                _FLOAT,
                _SUM,
                _void(communicators[rank]),
                streams[rank],
            )
        nccl.call("ncclGroupEnd")

    def wait():
        for card, stream in zip(cards, streams):  # noqa: B905 -- Python 3.8
            card.use()
            driver.call("cuStreamSynchronize", stream)

    begun = time.monotonic()
    for size in [size for size in SIZES if size <= most]:
        say("all-reduce of %s" % size_text(size))
        for card, target in zip(cards, receive):  # noqa: B905 -- Python 3.8
            card.use()
            driver.call("cuMemsetD8_v2", ctypes.c_uint64(target), 0xFF, _size(size))
            card.synchronize()
        once(size // 4)
        wait()
        scale = ctypes.c_float(count * (count + 1) / 2.0)
        for rank, card in enumerate(cards):
            card.use()
            many, first = card.counted_wrong("ramp_wrong", receive[rank], scale, size // 4)
            if many:
                result["wrong"].append(
                    "%s: %d of %d sums on card %d are wrong, the first is number %d"
                    % (size_text(size), many, size // 4, rank, first)
                )
        # Twice to warm up, then as often as a fifth of a second allows.
        started = time.monotonic()
        once(size // 4)
        once(size // 4)
        wait()
        each = max((time.monotonic() - started) / 2, 1e-6)
        rounds = max(3, min(200, int(0.2 / each)))
        started = time.monotonic()
        for _ in range(rounds):
            once(size // 4)
        wait()
        each = (time.monotonic() - started) / rounds
        bus = 2.0 * (count - 1) / count * size / each / 1e9
        result["rows"].append({"bytes": size, "us": round(each * 1e6, 1), "bus_gb_per_s": round(bus, 2)})
        if time.monotonic() - begun > args["budget_s"]:
            break
    say("destroying the communicators")
    for communicator in communicators:
        nccl.call("ncclCommDestroy", _void(communicator))
    return result


def _free(card):
    card.use()
    return card.memory()[0]


def segments(folder="/dev/shm"):  # noqa: S108 -- where NCCL itself puts them
    """Names of NCCL's shared memory, by which cards without peer access exchange data."""
    return {name for name in os.listdir(folder) if name.startswith("nccl-")} if os.path.isdir(folder) else set()


def remove_left_behind(before, uid, folder="/dev/shm"):  # noqa: S108
    """Remove shared memory that a job left which was stopped: new since ``before``, of uid, and mapped by nobody."""
    left = segments(folder) - before
    for name in os.listdir("/proc") if left else ():
        if name.isdigit():
            try:
                with open("/proc/%s/maps" % name) as file:
                    left -= {line.split("/")[-1].strip() for line in file if "/nccl-" in line}
            except OSError:
                # it has ended, or is another user's and cannot have mapped ours
                continue
    for name in left:
        path = os.path.join(folder, name)
        if os.lstat(path).st_uid == uid:
            os.unlink(path)
