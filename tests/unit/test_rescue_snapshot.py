"""Snapshots: what is in one, what is left out, which are kept, and what a cut-off leaves."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as snap

STATUS = """\
Package: dpkg
Status: install ok installed
Architecture: amd64
Version: 1.22.6

Package: libnvidia-compute-580
Status: hold ok installed
Architecture: amd64
Version: 580.126.20-0ubuntu1

Package: libnvidia-gl-550
Status: hold ok not-installed
Architecture: amd64

Package: nvidia-compute-utils-550
Status: deinstall ok config-files
Architecture: amd64
Version: 550.54.15-0ubuntu1
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A file tree with what apt, dpkg, DKMS and a person put there."""
    files = {
        "var/lib/dpkg/status": STATUS,
        "var/lib/apt/extended_states": "Package: libnvidia-compute-580\nArchitecture: amd64\nAuto-Installed: 1\n",
        "etc/apt/sources.list.d/cuda.list": "deb https://user:secret@mirror.example/cuda /\n",
        "etc/apt/auth.conf": "machine mirror.example login user password secret\n",
        "etc/apt/auth.conf.d/site.conf": "machine other.example login user password secret\n",
        "etc/modprobe.d/blacklist-nouveau.conf": "blacklist nouveau\n",
        "etc/systemd/system/nvidia-persistenced.service.d/gpu-provision.conf": "[Service]\n",
        "boot/vmlinuz-6.8.0-45-generic": "",
        "proc/sys/kernel/random/boot_id": "11111111-2222\n",
        "proc/cmdline": "quiet splash\n",
        "opt/big.so": "x" * (snap.MOST_BYTES_A_FILE + 1),
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "etc/apt/sources.list.d/cuda.list").chmod(0o600)
    (tmp_path / "var/lib/dkms/nvidia/580.126.20/6.8.0-45-generic").mkdir(parents=True)
    (tmp_path / "etc/modprobe.d/link.conf").symlink_to("blacklist-nouveau.conf")
    return tmp_path


def take(host: Path, *paths: str, **more: Any) -> dict[str, Any]:
    return snap.take("test", paths, root=str(host), **more)


def folder(host: Path, id_: str) -> Path:
    return host / snap.SNAPSHOTS.lstrip("/") / id_


def test_holds_everything_and_nobody_else_reads_it(host: Path) -> None:
    made = take(host, "/etc/X11/xorg.conf", "/opt/big.so", "/etc/apt/auth.conf.d/site.conf")
    at = folder(host, made["id"])
    assert stat.S_IMODE(at.stat().st_mode) == 0o700 == stat.S_IMODE(at.parent.stat().st_mode)
    manifest = json.loads((at / "manifest.json").read_text())
    files = {entry["path"]: entry for entry in manifest["files"]}
    # named and not there: undo removes what came
    assert files["/etc/X11/xorg.conf"]["state"] is None
    assert files["/etc/modprobe.d/link.conf"]["state"] == "link:blacklist-nouveau.conf"
    assert "/etc/systemd/system/nvidia-persistenced.service.d/gpu-provision.conf" in files
    copy = at / "files/etc/apt/sources.list.d/cuda.list"
    assert copy.read_text() == "deb https://user:secret@mirror.example/cuda /\n"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert {entry["path"] for entry in made["left_out"]} == {"/opt/big.so", "/etc/apt/auth.conf.d/site.conf"}
    assert "login user" not in "".join(p.read_text() for p in at.rglob("*") if p.is_file())
    rows = snap.read_packages((at / "packages.tsv").read_text())
    assert rows["libnvidia-compute-580", "amd64"] == {
        "version": "580.126.20-0ubuntu1",
        "want": "hold",
        "state": "installed",
    }
    assert rows["libnvidia-gl-550", "amd64"] == {"version": None, "want": "hold", "state": "not-installed"}
    assert snap.read_auto((at / "extended_states").read_text()) == {("libnvidia-compute-580", "amd64")}
    assert "dkms nvidia/580.126.20 6.8.0-45-generic" in (at / "host.txt").read_text().splitlines()


def test_a_cut_off_run_is_gone_on_with(host: Path) -> None:
    first = take(host)
    (host / "etc/modprobe.d/blacklist-nouveau.conf").write_text("changed by the run that was interrupted\n")
    second = take(host, "/etc/X11/xorg.conf")
    assert (second["id"], second["resumed"], second["changed"]) == (first["id"], True, True)
    kept = folder(host, first["id"]) / "files/etc/modprobe.d/blacklist-nouveau.conf"
    assert kept.read_text() == "blacklist nouveau\n"
    assert take(host, "/etc/X11/xorg.conf")["changed"] is False
    snap.finish(first["id"], root=str(host))
    assert take(host)["id"] != first["id"]


def test_a_folder_without_manifest_is_no_snapshot(host: Path) -> None:
    whole = take(host)["id"]
    snap.finish(whole, root=str(host))
    cut = folder(host, "29991231T235959Z-abcdef")
    cut.mkdir()
    (cut / "packages.tsv").write_text("half")
    assert [row["whole"] for row in snap.listing(str(host))] == [False, True]
    assert snap.Host(str(host)).find() == whole
    with pytest.raises(snap.SnapshotError, match="was interrupted"):
        snap.Host(str(host)).find("abcdef")
    take(host)
    assert not cut.exists()


def test_a_damaged_manifest_is_no_snapshot(host: Path) -> None:
    id_ = take(host)["id"]
    manifest = folder(host, id_) / "manifest.json"
    manifest.write_text(manifest.read_text()[:-20])
    assert snap.listing(str(host))[0]["whole"] is False
    with pytest.raises(snap.SnapshotError, match="no snapshot"):
        snap.Host(str(host)).find()


def test_old_ones_go_and_the_unfinished_one_stays(host: Path) -> None:
    done = []
    for _ in range(3):
        done.append(take(host, resume=False)["id"])
        snap.finish(done[-1], root=str(host))
    unfinished = take(host, resume=False)["id"]
    later = [take(host, resume=False, keep=2) for _ in range(1)]
    for _ in range(3):
        snap.finish(later[-1]["id"], root=str(host))
        later.append(take(host, resume=False, keep=2))
    left = [row["id"] for row in snap.listing(str(host))]
    assert left == [later[-1]["id"], later[-2]["id"], unfinished]
    assert done[0] in later[0]["pruned"]


def test_an_id_is_found_by_its_parts(host: Path) -> None:
    id_ = take(host)["id"]
    assert {snap.Host(str(host)).find(word) for word in (id_, id_[:15], id_[-6:])} == {id_}
    with pytest.raises(snap.SnapshotError, match="no snapshot is called ffffffffff"):
        snap.Host(str(host)).find("ffffffffff")


def test_what_is_deleted_is_kept_where_small_and_listed_where_not(host: Path) -> None:
    id_ = take(host)["id"]
    (host / "usr/bin").mkdir(parents=True)
    (host / "usr/bin/nvidia-smi").write_text("stray")
    found = snap.keep_files(id_, ["/usr/bin/nvidia-smi", "/opt/big.so"], root=str(host))
    assert found["kept"] == ["/usr/bin/nvidia-smi"]
    assert found["left_out"] == [
        {"path": "/opt/big.so", "size": snap.MOST_BYTES_A_FILE + 1, "why": "larger than what is copied"}
    ]
    assert (folder(host, id_) / "files/usr/bin/nvidia-smi").read_text() == "stray"
    assert snap.keep_files(id_, ["/usr/bin/nvidia-smi"], root=str(host))["left_out"] == []


def test_the_state_after_a_step_is_told_apart(host: Path) -> None:
    id_ = take(host)["id"]
    assert snap.Host(str(host)).after(id_) == (None, None)
    (host / "etc/modprobe.d/new.conf").write_text("ours\n")
    (host / "etc/modprobe.d/blacklist-nouveau.conf").unlink()
    snap.mark(id_, root=str(host))
    packages, files = snap.Host(str(host)).after(id_)
    assert packages["dpkg", "amd64"]["version"] == "1.22.6"
    assert files["/etc/modprobe.d/new.conf"] == snap.fingerprint(str(host / "etc/modprobe.d/new.conf"))
    assert files["/etc/modprobe.d/blacklist-nouveau.conf"] is None


def test_check_mode_makes_nothing(host: Path) -> None:
    assert take(host, check=True)["changed"] is True
    assert not (host / snap.SNAPSHOTS.lstrip("/")).exists()


def test_the_clock_may_go_back(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = take(host, resume=False)["id"]
    monkeypatch.setattr(snap.time, "time", lambda: 1_000_000_000.0)
    assert take(host, resume=False)["id"] > first


def test_only_root_sees_them(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises(snap.SnapshotError, match="root only"):
        snap.listing(str(host))
