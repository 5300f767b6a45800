"""The loader's cache: a real one, the older format in front of it, and what is damaged."""

import struct

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.lib import ld_cache
from provision.collection import ROOT

LIBRARIES = [
    ("libcudart.so.12", "/usr/local/cuda/targets/x86_64-linux/lib/libcudart.so.12"),
    ("libcudart.so.12", "/usr/local/cuda-12/targets/x86_64-linux/lib/libcudart.so.12"),
    ("libz.so.1", "/lib/x86_64-linux-gnu/libz.so.1"),
]


def test_order_is_kept_and_prefixes_choose():
    data = ld_cache.build(LIBRARIES)
    assert ld_cache.entries(data) == LIBRARIES
    assert ld_cache.entries(data, (b"libcu", b"libnccl")) == LIBRARIES[:2]


def test_the_recorded_cache_of_a_real_machine():
    data = (ROOT / "tests/fixtures/h100x1/root/etc/ld.so.cache").read_bytes()
    found = dict(ld_cache.entries(data))
    assert found["libnccl.so.2"] == "/lib/x86_64-linux-gnu/libnccl.so.2"
    assert found["libcudart.so.13"] == "/usr/local/cuda/targets/x86_64-linux/lib/libcudart.so.13"


def test_the_older_table_before_it():
    """glibc below 2.32 (Ubuntu 20.04): offsets count from the new header anyway."""
    old = b"ld.so-1.7.0\0" + struct.pack("<I", 1) + struct.pack("<III", 3, 0, 0)
    data = old + b"\0" * (-len(old) % 8) + ld_cache.build(LIBRARIES)
    assert ld_cache.entries(data) == LIBRARIES


def test_other_architectures_are_no_entries():
    # i386
    assert ld_cache.entries(ld_cache.build(LIBRARIES, wide=0x0003)) == []
    # 64-bit ARM
    assert ld_cache.entries(ld_cache.build(LIBRARIES, wide=0x0A03)) == LIBRARIES


def test_a_damaged_cache_gives_what_can_be_read():
    data = ld_cache.build(LIBRARIES)
    assert ld_cache.entries(b"") == ld_cache.entries(b"garbage") == ld_cache.entries(data[:30]) == []
    cut = ld_cache.entries(data[:100])
    assert len(cut) <= 2
