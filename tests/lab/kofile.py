"""Kernel module files that tools can read: ELF64 with a true ``.modinfo`` section and, if wanted, an appended signature.

They hold no code. kmod (``modinfo``, ``depmod``) and our probe read them as they read real ones. Standard library
only, Python 3.8+: the same file runs on simulated hosts, where the dkms stand-in 'builds' with it.

The signature has the kernel's layout (scripts/sign-file.c: PKCS#7, struct module_signature, marker) and names a
signer and a serial number; its cryptographic part is a filler, so it is only good for a simulated Secure Boot.
"""

from __future__ import annotations

import hashlib
import struct

MARKER = b"~Module signature appended~\n"


def build(modinfo, signed_by=None, serial=1):
    """Return the bytes of a module file.

    modinfo: list of (key, value) pairs, as ``modinfo`` shows them; signed_by: common name of the signer or None.
    """
    body = b"".join(b"%s=%s\0" % (key.encode(), value.encode()) for key, value in modinfo)
    names = b"\0.modinfo\0.shstrtab\0"
    offset_body = 64
    offset_names = offset_body + len(body)
    offset_sections = (offset_names + len(names) + 7) & ~7
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, 62, 1, 0, 0, offset_sections, 0, 64, 0, 0, 64, 3, 2
    )
    sections = (
        bytes(64)
        + struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, offset_body, len(body), 0, 0, 1, 0)
        + struct.pack("<IIQQQQIIQQ", 10, 3, 0, 0, offset_names, len(names), 0, 0, 1, 0)
    )
    data = (header + body + names).ljust(offset_sections, b"\0") + sections
    return data + signature(data, signed_by, serial) if signed_by else data


def signature(data, signed_by, serial=1):
    """Return what the kernel's sign-file appends to a module: PKCS#7 message, its description and the marker."""
    message = _pkcs7(data, signed_by, serial)
    # struct module_signature: algo, hash, id_type (2 = PKCS#7), signer_len, key_id_len, 3 bytes padding, length
    return message + struct.pack(">BBBBB3xI", 0, 0, 2, 0, 0, len(message)) + MARKER


def _pkcs7(data, signed_by, serial):
    sha512 = _der(0x30, _oid("2.16.840.1.101.3.4.2.3") + _der(0x05, b""))
    name = _der(0x30, _der(0x31, _der(0x30, _oid("2.5.4.3") + _der(0x0C, signed_by.encode()))))
    signer = _der(
        0x30,
        _integer(1)
        + _der(0x30, name + _integer(serial))
        + sha512
        + _der(0x30, _oid("1.2.840.113549.1.1.1") + _der(0x05, b""))
        + _der(0x04, hashlib.sha512(data + signed_by.encode()).digest() * 4),
    )
    signed = _der(
        0x30, _integer(1) + _der(0x31, sha512) + _der(0x30, _oid("1.2.840.113549.1.7.1")) + _der(0x31, signer)
    )
    return _der(0x30, _oid("1.2.840.113549.1.7.2") + _der(0xA0, signed))


def _der(tag, content):
    size = len(content)
    if size < 0x80:
        length = bytes([size])
    else:
        octets = size.to_bytes((size.bit_length() + 7) // 8, "big")
        length = bytes([0x80 | len(octets)]) + octets
    return bytes([tag]) + length + content


def _integer(number):
    return _der(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _oid(dotted):
    parts = [int(part) for part in dotted.split(".")]
    octets = bytearray([parts[0] * 40 + parts[1]])
    for part in parts[2:]:
        chunk = [part & 0x7F]
        while part > 0x7F:
            part >>= 7
            chunk.append(0x80 | (part & 0x7F))
        octets += bytes(reversed(chunk))
    return _der(0x06, bytes(octets))
