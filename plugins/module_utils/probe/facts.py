# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read a host: the driver in its layers, and everything that decides about it. One call, no changes.

``collect`` returns a dict in the shape of provision.facts.Facts. Files are read, programs are not started;
the one exception is nvidia-smi, which runs while the files are read and is given up after a timeout. What may
not be read is listed under ``unreadable`` and reported as None, never guessed. Standard library only, Python
3.8 and later.
"""

from __future__ import annotations

import os
import re
import sys
import time

from ansible_collections.gpu.provision.plugins.module_utils.apt import conf as apt_conf
from ansible_collections.gpu.provision.plugins.module_utils.conda import probe as conda_probe
from ansible_collections.gpu.provision.plugins.module_utils.containers import probe as containers_probe
from ansible_collections.gpu.provision.plugins.module_utils.cuda import probe as cuda_probe
from ansible_collections.gpu.provision.plugins.module_utils.lib import (
    deb_version,
    digests,
    driver_names,
    kmod,
    lazy_re,
    own_state,
    redact,
)
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree, decimal, integer
from ansible_collections.gpu.provision.plugins.module_utils.probe import boot, smi
from ansible_collections.gpu.provision.plugins.module_utils.probe.gpu_users import read_gpu_users

SMI_TIMEOUT = 20.0
NVIDIA = "0x10de"
# NVSwitch functions: A100 and H100 generations (source: NVIDIA's driver assistant, pci.ids).
NVSWITCH_IDS = ("1af1", "22a3")
# Blackwell and later are the machines that may have an NVLink 5 switch behind InfiniBand functions.
FIRST_NVLINK5_ID = 0x2900
# Packages that are reported: the driver, CUDA, kernels, containers, desktops and what builds modules.
_PREFIXES = (
    b"cuda",
    b"cudnn",
    b"libnccl",
    b"libnpp",
    b"libnv",
    b"libxnvctrl",
    b"libcublas",
    b"libcuda",
    b"libcudla",
    b"libcudnn",
    b"libcudss",
    b"libcufft",
    b"libcufile",
    b"libcuobj",
    b"libcupti",
    b"libcurand",
    b"libcusolver",
    b"libcusparse",
    b"libcutensor",
    b"libcutlass",
    b"nsight",
    b"tensorrt",
    b"gds-",
    b"datacenter-gpu",
    b"linux-",
    b"docker",
    b"containerd",
    b"moby-",
    b"gcc-",
    b"g++-",
    b"task-",
)
_NAMES = frozenset(
    [
        b"nvlsm",
        b"dkms",
        b"podman",
        b"runc",
        b"crun",
        b"shim-signed",
        b"mokutil",
        b"gcc",
        b"g++",
        b"make",
        b"unattended-upgrades",
        b"needrestart",
        b"initramfs-tools",
        b"dracut",
        b"ubuntu-drivers-common",
        b"xserver-xorg-core",
    ]
)
_DESKTOPS = frozenset(["gdm3", "lightdm", "sddm", "xdm", "lxdm", "slim", "gnome-shell", "plasma-workspace"])
_SESSIONS = ("ubuntu", "kubuntu", "xubuntu", "lubuntu", "edubuntu", "task-")
SERVICES = {
    # service: (name of its main process, pid files)
    "nvidia-persistenced": ("nvidia-persistenced", ["/run/nvidia-persistenced/nvidia-persistenced.pid"]),
    "nvidia-fabricmanager": ("nv-fabricmanager", ["/run/nvidia-fabricmanager/nv-fabricmanager.pid"]),
    "unattended-upgrades": ("unattended-upgr", []),
    "docker": ("dockerd", ["/run/docker.pid"]),
    "containerd": ("containerd", ["/run/containerd/containerd.pid"]),
}
# A folder that no host has: what readers say of it is what they say of nothing.
_NO_FILES = "/dev/null/no-files"
SONAMES = ("libcuda.so.1", "libnvidia-ml.so.1")
OWN_FILES = (
    ("/etc/apt/sources.list.d", r"gpu-provision"),
    ("/etc/apt/preferences.d", r"gpu-provision"),
    ("/etc/apt/keyrings", r"gpu-provision"),
    ("/etc/apt/apt.conf.d", r".*gpu-provision"),
    ("/etc/modprobe.d", r"gpu-provision"),
    ("/etc/modules-load.d", r"gpu-provision"),
    ("/etc/systemd/system/nvidia-persistenced.service.d", r"gpu-provision"),
    ("/etc/profile.d", r"gpu-provision-.*\.(?:sh|csh)$"),
    ("/etc/csh/cshrc.d", r"gpu-provision-.*\.csh$"),
    ("/etc/fish/conf.d", r"gpu-provision-.*\.fish$"),
    ("/etc/gpu-provision", r".*\.sh$"),
    ("/etc/ld.so.conf.d", r".*gpu-provision.*\.conf$"),
    ("/etc/udev/rules.d", r".*gpu-provision.*\.rules$"),
    ("/etc/systemd/system/docker.service.d", r".*gpu-provision.*\.conf$"),
    ("/etc/systemd/system", r"gpu-provision-.*\.(?:service|path)$"),
    ("/etc/containerd/conf.d", r".*gpu-provision.*\.toml$"),
)
# of dpkg's status file: the word that is wanted and the state, each as the letter of dpkg -l
WANT = {"install": "i", "hold": "h", "deinstall": "r", "purge": "p", "unknown": "u"}
STATE = {
    "not-installed": "n",
    "config-files": "c",
    "half-installed": "H",
    "unpacked": "U",
    "half-configured": "F",
    "triggers-awaited": "W",
    "triggers-pending": "t",
    "installed": "i",
}
_FLAVOURS = frozenset(
    [
        "generic",
        "virtual",
        "lowlatency",
        "aws",
        "gcp",
        "gke",
        "azure",
        "oracle",
        "kvm",
        "ibm",
        "nvidia",
        "oem",
        "raspi",
        "intel",
    ]
)
_NO_KERNELS = frozenset(
    ["modules", "objects", "signatures", "tools", "cloud", "firmware", "libc", "base", "doc", "source"]
)
_VERSION_IN_NAME = lazy_re.compile(r"[0-9]+\.[0-9]+\.[0-9]+-")


def main(args):
    """Entry of the fast read; returns facts. The server redacts them (provision/remote/_server.py).

    args, all optional: smi_timeout (seconds), root (folder), conda_prefixes (see condaprobe.read).
    """
    return collect_all(
        root=args.get("root") or "/",
        smi_timeout=float(args.get("smi_timeout") or SMI_TIMEOUT),
        conda_prefixes=args.get("conda_prefixes") or (),
    )


def collect(root="/", run=None, smi_timeout=SMI_TIMEOUT, conda_prefixes=()):
    """Read a host and return its facts as a dict.

    root: folder that stands for ``/``. run: callable(list, timeout) -> (rc, stdout, stderr) that answers in
    place of nvidia-smi; without it the real program is started on the running host, and none for a recorded
    one. Passwords and tokens of what is read are left out (redact).
    """
    return redact.data(collect_all(root, run, smi_timeout, conda_prefixes))


def collect_all(root="/", run=None, smi_timeout=SMI_TIMEOUT, conda_prefixes=(), tree=None):
    """As collect, with passwords and tokens: for what reads on, on the host itself. tree: the HostTree of root to read by."""
    tree = tree or HostTree(root)
    query = smi.start(tree, run, smi_timeout)
    try:
        facts = _collect(tree, conda_prefixes)
    except BaseException:
        query.abandon()
        raise
    facts["smi"] = query.result()
    # After it: as root it makes the nodes that are missing, /dev/nvidia-uvm last.
    facts["devices"] = ["/dev/" + name for name in tree.names("/dev") if name.startswith("nvidia")]
    facts["unreadable"] = sorted(tree.unreadable)
    return facts


def _collect(tree, conda_prefixes):
    def part(name, read, *given):
        return read_part(tree, name, read, *given)

    packages, problems, arch = part("packages", read_packages)
    arch = arch or _machine_arch()
    owners = Owners(tree, packages)
    host = part("host", read_host, arch)
    gpus, switches = part("gpus", read_pci)
    kernels = part("kernels", read_kernels, packages, host["container"])
    on_disk, foreign_modules = part("module", read_disk_modules, owners)
    libraries, foreign_libraries = part("libraries", read_libraries, owners)
    blacklist = part("modprobe", read_modprobe, owners)
    cuda, cuda_dirs = part("cuda", _read_cuda, packages, owners, arch)
    gpu_users = part("gpu_users", read_gpu_users)
    secure_boot = part("secure_boot", read_secure_boot)
    if tree.is_noted("secure_boot"):
        secure_boot.update(efi=True, enabled=None)
    return {
        "host": host,
        "gpus": gpus,
        "nvswitches": switches,
        "nvlink5_switch": part("nvlink5_switch", read_nvlink5, gpus),
        "infiniband_modules": [name for name in ("mlx5_ib", "ib_umad") if tree.exists("/sys/module/" + name)],
        "module": {
            "loaded": part("module", read_loaded),
            "nouveau_loaded": _is_loaded(tree, "nouveau"),
            "nova_loaded": _is_loaded(tree, "nova_core") or _is_loaded(tree, "nova"),
            "on_disk": on_disk,
        },
        "kernels": kernels,
        "packages": packages,
        "package_problems": problems,
        "libraries": libraries,
        "apt": part("apt", read_apt, packages, arch),
        "runfile": part("runfile", read_runfile, owners, foreign_modules + foreign_libraries),
        "secure_boot": secure_boot,
        "reboot_required": part("reboot_required", read_reboot_required),
        "gpu_users": gpu_users,
        "services": part("services", read_services, host["systemd"]),
        "own_files": part("own_files", _read_own_files, cuda),
        "modprobe": {"blacklisted": blacklist["names"]},
        "initrds": part("initrds", read_initrds, kernels, blacklist["newest"]),
        "disks": part("disks", read_disks),
        "desktop": any(_is_desktop(name) and row["status"][1] == "i" for name, row in packages.items())
        or tree.is_link("/etc/systemd/system/display-manager.service"),
        "cuda": cuda,
        "cuda_dirs": cuda_dirs,
        "containers": part("containers", containers_probe.read, packages, gpu_users),
        "conda": part("conda", conda_probe.read, conda_prefixes),
        # Of the run that has the host, see run.lock: an unchanged host is told, without a further call, of a run that has ended.
        "run_lock": tree.read(own_state.FOLDER + "/lock.json", 16384)
        or tree.read(own_state.OLDER + "/lock.json", 16384),
    }


def read_part(tree, name, read, *given):
    """Return read(tree, ...given); where that fails, what it says of a host without files.

    Every known oddity is handled where it is read. What nobody thought of costs one part of the facts, which is noted by
    its name and the kind of error, and never the whole read.
    """
    try:
        return read(tree, *given)
    except Exception as error:
        tree.note(name, type(error).__name__)
        return read(HostTree(_NO_FILES), *given)


def _read_cuda(tree, packages, owners, arch):
    return cuda_probe.read_cuda(tree, packages, owners, arch, library_folders(tree))


def _read_own_files(tree, cuda):
    return read_own_files(tree, cuda_probe.modulefiles(tree, cuda["shells"])[0])


# --- the host itself ---------------------------------------------------------------------------------------


def read_host(tree, arch):
    """Identity of the host: facts.HostInfo."""
    release = {}
    for line in (tree.read("/etc/os-release") or tree.read("/usr/lib/os-release") or "").splitlines():
        name, equals, value = line.partition("=")
        if equals:
            release[name.strip()] = value.strip().strip("\"'")
    uptime = (tree.word("/proc/uptime") or "").split()
    memory = re.search(r"^MemTotal:\s+([0-9]{1,15}) kB$", tree.read("/proc/meminfo", 4096) or "", re.M)
    container = _container(tree)
    return {
        "hostname": tree.word("/proc/sys/kernel/hostname") or tree.word("/etc/hostname") or "",
        "os": {
            "id": release.get("ID", ""),
            "version_id": release.get("VERSION_ID", ""),
            "codename": release.get("VERSION_CODENAME", ""),
            "pretty": release.get("PRETTY_NAME", ""),
        },
        "arch": arch,
        "boot_id": tree.word("/proc/sys/kernel/random/boot_id"),
        "machine_id": tree.word("/etc/machine-id"),
        "uptime_s": decimal(uptime[0]) if uptime else None,
        "memory": int(memory.group(1)) // 1024 if memory else None,
        "python": sys.version.split()[0] if tree.live else None,
        "python_path": (sys.executable or None) if tree.live else None,
        "is_root": os.geteuid() == 0,
        "container": container,
        # sd_booted(3)
        "systemd": tree.is_dir("/run/systemd/system"),
        "virtual": _virtual(tree),
        "world": _world(tree),
    }


def _machine_arch():
    machine = os.uname().machine
    return {"x86_64": "amd64", "aarch64": "arm64", "i686": "i386", "ppc64le": "ppc64el"}.get(machine, machine)


# The first namespaces of a kernel have fixed numbers (the kernel's proc_ns.h): who is in both is in no container.
FIRST_NAMESPACES = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]"}


def _container(tree):
    # Images carry the marks of containers (/.dockerenv, /run/systemd/container) into virtual machines made from them.
    if all(tree.link("/proc/self/ns/" + kind) == first for kind, first in FIRST_NAMESPACES.items()):
        return None
    kind = tree.word("/run/systemd/container")
    if kind:
        return kind
    if tree.exists("/run/.containerenv"):
        return "podman"
    return "docker" if tree.exists("/.dockerenv") else None


def _virtual(tree):
    """Kind of virtual machine by DMI, else by the processor's hypervisor flag; None on bare metal."""
    vendor = "%s %s" % (tree.word("/sys/class/dmi/id/sys_vendor"), tree.word("/sys/class/dmi/id/product_name"))
    for word, kind in (
        ("KVM", "kvm"),
        ("QEMU", "qemu"),
        ("Amazon EC2", "amazon"),
        ("Google Compute Engine", "google"),
        ("VMware", "vmware"),
        ("VirtualBox", "oracle"),
        ("Virtual Machine", "microsoft"),
        ("Xen", "xen"),
        ("Bochs", "bochs"),
        ("OpenStack", "openstack"),
    ):
        if word in vendor and "metal" not in vendor:
            return kind
    if tree.word("/sys/hypervisor/type") == "xen":
        return "xen"
    flags = re.search(r"^flags\s*:(.*)$", tree.read("/proc/cpuinfo", 8192) or "", re.M)
    return "vm-other" if flags and " hypervisor" in flags.group(1) else None


