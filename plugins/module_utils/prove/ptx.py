# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""PTX text of the kernels that the checks load through the driver: no toolkit on the host is needed.

Written for PTX ISA 6.0 (CUDA 9.0, driver 384), which every driver that is still in use can compile for its cards, and
for sm_50, or sm_30 on older cards. A driver takes PTX of its own toolkit and of older ones, not of newer ones (error
222), and needs libnvidia-ptxjitcompiler beside it (error 221): both are what a driver-only host has to be able to do,
so the checks prove that too.

Source: PTX ISA reference, directives .version and .target. ptxas 11.8, 12.9 and 13.5 assemble the text.
"""

from __future__ import annotations

# ramp: x[i] = (i mod RAMP) * scale. Exact in float while RAMP * scale < 2**24, also when summed over cards.
RAMP = 4093
# the matrix kernel computes tiles of TILE x TILE, by 16 x 16 threads, in slabs of SLAB
TILE = 64
SLAB = 16


def text(cc):
    """Return the PTX for a card of compute capability cc (major, minor)."""
    target = "sm_50" if cc >= (5, 0) else "sm_30"
    head = [".version 6.0", ".target " + target, ".address_size 64", ""]
    return "\n".join(head + [_ADD, _RAMP, _RAMP_WRONG, _COPY, _FILL, _FILL_WRONG, _matmul()]) + "\n"


def _kernel(name, parameters, body):
    """A kernel whose body runs for every index %i below the parameter n, in strides of the whole grid."""
    listed = ", ".join(".param .%s %s" % (kind, word) for kind, word in parameters + [("u32", "n")])
    return """.visible .entry %s(%s)
{
  .reg .pred %%p<4>;
  .reg .b32 %%i, %%end, %%step, %%r<8>;
  .reg .b64 %%d<10>;
  .reg .f32 %%f<8>;
  mov.u32 %%r0, %%ctaid.x;
  mov.u32 %%r1, %%ntid.x;
  mov.u32 %%r2, %%tid.x;
  mad.lo.u32 %%i, %%r0, %%r1, %%r2;
  mov.u32 %%r0, %%nctaid.x;
  mul.lo.u32 %%step, %%r0, %%r1;
  ld.param.u32 %%end, [n];
LOOP:
  setp.ge.u32 %%p0, %%i, %%end;
  @%%p0 bra DONE;
%s
  add.u32 %%i, %%i, %%step;
  bra LOOP;
DONE:
  ret;
}
""" % (name, listed, body.strip("\n"))


_ADD = _kernel(
    "add",
    [("u64", "a"), ("u64", "b"), ("u64", "c")],
    """
  ld.param.u64 %d0, [a];
  ld.param.u64 %d1, [b];
  ld.param.u64 %d2, [c];
  mul.wide.u32 %d3, %i, 4;
  add.u64 %d0, %d0, %d3;
  add.u64 %d1, %d1, %d3;
  add.u64 %d2, %d2, %d3;
  ld.global.f32 %f0, [%d0];
  ld.global.f32 %f1, [%d1];
  add.rn.f32 %f2, %f0, %f1;
  st.global.f32 [%d2], %f2;
""",
)

# %f0 = (i mod RAMP) * scale; %d0 = address of x[i]
_RAMP_VALUE = (
    """
  ld.param.u64 %%d0, [x];
  ld.param.f32 %%f1, [scale];
  rem.u32 %%r3, %%i, %d;
  cvt.rn.f32.u32 %%f0, %%r3;
  mul.rn.f32 %%f0, %%f0, %%f1;
  mul.wide.u32 %%d1, %%i, 4;
  add.u64 %%d0, %%d0, %%d1;
"""
    % RAMP
)

# wrong[0] counts what differs, wrong[1] is the lowest index that does.
_COUNT = """
  ld.param.u64 %d2, [wrong];
  @%p1 red.global.add.u32 [%d2], 1;
  @%p1 red.global.min.u32 [%d2+4], %i;
