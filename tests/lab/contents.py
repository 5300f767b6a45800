"""Files and maintainer scripts of the driver's packages, by what they are: the parts that tools read and that matter.

Both repositories use these. ``base`` is a name without branch (``libnvidia-compute``), ``series`` the branch with its
series (``580-server``), ``version`` the upstream version.
"""

from __future__ import annotations

from . import sofile
from .debfile import File
from .sim import driver_files
from .sim.standin import program

LIB = "/usr/lib/x86_64-linux-gnu"
# Newest kernel series whose interfaces a branch's source knows. 470, 535 and 580 from the Ubuntu packaging
# (debian/patches, as of 2026-04); the others are the lab's assumption.
MAX_KERNEL = {"470": "6.8", "535": "6.12", "550": "6.11", "570": "6.14", "575": "6.15"}
_LIBRARIES = {
    "libnvidia-compute": ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler", "libnvidia-opencl"),
    "libnvidia-cfg1": ("libnvidia-cfg",),
    "libnvidia-gl": ("libnvidia-glcore", "libGLX_nvidia"),
    "libnvidia-decode": ("libnvcuvid",),
    "libnvidia-encode": ("libnvidia-encode",),
    "libnvidia-fbc1": ("libnvidia-fbc",),
    "libnvidia-ifr1": ("libnvidia-ifr",),
    "libnvidia-gpucomp": ("libnvidia-gpucomp",),
    "libnvidia-nscq": ("libnvidia-nscq",),
    "libnvsdm": ("libnvsdm",),
}
# Nothing computes on simulated cards: who asks NVML is told that. 999: NVML_ERROR_UNKNOWN.
NVML = File(
    sofile.build(
        "libnvidia-ml.so.1",
        {
            "nvmlInit_v2": sofile.constant(999),
            "nvmlErrorString": sofile.points_to("SIMULATED: a stand-in of the lab, nothing computes here"),
        },
    )
)
BLACKLIST = """\
# This file was installed by the NVIDIA driver package. Do not edit.

blacklist nouveau
blacklist lbm-nouveau
blacklist nova_core
blacklist nova_drm
alias nouveau off
alias lbm-nouveau off
"""
_PERSISTENCED = """\
[Unit]
Description=NVIDIA Persistence Daemon
Wants=syslog.target

[Service]
Type=forking
PIDFile=/run/nvidia-persistenced/nvidia-persistenced.pid
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced %s--verbose
ExecStopPost=/bin/rm -rf /run/nvidia-persistenced
"""
_FABRIC = """\
[Unit]
Description=NVIDIA fabric manager service
After=network-online.target
Requires=network-online.target

[Service]
User=root
PrivateTmp=false
Type=forking
TimeoutStartSec=720
PIDFile=/run/nvidia-fabricmanager/nv-fabricmanager.pid
ExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg
LimitCORE=infinity

[Install]
WantedBy=multi-user.target
"""
_FABRIC_PROGRAM = """\
#!/usr/bin/python3 -SE
# Stand-in on a simulated host; see /usr/local/lib/sim.
import sys

sys.path.insert(0, "/usr/local/lib")
from sim.daemons import fabricmanager

sys.exit(fabricmanager(sys.argv[1:], "%s"))
"""
# A test can make the configuration of one package fail, once per line in /etc/sim/fail-postinst.
_FAIL = """\
#!/bin/sh
set -e
if [ -e /etc/sim/fail-postinst ] && grep -qx "%s" /etc/sim/fail-postinst; then
    echo "simulated failure in the postinst of %s" >&2
    exit 1
fi
"""


