"""Shared libraries that the loader's tools can read: tiny ELF64 files with a SONAME and a few functions.

``ldconfig`` lists them and makes their links, ``ldd`` and ``ctypes`` load them: what decides which of several copies
wins is the real loader. Functions hold a constant, as a version query does.
"""

from __future__ import annotations

import struct

# ELF header and three program headers
_BASE = 64 + 3 * 56


def constant(value: int) -> bytes:
    """Code of ``long f(void)`` that returns a number below 2**31: mov eax, value; ret."""
    return b"\xb8" + struct.pack("<I", value) + b"\xc3"


def stores(value: int) -> bytes:
    """Code of ``int f(int *p)`` that stores a number and returns 0: mov dword [rdi], value; xor eax, eax; ret."""
    return b"\xc7\x07" + struct.pack("<I", value) + b"\x31\xc0\xc3"


def points_to(text: str) -> bytes:
    """Code of ``char *f()`` that returns a text: lea rax, [rip + 1]; ret; the text."""
    return b"\x48\x8d\x05" + struct.pack("<i", 1) + b"\xc3" + text.encode() + b"\0"


def build(soname: str, functions: dict[str, bytes] | None = None) -> bytes:
    """Return the bytes of a shared library for x86-64.

    soname: what DT_SONAME says (``libcudart.so.12``); functions: {name: code} from ``constant``, ``stores`` and
    ``points_to``.
    """
    functions = functions or {}
    strings = b"\0" + soname.encode() + b"\0"
    names = []
    for name in functions:
        names.append(len(strings))
        strings += name.encode() + b"\0"
    code = b"".join(functions.values())
    at_code = _BASE
    at_strings = (at_code + len(code) + 7) & ~7
    at_symbols = (at_strings + len(strings) + 7) & ~7
    count = len(functions) + 1
    at_hash = at_symbols + 24 * count
    # One bucket whose chain runs through every symbol: right for any name, quick enough for three.
    chain = [0, *range(2, count), 0] if count > 1 else [0]
    table = struct.pack("<II", 1, count) + struct.pack("<I", 1 if count > 1 else 0)
    table += struct.pack(f"<{count}I", *chain)
    at_dynamic = (at_hash + len(table) + 7) & ~7
    entries = [(14, 1), (4, at_hash), (5, at_strings), (6, at_symbols), (10, len(strings)), (11, 24), (0, 0)]
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    size = at_dynamic + len(dynamic)
    symbols, offset = bytes(24), at_code
    for name, body in zip(names, functions.values(), strict=True):
        symbols += struct.pack("<IBBHQQ", name, 0x12, 0, 1, offset, len(body))
        offset += len(body)
    header = struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 3, 62, 1, 0, 64, 0, 0, 64, 56, 3, 0, 0, 0)
    # the loader writes to DYNAMIC
    programs = struct.pack("<IIQQQQQQ", 1, 7, 0, 0, 0, size, size, 4096)
    programs += struct.pack("<IIQQQQQQ", 2, 6, at_dynamic, at_dynamic, at_dynamic, len(dynamic), len(dynamic), 8)
    # Without it the loader would ask for an executable stack.
    programs += struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    data = (header + programs + code).ljust(at_strings, b"\0") + strings
    data = data.ljust(at_symbols, b"\0") + symbols + table
    return data.ljust(at_dynamic, b"\0") + dynamic
