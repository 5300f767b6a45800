"""Fingerprints of keys that gpg made, of every packet form, and of damaged ones."""

import base64
import hashlib
import time

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.lib import openpgp

V4 = b"\x04\x5e\x0b\xe1\x00\x16" + b"\x09\x2b\x06\x01\x04\x01\xda\x47\x0f\x01\x01\x07\x40" + bytes(range(32))
V6 = b"\x06\x63\x87\x7f\xe3\x1b\x00\x00\x00\x20" + bytes(range(32))
FPR4 = hashlib.sha1(b"\x99" + len(V4).to_bytes(2, "big") + V4).hexdigest().upper()  # noqa: S324
FPR6 = hashlib.sha256(b"\x9b" + len(V6).to_bytes(4, "big") + V6).hexdigest().upper()


def _new(tag, body):
    """Packet with a new-format length."""
    size = len(body)
    if size < 192:
        length = bytes([size])
    elif size < 8384:
        length = bytes([((size - 192) >> 8) + 192, (size - 192) & 0xFF])
    else:
        length = b"\xff" + size.to_bytes(4, "big")
    return bytes([0xC0 | tag]) + length + body


def _old(tag, body, octets):
    """Packet with an old-format length of 1, 2 or 4 octets, 0 for 'to the end'."""
    return (
        bytes([0x80 | tag << 2 | {1: 0, 2: 1, 4: 2, 0: 3}[octets]])
        + len(body).to_bytes(octets or 1, "big")[: octets or 0]
        + body
    )


def _partial(tag, body):
    """Packet in chunks of 32, the last one with a length of its own."""
    data, at = bytes([0xC0 | tag]), 0
    while len(body) - at > 32:
        data += b"\xe5" + body[at : at + 32]
        at += 32
    return data + bytes([len(body) - at]) + body[at:]


def _armor(data, checksum=True, head="Comment: a key\n"):
    text = base64.encodebytes(data).decode()
    crc = "=" + base64.b64encode(openpgp._crc24(data).to_bytes(3, "big")).decode() + "\n" if checksum else ""
    return f"-----BEGIN PGP PUBLIC KEY BLOCK-----\n{head}\n{text}{crc}-----END PGP PUBLIC KEY BLOCK-----\n".encode()


ARMORED = _armor(_new(6, V4)).decode()


@pytest.mark.parametrize(
    "data",
    [
        _new(6, V4),
        _old(6, V4, 1),
        _old(6, V4, 2),
        _old(6, V4, 4),
        _old(6, V4, 0),
        _partial(6, V4),
        _armor(_new(6, V4)),
        _armor(_new(6, V4), checksum=False),
        _armor(_new(6, V4), head=""),
        _armor(_new(6, V4)).replace(b"\n", b"\r\n"),
        b"words before\n" + _armor(_new(6, V4)) + b"words after\n",
    ],
    ids=["new", "old1", "old2", "old4", "old0", "partial", "armor", "no-crc", "no-header", "crlf", "surrounded"],
)
def test_every_packet_form(data):
    assert openpgp.fingerprints(data) == [FPR4]


def test_subkeys_and_other_packets():
    ring = _new(6, V4) + _new(13, b"A <a@b>") + _new(2, b"x" * 300) + _new(14, V6) + _new(2, b"y" * 9000) + _new(6, V6)
    assert openpgp.keys(ring) == [(True, FPR4), (False, FPR6), (True, FPR6)]
    assert openpgp.primaries(ring) == [FPR4, FPR6]
    assert openpgp.dearmor(_armor(ring)) == ring and openpgp.dearmor(ring) == ring


def test_several_armored_blocks():
    assert openpgp.fingerprints(_armor(_new(6, V4)) + _armor(_new(6, V6))) == [FPR4, FPR6]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no OpenPGP public key"),
        (b"<html>404</html>", "not OpenPGP data"),
        (_new(13, b"A"), "no OpenPGP public key"),
        (_new(14, V4), "no OpenPGP public key"),
        (_new(6, V4)[:-1], "truncated"),
        (_new(6, b"\x03" + V4[1:]), "version 3"),
        (_armor(_new(6, V4))[:-20], "truncated"),
        (_armor(_new(6, V4)).replace(b"AAEC", b"AAED"), "checksum"),
        (_armor(_new(6, V4)).replace(b"\n\n", b"\n\n***"), "not base64"),
    ],
)
def test_damaged(data, words):
    with pytest.raises(ValueError, match=words):
        openpgp.fingerprints(data)


def test_a_file_of_beginnings_is_refused_at_once():
    """Any block may begin in it: it is read once, however many lines there are."""
    begun = time.process_time()
    with pytest.raises(ValueError, match="truncated"):
        openpgp.fingerprints(b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n" * 20_000)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    "text",
    [
        "EB693B3035CD5710E231E123A4B469963BF863CC",
        "eb69 3b30 35cd 5710 e231  e123 a4b4 6996 3bf8 63cc",
        "0xEB693B3035CD5710E231E123A4B469963BF863CC",
        "EB:69:3B:30:35:CD:57:10:E2:31:E1:23:A4:B4:69:96:3B:F8:63:CC",
    ],
)
def test_normalize(text):
    assert openpgp.normalize(text) == "EB693B3035CD5710E231E123A4B469963BF863CC"


@pytest.mark.parametrize("text", ["", "3BF863CC", "A4B469963BF863CC", "G" * 40])
def test_short_fingerprints_are_refused(text):
    with pytest.raises(ValueError, match="not a full fingerprint"):
        openpgp.normalize(text)


OTHER = V4[:-1] + b"\x77"


@pytest.mark.parametrize("form", [_new, lambda tag, body: _old(tag, body, 2), _partial])
def test_a_ring_without_a_key_keeps_every_other_byte(form):
    """Subkeys, names, signatures and gpg's trust packets go with their key, and with it only."""
    tail = form(13, b"name") + form(2, b"\x04signature") + form(14, V4) + _new(12, b"\x00\x00")
    mine, other = form(6, V4) + tail, form(6, OTHER) + tail
    for ring in (mine + other, other + mine):
        assert openpgp.without(ring, [FPR4]) == other
    assert openpgp.without(mine, [FPR4]) == b""
    assert openpgp.without(other, [FPR4]) == other
    with pytest.raises(ValueError, match="truncated"):
        openpgp.without(mine + other[:-3], [FPR4])


def test_a_wrong_checksum_is_passed_over_where_the_fingerprint_decides():
    damaged = _armor(_new(6, V4)).replace(b"AAEC", b"AAED")
    with pytest.raises(ValueError, match="checksum"):
        openpgp.primaries(damaged)
    assert openpgp.primaries(damaged, checked=False) != openpgp.primaries(_armor(_new(6, V4)))
