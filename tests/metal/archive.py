"""The guests' archive: the lab's packages with their names and relations, with modules that are really built; and its server."""

from __future__ import annotations

import functools
import hashlib
import http.server
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.lab import aptrepo, archive, contents, kernels, repos
from tests.lab.debfile import File, Package
from tests.lab.releases import RELEASES

from . import source
from .disk import FLAVOUR, VERSIONS, Disk

UBUNTU, SERIES = "24.04", "580-server"
RELEASE = RELEASES[UBUNTU]
SUITE, UPDATES, SECURITY = (RELEASE.codename + suffix for suffix in ("", "-updates", "-security"))
# What the driver's packages lean on. The rest of the lab's ordinary packages would replace real ones by empty ones.
NEEDED = {"jq", "libnvidia-egl-wayland1", "libxnvctrl0", "nvidia-prime", "nvidia-settings", "ocl-icd-libopencl1"}


class Archive:
    """A folder with the signed repository of one test, and the server that guests reach as archive.sim.internal."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self.root, self.disk, self.index = root, disk, aptrepo.Index()
        self.key, _ = repos.keys()
        old, _ = disk.kernels
        needed = [package for package in archive.ordinary(RELEASE, False) if package.name in NEEDED]
        signed = [*modules(disk, VERSIONS[0], old), *metapackages(disk, VERSIONS[0], old)]
        self.publish([*driver(VERSIONS[0]), *signed, *needed])
        handler = functools.partial(_Quiet, directory=str(root))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def publish(self, packages: list[Package]) -> None:
        """Add packages and sign again."""
        aptrepo.add_to_pool(self.root / "ubuntu", packages, self.index)
        repos.sign(self.root, UBUNTU, "archive", self.index, self.key)

    def publish_kernel(self) -> None:
        """The newer kernel, without signed modules for it; its packages are Debian's."""
        _, new = self.disk.kernels
        for deb in sorted((self.disk.folder / "debs").glob("*.deb")):
            path = f"pool/main/l/linux/{deb.name.replace('%3a', '_')}"
            target = self.root / "ubuntu" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(deb.read_bytes())
            control = subprocess.run(
                ["dpkg-deb", "--field", str(deb)], capture_output=True, text=True, check=True
            ).stdout
            data = deb.read_bytes()
            text = f"{control}Filename: {path}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
            for suite in (UPDATES, SECURITY):
                self.index.paragraphs.setdefault(suite, {}).setdefault("main", []).append(text)
        self.publish([*kernel_metapackages(new), nouveau(self.disk, new)])

    def publish_modules(self, kernel: str) -> None:
        """Signed modules of the first driver for a kernel."""
        self.publish([*modules(self.disk, VERSIONS[0], kernel), *metapackages(self.disk, VERSIONS[0], kernel)])

    def publish_driver(self) -> None:
        """The next version of the driver, with signed modules for the first kernel."""
        old, _ = self.disk.kernels
        self.publish(
            [*driver(VERSIONS[1]), *modules(self.disk, VERSIONS[1], old), *metapackages(self.disk, VERSIONS[1], old)]
        )

    @property
    def url(self) -> str:
        return f"http://archive.sim.internal:{self.server.server_address[1]}/ubuntu"

    def sources(self) -> str:
        """What ubuntu.sources holds."""
        return (
            f"Types: deb\nURIs: {self.url}\nSuites: {SUITE} {UPDATES} {SECURITY}\n"
            "Components: main universe restricted multiverse\nSigned-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n"
        )

    def variables(self) -> dict[str, Any]:
        """What an inventory says of it."""
        return {"gpu_mirror_archive_url": self.url, "gpu_mirror_archive_key": self.key.fingerprint}

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the standard library
        """Nothing: the test's own words matter."""


def driver(version: str) -> list[Package]:
    """The archive's packages of the driver, with a source that compiles and DKMS's real way to do it."""
    _, data, first, derived = next(row for row in archive.sources(RELEASE) if row[0] == SERIES)
    built = archive.driver_set(RELEASE, SERIES, data, version, derived, newer=version != first)
    for package in built:
        package.description = f"SIMULATED {package.description}"
        if package.name == f"nvidia-kernel-source-{SERIES}-open":
            folder = f"/usr/src/nvidia-{version}"
            names = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem")
            conf = f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\nAUTOINSTALL="yes"\n' + "".join(
                f'BUILT_MODULE_NAME[{n}]="{name}"\nDEST_MODULE_LOCATION[{n}]="/updates/dkms"\n'
                for n, name in enumerate(names)
            )
            package.files = {f"{folder}/{name}": text for name, text in source.driver(version).items()}
            package.files[f"{folder}/dkms.conf"] = conf
    return built


