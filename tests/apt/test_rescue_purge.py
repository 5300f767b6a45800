"""A purge with real apt and dpkg: the driver goes, kernels, container toolkit, CUDA and holds of others stay."""

from __future__ import annotations

import json
import time

import pytest

from . import packages
from .rootfs import Repo, Root, kill_session

pytestmark = pytest.mark.rootfs
KERNEL = "6.8.0-1010-nvidia"
# A host as G8 found it: kernels that are called after NVIDIA, the container toolkit, a toolkit, and two branches' remains.
STAYS = {
    f"linux-image-{KERNEL}": {},
    f"linux-modules-{KERNEL}": {},
    f"linux-modules-extra-{KERNEL}": {"Depends": f"linux-modules-{KERNEL}"},
    f"linux-headers-{KERNEL}": {},
    "linux-nvidia": {"Depends": f"linux-image-{KERNEL}"},
    "libnvidia-container1": {},
    "nvidia-container-toolkit": {"Depends": "libnvidia-container1"},
    "cuda-toolkit-12-8": {},
    "libnccl2": {},
}


@pytest.fixture
def field(host: Root, repo: Repo) -> Root:
    """The driver 550 of ``host``, and beside it everything that is called after NVIDIA and is none."""
    for name, fields in STAYS.items():
        repo.add(name, "1.0", **fields)
    # What only the driver's packages keep from autoremove: their kernel, its headers, and here a toolkit too.
    kept = f"linux-image-{KERNEL}, linux-modules-extra-{KERNEL}, linux-headers-{KERNEL}, cuda-toolkit-12-8"
    script = '[ "$1" != purge ] || exit 1\n'
    repo.add(f"linux-modules-nvidia-550-open-{KERNEL}", packages.OLD, Depends=kept, scripts={"postrm": script})
    repo.publish()
    host.sh(f"apt-get -q update && apt-get install -q -y linux-modules-nvidia-550-open-{KERNEL}")
    host.sh(
        "apt-get install -q -y " + " ".join(n for n in STAYS if not n.startswith(("linux-", "cuda-"))) + " linux-nvidia"
    )
    host.sh("apt-mark hold nvidia-container-toolkit libnccl2 >/dev/null")
    host.sh(f"mkdir -p /usr/lib/modules/{KERNEL}/updates/dkms /boot")
    return host


def snapshot(root: Root) -> str:
    made = root.module("rescue_snapshot", reason="test")
    assert made.get("id"), made
    return str(made["id"])


def stays(root: Root) -> dict[str, str]:
    now = root.sh("dpkg-query -W -f '${Package} ${db:Status-Abbrev} ${Version}\\n'").splitlines()
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in now if line}
    return {name: rows.get(name, "absent") for name in STAYS}


def test_takes_the_driver_and_nothing_else(field: Root) -> None:
    before = stays(field)
    told = field.module("rescue_purge", snapshot="x", check=True)
    assert told["changed"] is True, told
    done = field.module("rescue_purge", snapshot=snapshot(field))
    assert done.get("changed"), done
    assert (
        sorted(done["removed"])
        == sorted(told["removed"])
        == sorted([*packages.names("550"), f"linux-modules-nvidia-550-open-{KERNEL}"])
    )
    assert stays(field) == before, "something went along"
    assert field.sh("apt-mark showhold").split() == ["libnccl2", "nvidia-container-toolkit"]
    # A postrm that fails on purge, as vendors' do, is set aside: nothing of the driver is left.
    assert [name for name in field.selections() if "550" in name] == []
    assert any("postrm" in text for text in done["warnings"]), done["warnings"]
    kept = f"var/lib/dpkg/info/linux-modules-nvidia-550-open-{KERNEL}.postrm"
    assert (field.path / f"var/lib/gpu-provision/snapshots/{done['snapshot']}/files/{kept}").exists()


def test_a_package_whose_removal_script_fails_goes_all_the_same(host: Root) -> None:
    script = host.path / "var/lib/dpkg/info/nvidia-dkms-550-open.prerm"
    script.write_text("#!/bin/sh\necho dkms: no such tree >&2\nexit 3\n")
    script.chmod(0o755)
    done = host.module("rescue_purge", snapshot=snapshot(host))
    assert done.get("changed"), done
    assert host.selections() == {"lab-tool": "ii 1.0"}
    assert any("prerm of nvidia-dkms-550-open" in text for text in done["warnings"]), done["warnings"]


def test_a_half_unpacked_package_goes_without_its_archive(host: Root, repo: Repo) -> None:
    # Killed while it was unpacked, and no repository has that version any more.
    status = host.read("/var/lib/dpkg/status")
    at = status.index("Package: nvidia-utils-550\n")
    host.write(
        "/var/lib/dpkg/status",
        status[:at] + status[at:].replace("hold ok installed", "hold reinstreq half-installed", 1),
    )
    repo.stanzas = []
    repo.publish()
    host.sh("apt-get -q update")
    done = host.module("rescue_purge", snapshot=snapshot(host))
    assert done.get("changed"), done
    assert host.selections() == {"lab-tool": "ii 1.0"}


def test_what_the_driver_kept_is_not_lost_to_a_later_autoremove(field: Root) -> None:
    field.module("rescue_purge", snapshot=snapshot(field))
    before = stays(field)
    said = field.sh("apt-get autoremove -q -y")
    assert stays(field) == before, said


def test_a_second_run_changes_nothing(host: Root) -> None:
    first = host.module("rescue_purge", snapshot=snapshot(host))
    assert first.get("changed"), first
    assert host.selections() == {"lab-tool": "ii 1.0"}
    again = host.module("rescue_purge", snapshot=first["snapshot"])
    assert (again["changed"], again["done"], again["removed"]) == (False, [], []), again