"""

_RAMP = _kernel("ramp", [("u64", "x"), ("f32", "scale")], _RAMP_VALUE + "  st.global.f32 [%d0], %f0;")
_RAMP_WRONG = _kernel(
    "ramp_wrong",
    [("u64", "x"), ("f32", "scale"), ("u64", "wrong")],
    _RAMP_VALUE + "  ld.global.f32 %f2, [%d0];\n  setp.neu.f32 %p1, %f0, %f2;" + _COUNT,
)

_COPY = _kernel(
    "copy",
    [("u64", "source"), ("u64", "target")],
    """
  ld.param.u64 %d0, [source];
  ld.param.u64 %d1, [target];
  mul.wide.u32 %d2, %i, 16;
  add.u64 %d0, %d0, %d2;
  add.u64 %d1, %d1, %d2;
  ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%d0];
  st.global.v4.f32 [%d1], {%f0, %f1, %f2, %f3};
""",
)

# A word that every address and every seed has for itself: i * 2654435761 (Knuth's multiplier), folded, xor seed.
_FILL_VALUE = """
  ld.param.u64 %d0, [x];
  ld.param.u32 %r4, [seed];
  mul.lo.u32 %r3, %i, 0x9E3779B1;
  shr.u32 %r5, %r3, 15;
  xor.b32 %r3, %r3, %r5;
  xor.b32 %r3, %r3, %r4;
  mul.wide.u32 %d1, %i, 4;
  add.u64 %d0, %d0, %d1;
