"""One host of the lab from nothing to a driver, as a person does it. tests/lab/self holds the lab to the field in all else."""

from __future__ import annotations

import time

import pytest

pytestmark = pytest.mark.lab
APT = "DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 apt-get -q -y"
SIGNED_580 = (
    "linux-modules-nvidia-580-server-open-generic nvidia-headless-no-dkms-580-server-open nvidia-utils-580-server"
)


def test_a_person_installs_a_signed_driver_and_reboots(new_host):
    host = new_host(gpus=["H100 SXM5 80GB x2"])
    assert host.describe()["modules"].keys() == {"nouveau"}
    host.ssh(f"sudo apt-get -q update && sudo {APT} install {SIGNED_580}")
    # nouveau still owns the GPUs
    assert host.ssh("nvidia-smi", check=False).rc == 9
    before = host.ssh("cat /proc/sys/kernel/random/boot_id").stdout
    host.ssh("sudo systemctl reboot", check=False)
    deadline = time.monotonic() + 30
    while host.ssh("cat /proc/sys/kernel/random/boot_id", check=False).stdout in ("", before):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    listed = host.ssh("nvidia-smi --query-gpu=index,name,driver_version,memory.total --format=csv").stdout.splitlines()
    assert listed == [
        "index, name, driver_version, memory.total [MiB]",
        "0, NVIDIA H100 80GB HBM3, 580.126.20, 81559 MiB",
        "1, NVIDIA H100 80GB HBM3, 580.126.20, 81559 MiB",
    ]
    assert "nvidia" in host.describe()["modules"]
    assert "Open Kernel Module" in host.ssh("cat /proc/driver/nvidia/version").stdout
    assert host.ssh("modinfo -F signer nvidia").stdout.strip() == "Canonical Ltd. Kernel Module Signing"
    assert host.ssh("uname -r; cat /proc/sys/kernel/osrelease").stdout.split() == ["6.8.0-45-generic"] * 2
    assert "Kernel driver in use: nvidia" in host.ssh("lspci -nnk -d 10de: 2>/dev/null", check=False).stdout
