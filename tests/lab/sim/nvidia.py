"""What the nvidia and nouveau modules do when they are loaded: which GPUs they take, and what the kernel log says.

Texts are those of the real modules (sources: NVIDIA/open-gpu-kernel-modules issues, measured runs of 535); whether a
branch and a flavour drive a GPU is written in host.json for each GPU by the lab.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess

from . import state

DEPENDENTS = ("nvidia_modeset", "nvidia_drm", "nvidia_uvm")
_BUILT = "Thu Apr  9 02:36:58 UTC 2026"


class CannotLoad(Exception):
    """The kernel refuses the module; the text is what modprobe prints after the module's name."""


def check_signature(info):
    """Raise CannotLoad when Secure Boot is on and the signer is unknown to the firmware and to the kernel."""
    if not state.host().get("secure_boot"):
        return
    signer = info.get("signer")
    if signer is None:
        state.log("Loading of unsigned module is rejected")
        raise CannotLoad("Key was rejected by service")
    if not trusted(signer):
        state.log(
            "PKCS#7 signature not signed with a trusted key", "Loading of module with unavailable key is rejected"
        )
        raise CannotLoad("Key was rejected by service")


def trusted(signer):
    """True for the distribution's key and for a machine owner key that is enrolled (its name is in MokListRT)."""
    if signer.startswith("Canonical Ltd."):
        return True
    enrolled = state.RUN + "/firmware/efi/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"
    try:
        with open(enrolled, "rb") as handle:
            return signer.encode() in handle.read()
    except FileNotFoundError:
        return False


def probe(version, flavour):
    """Let the nvidia module look at every GPU; returns {slot: {"driver", "works", "index"}} or raises CannotLoad."""
    branch = int(version.split(".")[0])
    found, ignored, foreign = {}, 0, 0
    for gpu in state.host()["gpus"]:
        slot, name = gpu["slot"], gpu["name"]
        if bound_to(slot) not in (None, "nvidia"):
            foreign += 1
            continue
        last, first = gpu.get("last_branch"), gpu.get("first_branch") or 0
        if last and branch > last:
            state.log(
                "NVRM: The %s GPU installed in this system is" % name,
                "NVRM:  supported through the NVIDIA %s.xx Legacy drivers. Please" % last,
                "NVRM:  visit http://www.nvidia.com/object/unix.html for more",
                "NVRM:  information.  The %s NVIDIA driver will ignore" % version,
                "NVRM:  this GPU.  Continuing probe...",
            )
            ignored += 1
            continue
        if branch < first:
            state.log(
                "NVRM: The NVIDIA GPU %s (PCI ID: 10de:%s)" % (slot, gpu["device"]),
                "NVRM: installed in this system is not supported by the",
                "NVRM: NVIDIA %s driver release." % version,
                "NVRM: Please see 'Appendix A - Supported NVIDIA GPU Products'",
                "NVRM: in this release's README, available on the operating system",
                "NVRM: specific graphics driver download page at www.nvidia.com.",
                "nvidia: probe of %s failed with error -1" % slot,
            )
            ignored += 1
            continue
        if flavour == "open" and "open" not in gpu["flavours"]:
            state.log(
                "NVRM: The NVIDIA GPU %s (PCI ID: 10de:%s)" % (slot, gpu["device"]),
                "NVRM: installed in this system is not supported by open",
                "NVRM: nvidia.ko because it does not include the required GPU",
                "NVRM: System Processor (GSP).",
                "NVRM: Please see the 'Open Linux Kernel Modules' and 'GSP",
                "NVRM: Firmware' sections in the driver README, available on",
                "NVRM: the Linux graphics driver download page at",
                "NVRM: www.nvidia.com.",
                "nvidia %s: probe with driver nvidia failed with error -1" % slot,
            )
            continue
        works = True
        if flavour not in gpu["flavours"] or gpu.get("dead"):
            state.log(
                "NVRM: GPU %s: RmInitAdapter failed! (0x62:0x1a:2631)" % slot,
                "NVRM: GPU %s: rm_init_adapter failed, device minor number %d" % (slot, len(found)),
            )
            works = False
        elif flavour == "open" and not os.path.isdir("/lib/firmware/nvidia/" + version):
            state.log(
                "nvidia %s: Direct firmware load for nvidia/%s/gsp_ga10x.bin failed with error -2" % (slot, version),
                "NVRM: RmFetchGspRmImages: No firmware image found",
                "NVRM: GPU %s: RmInitAdapter failed! (0x61:0x56:1693)" % slot,
            )
            works = False
        found[slot] = {"driver": "nvidia", "works": works, "index": len(found)}
    if foreign and not found:
        state.log(
            "NVRM: The NVIDIA probe routine was not called for %d device(s)." % foreign,
            "NVRM: This can occur when another driver was loaded and",
            "NVRM: obtained ownership of the NVIDIA device(s).",
            "NVRM: Try unloading the conflicting kernel module (and/or",
            "NVRM: reconfigure your kernel without the conflicting",
            "NVRM: driver(s)), then try loading the NVIDIA kernel module",
            "NVRM: again.",
            "NVRM: No NVIDIA devices probed.",
        )
        raise CannotLoad("No such device")
    if not state.host()["gpus"] or (not found and ignored == len(state.host()["gpus"])):
        state.log("NVRM: No NVIDIA GPU found.")
        raise CannotLoad("No such device")
    return found


