"""The rescue at a console with Ubuntu's own Python, dpkg and apt; the hardware is a few files."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from provision.rescue.offline import Known, of_packages, offline_script
from tests.lab import kofile

from .packages import NEW, OLD, driver, names, pinned
from .rootfs import Repo, Root

pytestmark = pytest.mark.rootfs
KERNEL = "6.8.0-45-generic"


def machine(root: Root) -> None:
    """A GPU, a kernel that boots next, and the programs of a kernel's system, each leaving a line in /ran."""
    card = "/sys/bus/pci/devices/0000:01:00.0"
    for name, text in (("vendor", "0x10de"), ("device", "0x2330"), ("class", "0x030200")):
        root.write(f"{card}/{name}", text + "\n")
    root.write("/boot/grub/grub.cfg", f"menuentry 'Ubuntu' {{\n  linux /boot/vmlinuz-{KERNEL} root=/dev/sda1\n}}\n")
    root.write(f"/boot/vmlinuz-{KERNEL}", "")
    root.write(f"/boot/initrd.img-{KERNEL}", "")
    for program in ("update-initramfs", "depmod", "modprobe", "dkms"):
        root.write(f"/usr/sbin/{program}", f'#!/bin/sh\necho {program} "$@" >>/ran\n')
        (root.path / f"usr/sbin/{program}").chmod(0o755)


def hold_absent(root: Root, name: str) -> None:
    """A hold on a package that is not there, as apt-mark hold with a pattern leaves it (G2)."""
    row = f"\nPackage: {name}\nStatus: hold ok not-installed\nPriority: optional\nSection: misc\nArchitecture: amd64\n"
    root.write("/var/lib/dpkg/status", root.read("/var/lib/dpkg/status") + row)


def files_of_driver(root: Root, version: str) -> None:
    """What the test's small packages do not have: libraries and a module of a version."""
    folder = "/usr/lib/x86_64-linux-gnu"
    root.write(f"{folder}/libnvidia-ml.so.{version}", "")
    link = root.path / f"{folder[1:]}/libnvidia-ml.so.1"
    link.unlink(missing_ok=True)
    link.symlink_to(f"libnvidia-ml.so.{version}")
    module(root, version)


def module(root: Root, version: str) -> None:
    """The module that DKMS would have built for the kernel that boots next."""
    path = root.path / f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(kofile.build([("license", "Dual MIT/GPL"), ("version", version)]))


