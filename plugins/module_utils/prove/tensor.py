# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Tensor cores and FP64 of one card: right by the CPU where arithmetic is exact, and a signature where it rounds.

Every warp of the card multiplies the same CHAINS pairs of tiles and adds each product to its own sum, again and again. With
elements of 0.5 and 1 all sums are exact, so the CPU knows every bit. With full mantissas every sum is rounded: how tensor cores
round is not published, but it is the same for every card of one architecture, so that a hash of the sums is their signature
(provision/catalog/data/architectures.yml has those that were seen). Warps that disagree name their multiprocessor.

Scalar FP64 is IEEE's fused multiply-add, which the CPU knows bit by bit also where it rounds.

Source: PTX ISA reference: wmma.load, wmma.mma and wmma.store (6.3 of PTX; 7.0 for bf16 and f64), mma.m16n8k32 with e4m3 (8.4 of
PTX, sm_89) and its layout of fragments. ptxas 13.0 assembles the texts for sm_75 to sm_120.
"""

from __future__ import annotations

import array
import ctypes
import hashlib
from collections import namedtuple

CHAINS = 4
WARPS = 4
BLOCKS_PER_PROCESSOR = 4
# Sums stay exact in the 14 bits that Hopper's FP8 sums have, and are rounded often enough to show each bit.
EXACT_ROUNDS, SIGNED_ROUNDS = 16, 512
# seconds of work that are timed
TIMED_S = 0.05

# name, cc: the first compute capability that has it; version, target: of PTX; rows, columns, depth: of a tile; size: bytes of
# an element; exponent, mantissa: its bits; drawn: bits of the mantissa that are drawn; wide: the sums are FP64
Format = namedtuple("Format", "name cc version target rows columns depth size exponent mantissa drawn wide")
FORMATS = (
    # 32 chains of one value each: products of 26 bits by 26 bits are exact in FP64, so that the CPU's sum is the fused one
    Format("fp64", (5, 0), "6.0", "sm_50", 32, 1, 1, 8, 11, 52, 25, True),
    Format("fp16", (7, 0), "6.3", "sm_70", 16, 16, 16, 2, 5, 10, 10, False),
    Format("bf16", (8, 0), "7.0", "sm_80", 16, 16, 16, 2, 8, 7, 7, False),
    Format("fp64_tensor", (8, 0), "7.0", "sm_80", 8, 8, 4, 8, 11, 52, 52, True),
    Format("fp8", (8, 9), "8.4", "sm_89", 16, 8, 32, 1, 4, 3, 3, False),
)


def elements(form, what, count, exact):
    """count elements with magnitudes from 0.5 to 2 as integers of their bits, drawn from the name ``what``.

    exact: 0.5 and 1 with either sign, no mantissa.
    """
    bits = 8 * form.size
    # sign, lowest bit of the exponent, and the drawn bits of the mantissa at its upper end
    mask = 1 << bits - 1 | 1 << form.mantissa
    if not exact:
        mask |= (1 << form.drawn) - 1 << form.mantissa - form.drawn
    # exponents are biased by 2**(n-1) - 1: one less, an even number, is that of 0.5
    base = (1 << form.exponent - 1) - 2 << form.mantissa
    raw = hashlib.shake_256(("%s %s" % (form.name, what)).encode()).digest(count * form.size)
    values = [int.from_bytes(raw[at : at + form.size], "little") for at in range(0, len(raw), form.size)]
    return [value & mask | base for value in values]


def packed(form, values):
    """Elements as the bytes that the card reads."""
    return b"".join(value.to_bytes(form.size, "little") for value in values)


def decoded(form, value):
    """The number that an element's bits stand for."""
    mantissa = 1.0 + (value & (1 << form.mantissa) - 1) / float(1 << form.mantissa)
    exponent = (value >> form.mantissa & (1 << form.exponent) - 1) - (1 << form.exponent - 1) + 1
    return (-mantissa if value >> 8 * form.size - 1 else mantissa) * 2.0**exponent


def inputs(form, exact):
    """(A, B) of all chains as elements: A by rows, B by columns."""
    # of the scalar format each of 32 threads has its own value of both
    columns = form.rows if form.depth == 1 else form.columns
    many = CHAINS * form.depth
    return elements(form, "a", many * form.rows, exact), elements(form, "b", many * columns, exact)


