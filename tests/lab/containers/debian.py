"""Debian's real docker and containerd on simulated hosts whose base is Debian: installed with dpkg, as a person had them."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

from ..paths import CACHE
from .daemons import NoDaemonsError, binaries

if TYPE_CHECKING:
    from ..lab import LabHost

# With what they depend on beyond the base image (source: apt-cache show on Debian 12).
PACKAGES = (
    "docker.io", "containerd", "runc", "tini", "iptables", "libip4tc2", "libip6tc2", "libxtables12", "libmnl0",
    "libnetfilter-conntrack3", "libnfnetlink0", "libnftnl11", "netbase", "libseccomp2", "libdevmapper1.02.1", "dmsetup",
    "lsb-base",
)  # fmt: skip
# What a container in a container cannot have; people's own files have other keys.
DAEMON_JSON = (
    '{\n  "bridge": "none",\n  "iptables": false,\n  "ip6tables": false,\n  "labels": ["rack=7"]\n}\n'
)


def install_docker(host: LabHost, daemon_json: str = DAEMON_JSON) -> None:
    """Install docker.io on a running host and start it; daemon_json is there before. Raises NoDaemonsError."""
    from ..engine import engine

    folder = CACHE / "daemons" / "host"
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.glob("*.deb"))) < len(PACKAGES):
        got = subprocess.run(
            ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *PACKAGES], cwd=folder, capture_output=True,
            text=True, timeout=300,
        )  # fmt: skip
        if got.returncode != 0:
            raise NoDaemonsError(f"apt-get download: {got.stderr.strip().splitlines()[-1:]}")
    engine()("cp", str(folder), f"{host.container}:/var/cache/docker-debs")
    host.run("mkdir -p /etc/docker && printf %s " + shlex.quote(daemon_json) + " > /etc/docker/daemon.json")
    # Storage of its own: overlay on overlay does not mount.
    host.run("mkdir -p /var/lib/docker /var/lib/containerd && mount -t tmpfs none /var/lib/docker")
    host.run("mount -t tmpfs none /var/lib/containerd")
    host.run("DEBIAN_FRONTEND=noninteractive dpkg -i /var/cache/docker-debs/*.deb")
    host.run("systemctl start docker")


def add_image(host: LabHost, name: str = "tiny:1") -> None:
    """An image of busybox, made on the host."""
    from ..engine import engine

    engine()("cp", str(binaries() / "bin/busybox"), f"{host.container}:/var/tmp/busybox")
    host.run(
        "cd /var/tmp && mkdir -p image/bin && cp busybox image/bin/ && for a in sh sleep df true; do "
        f"ln -sf busybox image/bin/$a; done && tar -C image -c . | docker import - {shlex.quote(name)}"
    )
