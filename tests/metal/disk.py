"""The disk that guests start from: Debian's user space and kernels with Ubuntu's identity, GRUB in its boot sector.

Built once and kept under a hash of its recipe in ``metal`` of the lab's cache. Beside the disk lie the newer kernel's
packages (``debs``) and modules of the stand-in driver for both kernels (``modules``), built here, where it takes seconds.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.lab import profile, repos
from tests.lab.debfile import build
from tests.lab.engine import LabError, run
from tests.lab.paths import CACHE, fingerprint_of
from tests.lab.setup import say
from tests.lab.spec import HostSpec

from . import source
from .guest import FIRMWARE, install_grub

HERE = Path(__file__).parent
FLAVOUR = "cloud-amd64"
VERSIONS = ("580.126.20", "580.173.02")
SIGNER = "Canonical Ltd. Kernel Module Signing"
SIZE, ESP_SIZE = 10 << 30, 64 << 20
# program -> package
NEEDS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "ssh-keygen": "openssh-client",
    "openssl": "openssl",
    "gpg": "gpg",
    "mkfs.vfat": "dosfstools",
    "mcopy": "mtools",
}
INCLUDE = (
    "systemd,systemd-sysv,dbus,libpam-systemd,udev,kmod,openssh-server,python3,iproute2,ca-certificates,gnupg,pciutils,"
    "dkms,initramfs-tools,zstd,procps,sudo,mokutil,grub-pc,lsb-release,needrestart"
)
# Each copies programs and what they are linked with, by a shell: minutes under emulation, for what no guest needs.
_HOOKS = "dmsetup fsck thermal"
_MASKED = "apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service systemd-timesyncd.service fstrim.timer"
_FILES = {
    "etc/hostname": "gpuhost\n",
    "etc/hosts": "127.0.0.1 localhost\n127.0.1.1 gpuhost\n10.0.2.2 archive.sim.internal nvidia.sim.internal\n",
    "etc/fstab": "/dev/vda1 / ext4 noatime,discard 0 1\n",
    "etc/systemd/network/10-eth0.network": "[Match]\nName=eth0\n[Network]\nDHCP=ipv4\nIPv6AcceptRA=no\n",
    # What a guest's disk needs and no more: most would be minutes under emulation.
    "etc/initramfs-tools/conf.d/metal": "MODULES=list\nCOMPRESS=gzip\n",
    "etc/initramfs-tools/modules": "virtio_pci\nvirtio_blk\next4\n",
    "etc/sudoers.d/90-lab": "lab ALL=(ALL:ALL) NOPASSWD: ALL\n",
    # Without a display GRUB never gets past its menu on any other terminal.
    "etc/default/grub": "GRUB_DEFAULT=0\nGRUB_TIMEOUT_STYLE=hidden\nGRUB_TIMEOUT=0\nGRUB_RECORDFAIL_TIMEOUT=0\n"
    "GRUB_DISTRIBUTOR=`( . /etc/os-release; echo ${NAME:-Ubuntu} ) 2>/dev/null || echo Ubuntu`\n"
    'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="console=ttyS0 net.ifnames=0"\nGRUB_DISABLE_OS_PROBER=true\n'
    'GRUB_TERMINAL=serial\nGRUB_SERIAL_COMMAND="serial --unit=0 --speed=115200"\n',
}


@dataclass(frozen=True)
class Disk:
    """A built disk: ``base.qcow2``, the login's ``key``, the host's key, the two kernels."""

    folder: Path

    @property
    def image(self) -> Path:
        return self.folder / "base.qcow2"

    @cached_property
    def kernels(self) -> tuple[str, str]:
        """Releases of the kernel that is installed and of the newer one that the archive gets later."""
        old, new = json.loads((self.folder / "kernels.json").read_text())
        return old, new


def disk() -> Disk:
    """The base disk, built where this recipe has not been built before: some four minutes."""
    recipe = "".join(path.read_text() for path in [Path(__file__), *sorted((HERE / "standin").iterdir())])
    folder = CACHE / "metal" / fingerprint_of("sim", "profile.py", extra=recipe)
    with repos.locked("metal"):
        if not (folder / "done").exists():
            ensure()
            say(f"building the disk of the guests in {folder}: some four minutes")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _build(folder)
            (folder / "done").touch()
    return Disk(folder)


def ensure() -> None:
    """Install the programs that are missing."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    wanted = [package for program, package in NEEDS.items() if not shutil.which(program, path=path)]
    wanted += [] if FIRMWARE.exists() else ["ovmf"]
    if wanted:
        if os.geteuid():
            raise LabError(f"the guests' disk is built as root, and needs {', '.join(wanted)}")
        say(f"installing with apt-get: {' '.join(wanted)}")
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *wanted]):
            subprocess.run(
                ["apt-get", "-o", "DPkg::Lock::Timeout=300", *words], env=environment, check=words[0] == "update"
            )


