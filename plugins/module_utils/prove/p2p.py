# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Every pair of cards: may one read the other, how fast, how soon, and does what arrives equal what was sent?

Job ``matrix``; ``judge`` says what its Outcome means.
"""

from __future__ import annotations

import ctypes

from ansible_collections.gpu.provision.plugins.module_utils.prove import cuda as prove_cuda
from ansible_collections.gpu.provision.plugins.module_utils.prove import errors as prove_errors
from ansible_collections.gpu.provision.plugins.module_utils.prove import topology as prove_topology

MIB = 1 << 20
_u64, _size, _void = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
# Pairs of one kind in one host differ by a few percent.
TWIN_SHARE = 0.6


def matrix(args, say):
    """Job: {"pairs": [{"from", "to", "access", "gb_per_s", "us", "wrong", "wrong_direct"}]} over every ordered pair.

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
    rows = []
    for a, source in enumerate(cards):
        for b, target in enumerate(cards):
            if a != b:
                say("from card %d to card %d" % (a, b))
                rows.append(_pair(driver, a, b, source, target, buffers, size))
    return {"pairs": rows}


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


def judge(outcome, labels, cards, pairs, bandwidth, least, host_hints):
    """Return (status, message, evidence, hint, numbers).

    labels: index of a survey's card for each card of the job, in order; the rest as in provenccl.judge.
    """
    if not outcome.ok:
        sentence, hint = prove_errors.ending(outcome, "the peer-to-peer test")
        if outcome.status == "timeout":
            hint = "peer traffic hangs: ACS or the IOMMU is the usual reason; NCCL_P2P_DISABLE=1 avoids it"
        return "fail", sentence, outcome.lines() + host_hints, hint, {}
    known = {(pair["a"], pair["b"]): pair for pair in pairs}
    numbers, evidence, bad, slow, kinds = {}, [], [], [], {}
    for row in outcome.result["pairs"]:
        a, b = labels[row["from"]], labels[row["to"]]
        pair = known.get((min(a, b), max(a, b)))
        name = "%d to %d" % (a, b)
        numbers["gpu%d_gpu%d_gb_per_s" % (a, b)] = row["gb_per_s"]
        numbers["gpu%d_gpu%d_us" % (a, b)] = row["us"]
        word = prove_topology.word(pair) if pair else "?"
        evidence.append(
            "%s: %s, %.1f GB/s, %.1f us%s"
            % (name, word, row["gb_per_s"], row["us"], "" if row["access"] else ", through the host")
        )
        kinds.setdefault((word, row["access"]), []).append((row["gb_per_s"], name))
        if row["wrong"] or row["wrong_direct"]:
            bad.append("%s: %d words arrive wrong" % (name, row["wrong"] or row["wrong_direct"]))
        if pair is None or (bandwidth is None and least is None):
            continue
        if pair["nvlinks"] and not row["access"]:
            bad.append("%s: %s and no peer access" % (name, word))
            continue
        if not row["access"] and least is None:
            continue
        link = prove_topology.expected_pair(pair, cards, bandwidth) if bandwidth else {"way": None, "gb_per_s": None}
        share = bandwidth["peer"].get(link["way"]) if bandwidth else None
        status, words = prove_topology.judge_rate(row["gb_per_s"], link["gb_per_s"], share, least)
        if status != "pass":
            (bad if status == "fail" else slow).append("%s: %s" % (name, words))
    for rows in kinds.values():
        best = max(rate for rate, _ in rows)
        slow += [
            "%s: %.1f GB/s, others of its kind reach %.1f" % (name, rate, best)
            for rate, name in rows
            if rate < TWIN_SHARE * best and not any(line.startswith(name + ":") for line in slow + bad)
        ]
    if bad:
        return (
            "fail",
            "; ".join(bad[:4]),
            bad + evidence + host_hints,
            (
                "wrong or missing peer traffic: ACS, the IOMMU, an NVLink that is down (nvidia-smi nvlink -s) or fabric manager"
            ),
            numbers,
        )
    if slow:
        return (
            "warn",
            "; ".join(slow[:4]),
            slow + evidence + host_hints,
            (
                "slow pairs: an NVLink that is down (nvidia-smi nvlink -s), a PCIe link below its width, ACS or the IOMMU"
            ),
            numbers,
        )
    rates = [row["gb_per_s"] for row in outcome.result["pairs"]]
    through = sum(1 for row in outcome.result["pairs"] if not row["access"])
    message = "%d pairs right, %.1f to %.1f GB/s" % (len(rates), min(rates), max(rates))
    if through:
        message += ", %d through the host: these cards have no peer access" % through
    return "pass", message, evidence, None, numbers