def modules(disk: Disk, version: str, kernel: str) -> list[Package]:
    """Signed modules for one kernel, built and signed when the disk was."""
    name = f"linux-modules-nvidia-{SERIES}-open-{kernel}"
    folder = f"/lib/modules/{kernel}/kernel/nvidia-{SERIES}-open"
    files: dict[str, File | str] = {
        f"{folder}/{path.name}": File(path.read_bytes())
        for path in (disk.folder / "modules" / version / kernel).iterdir()
    }
    after = f"depmod {kernel}\nif [ -e /boot/initrd.img-{kernel} ]; then update-initramfs -u -k {kernel}; fi\n"
    scripts = contents.scripts_for(
        "linux-modules-nvidia",
        SERIES,
        "open",
        after,
        "",
        f"if [ -d /lib/modules/{kernel} ]; then depmod {kernel}; fi\n",
    )
    return [_restricted(name, _version(kernel, version), _common(version), files, scripts)]


def metapackages(disk: Disk, version: str, kernel: str) -> list[Package]:
    """What leads to the modules of the newest kernel; the first kernel's own metapackages come with it."""
    package_version = _version(kernel, version)
    name = f"linux-modules-nvidia-{SERIES}-open"
    depends = f"{name}-{kernel} (= {package_version}), {_common(version)}"
    full = next(p.version for p in driver(version) if p.name == f"nvidia-utils-{SERIES}")
    meta = _restricted(f"{name}-{FLAVOUR}", package_version, depends, {}, {})
    meta.fields["Provides"] = f"nvidia-dkms-{SERIES}-open (= {full}), nvidia-prebuilt-kernel"
    return [meta, *(kernel_metapackages(kernel) if kernel == disk.kernels[0] else [])]


def kernel_metapackages(kernel: str) -> list[Package]:
    """linux-image-cloud-amd64 and its like: the newer version leads to the newer kernel."""
    rows = {
        f"linux-image-{FLAVOUR}": f"linux-image-{kernel}, linux-modules-extra-{kernel}",
        f"linux-headers-{FLAVOUR}": f"linux-headers-{kernel}",
    }
    return [
        Package(name, _abi(kernel), fields={"Source": "linux-meta", "Depends": depends}, suites=(UPDATES, SECURITY))
        for name, depends in rows.items()
    ]


def nouveau(disk: Disk, kernel: str) -> Package:
    """The stand-in for the kernel's own driver of the cards."""
    (module,) = (disk.folder / "modules/nouveau" / kernel).iterdir()
    return Package(
        f"linux-modules-extra-{kernel}",
        _abi(kernel),
        fields={"Source": "linux", "Depends": f"linux-image-{kernel}"},
        files={f"/lib/modules/{kernel}/kernel/drivers/gpu/drm/nouveau/nouveau.ko": File(module.read_bytes())},
        scripts={"postinst": f'#!/bin/sh\nset -e\nif [ "$1" = configure ]; then depmod {kernel}; fi\n'},
        suites=(UPDATES, SECURITY),
        description="SIMULATED nouveau",
    )


def _abi(kernel: str) -> str:
    """Version of the kernel's packages: 6.1.0-57-cloud-amd64 gives 6.1.0.57."""
    return re.sub(r"^([0-9.]+)-([0-9]+)-.*", r"\1.\2", kernel)


def _version(kernel: str, driver_version: str) -> str:
    return _abi(kernel) + ("" if driver_version == VERSIONS[0] else "+1")


def _common(version: str) -> str:
    return f"nvidia-kernel-common-{SERIES} (<= {version}-1), nvidia-kernel-common-{SERIES} (>= {version})"


def _restricted(
    name: str, version: str, depends: str, files: dict[str, File | str], scripts: dict[str, str]
) -> Package:
    package: Package = kernels._restricted(name, version, depends, {}, files, scripts, (UPDATES, SECURITY))
    package.description = f"SIMULATED {name}"
    return package
