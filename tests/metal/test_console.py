"""Hosts that ssh does not reach: one that does not come back from a reboot, and the rescue at its serial console."""

from __future__ import annotations

import pytest

from tests.faults.conftest import driver_packages, holds

pytestmark = pytest.mark.metal


def test_a_host_that_does_not_come_back_is_said_so(held, start):
    guest, command = start(backing=held.image)
    # Nothing to install and a reboot to do: nouveau has the cards again.
    guest.run(
        "set -e; systemctl stop nvidia-persistenced; modprobe -r nvidia_drm nvidia_modeset nvidia_uvm nvidia_peermem nvidia;"
        "insmod $(modinfo -n nouveau)"
    )
    # As a wrong entry of GRUB's does it: the kernel finds no root file system and waits for a person.
    guest.run("sed -i 's/root=UUID=[0-9a-f-]*/root=UUID=gone/' /boot/grub/grub.cfg; sync")
    done = command.json("apply", "--yes", "-e", "nvidia_driver_reboot_timeout=180", rc=4)
    (host,) = done["hosts"].values()
    (error,) = [error for error in done["errors"] if error["host"] == "gpuhost"]
    print(error)
    assert host["status"] in ("failed", "unreachable") and error["hint"], done
    assert "Gave up waiting for root file system device" in guest.screen()


def test_the_rescue_at_the_serial_console(held, start, tmp_path):
    guest, command = start(backing=held.image)
    script = tmp_path / "rescue.py"
    command.run("rescue", "gpuhost", "--offline-script", "-o", str(script))
    guest.ssh("cat >rescue.py", data=script.read_text())
    # Its driver half removed by force, and no way in but the console.
    guest.run(
        "echo lab:lab | chpasswd; dpkg --force-all --remove libnvidia-compute-580-server 2>&1; modprobe -r nvidia_uvm;"
        "systemctl stop ssh",
        check=False,
    )
    shown = guest.type(
        ("", "\r"),
        ("login: ", "lab\r"),
        ("Password: ", "lab\r"),
        (r"\$ ", "sudo python3 rescue.py -y; echo the end: $?\r"),
        (r"the end: \d", "sudo systemctl start ssh\r"),
        # what is typed and not yet read goes with the line
        (r"\$ ", ""),
        timeout=900,
    )
    print(shown[-3000:])
    assert "the end: 0" in shown
    guest.wait()
    assert guest.ssh("nvidia-smi -L").stdout.count("GPU ") == 2
    assert set(driver_packages(guest)) <= holds(guest)
