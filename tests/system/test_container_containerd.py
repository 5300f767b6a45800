"""containerd's config.toml and a real containerd: which way in loses nothing, and that it starts with it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.containers import containerd, containerd_config
from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from ansible_collections.gpu.provision.plugins.module_utils.containers import host as containers_host
from ansible_collections.gpu.provision.plugins.module_utils.lib import host_tree
from tests.lab.containers.daemons import NoDaemonsError, binaries

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containerd needs root")

# As kubeadm's guide has people write it, with comments of their own.
KUBERNETES = """\
version = 2
# our own, ask Anna
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"  # for now
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = true

[plugins."io.containerd.grpc.v1.cri".registry]
  config_path = "/etc/containerd/certs.d"
"""
# What nvidia-ctk runtime configure --runtime=containerd writes beside it (container toolkit 1.17, config version 2).
BY_NVIDIA_CTK = """
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
      privileged_without_host_devices = false
      runtime_engine = ""
      runtime_root = ""
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
        BinaryName = "/usr/bin/nvidia-container-runtime"
        SystemdCgroup = true
"""


class Setup:
    """One containerd with files of its own; nothing below /etc."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.program = str(binaries() / "usr/bin/containerd")
        self.config = folder / "etc" / "config.toml"
        self.drop_in = folder / "etc" / "conf.d" / "99-gpu-provision-nvidia.toml"
        self.config.parent.mkdir()
        self.commands: list[list[str]] = []
        monkeypatch.setattr(containers_files, "PENDING", str(folder / "gpu-provision" / "pending.json"))
        monkeypatch.setattr(containerd_config, "CONFIG", str(self.config))
        monkeypatch.setattr(containerd_config, "DROP_IN", str(self.drop_in))
        monkeypatch.setattr(containerd_config, "PROGRAMS", (self.program,))
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, argv: list[str], timeout: float = 60.0, user: Any = None, fds: Any = ()) -> Any:
        self.commands.append(argv)
        if "restart" in argv:
            self.stop()
            return (0, "", "") if self.start() else (1, "", self.log())
        return containers_host.start(argv, timeout, user, fds)

    def apply(self, policy: str = "when_idle", check: bool = False, default: str = "") -> Any:
        self.commands.clear()
        host = containers_host.Host(host_tree.HostTree("/"), check, str(self.folder / "backup"), self.run)
        daemon = containerd.Containerd(host, policy)
        daemon.config = str(self.config)
        daemon.pid = self.process.pid if self.process else None
        daemon.started = daemon.pid and int(Path(f"/proc/{daemon.pid}/stat").read_text().split()[21])
        daemon.ensure({"default_runtime": default})
        return host

    def dump(self) -> Any:
        out = subprocess.run(
            [self.program, "--config", str(self.config), "config", "dump"], capture_output=True, text=True, check=True
        ).stdout
        return containerd_config.sections(out)

    def start(self) -> bool:
        binary = binaries() / "usr/bin"
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [
                    self.program,
                    "--config",
                    str(self.config),
                    "--root",
                    str(self.folder / "root"),
                    "--state",
                    str(self.folder / "state"),
                    "--address",
                    str(self.folder / "containerd.sock"),
                ],
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": f"{binary}:{os.environ['PATH']}"},
            )
        end = time.monotonic() + 20
        while time.monotonic() < end and self.process.poll() is None:
            if "containerd successfully booted" in self.log():
                return True
            time.sleep(0.1)
        return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)
            self.process = None

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def restarts(self) -> int:
        return sum("restart" in command for command in self.commands)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Setup]]:
    try:
        binaries()
    except NoDaemonsError as error:
        pytest.skip(str(error))
    made: list[Setup] = []

    def build(text: str | None) -> Setup:
        setup = Setup(tmp_path, monkeypatch)
        if text is not None:
            setup.config.write_text(text)
        made.append(setup)
        return setup

    yield build
    for setup in made:
        setup.stop()


PLUGIN = containerd_config.PLUGINS[2]


