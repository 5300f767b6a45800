"""EFI variables as a machine has them: Secure Boot's state and the machine owner's keys."""

import struct
import uuid

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from tests.unit import trees

X509 = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072").bytes_le
SHA256 = uuid.UUID("c1c41626-504c-4092-aca9-41f936934328").bytes_le
OWNER = uuid.UUID(trees.SHIM_GUID).bytes_le
KEY, OTHER = b"\x30\x82\x03\x01" + b"k" * 700, b"\x30\x82\x02\x01" + b"o" * 500


def _list(kind, *items, header=b""):
    """One EFI_SIGNATURE_LIST: GUID, sizes, header, then owner and data of each item (all of one size)."""
    each = 16 + len(items[0])
    body = header + b"".join(OWNER + item for item in items)
    return kind + struct.pack("<III", 28 + len(body), len(header), each) + body


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"", []),
        (_list(X509, KEY), [KEY]),
        (_list(SHA256, b"h" * 32, b"i" * 32) + _list(X509, OTHER) + _list(X509, KEY), [OTHER, KEY]),
        (_list(X509, b"1" * 40, b"2" * 40, header=b"head"), [b"1" * 40, b"2" * 40]),
        (_list(X509, OTHER) + _list(X509, KEY)[:-5], [OTHER]),
        (b"\0" * 100, []),
        (b"\xff" * 100, []),
    ],
)
def test_signature_lists(data, wanted):
    assert probe_facts.signature_list(data) == wanted


def _state(tmp_path, efi, files=None):
    root = trees.build(tmp_path, {"efi": efi, "files": files or {}})
    return probe_facts.read_secure_boot(HostTree(str(root)))


@pytest.mark.parametrize(("enrolled", "answer"), [([OTHER, KEY], True), ([OTHER], False), ([], False)])
def test_own_key_among_the_enrolled(tmp_path, enrolled, answer):
    listed = b"".join(_list(X509, key) for key in enrolled)
    state = _state(tmp_path, {"SecureBoot": 1, "MokListRT": listed.hex()}, {"/var/lib/shim-signed/mok/MOK.der": KEY})
    assert state["enabled"] is True and state["mok_enrolled"] is answer


def test_key_of_plain_dkms_and_the_kernels_copy_of_the_list(tmp_path):
    files = {"/var/lib/dkms/mok.pub": KEY, "/sys/firmware/efi/mok-variables/MokListRT": _list(X509, KEY)}
    state = _state(tmp_path, {"SecureBoot": 1}, files)
    assert state == {
        "efi": True,
        "enabled": True,
        "mok_key": "/var/lib/dkms/mok.pub",
        "mok_enrolled": True,
        "waits": [],
    }


@pytest.mark.parametrize(
    ("efi", "enabled"),
    [
        ({"SecureBoot": 0, "SetupMode": 0}, False),
        ({"SecureBoot": 1, "SetupMode": 0}, True),
        ({"SecureBoot": 1, "SetupMode": 1}, False),
        ({"SecureBoot": 1, "MokSBStateRT": 0}, True),
        ({"SecureBoot": 1, "MokSBStateRT": 1}, False),
        ({"SecureBoot": ""}, None),
    ],
)
def test_state(tmp_path, efi, enabled):
    assert _state(tmp_path, efi)["enabled"] is enabled


def test_no_efi(tmp_path):
    state = _state(tmp_path, {}, {"/var/lib/dkms/mok.pub": KEY})
    assert state == {"efi": False, "enabled": False, "mok_key": "/var/lib/dkms/mok.pub", "mok_enrolled": None}