def _world(tree):
    """What else than a plain machine this is: wsl, jetson, vgpu (the guest of a split card), or None.

    Sources: the kernel release of WSL (microsoft/WSL, src/linux/init: "microsoft"), /dev/dxg of its dxgkrnl; the device
    tree of Tegra (nvidia,tegraNNN) and L4T's /etc/nv_tegra_release; the licence daemon of NVIDIA's vGPU guest driver.
    """
    release = (tree.word("/proc/sys/kernel/osrelease") or "").lower()
    if "microsoft" in release and (tree.exists("/dev/dxg") or tree.is_dir("/usr/lib/wsl") or "wsl" in release):
        return "wsl"
    board = tree.read("/proc/device-tree/compatible", 4096, head=True) or ""
    if "nvidia,tegra" in board or tree.exists("/etc/nv_tegra_release"):
        return "jetson"
    return "vgpu" if tree.exists("/usr/bin/nvidia-gridd") else None


# --- GPUs and modules --------------------------------------------------------------------------------------


def read_pci(tree):
    """Return ([facts.Gpu], [slot of every NVSwitch]). Audio, USB and virtual functions do not count."""
    gpus, switches = [], []
    base = "/sys/bus/pci/devices"
    for slot in tree.names(base):
        path = "%s/%s" % (base, slot)
        if tree.word(path + "/vendor") != NVIDIA:
            continue
        class_ = (tree.word(path + "/class") or "0x000000")[2:6]
        device = (tree.word(path + "/device") or "0x0000")[2:].lower()
        if class_ == "0680" and device in NVSWITCH_IDS:
            switches.append(slot)
        elif class_ in ("0300", "0302") and not tree.exists(path + "/physfn"):
            vendor, sub = tree.word(path + "/subsystem_vendor"), tree.word(path + "/subsystem_device")
            numa = tree.word(path + "/numa_node")
            driver = tree.link(path + "/driver")
            gpus.append(
                {
                    "slot": slot,
                    "device": device,
                    "subsystem": "%s:%s" % (vendor[2:].lower(), sub[2:].lower()) if vendor and sub else None,
                    "pci_class": class_,
                    "driver": _driver_name(driver),
                    "numa_node": integer(numa) if numa and not numa.startswith("-") else None,
                    "pcie": read_link(tree, path),
                }
            )
    return gpus, switches