"""
_FILL = _kernel("fill", [("u64", "x"), ("u32", "seed")], _FILL_VALUE + "  st.global.u32 [%d0], %r3;")
_FILL_WRONG = _kernel(
    "fill_wrong",
    [("u64", "x"), ("u32", "seed"), ("u64", "wrong")],
    _FILL_VALUE + "  ld.global.u32 %r6, [%d0];\n  setp.ne.u32 %p1, %r3, %r6;" + _COUNT,
)


def _matmul():
    """C = A * B for square row-major matrices; n is a multiple of TILE. Each thread computes 4 x 4 of a tile."""
    lines = []
    put = lines.append
    # Tiles in shared memory, by k: sa[k][row], sb[k][column].
    for k in range(SLAB):
        put("  ld.shared.v4.f32 {%%a0, %%a1, %%a2, %%a3}, [%%sa+%d];" % (k * TILE * 4))
        put("  ld.shared.v4.f32 {%%b0, %%b1, %%b2, %%b3}, [%%sb+%d];" % (k * TILE * 4))
        for row in range(4):
            for column in range(4):
                c = row * 4 + column
                put("  fma.rn.f32 %%c%d, %%a%d, %%b%d, %%c%d;" % (c, row, column, c))
    multiply = "\n".join(lines).replace("%%", "%")
    zero = "\n".join("  mov.f32 %%c%d, 0f00000000;" % c for c in range(16))
    store = "\n".join(
        "  st.global.v4.f32 [%%pc], {%%c%d, %%c%d, %%c%d, %%c%d};\n  add.u64 %%pc, %%pc, %%row;"
        % tuple(row * 4 + column for column in range(4))
        for row in range(4)
    )
    return _MATMUL % {"zero": zero, "multiply": multiply, "store": store, "tile": TILE, "slab": SLAB}


_MATMUL = """.visible .entry matmul(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{
  .shared .align 16 .f32 tile_a[1024];
  .shared .align 16 .f32 tile_b[1024];
  .reg .pred %%p0;
  .reg .b32 %%r<12>, %%tx, %%ty, %%t, %%n, %%k, %%sa, %%sb, %%wa, %%wb;
  .reg .b64 %%d<6>, %%pa, %%pb, %%pc, %%row, %%slab_b;
  .reg .f32 %%a<4>, %%b<4>, %%c<16>, %%x<4>;
  mov.u32 %%tx, %%tid.x;
  mov.u32 %%ty, %%tid.y;
  mad.lo.u32 %%t, %%ty, 16, %%tx;
  ld.param.u32 %%n, [n];
  mul.wide.u32 %%row, %%n, 4;
  // A: this thread brings 4 values along k of row t/4, and lays them down by k.
  mov.u32 %%r0, %%ctaid.y;
  shr.u32 %%r1, %%t, 2;
  and.b32 %%r2, %%t, 3;
  mad.lo.u32 %%r3, %%r0, %(tile)d, %%r1;
  shl.b32 %%r4, %%r2, 2;
  ld.param.u64 %%d0, [a];
  mul.wide.u32 %%d1, %%r3, %%n;
  cvt.u64.u32 %%d2, %%r4;
  add.u64 %%d1, %%d1, %%d2;
  shl.b64 %%d1, %%d1, 2;
  add.u64 %%pa, %%d0, %%d1;
  mov.u32 %%r5, tile_a;
  mad.lo.u32 %%r6, %%r4, %(tile)d, %%r1;
  shl.b32 %%r6, %%r6, 2;
  add.u32 %%wa, %%r5, %%r6;
  // B: 4 values along the columns of row t/16.
  mov.u32 %%r0, %%ctaid.x;
  shr.u32 %%r1, %%t, 4;
  and.b32 %%r2, %%t, 15;
  shl.b32 %%r2, %%r2, 2;
  mad.lo.u32 %%r3, %%r0, %(tile)d, %%r2;
  ld.param.u64 %%d0, [b];
  mul.wide.u32 %%d1, %%r1, %%n;
  cvt.u64.u32 %%d2, %%r3;
  add.u64 %%d1, %%d1, %%d2;
  shl.b64 %%d1, %%d1, 2;
  add.u64 %%pb, %%d0, %%d1;
  mul.lo.u64 %%slab_b, %%row, %(slab)d;
  mov.u32 %%r7, tile_b;
  mad.lo.u32 %%r6, %%r1, %(tile)d, %%r2;
  shl.b32 %%r6, %%r6, 2;
  add.u32 %%wb, %%r7, %%r6;
  // What this thread multiplies: rows 4 ty .., columns 4 tx ..
  shl.b32 %%r8, %%ty, 4;
  add.u32 %%sa, %%r5, %%r8;
  shl.b32 %%r8, %%tx, 4;
  add.u32 %%sb, %%r7, %%r8;
%(zero)s
  mov.u32 %%k, 0;
SLAB:
  ld.global.v4.f32 {%%x0, %%x1, %%x2, %%x3}, [%%pa];
  st.shared.f32 [%%wa], %%x0;
  st.shared.f32 [%%wa+256], %%x1;
  st.shared.f32 [%%wa+512], %%x2;
  st.shared.f32 [%%wa+768], %%x3;
  ld.global.v4.f32 {%%x0, %%x1, %%x2, %%x3}, [%%pb];
  st.shared.v4.f32 [%%wb], {%%x0, %%x1, %%x2, %%x3};
  bar.sync 0;
%(multiply)s
  bar.sync 0;
  add.u64 %%pa, %%pa, 64;
  add.u64 %%pb, %%pb, %%slab_b;
  add.u32 %%k, %%k, %(slab)d;
  setp.lt.u32 %%p0, %%k, %%n;
  @%%p0 bra SLAB;
  mov.u32 %%r0, %%ctaid.y;
  shl.b32 %%r1, %%ty, 2;
  mad.lo.u32 %%r2, %%r0, %(tile)d, %%r1;
  mov.u32 %%r0, %%ctaid.x;
  shl.b32 %%r1, %%tx, 2;
  mad.lo.u32 %%r3, %%r0, %(tile)d, %%r1;
  ld.param.u64 %%d0, [c];
  mul.wide.u32 %%d1, %%r2, %%n;
  cvt.u64.u32 %%d2, %%r3;
  add.u64 %%d1, %%d1, %%d2;
  shl.b64 %%d1, %%d1, 2;
  add.u64 %%pc, %%d0, %%d1;
%(store)s
  ret;
}
"""
