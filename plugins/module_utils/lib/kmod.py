# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What a kernel module file says of itself: version, licence, signature. Pure Python, no modinfo.

Sources: elf(5); kernel include/linux/module_signature.h and scripts/sign-file.c (appended signature);
RFC 5652 (PKCS#7 as the kernel uses it). Plain files are read in a few places only; compressed ones have to be
unpacked whole, because the section table and the signature stand at the end.
"""

from __future__ import annotations

import mmap
import os
import struct

from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree, lazy_re

# NVIDIA's module has 100 MB, packed a third of that.
_MOST_PACKED, _MOST_UNPACKED = 1 << 27, 1 << 29
MAGIC = b"~Module signature appended~\n"
# nvidia.ko, and Debian's nvidia-current.ko, nvidia-current-open.ko, nvidia-tesla-470.ko,
# nvidia-legacy-390xx.ko
FILE_NAME = lazy_re.compile(
    r"^nvidia(?:-current(?:-open)?|-tesla(?:-[0-9]+)?|-legacy-[0-9]+xx)?\.ko(?:\.(?:xz|gz|zst))?$"
)
_CN = b"\x06\x03\x55\x04\x03"


class KmodError(Exception):
    """The file is not a kernel module that can be read here."""


def info(path):
    """Return {"version", "license", "flavour", "signed", "signer"} of a module file; unknown values are None.

    Raises KmodError when the file is no ELF module or cannot be unpacked, OSError when it cannot be read.
    """
    kind = path.rsplit(".", 1)[-1]
    if kind == "ko":
        with host_tree.open_file(path) as file:
            if not 0 < os.fstat(file.fileno()).st_size <= _MOST_UNPACKED:
                raise KmodError("%s is empty, or too large" % path)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return describe(data)
    return describe(unpack(path, kind))


def describe(data):
    """Return what ``info`` returns, from the bytes (or mmap) of an uncompressed module."""
    fields = _modinfo(data)
    signed = data[len(data) - len(MAGIC) :] == MAGIC
    return {
        "version": fields.get("version"),
        "license": fields.get("license"),
        "flavour": flavour(fields.get("license")),
        "signed": signed,
        "signer": _signer(data) if signed else None,
    }


def flavour(license_):
    """Flavour by licence: NVIDIA's open modules are 'Dual MIT/GPL', the others 'NVIDIA'; else None."""
    if license_ in ("Dual MIT/GPL", "Dual MIT/GPL v2"):
        return "open"
    return "proprietary" if license_ == "NVIDIA" else None


def unpack(path, kind):
    """Return the bytes of a module compressed as kind (xz, gz, zst). Raises KmodError or OSError."""
    packed = host_tree.read_file(path, _MOST_PACKED)
    try:
        if kind == "xz":
            import lzma

            return _whole(lzma.LZMADecompressor(), packed, path)
        if kind == "gz":
            import zlib

            return _whole(zlib.decompressobj(31), packed, path)
    except (EOFError, ValueError) as error:
        raise KmodError("%s cannot be unpacked: %s" % (path, error)) from None
    except Exception as error:
        # lzma.LZMAError and zlib.error share no base class with anything narrower.
        if type(error).__name__ in ("LZMAError", "error"):
            raise KmodError("%s cannot be unpacked: %s" % (path, error)) from None
        raise
    if kind == "zst":
        return _unpack_zstd(packed, path)
    raise KmodError("%s: unknown compression" % path)


def _whole(decompressor, packed, path):
    data = decompressor.decompress(packed, _MOST_UNPACKED)
    if not decompressor.eof:
        raise KmodError("%s cannot be unpacked: truncated, or larger than %d MiB" % (path, _MOST_UNPACKED >> 20))
    return data


def _unpack_zstd(packed, path):
    """By Python's own module (3.14), else libzstd, which dpkg itself needs, else the zstd program."""
    try:
        from compression import zstd
    except ImportError:
        pass
    else:
        try:
            return _whole(zstd.ZstdDecompressor(), packed, path)
        except zstd.ZstdError as error:
            raise KmodError("%s cannot be unpacked: %s" % (path, error)) from None
    import ctypes

    try:
        lib = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return _unpack_zstd_program(path)
    return _unpack_libzstd(ctypes, lib, packed, path)


def _unpack_libzstd(ctypes, lib, packed, path):
    class Buffer(ctypes.Structure):
        _fields_ = [("ptr", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t)]

    for name, result, arguments in (
        ("ZSTD_createDStream", ctypes.c_void_p, []),
        ("ZSTD_freeDStream", ctypes.c_size_t, [ctypes.c_void_p]),
        ("ZSTD_isError", ctypes.c_uint, [ctypes.c_size_t]),
        ("ZSTD_decompressStream", ctypes.c_size_t, [ctypes.c_void_p, ctypes.POINTER(Buffer), ctypes.POINTER(Buffer)]),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    source = ctypes.create_string_buffer(packed, len(packed))
    chunk = ctypes.create_string_buffer(1 << 20)
    given = Buffer(ctypes.cast(source, ctypes.c_void_p), len(packed), 0)
    parts = []
    stream = lib.ZSTD_createDStream()
    try:
        left = 1
        while given.pos < given.size or (left and parts and len(parts[-1]) == len(chunk)):
            taken = Buffer(ctypes.cast(chunk, ctypes.c_void_p), len(chunk), 0)
            left = lib.ZSTD_decompressStream(stream, ctypes.byref(taken), ctypes.byref(given))
            if lib.ZSTD_isError(left):
                raise KmodError("%s cannot be unpacked: damaged zstd data" % path)
            parts.append(ctypes.string_at(chunk, taken.pos))
            if len(parts) > _MOST_UNPACKED // len(chunk):
                raise KmodError("%s cannot be unpacked: larger than %d MiB" % (path, _MOST_UNPACKED >> 20))
        if left:
            raise KmodError("%s cannot be unpacked: the zstd data is truncated" % path)
    finally:
        lib.ZSTD_freeDStream(stream)
    return b"".join(parts)


def _unpack_zstd_program(path):
    from ansible_collections.gpu.provision.plugins.module_utils.lib import outputs

    done = outputs.ask(["zstd", "-dcq", path], 30, _MOST_UNPACKED)
    if done is None or done[0]:
        raise KmodError("%s cannot be unpacked: no libzstd, and the program zstd does not unpack it" % path)
    return done[1]


def _modinfo(data):
    """Return {key: first value} of the .modinfo section of an ELF64 or ELF32 little-endian file."""
    head = data[:64]
    if head[:4] != b"\x7fELF" or len(head) < 52 or head[5:6] != b"\x01":
        raise KmodError("not an ELF file")
    wide = head[4:5] == b"\x02"
    try:
        if wide:
            (offset,), (size, count, names_at) = (
                struct.unpack_from("<Q", head, 40),
                struct.unpack_from("<3H", head, 58),
            )
        else:
            (offset,), (size, count, names_at) = (
                struct.unpack_from("<I", head, 32),
                struct.unpack_from("<3H", head, 46),
            )

        if size < (64 if wide else 40):
            raise KmodError("the ELF file is damaged")

        def section(index):
            # (name, offset, size, link)
            at = offset + index * size
            if wide:
                name, _, _, _, start, length, link = struct.unpack("<IIQQQQI", data[at : at + 44])
            else:
                name, _, _, _, start, length, link = struct.unpack("<7I", data[at : at + 28])
            return name, start, length, link

        # Files with more sections than 16 bits can count keep the true numbers in section 0.
        first = section(0) if offset else None
        if first and not count:
            count = first[2]
        if first and names_at == 0xFFFF:
            names_at = first[3]
        _, start, length, _ = section(names_at)
        names = data[start : start + length]
        wanted = names.find(b"\x00.modinfo\x00") + 1
        for index in range(count):
            name, start, length, _ = section(index)
            if wanted and name == wanted:
                return _fields(data[start : start + length])
    except struct.error:
        raise KmodError("the ELF file is truncated") from None
    raise KmodError("no .modinfo section")


def _fields(section):
    fields = {}
    for item in section.split(b"\x00"):
        key, equals, value = item.partition(b"=")
        if equals:
            fields.setdefault(key.decode("ascii", "replace"), value.decode("utf-8", "replace"))
    return fields


def _signer(data):
    """Common name of the key that signed, or None."""
    end = len(data) - len(MAGIC)
    trailer = data[end - 12 : end]
    if len(trailer) != 12:
        return None
    _, _, kind, signer_length, key_length, length = struct.unpack(">5B3xI", trailer)
    start = end - 12 - length
    if start < 0:
        return None
    if kind != 2:
        # Kernels before 4.3: the signer's name itself stands before key id and signature.
        start -= key_length + signer_length
        return data[start : start + signer_length].decode("utf-8", "replace") or None
    return pkcs7_signer(data[start : start + length])


def pkcs7_signer(message):
    """Common name of the issuer in the first SignerInfo of a PKCS#7 SignedData, or None."""
    try:
        # ContentInfo: OID, [0] SignedData
        content = _children(_children(message)[0][1])[1][1]
        signed_data = _children(_children(content)[0][1])
        signer_infos = next(value for tag, value in reversed(signed_data) if tag == 0x31)
        issuer = _children(_children(_children(signer_infos)[0][1])[1][1])[0][1]
        for _, name_set in _children(issuer):
            for _, attribute in _children(name_set):
                if attribute.startswith(_CN):
                    return _children(attribute)[1][1].decode("utf-8", "replace")
    except (IndexError, StopIteration):
        pass
    return None


def _children(data):
    """DER: return [(tag, value)] of the elements in data. Raises IndexError when it is cut off."""
    found, at = [], 0
    while at < len(data):
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise IndexError("cut off")
        found.append((tag, data[at : at + length]))
        at += length
    return found


def modprobe_files(tree):
    """Yield the path of every file that modprobe reads; one hides those of the same name in later folders (modprobe.d(5))."""
    seen = set()
    for folder in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"):
        for name in tree.names(folder + "/modprobe.d"):
            if name.endswith(".conf") and name not in seen:
                seen.add(name)
                yield "%s/modprobe.d/%s" % (folder, name)
