"""Version numbers as NVIDIA, CUDA and the frameworks write them: ordering and prefixes."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache


@lru_cache(maxsize=4096)
def key(version: str) -> tuple[int, ...]:
    """Sort key of a dotted version: ``580.95.05`` gives (580, 95, 5); a ``.post1`` counts as one more
    part."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def same(wanted: str, version: str) -> bool:
    """True when ``version`` is ``wanted`` or begins with all its parts: ``12.4`` covers ``12.4.1``, not
    ``12.40``."""
    parts = key(wanted)
    return key(version)[: len(parts)] == parts


def minor(version: str) -> str:
    """First two parts: ``12.4.1`` gives ``12.4``."""
    return ".".join(version.split(".")[:2])


def between(version: str, first: str | None, last: str | None) -> bool:
    """True for first <= version <= last, where ``last`` covers everything that begins with it (9.10.2 has
    9.10.2.21)."""
    if first is not None and key(version) < key(first):
        return False
    return last is None or key(version) <= key(last) or same(last, version)


def loads_cudnn(built: str, version: str) -> bool:
    """True when what was compiled with one cuDNN loads another: same major, the same or a higher minor.

    Source: TensorFlow's own message, "CuDNN library needs to have matching major version and equal or higher minor version".
    A version that names a major only ("9") stands for any of it.
    """
    own, other = key(built), key(version)
    return own[:1] == other[:1] and (len(other) < 2 or other[:2] >= own[:2])


def distance(one: str, other: str) -> tuple[int, ...]:
    """How far two versions are apart, part by part: for ordering by nearness."""
    return tuple(abs(a - b) for a, b in itertools.zip_longest(key(one), key(other), fillvalue=0))