def fill(
    base: str, series: str, version: str, flavour: str, *, cuda: bool = False
) -> tuple[dict[str, File | str], dict[str, str], list[str]]:
    """Return (files, scripts, conffiles) of one driver package; cuda: as in NVIDIA's repository."""
    files: dict[str, File | str] = {}
    after, before_removal, after_removal = "", "", ""
    conffiles: list[str] = []
    for library in _LIBRARIES.get(base, ()):
        files[f"{LIB}/{library}.so.{version}"] = (
            NVML if library == "libnvidia-ml" else f"simulated {library} {version}\n"
        )
        files[f"{LIB}/{library}.so.1"] = File(link=f"{library}.so.{version}")
    if base == "nvidia-utils":
        files["/usr/bin/nvidia-smi"] = File(program("nvidia-smi").encode(), 0o755)
    elif base in ("nvidia-compute-utils", "nvidia-persistenced"):
        files["/usr/bin/nvidia-persistenced"] = File(program("nvidia-persistenced").encode(), 0o755)
        option = "" if cuda else "--no-persistence-mode "
        unit = _PERSISTENCED % option
        if cuda:
            unit += "\n[Install]\nWantedBy=multi-user.target\n"
        files["/usr/lib/systemd/system/nvidia-persistenced.service"] = unit
        after = (
            "getent passwd nvidia-persistenced >/dev/null || useradd --system --no-create-home --home-dir / "
            "--shell /usr/sbin/nologin nvidia-persistenced\n"
        )
        if cuda:
            # As NVIDIA's package: switched on at the first installation, left alone at an upgrade.
            after += 'if [ -z "$2" ]; then systemctl --quiet enable nvidia-persistenced.service; fi\n'
    elif base == "nvidia-kernel-common":
        files["/usr/lib/modprobe.d/nvidia-graphics-drivers.conf"] = BLACKLIST
        files["/usr/lib/udev/rules.d/71-nvidia.rules"] = (
            'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="/sbin/modprobe nvidia-modeset"\n'
            'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="/sbin/modprobe nvidia-drm"\n'
            'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="/sbin/modprobe nvidia-uvm"\n'
        )
        after = after_removal = "if command -v update-initramfs >/dev/null; then update-initramfs -u; fi\n"
    elif base == "nvidia-firmware":
        for chip in ("ga10x", "tu10x"):
            files[f"/usr/lib/firmware/nvidia/{version}/gsp_{chip}.bin"] = f"simulated GSP firmware {version}\n"
    elif base == "nvidia-kernel-source":
        files[f"/usr/src/nvidia-{version}/dkms.conf"] = dkms_conf(version, flavour)
        files[f"/usr/src/nvidia-{version}/Kbuild"] = "# simulated source\n"
    elif base == "nvidia-dkms":
        after = f'/usr/lib/dkms/common.postinst nvidia {version} /usr/share/nvidia "" "$2" || exit $?\nupdate-initramfs -u\n'
        before_removal = (
            f"if [ -d /var/lib/dkms/nvidia/{version} ]; then dkms remove nvidia/{version} --all >/dev/null; fi\n"
        )
    elif base == "nvidia-fabricmanager":
        files["/usr/bin/nv-fabricmanager"] = File((_FABRIC_PROGRAM % version).encode(), 0o755)
        files["/usr/share/nvidia/nvswitch/fabricmanager.cfg"] = "LOG_LEVEL=4\nFABRIC_MODE=0\n"
        files["/usr/lib/systemd/system/nvidia-fabricmanager.service"] = _FABRIC
    elif base == "nvidia-settings":
        files["/usr/bin/nvidia-settings"] = File(b"#!/bin/sh\nexit 0\n", 0o755)
    return files, scripts_for(base, series, flavour, after, before_removal, after_removal), conffiles


def scripts_for(
    base: str, series: str, flavour: str, after: str, before_removal: str = "", after_removal: str = ""
) -> dict[str, str]:
    """Maintainer scripts: configuration can be made to fail by a test, removal runs when the package goes."""
    name = base
    scripts = {"postinst": (_FAIL % ("$DPKG_MAINTSCRIPT_PACKAGE", name))}
    if after:
        scripts["postinst"] += f'if [ "$1" = configure ]; then\n{after}fi\n'
    if before_removal:
        scripts["prerm"] = (
            f'#!/bin/sh\nset -e\nif [ "$1" = remove ] || [ "$1" = upgrade ] || [ "$1" = deconfigure ]; then\n{before_removal}fi\n'
        )
    if after_removal:
        scripts["postrm"] = f'#!/bin/sh\nset -e\nif [ "$1" = remove ]; then\n{after_removal}fi\n'
    return scripts


def dkms_conf(version: str, flavour: str) -> str:
    """dkms.conf of the driver's source; MAX_KERNEL and FLAVOUR are read by the stand-in only."""
    names = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem")
    lines = [f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"']
    for number, name in enumerate(names):
        lines.append(f'BUILT_MODULE_NAME[{number}]="{name}"\nDEST_MODULE_LOCATION[{number}]="/updates/dkms"')
    lines.append(f'FLAVOUR="{flavour}"')
    limit = MAX_KERNEL.get(version.split(".")[0])
    if limit:
        lines.append(f'MAX_KERNEL="{limit}"')
    return "\n".join(lines) + "\n"


def supports_kernel(branch: str, kernel: str) -> bool:
    """True when the source of a branch compiles for a kernel release."""
    limit = MAX_KERNEL.get(branch)
    series = [int(part) for part in kernel.split("-")[0].split(".")[:2]]
    return limit is None or series <= [int(part) for part in limit.split(".")]


def signed_modules(version: str, flavour: str, kernel: str) -> dict[str, bytes]:
    """Module files as the distribution signs them."""
    return driver_files.modules(version, flavour, kernel, driver_files.CANONICAL)
