# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""A forward convolution through the installed cuDNN, compared with the CPU's.

Job ``convolve``. Source: cudnn.h (the calls are the same in versions 7 to 9).
"""

from __future__ import annotations

import array
import ctypes

from ansible_collections.gpu.provision.plugins.module_utils.prove import cuda as prove_cuda
from ansible_collections.gpu.provision.plugins.module_utils.prove import framework as prove_framework
from ansible_collections.gpu.provision.plugins.module_utils.prove import library as prove_library

NAMES = ("libcudnn.so.9", "libcudnn.so.8", "libcudnn.so.7")
_void, _size = ctypes.c_void_p, ctypes.c_size_t
CHANNELS, FILTERS, SIDE, KERNEL = 4, 6, 16, 3


class CudnnError(Exception):
    """A call of cuDNN failed; the message has its code and its text."""


class _Cudnn(object):
    def __init__(self):
        self.library = prove_library.load(NAMES)
        self.library.cudnnGetErrorString.restype = ctypes.c_char_p
        self.library.cudnnGetVersion.restype = _size

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise CudnnError("%s returned %d (%s)" % (name, code, self.library.cudnnGetErrorString(code).decode()))

    def made(self, name, *arguments):
        """Create something whose handle is written to the first parameter."""
        handle = _void()
        self.call(name, ctypes.byref(handle), *arguments)
        return handle


def reference(image, weights):
    """The convolution (cross-correlation, padding 1) on the CPU. image[c][y][x], weights[k][c][y][x] -> [k][y][x]."""

    def at(channel, y, x):
        return image[channel][y][x] if 0 <= y < SIDE and 0 <= x < SIDE else 0

    return [
        [
            [
                sum(
                    at(c, y + dy - 1, x + dx - 1) * weights[k][c][dy][dx]
                    for c in range(CHANNELS)
                    for dy in range(KERNEL)
                    for dx in range(KERNEL)
                )
                for x in range(SIDE)
            ]
            for y in range(SIDE)
        ]
        for k in range(FILTERS)
    ]


def flat(value):
    """Every number of nested lists, in order."""
    return [number for part in value for number in flat(part)] if isinstance(value, list) else [float(value)]


def convolve(args, say):
    """Job: {"version", "path", "cuda", "wrong": None or a sentence, "algorithm"} on the first card that is visible."""
    say("loading cuDNN")
    cudnn = _Cudnn()
    number = cudnn.library.cudnnGetVersion()
    result = {"version": prove_framework.cudnn_text(number), "path": prove_library.mapped("libcudnn.so"), "wrong": None}
    say("initialising the driver")
    card = prove_cuda.Card(prove_cuda.Driver(), 0)
    image = [[[(3 * c + 5 * y + 7 * x) % 11 for x in range(SIDE)] for y in range(SIDE)] for c in range(CHANNELS)]
    weights = [
        [[[(k + 2 * c + 3 * y + x) % 5 - 2 for x in range(KERNEL)] for y in range(KERNEL)] for c in range(CHANNELS)]
        for k in range(FILTERS)
    ]
    data = [array.array("f", flat(value)).tobytes() for value in (image, weights)]
    right = flat(reference(image, weights))
    px, pw, py = [card.allocate(size) for size in (len(data[0]), len(data[1]), len(right) * 4)]
    card.put(px, bytearray(data[0]))
    card.put(pw, bytearray(data[1]))
    say("cudnnCreate")
    handle = cudnn.made("cudnnCreate")
    x, y = cudnn.made("cudnnCreateTensorDescriptor"), cudnn.made("cudnnCreateTensorDescriptor")
    w, conv = cudnn.made("cudnnCreateFilterDescriptor"), cudnn.made("cudnnCreateConvolutionDescriptor")
    # NCHW and float are 0; cross-correlation is 1.
    cudnn.call("cudnnSetTensor4dDescriptor", x, 0, 0, 1, CHANNELS, SIDE, SIDE)
    cudnn.call("cudnnSetTensor4dDescriptor", y, 0, 0, 1, FILTERS, SIDE, SIDE)
    cudnn.call("cudnnSetFilter4dDescriptor", w, 0, 0, FILTERS, CHANNELS, KERNEL, KERNEL)
    cudnn.call("cudnnSetConvolution2dDescriptor", conv, 1, 1, 1, 1, 1, 1, 1, 0)
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    refused = None
    # Implicit GEMM, and with precomputed indexes: neither rounds as Winograd and FFT do.
    for algorithm in (0, 1):
        say("convolution with algorithm %d" % algorithm)
        space = _size()
        try:
            cudnn.call("cudnnGetConvolutionForwardWorkspaceSize", handle, x, w, conv, y, algorithm, ctypes.byref(space))
            workspace = card.allocate(max(space.value, 256))
            cudnn.call(
                "cudnnConvolutionForward",
                handle,
                ctypes.byref(one),
                x,
                _void(px),
                w,
                _void(pw),
                conv,
                algorithm,
                _void(workspace),
                _size(space.value),
                ctypes.byref(zero),
                y,
                _void(py),
            )
        except CudnnError as error:
            refused = error
            continue
        card.synchronize()
        got = array.array("f", bytes(card.get(py, len(right) * 4)))
        off = max(abs(value - want) for value, want in zip(got, right))  # noqa: B905 -- Python 3.8
        result["algorithm"] = algorithm
        if off > 1e-3:
            result["wrong"] = "the convolution differs from the CPU's by up to %g" % off
        cudnn.call("cudnnDestroy", handle)
        return result
    raise refused