def _driver_name(link):
    """The driver that a device's link leads to, by its module's name; None where it has none.

    nova_core registers itself as NovaCore (drivers/gpu/nova-core/nova_core.rs: name of module_pci_driver).
    """
    name = os.path.basename(link) if link else None
    return {"NovaCore": "nova_core", "nova-core": "nova_core"}.get(name, name)


def read_link(tree, path):
    """facts.PcieLink of a PCI device: lanes and GT/s, now and at most; None where the kernel shows no link.

    Source: the kernel's sysfs-bus-pci (current_link_width, "8.0 GT/s PCIe"); a link without partner says 255 or Unknown.
    """
    found = {
        name: _first_number(tree.word("%s/%s" % (path, file)))
        for name, file in (
            ("width", "current_link_width"),
            ("max_width", "max_link_width"),
            ("speed", "current_link_speed"),
            ("max_speed", "max_link_speed"),
        )
    }
    for name in ("width", "max_width"):
        found[name] = int(found[name]) if found[name] and found[name] <= 32 else None
    return found if any(found.values()) else None


def _first_number(text):
    return decimal((text or "").split(" ")[0])


def read_nvlink5(tree, gpus):
    """True when an InfiniBand function's vital product data says that it manages an NVLink 5 switch.

    Source of the rule: NVIDIA fabric manager's start script (SW_MNG in vpd). Reading vpd is slow:
    it is done only where such a switch can be.
    """
    ids = [gpu["device"] for gpu in gpus if gpu["pci_class"] == "0302" and re.match(r"[0-9a-f]{4}\Z", gpu["device"])]
    if not any(int(device, 16) >= FIRST_NVLINK5_ID for device in ids):
        return False
    base = "/sys/class/infiniband"
    return any(b"SW_MNG" in (tree.read_bytes("%s/%s/device/vpd" % (base, n)) or b"") for n in tree.names(base))


