"""daemon.json and a real dockerd: what reaches it, what it says, what is not disturbed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_flags, docker_api
from ansible_collections.gpu.provision.plugins.module_utils.containers import docker as containers_docker
from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from ansible_collections.gpu.provision.plugins.module_utils.containers import host as containers_host
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree
from tests.lab.containers.daemons import NoDaemonsError, RealDocker, binaries, run_of

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="dockerd needs root")

# What a lab has in its file: nothing of it is ours.
FOREIGN = {
    "labels": ["ort=Köln"],
    "log-opts": {"max-size": "10m"},
    "insecure-registries": ["10.142.55.199:5006"],
    "features": {"buildkit": True},
    "default-ulimits": {"nofile": {"Name": "nofile", "Hard": 1024, "Soft": 1024}},
    "shutdown-timeout": 1,
}


class TheDocker(containers_docker.Docker):
    """The daemon of this test, not the machine's."""

    daemon: RealDocker

    def _read_flags(self) -> Any:
        if self.daemon.process is None:
            return daemon_flags.Flags("dockerd", str(self.daemon.config), [])
        return daemon_flags.of_process(self.tree, self.daemon.pid)


class Setup:
    """One daemon and runs against it."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.daemon = RealDocker(folder, *flags)
        self.commands: list[list[str]] = []
        self.signals: list[int] = []
        self.backup = folder / "backup"

    def apply(self, policy: str = "when_idle", check: bool = False, kill: Any = None, **config: Any) -> Any:
        """One run of what the module does for docker; returns the host with what it reports."""
        self.commands.clear()
        self.signals.clear()
        host = containers_host.Host(
            host_tree.HostTree("/"), check, str(self.backup), run_of(self.daemon, self.commands)
        )
        TheDocker.daemon = self.daemon

        def count(pid: int, number: int) -> None:
            self.signals.append(number)
            os.kill(pid, number)

        TheDocker(host, policy, kill=kill or count).ensure({"runtime": True, **config})
        return host

    def write(self, value: Any) -> None:
        text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        self.daemon.config.write_text(text)

    @property
    def info(self) -> Any:
        return docker_api.Client(str(self.daemon.socket)).info()

    def state(self) -> Any:
        found = self.daemon.config.stat()
        return found.st_ino, found.st_mtime_ns, self.daemon.config.read_bytes()

    def restarts(self) -> int:
        return sum("restart" in command for command in self.commands)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Setup]]:
    try:
        binaries()
    except NoDaemonsError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(containers_files, "PENDING", str(tmp_path / "gpu-provision" / "pending.json"))
    made: list[Setup] = []

    def start(value: Any, *flags: str) -> Setup:
        setup = Setup(tmp_path, *flags)
        made.append(setup)
        setup.write(value)
        assert setup.daemon.start(), setup.daemon.log()
        setup.daemon.add_image()
        return setup

    yield start
    for setup in made:
        setup.daemon.remove()


def test_the_runtime_is_listed_at_once_and_nobody_notices(make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN)
    setup.daemon.run("-d", "--name=job", "tiny:1", "/bin/sleep", "300")
    pid = setup.daemon.pid
    setup.daemon.config.chmod(0o640)

    host = setup.apply(default_runtime="nvidia", shm_size="1G")

    info = setup.info
    assert info["runtimes"]["nvidia"] == "nvidia-container-runtime"
    assert info["default_runtime"] == "nvidia"
    assert setup.daemon.pid == pid, "a reload, not a restart"
    assert "job" in setup.daemon.docker("ps").stdout
    assert host.restart_because == []
    after = json.loads(setup.daemon.config.read_text())
    assert {key: after[key] for key in FOREIGN} == FOREIGN
    assert list(after)[: len(FOREIGN)] == list(FOREIGN)
    assert setup.daemon.config.stat().st_mode & 0o777 == 0o640
    copy = Path(host.backups[str(setup.daemon.config)])
    assert json.loads(copy.read_text()) == FOREIGN
    # New containers go through the runtime (a simulation of it, that calls runc), with the size asked for.
    assert " 1024 " in setup.daemon.run("--rm", "tiny:1", "/bin/df", "-m", "/dev/shm")
    assert setup.daemon.docker("inspect", "-f", "{{.HostConfig.Runtime}}", "job").stdout.strip() == "runc"

    # And a second run does nothing at all.
    before = setup.state()
    again = setup.apply(default_runtime="nvidia", shm_size="1G")
    assert (again.done, setup.signals, setup.commands, setup.state()) == ([], [], [], before)

    # The file holds over a restart.
    setup.daemon.docker("rm", "-f", "job")
    setup.daemon.stop()
    assert setup.daemon.start(), setup.daemon.log()
    assert setup.info["default_runtime"] == "nvidia"
    assert setup.apply(default_runtime="nvidia", shm_size="1G").done == []


def test_check_mode_says_and_does_nothing(make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN)
    before = setup.state()
    host = setup.apply(check=True)
    assert host.done == [f"changed {setup.daemon.config}", f"had docker read {setup.daemon.config} again"]
    assert (setup.state(), setup.signals, setup.backup.exists()) == (before, [], False)
    assert "nvidia" in host.diff[0]["after"]


def test_no_restart_under_a_container_without_consent(make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN)
    setup.daemon.run("-d", "--name=training", "-e", "NVIDIA_VISIBLE_DEVICES=all", "tiny:1", "/bin/sleep", "300")
    pid = setup.daemon.pid

    host = setup.apply(cdi=True)
    assert host.restart_because == ["docker applies features.cdi only when it starts"]
    assert [(row["name"], row["image"], row["gpu"]) for row in host.in_the_way] == [("training", "tiny:1", False)]
    assert (setup.daemon.pid, setup.restarts()) == (pid, 0)
    assert "nvidia" in setup.info["runtimes"], "what a reload takes up did not wait"

    again = setup.apply(cdi=True)
    assert (again.done, again.restart_because, setup.restarts(), setup.signals) == ([], host.restart_because, 0, [])
    never = setup.apply("never", cdi=True)
    assert (never.restart_because, setup.restarts()) == (host.restart_because, 0)

    setup.daemon.docker("rm", "-f", "training")
    idle = setup.apply(cdi=True)
    assert (idle.done, idle.restart_because, setup.restarts()) == (["restarted docker"], [], 1)
    assert setup.daemon.pid != pid
    assert setup.apply(cdi=True).done == []


def test_a_toolkit_that_came_after_docker_needs_a_restart(
    make: Callable[..., Setup], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = make(FOREIGN)
    hook = setup.daemon.bin / "nvidia-container-runtime-hook"
    monkeypatch.setattr(daemon_flags, "HOOK", str(hook))
    called = setup.daemon.folder / "called"
    hook.write_text(f"#!/bin/sh\ncat > /dev/null\necho called >> {called}\n")
    hook.chmod(0o755)
    setup.daemon.run("-d", "--name=job", "tiny:1", "/bin/sleep", "300")

    host = setup.apply()
    assert host.restart_because == ["docker applies --gpus only when it starts"]
    assert [row["name"] for row in host.in_the_way] == ["job"]
    # It is true, and what can be had without a restart is there.
    refused = setup.daemon.docker("run", "--rm", "--network=none", "--gpus=all", "tiny:1", "/bin/true", check=False)
    assert "could not select device driver" in refused.stderr
    assert "nvidia" in setup.info["runtimes"]

    setup.daemon.docker("rm", "-f", "job")
    assert setup.apply().done == ["restarted docker"]
    setup.daemon.run("--rm", "--gpus=all", "tiny:1", "/bin/true")
    assert called.read_text() == "called\n"
    assert setup.apply().done == []


def test_always_is_consent(make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN)
    # What does not end by itself is waited for as long as its owner said: docker's 10 s are not what is tested.
    setup.daemon.run("-d", "--name=job", "--stop-timeout=1", "tiny:1", "/bin/sleep", "300")
    host = setup.apply("always", cdi=True)
    assert (host.in_the_way, setup.restarts()) == ([], 1)
    assert setup.daemon.docker("ps", "-q").stdout == ""


def test_live_restore_keeps_containers_over_a_restart(make: Callable[..., Setup]) -> None:
    setup = make({**FOREIGN, "live-restore": True})
    setup.daemon.run("-d", "--name=job", "tiny:1", "/bin/sleep", "300")
    host = setup.apply(cdi=True)
    assert (host.restart_because, setup.restarts()) == ([], 1)
    assert "job" in setup.daemon.docker("ps").stdout


def test_a_restart_by_somebody_else_counts(make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN)
    setup.daemon.run("-d", "--name=job", "tiny:1", "/bin/sleep", "300")
    assert setup.apply("never", cdi=True).restart_because
    setup.daemon.docker("rm", "-f", "job")
    setup.daemon.stop()
    assert setup.daemon.start(), setup.daemon.log()
    again = setup.apply("never", cdi=True)
    assert (again.done, again.restart_because) == ([], [])
    assert not Path(containers_files.PENDING).exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"no-such-option": true}', "no-such-option"),
        ('{"default-runtime": "kata"}', "kata"),
        ('{"runtimes": {"runc": {"path": "/opt/runc"}}}', "runc"),
        ('{"hosts": ["tcp://127.0.0.1:1"]}', "hosts is given by a flag"),
    ],
)
def test_what_dockerd_would_refuse_never_reaches_its_path(make: Callable[..., Setup], text: str, words: str) -> None:
    setup = make("{}")
    setup.write(text)
    before = setup.state()
    with pytest.raises(containers_host.ContainerError) as caught:
        setup.apply()
    assert words in caught.value.message
    assert caught.value.hint
    assert (setup.state(), setup.signals, setup.restarts()) == (before, [], 0)
    # It is true: dockerd does not start with it.
    setup.daemon.stop()
    assert not setup.daemon.start(10)


def test_a_file_that_cannot_be_read_stays(make: Callable[..., Setup]) -> None:
    setup = make("{}")
    setup.write('{\n  "log-level": "info"\n  "default-runtime": "nvidia"\n}\n')
    before = setup.state()
    with pytest.raises(containers_host.ContainerError) as caught:
        setup.apply()
    assert caught.value.code == "containers.daemon_json"
    assert f"{setup.daemon.config}, line 2, column 22: a comma is missing" in caught.value.message
    assert setup.state() == before


def test_a_runtime_by_flag_is_one(make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN, "--add-runtime=nvidia=nvidia-container-runtime")
    before = setup.state()
    host = setup.apply()
    assert (host.done, setup.state()) == ([], before)
    assert "registered by a flag" in host.warnings[0]


def test_another_runtime_by_flag_stands_in_the_way(make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN, "--add-runtime=kata=/usr/bin/kata-runtime")
    before = setup.state()
    with pytest.raises(containers_host.ContainerError) as caught:
        setup.apply()
    assert caught.value.code == "containers.flag_conflict"
    assert '"kata": {"path": "/usr/bin/kata-runtime"}' in caught.value.hint
    assert setup.state() == before
    # What the hint says works: the flag goes, the file has it.
    setup.daemon.stop()
    setup.daemon.flags = ()
    setup.write({**FOREIGN, "runtimes": {"kata": {"path": "/usr/bin/kata-runtime"}}})
    assert setup.daemon.start(), setup.daemon.log()
    setup.apply()
    assert {"kata", "nvidia"} <= set(setup.info["runtimes"])


def test_an_empty_file_becomes_one_that_dockerd_starts_with(make: Callable[..., Setup]) -> None:
    setup = make("{}")
    setup.write("")
    setup.apply()
    setup.daemon.stop()
    assert setup.daemon.start(), setup.daemon.log()
    assert "nvidia" in setup.info["runtimes"]


def test_a_daemon_that_does_not_come_up_gets_its_old_file_back(make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN)
    old = setup.daemon.config.read_bytes()
    with pytest.raises(containers_host.ContainerError) as caught:
        # passes dockerd's own validation, and fails at the start
        setup.apply(cgroup_driver="nonsense")
    assert caught.value.code == "containers.docker_down"
    assert caught.value.because[0] == "the earlier file is restored, and docker runs"
    assert setup.daemon.config.read_bytes() == old
    assert setup.info["version"]


def test_cut_off_between_file_and_daemon(make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN)

    def cut_off(pid: int, number: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        setup.apply(kill=cut_off, shm_size="1G")
    assert "nvidia" in setup.daemon.config.read_text()
    assert "nvidia" not in setup.info["runtimes"]
    host = setup.apply(shm_size="1G")
    assert host.done == [f"had docker read {setup.daemon.config} again"]
    assert "nvidia" in setup.info["runtimes"]
    assert " 1024 " in setup.daemon.run("--rm", "tiny:1", "/bin/df", "-m", "/dev/shm")
    assert setup.apply(shm_size="1G").done == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "etc"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(folder)], capture_output=True)
    if made.returncode != 0:
        pytest.skip("no mounts here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=False, capture_output=True)


def test_a_full_disk(small_disk: Path, make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN)
    before = setup.state()
    try:
        (small_disk / "fill").write_bytes(b"x" * 16384)
    except OSError as error:
        assert error.errno == 28
    with pytest.raises(containers_host.ContainerError) as caught:
        setup.apply()
    assert caught.value.code == "containers.file"
    assert "No space left on device" in caught.value.message
    assert (setup.state(), {path.name for path in small_disk.iterdir()}) == (before, {"daemon.json", "fill"})
    (small_disk / "fill").unlink()
    setup.apply()
    assert "nvidia" in setup.info["runtimes"]


def test_a_read_only_etc(small_disk: Path, make: Callable[..., Setup]) -> None:
    setup = make(FOREIGN)
    before = setup.state()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(containers_host.ContainerError) as caught:
        setup.apply()
    assert "Read-only file system" in caught.value.message
    assert setup.state() == before
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    setup.apply()
    assert "nvidia" in setup.info["runtimes"]


def test_gpu_containers_are_told_from_others() -> None:
    cases = [
        ({"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}, True),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, True),
        ({"Devices": [{"PathOnHost": "/dev/nvidia0"}]}, True),
        ({"Runtime": "nvidia"}, False),
        ({"Runtime": "runc"}, False),
    ]
    for config, expected in cases:
        assert docker_api.wants_gpu({"HostConfig": config, "Config": {"Env": []}}) is expected, config
    row = {"HostConfig": {"Runtime": "nvidia"}, "Config": {"Env": ["NVIDIA_VISIBLE_DEVICES=all"]}}
    assert docker_api.wants_gpu(row)


def test_no_answer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(docker_api.DockerError, match="no answer"):
        docker_api.Client(str(tmp_path / "nobody.sock")).info()