def right(form, exact, rounds):
    """Bytes of one warp's sums after so many rounds, where the CPU knows them: exact ones, and scalar FP64."""
    a, b = ([decoded(form, value) for value in values] for values in inputs(form, exact))
    sums = []
    if form.depth == 1:
        for x, y in zip(a, b):  # noqa: B905 -- Python 3.8
            product, value = x * y, 0.0
            for _ in range(rounds):
                value += product
            sums.append(value)
    else:
        for chain in range(CHAINS):
            a_tile = a[chain * form.rows * form.depth :]
            b_tile = b[chain * form.columns * form.depth :]
            for row in range(form.rows):
                x = a_tile[row * form.depth : (row + 1) * form.depth]
                for column in range(form.columns):
                    y = b_tile[column * form.depth : (column + 1) * form.depth]
                    sums.append(rounds * sum(p * q for p, q in zip(x, y)))  # noqa: B905 -- Python 3.8
    return array.array("d" if form.wide else "f", sums).tobytes()


def _bytes_of_sums(form):
    return CHAINS * form.rows * form.columns * (8 if form.wide else 4)


def prove(card, result):
    """Try every format that the card has; adds to result "signatures", "numbers" and "wrong".

    result["left_out"]: formats for which the driver's compiler is too old (error 222).
    """
    result["signatures"], result["left_out"] = {}, []
    for form in FORMATS:
        run = start(card, form)
        if run is None:
            if card.cc >= form.cc:
                result["left_out"].append(form.name)
            continue
        for exact, rounds in ((True, EXACT_ROUNDS), (False, SIGNED_ROUNDS)):
            run.fill(exact)
            run.clear()
            run.launch(rounds)
            card.synchronize()
            sums, wrong = run.compared()
            if not wrong and (exact or form.depth == 1) and sums != right(form, exact, rounds):
                wrong = "%s: sums are not those of the CPU" % form.name
            if wrong:
                result["wrong"].append(wrong)
            elif not exact:
                result["signatures"][form.name] = hashlib.sha256(sums).hexdigest()[:16]
        rounds = run.rounds_of(TIMED_S)
        result["numbers"][form.name + "_tflops"] = run.tflops(rounds, card.seconds(lambda: run.launch(rounds)))  # noqa: B023
        run.close()


def start(card, form):
    """One format on one card; None where the card has not got it, or a driver whose compiler is older than its PTX."""
    module = card.compile(text(form), missing=(222,)) if card.cc >= form.cc else None
    return Run(card, module, form) if module else None


class Run(object):
    """One format on one card: where its tiles and sums lie."""

    def __init__(self, card, module, form):
        self.card, self.module, self.form = card, module, form
        self.blocks = card.processors * BLOCKS_PER_PROCESSOR
        self.warps = self.blocks * WARPS
        self.each = _bytes_of_sums(form)
        sizes = [len(values) * form.size for values in inputs(form, exact=True)]
        self.places = [card.allocate(size) for size in (*sizes, self.warps * self.each, self.warps * 4)]

    def fill(self, exact):
        for place, values in zip(self.places, inputs(self.form, exact)):  # noqa: B905 -- Python 3.8
            self.card.put(place, bytearray(packed(self.form, values)))

    def clear(self):
        self.card.clear(self.places[2], self.warps * self.each)

    def launch(self, rounds):
        arguments = [ctypes.c_uint64(place) for place in self.places] + [ctypes.c_uint(rounds)]
        block = (32 * WARPS, 1, 1)
        self.card.launch(self.form.name, arguments, grid=(self.blocks, 1, 1), block=block, module=self.module)

    def compared(self):
        """(bytes of one warp's sums, None), or (None, sentence) where warps with the same data gave different ones."""
        got = bytes(self.card.get(self.places[2], self.warps * self.each))
        if got == got[: self.each] * self.warps:
            return got[: self.each], None
        pieces = [got[at : at + self.each] for at in range(0, len(got), self.each)]
        most = max(set(pieces), key=pieces.count)
        at = array.array("I", bytes(self.card.get(self.places[3], self.warps * 4)))
        odd = sorted({at[warp] for warp, piece in enumerate(pieces) if piece != most})
        where = ", ".join(str(number) for number in odd[:4]) + (" and %d more" % (len(odd) - 4) if len(odd) > 4 else "")
        return None, "%s: warps with the same data have different sums on multiprocessor %s" % (self.form.name, where)

    def rounds_of(self, seconds):
        """How many rounds take about so long."""
        once = self.card.seconds(lambda: self.launch(SIGNED_ROUNDS)) / SIGNED_ROUNDS
        return max(SIGNED_ROUNDS, int(seconds / once))

    def tflops(self, rounds, seconds):
        # a scalar format has one row for each of a warp's threads
        operations = 2.0 * CHAINS * self.form.rows * self.form.columns * self.form.depth
        return round(operations * self.warps * rounds / seconds / 1e12, 3)

    def close(self):
        for place in self.places:
            self.card.free(place)