def read_loaded(tree):
    """The nvidia module that is loaded, as facts.LoadedModule, or None."""
    base = "/sys/module/nvidia"
    text = tree.read("/proc/driver/nvidia/version")
    if text is None and not _is_loaded(tree, "nvidia"):
        return None
    match = re.search(r"^NVRM version:.*?(Open )?Kernel Module(?: for \S+)?\s+([0-9][0-9.]*)", text or "", re.M)
    version = tree.word(base + "/version") or (match.group(2) if match else "")
    flavour = None
    taint = tree.word(base + "/taint")
    if match:
        flavour = "open" if match.group(1) else "proprietary"
    elif taint:
        flavour = "proprietary" if "P" in taint else "open"
    return {
        "version": version,
        "flavour": flavour,
        "refcount": integer(tree.word(base + "/refcnt")),
        "holders": tree.names(base + "/holders"),
    }


def _is_loaded(tree, name):
    """A folder alone is not enough: built-in modules have one too, but no state."""
    base = "/sys/module/" + name
    return any(tree.exists(base + "/" + file) for file in ("initstate", "version", "refcnt"))


def read_disk_modules(tree, owners):
    """Every nvidia.ko of every kernel. Returns ([facts.DiskModule], [paths that nothing known put there])."""
    found, foreign = [], []
    for kernel, base in _module_folders(tree):
        for path in _module_files(tree, base):
            inside = path[len(base) + 1 :]
            if inside.startswith("updates/dkms/"):
                origin = "dkms"
            elif inside.startswith("kernel/nvidia-"):
                origin = "prebuilt"
            else:
                origin = "dkms" if inside.startswith("updates/") and _dkms_built(tree, kernel) else "other"
            package = owners.of(path)
            if package is None and origin == "prebuilt":
                # The archive's modules are linked or signed on the host: the folder is what a package owns.
                package = owners.of(os.path.dirname(path), kernel)
            row = {"kernel": kernel, "path": path, "origin": origin, "package": package}
            row.update(_module_info(tree, path))
            found.append(row)
            if origin == "other" and package is None and owners.known:
                foreign.append(path)
    return found, foreign


def _module_folders(tree):
    """[(release, folder)] of all kernels; /lib may be a link to /usr/lib."""
    folders, seen = [], set()
    for base in ("/lib/modules", "/usr/lib/modules"):
        for name in tree.names(base):
            path = "%s/%s" % (base, name)
            if name not in seen and tree.is_dir(path):
                seen.add(name)
                folders.append((name, path))
    return sorted(folders, key=lambda item: deb_version.natural_key(item[0]))


def _module_files(tree, base):
    """Paths of nvidia.ko below base in modprobe's order (updates first): known places and modules.dep."""
    places = ["updates/dkms", "updates", "extra", "weak-updates", "misc", "kernel/drivers/video"]
    places += ["kernel/drivers/video/nvidia", "kernel/drivers/char/drm", "kernel/extra", "kernel/misc"]
    places += ["kernel/" + name for name in tree.names(base + "/kernel") if name.startswith("nvidia")]
    paths = [
        "%s/%s/%s" % (base, place, name)
        for place in places
        for name in tree.names("%s/%s" % (base, place))
        if kmod.FILE_NAME.match(name)
    ]
    listed = tree.read_bytes(base + "/modules.dep") or b""
    if b"/nvidia" in listed:
        for match in re.finditer(rb"^(\S+/)?(nvidia[^/:\s]*\.ko[^:\s]*):", listed, re.M):
            path = "%s/%s" % (base, (match.group(1) or b"").decode() + match.group(2).decode())
            if path not in paths and kmod.FILE_NAME.match(os.path.basename(path)) and tree.exists(path):
                paths.append(path)
    return paths


def _dkms_built(tree, kernel):
    return any(
        tree.is_dir("/var/lib/dkms/%s/%s/%s" % (name, version, kernel))
        for name in tree.names("/var/lib/dkms")
        if name.startswith("nvidia")
        for version in tree.names("/var/lib/dkms/" + name)
    )


def _module_info(tree, path):
    try:
        info = kmod.info(tree.real(path))
    except kmod.KmodError:
        # It has no version, and verify says so.
        tree.note(path, "damaged, or no kernel module")
        info = {}
    except OSError as error:
        tree.missed(path, error)
        info = {}
    return {
        "version": info.get("version"),
        "flavour": info.get("flavour"),
        "signed": info.get("signed", False),
        "signer": info.get("signer"),
    }


# --- packages ----------------------------------------------------------------------------------------------


