"""aptquery with real apt: what is offered, what would happen, and that the host stays as it was."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from .packages import NEW, OLD, driver, names, pinned
from .rootfs import Key, Repo, Root

pytestmark = pytest.mark.rootfs


def tree(root: Root, *folders: str) -> dict[str, str]:
    """{path: kind, mode, mtime and content} of everything below some folders."""
    found = {}
    for folder in folders:
        for path in sorted((root.path / folder).rglob("*")):
            info = path.lstat()
            data = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
            found[str(path.relative_to(root.path))] = f"{info.st_mode:o} {info.st_uid} {info.st_mtime_ns} {data}"
    return found


WATCHED = ("etc", "var/lib/apt", "var/lib/dpkg", "var/log", "srv", "usr/bin", "var/cache/apt/archives")


@pytest.mark.parametrize("user", [0, 1000])
def test_offer_and_simulate_leave_the_host_alone(root: Root, repo: Repo, key: Key, user: int) -> None:
    repo.add("lab-tool", "1.0")
    driver(repo, "580", NEW)
    driver(repo, "580", "580.95.05-0ubuntu1")
    repo.publish()
    before = tree(root, *WATCHED)
    answer = root.module("apt_query", op="offer", sources=[repo.spec()], patterns=[".*nvidia-.*580.*"], user=user)[
        "result"
    ]
    assert answer["errors"] == []
    assert answer["refreshed"] is True
    assert sorted(answer["packages"]) == names("580")
    newest, older = answer["packages"]["nvidia-utils-580"]
    assert (newest["version"], older["version"]) == (NEW, "580.95.05-0ubuntu1")
    assert newest["depends"] == f"libnvidia-compute-580 (= {NEW}), lab-tool"
    assert (newest["uri"], newest["origin"], newest["candidate"], newest["priority"]) == (repo.uri, "Lab", True, 500)
    assert newest["size"] > 0

    simulated = root.module(
        "apt_query", op="simulate", workdir=answer["workdir"], install=pinned("580", NEW), user=user
    )
    result = simulated["result"]
    assert result["ok"] is True
    assert sorted(change["name"] for change in result["changes"]) == ["lab-tool", *names("580")]
    assert {change["action"] for change in result["changes"]} == {"install"}
    assert result["download_bytes"] > 0
    assert tree(root, *WATCHED) == before
    assert not list((root.path / "tmp").glob("gpu-provision-apt-*"))


def test_own_source_steps_in_for_the_hosts_and_unchanged_lists_are_reused(host: Root, repo: Repo) -> None:
    # The host has the same repository under another key file: apt alone would end in a Signed-By conflict.
    host.sh("cp /etc/apt/keyrings/gpu-provision-lab.gpg /etc/apt/keyrings/old.gpg")
    host.write("/etc/apt/sources.list.d/old.list", f"deb [signed-by=/etc/apt/keyrings/old.gpg] {repo.uri} /\n")
    assert "Conflicting values set for option Signed-By" in host.sh("apt-cache policy", check=False)
    asked = {"op": "offer", "sources": [repo.spec()], "patterns": ["nvidia-utils-.*"]}
    assert host.module("apt_query", **asked)["result"]["refreshed"] is True, "its lists are older than its sources"
    host.sh("touch -d '1 hour ago' /etc/apt/sources.list.d/old.list /etc/apt/sources.list.d /etc/apt")
    before = tree(host, *WATCHED)
    answer = host.module("apt_query", **asked)["result"]
    assert answer["refreshed"] is False
    assert answer["errors"] == []
    assert sorted(answer["packages"]) == ["nvidia-utils-550", "nvidia-utils-580"]
    again = host.module("apt_query", **asked, refresh="always")["result"]
    assert again["refreshed"] is True
    assert again["packages"] == answer["packages"]
    assert tree(host, *WATCHED) == before


def test_only_the_new_source_is_fetched_while_lists_are_fresh(host: Root, key: Key) -> None:
    second = Repo(host, key, "second")
    second.add("nvidia-utils-590", "590.1-1")
    second.publish()
    # The host's own repository has lost its signature: asking it again would be an error.
    (host.path / "srv/repo/InRelease").unlink()
    before = tree(host, *WATCHED)
    spec = second.spec("second")
    answer = host.module("apt_query", op="offer", sources=[spec], patterns=["nvidia-utils-.*"])["result"]
    assert (answer["refreshed"], answer["errors"]) == (True, [])
    assert sorted(answer["packages"]) == ["nvidia-utils-550", "nvidia-utils-580", "nvidia-utils-590"]
    assert tree(host, *WATCHED) == before


def test_simulation_sees_through_holds_of_the_driver_only(host: Root) -> None:
    asked = {"op": "simulate", "install": pinned("580", NEW), "remove": names("550")}
    switched = host.module("apt_query", **asked)["result"]
    assert switched["ok"] is True
    assert sorted(c["name"] for c in switched["changes"] if c["action"] == "remove") == names("550")
    # Without named removals a hold that counts stops the switch, in apt's own words (G1).
    held = host.module("apt_query", op="simulate", install=pinned("580", NEW), unhold=[])["result"]
    assert (held["ok"], held["code"]) == (False, "apt.unmet")
    assert any(line.startswith("E: ") and "held packages" in line for line in held["because"])


def test_no_room_is_said_before_anybody_agrees(host: Root) -> None:
    asked = {"op": "simulate", "install": pinned("580", NEW), "remove": names("550")}
    assert host.module("apt_query", **asked)["result"]["full"] == []
    host.mount("-t", "tmpfs", "-o", "size=90m,mode=0755", "tmpfs", "/boot")
    (host.path / "boot/initrd.img-6.8.0-45-generic").write_bytes(b"x" * (40 << 20))
    for user in (0, 65534):
        result = host.module("apt_query", **asked, user=user)["result"]
        assert result["full"] == ["/boot: 50 MiB free, 40 MiB needed, 64 MiB must stay free"]


def test_unmet_dependencies_name_both_packages(root: Root, repo: Repo) -> None:
    repo.add("nvidia-driver-550-open", OLD, Depends="libnvidia-gl-550 (= 1)")
    repo.publish()
    offer = root.module("apt_query", op="offer", sources=[repo.spec()], patterns=["nvidia.*"])["result"]
    result = root.module(
        "apt_query", op="simulate", workdir=offer["workdir"], install=[f"nvidia-driver-550-open={OLD}"]
    )["result"]
    assert (result["ok"], result["code"]) == (False, "apt.unmet")
    assert result["unmet"] == [
        {
            "package": "nvidia-driver-550-open",
            "relation": "Depends",
            "wants": "libnvidia-gl-550 (= 1)",
            "but": "it is not installable",
        }
    ]


def test_a_version_that_is_not_there(host: Root) -> None:
    result = host.module("apt_query", op="simulate", install=["nvidia-utils-580=1-1"])["result"]
    assert (result["ok"], result["code"]) == (False, "apt.version_not_found")


def test_phased_updates_do_not_depend_on_the_machine(root: Root, repo: Repo) -> None:
    repo.add("lab-tool", "1.0")
    repo.add("lab-tool", "1.1", phased=10)
    repo.publish()
    candidates = set()
    for machine in ("0" * 32, "1" * 32, "2" * 32, "3" * 32):
        root.write("/etc/machine-id", machine + "\n")
        offer = root.module("apt_query", op="offer", sources=[repo.spec()], patterns=["lab-tool"])["result"]
        candidates |= {row["version"] for row in offer["packages"]["lab-tool"] if row["candidate"]}
        root.module("apt_query", op="simulate", workdir=offer["workdir"])
    assert candidates == {"1.1"}


def test_wrong_fingerprint_and_unsafe_workdir(root: Root, repo: Repo, other_key: Key, tmp_path: Path) -> None:
    repo.publish()
    wrong = repo.spec() | {"fingerprint": other_key.fingerprint}
    refused = root.module("apt_query", op="offer", sources=[wrong])
    assert (refused["failed"], refused["code"]) == (True, "apt.key")
    assert not list((root.path / "tmp").glob("gpu-provision-apt-*"))
    gone = root.module("apt_query", op="simulate", workdir="/etc")
    assert (gone["failed"], gone["code"]) == (True, "apt.workdir_gone")
    assert (root.path / "etc/os-release").exists()


# What the fast read does on a host: the caller goes away after an offer, or the host's own process is killed.
SESSION = """
import os, sys
sys.path.insert(0, "/opt/test")
from ansible_collections.gpu.provision.plugins.module_utils.apt import query
print(query.main({"op": "offer", "patterns": ["lab-tool"]})["workdir"], flush=True)
if sys.argv[1:] == ["killed"]:
    os.kill(os.getpid(), 9)
"""


def test_the_folder_of_an_offer_goes_with_the_session_that_asked_for_it(root: Root, repo: Repo) -> None:
    root.write("/session.py", SESSION)
    ended = root.sh("python3 /session.py").strip()
    assert ended.startswith("/tmp/gpu-provision-apt-")
    assert not (root.path / ended.lstrip("/")).exists()
    killed = root.sh("python3 /session.py killed", check=False).split()[0]
    assert (root.path / killed.lstrip("/")).is_dir()
    root.sh("python3 /session.py")
    assert not list((root.path / "tmp").glob("gpu-provision-apt-*"))
