"""A stand-in for torch on simulated hosts: no tensor library, but it answers what a check of the GPU asks.

Devices, driver and CUDA come from the host's nvidia-smi; libraries are looked for as the loader would, and what was
"loaded" is mapped, so that /proc/self/maps names it.
"""

from __future__ import annotations

import math
import random

from . import _loader, cuda
from ._build import BUILD
from .backends import cudnn as _cudnn

__version__ = BUILD["version"]


class _Version(object):
    cuda = BUILD["cuda"]
    hip = None
    git_version = "stand-in"


version = _Version()
float32, float16, float64 = "float32", "float16", "float64"


class _Backends(object):
    cudnn = _cudnn


backends = _Backends()


class distributed(object):
    @staticmethod
    def is_available():
        return True

    @staticmethod
    def is_nccl_available():
        return bool(BUILD["nccl"])


class device(object):
    def __init__(self, name, index=None):
        text = str(name)
        self.type, _, number = text.partition(":")
        self.index = index if index is not None else (int(number) if number else None)

    def __str__(self):
        return self.type if self.index is None else "%s:%d" % (self.type, self.index)


class Tensor(object):
    """A matrix as a list of rows, with a device."""

    def __init__(self, rows, where="cpu"):
        self.rows, self.device = rows, where if isinstance(where, device) else device(where)
        if self.device.type == "cuda":
            cuda._use(self.device.index or 0)

    @property
    def shape(self):
        return len(self.rows), len(self.rows[0])

    def to(self, where, **_):
        return Tensor([list(row) for row in self.rows], where)

    def cuda(self, index=0):
        return self.to("cuda:%d" % index)

    def cpu(self):
        return self.to("cpu")

    def __matmul__(self, other):
        if str(self.device) != str(other.device):
            raise RuntimeError("Expected all tensors to be on the same device, but found at least two devices")
        columns = list(zip(*other.rows))
        return Tensor(
            [[math.fsum(a * b for a, b in zip(row, col)) for col in columns] for row in self.rows], self.device
        )

    matmul = mm = __matmul__

    def tolist(self):
        return [list(row) for row in self.rows]

    def sum(self):
        return Tensor([[math.fsum(value for row in self.rows for value in row)]], self.device)

    def item(self):
        return self.rows[0][0]


def tensor(rows, device="cpu", **_):
    return Tensor([[float(value) for value in row] for row in rows], device)


def _fill(shape, make, where):
    rows, columns = shape if len(shape) == 2 else shape[0]
    return Tensor([[make() for _ in range(columns)] for _ in range(rows)], where or "cpu")


def rand(*shape, device=None, **_):
    return _fill(shape, random.random, device)


def randn(*shape, device=None, **_):
    return _fill(shape, lambda: random.gauss(0, 1), device)


def ones(*shape, device=None, **_):
    return _fill(shape, lambda: 1.0, device)


def zeros(*shape, device=None, **_):
    return _fill(shape, lambda: 0.0, device)


def matmul(one, other):
    return one @ other


mm = matmul


def allclose(one, other, rtol=1e-5, atol=1e-8):
    return all(
        abs(a - b) <= atol + rtol * abs(b) for left, right in zip(one.rows, other.rows) for a, b in zip(left, right)
    )


def manual_seed(seed):
    random.seed(seed)


_loader.load_all()
