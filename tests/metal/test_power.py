"""Power cuts while a driver is updated: whatever was on the disk at that moment boots, and the next run finishes.

One transaction gives all points: QEMU is stopped (SIGSTOP) for the moment in which its disk is copied, so the copy is what a cut
would have left. METAL_CUTS is the number of points that are tried, spread over the transaction.
"""

from __future__ import annotations

import os
import shutil
import signal
import time

import pytest

from tests.faults.conftest import driver_packages, holds

from .conftest import UNFINISHED, Command
from .disk import VERSIONS
from .guest import Guest

pytestmark = pytest.mark.metal
POINTS = int(os.environ.get("METAL_CUTS", "4"))
FOREIGN = "lsb-release"
WORK = "dpkg|update-initramf|cpio|depmod|apt-get|dkms"


@UNFINISHED
def test_power_cuts_in_a_transaction(held, base, start, archive, tmp_path):
    guest, command = start(backing=held.image)
    guest.run(f"apt-mark hold {FOREIGN}")
    archive.publish_driver()
    wanted = ("-e", f"nvidia_driver_version={VERSIONS[1]}")
    points = []
    process = command.start("apply", "--yes", *wanted)
    while process.poll() is None:
        at_work = set(guest.run(f"pgrep -l -x '{WORK}' | cut -d' ' -f2", check=False).stdout.split())
        if at_work & {"dpkg", "update-initramf", "depmod"}:
            copy = tmp_path / f"point{len(points)}.qcow2"
            guest.process.send_signal(signal.SIGSTOP)
            shutil.copyfile(guest.image, copy)
            guest.process.send_signal(signal.SIGCONT)
            points.append((copy, sorted(at_work)))
        time.sleep(1)
    assert process.returncode == 0, process.communicate()[0]
    guest.cut()
    assert len(points) >= POINTS

    for number in range(POINTS):
        copy, at_work = points[number * len(points) // POINTS]
        cut = Guest(tmp_path / f"cut{number}", base, backing=copy)
        try:
            seconds = cut.boot()
            cut.use(archive)
            unfinished = len(cut.run("dpkg --audit").stdout.splitlines())
            print(
                f"cut {number} during {', '.join(at_work)}: booted in {seconds:.0f} s, {unfinished} lines of dpkg --audit"
            )
            assert FOREIGN in holds(cut)
            again = Command(cut, tmp_path / f"state{number}")
            assert again.host("rescue", "--yes")["status"] in ("rescued", "well")
            assert FOREIGN in holds(cut) and set(driver_packages(cut)) <= holds(cut)
            assert not cut.run("dpkg --audit").stdout
            assert again.host("apply", "--yes", *wanted)["status"] in ("done", "unchanged")
            assert set(driver_packages(cut).values()) <= {
                v for v in driver_packages(cut).values() if VERSIONS[0] not in v
            }
            assert cut.ssh("nvidia-smi -L").stdout.count("GPU ") == 2
        finally:
            cut.cut()
