# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The names of the checks that run something, and which of them a pattern means: for those who run none.

Standard library only, any Python from 3.8. The controller imports the same file.
"""

from __future__ import annotations

import fnmatch

# What there can be, without what stands in brackets: a toolkit, an interpreter, a runtime.
NAMES = (
    "gpu.count",
    "gpu.compute",
    "gpu.health",
    "gpu.xid",
    "gpu.p2p",
    "gpu.nccl",
    "gpu.cudnn",
    "gpu.dcgm",
    "cuda.compile",
    "python.framework",
    "container.run",
)


def wanted(check, patterns):
    """True when a check id fits one of the patterns; "cuda.compile" names every "cuda.compile[..]"."""
    if not patterns:
        return True
    plain = check.split("[")[0]
    # Brackets are part of ids, not sets of characters.
    return any(
        pattern in (check, plain) or fnmatch.fnmatchcase(check, pattern.replace("[", "[[]")) for pattern in patterns
    )