def test_what_an_import_would_lose_is_not_lost(make: Callable[..., Setup]) -> None:
    setup = make(KUBERNETES)
    before = setup.dump()
    # The rule is true of this containerd: an import alone forgets the section of the main file.
    main = containerd_config.with_import(KUBERNETES, 2, f"{setup.drop_in.parent}/*.toml")
    setup.drop_in.parent.mkdir()
    setup.drop_in.write_text(containerd_config.drop_in(2, PLUGIN, {}))
    setup.config.write_text(main)
    assert any("config_path" in line for line in containerd_config.lost(before, setup.dump(), PLUGIN))
    setup.config.write_text(KUBERNETES)
    shutil.rmtree(setup.drop_in.parent)

    assert setup.start(), setup.log()
    pid = setup.process.pid
    host = setup.apply()
    after = setup.dump()
    assert containerd_config.lost(before, after, PLUGIN) == []
    assert containerd_config.runtime_of(after, PLUGIN) == "/usr/bin/nvidia-container-runtime"
    options = after[("plugins", PLUGIN, "containerd", "runtimes", "nvidia", "options")]
    assert options["SystemdCgroup"] == "true", "the same cgroups as runc"
    assert setup.config.read_text().startswith(KUBERNETES)
    assert not setup.drop_in.exists()
    assert host.done == [f"changed {setup.config}", "restarted containerd (its containers keep running)"]
    assert Path(host.backups[str(setup.config)]).read_text() == KUBERNETES
    assert setup.process.pid != pid
    again = setup.apply()
    assert (again.done, setup.restarts()) == ([], 0)


def test_the_default_runtime_is_changed_in_its_line(make: Callable[..., Setup]) -> None:
    setup = make(KUBERNETES)
    before = setup.dump()
    setup.apply(default="nvidia")
    after = setup.dump()
    assert containerd_config.default_of(after, PLUGIN) == "nvidia"
    assert containerd_config.lost(before, after, PLUGIN, "nvidia") == []
    assert "# our own, ask Anna" in setup.config.read_text()
    assert setup.apply(default="nvidia").done == []


def test_no_file_at_all(make: Callable[..., Setup]) -> None:
    setup = make(None)
    setup.apply()
    assert containerd_config.is_registered(setup.dump(), PLUGIN)
    assert setup.apply().done == []


def test_an_empty_file(make: Callable[..., Setup]) -> None:
    setup = make("")
    setup.apply(default="nvidia")
    assert containerd_config.is_registered(setup.dump(), PLUGIN, "nvidia")


def test_debians_own_file(make: Callable[..., Setup]) -> None:
    setup = make((binaries() / "etc/containerd/config.toml").read_text())
    before = setup.dump()
    setup.apply()
    assert containerd_config.lost(before, setup.dump(), PLUGIN) == []
    assert containerd_config.is_registered(setup.dump(), PLUGIN)


def test_registered_already_by_nvidia_ctk(make: Callable[..., Setup]) -> None:
    text = KUBERNETES + BY_NVIDIA_CTK
    setup = make(text)
    assert setup.apply().done == []
    assert setup.config.read_text() == text


def test_the_default_beside_what_nvidia_ctk_registered(make: Callable[..., Setup]) -> None:
    text = KUBERNETES + BY_NVIDIA_CTK
    setup = make(text)
    before = setup.dump()
    setup.apply(default="nvidia")
    after = setup.dump()
    assert containerd_config.is_registered(after, PLUGIN, "nvidia")
    assert containerd_config.lost(before, after, PLUGIN, "nvidia") == []
    assert setup.apply(default="nvidia").done == []


def test_a_restart_waits_for_consent_and_is_made_up_for(make: Callable[..., Setup]) -> None:
    setup = make(KUBERNETES)
    assert setup.start(), setup.log()
    never = setup.apply("never")
    assert (never.restart_because, setup.restarts()) == ([f"containerd reads {setup.config} only when it starts"], 0)
    later = setup.apply()
    assert (later.done, later.restart_because) == (["restarted containerd (its containers keep running)"], [])
    assert setup.apply().done == []


def test_check_mode(make: Callable[..., Setup]) -> None:
    setup = make(KUBERNETES)
    assert setup.start(), setup.log()
    host = setup.apply(check=True)
    assert host.done == [f"changed {setup.config}", "restarted containerd (its containers keep running)"]
    assert setup.config.read_text() == KUBERNETES


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("version = 2\n[plugins\n", "containers.containerd_config", "containerd cannot read"),
        ('disabled_plugins = ["cri"]\n', "containers.containerd_version", "of version 1"),
        (
            'version = 2\nplugins = {"io.containerd.grpc.v1.cri" = {disable_cgroup = true}}\n',
            "containers.containerd_config",
            "no way to add a runtime",
        ),
    ],
)
def test_refused_and_not_one_byte_changed(make: Callable[..., Setup], text: str, code: str, words: str) -> None:
    setup = make(text)
    with pytest.raises(containers_host.ContainerError) as caught:
        setup.apply()
    assert caught.value.code == code
    assert words in caught.value.message
    assert caught.value.hint
    assert setup.config.read_text() == text
    assert not setup.drop_in.exists()