def test_refuses_where_something_else_would_go(host: Root, repo: Repo) -> None:
    repo.add("lab-studio", "1.0", Depends="nvidia-utils-550")
    repo.publish()
    host.sh("apt-get -q update && apt-get install -q -y lab-studio")
    before = host.selections()
    refused = host.module("rescue_purge", snapshot=snapshot(host))
    assert (refused.get("failed"), refused["code"]) == (True, "purge.removes"), refused
    assert "sudo apt-get remove lab-studio" in refused["hint"]
    assert host.selections() == before
    allowed = host.module("rescue_purge", snapshot=snapshot(host), allow=["lab-studio"])
    assert allowed.get("changed"), allowed
    assert "lab-studio" not in {n for n, s in host.selections().items() if s.startswith("ii")}


def test_refuses_where_apt_takes_another_driver_for_it(host: Root, repo: Repo) -> None:
    repo.add("lab-top", "1.0", Depends="libnvidia-compute")
    repo.publish()
    host.sh("apt-get -q update && apt-get install -q -y lab-top")
    refused = host.module("rescue_purge", snapshot=snapshot(host))
    assert refused.get("failed"), refused
    assert refused["code"] in ("purge.installs", "purge.removes"), refused
    assert host.selections()["libnvidia-compute-550"] == f"hi {packages.OLD}"


def test_packages_that_came_since_the_plan_are_refused(host: Root) -> None:
    refused = host.module("rescue_purge", snapshot=snapshot(host), expect=["nvidia-utils-550"])
    assert (refused.get("failed"), refused["code"]) == (True, "purge.moved"), refused


def test_a_run_file_goes_by_its_uninstaller_and_then_by_name(host: Root) -> None:
    # The uninstaller forgets one library and fails: what it leaves goes by name, and packages' files stay packages'.
    host.write(
        "/usr/bin/nvidia-uninstall",
        '#!/bin/sh\necho "$@" >>/ran\n[ ! -t 0 ] || exit 9\nrm -f /usr/bin/nvidia-smi\necho broken >&2\nexit 4\n',
    )
    (host.path / "usr/bin/nvidia-uninstall").chmod(0o755)
    for path in (
        "/usr/bin/nvidia-smi",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01",
        "/usr/lib/modules/6.8.0-45-generic/kernel/drivers/video/nvidia.ko",
        "/var/lib/nvidia/log",
        "/usr/lib/x86_64-linux-gnu/libnvidia-container.so.1",
    ):
        host.write(path, "stray\n")
    host.write("/etc/X11/xorg.conf", "# nvidia-xconfig: X configuration file generated by nvidia-xconfig\n")
    # What the base has no program for: the kernel's tools leave a line, so that the test sees them called.
    for program in ("depmod", "update-initramfs"):
        host.write(f"/usr/sbin/{program}", f'#!/bin/sh\necho {program} "$@" >>/ran\n')
        (host.path / "usr/sbin" / program).chmod(0o755)
    id_ = snapshot(host)
    done = host.module("rescue_purge", snapshot=id_)
    assert done.get("changed"), done
    assert host.read("/ran").splitlines() == ["-s", "depmod 6.8.0-45-generic", "update-initramfs -u -k all"]
    assert any("broken" in text for text in done["warnings"]), done["warnings"]
    for path in (
        "usr/bin/nvidia-uninstall",
        "usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01",
        "var/lib/nvidia",
        "etc/X11/xorg.conf",
    ):
        assert not (host.path / path).exists(), path
    assert (host.path / "usr/lib/x86_64-linux-gnu/libnvidia-container.so.1").exists()
    kept = host.path / f"var/lib/gpu-provision/snapshots/{id_}/files"
    assert (kept / "etc/X11/xorg.conf").exists()
    assert (kept / "usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01").read_text() == "stray\n"
    assert host.module("rescue_purge", snapshot=id_)["changed"] is False


@pytest.mark.parametrize("moment", ["uninstall", "packages", "ldconfig"])
def test_a_run_that_is_killed_is_finished_by_the_next(host: Root, moment: str) -> None:
    slow = "#!/bin/sh\ntouch /started\nfor i in $(seq 300); do [ ! -e /cured ] || exit 0; sleep 0.1; done\n"
    host.write("/usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01", "stray\n")
    program = {"uninstall": "/usr/bin/nvidia-uninstall", "ldconfig": "/usr/sbin/ldconfig"}.get(moment)
    if program:
        (host.path / program.lstrip("/")).unlink(missing_ok=True)
        host.write(program, slow)
        (host.path / program.lstrip("/")).chmod(0o755)
    else:
        host.write("/var/lib/dpkg/info/nvidia-dkms-550-open.prerm", slow)
        (host.path / "var/lib/dpkg/info/nvidia-dkms-550-open.prerm").chmod(0o755)
    id_ = snapshot(host)
    process = host.start("rescue_purge", {"snapshot": id_})
    host.wait_for((host.path / "started").exists)
    kill_session(process)
    host.write("/cured", "")
    # what it had started ends by itself
    time.sleep(0.5)
    done = host.module("rescue_purge", snapshot=id_)
    assert done.get("changed"), done
    assert "continued an interrupted purge" in done["done"]
    assert not [name for name in host.selections() if "550" in name]
    assert not (host.path / "usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01").exists()
    assert host.module("rescue_purge", snapshot=id_)["changed"] is False
    manifest = json.loads(host.read(f"/var/lib/gpu-provision/snapshots/{id_}/manifest.json"))
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01" in {entry["path"] for entry in manifest["files"]}