def read_packages(tree):
    """Return (packages of interest, problems of any package, dpkg's own architecture) from dpkg's files.

    A foreign architecture's package is named ``name:arch``. Files in updates/ are what an interrupted dpkg
    had not yet merged: they count.
    """
    rows, problems, arch = {}, {}, None
    base = "/var/lib/dpkg"
    journal = ["%s/updates/%s" % (base, name) for name in tree.names(base + "/updates") if name.isdigit()]
    for file in [base + "/status"] + journal:
        for stanza in (tree.read_bytes(file) or b"").split(b"\n\n"):
            stanza = stanza.lstrip(b"\n")
            if not stanza.startswith(b"Package: "):
                continue
            name = stanza[9 : stanza.find(b"\n")].strip()
            if name == b"dpkg":
                arch = _field(stanza, b"Architecture")
            wanted = is_interesting(name)
            if not wanted and not journal and b"\nStatus: install ok installed\n" in stanza:
                continue
            row, problem = _package(stanza)
            full = name.decode("ascii", "replace")
            if arch and row["arch"] not in (arch, "all", ""):
                full += ":" + row["arch"]
            if problem:
                problems[full] = "%s: %s" % (full, problem)
            else:
                problems.pop(full, None)
            if wanted:
                if row["status"][1] != "n" or row["status"][0] == "h":
                    rows[full] = row
                else:
                    rows.pop(full, None)
    found = [problems[name] for name in sorted(problems)]
    if journal:
        found.append("dpkg: interrupted, its journal in %s/updates is not merged" % base)
    return {name: rows[name] for name in sorted(rows)}, found, arch


def is_interesting(name):
    """True for a package (bytes) that facts tell of wherever it is."""
    return (
        name.startswith(_PREFIXES)
        or b"nvidia" in name
        or name in _NAMES
        or _is_desktop(name.decode("ascii", "replace"))
    )


def _is_desktop(name):
    """Display managers, and the session packages of Ubuntu's flavours (docker-desktop is none)."""
    session = name.startswith(_SESSIONS) and name.endswith(("-desktop", "-desktop-minimal"))
    return session or name in _DESKTOPS


def _package(stanza):
    """Return (facts.Package as a dict, text for an unfinished state or None)."""
    words = (_field(stanza, b"Status") or "unknown ok not-installed").split()
    want, flag, state = (words + ["", "", ""])[:3]
    problem = state if STATE.get(state, "?") in "UFHWt" else None
    if flag == "reinstreq":
        problem = (problem or state) + ", reinstallation required"
    row = {
        "version": _field(stanza, b"Version") or "",
        "status": WANT.get(want, "u") + STATE.get(state, "n") + ("R" if flag == "reinstreq" else ""),
        "arch": _field(stanza, b"Architecture") or "",
        "source": (_field(stanza, b"Source") or "").split(" ")[0] or None,
        "depends": _field(stanza, b"Depends"),
    }
    return row, problem


def _field(stanza, name):
    at = stanza.find(b"\n" + name + b": ")
    if at < 0:
        return None
    start = at + len(name) + 3
    end = stanza.find(b"\n", start)
    value = stanza[start : end if end >= 0 else len(stanza)]
    return value.decode("utf-8", "replace").strip() or None


class Owners(object):
    """Which package owns a file, by dpkg's lists of the packages that may. known: dpkg has lists at all."""

    def __init__(self, tree, packages):
        self.tree, self.packages = tree, packages
        self.known = tree.is_dir("/var/lib/dpkg/info")
        self._lists = {}

    def of(self, path, kernel=None):
        """Name of the package that owns path, or None; with kernel only packages for that release count."""
        if not self.known:
            return None
        # dpkg remembers the path from before /usr was merged.
        spellings = {path, path[4:] if path.startswith("/usr/") else "/usr" + path}
        for name in self.packages:
            if not self._may_own(name) or (kernel and kernel not in name):
                continue
            if any(("\n%s\n" % spelling).encode() in self._list(name) for spelling in spellings):
                return name
        return None

    def first(self, path, candidates, part=False):
        """The first of these packages that owns path, or None. part: path is the beginning of one (a folder)."""
        wanted = ("\n%s%s" % (path, "" if part else "\n")).encode() if self.known else b""
        return next((name for name in candidates if wanted and wanted in self._list(name)), None)

    def installed_at(self, name):
        """When dpkg unpacked a package (modification time of its list of files), or None.

        Files of a package keep the date of their build, and their change time moves when a host is copied or
        restored; dpkg's list is written at every unpacking and keeps its date in images.
        """
        found = next((f for f in map(self.tree.stat, self._list_files(name)) if f), None)
        return found.st_mtime if found else None

    def _list_files(self, name):
        bare, _, arch = name.partition(":")
        info = "/var/lib/dpkg/info/"
        return [info + bare + ":" + (arch or self.packages[name]["arch"]) + ".list", info + bare + ".list"]

    def _may_own(self, name):
        bare = name.split(":")[0]
        return self.packages[name]["status"][1] not in "nc" and (
            driver_names.is_driver_package(bare)
            or bare.startswith(("nvidia-", "libnvidia-", "libcuda", "cuda-compat"))
            or bare.endswith("-nvidia")
        )

    def _list(self, name):
        if name not in self._lists:
            found = (self.tree.read_bytes(file) for file in self._list_files(name))
            data = next((content for content in found if content is not None), b"")
            self._lists[name] = b"\n" + data + b"\n"
        return self._lists[name]


# --- kernels -----------------------------------------------------------------------------------------------


def read_kernels(tree, packages, container):
    """facts.Kernels: all kernels with an image, a module folder or an image package; the next one."""
    running = tree.word("/proc/sys/kernel/osrelease") or (os.uname().release if tree.live else "")
    in_boot = tree.names("/boot")
    images = [name[8:] for name in in_boot if name.startswith("vmlinuz-") and name[8:9].isdigit()]
    owners = {}
    for name, row in packages.items():
        match = re.match(r"^linux-image-(?:unsigned-)?([0-9]+\.[0-9]+\.[0-9]+-.+)$", name)
        if match and row["status"][1] not in "nc":
            owners[match.group(1)] = name
    releases = set(images) | set(owners) | {name for name, _ in _module_folders(tree)}
    installed = [
        {
            "release": release,
            "image": release in images,
            "headers": tree.exists("/lib/modules/%s/build" % release)
            or tree.is_dir("/usr/src/linux-headers-" + release),
            "initrd": "initrd.img-" + release in in_boot,
            "package": owners.get(release),
        }
        for release in sorted(releases, key=deb_version.natural_key)
    ]
    next_release, because = boot.next_kernel(tree, images, running, container)
    return {
        "running": running,
        "next": next_release,
        "next_because": because,
        "installed": installed,
        "metapackages": [name for name, row in packages.items() if row["status"][1] == "i" and _is_meta(name, row)],
    }


