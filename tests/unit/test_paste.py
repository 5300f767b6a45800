"""What is handed to ``diagnose --text``: packed, damaged, no text, or a text that nobody knows."""

import bz2
import gzip
import io
import lzma

import pytest

from provision.commands.diagnose import by_text
from provision.diagnose import paste
from provision.errors import UsageError
from tests.unit import trees

LINE = "NVRM: RmInitAdapter failed! (0x26:0x56:1474)\n"


@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, bz2.compress, lzma.compress, trees.zstd],
    ids=["plain", "gzip", "bzip2", "xz", "zstd"],
)
def test_a_text_is_unpacked(pack):
    assert paste.read(io.BytesIO(pack(LINE.encode()))) == LINE


def test_an_export_of_the_journal_is_a_text():
    field = b"MESSAGE\n" + (len(LINE) - 1).to_bytes(8, "little") + LINE.encode() + b"_BOOT_ID=0123\n"
    assert LINE in paste.read(io.BytesIO(b"__CURSOR=s=1\n_TRANSPORT=kernel\n" * 2 + field))


def test_a_bomb_is_cut_off(monkeypatch):
    monkeypatch.setattr(paste, "MOST", 1000)
    assert len(paste.read(io.BytesIO(gzip.compress(b"a" * 1_000_000)))) == 1000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (gzip.compress(LINE.encode(), mtime=0)[:-12], "cannot be unpacked"),
        (b"\x1f\x8bnonsense", "cannot be unpacked"),
        (b"\xfd7zXZ\x00\x00\x04rest", "cannot be unpacked"),
        (b"\x28\xb5\x2f\xfd\x04", "zstd and cannot be unpacked"),
        (b"\x7fELF\x02\x01\x01\x00\x00", "no text"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", "no text"),
    ],
)
def test_what_is_no_text_is_named(given, message):
    with pytest.raises(UsageError, match=message):
        paste.read(io.BytesIO(given))


@pytest.mark.parametrize(
    ("text", "words", "command"),
    [
        ("dkms: something new", "DKMS", "make.log"),
        ("E: Something that apt never said", "apt and dpkg", "/var/log/apt/term.log"),
        ("NCCL WARN a new one", "NCCL", "NCCL_DEBUG=INFO"),
        ("docker: a new one", "containers", "journalctl -b -u docker"),
        ("nvidia-uvm: a new one", "the driver", "journalctl -k -b"),
        ("Segmentation fault", "names no program", "journalctl -b -p warning"),
    ],
)
def test_a_text_that_nobody_knows_leads_on(text, words, command):
    document = by_text(text)
    assert document.exit_code == 3
    (issue,) = document.errors
    assert words in issue.because[-1]
    assert command in issue.hint and "provision diagnose -l HOST" in issue.hint