def _build(folder: Path) -> None:
    tree = folder / "tree"
    run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gpu-lab", "-f", str(folder / "key")])
    _bootstrap(tree)
    kernels = json.loads((tree / "kernels.json").read_text())
    shutil.move(tree / "kernels.json", folder / "kernels.json")
    shutil.move(tree / "debs", folder / "debs")
    shutil.move(tree / "efi", folder / "efi")
    _recompress(folder / "debs")
    _modules(folder, tree, kernels)
    common = kernels[1].removesuffix(f"-{FLAVOUR}") + "-common"
    _in(tree, f"dpkg --purge linux-image-{kernels[1]} linux-headers-{kernels[1]} linux-headers-{common} >/dev/null")
    _configure(folder, tree)
    _disk(folder, tree)
    install_grub(Disk(folder), tree)
    shutil.rmtree(tree)


def sources() -> list[str]:
    """One-line sources of this machine's own release, updates and security among them."""
    release = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.M)
    codename = release[1] if release else ""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]
    lines = [line for line in run(words).stdout.splitlines() if line.split()[1].split("-")[0] == codename]
    if codename != "bookworm" or not lines:
        raise LabError("the guests are made of Debian 12, and apt on this machine has no source of it")
    return [f"deb {line}" for line in lines]


def _bootstrap(tree: Path) -> None:
    """User space, and the two newest kernels that have headers; the packages of the newer one stay beside it."""
    script = tree.parent / "kernels.sh"
    script.write_text(
        f"""#!/bin/sh
set -eu
chroot "$1" sh -eu <<'END'
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
kernels=$(apt-cache search -n '^linux-headers-[0-9.]+-[0-9]+-{FLAVOUR}$' | cut -d' ' -f1 | cut -d- -f3- | sort -V | tail -2)
apt-get install -y -qq --no-install-recommends $(for k in $kernels; do echo linux-image-$k linux-headers-$k; done)
echo $kernels | sed 's/\\(.*\\) \\(.*\\)/["\\1", "\\2"]/' > /kernels.json
new=${{kernels##*
}}
mkdir /debs && cd /debs
apt-get download -qq linux-image-$new linux-headers-$new $(apt-cache depends linux-headers-$new |
    sed -n 's/.*Depends: \\(linux-\\(headers\\|kbuild\\|compiler\\).*\\)/\\1/p')
mkdir /efi && cd /efi
apt-get download -qq shim-signed shim-helpers-amd64-signed grub-efi-amd64-signed
for deb in *.deb; do dpkg-deb -x $deb .; done
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
END
"""
    )
    script.chmod(0o755)
    waste = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale", "info")]
    run(
        [
            "nice",
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--variant=minbase",
            "--format=directory",
            f"--include={INCLUDE}",
        ]
        + ['--aptopt=Acquire::Languages "none"', "--dpkgopt=force-unsafe-io", *waste, f"--customize-hook={script}"]
        + ["bookworm", str(tree), *sources()],
        timeout=1200,
    )


def _in(tree: Path, script: str) -> str:
    return run(["nice", "chroot", str(tree), "sh", "-euc", script], timeout=600).stdout


def _recompress(debs: Path) -> None:
    """Packages that unpack in seconds under emulation, too."""
    for deb in sorted(debs.glob("*.deb")):
        content = debs / "content"
        run(["dpkg-deb", "--raw-extract", str(deb), str(content)])
        run(["nice", "dpkg-deb", "-Zgzip", "-z1", "--build", str(content), str(deb)])
        shutil.rmtree(content)


def _modules(folder: Path, tree: Path, kernels: list[str]) -> None:
    """Build the stand-in driver and nouveau for every kernel, signed by a key that calls itself the distribution's."""
    key = folder / "signing"
    key.mkdir()
    run(
        ["openssl", "req", "-new", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "36500", "-subj", f"/CN={SIGNER}"]
        + ["-outform", "DER", "-keyout", str(key / "key.pem"), "-out", str(key / "certificate.der")]
    )
    shutil.copytree(key, tree / "signing")
    for kernel in kernels:
        for version in (*VERSIONS, "nouveau"):
            place = tree / "build"
            place.mkdir()
            files = source.nouveau() if version == "nouveau" else source.driver(version)
            for name, text in files.items():
                (place / name).write_text(text)
            _in(
                tree,
                f"make -s -C /lib/modules/{kernel}/build M=/build modules; cd /build; for m in *.ko; do strip -g $m; "
                f"/lib/modules/{kernel}/build/scripts/sign-file sha256 /signing/key.pem /signing/certificate.der $m; done",
            )
            target = folder / "modules" / version / kernel
            target.mkdir(parents=True)
            for module in place.glob("*.ko"):
                shutil.copy(module, target)
            shutil.rmtree(place)
    shutil.rmtree(tree / "signing")


