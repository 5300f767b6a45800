# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Every pair of cards: may one read the other, how fast, how soon, and does what arrives equal what was sent?

Job ``matrix``.
"""

from __future__ import annotations

import ctypes

from ansible_collections.gpu.provision.plugins.module_utils.prove import cuda as prove_cuda
from ansible_collections.gpu.provision.plugins.module_utils.prove import nvml as prove_nvml

MIB = 1 << 20
_u64, _size, _void = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p


def matrix(args, say):
    """Job: {"pairs": [{"from", "to", "access", "gb_per_s", "us", "wrong", "wrong_direct"}], "link_errors"} over every ordered pair.

    args: {"uuids": of the cards, as NVML has them}. link_errors: how many errors the NVLinks of each card counted meanwhile.

    access: a kernel on "to" may read "from". wrong: words that differ after a copy, wrong_direct: words that a kernel on
    "to" reads wrongly from "from" (None without access).
    """
    say("initialising the driver")
    driver = prove_cuda.Driver()
    cards = [prove_cuda.Card(driver, index) for index in range(driver.count())]
    size = args.get("size", 128 * MIB)
    buffers = []
    for card in cards:
        card.use()
        card.load()
        buffers.append((card.allocate(size), card.allocate(size)))
    before = prove_nvml.link_errors(args.get("uuids") or [])
    rows = []
    for a, source in enumerate(cards):
        for b, target in enumerate(cards):
            if a != b:
                say("from card %d to card %d" % (a, b))
                rows.append(_pair(driver, a, b, source, target, buffers, size))
    after = prove_nvml.link_errors(args.get("uuids") or [])
    # A counter that was read as zero meanwhile starts anew: no difference.
    errors = [None if None in row else max(0, row[1] - row[0]) for row in zip(before, after)]  # noqa: B905 -- Python 3.8
    return {"pairs": rows, "link_errors": errors}


def _pair(driver, a, b, source, target, buffers, size):
    row = {"from": a, "to": b, "wrong_direct": None}
    row["access"] = bool(driver.number("cuDeviceCanAccessPeer", target.device, source.device))
    if row["access"]:
        for card, other in ((target, source), (source, target)):
            card.use()
            try:
                driver.call("cuCtxEnablePeerAccess", other.context, 0)
            except prove_cuda.CudaError as error:
                # already enabled, by the pair before
                if error.code != 704:
                    raise
    scale, count = ctypes.c_float(1.0 + a * 16 + b), ctypes.c_uint(size // 4)
    source.use()
    source.launch("ramp", [_u64(buffers[a][0]), scale, count])
    source.synchronize()
    target.use()
    driver.call("cuMemsetD8_v2", _u64(buffers[b][1]), 0xFF, _size(size))
    target.synchronize()

    def copy(many):
        return driver.call(
            "cuMemcpyPeerAsync",
            _u64(buffers[b][1]),
            target.context,
            _u64(buffers[a][0]),
            source.context,
            _size(many),
            _void(0),
        )

    source.use()
    copy(size)
    source.synchronize()
    target.use()
    row["wrong"] = target.counted_wrong("ramp_wrong", buffers[b][1], scale, size // 4)[0]
    if row["access"]:
        row["wrong_direct"] = target.counted_wrong("ramp_wrong", buffers[a][0], scale, size // 4)[0]
    source.use()
    row["gb_per_s"] = round(size / min(source.seconds(lambda: copy(size)) for _ in range(4)) / 1e9, 2)
    row["us"] = round(source.seconds(lambda: [copy(8) for _ in range(100)]) / 100 * 1e6, 2)
    return row
