"""apt_sources with real apt: one entry for a repository, one key, and what was there before is saved."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.lib import openpgp

from .rootfs import Key, Repo, Root

pytestmark = pytest.mark.rootfs
KEYRINGS, SOURCES = "/etc/apt/keyrings", "/etc/apt/sources.list.d"


def files(root: Root) -> set[str]:
    """Everything below /etc/apt, as paths of the root."""
    return {str(path.relative_to(root.path)) for path in (root.path / "etc/apt").rglob("*") if path.is_file()}


def test_written_once_readable_and_used_by_apt(root: Root, repo: Repo) -> None:
    repo.add("lab-tool", "1.0")
    repo.publish()
    told = root.module("apt_sources", check=True, **repo.spec())
    assert not (root.path / "etc/apt/sources.list.d/gpu-provision-lab.sources").exists()
    done = root.module("apt_sources", **repo.spec())
    assert (told["changed"], done["changed"]) == (True, True)
    assert told["diff"] == done["diff"]
    for path in (f"{SOURCES}/gpu-provision-lab.sources", f"{KEYRINGS}/gpu-provision-lab.gpg"):
        assert (root.path / path[1:]).stat().st_mode & 0o777 == 0o644
    root.sh("apt-get update")
    assert "lab-tool | 1.0 | file:/srv/repo" in " ".join(root.sh("apt-cache madison lab-tool").split())
    assert root.module("apt_sources", **repo.spec())["changed"] is False


def test_duplicates_are_migrated_and_saved(root: Root, repo: Repo) -> None:
    # F1, F2: the same repository in three more files, one of them with another key; apt reads nothing at all.
    repo.add("lab-tool", "1.0")
    repo.publish()
    only = f"{SOURCES}/cuda-ubuntu2404-x86_64.list"
    mixed = f"{SOURCES}/mixed.sources"
    root.write(only, f"deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.gpg] {repo.uri}/ /\n")
    root.write("/etc/apt/sources.list", f"# mine\ndeb [trusted=yes] file:/srv/mine /\ndeb {repo.uri} /\n")
    root.write(
        mixed,
        f"Types: deb\nURIs: {repo.uri}\nSuites: /\n\nTypes: deb\nURIs: file:/srv/mine\nSuites: ./\nTrusted: yes\n",
    )
    root.write(f"{SOURCES}/dead.list", "deb https://nvidia.example/machine-learning/repos/ubuntu1804/x86_64 /\n")
    (root.path / "srv/mine").mkdir()
    root.write("/srv/mine/Packages", "")
    saved = {path: root.read(path) for path in (only, mixed, "/etc/apt/sources.list", f"{SOURCES}/dead.list")}
    asked = repo.spec() | {"legacy_uris": [r"nvidia\.example/machine-learning/"]}
    told = root.module("apt_sources", check=True, **asked)
    assert {path: root.read(path) for path in saved} == saved
    done = root.module("apt_sources", **asked)
    assert done["changed"], done
    assert told["diff"] == done["diff"]
    assert {entry["file"] for entry in done["migrated"]} == set(saved)
    assert {path: root.read(done["backup"] + path) for path in saved} == saved
    assert not (root.path / only[1:]).exists()
    assert not (root.path / f"{SOURCES}/dead.list"[1:]).exists()
    listed = root.read("/etc/apt/sources.list").split("\n")
    assert listed[0] == "# mine"
    assert listed[1] == "deb [trusted=yes] file:/srv/mine /"
    assert listed[2].startswith("#")
    assert root.read(mixed).startswith("Enabled: no\nTypes: deb\n")
    update = root.sh("apt-get update")
    assert "W:" not in update
    assert "E:" not in update
    assert "file:/srv/mine" in update
    assert root.module("apt_sources", **asked)["changed"] is False


def test_wrong_key_leaves_nothing_behind(root: Root, repo: Repo, other_key: Key) -> None:
    before = files(root)
    result = root.module("apt_sources", **repo.spec() | {"key": other_key.armored}, unattended_blacklist=["nvidia-"])
    assert (result["failed"], result["code"]) == (True, "apt.key")
    assert f"found {other_key.fingerprint}" in result["because"]
    page = root.module("apt_sources", **repo.spec() | {"key": "<html>404 Not Found</html>"})
    assert page["code"] == "apt.key"
    assert files(root) == before


class Vendor(BaseHTTPRequestHandler):
    """A proxy that answers with a key, whatever is asked."""

    key = b""
    asked: list[str] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.key)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def proxy(key: Key) -> Iterator[str]:
    Vendor.key, Vendor.asked = key.armored.encode(), []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_key_is_fetched_once_through_the_proxy(root: Root, repo: Repo, key: Key, other_key: Key, proxy: str) -> None:
    spec = repo.spec() | {"key_url": "http://vendor.invalid/key.pub"}
    del spec["key"]
    env = {"http_proxy": proxy}
    before = files(root)
    wrong = root.module("apt_sources", env=env, **spec | {"fingerprint": other_key.fingerprint})
    assert wrong["code"] == "apt.key"
    assert files(root) == before
    assert Vendor.asked == ["http://vendor.invalid/key.pub"]
    assert root.module("apt_sources", env=env, **spec)["changed"] is True
    assert len(Vendor.asked) == 2
    assert root.module("apt_sources", env=env, **spec)["changed"] is False
    assert root.module("apt_sources", check=True, env=env, **spec)["changed"] is False
    assert len(Vendor.asked) == 2
    unreachable = root.module("apt_sources", **spec | {"fingerprint": other_key.fingerprint})
    assert unreachable["code"] == "apt.key"


def test_preferences_and_unattended_list(root: Root) -> None:
    text = "Package: nvidia-*\nPin: release o=NVIDIA\nPin-Priority: -1\n"
    asked = {"preferences": text, "unattended_blacklist": ["nvidia-", "libnvidia-"]}
    assert root.module("apt_sources", **asked)["changed"] is True
    assert root.read("/etc/apt/preferences.d/gpu-provision.pref") == text
    dumped = root.sh("apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert 'Unattended-Upgrade::Package-Blacklist:: "nvidia-";' in dumped
    assert 'Unattended-Upgrade::Package-Blacklist:: "libnvidia-";' in dumped
    assert root.module("apt_sources", **asked)["changed"] is False
    assert root.module("apt_sources", preferences="", unattended_blacklist=[])["changed"] is True
    assert not (root.path / "etc/apt/preferences.d/gpu-provision.pref").exists()


def test_absent(root: Root, repo: Repo) -> None:
    before = files(root)
    root.module("apt_sources", **repo.spec())
    assert root.module("apt_sources", name="lab", state="absent")["changed"] is True
    assert files(root) == before
    assert root.module("apt_sources", name="lab", state="absent")["changed"] is False


def foreign(root: Root, name: str, key: Key, **release: str) -> Repo:
    """A repository of somebody else, whose key the host does not have."""
    made = Repo(root, key, name)
    made.add("lab-other", "1.0")
    made.publish(**release)
    root.write(f"{SOURCES}/{name}.list", f"deb {made.uri} /\n")
    return made


def test_foreign_repositories_that_fail_are_named_and_not_fatal(root: Root, repo: Repo, other_key: Key) -> None:
    repo.add("lab-tool", "1.0")
    repo.publish()
    root.module("apt_sources", **repo.spec())
    foreign(root, "stranger", other_key)
    root.write(f"{SOURCES}/gone.list", "deb file:/srv/gone /\n")
    result = root.module("apt_transaction", install=["lab-tool=1.0"], update_cache=True, reserve_mib=1)
    assert result.get("changed"), result
    told = "\n".join(result["warnings"])
    assert f"file:/srv/stranger could not be refreshed: key {other_key.fingerprint[-16:]}" in told
    assert "file:/srv/gone" in told
    # Asked for what only the stranger has: the key is the cause, not a missing package (F4).
    missing = root.module("apt_transaction", install=["lab-other=1.0"], update_cache=True, reserve_mib=1)
    assert missing["code"] == "apt.key", missing


def test_our_own_repository_that_fails_is_fatal(root: Root, repo: Repo, other_key: Key) -> None:
    repo.add("lab-tool", "1.0")
    repo.publish()
    root.module("apt_sources", **repo.spec())
    repo.key = other_key
    repo.publish()
    result = root.module("apt_transaction", install=["lab-tool=1.0"], update_cache=True, reserve_mib=1)
    assert result["code"] == "apt.key", result
    assert other_key.fingerprint[-16:] in result["msg"]


def test_expired_repository_is_named(root: Root, repo: Repo) -> None:
    repo.publish(**{"Valid-Until": "Thu, 01 Jan 2026 00:00:00 UTC"})
    root.module("apt_sources", **repo.spec())
    result = root.module("apt_transaction", install=["lab-tool=1.0"], update_cache=True, reserve_mib=1)
    assert result["code"] == "apt.expired", result
    assert repo.uri in result["msg"]


def test_signed_by_conflict_is_named(root: Root, repo: Repo) -> None:
    repo.add("lab-tool", "1.0")
    repo.publish()
    root.module("apt_sources", **repo.spec())
    root.write(f"{SOURCES}/again.list", f"deb [signed-by=/etc/apt/keyrings/else.gpg] {repo.uri} /\n")
    result = root.module("apt_transaction", install=["lab-tool=1.0"], update_cache=True, reserve_mib=1)
    assert result["code"] == "apt.signed_by_conflict", result
    assert any("Conflicting values set for option Signed-By" in line for line in result["because"])
    assert root.module("apt_sources", **repo.spec())["changed"] is True
    assert root.module("apt_transaction", install=["lab-tool=1.0"], update_cache=True, reserve_mib=1).get("changed")


def test_old_keys_are_no_longer_trusted_for_everything(root: Root, repo: Repo, other_key: Key) -> None:
    """By apt itself: what only the old key in trusted.gpg signed is refused afterwards, and other keys are as they were."""
    repo.publish()
    mine, other = openpgp.dearmor(repo.key.armored.encode()), openpgp.dearmor(other_key.armored.encode())
    (root.path / "etc/apt/trusted.gpg").write_bytes(other + mine)
    (root.path / "etc/apt/trusted.gpg.d/nvidia.gpg").write_bytes(mine)
    (root.path / "etc/apt/trusted.gpg.d/all.asc").write_text(repo.key.armored + other_key.armored)
    asked = repo.spec() | {"legacy_keys": openpgp.primaries(mine)}
    told = root.module("apt_sources", check=True, **asked)
    assert (root.path / "etc/apt/trusted.gpg").read_bytes() == other + mine
    done = root.module("apt_sources", **asked)
    assert told["diff"] == done["diff"]
    assert (root.path / "etc/apt/trusted.gpg").read_bytes() == other
    assert not (root.path / "etc/apt/trusted.gpg.d/nvidia.gpg").exists()
    assert (root.path / "etc/apt/trusted.gpg.d/all.asc").exists(), "armored, with a key that is not ours to judge"
    saved = root.path / done["backup"].lstrip("/")
    assert (saved / "etc/apt/trusted.gpg").read_bytes() == other + mine
    assert (saved / "etc/apt/trusted.gpg.d/nvidia.gpg").read_bytes() == mine
    assert "W:" not in root.sh("apt-get update")
    assert root.module("apt_sources", **asked)["changed"] is False