def _is_meta(name, row):
    """A kernel metapackage: no release in its name, and it stands for or needs images or headers."""
    if not name.startswith("linux-") or _VERSION_IN_NAME.search(name):
        return False
    if re.match(r"^linux-(?:image|headers)-(?!uc-)[a-z]", name):
        return True
    kind = name.split("-")[1]
    return kind in _FLAVOURS or (kind not in _NO_KERNELS and "linux-image-" in (row["depends"] or ""))


def read_initrds(tree, kernels, newest):
    """[facts.Initrd]: was it built after the newest nouveau blacklist (None: there is no blacklist)."""
    rows = []
    for kernel in kernels["installed"]:
        found = tree.stat("/boot/initrd.img-" + kernel["release"]) if kernel["initrd"] else None
        if found:
            newer = None if newest is None else found.st_mtime >= newest
            rows.append({"kernel": kernel["release"], "newer_than_blacklist": newer})
    return rows


_BLACKLIST = lazy_re.compile(
    r"^\s*(?:blacklist\s+(\S+)|alias\s+(\S+)\s+off|install\s+(\S+)\s+(?:/usr)?(?:/bin/)?(?:true|false|:)\s*)\s*$"
)


def read_modprobe(tree, owners):
    """Return {"names": modules blacklisted, "newest": time of a nouveau entry}."""
    blacklisted, newest = set(), None
    for path in kmod.modprobe_files(tree):
        text = (tree.read(path) or "").replace("\\\n", " ")
        hits = set()
        for line in text.splitlines():
            match = _BLACKLIST.match(line)
            if match:
                hits.add(next(group for group in match.groups() if group).replace("-", "_"))
        blacklisted |= hits
        if hits & {"nouveau", "nova_core", "nova"}:
            found = tree.stat(path)
            if found:
                # A date in the future (a clock that was wrong) would make every initramfs too old for ever.
                written = found.st_mtime if found.st_mtime <= time.time() else found.st_ctime
                if not path.startswith("/etc/"):
                    owner = owners.of(path)
                    written = max(written, (owner and owners.installed_at(owner)) or written)
                newest = written if newest is None else max(newest, written)
    cmdline = tree.read("/proc/cmdline") or ""
    for match in re.finditer(r"(?:modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist)=(\S+)", cmdline):
        blacklisted |= {name.replace("-", "_") for name in match.group(1).split(",") if name}
    return {"names": sorted(blacklisted), "newest": newest}


# --- libraries, CUDA, runfile ------------------------------------------------------------------------------


# libcuda that is no part of a driver: CUDA's forward compatibility packages, and the stubs that programs are linked with.
_NO_DRIVER = lazy_re.compile(r"/cuda[^/]*/compat[^/]*/|/compat[^/]*/lib|/stubs/")


def read_libraries(tree, owners):
    """Return ([facts.Library] that the loader finds, one a name; [all paths without a package])."""
    found, foreign, seen = {}, [], set()
    for folder in library_folders(tree):
        for soname in SONAMES:
            path = "%s/%s" % (folder, soname)
            if not tree.exists(path):
                continue
            target = tree.resolve(path)
            if target in seen or _NO_DRIVER.search(target):
                continue
            seen.add(target)
            match = re.search(r"\.so\.([0-9]+\.[0-9.]+)$", target)
            package = owners.of(target)
            row = {"soname": soname, "path": path, "version": match.group(1) if match else None, "package": package}
            found.setdefault(soname, row)
            # An installer's library carries its version in its name; another one is no trace of a driver.
            if match and package is None and owners.known:
                foreign.append(target)
    return [found[soname] for soname in SONAMES if soname in found], foreign


def library_folders(tree):
    """Folders that ld.so.conf names, in its order, then the loader's own (ld.so(8)); without 32-bit ones."""
    folders, seen = [], set()

    def read(path, above):
        real = tree.resolve(path)
        if real in above:
            tree.note(path, "include loop")
        if real in seen:
            return
        seen.add(real)
        for line in (tree.read(path) or "").splitlines():
            words = line.split("#", 1)[0].split()
            if words[:1] == ["include"] and len(above) < 5:
                import fnmatch

                for pattern in words[1:]:
                    pattern = pattern if pattern.startswith("/") else os.path.join(os.path.dirname(path), pattern)
                    parent, wanted = os.path.split(pattern)
                    for name in tree.names(parent):
                        if fnmatch.fnmatch(name, wanted):
                            read("%s/%s" % (parent, name), (*above, real))
            elif words and words[0].startswith("/"):
                folders.append(words[0].rstrip("/"))

    read("/etc/ld.so.conf", ())
    if not tree.exists("/etc/ld.so.conf"):
        for name in tree.names("/etc/ld.so.conf.d"):
            if name.endswith(".conf"):
                read("/etc/ld.so.conf.d/" + name, ())
    for triplet in ("x86_64-linux-gnu", "aarch64-linux-gnu"):
        folders += ["/lib/" + triplet, "/usr/lib/" + triplet]
    folders += ["/lib64", "/usr/lib64", "/lib", "/usr/lib"]
    wide = [folder for folder in folders if not re.search(r"i[36]86|/lib(?:32|x32)$", folder)]
    return list(dict.fromkeys(wide))


