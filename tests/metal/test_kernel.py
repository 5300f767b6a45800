"""A kernel update that leaves the driver behind: found before the boot, and named after it.

The tests of this file share one guest, in their order.
"""

from __future__ import annotations

import pytest

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