def _configure(folder: Path, tree: Path) -> None:
    """Identity, login, host key, network."""
    spec = HostSpec(name="gpuhost")
    files: dict[str, str | bytes] = {**profile.files(spec), **{f"/{name}": text for name, text in _FILES.items()}}
    for path in ("etc/apt/sources.list", "etc/apt/sources.list.d", "etc/machine-id"):
        target = tree / path
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
    for path, content in files.items():
        if path.startswith("/etc/apt/sources.list"):
            continue
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)
    (tree / "etc/sudoers.d/90-lab").chmod(0o440)
    (tree / "etc/machine-id").write_text("")
    (tree / "etc/apt/sources.list.d").mkdir()
    (tree / "etc/os-release").unlink(missing_ok=True)
    (tree / "etc/os-release").symlink_to("../usr/lib/os-release")
    simulator = tree / "usr/local/lib/sim"
    shutil.copytree(HERE.parent / "lab/sim", simulator, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(HERE / "standin/kernel.py", simulator)
    with (simulator / "state.py").open("a") as handle:
        handle.write("\nfrom .kernel import devices, loaded, log, release  # noqa\n")
    _in(
        tree,
        "useradd --create-home --shell /bin/bash --groups sudo lab; install -d -o lab -g lab -m 700 /home/lab/.ssh; "
        "mkdir -p /etc/sim; rm -f /etc/ssh/ssh_host_*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key; "
        "ln -sf /lib/systemd/system/systemd-networkd.service /etc/systemd/system/multi-user.target.wants/; "
        f"for unit in {_MASKED}; do ln -sf /dev/null /etc/systemd/system/$unit; done; "
        f"cd /usr/share/initramfs-tools/hooks; for hook in {_HOOKS}; do [ ! -e $hook ] || chmod -x $hook; done",
    )
    from .archive import kernel_metapackages, nouveau

    kernel = Disk(folder).kernels[0]
    for package in (nouveau(Disk(folder), kernel), kernel_metapackages(kernel)[0]):
        (tree / "package.deb").write_bytes(build(package))
        _in(tree, "dpkg --install package.deb && rm package.deb")
    _in(tree, f"update-initramfs -u -k {kernel}")
    shutil.copy(folder / "key.pub", tree / "home/lab/.ssh/authorized_keys")
    os.chown(tree / "home/lab/.ssh/authorized_keys", 1000, 1000)
    shutil.copy(tree / "etc/ssh/ssh_host_ed25519_key.pub", folder / "host-key.pub")


def _disk(folder: Path, tree: Path) -> None:
    """A root and an EFI system partition, without loop devices: what a BIOS and what firmware with Secure Boot start from."""
    raw, esp = folder / "disk.raw", folder / "esp.img"
    _esp(folder, esp)
    start, end = 2048, (SIZE - ESP_SIZE) // 512
    with raw.open("wb") as handle:
        handle.truncate(SIZE)
        handle.seek(446)
        handle.write(struct.pack("<B3sB3sII", 0x80, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", start, end - start))
        handle.write(struct.pack("<B3sB3sII", 0, b"\xfe\xff\xff", 0xEF, b"\xfe\xff\xff", end, ESP_SIZE // 512))
        handle.seek(510)
        handle.write(b"\x55\xaa")
        handle.seek(end * 512)
        handle.write(esp.read_bytes())
    esp.unlink()
    run(
        ["mke2fs", "-q", "-F", "-t", "ext4", "-L", "root"]
        + ["-E", f"offset={start * 512},lazy_itable_init=1,lazy_journal_init=1"]
        + ["-d", str(tree), str(raw), f"{(end - start) // 2}k"]
    )
    run(["nice", "qemu-img", "convert", "-O", "qcow2", str(raw), str(folder / "base.qcow2")])
    raw.unlink()


def _esp(folder: Path, esp: Path) -> None:
    """Debian's signed shim and GRUB, whose configuration is the one on the root file system."""
    with esp.open("wb") as handle:
        handle.truncate(ESP_SIZE)
    run(["mkfs.vfat", str(esp)])
    run(["mmd", "-i", str(esp), "::/EFI", "::/EFI/BOOT", "::/EFI/debian"])
    (folder / "grub.cfg").write_text(
        "serial --unit=0 --speed=115200\nterminal_input serial\nterminal_output serial\n"
        "search --label --set=root root\nset prefix=($root)/boot/grub\nconfigfile $prefix/grub.cfg\n"
    )
    for source_, target in (
        ("efi/usr/lib/shim/shimx64.efi.signed", "BOOT/BOOTX64.EFI"),
        ("efi/usr/lib/shim/mmx64.efi.signed", "BOOT/mmx64.efi"),
        ("efi/usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed", "BOOT/grubx64.efi"),
        ("grub.cfg", "debian/grub.cfg"),
    ):
        run(["env", "MTOOLS_SKIP_CHECK=1", "mcopy", "-i", str(esp), str(folder / source_), f"::/EFI/{target}"])
