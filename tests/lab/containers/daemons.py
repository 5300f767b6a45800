"""The real dockerd and containerd of this machine's distribution, unpacked and not installed.

``binaries()`` gives the folder with ``usr/bin`` and ``usr/sbin``; ``debs()`` the packages themselves, to be installed
on a simulated host with dpkg.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from ..paths import CACHE

PACKAGES = ("docker.io", "containerd", "runc", "busybox-static", "libdevmapper1.02.1")


class NoDaemonsError(Exception):
    """The packages cannot be had from this machine's own mirror; the message says why."""


def debs() -> list[Path]:
    """The packages' files, fetched once. Raises NoDaemonsError."""
    if not shutil.which("apt-get"):
        raise NoDaemonsError("there is no apt here")
    target = CACHE / "daemons" / "debs"
    target.mkdir(parents=True, exist_ok=True)
    found = sorted(target.glob("*.deb"))
    if len(found) < len(PACKAGES):
        got = subprocess.run(
            ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *PACKAGES],
            cwd=target,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if got.returncode != 0:
            raise NoDaemonsError(f"apt-get download: {got.stderr.strip().splitlines()[-1:]}")
        found = sorted(target.glob("*.deb"))
    return found


def binaries() -> Path:
    """Folder with the unpacked packages. Raises NoDaemonsError."""
    target = CACHE / "daemons" / "root"
    if not (target / "done").exists():
        for deb in debs():
            subprocess.run(["dpkg", "-x", str(deb), str(target)], check=True, timeout=120)
        (target / "done").touch()
    return target


class RealDocker:
    """A real dockerd on sockets and folders of its own, in a network of its own; what it starts, it stops.

    ``config`` is its daemon.json; nvidia-container-runtime is a SIMULATION that hands everything on to runc.
    """

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.flags, self.root = folder, flags, binaries()
        # A socket's path has 104 characters at most, and folders of tests are named at length.
        self.sockets = Path(tempfile.mkdtemp(prefix="gpd-"))
        self.config, self.socket = folder / "etc" / "daemon.json", self.sockets / "docker.sock"
        self.config.parent.mkdir(parents=True, exist_ok=True)
        self.bin = folder / "bin"
        self.bin.mkdir(exist_ok=True)
        runtime = self.bin / "nvidia-container-runtime"
        runtime.write_text('#!/bin/sh\nexec runc "$@"\n')
        runtime.chmod(0o755)
        path = [self.bin, self.root / "usr/bin", self.root / "usr/sbin"]
        self.environment = {**os.environ, "PATH": ":".join([*map(str, path), os.environ["PATH"]])}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Pid of dockerd itself."""
        return int((self.folder / "pid").read_text())

    def start(self, seconds: float = 30.0) -> bool:
        """Start it; True when it answers."""
        command = [
            "dockerd",
            f"--config-file={self.config}",
            f"--data-root={self.folder / 'data'}",
            f"--exec-root={self.sockets / 'exec'}",
            f"--pidfile={self.folder / 'pid'}",
            f"--host=unix://{self.socket}",
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
            *self.flags,
        ]
        self.socket.unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if self.socket.exists() and self.docker("version", check=False).returncode == 0:
                return True
            time.sleep(0.2)
        self.stop()
        return False

    def stop(self) -> None:
        """End it and wait; containers end with it unless live-restore is on."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run docker's own client against it."""
        return subprocess.run(
            ["docker", "-H", f"unix://{self.socket}", *arguments],
            check=check,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.environment,
        )

    def add_image(self, name: str = "tiny:1") -> None:
        """Make an image of busybox, without a registry."""
        tree = self.folder / "image"
        (tree / "bin").mkdir(parents=True, exist_ok=True)
        shutil.copy(self.root / "bin/busybox", tree / "bin/busybox")
        for applet in ("sh", "sleep", "df", "true"):
            link = tree / "bin" / applet
            if not link.is_symlink():
                link.symlink_to("busybox")
        archive = self.folder / "image.tar"
        subprocess.run(["tar", "-C", str(tree), "-cf", str(archive), "."], check=True, timeout=60)
        self.docker("import", str(archive), name)

    def run(self, *arguments: str) -> str:
        """docker run without a network; returns what it prints."""
        return self.docker("run", "--network=none", *arguments).stdout

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def remove(self) -> None:
        """Stop it, its containers, and what it has mounted."""
        if self.process is not None:
            ids = self.docker("ps", "-q", check=False).stdout.split()
            if ids:
                self.docker("rm", "-f", *ids, check=False)
        self.stop()
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        for mount in sorted((line.split()[1] for line in mounts), reverse=True):
            if mount.startswith((f"{self.folder}/", f"{self.sockets}/")):
                subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.sockets)


def run_of(daemon: RealDocker, started: list[list[str]]) -> Any:
    """A ``run`` for containerhost.Host: restarts of docker go to this daemon, everything else is real.

    started: gets every command.
    """
    from ansible_collections.gpu.provision.plugins.module_utils.containers import host as containers_host

    def run(
        argv: list[str], timeout: float = 60.0, user: Any = None, fds: tuple[int, ...] = ()
    ) -> tuple[int, str, str]:
        started.append(list(argv))
        if "restart" in argv and "docker" in argv:
            daemon.stop()
            return (0, "", "") if daemon.start(15) else (1, "", daemon.log()[-600:])
        if argv[0] in ("systemctl", "journalctl"):
            return 1, "", ""
        answer: tuple[int, str, str] = containers_host.start(argv, timeout, user, fds)
        return answer

    return run