def run(
    root: Root,
    *words: str,
    known: Known | None = None,
    answers: str = "",
    rc: int | None = None,
    values: dict[str, Any] | None = None,
) -> str:
    """Run the script inside; returns what it printed. values: the inventory's variables."""
    root.write("/root/rescue.py", offline_script("gpu01", values or {}, known))
    done = subprocess.run(
        root.argv("python3", "/root/rescue.py", *words),
        capture_output=True,
        text=True,
        input=answers,
        timeout=120,
        env={"HOME": "/root", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    said = done.stdout + done.stderr
    assert rc is None or done.returncode == rc, f"exit {done.returncode}\n{said}"
    return said


def names_of_state(host: Root) -> list[Path]:
    """What the host keeps of runs: its setup made transactions, and no snapshot."""
    return sorted((host.path / "var/lib/gpu-provision").rglob("*"))


def test_looks_and_changes_nothing(host: Root) -> None:
    machine(host)
    hold_absent(host, "libnvidia-gl-570")
    before, state = host.read("/var/lib/dpkg/status"), names_of_state(host)
    said = run(host, "--look", rc=3)
    assert "holds.not_installed" in said and "driver.library_missing" in said, said
    dry = run(host, "--dry-run", rc=0)
    assert "Nothing was changed." in dry
    assert names_of_state(host) == state and not (host.path / "ran").exists()
    assert host.read("/var/lib/dpkg/status") == before


def test_finishes_what_dpkg_left_and_stops_there(root: Root, repo: Repo) -> None:
    machine(root)
    script = "[ -e /cured ] || exit 10\n"
    repo.add("lab-tool", "1.0")
    driver(repo, "580", NEW, postinst=script)
    repo.publish()
    root.module("apt_sources", **repo.spec())
    failed = root.module("apt_transaction", install=pinned("580", NEW), update_cache=True, reserve_mib=1)
    assert failed.get("failed"), failed
    files_of_driver(root, "580.126.20")
    root.write("/cured", "")
    said = run(root, "-y", rc=0)
    assert "dpkg.unfinished" in said and "correct from the next boot on: 580.126.20" in said, said
    assert {name: root.selections()[name] for name in names("580")} == dict.fromkeys(names("580"), f"hi {NEW}")
    rows = root.module("rescue_snapshot", action="list")["snapshots"]
    assert [(row["whole"], row["finished"]) for row in rows] == [(True, True)], rows
    again = run(root, "-y", rc=0)
    assert "dpkg.unfinished" not in again, again


def test_its_snapshot_is_one_that_undo_goes_back_to(host: Root) -> None:
    machine(host)
    files_of_driver(host, "580.126.20")
    host.write('/etc/modprobe.d/it\'s "odd".conf', "options x y=1\n")
    host.sh("apt-mark auto libnvidia-compute-550 >/dev/null; apt-mark hold lab-tool >/dev/null")
    before = host.selections()
    wanted = Known(
        series="580",
        flavour="open",
        build="dkms",
        packages=dict(i.split("=") for i in pinned("580", NEW)),
        source="a test",
    )
    files_of_driver(host, "550.163.01")
    module(host, "580.126.20")
    host.write(f"/lib/modules/{KERNEL}/build", "")
    said = run(host, "-y", known=wanted)
    now = host.selections()
    assert (now.get("nvidia-utils-580"), now["lab-tool"]) == (f"hi {NEW}", "hi 1.0"), said
    id_ = host.module("rescue_snapshot", action="list")["snapshots"][0]["id"]
    manifest = json.loads(host.read(f"/var/lib/gpu-provision/snapshots/{id_}/manifest.json"))
    entry = next(e for e in manifest["files"] if "odd" in e["path"])
    assert entry["path"] == '/etc/modprobe.d/it\'s "odd".conf' and entry["mode"] == 0o644
    assert host.module("rescue_snapshot", check=True, action="undo", id=id_)["left"] == []
    dry = run(host, "--undo", "--dry-run", rc=0)
    assert "Nothing was changed." in dry and host.selections() == now, dry
    declined = run(host, "--undo", answers="n\n", rc=5)
    assert "left out" in declined and host.selections() == now, declined
    undone = run(host, "-y", "--undo", rc=0)
    assert "The earlier state is restored." in undone and host.selections() == before, undone


def test_a_library_that_was_removed_by_force_comes_back_with_its_hold(host: Root) -> None:
    machine(host)
    host.write(f"/lib/modules/{KERNEL}/build", "")
    before = host.selections()
    host.sh("dpkg --force-all --remove libnvidia-compute-550 2>&1")
    said = run(host, "-y")
    assert "driver.library_missing" in said and "+ install libnvidia-compute-550" in said, said
    assert host.selections() == before, said


def test_without_a_snapshot_there_is_no_way_back(host: Root) -> None:
    said = run(host, "-y", "--undo", rc=1)
    assert "snapshot.none" in said, said


def test_what_was_interrupted_is_finished_by_the_next_run(root: Root, repo: Repo) -> None:
    machine(root)
    repo.add("lab-tool", "1.0")
    # The kernel's hook of the DKMS package takes its time.
    driver(repo, "580", NEW, postinst="[ -e /go ] || { touch /begun; while [ ! -e /go ]; do sleep 0.2; done; }\n")
    repo.publish()
    root.module("apt_sources", **repo.spec())
    root.write(f"/lib/modules/{KERNEL}/build", "")
    root.write(
        "/root/rescue.py", offline_script("gpu01", {}, of_packages(dict(i.split("=") for i in pinned("580", NEW)), "x"))
    )
    begun = subprocess.Popen(root.argv("python3", "/root/rescue.py", "-y"), stdout=subprocess.PIPE, text=True)
    root.wait_for((root.path / "begun").exists)
    begun.send_signal(signal.SIGTERM)
    said = begun.communicate(timeout=60)[0]
    assert begun.returncode == 130 and "run this again" in said, said
    root.write("/go", "")
    again = run(root, "-y", known=of_packages(dict(i.split("=") for i in pinned("580", NEW)), "a test"))
    assert "Continuing with the snapshot of an interrupted run" in again, again
    assert {name: root.selections()[name] for name in names("580")} == dict.fromkeys(names("580"), f"hi {NEW}"), again
    # Two that begin in the same second are told apart by a number, which does not sort by name.
    logs = sorted((root.path / "var/log/gpu-provision").glob("offline-*.log"), key=lambda path: path.stat().st_mtime_ns)
    assert len(logs) == 2 and "Interrupted." in logs[0].read_text()


def test_a_damaged_file_touches_nothing(host: Root) -> None:
    machine(host)
    hold_absent(host, "libnvidia-gl-570")
    before = host.read("/var/lib/dpkg/status")
    text = offline_script("gpu01", {})
    host.write("/root/rescue.py", text[: len(text) // 2])
    done = subprocess.run(host.argv("python3", "/root/rescue.py", "-y"), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (64, "") and "is damaged" in done.stderr
    assert host.read("/var/lib/dpkg/status") == before and not list(host.path.glob("var/log/gpu-provision/offline-*"))


def test_declined_means_untouched(host: Root) -> None:
    machine(host)
    hold_absent(host, "libnvidia-gl-570")
    before, state = host.read("/var/lib/dpkg/status"), names_of_state(host)
    said = run(host, answers="n\nn\nn\n", rc=5)
    assert "left out" in said, said
    assert host.read("/var/lib/dpkg/status") == before
    assert names_of_state(host) == state


def test_packages_from_a_stick(root: Root, repo: Repo) -> None:
    machine(root)
    repo.add("lab-tool", "1.0")
    driver(repo, "550", OLD)
    stick = root.path / "media/usb stick/debs"
    stick.parent.mkdir(parents=True)
    shutil.move(repo.folder, stick)
    known = of_packages(dict(item.split("=") for item in pinned("550", OLD)), "a test")
    assert known is not None
    root.write(f"/lib/modules/{KERNEL}/build", "")
    said = run(root, "-y", "--debs", "media/usb stick", known=known)
    assert {name: root.selections()[name] for name in names("550")} == dict.fromkeys(names("550"), f"hi {OLD}"), said
    assert root.selections()["lab-tool"] == "ii 1.0"


def test_without_network_and_packages_it_says_what_to_bring(root: Root) -> None:
    machine(root)
    known = of_packages(dict(item.split("=") for item in pinned("550", OLD)), "a test")
    said = run(root, "-y", known=known, rc=3)
    assert "nvidia-utils-550=550.163.01-0ubuntu1" in said and "--debs DIR" in said, said


def test_purge_takes_the_driver_alone(host: Root, repo: Repo) -> None:
    machine(host)
    for name in ("linux-image-6.8.0-1010-nvidia", "nvidia-container-toolkit", "cuda-toolkit-12-8"):
        repo.add(name, "1.0")
    repo.publish()
    host.sh(
        "apt-get -q update && apt-get install -q -y linux-image-6.8.0-1010-nvidia nvidia-container-toolkit cuda-toolkit-12-8"
    )
    host.sh("apt-mark hold nvidia-container-toolkit >/dev/null")
    files_of_driver(host, "550.163.01")
    host.write("/usr/bin/nvidia-smi", "#!/bin/sh\nexit 0\n")
    host.write("/usr/bin/nvidia-uninstall", '#!/bin/sh\necho uninstall "$@" >>/ran\nexit 0\n')
    (host.path / "usr/bin/nvidia-uninstall").chmod(0o755)
    host.write("/usr/lib/x86_64-linux-gnu/libnvidia-container.so.1", "")
    # As the loader's cache says it where /lib is a link.
    cached = "\tlibnvidia-ml.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-ml.so.1"
    host.write("/usr/sbin/ldconfig", f"#!/bin/sh\necho '{cached}'\n")
    (host.path / "usr/sbin/ldconfig").chmod(0o755)
    host.write("/etc/X11/xorg.conf", "# nvidia-xconfig: X configuration file generated by nvidia-xconfig\n")
    refused = run(host, "-y", rc=5)
    assert "driver.two_installers" in refused, refused
    known = of_packages(dict(item.split("=") for item in pinned("580", NEW)), "a test")
    host.write(f"/lib/modules/{KERNEL}/build", "")
    before = host.selections()
    dry = run(host, "--dry-run", "--purge", known=known, rc=0)
    assert "would remove /usr/bin/nvidia-uninstall" in dry and host.selections() == before, dry
    said = run(host, "-y", "--purge", known=known)
    now = host.selections()
    assert not [name for name in now if "550" in name], said
    assert now["nvidia-utils-580"] == f"hi {NEW}", said
    assert now["nvidia-container-toolkit"] == "hi 1.0"
    assert host.sh(
        "dpkg-query -W -f '${db:Status-Abbrev}' linux-image-6.8.0-1010-nvidia cuda-toolkit-12-8"
    ).split() == ["ii", "ii"]
    for path in ("usr/bin/nvidia-uninstall", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "etc/X11/xorg.conf"):
        assert not (host.path / path).exists(), f"{path}\n{said}"
    assert (host.path / "usr/lib/x86_64-linux-gnu/libnvidia-container.so.1").exists()
    ran = host.read("/ran").splitlines()
    assert ran[0] == "uninstall -s" and "update-initramfs -u -k all" in ran
    kept = next(Path(host.path / "var/lib/gpu-provision/snapshots").glob("2*"))
    assert (kept / "files/etc/X11/xorg.conf").exists()


def test_purge_is_refused_where_something_depends_on_the_driver(host: Root, repo: Repo) -> None:
    machine(host)
    repo.add("lab-studio", "1.0", Depends="nvidia-utils-550")
    repo.publish()
    host.sh("apt-get -q update && apt-get install -q -y lab-studio")
    before = host.selections()
    said = run(host, "-y", "--purge", rc=5)
    assert "lab-studio" in said and host.selections() == before, said


def test_purge_of_a_half_unpacked_package(host: Root, repo: Repo) -> None:
    machine(host)
    status = host.read("/var/lib/dpkg/status")
    at = status.index("Package: nvidia-utils-550\n")
    host.write(
        "/var/lib/dpkg/status",
        status[:at] + status[at:].replace("hold ok installed", "hold reinstreq half-installed", 1),
    )
    repo.stanzas = []
    driver(repo, "580", NEW)
    repo.publish()
    host.sh("apt-get -q update")
    host.write(f"/lib/modules/{KERNEL}/build", "")
    known = of_packages(dict(item.split("=") for item in pinned("580", NEW)), "a test")
    said = run(host, "-y", "--purge", known=known)
    assert host.selections() == {"lab-tool": "ii 1.0"} | dict.fromkeys(names("580"), f"hi {NEW}"), said


def test_one_of_two_contradicting_sources_stays(host: Root, repo: Repo) -> None:
    machine(host)
    host.write("/etc/apt/sources.list.d/twice.list", f"deb {repo.uri} /\ndeb file:/srv/other /\n")
    said = run(host, "-y")
    assert "apt.signed_by_conflict" in said, said
    left = host.read("/etc/apt/sources.list.d/twice.list")
    assert left == f"# taken out by gpu-provision: deb {repo.uri} /\ndeb file:/srv/other /\n", said


def from_outside(root: Root, version: str = "580.159.04", *, loaded: str = "") -> None:
    """A driver that apt does not own, as images bring it: libraries and nvidia-smi below /usr/local/nvidia, a loaded module
    of which no file is on the disk, and one of the driver's companions from apt."""
    folder = "/usr/local/nvidia/lib64"
    for name in ("libnvidia-ml.so", "libcuda.so"):
        root.write(f"{folder}/{name}.{version}", "")
        (root.path / folder[1:] / f"{name}.1").symlink_to(f"{name}.{version}")
    # The real one fails like this one where the loader does not find its library.
    smi = f"#!/bin/sh\ncase $LD_LIBRARY_PATH in {folder}*) exit 0 ;; esac\nexit 12\n"
    root.write("/usr/local/nvidia/bin/nvidia-smi", smi)
    (root.path / "usr/local/nvidia/bin/nvidia-smi").chmod(0o755)
    root.write("/sys/module/nvidia/version", (loaded or version) + "\n")


def companion(root: Root, repo: Repo) -> None:
    """libxnvctrl0 from apt, and a driver that apt could install."""
    repo.add("lab-tool", "1.0")
    repo.add("libxnvctrl0", "510.47.03-0ubuntu4")
    repo.add(f"linux-headers-{KERNEL}", "6.8.0-45.45")
    driver(repo, "580", NEW)
    repo.publish()
    root.module("apt_sources", **repo.spec())
    root.sh("apt-get -q update && apt-get install -q -y libxnvctrl0")


def test_a_driver_from_outside_apt_that_works_is_well(root: Root, repo: Repo) -> None:
    machine(root)
    companion(root, repo)
    from_outside(root)
    before = root.read("/var/lib/dpkg/status")
    for words in (["--look"], ["--dry-run"], ["-y"]):
        said = run(root, *words, rc=0)
        assert "libraries 580.159.04" in said and "loaded 580.159.04" in said, said
        assert "/usr/local/nvidia/lib64/libnvidia-ml.so.1 of no package" in said and "it works" in said, said
        assert "driver.missing" not in said and "Bring the driver" not in said, said
        assert "--purge removes it" not in said, said
    refused = run(root, "-y", "--purge", rc=5)
    assert "where --purge removes nothing" in refused, refused
    assert root.read("/var/lib/dpkg/status") == before
    assert (root.path / "usr/local/nvidia/bin/nvidia-smi").exists()


def test_a_driver_from_outside_apt_that_is_broken_is_left_alone(root: Root, repo: Repo) -> None:
    machine(root)
    companion(root, repo)
    from_outside(root, loaded="570.1")
    hold_absent(root, "libnvidia-gl-570")
    said = run(root, "-y", values={"nvidia_driver_branch": "580"}, rc=5)
    assert "driver.stale_module" in said and "it came from outside apt" in said, said
    assert "holds.not_installed" in said and "libnvidia-gl-570" not in root.selections(), said
    assert not [name for name in root.selections() if "580" in name], said


def test_a_driver_that_no_package_brings_and_works_beside_apts(host: Root) -> None:
    machine(host)
    files_of_driver(host, "570.1")
    host.write("/sys/module/nvidia/version", "570.1\n")
    host.write("/usr/bin/nvidia-smi", "#!/bin/sh\nexit 0\n")
    (host.path / "usr/bin/nvidia-smi").chmod(0o755)
    (host.path / f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko").unlink()
    before = host.selections()
    said = run(host, "-y", values={"nvidia_driver_branch": "580"})
    assert "driver.two_installers" in said and "is not changed" in said, said
    assert host.selections() == before, said


def test_a_driver_that_is_not_managed_is_only_looked_at(host: Root, repo: Repo) -> None:
    machine(host)
    hold_absent(host, "libnvidia-gl-570")
    hold_absent(host, "lab-late")
    host.write(
        "/var/lib/dpkg/status",
        host.read("/var/lib/dpkg/status").replace(
            "Package: lab-tool\nStatus: install ok installed", "Package: lab-tool\nStatus: install ok unpacked"
        ),
    )
    (host.path / f"boot/initrd.img-{KERNEL}").unlink()
    before = {name: state for name, state in host.selections().items() if name != "lab-tool"}
    unmanaged = {"nvidia_driver_manage": False, "nvidia_driver_branch": "580"}
    said = run(host, "-y", values=unmanaged, rc=3)
    assert "nvidia_driver_manage: false" in said, said
    assert "Bring the driver" not in said and "modprobe" not in said, said
    after = host.selections()
    assert after.pop("lab-tool") == "ii 1.0", said
    assert after == before, said
    status = host.read("/var/lib/dpkg/status")
    assert "Package: libnvidia-gl-570\nStatus: hold" not in status, said
    assert f"update-initramfs -c -k {KERNEL}" in host.read("/ran"), said
    purge = run(host, "-y", "--purge", values=unmanaged, rc=5)
    assert "refused" in purge and "nvidia_driver_manage: false" in purge, purge
    assert {name: state for name, state in host.selections().items() if name != "lab-tool"} == before, purge


def test_companions_alone_are_no_driver(root: Root, repo: Repo) -> None:
    machine(root)
    companion(root, repo)
    said = run(root, "--dry-run", rc=0)
    assert "driver.missing" in said and "Bring the driver" not in said and "not known here" in said, said
    requested = run(root, "--dry-run", values={"nvidia_driver_branch": "580"})
    assert "libxnvctrl0" not in requested and "driver.mixed_versions" not in requested, requested


def test_nothing_is_purged_where_nothing_can_follow(host: Root, repo: Repo) -> None:
    machine(host)
    files_of_driver(host, "550.163.01")
    repo.stanzas = []
    repo.publish()
    host.sh("apt-get -q update")
    before = host.selections()
    known = of_packages(dict(item.split("=") for item in pinned("580", NEW)), "a test")
    said = run(host, "-y", "--purge", known=known, rc=5)
    assert "refused before anything was removed" in said and f"nvidia-utils-580={NEW}" in said, said
    assert "--debs DIR" in said and host.selections() == before, said
    assert (host.path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").is_symlink()
