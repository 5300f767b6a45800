"""From nothing to a held driver with a real reboot: nouveau loaded for real, blacklisted, gone; the driver's modules loaded."""

import pytest

from tests.faults.conftest import driver_packages, holds

pytestmark = pytest.mark.metal


def test_from_nothing_to_a_held_driver_and_then_nothing_more(held, start):
    assert held.plan["status"] == "changes"
    assert held.applied["status"] == "done"
    assert held.modules[0] == ["nouveau"]
    assert {"nvidia", "nvidia_uvm"} <= set(held.modules[1]) and "nouveau" not in held.modules[1]
    assert held.boots[0] != held.boots[1]

    guest, command = start(backing=held.image)
    assert guest.ssh("nvidia-smi -L").stdout.count("GPU ") == 2
    assert guest.module_version() == "580.126.20"
    assert "driver in use: nvidia" in guest.ssh("lspci -k -d 10de:").stdout
    assert "SIMULATED stand-in" in guest.run("dmesg").stdout
    initramfs = guest.run("lsinitramfs /boot/initrd.img-$(uname -r)").stdout
    assert "modprobe.d/nvidia-graphics-drivers.conf" in initramfs
    assert set(driver_packages(guest)) <= holds(guest) and driver_packages(guest)
    assert command.host("plan")["status"] == "converged"
    assert command.host("apply", "--yes")["status"] == "unchanged"
    checks = command.host("verify")["checks"]
    assert {check["status"] for check in checks} <= {"pass", "skip"}, checks
