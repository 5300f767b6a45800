"""The container engine (podman, or docker where only that is there), as root."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LABEL = "gpu-lab"
# Names in /proc, and of the options of nsenter.
_NAMESPACES = {"pid": "pid", "ipc": "ipc", "uts": "uts", "net": "net", "cgroup": "cgroup", "mnt": "mount"}
_ENVIRONMENT = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME=/root",
    "TERM=xterm",
    "container=podman",
)


class LabError(Exception):
    """Something the lab needs is missing or went wrong; the text says what and what to do."""


def as_root(command: list[str]) -> list[str]:
    """The command, with sudo where this process is not root."""
    return command if os.geteuid() == 0 else ["sudo", "-n", *command]


def run(
    command: list[str],
    *,
    check: bool = True,
    timeout: float | None = None,
    data: str | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a command; a failure carries its last words."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, input=data, check=False, pass_fds=pass_fds
        )
    except subprocess.TimeoutExpired as problem:
        raise LabError(f"{' '.join(command[:4])} … did not end within {timeout:.0f} s") from problem
    if check and done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise LabError(f"{' '.join(command[:6])} … failed with {done.returncode}: {words}")
    return done


_images: dict[str, str] = {}


@dataclass(frozen=True)
class Engine:
    """One container engine; its commands take the same words in podman and docker."""

    program: str

    def __call__(
        self, *words: str, check: bool = True, timeout: float | None = None
    ) -> subprocess.CompletedProcess[str]:
        return run(as_root([self.program, *words]), check=check, timeout=timeout)

    @property
    def run_flags(self) -> list[str]:
        """Flags of every container: a runtime and limits that work without CAP_SYS_RESOURCE and on mixed cgroups."""
        flags = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
        if self.program == "podman":
            flags += ["--runtime", "runc", "--http-proxy=false"]
        return flags

    @property
    def boot_flags(self) -> list[str]:
        """Flags of a container that boots systemd and may restart itself."""
        flags = ["--privileged", "--restart=always"]
        if self.program == "podman":
            return [*flags, "--systemd=always"]
        return [*flags, "--cgroupns=private", "--tmpfs", "/run", "--tmpfs", "/tmp", "--stop-signal", "SIGRTMIN+3"]

    def image(self, tag: str) -> str | None:
        """The id of an image, None where there is none. One that was found is not looked for again."""
        if tag not in _images:
            done = self("image", "inspect", "--format", "{{.Id}}", tag, check=False)
            if done.returncode:
                return None
            _images[tag] = done.stdout.strip()
        return _images[tag]

    def forget_images(self) -> None:
        _images.clear()

    def containers(self, *filters: str) -> list[str]:
        """Ids of containers, running or not, by ``label=…`` filters."""
        words = [word for item in filters for word in ("--filter", item)]
        return self("ps", "-a", "-q", "--no-trunc", *words).stdout.split()

    def inspect(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("inspect", container).stdout)[0]
        return found

    def address(self, container: str) -> str:
        """IP address of a container on the engine's network."""
        settings = self.inspect(container)["NetworkSettings"]
        addresses = [
            settings.get("IPAddress"),
            *(net.get("IPAddress") for net in (settings.get("Networks") or {}).values()),
        ]
        found = next((address for address in addresses if address), None)
        if not found:
            raise LabError(f"container {container[:12]} has no address")
        return str(found)

    def inside(self, container: str, words: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
        """Run a command in a container, as root. Its namespaces are entered at once where podman says which process has them.

        ``podman exec`` takes 0.1 processor seconds, and the tests look at a host a thousand times.
        """
        file = _first_process(self, container)
        try:
            place = Path("/proc", file.read_text().strip(), "ns")
            with contextlib.ExitStack() as opened:
                fds = {name: opened.enter_context(open(place / name)).fileno() for name in _NAMESPACES}
                # After a restart the number can be that of another process, in the namespaces of this machine.
                if not os.path.samestat(os.fstat(fds["mnt"]), Path("/proc/self/ns/mnt").stat()):
                    enter = [f"--{_NAMESPACES[name]}=/proc/self/fd/{fd}" for name, fd in fds.items()]
                    argv = ["nsenter", *enter, "env", "-i", *_ENVIRONMENT, *words]
                    return run(argv, check=False, timeout=timeout, pass_fds=tuple(fds.values()))
        except OSError:
            # docker, another user than root, a host that restarts: the engine knows
            pass
        return self("exec", container, *words, check=False, timeout=timeout)

    def remove(self, containers: list[str]) -> None:
        """Stop and remove containers at once, by id."""
        if containers:
            extra = ["-t", "0"] if self.program == "podman" else []
            self("rm", "-f", "-v", *extra, *containers)


@functools.cache
def _first_process(of: Engine, container: str) -> Path:
    """The file with the number of a container's first process."""
    return Path(of.inspect(container).get("PidFile") or "/nonexistent")


@functools.cache
def engine() -> Engine:
    """Podman; docker where there is no podman and a docker daemon answers (LAB_ENGINE chooses)."""
    wanted = os.environ.get("LAB_ENGINE")
    if wanted:
        return Engine(wanted)
    if shutil.which("podman"):
        return Engine("podman")
    if shutil.which("docker") and Engine("docker")("info", check=False).returncode == 0:
        return Engine("docker")
    raise LabError("neither podman nor a docker daemon is there; python -m tests.lab setup installs podman")
