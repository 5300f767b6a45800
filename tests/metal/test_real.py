"""NVIDIA's own kernel module, nvidia-smi, NVML and firmware on a card that its module takes and that never answers.

The tests of the first part share one guest, in their order: no module, nouveau in the way, bound, a dead card, no firmware, a
version that moved under the loaded module.
"""

from __future__ import annotations

import pytest

from .archive import Archive
from .conftest import Command
from .guest import Guest
from .real import SERIES, Chip, real
from .test_kernel import APT

pytestmark = pytest.mark.metal
WANTED = f"nvidia-headless-no-dkms-{SERIES} nvidia-utils-{SERIES} linux-modules-nvidia-{SERIES}-cloud-amd64"
PROBED = "dmesg | grep NVRM | cut -c1-160 | head -9"
LOADED = "dmesg | grep -E 'NVRM: (loading|GPU|Xid)|firmware' | cut -c1-160 | head -9"


@pytest.fixture(scope="module")
def own(base):
    return real(base)


@pytest.fixture(scope="module")
def card(base, own, tmp_path_factory):
    """A guest with one card and the older of NVIDIA's drivers, installed from packages of Ubuntu's names."""
    folder = tmp_path_factory.mktemp("real")
    archive, guest = Archive(folder / "archive", base), Guest(folder / "guest", base, cards="H100", card=Chip)
    try:
        print(f"boot: {guest.boot():.0f} s")
        guest.use(archive)
        archive.publish(own.packages(own.versions[0]))
        guest.run(f"apt-get update -qq && {APT} install --no-install-recommends {WANTED}")
        yield guest, Command(guest, folder / "state"), archive
    finally:
        guest.cut()
        archive.close()


def shown(guest, *commands):
    """Run each as root and print it with its output, as a screen has it; output and exit code of the last."""
    for command in commands:
        done = guest.run(f"{{ {command}\n}} 2>&1", check=False)
        print(f"# {command}\n{done.stdout.rstrip()}\n({done.rc})")
    return done.stdout, done.rc


def told(command):
    """{code of what diagnose says: codes of what it folds under that}"""
    print(command.run("diagnose", "-v", rc=3).stdout)

    def below(finding):
        return {code for each in finding["folded"] for code in (each["code"], *below(each))}

    return {finding["code"]: below(finding) for finding in command.host("diagnose", rc=3)["findings"]}


def test_nouveau_keeps_the_module_from_its_card(card, own):
    guest, command, _ = card
    text, _ = shown(guest, "modinfo nvidia | grep -E '^(filename|version|license|firmware|vermagic)'")
    assert f"version:        {own.versions[0]}\n" in text and "license:        NVIDIA\n" in text
    text, rc = shown(guest, "nvidia-smi")
    assert rc == 9 and text.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
    text, rc = shown(guest, "modprobe nvidia")
    # or busy, where udev tries at the same time
    assert rc == 1 and "could not insert 'nvidia'" in text
    assert "NVRM: The NVIDIA probe routine was not called for 1 device(s)." in shown(guest, PROBED)[0]
    assert {"driver.not_loaded", "driver.smi_fails"} <= told(command)["nouveau.still_loaded"]


def test_a_card_that_never_answers(card, own):
    guest, command, _ = card
    # modprobe -r does nothing: the driver's packages say "alias nouveau off"
    text, rc = shown(guest, "dmesg -C", "rmmod nouveau", "modprobe nvidia")
    assert rc == 0, text
    assert f"Kernel Module  {own.versions[0]}" in shown(guest, "cat /proc/driver/nvidia/version")[0]
    assert "Kernel driver in use: nvidia" in shown(guest, "lspci -nnk -d 10de:")[0]
    # The first reading is the first that opens the card as root: its nvidia-smi makes the nodes, the last after seconds.
    guest.run("rm -rf /dev/nvidia*")
    found = told(command)
    assert {"gpus.xid", "driver.smi_fails"} <= found["gpus.init_failed"]
    assert "gpus.no_device_nodes" not in found
    text, rc = shown(guest, "nvidia-smi")
    assert (text, rc) == ("No devices were found\n", 6)
    text, rc = shown(guest, "nvidia-smi -L")
    assert (text, rc) == ("No devices found.\n", 0)
    text, _ = shown(guest, LOADED)
    assert f"NVRM: loading NVIDIA UNIX x86_64 Kernel Module  {own.versions[0]}" in text
    assert "NVRM: GPU 0000:00:10.0: RmInitAdapter failed!" in text and "NVRM: Xid (PCI:0000:00:10): 143" in text
    checks = {check["id"]: check for check in command.host("verify", rc=3)["checks"]}
    assert checks["driver.bound"]["status"] == "pass" and checks["gpu.xid"]["status"] == "fail"
    assert "provision diagnose names the cause" in checks["driver.smi"]["hint"]


def test_no_firmware_for_the_card(card, own):
    guest, command, _ = card
    unload = "modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia"
    folder = f"/usr/lib/firmware/nvidia/{own.versions[0]}"
    shown(guest, unload, f"mv {folder} /root/firmware", "dmesg -C", "modprobe nvidia", "nvidia-smi")
    text, _ = shown(guest, LOADED)
    assert f"Direct firmware load for nvidia/{own.versions[0]}/gsp_ga10x.bin failed with error -2" in text
    assert "gpus.init_failed" in told(command)["gpus.gsp_firmware"]
    shown(guest, f"mv /root/firmware {folder}", unload, "dmesg -C", "modprobe nvidia")


def test_libraries_that_moved_under_the_loaded_module(card, own):
    guest, command, archive = card
    old, new = own.versions
    archive.publish(own.packages(new))
    guest.run(f"apt-get update -qq && {APT} dist-upgrade")
    text, rc = shown(guest, "nvidia-smi")
    assert (text.split("\n")[0], rc) == ("Failed to initialize NVML: Driver/library version mismatch", 18)
    assert (
        f"NVRM: API mismatch: the client has the version {new}, but"
        in shown(guest, "dmesg | grep -A3 'API mismatch'")[0]
    )
    assert "driver.smi_fails" in told(command)["driver.stale_module"]
    shown(guest, "modprobe -r nvidia_uvm nvidia_drm nvidia_modeset nvidia", "modprobe nvidia")
    assert shown(guest, "cat /sys/module/nvidia/version")[0].strip() == new
    assert shown(guest, "nvidia-smi")[1] == 6
