# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Job: load one card for minutes, compare every result, and watch what heat and power do to it.

A round is a second of each: FP32 products, tensor cores in every format that the card has, and copies of its memory. All cards
of a host do it side by side, so that the power supply and the cooling have to bear all of them.
"""

from __future__ import annotations

import ctypes
import time

from ansible_collections.gpu.provision.plugins.module_utils.prove import cuda as prove_cuda
from ansible_collections.gpu.provision.plugins.module_utils.prove import nvml
from ansible_collections.gpu.provision.plugins.module_utils.prove import tensor as prove_tensor

# seconds of one kind of work between two looks at its results
PART_S = 1.0
# More wrong results than these are only counted.
MOST_WRONG = 20
# Readings that are kept: one for each stretch of the time.
STRETCHES = 60


def soak(args, say):
    """args: {"uuid", "seconds"}. Returns {"card", "rounds", "seconds", "numbers", "wrong": [sentences], "wrong_results": int,
    "load": readings of prove.nvml.Watch folded to STRETCHES, with "at" in seconds}.

    numbers: gflops and the formats' tflops of the first round, and of the last (names with "last_").
    """
    say("making a context")
    card = prove_cuda.Card(prove_cuda.Driver(), 0)
    card.load()
    watch, started = nvml.Watch(args.get("uuid")), time.monotonic()
    result = {"card": card.describe(), "numbers": {}, "wrong": [], "wrong_results": 0, "load": [], "rounds": 0}
    work = [_Product(card), *_tensors(card), _Copies(card)]
    while time.monotonic() - started < args["seconds"]:
        for part in work:
            found = {"wrong": [], "numbers": {}}
            say("round %d: %s" % (result["rounds"] + 1, part.name))
            part.run(found, watch)
            at = time.monotonic() - started
            result["wrong_results"] += len(found["wrong"])
            room = MOST_WRONG - len(result["wrong"])
            result["wrong"] += ["after %.0f s: %s" % (at, words) for words in found["wrong"][:room]]
            for name, value in found["numbers"].items():
                result["numbers"].setdefault(name, value)
                result["numbers"]["last_" + name] = value
            _fold(result["load"], watch.samples, at, args["seconds"] / float(STRETCHES))
            watch.samples = []
        result["rounds"] += 1
    result["seconds"] = round(time.monotonic() - started, 1)
    card.close()
    return result


def _tensors(card):
    for form in prove_tensor.FORMATS:
        run = prove_tensor.start(card, form)
        if run is not None:
            yield _Tensor(card, run)


class _Product(object):
    name = "FP32 products"

    def __init__(self, card):
        self.product = prove_cuda.Product(card)
        self.times = max(1, int(PART_S / self.product.seconds(1)))

    def run(self, found, watch):
        self.product.clear()
        seconds = self.product.card.seconds(lambda: [self.product.once() for _ in range(self.times)] and watch.sample())
        found["numbers"]["gflops"] = self.product.gflops(self.times, seconds)
        self.product.compare(found, "FP32 product")


class _Tensor(object):
    def __init__(self, card, run):
        self.card, self.work, self.name, self.first = card, run, run.form.name, None
        run.fill(exact=False)
        self.rounds = run.rounds_of(PART_S)

    def run(self, found, watch):
        self.work.clear()
        seconds = self.card.seconds(lambda: [self.work.launch(self.rounds), watch.sample()])
        found["numbers"][self.name + "_tflops"] = self.work.tflops(self.rounds, seconds)
        sums, wrong = self.work.compared()
        if wrong:
            found["wrong"].append(wrong)
        elif sums != (self.first or sums):
            found["wrong"].append("%s: sums differ from those of the first round" % self.name)
        self.first = self.first or sums


class _Copies(object):
    """A quarter of the free memory is copied to another quarter and compared there."""

    name = "copies of memory"

    def __init__(self, card):
        self.card = card
        self.size = min(card.memory()[0] // 4, 8192 * prove_cuda.MIB) // prove_cuda.MIB * prove_cuda.MIB
        self.source, self.target = card.allocate(self.size), card.allocate(self.size)
        card.launch("ramp", [ctypes.c_uint64(self.source), ctypes.c_float(1.0), ctypes.c_uint(self.size // 4)])
        self.times = max(1, int(PART_S / card.seconds(self.copy)))

    def copy(self):
        sides = [ctypes.c_uint64(self.source), ctypes.c_uint64(self.target)]
        self.card.launch("copy", sides + [ctypes.c_uint(self.size // 16)])

    def run(self, found, watch):
        self.card.clear(self.target, self.size)
        seconds = self.card.seconds(lambda: [self.copy() for _ in range(self.times)] and watch.sample())
        found["numbers"]["memory_gb_per_s"] = round(2.0 * self.size * self.times / seconds / 1e9, 1)
        many, first = self.card.counted_wrong("ramp_wrong", self.target, ctypes.c_float(1.0), self.size // 4)
        if many:
            found["wrong"].append("copied memory: %d words are wrong, the first at byte %d" % (many, first * 4))


def _fold(load, samples, at, stretch):
    """Add readings to the last row of load, or begin another: the hottest, the most power, the lowest clock, all reasons."""
    for sample in samples:
        if not load or at >= load[-1]["at"] + stretch:
            load.append(dict(sample, at=round(at, 1)))
            continue
        row = load[-1]
        for name, choose in (
            ("temperature", max),
            ("power_w", max),
            ("sm_mhz", min),
            ("memory_mhz", min),
            ("generation", max),
            ("width", max),
            ("replays", max),
        ):
            both = [value for value in (row[name], sample[name]) if value is not None]
            row[name] = choose(both) if both else None
        row["reasons"] = (row["reasons"] or 0) | (sample["reasons"] or 0)
