"""NVIDIA's own driver for the guests: its kernel modules, nvidia-smi, NVML and firmware, of Debian's non-free packages.

Built outside the guest (compiling takes 80 s here and hours under emulation) for the first kernel of the disk, at the two versions
that Debian offers, and kept beside the disk. In the guest they have Ubuntu's names and relations.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.lab import archive as lab_archive
from tests.lab import repos
from tests.lab.debfile import File, Package
from tests.lab.engine import run
from tests.lab.paths import CACHE, fingerprint_of
from tests.lab.setup import say

from .archive import RELEASE
from .archive import _restricted as restricted
from .disk import FLAVOUR, Disk, sources
from .fakegpu import BAR_READ, Card

SERIES = "535-server"
LIB = "/usr/lib/x86_64-linux-gnu"
# NV_PMC_BOOT_0 and NV_PMC_BOOT_42 of a GH100: what NVIDIA's module asks before it takes a card.
REGISTERS = {0x0: 0x180000A1, 0xA00: 0x180A1000}


class Chip(Card):
    """A card that NVIDIA's module takes for an H100, and that does not answer when it is initialised."""

    def _answer(self, command: int, body: bytes) -> int:
        if command != BAR_READ:
            return super()._answer(command, body)
        (at,) = struct.unpack_from("<Q", body)
        (first,) = struct.unpack_from("<I", self.space, 0x10)
        return REGISTERS.get(at - (first & ~0xF), 0)


@dataclass(frozen=True)
class Real:
    """What was built: a folder for each version, with Debian's files and the modules."""

    folder: Path
    kernel: str

    @cached_property
    def versions(self) -> tuple[str, str]:
        """The older and the newer one, such as 535.261.03 and 535.309.01."""
        older, newer = json.loads((self.folder / "versions.json").read_text())
        return older, newer

    def packages(self, version: str) -> list[Package]:
        """Ubuntu's packages of this version; what NVIDIA made of them is NVIDIA's, the rest stays simulated."""
        data = next(row[1] for row in lab_archive.sources(RELEASE) if row[0] == SERIES)
        built = lab_archive.driver_set(RELEASE, SERIES, data, version, False, newer=version == self.versions[1])
        place = self.folder / version
        own = {
            "/usr/bin/nvidia-smi": "usr/lib/nvidia/current/nvidia-smi",
            f"{LIB}/libnvidia-ml.so.{version}": f"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.{version}",
            # that of Ampere and later; Turing's stays simulated
            f"/usr/lib/firmware/nvidia/{version}/gsp_ga10x.bin": f"lib/firmware/nvidia/{version}/gsp_ga10x.bin",
        }
        for package in built:
            for path in set(own) & set(package.files):
                package.files[path] = File((place / own[path]).read_bytes(), 0o755 if "/bin/" in path else 0o644)
        return [*built, *self._modules(version)]

    def _modules(self, version: str) -> list[Package]:
        """As ``linux-modules-nvidia-535-server-<kernel>``, and what leads to it."""
        name, common = f"linux-modules-nvidia-{SERIES}", f"nvidia-kernel-common-{SERIES}"
        folder = f"/lib/modules/{self.kernel}/kernel/nvidia-{SERIES}"
        files: dict[str, File | str] = {
            f"{folder}/{path.name}": File(path.read_bytes()) for path in (self.folder / version / "modules").iterdir()
        }
        number = f"{version}+1"
        needs = f"{common} (<= {version}-1), {common} (>= {version})"
        after = f'#!/bin/sh\nset -e\nif [ "$1" = configure ]; then depmod {self.kernel}; fi\n'
        modules = restricted(f"{name}-{self.kernel}", number, needs, files, {"postinst": after})
        meta = restricted(f"{name}-{FLAVOUR}", number, f"{name}-{self.kernel} (= {number}), {needs}", {}, {})
        meta.fields["Provides"] = f"nvidia-dkms-{SERIES} (= {version}), nvidia-prebuilt-kernel"
        return [modules, meta]


def real(disk: Disk) -> Real:
    """The two versions, built where this recipe has not been built for this kernel before: some five minutes."""
    kernel = disk.kernels[0]
    folder = CACHE / "metal" / f"real-{fingerprint_of(extra=_script(kernel))}"
    with repos.locked("metal-real"):
        if not (folder / "versions.json").exists():
            say(f"building NVIDIA's modules for {kernel} in {folder}: some five minutes")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _build(folder, kernel)
    return Real(folder, kernel)


def _script(kernel: str) -> str:
    """Run in the tree: the two versions, their files and their modules below /real."""
    packages = " ".join(
        f"{name}=$v" for name in ("nvidia-kernel-dkms", "nvidia-smi", "libnvidia-ml1", "firmware-nvidia-gsp")
    )
    return f"""#!/bin/sh
set -eu
chroot "$1" sh -eu <<'END'
mkdir /real
for v in $(apt-cache madison nvidia-kernel-dkms | cut -d'|' -f2 | sort -uV | tail -2); do
    version=${{v%%-*}}
    mkdir /real/$version && cd /real/$version
    apt-get download -qq {packages}
    for deb in *.deb; do dpkg-deb -x $deb . && rm $deb; done
    make -s -C usr/src/nvidia-current-$version -j{os.cpu_count()} modules KERNEL_UNAME={kernel} >log 2>&1 || {{ tail log; exit 1; }}
    mkdir modules && mv usr/src/nvidia-current-$version/*.ko modules
    strip -g modules/*.ko
    rm -r usr/src
done
END
"""


def _build(folder: Path, kernel: str) -> None:
    tree, script = folder / "tree", folder / "build.sh"
    script.write_text(_script(kernel))
    script.chmod(0o755)
    wanted = f"linux-headers-{kernel},make,gcc,libc6-dev,kmod"
    # the same suites as the disk's, and their non-free part
    lines = [" ".join([*line.split()[:3], "main contrib non-free non-free-firmware"]) for line in sources()]
    run(
        ["nice", "mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=directory"]
        + [f"--include={wanted}", '--aptopt=Acquire::Languages "none"', "--dpkgopt=force-unsafe-io"]
        + [f"--customize-hook={script}", "bookworm", str(tree), *lines],
        timeout=1800,
    )
    names = (path.name for path in (tree / "real").iterdir())
    versions = sorted(names, key=lambda name: [int(part) for part in name.split(".")])
    for version in versions:
        shutil.move(tree / "real" / version, folder / version)
    shutil.rmtree(tree)
    (folder / "versions.json").write_text(json.dumps(versions))
