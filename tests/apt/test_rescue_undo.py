"""Snapshot, change, undo, undo of the undo: with real apt and dpkg."""

from __future__ import annotations

import json

import pytest

from . import packages
from .packages import NEW, OLD, names, pinned
from .rootfs import Repo, Root, kill_session

pytestmark = pytest.mark.rootfs
SWITCH = {"install": pinned("580", NEW), "remove": names("550"), "family_version": "580.126.20", "reserve_mib": 1}


def snapshot(root: Root, **args: object) -> str:
    made = root.module("rescue_snapshot", **args)
    assert made.get("id"), made
    return str(made["id"])


def state(root: Root) -> dict[str, object]:
    """What an undo must bring back: packages with holds, automatic marks, apt's and modprobe's files."""
    files = {
        str(path.relative_to(root.path)): path.read_text()
        for folder in (
            "etc/apt/preferences.d",
            "etc/apt/apt.conf.d",
            "etc/apt/sources.list.d",
            "etc/modprobe.d",
            "etc/X11",
        )
        for path in sorted((root.path / folder).glob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
    return {"packages": root.selections(), "auto": root.sh("apt-mark showauto").split(), "files": files}


def rescue(root: Root) -> str:
    """A rescue that does a bit of everything; returns the id of its snapshot."""
    id_ = snapshot(root, paths=["/etc/X11/xorg.conf"])
    done = root.module("apt_transaction", **SWITCH)
    assert done.get("changed"), done
    root.write("/etc/modprobe.d/gpu-provision.conf", "blacklist nouveau\n")
    root.write("/etc/modprobe.d/theirs.conf", "# made empty by the rescue\n")
    root.write("/etc/X11/xorg.conf", "new\n")
    root.module("rescue_snapshot", action="mark", id=id_)
    root.module("rescue_snapshot", action="finish", id=id_)
    return id_


@pytest.fixture
def field(host: Root) -> Root:
    host.write("/etc/modprobe.d/theirs.conf", "options theirs x=1\n")
    host.sh("apt-mark auto libnvidia-compute-550 nvidia-kernel-common-550 >/dev/null")
    return host


def test_back_and_forth(field: Root) -> None:
    before = state(field)
    id_ = rescue(field)
    after = state(field)
    told = field.module("rescue_snapshot", action="undo", id=id_, check=True)
    assert told["changed"] is True and state(field) == after, told
    done = field.module("rescue_snapshot", action="undo", id=id_, expect=told["plan"]["changes"])
    assert done.get("changed") and done["left"] == [], done
    assert state(field) == before
    again = field.module("rescue_snapshot", action="undo", id=id_)
    assert again["changed"] is False, again
    # Undo of the undo: by its own snapshot, the newest.
    redone = field.module("rescue_snapshot", action="undo")
    assert redone["id"] == done["snapshot"], redone
    assert state(field)["packages"] == after["packages"] and state(field)["files"] == after["files"]


def test_what_others_did_since_stays(field: Root, repo: Repo) -> None:
    id_ = rescue(field)
    repo.add("lab-new", "1.0")
    repo.add("lab-tool", "2.0")
    repo.publish()
    field.sh("apt-get -q update && apt-get install -q -y lab-new lab-tool")
    field.write("/etc/modprobe.d/theirs.conf", "options theirs x=2\n")
    field.write("/etc/modprobe.d/own.conf", "mine\n")
    done = field.module("rescue_snapshot", action="undo", id=id_)
    assert done.get("changed"), done
    assert field.read("/etc/modprobe.d/theirs.conf") == "options theirs x=2\n"
    assert field.read("/etc/modprobe.d/own.conf") == "mine\n"
    now = field.selections()
    assert (now["lab-new"], now["lab-tool"]) == ("ii 1.0", "ii 2.0")
    assert {name: now[name] for name in names("550")} == dict.fromkeys(names("550"), f"hi {OLD}")
    assert {row["what"].split(":")[0] for row in done["left"]} == {"lab-new", "lab-tool", "/etc/modprobe.d/theirs.conf"}


def test_versions_that_no_repository_has_are_named_and_nothing_is_half_done(field: Root, repo: Repo) -> None:
    id_ = rescue(field)
    after = field.selections()
    repo.stanzas = [text for text in repo.stanzas if "Package: libnvidia-compute-550\n" not in text]
    repo.publish()
    field.sh("apt-get -q update")
    done = field.module("rescue_snapshot", action="undo", id=id_)
    assert field.selections() == after, done
    assert f"libnvidia-compute-550 {OLD}" in {row["what"] for row in done["left"]}
    assert field.read("/etc/modprobe.d/theirs.conf") == "options theirs x=1\n"


def test_a_plan_that_moved_is_refused(field: Root) -> None:
    id_ = rescue(field)
    after = field.selections()
    refused = field.module("rescue_snapshot", action="undo", id=id_, expect=[])
    assert (refused.get("failed"), refused["code"]) == (True, "apt.plan_moved"), refused
    assert field.selections() == after


def test_after_a_purge_the_packages_come_back(field: Root) -> None:
    before = state(field)
    field.write("/usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01", "stray\n")
    id_ = snapshot(field)
    gone = field.module("rescue_purge", snapshot=id_)
    assert gone.get("changed"), gone
    field.module("rescue_snapshot", action="finish", id=id_)
    done = field.module("rescue_snapshot", action="undo", id=id_)
    assert done.get("changed"), done
    assert state(field) == before
    assert [row["what"] for row in done["left"]] == ["/usr/lib/x86_64-linux-gnu/libcuda.so.470.103.01"]


def test_a_cut_off_undo_is_gone_on_with(field: Root) -> None:
    before = state(field)
    id_ = rescue(field)
    slow = "#!/bin/sh\ntouch /started\nfor i in $(seq 300); do [ ! -e /cured ] || exit 0; sleep 0.1; done\n"
    field.write("/var/lib/dpkg/info/nvidia-dkms-580-open.prerm", slow)
    (field.path / "var/lib/dpkg/info/nvidia-dkms-580-open.prerm").chmod(0o755)
    process = field.start("rescue_snapshot", {"action": "undo", "id": id_})
    field.wait_for((field.path / "started").exists)
    kill_session(process)
    field.write("/cured", "")
    # Without an id: what was cut off is gone on with, not undone.
    field.wait_for(lambda: not (field.path / "var/lib/gpu-provision/transaction.json").exists())
    done = field.module("rescue_snapshot", action="undo")
    assert done.get("id") == id_, done
    assert state(field) == before
    listed = field.module("rescue_snapshot", action="list")["snapshots"]
    assert [row["finished"] for row in listed] == [True, True], listed


def test_broken_sources_of_the_snapshot_come_back_with_a_warning(field: Root, repo: Repo) -> None:
    # The rescue took a contradicting entry out; its sources are what was broken, so packages go first.
    entry = f"deb {repo.uri} /\n"
    field.write("/etc/apt/sources.list.d/twice.list", entry)
    id_ = snapshot(field, paths=["/etc/apt/sources.list.d/twice.list"])
    (field.path / "etc/apt/sources.list.d/twice.list").unlink()
    done = field.module("apt_transaction", **SWITCH)
    assert done.get("changed"), done
    field.module("rescue_snapshot", action="finish", id=id_)
    undone = field.module("rescue_snapshot", action="undo", id=id_)
    assert undone.get("changed"), undone
    assert field.read("/etc/apt/sources.list.d/twice.list") == entry
    assert any("sources of the snapshot" in text for text in undone["warnings"]), undone["warnings"]
    assert field.selections()["nvidia-utils-550"] == f"hi {OLD}"


def test_a_snapshot_takes_no_time(field: Root) -> None:
    made = field.module("rescue_snapshot")
    manifest = json.loads(field.read(f"{made['path']}/manifest.json"))
    assert manifest["packages"] > 50
    assert packages.OLD in field.read(f"{made['path']}/packages.tsv")
