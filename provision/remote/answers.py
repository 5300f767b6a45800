"""What a host sends, up to limits, and what is accepted as an answer. Pure: bytes go in, data or BadAnswer comes out.

A host is not trusted. Each limit is far above what an honest host needs; together they bound the memory that one host can
take on this machine, whatever it sends: ANSWER while it is read, UNPACKED and VALUES afterwards.
"""

from __future__ import annotations

import json
import math
import re
import threading
import zlib
from collections.abc import Sequence
from typing import Any

from provision.errors import HostFailedError

# Bytes before an answer: what a login shell, sudo or ssh print. More is no greeting.
NOISE = 64 * 1024
# Bytes of an answer as it is sent, compressed; its header says how many. The answer of a host with conda environments by the
# hundred has about 1 MB.
ANSWER = 16 * 1024 * 1024
UNPACKED = 32 * 1024 * 1024
VALUES = 1_000_000
DEPTH = 64
# Of an error: longer texts are cut.
_TEXT, _LINES, _CODE_LENGTH = 2000, 40, 100

_HEADER = re.compile(rb"0|[1-9][0-9]{0,9}")
_HEADER_LENGTH = 10
_CODE = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)+")
_LONE = re.compile("[\ud800-\udfff]")
# Larger answers are unpacked one at a time: what that takes for a moment is several times what stays.
_LARGE = 1024 * 1024
_turn = threading.Lock()
_HINT = "is it the host that you mean, and is its Python sound? try: ssh HOST python3 --version"


class BadAnswer(Exception):
    """What arrived is not an answer; str() says why, without repeating any of it."""


def error(host: str, why: str, because: Sequence[str] = (), hint: str = _HINT) -> HostFailedError:
    """Return the error of a host that sent something else than an answer."""
    return HostFailedError(
        "host.bad_answer", f"the host's answer cannot be used: {why}", host=host, because=because, hint=hint
    )


class Incoming:
    """Bytes from a host, until they are an answer. ``text`` is what came that is none."""

    def __init__(self, token: str) -> None:
        self._head = f"\n{token} ".encode()
        self._ready = re.compile(rb"\n%b-ready(?: ([0-9a-f]{1,16}))?\n" % token.encode())
        self._buffer, self._looked = bytearray(), 0
        self._size: int | None = None

    def add(self, data: bytes) -> None:
        self._buffer += data

    def forget(self) -> None:
        """Drop what came after the last answer: what a host said before it was asked is no answer."""
        self._buffer.clear()
        self._looked, self._size = 0, None

    def ready(self) -> bytes | None:
        """Return the number of the bytecode that the host's Python runs, b"" where it says none; None: it has not started.

        Raises BadAnswer.
        """
        found = self._ready.search(self._buffer)
        if found is None:
            self._check_noise(len(self._buffer))
        return found and bytes(found[1] or b"")

    def take(self, what: bytes) -> bool:
        """Remove what, a prompt, where it stands; return whether it did. Raises BadAnswer."""
        at = self._buffer.find(what)
        if at < 0:
            self._check_noise(len(self._buffer))
            return False
        del self._buffer[at : at + len(what)]
        return True

    def frame(self) -> bytes | None:
        """Return the next answer as it was sent, None where it is not complete. Raises BadAnswer."""
        if not self.complete():
            return None
        size = self._size or 0
        packed = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        self._size = None
        return packed

    def text(self, last: int = 16384) -> str:
        return self._buffer[-last:].decode("utf-8", "replace")

    def complete(self) -> bool:
        """True when an answer is there. Raises BadAnswer where what has arrived cannot become one."""
        return (self._size is not None or self._read_header()) and len(self._buffer) >= (self._size or 0)

    def _read_header(self) -> bool:
        at = self._buffer.find(self._head, self._looked)
        if at < 0:
            self._check_noise(len(self._buffer))
            self._looked = max(0, len(self._buffer) - len(self._head))
            return False
        self._check_noise(at)
        start = at + len(self._head)
        end = self._buffer.find(b"\n", start, start + _HEADER_LENGTH + 1)
        if end < 0:
            if len(self._buffer) - start > _HEADER_LENGTH:
                raise BadAnswer("its length is not a plain number")
            return False
        digits = self._buffer[start:end]
        if not _HEADER.fullmatch(digits):
            raise BadAnswer("its length is not a plain number")
        self._size = int(digits)
        if self._size > ANSWER:
            raise BadAnswer(f"it has more than {ANSWER >> 20} MiB")
        del self._buffer[: end + 1]
        self._looked = 0
        return True

    def _check_noise(self, size: int) -> None:
        if size > NOISE:
            raise BadAnswer(f"more than {NOISE >> 10} KiB came before it")