def read_runfile(tree, owners, foreign):
    """facts.Runfile: what a driver that apt does not own leaves behind."""
    traces = [path for path in ("/usr/bin/nvidia-installer", "/usr/local/nvidia") if _holds_driver(tree, path)]
    traces += foreign
    uninstaller = "/usr/bin/nvidia-uninstall"
    if not tree.exists(uninstaller) or owners.of(uninstaller):
        uninstaller = None
    if traces or uninstaller:
        # These stay behind when a driver is removed (its log, sources of DKMS), so alone they prove nothing.
        traces += [path for path in ("/var/log/nvidia-installer.log", "/var/lib/nvidia") if tree.exists(path)]
        for name in tree.names("/usr/src"):
            path = "/usr/src/" + name
            if re.match(r"^nvidia-[0-9]+\.[0-9.]+$", name) and owners.known and owners.of(path) is None:
                traces.append(path)
    return {"uninstaller": uninstaller, "traces": list(dict.fromkeys(traces))}


def _holds_driver(tree, path):
    """/usr/local/nvidia is on the search path of every CUDA image, so only what lies in it counts."""
    if path != "/usr/local/nvidia":
        return tree.exists(path)
    return any(
        name.startswith(("libcuda.so", "libnvidia-ml.so", "nvidia-smi"))
        for folder in ("lib64", "lib", "bin")
        for name in tree.names("%s/%s" % (path, folder))
    )


# --- apt ----------------------------------------------------------------------------------------------------


def read_apt(tree, packages, arch):
    """facts.Apt: sources, pins, unattended-upgrades, age of the lists, who holds the lock."""
    sources, preferences, errors = [], [], []
    for path in ["/etc/apt/sources.list"] + _part_files(tree, "/etc/apt/sources.list.d", ("list", "sources")):
        text = tree.read(path)
        if text is not None:
            parse = apt_conf.parse_deb822 if path.endswith(".sources") else apt_conf.parse_list
            rows, wrong = parse(text, path)
            sources += rows
            errors += wrong
    errors += apt_conf.conflicts(sources, arch)
    for path in _part_files(tree, "/etc/apt/preferences.d", ("", "pref")) + ["/etc/apt/preferences"]:
        text = tree.read(path)
        if text is not None:
            rows, wrong = apt_conf.parse_preferences(text, path)
            preferences += rows
            errors += wrong
    conf = {}
    for path in _part_files(tree, "/etc/apt/apt.conf.d", ("", "conf")) + ["/etc/apt/apt.conf"]:
        apt_conf.parse_conf(tree.read(path) or "", conf)
    unattended = packages.get("unattended-upgrades", {}).get("status", "un")[1] == "i" and (
        apt_conf.truth(conf.get("apt::periodic::unattended-upgrade"))
        and apt_conf.truth(conf.get("apt::periodic::enable"), default=True)
    )
    if any(path.startswith("/etc/apt/apt.conf") for path in tree.unreadable):
        unattended = None
    return {
        "sources": sources,
        "preferences": preferences,
        "blacklist": list(dict.fromkeys(conf.get("unattended-upgrade::package-blacklist::", []))),
        "unattended": unattended,
        "lists_age_s": _lists_age(tree),
        "lock_holder": _lock_holder(tree),
        "errors": errors,
    }


def read_own_files(tree, others=()):
    """Return {path: sha256} of the files that the roles write: what the plan compares with what they should be."""
    own = {path: _sha256(tree, path) for path in others}
    for folder, pattern in OWN_FILES:
        for name in tree.names(folder):
            if re.match(pattern, name):
                own["%s/%s" % (folder, name)] = _sha256(tree, "%s/%s" % (folder, name))
    return {path: hash_ for path, hash_ in own.items() if hash_}


def _part_files(tree, folder, extensions):
    return ["%s/%s" % (folder, name) for name in tree.names(folder) if apt_conf.is_read(name, extensions)]


def _lists_age(tree):
    """Seconds since the package lists were refreshed; None without lists.

    The index files carry the repository's dates, so the folders and apt's own stamp tell the age.
    """
    base = "/var/lib/apt/lists"
    if not any(re.search(r"_(?:InRelease|Release|Packages)(?:\.[a-z0-9]+)?$", name) for name in tree.names(base)):
        return None
    found = [tree.stat(path) for path in (base, base + "/partial", "/var/lib/apt/periodic/update-success-stamp")]
    return max(0.0, time.time() - max(row.st_mtime for row in found if row))


def _lock_holder(tree):
    """'pid 123 (apt-get)' for who holds one of dpkg's or apt's locks, or None."""
    base = "/var/lib/"
    paths = [base + "dpkg/lock-frontend", base + "dpkg/lock", base + "apt/lists/lock", "/var/cache/apt/archives/lock"]
    ask = tree.live and os.geteuid() == 0
    # Others than root may not ask for the lock, but everyone may read the kernel's table (slow to read).
    table = "" if ask else tree.read("/proc/locks") or ""
    rows = re.findall(r"^[0-9]+:.*\s([0-9]+)\s[0-9a-f]+:[0-9a-f]+:([0-9]+)\s", table, re.M) if table else []
    held = {integer(inode): integer(pid) for pid, inode in rows}
    for path in paths:
        found = tree.stat(path)
        if not found:
            continue
        pid = _locked_by(path) if ask else held.get(found.st_ino)
        if pid:
            return "pid %d (%s)" % (pid, tree.word("/proc/%d/comm" % pid) or "?")
    return None


def _locked_by(path):
    """Pid of the process with a lock on a file, by asking for that lock without taking it (fcntl(2),
    F_GETLK)."""
    import fcntl
    import struct

    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return None
    finally:
        os.close(handle)
    kind, _, _, _, pid = struct.unpack("hhqqi4x", answer)
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


# --- Secure Boot -------------------------------------------------------------------------------------------

_GLOBAL_GUID = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
_SHIM_GUID = "605dab50-e046-4300-abb6-3dd810dd8b23"
_X509_GUID = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")
_EFIVARS = "/sys/firmware/efi/efivars"
# What mokutil leaves for shim's MokManager, which asks at the console of the next boot. Source: rhboot/shim,
# MokManager.c, check_mok_request (read 2026-11-29); its other requests are of passwords, db and hashes.
MOK_REQUESTS = ("MokNew", "MokDel", "MokSB")
MOK_FILES = ("/var/lib/shim-signed/mok/MOK.der", "/var/lib/dkms/mok.pub")


