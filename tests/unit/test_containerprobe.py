"""What the probe says of container runtimes on described hosts (tests/cases/containers_probe.yml)."""

import json

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import trusted_keys
from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_flags, daemon_json
from ansible_collections.gpu.provision.plugins.module_utils.containers import probe as containers_probe
from ansible_collections.gpu.provision.plugins.module_utils.lib import openpgp
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.catalog import load_catalog
from provision.collection import ROOT
from provision.facts import Containers
from provision.lib import yaml_reader
from tests.unit import trees
from tests.unit.test_openpgp import V4, _armor, _new
from tests.unit.test_probe import pick

CASES = yaml_reader.load((ROOT / "tests/cases/containers_probe.yml").read_text(encoding="utf-8"))


def read(root, gpu_users=()):
    tree = HostTree(root)
    packages, _, _ = probe_facts.read_packages(tree)
    return containers_probe.read(tree, packages, gpu_users)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_containers_on_a_host(case, tmp_path):
    root = trees.build(tmp_path / "host", {"dirs": ["/"], **case["tree"]})
    facts = read(root, case.get("gpu_users", ()))
    Containers.model_validate(facts, strict=True)
    for path, wanted in case["expect"].items():
        value = pick(facts, path)
        if isinstance(wanted, dict) and "length" in wanted:
            assert len(value) == wanted["length"], (path, value)
        elif isinstance(wanted, dict) and "contains" in wanted:
            assert wanted["contains"] in value, (path, value)
        else:
            assert value == wanted, path
    assert "secret" not in json.dumps(facts) and "hunter2" not in json.dumps(facts), "a password left the host"


def test_the_read_of_a_host_has_it(tmp_path):
    root = trees.build(tmp_path / "host", {"files": {"/usr/bin/dockerd": "", "/etc/docker/daemon.json": "{}"}})
    found = probe_facts.collect(root)
    assert found["containers"]["docker"]["engine"] == "/usr/bin/dockerd"
    files = {
        "/etc/udev/rules.d/71-gpu-provision-nvidia-dev-char.rules": "x",
        "/etc/udev/rules.d/99-mine.rules": "x",
        "/etc/systemd/system/gpu-provision-cdi.service": "x",
    }
    own = probe_facts.read_own_files(HostTree(trees.build(tmp_path / "other", {"files": files})))
    assert set(own) == {path for path in files if "gpu-provision" in path}


def test_a_key_that_is_trusted_for_everything_is_found(tmp_path, monkeypatch):
    data, other = _new(6, V4), _new(6, V4[:-1] + b"\x77")
    monkeypatch.setattr(trusted_keys, "CONTAINER_TOOLKIT", openpgp.primaries(data)[0])
    keys = "/etc/apt/trusted.gpg.d/"
    files = {
        keys + "nvidia.gpg": data,
        keys + "junk.gpg": "junk",
        keys + "other.gpg": other,
        keys + "not-read": data,
        keys + "all.asc": _armor(data + other),
        "/etc/apt/trusted.gpg": other + data,
    }
    root = trees.build(tmp_path / "host", {"files": files})
    assert containers_probe.read_old_keys(HostTree(root)) == {
        keys + "nvidia.gpg": True,
        keys + "all.asc": False,
        "/etc/apt/trusted.gpg": True,
    }


def test_a_key_in_a_keybox_is_found(tmp_path):
    key = bytes.fromhex(trusted_keys.CONTAINER_TOOLKIT)
    keybox = b"\x00\x00\x00\x20\x01\x01\x00\x02KBXf" + bytes(20) + key
    root = trees.build(tmp_path / "host", {"files": {"/etc/apt/trusted.gpg": keybox}})
    assert containers_probe.read_old_keys(HostTree(root)) == {"/etc/apt/trusted.gpg": False}


def test_the_key_is_the_catalogs():
    keys = load_catalog().repositories.keys
    assert keys["container_toolkit"].fingerprint == trusted_keys.CONTAINER_TOOLKIT


@pytest.mark.parametrize(
    ("version", "told"),
    [
        ("28.2.2-0ubuntu1~24.04.1", "28.2.2"),
        ("5:28.5.1-1~ubuntu.24.04~noble", "28.5.1"),
        ("4.9.3+ds1-1ubuntu0.2", "4.9.3"),
        ("20.10.24+dfsg1-1+deb12u1+b2", "20.10.24"),
        ("", ""),
    ],
)
def test_versions_of_runtimes(version, told):
    assert containers_probe.upstream(version) == told


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path):
    text = "{" + " " * (daemon_json.MAX_BYTES + 10) + "}"
    root = trees.build(tmp_path / "host", {"files": {"/usr/bin/dockerd": "", "/etc/docker/daemon.json": text}})
    assert "no daemon.json" in read(root)["docker"]["file"]["error"]["message"]


def test_hundreds_of_containers_are_bounded(tmp_path):
    base = "/run/containerd/io.containerd.runtime.v2.task/moby"
    files = {"/proc/9/comm": "x"}
    for number in range(300):
        files[f"{base}/{number:064x}/init.pid"] = "9"
    root = trees.build(tmp_path / "host", {"files": files})
    assert len(read(root)["running"]) == 256


def test_a_daemon_that_is_asked_and_does_not_answer_is_noted(tmp_path):
    """The live host's daemon is asked once; a silent one costs its time and no more."""

    class Live(HostTree):
        live = True

    socket_path = tmp_path / "docker.sock"
    # a file, not a socket: connecting fails
    socket_path.write_text("")
    given = daemon_flags.Flag("hosts", f"-H unix://{socket_path}", f"unix://{socket_path}", "process 7")
    tree = Live("/")
    assert containers_probe._ask(tree, daemon_flags.Flags("dockerd", "daemon.json", [given], 7)) is None
    assert tree.unreadable == [str(socket_path)]


@pytest.mark.parametrize(
    ("program", "refused"), [("/usr/bin/nvidia-container-runtime", False), ("/usr/bin/crun", True)]
)
def test_a_runtime_by_its_type_is_read_as_its_program_and_never_given_a_path(tmp_path, program, refused):
    entry = {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": program}}
    files = {
        "/usr/bin/dockerd": "",
        program: "",
        "/etc/docker/daemon.json": json.dumps({"runtimes": {"nvidia": entry}}),
    }
    file = read(trees.build(tmp_path / "host", {"files": files}))["docker"]["file"]
    assert file["value"]["runtimes"] == {"nvidia": {"path": program}}
    assert ("runtimes" in file["refused"]) is refused