def unpack(packed: bytes) -> Any:
    """Return the data in the frame of an answer. Raises BadAnswer."""
    if len(packed) < _LARGE and len(data := _inflate(packed, _LARGE)) <= _LARGE:
        return loads(data)
    with _turn:
        _check_size(packed)
        return loads(_inflate(packed, UNPACKED))


def _check_size(packed: bytes) -> None:
    """Raise BadAnswer for what unpacks to too much, without holding more of it than a piece."""
    stream, size = zlib.decompressobj(), 0
    while packed and not stream.eof:
        try:
            size += len(stream.decompress(packed, _LARGE))
        except zlib.error:
            raise BadAnswer("it is not compressed with zlib") from None
        if size > UNPACKED:
            raise BadAnswer(f"it unpacks to more than {UNPACKED >> 20} MiB")
        packed = stream.unconsumed_tail


def _inflate(packed: bytes, limit: int) -> bytes:
    """Return what was packed; one byte more than the limit where there is more."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(packed, limit + 1)
    except zlib.error:
        raise BadAnswer("it is not compressed with zlib") from None
    if len(data) <= limit and (not stream.eof or stream.unused_data):
        raise BadAnswer("it is not compressed with zlib")
    return data


def loads(data: bytes) -> Any:
    """Return what JSON says, with lone surrogates (of file names that are not UTF-8) written out. Raises BadAnswer.

    At most VALUES values, DEPTH levels, numbers of 64 bits; no NaN, no infinity.
    """
    # As many values as there are separators, or less: counted before any is made.
    if sum(data.count(mark) for mark in (b",", b"[", b"{")) > VALUES:
        raise BadAnswer(f"it has more than {VALUES} values")
    try:
        # Not json's own guess: that lets through what is no UTF-8.
        tree = json.loads(data.decode())
    except (ValueError, RecursionError):
        raise BadAnswer("it is not JSON") from None
    _check_values(tree)
    if b"\\ud" in data or b"\\uD" in data:
        text = _LONE.sub(lambda one: f"\\\\u{ord(one[0]):04x}", json.dumps(tree, ensure_ascii=False))
        tree = json.loads(text)
    return tree


def _check_values(tree: Any) -> None:
    level, depth = [tree], 0
    while level:
        depth += 1
        if depth > DEPTH:
            raise BadAnswer(f"it is nested more than {DEPTH} deep")
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below.extend(value.values())
            elif isinstance(value, list):
                below.extend(value)
            elif (isinstance(value, int) and not -(2**63) <= value < 2**64) or (
                isinstance(value, float) and not math.isfinite(value)
            ):
                raise BadAnswer("a number in it is out of range")
        level = below


def result(answer: Any, host: str) -> Any:
    """Return what the program on the host returned. HostFailedError: what it raised. BadAnswer: neither."""
    match answer:
        case {"ok": True, "result": found}:
            return found
        case {
            "ok": False,
            "error": {
                "code": str(code),
                "message": str(message),
                "because": list(because),
                "hint": None | str() as hint,
            },
        } if len(code) <= _CODE_LENGTH and _CODE.fullmatch(code) and all(isinstance(s, str) for s in because):
            raise HostFailedError(
                code,
                message[:_TEXT],
                host=host,
                because=[line[:_TEXT] for line in because[:_LINES]],
                hint=hint and hint[:_TEXT],
            )
    raise BadAnswer("it is neither a result nor an error")
