"""Power cuts while apply updates a driver: whatever was on the disk at that moment boots, and the next run finishes.

One apply gives all points: QEMU is stopped (SIGSTOP) while its disk is copied, so the copy is what killing QEMU would have left.
Of these, METAL_CUTS are kept and booted, spread over the transaction.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.faults.conftest import ROOT, driver_packages, holds

from .archive import Archive
from .conftest import Command
from .disk import VERSIONS
from .guest import Guest

pytestmark = pytest.mark.metal
POINTS = int(os.environ.get("METAL_CUTS", "4"))
FOREIGN = "lsb-release"
WANTED = ("apply", "--yes", "-e", "nvidia_driver_update=true", "-e", "nvidia_driver_reboot=never")
JOURNAL = "/var/lib/gpu-provision/transaction.json"
# Runs in the guest: what is at work, and the last line of dpkg's log.
WATCH = """
import os, time
WORK = ("dpkg", "update-initramf", "mkinitramfs", "cpio", "gzip", "depmod")
while True:
    names = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            names.add(open(f"/proc/{entry}/comm").read().strip())
        except OSError:
            pass
    logged = open("/var/log/dpkg.log").read().splitlines()[-1]
    print(" ".join(sorted(name for name in names if name.startswith(WORK))), logged[20:], sep="; ", flush=True)
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def points(held, base, tmp_path_factory):
    """Folder with the disks 0.qcow2, … and seen.json: the holds before, and what was at work at each point."""
    kept = held.image.parent / f"cuts{POINTS}"
    if not (kept / "seen.json").exists():
        folder = tmp_path_factory.mktemp("power")
        archive, guest = Archive(folder / "archive", base), Guest(folder / "guest", base, backing=held.image)
        archive.publish_driver()
        try:
            guest.boot()
            guest.use(archive)
            # The disk was made without waiting for writes; a host's dpkg waits.
            guest.run(f"sed -i /force-unsafe-io/d /etc/dpkg/dpkg.cfg.d/*; apt-mark hold {FOREIGN}; sync")
            before, seen = sorted(holds(guest)), _copies(guest, Command(guest, folder / "state"), folder)
        finally:
            guest.cut()
            archive.close()
        moved = [number for number, (_, new) in enumerate(seen) if new]
        chosen = sorted(
            [*_spread(moved, POINTS // 2), *_spread(sorted({*range(len(seen))} - {*moved}), -(-POINTS // 2))]
        )
        kept.mkdir(exist_ok=True)
        for number, point in enumerate(chosen):
            shutil.move(folder / f"{point}.qcow2", kept / f"{number}.qcow2")
        (kept / "seen.json").write_text(json.dumps({"holds": before, "at": [seen[point][0] for point in chosen]}))
    return kept


def _spread(points: list[int], number: int) -> list[int]:
    return [points[place * len(points) // number] for place in range(number)]


def _copies(guest: Guest, command: Command, folder: Path) -> list[tuple[str, bool]]:
    """Copy the disk again and again while packages change. Of each copy: what was at work, whether dpkg had moved on."""
    seen: list[tuple[str, bool]] = []
    words = ["ssh", "-F", str(guest.folder / "ssh_config"), guest.name, f"sudo python3 -c {shlex.quote(WATCH)}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout and guest.process
        last = watch.stdout.readline().partition("; ")[2]
        process, begun, at = command.start(*WANTED), time.monotonic(), 0.0
        for line in watch.stdout:
            if process.poll() is not None:
                break
            programs, _, logged = line.partition("; ")
            now = time.monotonic()
            if programs and (logged != last or (seen and now - at > 3)):
                guest.process.send_signal(signal.SIGSTOP)
                shutil.copyfile(guest.image, folder / f"{len(seen)}.qcow2")
                guest.process.send_signal(signal.SIGCONT)
                seen.append((f"{now - begun:.0f} s: {programs}; {logged.strip()}", logged != last))
                at, last = now, logged
        watch.kill()
    said = process.communicate()[0]
    print(f"{len(seen)} points in an apply of {time.monotonic() - begun:.0f} s")
    # 6: a reboot is needed
    assert process.returncode in (0, 6), said
    return seen


@pytest.fixture
def cut(points, base, archive, tmp_path, request):
    """A guest that starts from the disk of a point, what the point is called, and the holds of before the apply."""
    archive.publish_driver()
    number, seen = request.param, json.loads((points / "seen.json").read_text())
    guest = Guest(tmp_path / "guest", base, backing=points / f"{number}.qcow2")
    try:
        seconds = guest.boot()
        guest.use(archive)
        yield guest, number, f"\n| {number} | {seen['at'][number]} | {seconds:.0f} s", set(seen["holds"])
    finally:
        guest.cut()


@pytest.mark.parametrize("cut", range(POINTS), indirect=True)
def test_a_cut_host_boots_has_its_holds_or_their_journal_and_is_finished(cut, tmp_path):
    """Every sixth point is finished by the next run."""
    guest, number, point, before = cut
    unfinished = [row for row in guest.run("dpkg --audit").stdout.splitlines() if row.startswith(" ")]
    lifted = before - holds(guest)
    known = json.loads(guest.run(f"cat {JOURNAL}").stdout)["held_before"] if lifted else []
    loaded = guest.module_version() or "no module"
    lost = lifted - set(known)
    print(f"{point}, {loaded} | {len(unfinished)} unfinished, {len(lifted)} holds lifted, {len(lost)} lost |")
    # What the transaction had lifted is in its journal, which the next run restores; what is not ours was never lifted.
    assert not lost and FOREIGN not in lifted
    if number % 6 == 1:
        finish(guest, Command(guest, tmp_path / "state"))


def finish(guest: Guest, command: Command) -> None:
    """The next run: every package at the new version, every hold there, the new module loaded."""
    begun = time.monotonic()
    done = subprocess.run(
        command.argv(*WANTED, "--json"), capture_output=True, text=True, env=command.env, cwd=ROOT, timeout=1800
    )
    assert done.returncode in (0, 6), done.stdout + done.stderr
    status = json.loads(done.stdout)["hosts"]["gpuhost"]["status"]
    lost = {FOREIGN, *driver_packages(guest)} - holds(guest)
    print(f"  next run: {status} in {time.monotonic() - begun:.0f} s, {len(lost)} holds lost")
    assert not lost and not guest.run("dpkg --audit").stdout
    assert not [version for version in driver_packages(guest).values() if VERSIONS[0] in version]
    if status == "reboot_needed":
        guest.reboot()
    assert guest.module_version() == VERSIONS[1]
    assert guest.ssh("nvidia-smi -L").stdout.count("GPU ") == 2
