"""A kernel update that leaves the driver behind: found before the boot, named after it, rescued; GRUB's ways to choose a kernel.

The tests of this file share one guest, in their order.
"""

from __future__ import annotations

import pytest

from tests.faults.conftest import driver_packages, holds

from .archive import Archive
from .conftest import Command
from .guest import Guest

pytestmark = pytest.mark.metal
APT = "DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -q -y"


@pytest.fixture(scope="module")
def updated(held, base, tmp_path_factory):
    """A held host whose kernel was updated from an archive that has no module for it yet."""
    folder = tmp_path_factory.mktemp("kernel")
    archive, guest = Archive(folder / "archive", base), Guest(folder / "guest", base, backing=held.image)
    try:
        guest.boot()
        guest.use(archive)
        archive.publish_kernel()
        # by its own name: the metapackage is on hold
        guest.run(f"apt-get update -qq && {APT} install linux-image-{base.kernels[1]}")
        yield guest, Command(guest, folder / "state"), archive
    finally:
        guest.cut()
        archive.close()


def codes(command, rc):
    return {finding["code"] for finding in command.host("diagnose", rc=rc)["findings"]}


def test_it_is_found_before_the_boot(updated):
    guest, command, _ = updated
    assert guest.modules() >= {"nvidia"}, "this boot works"
    assert "kernel.no_module_for_next_boot" in codes(command, 3)


def test_it_is_named_after_the_boot(updated):
    guest, command, _ = updated
    guest.reboot()
    assert guest.ssh("uname -r").stdout.strip() == guest.disk.kernels[1]
    assert not guest.modules() and guest.ssh("nvidia-smi", check=False).rc == 9
    assert "kernel.no_module" in codes(command, 3)


def test_it_is_rescued_without_another_boot(updated):
    guest, command, archive = updated
    _, new = guest.disk.kernels
    booted = guest.boot_id()
    # The lists of the host are minutes old and do not have them.
    archive.publish_modules(new)
    done = command.host("rescue", "--yes")
    assert done["status"] == "rescued", done
    assert guest.boot_id() == booted
    assert guest.ssh("nvidia-smi -L").stdout.count("GPU ") == 2
    assert set(driver_packages(guest)) <= holds(guest)
    assert not [name for name in driver_packages(guest) if name.startswith("nvidia-dkms-")]
    command.run("verify")


@pytest.mark.parametrize("how", ["saved", "reboot"])
def test_the_kernel_that_grub_will_start_is_the_one_that_is_judged(updated, how):
    """A saved default, and grub-reboot's one boot, both by the title of an entry in a submenu."""
    guest, command, _ = updated
    old, new = guest.disk.kernels
    title = f"Advanced options for Ubuntu>Ubuntu, with Linux {old}"
    guest.run("sed -i s/^GRUB_DEFAULT=.*/GRUB_DEFAULT=saved/ /etc/default/grub; update-grub 2>&1")
    guest.run(f"grub-set-default 0; grub-{'set-default' if how == 'saved' else 'reboot'} '{title}'")
    assert command.host("plan")["status"] == "converged"
    # The module of the kernel that starts next is gone: that is what matters, whatever the newest kernel has.
    folder = f"/lib/modules/{old}/kernel/nvidia-580-server-open"
    guest.run(f"mv {folder} /root/gone; depmod {old}")
    assert "kernel.no_module_for_next_boot" in codes(command, 3)
    guest.run(f"mv /root/gone {folder}; depmod {old}")
    guest.reboot()
    assert guest.ssh("uname -r").stdout.strip() == old
    assert guest.modules() >= {"nvidia"}
    if how == "reboot":
        guest.reboot()
        assert guest.ssh("uname -r").stdout.strip() == new
