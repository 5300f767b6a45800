"""The driver on a running host: moved under its loaded module, built by real DKMS, headers missing, a compiler's error."""

from __future__ import annotations

import pytest

from tests.faults.conftest import driver_packages, holds

from .disk import VERSIONS
from .test_kernel import APT, codes

pytestmark = pytest.mark.metal


def test_a_driver_that_moved_under_its_module_is_reloaded_without_a_reboot(held, start, archive):
    guest, command = start(backing=held.image)
    archive.publish_driver()
    guest.run(f"apt-mark unhold $(apt-mark showhold) >/dev/null; apt-get update -qq; {APT} dist-upgrade")
    booted = guest.boot_id()
    assert guest.module_version() == VERSIONS[0]
    failed = guest.ssh("nvidia-smi", check=False)
    assert failed.rc == 18 and "version mismatch" in failed.stdout
    assert "driver.stale_module" in codes(command, 3)

    done = command.host("rescue", "--yes")
    assert (done["status"], done["reboots"]) == ("rescued", 0), done
    assert guest.boot_id() == booted
    assert guest.module_version() == VERSIONS[1]
    assert guest.ssh("nvidia-smi -L").stdout.count("GPU ") == 2
    assert set(driver_packages(guest)) <= holds(guest)


def test_dkms_builds_for_real_and_its_failures_are_named(held, start, archive):
    """From signed modules to DKMS; a newer kernel without headers; then a source that the compiler refuses, and its repair."""
    guest, command = start(backing=held.image)
    old, new = guest.disk.kernels
    command.run("apply", "--yes", "-e", "nvidia_driver_build=dkms")
    assert f"{VERSIONS[0]}, {old}, x86_64: installed" in guest.run("dkms status").stdout
    assert (
        guest.run(f"modinfo -k {old} -F filename nvidia").stdout.strip() == f"/lib/modules/{old}/updates/dkms/nvidia.ko"
    )
    assert guest.ssh("nvidia-smi -L").stdout.count("GPU ") == 2

    archive.publish_kernel()
    guest.run(f"apt-get update -qq && {APT} install linux-image-{new}")
    found = codes(command, 3)
    assert {"kernel.headers_missing"} <= found, found

    source = f"/usr/src/nvidia-{VERSIONS[0]}/nvidia.c"
    guest.run(f"cp {source} /root/; echo 'int moved_on(void) {{ return pci_resize_resource(top); }}' >>{source}")
    said = guest.run(f"{APT} install linux-headers-{new} 2>&1", check=False)
    assert "Bad return status for module build" in said.stdout, said.stdout[-1500:]
    found = codes(command, 3)
    assert {"kernel.build_failed"} <= found, found

    guest.run(f"cp /root/nvidia.c {source}")
    done = command.host("rescue", "--yes")
    assert done["status"] == "rescued", done
    assert f"{VERSIONS[0]}, {new}, x86_64: installed" in guest.run("dkms status").stdout
    assert not guest.run("dpkg --audit").stdout
    guest.reboot()
    assert guest.ssh("uname -r").stdout.strip() == new
    assert guest.ssh("nvidia-smi -L").stdout.count("GPU ") == 2
