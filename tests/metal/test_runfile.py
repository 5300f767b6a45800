"""NVIDIA's .run on a guest: its files, its modules loaded, and the purge that makes room for the distribution's driver.

No package registry has an installer. METAL_INSTALLER names NVIDIA's ``nvidia-installer``, with ``mkprecompiled`` beside it (from
a .run, or built from the source that NVIDIA publishes): then that program installs NVIDIA's own modules, programs and
firmware, and the purge runs its uninstaller. Without it the files that it leaves behind are laid down, with a stand-in of
the uninstaller that removes nothing.
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.faults.conftest import driver_packages, holds

from .archive import Archive
from .conftest import Command
from .guest import Guest
from .real import Chip, real
from .test_real import shown

pytestmark = pytest.mark.metal
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
CORES = {
    "nvidia": ("nv-linux.o", "nvidia/nv-kernel.o_binary"),
    "nvidia-modeset": ("nv-modeset-linux.o", "nvidia-modeset/nv-modeset-kernel.o_binary"),
}
# The head of a .run's list, and what of it Debian's packages have.
MANIFEST = """NVIDIA Accelerated Graphics Driver for Linux-x86_64
{version}
-
{modules}
-
-
kernel
kernel/precompiled
nvidia-installer 0755 INSTALLER_BINARY
nvidia-uninstall 0777 UTILITY_BIN_SYMLINK nvidia-installer
nvidia-smi 0755 UTILITY_BINARY
libnvidia-ml.so.{version} 0755 UTILITY_LIB NATIVE
libnvidia-ml.so.1 0000 UTILITY_LIB_SYMLINK NATIVE libnvidia-ml.so.{version}
libnvidia-ml.so 0000 UTILITY_LIB_SYMLINK NATIVE libnvidia-ml.so.1
firmware/gsp_ga10x.bin 0644 FIRMWARE INHERIT_PATH_DEPTH:1
"""
TRACES = (
    "ls -d /usr/bin/nvidia-* /usr/lib/x86_64-linux-gnu/libnvidia-* /usr/lib/firmware/nvidia/* /var/lib/nvidia "
    "/lib/modules/*/kernel/drivers/video/nvidia* 2>/dev/null"
)


def package(guest, own, installer: Path, folder: Path) -> dict[str, Path | bytes]:
    """What a .run unpacks: name -> file. The modules are precompiled for the guest's kernel, as a .run may bring them."""
    version = own.versions[0]
    files, built = own.folder / version, folder / "precompiled"
    words: list[str] = []
    for name in MODULES:
        module = files / "modules" / f"{name}.ko"
        if name in CORES:
            # In a .run these are two objects each, linked at its installation: here the one is whole and the other empty.
            interface, core = CORES[name]
            (folder / interface).write_bytes(module.read_bytes())
            words += ["--kernel-interface", str(folder / interface), "--linked-module-name", module.name]
            words += ["--core-object-name", core]
        else:
            words += ["--kernel-module", str(module)]
        words += ["--target-directory", "."]
    subprocess.run(
        [str(installer.with_name("mkprecompiled")), "--pack", str(built), "--driver-version", version, *words]
        + [
            "--proc-version-string",
            guest.ssh("cat /proc/version").stdout.strip(),
            "--description",
            guest.disk.kernels[0],
        ],
        check=True,
        capture_output=True,
    )
    return {
        ".manifest": MANIFEST.format(version=version, modules=" ".join(MODULES)).encode(),
        "nvidia-installer": installer,
        "nvidia-smi": files / "usr/lib/nvidia/current/nvidia-smi",
        f"libnvidia-ml.so.{version}": files / f"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.{version}",
        "firmware/gsp_ga10x.bin": files / f"lib/firmware/nvidia/{version}/gsp_ga10x.bin",
        "kernel/precompiled/guest": built,
    }


