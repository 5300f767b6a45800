"""Secure Boot by OVMF with Microsoft's keys, Debian's signed shim, GRUB and kernel: the kernel itself refuses a module."""

from __future__ import annotations

import pytest

from .test_kernel import codes

pytestmark = pytest.mark.metal
DOWN, PASSWORD = "\x1b[B", "abc12345"
# MokManager's screens, as a person walks them.
ENROL = (
    ("any key", " "),
    ("Enroll MOK", DOWN + "\r"),
    ("View key", DOWN + "\r"),
    ("Enroll the key", DOWN + "\r"),
    ("Password", PASSWORD + "\r"),
    ("Reboot", "\r"),
)


def test_a_module_is_refused_until_its_key_is_enrolled(held, start):
    """The archive's signature here is one that Debian's kernel does not know, as a mainline kernel does not know Ubuntu's."""
    guest, command = start(backing=held.image, secure_boot=True)
    assert "SecureBoot enabled" in guest.run("mokutil --sb-state").stdout
    refused = guest.run("modprobe nvidia", check=False)
    assert refused.rc == 1 and "Key was rejected by service" in refused.stderr
    assert "module with unavailable key is rejected" in guest.run("dmesg").stdout
    assert "secureboot.key_not_enrolled" in codes(command, 3)

    certificate = (guest.disk.folder / "signing/certificate.der").read_bytes().hex()
    guest.run(f"python3 -c \"open('/root/key.der', 'wb').write(bytes.fromhex('{certificate}'))\"")
    guest.run(f"printf '{PASSWORD}\\n{PASSWORD}\\n' | mokutil --import /root/key.der")
    (finding,) = [f for f in command.host("diagnose", rc=3)["findings"] if f["code"] == "secureboot.key_not_enrolled"]
    assert "MokManager" in str(finding), finding
    before = guest.boot_id()
    guest.run("systemctl reboot", check=False)
    print(guest.type(*ENROL)[-1500:])
    guest.wait(before)
    assert "is already enrolled" in guest.run("mokutil --test-key /root/key.der", check=False).stdout
    assert guest.modules() >= {"nvidia"}
    assert guest.ssh("nvidia-smi -L").stdout.count("GPU ") == 2
    assert not [f for f in command.host("diagnose")["findings"] if f["code"].startswith("secureboot.")]
