"""Debian's real docker and containerd on simulated hosts whose base is Debian.

Either installed with dpkg, as a person had them, or put into the lab's archive, for apt to find them there.
"""

from __future__ import annotations

import io
import lzma
import shlex
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..debfile import File, Package
from ..paths import CACHE
from .daemons import NoDaemonsError, binaries

if TYPE_CHECKING:
    from ..lab import LabHost

# With what they depend on beyond the base image (source: apt-cache show on Debian 12).
PACKAGES = (
    "docker.io",
    "containerd",
    "runc",
    "tini",
    "iptables",
    "libip4tc2",
    "libip6tc2",
    "libxtables12",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "netbase",
    "libseccomp2",
    "libdevmapper1.02.1",
    "dmsetup",
    "lsb-base",
)
# What a container in a container cannot have; people's own files have other keys.
DAEMON_JSON = '{\n  "bridge": "none",\n  "iptables": false,\n  "ip6tables": false,\n  "labels": ["rack=7"]\n}\n'


def fetch() -> Path:
    """Folder with the packages, fetched once from this machine's own mirror. Raises NoDaemonsError."""
    folder = CACHE / "daemons" / "host"
    folder.mkdir(parents=True, exist_ok=True)
    if len(list(folder.glob("*.deb"))) < len(PACKAGES):
        got = subprocess.run(
            ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *PACKAGES],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if got.returncode != 0:
            raise NoDaemonsError(f"apt-get download: {got.stderr.strip().splitlines()[-1:]}")
    return folder


def packages(codename: str) -> list[Package]:
    """The same packages for the lab's archive (``lab.publish(packages=...)``), in the suite of a release."""
    return [_package(path, codename) for path in sorted(fetch().glob("*.deb"))]


def _package(path: Path, codename: str) -> Package:
    parts = _parts(path.read_bytes())
    control = _members(parts["control"])
    fields = dict(
        line.split(": ", 1)
        for line in control.pop("control").data.decode().splitlines()
        if ": " in line and not line.startswith(" ")
    )
    name, version, arch = (fields.pop(key) for key in ("Package", "Version", "Architecture"))
    kept = ("Depends", "Pre-Depends", "Provides", "Breaks", "Replaces", "Conflicts", "Section", "Multi-Arch")
    conffiles = control.pop("conffiles", File()).data.decode().split()
    scripts = {
        script: control[script].data.decode()
        for script in ("preinst", "postinst", "prerm", "postrm", "triggers")
        if script in control
    }
    return Package(
        name,
        version,
        arch,
        {key: fields[key] for key in kept if key in fields},
        {"/" + member: file for member, file in _members(parts["data"]).items()},
        scripts,
        conffiles,
        "Debian's own, in the lab's archive",
        "universe",
        (codename,),
    )


def _parts(deb: bytes) -> dict[str, bytes]:
    """control and data of a .deb as tar archives."""
    found, at = {}, 8
    while at < len(deb):
        name, size = deb[at : at + 16].decode().strip(), int(deb[at + 48 : at + 58])
        body = deb[at + 60 : at + 60 + size]
        if name.rstrip("/").endswith(".tar.xz"):
            found[name.split(".")[0]] = lzma.decompress(body)
        at += 60 + size + size % 2
    return found


def _members(archive: bytes) -> dict[str, File]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {}
        for member in tar:
            path = member.name.removeprefix("./").lstrip("/")
            if member.issym():
                found[path] = File(link=member.linkname)
            elif member.isfile():
                content = tar.extractfile(member)
                found[path] = File(content.read() if content else b"", member.mode & 0o777)
    return found


def install_docker(host: LabHost, daemon_json: str = DAEMON_JSON) -> None:
    """Install docker.io on a running host and start it; daemon_json is there before. Raises NoDaemonsError."""
    from ..engine import engine

    folder = fetch()
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
