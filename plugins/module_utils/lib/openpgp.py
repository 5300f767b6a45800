# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Fingerprints of OpenPGP public keys, without gpg: hosts need nothing but Python.

Source of the formats: RFC 9580 (armor 6.2, packets 4.2, fingerprints 5.5.4). Signatures are not checked here:
a
fingerprint that was known before is what makes a key trusted.
"""

from __future__ import annotations

import base64
import binascii
import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import digests

_BEGIN, _END = b"-----BEGIN PGP PUBLIC KEY BLOCK-----", b"-----END PGP PUBLIC KEY BLOCK-----"
_PUBLIC_KEY, _PUBLIC_SUBKEY, _SECRET_KEY = 6, 14, 5
# Packets of a key: signature, key, user id, subkey, user attribute (RFC 9580, 5).
_OF_KEYS = (2, 6, 13, 14, 17)
# filled when an armored key is read
_CRC24 = []


def is_armored(data):
    """True when the bytes hold an armored public key block."""
    return _BEGIN in data


def dearmor(data, checked=True):
    """Return the binary form of a key ring; several armored blocks are joined, binary data is returned.

    Raises ValueError when a block is cut off, is not base64, or fails its checksum; that one is only looked at where
    checked, and a fingerprint proves more than it.
    """
    if not is_armored(data):
        return data
    blocks = list(_blocks(data))
    if len(blocks) != data.count(_BEGIN):
        raise ValueError("the armored key is truncated: no END line")
    return b"".join(_dearmor_block(block, checked) for block in blocks)


def _blocks(data):
    """Yield the lines of each armored block, without its BEGIN and END."""
    block = None
    for line in data.splitlines():
        if block is None:
            block = [] if line.rstrip() == _BEGIN else None
        elif line.startswith(_END):
            yield block
            block = None
        else:
            block.append(line.strip())


def fingerprints(data):
    """Return the fingerprints of all primary keys and subkeys of a key ring, in order, upper-case hex.

    Raises ValueError when the data is not a ring of public keys.
    """
    return [fingerprint for _, fingerprint in keys(data)]


def primaries(data, checked=True):
    """Return the fingerprints of the primary keys alone. apt trusts every one of them: check them all."""
    return [fingerprint for is_primary, fingerprint in keys(data, checked) if is_primary]


def keys(data, checked=True):
    """Return [(is primary key, fingerprint)] of an armored or binary ring. ValueError when it is none."""
    found = [
        (tag == _PUBLIC_KEY, _fingerprint(body))
        for tag, body in packets(dearmor(data, checked))
        if tag in (_PUBLIC_KEY, _PUBLIC_SUBKEY)
    ]
    if not found or not found[0][0]:
        raise ValueError("no OpenPGP public key in it")
    return found


def only(data, fingerprints):
    """Return a binary ring of the primary keys of these fingerprints alone, with their subkeys, names and signatures.

    Every other packet goes: foreign keys, secret ones, and kinds that a reader may take otherwise than we do. Empty where none
    of the keys is in it. Raises ValueError when the data is not a ring of public keys.
    """
    kept, keep, at = [], False, 0
    data = dearmor(data)
    for tag, body, end in _framed(data):
        if tag in (_PUBLIC_KEY, _SECRET_KEY):
            keep = tag == _PUBLIC_KEY and body[:1] in (b"\4", b"\5", b"\6") and _fingerprint(body) in fingerprints
        if keep and tag in _OF_KEYS:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def without(data, fingerprints):
    """Return a binary ring less the primary keys of these fingerprints, with their subkeys, names and signatures.

    Every other byte stays. Raises ValueError when the data is not a binary ring of public keys.
    """
    kept, keep, at = [], True, 0
    for tag, body, end in _framed(data):
        if tag == _PUBLIC_KEY:
            keep = _fingerprint(body) not in fingerprints
        if keep:
            kept.append(data[at:end])
        at = end
    return b"".join(kept)


def normalize(fingerprint):
    """Fingerprint as people write it (spaces, colons, 0x, any case) to upper-case hex; else ValueError."""
    text = re.sub(r"[\s:]", "", fingerprint).upper()
    if text.startswith("0X"):
        text = text[2:]
    if not re.match(r"^(?:[0-9A-F]{40}|[0-9A-F]{64})$", text):
        raise ValueError("not a full fingerprint (40 or 64 hex digits): %s" % fingerprint)
    return text


def _dearmor_block(lines, checked):
    # Header lines, an empty line, base64, and perhaps "=" with a CRC24.
    if b"" in lines and all(b": " in line or line.endswith(b":") for line in lines[: lines.index(b"")]):
        lines = lines[lines.index(b"") + 1 :]
    checksum = None
    payload = []
    for line in lines:
        if line.startswith(b"=") and len(line) == 5:
            checksum = line[1:]
        elif line:
            payload.append(line)
    try:
        data = base64.b64decode(b"".join(payload), validate=True)
        expected = None if checksum is None else base64.b64decode(checksum, validate=True)
    except binascii.Error as error:
        raise ValueError("the armored key is not base64: %s" % error) from None
    if checked and expected is not None and expected != _crc24(data).to_bytes(3, "big"):
        raise ValueError("the armored key is damaged: its checksum is wrong")
    return data


def _crc24(data):
    """The checksum of RFC 4880, 6.1, byte by byte from a table: hosts read their trusted keys at every look."""
    crc, table = 0xB704CE, _crc24_table()
    for byte in data:
        crc = ((crc << 8) & 0xFFFFFF) ^ table[(crc >> 16) ^ byte]
    return crc


def _crc24_table():
    if not _CRC24:
        for byte in range(256):
            crc = byte << 16
            for _ in range(8):
                crc = (crc << 1) ^ (0x1864CFB if crc & 0x800000 else 0)
            _CRC24.append(crc)
    return _CRC24


def packets(data):
    """Yield (tag, body) of every packet; ValueError when the framing is wrong."""
    for tag, body, _ in _framed(data):
        yield tag, body


def _framed(data):
    """Yield (tag, body, position behind it) of every packet; ValueError when the framing is wrong."""
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError("not OpenPGP data")
        at += 1
        if head & 0x40:
            tag = head & 0x3F
            body = b""
            partial = True
            while partial:
                length, at, partial = _new_length(data, at)
                body += _take(data, at, length)
                at += length
        else:
            tag = (head >> 2) & 0x0F
            size = (1, 2, 4, 0)[head & 3]
            length = int.from_bytes(_take(data, at, size), "big") if size else len(data) - at
            at += size
            body = _take(data, at, length)
            at += length
        yield tag, body, at


def _new_length(data, at):
    """Return (length, position after it, is partial) of a new-format length."""
    first = _take(data, at, 1)[0]
    if first < 192:
        return first, at + 1, False
    if first < 224:
        return ((first - 192) << 8) + _take(data, at + 1, 1)[0] + 192, at + 2, False
    if first == 255:
        return int.from_bytes(_take(data, at + 1, 4), "big"), at + 5, False
    return 1 << (first & 0x1F), at + 1, True


def _take(data, at, length):
    part = data[at : at + length]
    if len(part) != length:
        raise ValueError("the OpenPGP data is truncated")
    return part


def _fingerprint(body):
    version = body[0] if body else None
    if version == 4:
        # OpenPGP defines SHA-1 here; it names the key, apt and gpg check the signatures.
        return digests.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
    if version in (5, 6):
        prefix = b"\x9a" if version == 5 else b"\x9b"
        return digests.sha256(prefix + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise ValueError("OpenPGP key of version %s: only 4, 5 and 6 are known" % version)
