"""One guest: QEMU on an overlay of a disk, reached over ssh, with its serial console and its cards."""

from __future__ import annotations

import json
import re
import select
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tests.lab.engine import LabError, run
from tests.lab.lab import EXCUSED, Result
from tests.lab.spec import HostSpec

from .fakegpu import FIRST_SLOT, Card

if TYPE_CHECKING:
    from .disk import Disk

FIRMWARE = Path("/usr/share/OVMF")

MEMORY = "2048M"
# A first boot on a busy machine; the usual one takes 15 to 40 s.
BOOT_SECONDS = 300


class Guest:
    """A machine that can be switched on, used, and have its power cut. Its inventory is that of one host."""

    def __init__(
        self,
        folder: Path,
        disk: Disk,
        *,
        backing: Path | None = None,
        cards: str = "H100 x2",
        card: type[Card] = Card,
        secure_boot: bool = False,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.disk, self.spec = folder, disk, HostSpec(name="gpuhost", gpus=[cards] if cards else [])
        self.card = card
        self.image, self.console = folder / "disk.qcow2", folder / "console.log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        run(
            [
                "qemu-img",
                "create",
                "-q",
                "-f",
                "qcow2",
                "-F",
                "qcow2",
                "-b",
                str(backing or disk.image),
                str(self.image),
            ]
        )
        self.process: subprocess.Popen[bytes] | None = None
        # The firmware's variables outlive the power: enrolled keys are among them.
        self.variables = folder / "variables.fd" if secure_boot else None
        if self.variables:
            shutil.copy(FIRMWARE / "OVMF_VARS_4M.ms.fd", self.variables)
        self._write_inventory()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.yml"

    # ---- power

    def start(self, *arguments: str) -> None:
        """Switch on, and come back at once."""
        machine = self.spec.machine()
        cards = [self.card(0x10DE, int(gpu["device"], 16), int(gpu["class"], 16)) for gpu in machine["gpus"]]
        command = [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max", "-smp", "2"),
            *("-machine", f"q35,memory-backend=memory,smm={'on' if self.variables else 'off'}", "-m", MEMORY),
            *("-object", f"memory-backend-memfd,id=memory,size={MEMORY},share=on"),
            *("-nodefaults", "-no-user-config", "-display", "none", "-device", "virtio-rng-pci"),
            *("-chardev", f"socket,id=serial,path={self.folder / 'serial'},server=on,wait=off,logfile={self.console}"),
            *("-serial", "chardev:serial"),
            # What a guest has flushed is in the host's memory: cutting QEMU's power loses what the guest had not.
            *("-drive", f"file={self.image},if=virtio,cache=writeback,discard=unmap"),
            *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self.port}-:22"),
            *("-device", "virtio-net-pci,netdev=net,romfile="),
            *(word for number, card in enumerate(cards) for word in card.arguments(number)),
            *self._firmware(),
            *arguments,
        ]
        with (self.folder / "qemu.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[card.theirs.fileno() for card in cards],
            )
        for card in cards:
            card.theirs.close()
            card.start()

    def _firmware(self) -> list[str]:
        """QEMU's own BIOS, or OVMF with Microsoft's keys, whose variables only its own code in SMM may change."""
        if not self.variables:
            return []
        code = FIRMWARE / "OVMF_CODE_4M.secboot.fd"
        return [
            *("-global", "driver=cfi.pflash01,property=secure,value=on"),
            *("-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={code}"),
            *("-drive", f"if=pflash,format=raw,unit=1,file={self.variables}"),
        ]

    def cut(self) -> None:
        """Cut the power."""
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def off(self) -> None:
        """Shut down as a person does, and wait until it is off."""
        self.run("systemctl poweroff", check=False)
        assert self.process
        self.process.wait(BOOT_SECONDS)
        self.process = None

    def boot(self, *arguments: str) -> float:
        """Switch on and wait for a login; the seconds that it took."""
        begun = time.monotonic()
        self.start(*arguments)
        self.wait()
        return time.monotonic() - begun

    def wait(self, before: str = "") -> str:
        """Wait until the guest answers over ssh in another boot than ``before``; its boot_id."""
        deadline = time.monotonic() + BOOT_SECONDS
        while time.monotonic() < deadline:
            assert self.process and self.process.poll() is None, (self.folder / "qemu.log").read_text()[-800:]
            answer = self.ssh("cat /proc/sys/kernel/random/boot_id", check=False)
            if answer.rc == 0 and answer.stdout.strip() != before:
                return answer.stdout.strip()
            time.sleep(1)
        raise LabError(f"the guest did not come up in {BOOT_SECONDS} s: {self.screen()[-1500:]}")

    def reboot(self) -> str:
        """Restart from inside; the new boot_id."""
        before = self.boot_id()
        self.run("systemctl reboot", check=False)
        return self.wait(before)

    # ---- what runs inside

    def ssh(self, command: str, *, check: bool = True, timeout: float = 600, data: str | None = None) -> Result:
        """A command of the login user."""
        done = run(
            ["ssh", "-F", str(self.folder / "ssh_config"), self.name, command], check=False, timeout=timeout, data=data
        )
        if check and done.returncode:
            raise LabError(f"{command!r} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-2000:]}")
        return Result(done.returncode, done.stdout, done.stderr)

    def run(self, command: str, *, check: bool = True, timeout: float = 600) -> Result:
        """A command of root's, through sh."""
        return self.ssh("sudo sh", check=check, timeout=timeout, data=command)

    def boot_id(self) -> str:
        return self.ssh("cat /proc/sys/kernel/random/boot_id").stdout.strip()

    def modules(self) -> set[str]:
        """Names of the loaded modules of the cards."""
        return set(self.ssh("lsmod | cut -d' ' -f1 | grep -E '^(nvidia|nouveau)' || true").stdout.split())

    def module_version(self) -> str:
        """Version of the nvidia module that is loaded; empty without one."""
        return self.ssh("cat /sys/module/nvidia/version", check=False).stdout.strip()

    def use(self, archive: Any) -> None:
        """Point apt at a package server of this machine, and tell the stand-ins what the cards are called."""
        machine = self.spec.machine()
        for number, gpu in enumerate(machine["gpus"]):
            gpu["slot"] = f"0000:00:{FIRST_SLOT + number:02x}.0"
        self.run(
            f"cat >/etc/apt/sources.list.d/ubuntu.sources <<'END'\n{archive.sources()}END\n"
            f"cat >/etc/sim/host.json <<'END'\n{json.dumps(machine)}\nEND\n"
        )
        self._write_inventory(archive)

    # ---- the serial console

    def screen(self) -> str:
        """All that the console showed, without the codes that draw it."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)

    def type(self, *steps: tuple[str, str], timeout: float = BOOT_SECONDS) -> str:
        """For each (pattern, keys): wait until the console shows the pattern, then type. What was shown comes back."""
        shown = seen = ""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.folder / "serial"))
            for pattern, keys in steps:
                deadline = time.monotonic() + timeout
                while not re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen)):
                    if time.monotonic() > deadline:
                        raise LabError(f"the console did not show {pattern!r}: {seen[-600:]!r}")
                    if select.select([line], [], [], 1)[0]:
                        part = line.recv(65536).decode(errors="replace")
                        seen, shown = seen + part, shown + part
                seen = ""
                line.sendall(keys.encode())
        return shown

    # ---- what a controller needs

    def _write_inventory(self, archive: Any = None) -> None:
        folder, public = self.folder, (self.disk.folder / "host-key.pub").read_text().split()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {public[0]} {public[1]}\n")
        options = {
            "UserKnownHostsFile": str(folder / "known_hosts"),
            "StrictHostKeyChecking": "yes",
            "IdentitiesOnly": "yes",
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "12",
            "ConnectTimeout": "20",
        }
        (folder / "ssh_config").write_text(
            f"Host {self.name}\n  HostName 127.0.0.1\n  Port {self.port}\n  User lab\n  IdentityFile {self.disk.folder / 'key'}\n"
            + "  BatchMode yes\n"
            + "".join(f"  {name} {value}\n" for name, value in options.items())
        )
        host = {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": "lab",
            "ansible_ssh_private_key_file": str(self.disk.folder / "key"),
            "ansible_ssh_common_args": " ".join(f"-o {name}={value}" for name, value in options.items()),
            "gpu_verify_excuse": list(EXCUSED),
            **(archive.variables() if archive else {}),
        }
        self.inventory.write_text(
            "# A guest with a real kernel and SIMULATED cards\n"
            + yaml.safe_dump({"all": {"children": {"gpu": {"hosts": {self.name: host}}}}}, sort_keys=False)
        )


def install_grub(disk: Disk, tree: Path) -> None:
    """GRUB into the boot sector of a new disk, by a first boot that QEMU itself loads the kernel of."""
    guest = Guest(disk.folder / "first", disk, cards="")
    guest.image.unlink()
    guest.image = disk.image
    kernel = tree / f"boot/vmlinuz-{disk.kernels[0]}"
    initramfs = str(kernel).replace("vmlinuz", "initrd.img")
    try:
        guest.boot(
            *("-kernel", str(kernel), "-initrd", initramfs),
            *("-append", "root=/dev/vda1 rw console=ttyS0 quiet net.ifnames=0"),
        )
        guest.run(
            "set -e; grub-install --target=i386-pc /dev/vda; update-grub; rm -f /etc/machine-id /var/lib/dbus/machine-id; "
            ": >/etc/machine-id; echo grub-pc grub-pc/install_devices multiselect /dev/vda | debconf-set-selections"
        )
        guest.off()
    finally:
        guest.cut()
