"""What a boot needs: room in /boot for an initramfs, and an initramfs that does not carry the module of before."""

from __future__ import annotations

import pytest

from tests.faults.conftest import driver_packages, holds

from .disk import VERSIONS
from .test_kernel import APT, codes

pytestmark = pytest.mark.metal
# A driver that moves while nothing holds it, as unattended-upgrades moves it.
UPGRADE = f"apt-mark unhold $(apt-mark showhold) >/dev/null; apt-get update -qq; {APT} dist-upgrade 2>&1"


def test_a_boot_without_room(held, start, archive):
    """Refused before anything changes; then as it ends without us, with update-initramfs failing for real; then repaired."""
    guest, command = start(backing=held.image)
    archive.publish_driver()
    # A file system of its own, as hosts with an encrypted root have it.
    guest.run(
        "set -e; mount -t tmpfs -o size=$(($(du -sm /boot | cut -f1) + 12))m boot /mnt; cp -a /boot/. /mnt/;"
        "mount --bind /mnt /boot"
    )
    before = driver_packages(guest)
    assert "disk.boot_full" in codes(command, 3)
    done = command.json("apply", "--yes", "-e", "nvidia_driver_update=true", rc=1)
    (error,) = done["errors"]
    print(error["code"], error["message"], error["because"], error["hint"])
    assert "/boot: " in str(error["because"]) and driver_packages(guest) == before and set(before) <= holds(guest)
    assert not guest.run("dpkg --audit").stdout

    said = guest.run(f"dd if=/dev/zero of=/boot/core bs=1M 2>/dev/null; {UPGRADE}", check=False)
    assert said.rc == 100 and "No space left on device" in said.stdout, said.stdout[-1500:]
    found = codes(command, 3)
    assert {"disk.boot_full", "dpkg.unfinished"} <= found, found

    guest.run("rm /boot/core; umount /boot /mnt")
    done = command.host("rescue", "--yes")
    print(done["status"], done["reboots"])
    assert done["status"] == "rescued", done
    assert not guest.run("dpkg --audit").stdout
    assert guest.module_version() == VERSIONS[1]
    assert set(driver_packages(guest)) <= holds(guest)


def test_an_initramfs_that_carries_the_module_of_before(held, start, archive):
    guest, command = start(backing=held.image)
    archive.publish_driver()
    conf = "/etc/initramfs-tools/update-initramfs.conf"
    guest.run(
        f"set -e; echo nvidia >>/etc/initramfs-tools/modules; update-initramfs -u; lsinitramfs /initrd.img | grep nvidia.ko;"
        f"sed -i s/^update_initramfs=.*/update_initramfs=no/ {conf}; {UPGRADE};"
        f"sed -i s/^update_initramfs=.*/update_initramfs=yes/ {conf}"
    )
    guest.reboot()
    assert guest.module_version() == VERSIONS[0]
    assert guest.run("modinfo -F version nvidia").stdout.strip() == VERSIONS[1]
    (finding,) = [f for f in command.host("diagnose", rc=3)["findings"] if f["code"] == "driver.stale_module"]
    print(finding["message"])
    assert "initramfs" in finding["message"]

    done = command.host("rescue", "--yes")
    assert (done["status"], done["reboots"]) == ("rescued", 0), done
    assert guest.module_version() == VERSIONS[1]
    guest.reboot()
    assert guest.module_version() == VERSIONS[1]
    assert guest.ssh("nvidia-smi -L").stdout.count("GPU ") == 2