def attach(version, flavour, found):
    """Make the module visible: bound devices, /proc/driver/nvidia, device nodes."""
    for slot in found:
        bind(slot, "nvidia")
    state.set_devices(found)
    banner = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  %s  %s\n" % (version, _BUILT)
    if flavour == "open":
        banner = (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  %s  Release Build  (dvs-builder@U22)  %s\n"
            % (version, _BUILT)
        )
    proc = state.RUN + "/proc-driver/nvidia"
    state.write(proc + "/version", banner + "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04) \n")
    state.write(proc + "/params", "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileMode: 438\n")
    names = {gpu["slot"]: gpu for gpu in state.host()["gpus"]}
    for slot, device in found.items():
        text = "Model: \t\t %s\nIRQ:   \t\t 16\nGPU UUID: \t %s\nVideo BIOS: \t 96.00.da.00.0c\nBus Type: \t PCIe\n" % (
            names[slot]["name"],
            names[slot]["uuid"] if device["works"] else "GPU-????????-????-????-????-????????????",
        )
        text += "DMA Size: \t 52 bits\nBus Location: \t %s\nDevice Minor: \t %d\nGPU Firmware: \t %s\n" % (
            slot,
            device["index"],
            version,
        )
        state.write("%s/gpus/%s/information" % (proc, slot), text)
    os.makedirs(proc + "/gpus", exist_ok=True)
    for number in range(state.host().get("nvswitch", 0)):
        state.write("%s/proc-driver/nvidia-nvswitch/devices/%d" % (state.RUN, number), "Device Instance: %d\n" % number)
    kind = "Open Kernel Module for x86_64" if flavour == "open" else "x86_64 Kernel Module"
    state.log("nvidia: loading out-of-tree module taints kernel.")
    state.log("NVRM: loading NVIDIA UNIX %s  %s  %s" % (kind, version, _BUILT))
    _nodes(len(found))


def detach():
    """Undo attach."""
    for slot in state.devices():
        bind(slot, None)
    state.set_devices({})
    shutil.rmtree(state.RUN + "/proc-driver/nvidia", ignore_errors=True)
    shutil.rmtree(state.RUN + "/proc-driver/nvidia-nvswitch", ignore_errors=True)
    for name in os.listdir("/dev"):
        if name.startswith("nvidia") and name != "nvidia-caps":
            os.unlink("/dev/" + name)


def bind(slot, driver):
    """Set the driver link of a PCI device; None removes it."""
    link = "%s/%s/driver" % (state.DEVICES, slot)
    if os.path.islink(link):
        os.unlink(link)
    if driver:
        os.makedirs("%s/pci/drivers/%s" % (state.RUN, driver), exist_ok=True)
        os.symlink("../../drivers/" + driver, link)


def bound_to(slot):
    """Name of the driver that owns a PCI device, or None."""
    link = "%s/%s/driver" % (state.DEVICES, slot)
    return os.path.basename(os.readlink(link)) if os.path.islink(link) else None


def users():
    """Processes that hold an /dev/nvidia* node open: {pid: [paths]}.

    Only root can see other users' open files; for anyone else the job of a busy host says itself what it holds, since
    the real nvidia-smi asks the driver and shows everybody the same.
    """
    found = {int(pid): paths for pid, paths in json.loads(state.read(state.RUN + "/job.json", "{}")).items()}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        folder = "/proc/%s/fd" % pid
        try:
            entries = os.listdir(folder)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        for entry in entries:
            try:
                target = os.readlink("%s/%s" % (folder, entry))
            except (FileNotFoundError, ProcessLookupError):
                continue
            if target.startswith("/dev/nvidia") and target not in found.setdefault(int(pid), []):
                found[int(pid)].append(target)
        if not found.get(int(pid), True):
            del found[int(pid)]
    return found


def start_services():
    """What udev's rules start when the driver is bound: the persistence daemon, where its package is installed."""
    if os.path.isdir("/run/systemd/system") and os.path.exists("/usr/bin/nvidia-persistenced"):
        subprocess.run(["systemctl", "--no-block", "start", "nvidia-persistenced.service"], check=False)


def _nodes(count):
    # Minor 3 of major 1 (the null device) opens without a driver; the real nodes have major 195.
    names = ["nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools"]
    names += ["nvidia%d" % number for number in range(count)]
    if state.host().get("nvswitch"):
        names += ["nvidia-nvswitchctl"] + ["nvidia-nvswitch%d" % n for n in range(state.host()["nvswitch"])]
    for name in names:
        if not os.path.exists("/dev/" + name):
            os.mknod("/dev/" + name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            os.chmod("/dev/" + name, 0o666)  # noqa: S103 - the real nodes are open to everybody
    os.makedirs("/dev/nvidia-caps", exist_ok=True)
