"""A real sshd on a loopback port, with keys of its own, for tests of the fast read."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAM = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
MISSING = "there is no sshd here (apt-get install openssh-server)"

_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
PermitRootLogin yes
PasswordAuthentication yes
StrictModes no
UsePAM no
MaxStartups 200
AllowTcpForwarding yes
PrintMotd no
"""


def keygen(path: Path, passphrase: str = "", kind: str = "ed25519") -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)], check=True)


class Sshd:
    """Running: address, port, user, key (a private key that is let in), known_hosts (a file that knows it)."""

    address = "127.0.0.1"

    def __init__(self) -> None:
        # Not pytest's folder: sshd reads authorized_keys as the user who logs in.
        folder = self.folder = Path(tempfile.mkdtemp(prefix="gpu-provision-sshd-"))
        self.user = getpass.getuser() if os.geteuid() else "root"
        self.home = pwd.getpwuid(os.geteuid()).pw_dir
        self.key, self.known_hosts = folder / "id", folder / "known_hosts"
        keygen(folder / "host_key")
        keygen(self.key)
        shutil.copy(folder / "id.pub", folder / "authorized_keys")
        self.host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
        # As late as may be: others look for a free port too.
        with socket.socket() as free:
            free.bind((self.address, 0))
            self.port = free.getsockname()[1]
        self.known_hosts.write_text(f"[{self.address}]:{self.port} {self.host_key}\n")
        config = folder / "sshd_config"
        config.write_text(_CONFIG.format(port=self.port, folder=folder))
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o755)
        self._process = subprocess.Popen(
            [str(PROGRAM), "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stderr=(folder / "log").open("w")
        )
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection((self.address, self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"sshd did not start: {(self.folder / 'log').read_text()}")

    def authorize(self, public: Path) -> None:
        with (self.folder / "authorized_keys").open("a") as out:
            out.write(public.read_text())

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(timeout=10)
        shutil.rmtree(self.folder)
