"""Kernel module files: fields, licence, signature, every packing."""

import struct

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.lib import kmod
from tests.lab import kofile
from tests.unit import trees

OPEN = [("version", "580.65.06"), ("license", "Dual MIT/GPL"), ("version", "later"), ("alias", "pci:v000010DEd*")]


def _wide(data):
    """The same file as ELF with more sections than 16 bits can count: the numbers move to section 0."""
    offset = struct.unpack_from("<Q", data, 40)[0]
    count, names = struct.unpack_from("<HH", data, 60)
    head = bytearray(data)
    struct.pack_into("<HH", head, 60, 0, 0xFFFF)
    struct.pack_into("<Q", head, offset + 32, count)
    struct.pack_into("<I", head, offset + 40, names)
    return bytes(head)


@pytest.mark.parametrize("pack", [None, "xz", "gz", "zst"])
def test_every_packing(tmp_path, pack):
    path = trees.write_module(
        tmp_path, "/nvidia.ko" + (f".{pack}" if pack else ""), "580.65.06", "NVIDIA", "A signer, Ltd.", pack
    )
    assert kmod.info(str(path)) == {
        "version": "580.65.06",
        "license": "NVIDIA",
        "flavour": "proprietary",
        "signed": True,
        "signer": "A signer, Ltd.",
    }


def test_zst_of_many_frames_and_blocks(tmp_path):
    data = kofile.build(OPEN) + b"\0" * 5_000_000
    packed = b"".join(trees.zstd(part) for part in (data[:3_000_000], data[3_000_000:]))
    (tmp_path / "nvidia.ko.zst").write_bytes(packed)
    assert kmod.unpack(str(tmp_path / "nvidia.ko.zst"), "zst") == data


@pytest.mark.parametrize("change", [lambda data: data, _wide], ids=["plain", "many sections"])
def test_open_module_without_signature(change):
    info = kmod.describe(change(kofile.build(OPEN)))
    assert info == {
        "version": "580.65.06",
        "license": "Dual MIT/GPL",
        "flavour": "open",
        "signed": False,
        "signer": None,
    }


def test_old_signature_names_its_signer():
    body = kofile.build(OPEN)
    old = b"Some key" + b"ID" + b"S" * 64 + struct.pack(">5B3xI", 1, 4, 1, 8, 2, 64) + kofile.MARKER
    assert kmod.describe(body + old)["signer"] == "Some key"


def test_damaged_signature_is_still_one():
    info = kmod.describe(kofile.build(OPEN) + b"\x30\x82" + struct.pack(">5B3xI", 0, 0, 2, 0, 0, 2) + kofile.MARKER)
    assert info["signed"] and info["signer"] is None


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("nvidia.ko", b""),
        ("nvidia.ko", b"\x7fELF"),
        ("nvidia.ko", b"not an ELF file" * 10),
        ("nvidia.ko", kofile.build(OPEN)[:200]),
        ("nvidia.ko", kofile.build(OPEN).replace(b".modinfo", b".modinfx")),
        ("nvidia.ko.xz", b"\xfd7zXZ\0 damaged"),
        ("nvidia.ko.gz", b"damaged"),
        ("nvidia.ko.zst", b"damaged"),
        ("nvidia.ko.zst", b"\x28\xb5\x2f\xfd"),
        ("nvidia.ko.lz4", b"x"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(kmod.KmodError):
        kmod.info(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("nvidia.ko", True),
        ("nvidia.ko.zst", True),
        ("nvidia-current.ko", True),
        ("nvidia-current-open.ko.xz", True),
        ("nvidia-tesla-470.ko", True),
        ("nvidia-legacy-390xx.ko", True),
        ("nvidia-uvm.ko", False),
        ("nvidia-drm.ko", False),
        ("nvidia-modeset.ko", False),
        ("nvidia.ko.bak", False),
        ("nvidiafb.ko", False),
        ("nvidia-current-uvm.ko", False),
        ("nvidia-current-drm.ko", False),
    ],
)
def test_names(name, is_one):
    assert bool(kmod.FILE_NAME.match(name)) is is_one