def read_secure_boot(tree):
    """facts.SecureBoot. Source: kernel efi_get_secureboot (shim may switch validation off), UEFI 32.4.1."""
    key_file = next((path for path in MOK_FILES if tree.exists(path)), None)
    if not tree.is_dir("/sys/firmware/efi"):
        return {"efi": False, "enabled": False, "mok_key": key_file, "mok_enrolled": None}
    variables = tree.names(_EFIVARS)
    enabled = None
    if variables:
        name = "SecureBoot-" + _GLOBAL_GUID
        value = _efi_byte(tree, name)
        # A firmware that knows no Secure Boot has no such variable.
        enabled = (False if name not in variables else None) if value is None else value == 1
        off = ("SetupMode-" + _GLOBAL_GUID, "MokSBStateRT-" + _SHIM_GUID)
        if enabled and any(_efi_byte(tree, switch) == 1 for switch in off):
            enabled = False
    elif not tree.is_noted(_EFIVARS):
        # efivarfs is not mounted here.
        tree.note(_EFIVARS)
    return {
        "efi": True,
        "enabled": enabled,
        "mok_key": key_file,
        "mok_enrolled": _enrolled(tree, key_file, variables),
        "waits": [name for name in MOK_REQUESTS if "%s-%s" % (name, _SHIM_GUID) in variables],
    }


def _efi_byte(tree, name):
    data = tree.read_bytes("%s/%s" % (_EFIVARS, name))
    # Four bytes of attributes stand before the value.
    return data[4] if data is not None and len(data) >= 5 else None


def _enrolled(tree, key_file, variables):
    """True or False for a key that is or is not among the machine owner's; None when that is not known."""
    key = tree.read_bytes(key_file) if key_file else None
    if key is None:
        return None
    if key.startswith(b"-----BEGIN"):
        import base64

        key = base64.b64decode(b"".join(line for line in key.splitlines() if not line.startswith(b"-----")))
    name = "MokListRT-" + _SHIM_GUID
    # The kernel's own copy is whole where the firmware's variable was too small for the list.
    lists = [tree.read_bytes("/sys/firmware/efi/mok-variables/MokListRT")]
    if name in variables:
        data = tree.read_bytes("%s/%s" % (_EFIVARS, name))
        lists.append(None if data is None else data[4:])
    readable = [data for data in lists if data is not None]
    if any(key in signature_list(data) for data in readable):
        return True
    if readable or (variables and name not in variables):
        return False
    return None


def signature_list(data):
    """Certificates (DER) in a run of EFI_SIGNATURE_LISTs; what is cut off is left out."""
    found, at = [], 0
    while at + 28 <= len(data):
        size, header, each = (int.from_bytes(data[at + n : at + n + 4], "little") for n in (16, 20, 24))
        if size < 28 or each < 16 or at + size > len(data):
            break
        if data[at : at + 16] == _X509_GUID:
            for entry in range(at + 28 + header, at + size - each + 1, each):
                found.append(bytes(data[entry + 16 : entry + each]))
        at += size
    return found


# --- what runs ---------------------------------------------------------------------------------------------


def read_reboot_required(tree):
    """facts.RebootRequired, by the flag files of update-notifier."""
    for base in ("/run", "/var/run"):
        if tree.exists(base + "/reboot-required"):
            packages = (tree.read(base + "/reboot-required.pkgs") or "").split()
            return {"required": True, "packages": list(dict.fromkeys(packages))}
    return {"required": False, "packages": []}


def read_services(tree, systemd):
    """{name: facts.Service} of the services that matter here, from unit files, links and control groups."""
    unit_folders = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system")
    unit_folders += ("/usr/lib/systemd/system", "/lib/systemd/system")
    wants = [
        "/etc/systemd/system/" + name
        for name in tree.names("/etc/systemd/system")
        if name.endswith((".wants", ".requires"))
    ]
    groups = _group_folders(tree) if systemd else []
    commands = None
    result = {}
    for service, (process, pid_files) in SERVICES.items():
        unit = service + ".service"
        paths = [path for path in ("%s/%s" % (folder, unit) for folder in unit_folders) if tree.exists(path)]
        masked = tree.link("/etc/systemd/system/" + unit) == "/dev/null"
        running = any((tree.word("%s/system.slice/%s/cgroup.procs" % (group, unit))) for group in groups)
        if not running:
            running = any(_process_is(tree, tree.word(file), process) for file in pid_files)
        if not running and not systemd:
            if commands is None:
                commands = {tree.word("/proc/%s/comm" % pid) for pid in tree.names("/proc") if pid.isdigit()}
            running = process[:15] in commands
        result[service] = {
            "present": bool(paths) or masked,
            "enabled": not masked and any(tree.is_link("%s/%s" % (folder, unit)) for folder in wants),
            "running": running,
        }
    return result


def _group_folders(tree):
    """Folders of the control group tree that systemd may have made below (v2, v1, a container's own part)."""
    mounts = ["/sys/fs/cgroup" + name for name in ("", "/systemd", "/unified")]
    parts = {""}
    for line in (tree.read("/proc/1/cgroup") or "").splitlines():
        path = line.split(":", 2)[-1]
        parts.add(re.sub(r"/init\.scope$", "", path).rstrip("/"))
    return [mount + part for mount in mounts for part in sorted(parts) if tree.is_dir(mount + part)]


def _process_is(tree, pid, name):
    return bool(pid and pid.isdigit()) and tree.word("/proc/%s/comm" % pid) == name[:15]


def read_disks(tree):
    """[facts.Disk] for the file systems that packages, kernels and logs need; free for ordinary users."""
    rows = []
    for path in ("/", "/boot", "/var"):
        try:
            found = os.statvfs(tree.real(path))
        except OSError:
            continue
        rows.append({"path": path, "free": found.f_bavail * found.f_frsize, "size": found.f_blocks * found.f_frsize})
    return rows


def _sha256(tree, path):
    data = tree.read_bytes(path)
    return None if data is None else digests.sha256(data).hexdigest()
