# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What the dynamic loader finds by name: the binary ``/etc/ld.so.cache``. Standard library only, Python 3.8 and later.

Source of the format: glibc, sysdeps/generic/dl-cache.h (cache_file_new, file_entry_new). Until glibc 2.31 ldconfig
wrote an older table before it; offsets of names count from the new table's header in both.
"""

from __future__ import annotations

import struct

MAGIC = b"glibc-ld.so.cache1.1"
# magic, number of entries, length of names, flags, extension offset, three unused words
_HEADER = 48
# flags, name, path, osversion, hwcap
_ENTRY = struct.Struct("<iIIIQ")
# ELF for x86-64 and for 64-bit ARM: FLAG_ELF_LIBC6 with FLAG_X8664_LIB64 or FLAG_AARCH64_LIB64.
_WIDE = (0x0303, 0x0A03)


def entries(data, prefixes=(b"lib",)):
    """Return [(name, path)] of 64-bit libraries in the loader's order: of equal names the first is taken.

    data: content of ld.so.cache. prefixes: bytes that names must begin with. A damaged cache gives what can be read.
    """
    start = data.find(MAGIC)
    if start < 0 or start + _HEADER > len(data):
        return []
    (count,) = struct.unpack_from("<I", data, start + len(MAGIC))
    end = min(start + _HEADER + count * _ENTRY.size, len(data))
    table = data[start + _HEADER : end - (end - start - _HEADER) % _ENTRY.size]
    found = []
    for flags, name, path, _, _ in _ENTRY.iter_unpack(table):
        if flags in _WIDE and data.startswith(prefixes, start + name):
            found.append((_text(data, start + name), _text(data, start + path)))
    return found


def build(libraries, wide=_WIDE[0]):
    """Return the content of a cache with these [(name, path)], in this order: what tests and the lab put on a host."""
    names = b"".join(text.encode() + b"\0" for pair in libraries for text in pair)
    at, rows = _HEADER + len(libraries) * _ENTRY.size, b""
    for name, path in libraries:
        rows += _ENTRY.pack(wide, at, at + len(name.encode()) + 1, 0, 0)
        at += len(name.encode()) + len(path.encode()) + 2
    return MAGIC + struct.pack("<II5I", len(libraries), len(names), 2, 0, 0, 0, 0) + rows + names


def _text(data, at):
    return data[at : data.find(b"\0", at)].decode("utf-8", "backslashreplace")