# --- PTX ---------------------------------------------------------------------------------------------------


def text(form):
    """PTX of the one kernel of a format; its name is the format's."""
    body = {"fp64": _scalar, "fp8": _mma}.get(form.name, _wmma)(form)
    return _KERNEL % {"version": form.version, "target": form.target, "name": form.name, "body": "\n".join(body)}


# %pd: where this warp's sums begin; %lane: of the thread in its warp
_KERNEL = """.version %(version)s
.target %(target)s
.address_size 64
.visible .entry %(name)s(.param .u64 a, .param .u64 b, .param .u64 d, .param .u64 sm, .param .u32 rounds)
{
  .reg .pred %%p0;
  .reg .b32 %%r<8>, %%lane, %%warp, %%left;
  .reg .b32 %%a<32>, %%b<32>;
  .reg .f32 %%f<32>;
  .reg .f64 %%x<4>, %%y<4>, %%d<8>;
  .reg .b64 %%q<6>, %%pa, %%pb, %%pd;
  mov.u32 %%r0, %%tid.x;
  and.b32 %%lane, %%r0, 31;
  shr.u32 %%r1, %%r0, 5;
  mov.u32 %%r2, %%ctaid.x;
  mad.lo.u32 %%warp, %%r2, 4, %%r1;
  mov.u32 %%r3, %%smid;
  ld.param.u64 %%q0, [sm];
  mul.wide.u32 %%q1, %%warp, 4;
  add.u64 %%q0, %%q0, %%q1;
  st.global.u32 [%%q0], %%r3;
  ld.param.u64 %%pa, [a];
  ld.param.u64 %%pb, [b];
  ld.param.u64 %%pd, [d];
  ld.param.u32 %%left, [rounds];
%(body)s
  ret;
}
"""


def _loop(work):
    return ["ROUND:"] + work + ["  sub.u32 %left, %left, 1;", "  setp.ne.u32 %p0, %left, 0;", "  @%p0 bra ROUND;"]


def _warp(form):
    """%pd becomes the place of this warp's sums."""
    return ["  mul.wide.u32 %%q2, %%warp, %d;" % _bytes_of_sums(form), "  add.u64 %pd, %pd, %q2;"]


def _wmma(form):
    """Tiles of 16x16x16 (fp16, bf16) or 8x8x4 (fp64): wmma knows how a warp's threads share them."""
    shape = "m%dn%dk%d" % (form.rows, form.columns, form.depth)
    kind = {"fp16": "f16", "bf16": "bf16", "fp64_tensor": "f64"}[form.name]
    operand = {"fp16": 8, "bf16": 4, "fp64_tensor": 1}[form.name]
    sums = 2 if form.wide else 8
    name_a, name_b, name_d = ("%x", "%y", "%d") if form.wide else ("%a", "%b", "%f")
    result = "f64" if form.wide else "f32"
    types = {"fp16": "f32.f32", "bf16": "f32.bf16.bf16.f32", "fp64_tensor": "f64.f64.f64.f64"}[form.name]
    lines = _warp(form)
    for chain in range(CHAINS):
        for name, base, rows, layout, place in (
            (name_a, "%pa", form.rows, "row", "a"),
            (name_b, "%pb", form.columns, "col", "b"),
        ):
            lines += [
                "  wmma.load.%s.sync.aligned.%s.%s.global.%s %s, [%s+%d], %d;"
                % (
                    place,
                    layout,
                    shape,
                    kind,
                    _listed(name, chain, operand),
                    base,
                    chain * rows * form.depth * form.size,
                    form.depth,
                )
            ]
        lines += ["  mov.%s %s%d, %s;" % (result, name_d, chain * sums + at, _ZERO[form.wide]) for at in range(sums)]
    rounding = ".rn" if form.wide else ""
    lines += _loop(
        [
            "  wmma.mma.sync.aligned.row.col.%s%s.%s %s, %s, %s, %s;"
            % (
                shape,
                rounding,
                types,
                _listed(name_d, chain, sums),
                _listed(name_a, chain, operand),
                _listed(name_b, chain, operand),
                _listed(name_d, chain, sums),
            )
            for chain in range(CHAINS)
        ]
    )
    bytes_each = _bytes_of_sums(form) // CHAINS
    return lines + [
        "  wmma.store.d.sync.aligned.row.%s.global.%s [%%pd+%d], %s, %d;"
        % (shape, result, chain * bytes_each, _listed(name_d, chain, sums), form.columns)
        for chain in range(CHAINS)
    ]