def left_behind(guest, own) -> dict[str, Path | bytes]:
    """The list recorded of an installation without OpenGL: file -> NVIDIA's own, where Debian has it."""
    version = own.versions[0]
    files, kernel = own.folder / version, guest.disk.kernels[0]
    return {
        "usr/bin/nvidia-uninstall": b"#!/bin/sh\necho SIMULATED\n",
        "usr/bin/nvidia-installer": b"#!/bin/sh\necho SIMULATED\n",
        "usr/bin/nvidia-smi": files / "usr/lib/nvidia/current/nvidia-smi",
        f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}": files
        / f"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.{version}",
        f"usr/lib/firmware/nvidia/{version}/gsp_ga10x.bin": files / f"lib/firmware/nvidia/{version}/gsp_ga10x.bin",
        "var/lib/nvidia/log": f"1.0-0 ({version})\nNVIDIA Accelerated Graphics Driver for Linux-x86_64\n".encode(),
        "var/lib/nvidia/dirs": b"",
        "var/log/nvidia-installer.log": f"nvidia-installer log file\ninstaller version: {version}\n".encode(),
        **{f"usr/lib/modules/{kernel}/kernel/drivers/video/{m}.ko": files / "modules" / f"{m}.ko" for m in MODULES},
    }


def hand_over(archive: Archive, guest: Guest, files: dict[str, Path | bytes], where: str) -> None:
    """Unpack files in the guest, by the server that it has its packages from."""
    with tarfile.open(archive.root / "files.tar", "w") as tar:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.read_bytes()
            row = tarfile.TarInfo(name)
            row.size, row.mode = len(data), 0o755 if data[:2] in (b"#!", b"\x7fE") and "." not in name else 0o644
            tar.addfile(row, io.BytesIO(data))
    url = archive.url.removesuffix("ubuntu") + "files.tar"
    fetch = f"import shutil, urllib.request as u; shutil.copyfileobj(u.urlopen('{url}'), open('/root/files.tar', 'wb'))"
    guest.run(f'python3 -c "{fetch}" && mkdir -p {where} && tar -C {where} -xf /root/files.tar && rm /root/files.tar')


def test_purge_makes_room_for_the_distribution_s_driver(base, tmp_path):
    own = real(base)
    version, kernel = own.versions[0], base.kernels[0]
    archive, guest = Archive(tmp_path / "archive", base), Guest(tmp_path / "guest", base, cards="H100", card=Chip)
    command = Command(guest, tmp_path / "state")
    try:
        print(f"boot: {guest.boot():.0f} s")
        guest.use(archive)
        installer = Path(os.environ.get("METAL_INSTALLER", ""))
        print("NVIDIA's own installer" if installer.is_file() else "SIMULATED: the files of the recorded list")
        guest.run("rmmod nouveau; echo blacklist nouveau >/usr/lib/modprobe.d/nvidia-installer-disable-nouveau.conf")
        if installer.is_file():
            hand_over(archive, guest, package(guest, own, installer, tmp_path), "/root/run")
            for _, core in CORES.values():
                guest.run(f"cd /root/run/kernel; mkdir -p $(dirname {core}); as /dev/null -o {core}")
            options = "-s --ui=none --no-x-check --no-check-for-alternate-installs --no-kernel-module-source"
            text, rc = shown(
                guest,
                f"cd /root/run && ./nvidia-installer {options}; rc=$?; tail -40 /var/log/nvidia-installer.log; exit $rc",
            )
            assert rc == 0, text
        else:
            hand_over(archive, guest, left_behind(guest, own), "/")
            library = f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}"
            guest.run(f"ln -s {library} /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1; ldconfig; depmod {kernel}")
        before, _ = shown(guest, TRACES)
        assert (
            "/usr/bin/nvidia-uninstall" in before and f"/lib/modules/{kernel}/kernel/drivers/video/nvidia.ko" in before
        )
        assert shown(guest, "modprobe nvidia; cat /sys/module/nvidia/version")[0].strip() == version
        print(command.run("diagnose", "-v", rc=3).stdout)

        done = command.host("rescue", "--purge", "--yes")
        print(done["rounds"][0])
        assert done["status"] == "rescued", done
        after, _ = shown(guest, "cat /var/log/nvidia-uninstall.log", TRACES)
        assert version not in after and "nvidia-uninstall" not in after and "drivers/video" not in after
        assert guest.run("dpkg-query -S /usr/bin/nvidia-smi").stdout.startswith("nvidia-utils-580-server")
        assert guest.module_version().startswith("580.")
        assert set(driver_packages(guest)) <= holds(guest)
    finally:
        guest.cut()
        archive.close()
