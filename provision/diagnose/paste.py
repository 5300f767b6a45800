"""What people hand over as a text: unpacked where it is compressed, named where it is none, and what to hand over next."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tempfile
import zlib
from typing import Any, BinaryIO

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import kmod
from provision.diagnose.text import MOST
from provision.errors import UsageError
from provision.lib import scratch

_PACKED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_ZSTD = b"\x28\xb5\x2f\xfd"
# Bytes of a file that say whether it is a text.
_HEAD = 65536
# Programs that errors come from -> what shows more of it, on the host. The first that is named decides.
_NEXT = (
    (r"\bdkms\b|\bmake\[\d\]|\bgcc\b|\bcc1\b", "DKMS", "cat /var/lib/dkms/nvidia/*/build/make.log"),
    (r"\b(?:apt|apt-get|dpkg|debconf|ucf)\b|^[EW]: ", "apt and dpkg", "tail -n 200 /var/log/apt/term.log"),
    (r"\bfabric ?manager\b|\bnvlsm\b|\bnvswitch\b", "fabric manager", "journalctl -b -u nvidia-fabricmanager"),
    (r"\bnccl\b", "NCCL", "NCCL_DEBUG=INFO PROGRAM"),
    (
        r"\b(?:docker|containerd|podman|runc|crun|nvidia-container-cli|nvidia-ctk|cdi)\b",
        "containers",
        "journalctl -b -u docker -u containerd",
    ),
    (r"\b(?:conda|mamba|micromamba)\b", "conda", "conda list"),
    (r"\b(?:pip|torch|tensorflow|jax|python3?)\b", "Python", "python -m torch.utils.collect_env"),
    (r"\b(?:nvidia|nvrm|xid|nvml|cuda|modprobe|insmod|nouveau)\b", "the driver", "journalctl -k -b"),
)


def read(stream: BinaryIO) -> str:
    """Return the text of a file that was handed over; gzip, bzip2, xz and zstd are unpacked, up to MOST bytes.

    Raises UsageError for what is no text, and for a damaged file.
    """
    given = stream.read(MOST)
    opener = next((opener for magic, opener in _PACKED.items() if given.startswith(magic)), None)
    if opener:
        try:
            given = opener(io.BytesIO(given)).read(MOST)
        except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
            raise UsageError("usage.text", "the compressed text cannot be unpacked", because=[str(error)]) from error
    if given.startswith(_ZSTD):
        given = _of_zstd(given)
    text = given.decode("utf-8", "backslashreplace")
    if not _is_text(given):
        raise UsageError(
            "usage.text",
            "that is no text",
            hint="hand over what a program printed, or a log; provision diagnose reads the host itself",
        )
    # Exports of the journal have lengths as numbers of eight bytes.
    return text.replace("\0", "")


def _of_zstd(packed: bytes) -> bytes:
    """By Python (3.14), libzstd or the program zstd, whichever is there."""
    with tempfile.NamedTemporaryFile(dir=scratch.folder()) as file:
        file.write(packed)
        file.flush()
        try:
            return bytes(kmod.unpack(file.name, "zst")[:MOST])
        except (kmod.KmodError, OSError) as error:
            raise UsageError(
                "usage.text",
                "that is compressed by zstd and cannot be unpacked here",
                because=[str(error).replace(file.name, "the text")],
                hint="zstdcat FILE | provision diagnose --text -",
            ) from error


def _is_text(given: bytes) -> bool:
    """Whether at least nine in ten characters of the beginning are characters of a text."""
    head = given[:_HEAD].decode("utf-8", "replace")
    odd = sum(1 for one in head if one == "\ufffd" or (one < " " and one not in "\t\n\r\f\b\a\x1b"))
    return odd * 10 <= len(head)


def unknown(text: str) -> tuple[list[str], str]:
    """(whose words a text holds that no finding knows, a hint what to hand over next)."""
    named = [(title, command) for words, title, command in _NEXT if re.search(words, text, re.I | re.M)]
    because = (
        [f"it has words of {', '.join(title for title, _ in named)}"]
        if named
        else ["it names no program that is known here"]
    )
    command = named[0][1] if named else "journalctl -b -p warning"
    return (
        because,
        f"on the host: {command} 2>&1 | provision diagnose --text -; or have it read the host: provision diagnose -l HOST",
    )