_ZERO = {False: "0f00000000", True: "0d0000000000000000"}


def _listed(name, chain, many):
    return "{%s}" % ", ".join("%s%d" % (name, chain * many + at) for at in range(many))


def _mma(form):
    """Tiles of 16x8x32: thread t has of A the rows t/4 and t/4+8, of B the column t/4, and of both 4 elements from 4(t mod 4)
    and from 16 further on; of the sums the columns 2(t mod 4) and the next, in the same two rows."""
    lines = _warp(form) + [
        "  shr.u32 %r4, %lane, 2;",
        "  and.b32 %r5, %lane, 3;",
        "  shl.b32 %r6, %r5, 2;",
        "  mad.lo.u32 %%r6, %%r4, %d, %%r6;" % form.depth,
        "  cvt.u64.u32 %q3, %r6;",
        "  add.u64 %pa, %pa, %q3;",
        "  add.u64 %pb, %pb, %q3;",
        "  shl.b32 %r7, %r5, 3;",
        "  mad.lo.u32 %%r7, %%r4, %d, %%r7;" % (form.columns * 4),
        "  cvt.u64.u32 %q4, %r7;",
        "  add.u64 %pd, %pd, %q4;",
    ]
    for chain in range(CHAINS):
        of_a, of_b = chain * form.rows * form.depth, chain * form.columns * form.depth
        lines += [
            "  ld.global.u32 %%a%d, [%%pa+%d];" % (chain * 4 + at, of_a + 8 * form.depth * (at & 1) + 16 * (at >> 1))
            for at in range(4)
        ]
        lines += ["  ld.global.u32 %%b%d, [%%pb+%d];" % (chain * 2 + at, of_b + 16 * at) for at in range(2)]
        lines += ["  mov.f32 %%f%d, %s;" % (chain * 4 + at, _ZERO[False]) for at in range(4)]
    lines += _loop(
        [
            "  mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 %s, %s, %s, %s;"
            % (_listed("%f", chain, 4), _listed("%a", chain, 4), _listed("%b", chain, 2), _listed("%f", chain, 4))
            for chain in range(CHAINS)
        ]
    )
    for chain in range(CHAINS):
        base = chain * form.rows * form.columns * 4
        lines += [
            "  st.global.v2.f32 [%%pd+%d], {%%f%d, %%f%d};"
            % (base + 8 * form.columns * 4 * half, chain * 4 + 2 * half, chain * 4 + 2 * half + 1)
            for half in range(2)
        ]
    return lines


def _scalar(form):
    """Each thread has one value of each chain."""
    lines = _warp(form) + [
        "  mul.wide.u32 %q3, %lane, 8;",
        "  add.u64 %pa, %pa, %q3;",
        "  add.u64 %pb, %pb, %q3;",
        "  add.u64 %pd, %pd, %q3;",
    ]
    for chain in range(CHAINS):
        lines += [
            "  ld.global.f64 %%x%d, [%%pa+%d];" % (chain, chain * 256),
            "  ld.global.f64 %%y%d, [%%pb+%d];" % (chain, chain * 256),
            "  mov.f64 %%d%d, %s;" % (chain, _ZERO[True]),
        ]
    lines += _loop(["  fma.rn.f64 %%d%d, %%x%d, %%y%d, %%d%d;" % ((chain,) * 4) for chain in range(CHAINS)])
    return lines + ["  st.global.f64 [%%pd+%d], %%d%d;" % (chain * 256, chain) for chain in range(CHAINS)]
