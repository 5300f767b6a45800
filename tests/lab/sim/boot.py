"""One simulated boot, before systemd's sysinit.target: new boot_id, chosen kernel, devices, modules as udev loads them."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import tarfile
import time
import traceback

from . import grub, initramfs, kmod, state
from .modprobe_conf import blacklisted
from .nvidia import CannotLoad

EFI_GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
MOK_GUID = "605dab50-e046-4300-abb6-3dd810dd8b23"
_X509_GUID = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")


def main():
    """Boot; what goes wrong is left where the lab looks for it."""
    error = state.ETC + "/boot-error"
    if os.path.exists(error):
        os.unlink(error)
    try:
        _boot()
    except Exception:
        state.write(error, traceback.format_exc())
        raise


def _boot():
    first = state.ETC + "/first.tar"
    if os.path.exists(first) and not os.path.exists("/var/lib/sim/first-done"):
        with tarfile.open(first) as archive:
            archive.extractall("/")  # noqa: S202 - the lab wrote it
        with open("/var/lib/sim/password", "rb") as handle:
            subprocess.run(["chpasswd", "-e"], stdin=handle, check=True)
        _machine_id()
        state.write("/var/lib/sim/first-done", "")
    shutil.rmtree(state.RUN, ignore_errors=True)
    os.makedirs(state.RUN)
    state.write(state.RUN + "/started", str(time.time()))
    # programs of any user make the driver log something
    state.write(state.LOG, "", 0o666)
    host = state.host()
    _over("/proc/sys/kernel/random/boot_id", state.read("/proc/sys/kernel/random/uuid") + "\n")
    release, cmdline = grub.boot()
    state.write(state.RUN + "/release", release + "\n")
    _bind(state.RUN + "/release", "/proc/sys/kernel/osrelease")
    state.log("Linux version %s (buildd@lcy02-amd64-080) #45-Ubuntu SMP PREEMPT_DYNAMIC" % release)
    state.log("Command line: " + cmdline)
    _over("/proc/version", "Linux version %s (buildd@lcy02-amd64-080) #45-Ubuntu SMP PREEMPT_DYNAMIC\n" % release)
    _over("/proc/cmdline", cmdline + "\n")
    pci_bus(host)
    _bind(state.RUN + "/pci", "/sys/bus/pci")
    firmware(host)
    if host.get("nvlink5"):
        infiniband()
    _module_tree()
    os.makedirs(state.RUN + "/proc-driver")
    _bind(state.RUN + "/proc-driver", "/proc/driver")
    state.write(state.RUN + "/proc-modules", "")
    if os.path.exists("/proc/modules"):
        _bind(state.RUN + "/proc-modules", "/proc/modules")
    load_modules(host, release, cmdline)


def _machine_id():
    """A machine id of its own for every host: images are shared."""
    state.write("/etc/machine-id", state.read("/proc/sys/kernel/random/uuid").replace("-", "") + "\n", 0o444)


def load_modules(host, release, cmdline):
    """Load what the initramfs and then udev would load for the GPUs."""
    if not host["gpus"]:
        return
    held_back = set(blacklisted())
    for word in cmdline.split():
        key, _, value = word.partition("=")
        if key in ("modprobe.blacklist", "module_blacklist"):
            held_back.update(value.split(","))
            if "nouveau" in value.split(","):
                host = dict(host, nouveau=False)
    in_initramfs = set(initramfs.blacklist_in(release))
    if host.get("nouveau", True) and not ("nouveau" in in_initramfs and "nouveau" in held_back):
        _try("nouveau", release)
    if "nvidia" not in held_back:
        _try("nvidia", release)


def _try(name, release):
    if kmod.find(name, release) is None:
        return
    try:
        kmod.load(name)
    except (CannotLoad, LookupError) as problem:
        # As at a real boot: the reason is in the kernel log, the boot goes on.
        state.log("systemd-udevd: %s: failed to load module: %s" % (name, problem))


def pci_bus(host):
    """Write /sys/bus/pci as it would show the machine: GPUs, their audio functions, NVSwitches and two other devices."""
    devices = [
        ("0000:00:00.0", "8086", "0d57", "060000", None, -1),
        ("0000:00:01.0", "1af4", "1041", "020000", None, -1),
    ]
    for gpu in host["gpus"]:
        if gpu.get("lost"):
            continue
        devices.append((gpu["slot"], "10de", gpu["device"], gpu["class"], gpu.get("subsystem"), gpu.get("numa", -1)))
        if gpu["class"] == "030000":
            devices.append(
                (gpu["slot"][:-1] + "1", "10de", "10f0", "040300", gpu.get("subsystem"), gpu.get("numa", -1))
            )
    for number in range(host.get("nvswitch", 0)):
        devices.append(("0000:%02x:00.0" % (5 + number), "10de", host["nvswitch_device"], "068000", None, 0))
    for slot, vendor, device, pci_class, subsystem, numa in devices:
        folder = "%s/%s/" % (state.DEVICES, slot)
        sub_vendor, sub_device = (subsystem or "0000:0000").split(":")
        for name, value in (
            ("vendor", "0x" + vendor),
            ("device", "0x" + device),
            ("class", "0x" + pci_class),
            ("revision", "0xa1"),
            ("subsystem_vendor", "0x" + sub_vendor),
            ("subsystem_device", "0x" + sub_device),
            ("irq", "16"),
            ("numa_node", str(numa)),
            ("enable", "1"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
            (
                "modalias",
                "pci:v0000%sd0000%ssv0000%ssd0000%sbc%ssc%si%s"
                % (
                    vendor.upper(),
                    device.upper(),
                    sub_vendor.upper(),
                    sub_device.upper(),
                    pci_class[:2],
                    pci_class[2:4],
                    pci_class[4:],
                ),
            ),
            ("resource", "\n".join(["0x%016x 0x%016x 0x%016x" % (0, 0, 0)] * 13)),
        ):
            state.write(folder + name, value + "\n")
        config = struct.pack(
            "<HHHHBBH", int(vendor, 16), int(device, 16), 0, 16, 0xA1, int(pci_class[4:], 16), int(pci_class[:4], 16)
        )
        with open(folder + "config", "wb") as handle:
            handle.write(
                config.ljust(44, b"\0") + struct.pack("<HH", int(sub_vendor, 16), int(sub_device, 16)) + bytes(208)
            )
    os.makedirs(state.RUN + "/pci/drivers", exist_ok=True)


def firmware(host):
    """Write EFI variables (4 bytes of attributes, then the value) over /sys/firmware; nothing on a BIOS host."""
    top = state.RUN + "/firmware"
    os.makedirs(top)
    if host.get("efi", True):
        folder = top + "/efi/efivars/"
        secure = 1 if host.get("secure_boot") else 0
        _variable(folder + "SecureBoot-" + EFI_GLOBAL, bytes([secure]))
        _variable(folder + "SetupMode-" + EFI_GLOBAL, b"\0")
        certificates = b""
        for path in (state.ETC + "/enrolled.der",):
            if os.path.exists(path):
                with open(path, "rb") as handle:
                    der = handle.read()
                # EFI_SIGNATURE_LIST: type, list size, header size, signature size; then owner and data
                certificates += _X509_GUID + struct.pack("<III", 44 + len(der), 0, 16 + len(der)) + bytes(16) + der
        if certificates:
            _variable(folder + "MokListRT-" + MOK_GUID, certificates)
    _bind(top, "/sys/firmware")


def infiniband():
    """Show a switch management function in /sys/class/infiniband: what NVIDIA's start script finds NVLink 5 by.

    /sys/class cannot be written, so a folder of links to the real one is put over it; the real classes hold
    links to ../../devices, which is therefore there too.
    """
    real, shown = state.RUN + "/class-real", state.RUN + "/class"
    os.makedirs(real)
    os.makedirs(shown)
    _bind("/sys/class", real)
    os.symlink("/sys/devices", state.RUN + "/devices")
    for name in os.listdir(real):
        os.symlink("%s/%s" % (real, name), "%s/%s" % (shown, name))
    state.write(shown + "/infiniband/mlx5_0/device/vpd", "NVIDIA ConnectX SW_MNG\n")
    _bind(shown, "/sys/class")


def _variable(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as handle:
        handle.write(struct.pack("<I", 6) + value)


def _module_tree():
    folder = state.RUN + "/sys-module"
    for name in os.listdir("/sys/module"):
        os.makedirs(os.path.join(folder, name))
    _bind(folder, "/sys/module")


def _over(path, text):
    source = state.RUN + "/" + os.path.basename(path)
    state.write(source, text)
    _bind(source, path)


def _bind(source, target):
    subprocess.run(["mount", "--bind", source, target], check=True)


def late():
    """After basic.target: what udev's rules start once a driver is bound, and a job on the GPUs when the host is busy."""
    from . import nvidia

    if "nvidia" in state.loaded():
        nvidia.start_services()
    if state.host().get("busy"):
        subprocess.run(["systemctl", "--no-block", "start", "sim-job.service"], check=False)
    return 0


def describe():
    """JSON of this boot, for the lab's own tests: kernel, modules, devices."""
    print(json.dumps({"release": state.release(), "modules": state.loaded(), "devices": state.devices()}))
    return 0
