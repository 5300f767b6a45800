"""container.run against a real dockerd: an image of the host's C library, a container that ends, nothing left behind.

What NVIDIA's toolkit does is a SIMULATION here: a hook that puts a program called nvidia-smi into the container.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.prove import container as prove_container
from provision.parts.proof import Bounds, Measured
from provision.parts.proofs import judge
from tests.lab.containers.daemons import NoDaemonsError, RealDocker, binaries

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="dockerd needs root")

HOOK = """\
#!{python}
import json, os, shutil, sys
state = json.load(sys.stdin)
root = json.load(open(os.path.join(state["bundle"], "config.json")))["root"]["path"]
os.makedirs(root + "/usr/bin", exist_ok=True)
shutil.copy("{busybox}", root + "/usr/bin/busybox")
shutil.copy("/bin/echo", root + "/usr/bin/echo")
with open(root + "/usr/bin/nvidia-smi", "w") as file:
    file.write("#!/usr/bin/busybox sh\\n" + {script!r} + "\\n")
os.chmod(root + "/usr/bin/nvidia-smi", 0o755)
"""
# The host's echo is linked with the C library: it runs only where the image has that.
TWO = '/usr/bin/echo "GPU 0: SIMULATED (UUID: GPU-0)"; /usr/bin/echo "GPU 1: SIMULATED (UUID: GPU-1)"'


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RealDocker]]:
    try:
        root = binaries()
    except NoDaemonsError as error:
        pytest.skip(str(error))
    started: list[RealDocker] = []

    def start(script: str | None = TWO) -> RealDocker:
        daemon = RealDocker(tmp_path)
        started.append(daemon)
        if script is not None:
            hook = daemon.bin / "nvidia-container-runtime-hook"
            busybox = str(root / "bin/busybox")
            hook.write_text(HOOK.format(python=shutil.which("python3"), busybox=busybox, script=script))
            hook.chmod(0o755)
        limits = '"default-ulimits": {"nofile": {"Name": "nofile", "Hard": 1024, "Soft": 1024}}'
        daemon.config.write_text("{" + limits + "}")
        assert daemon.start(), daemon.log()
        monkeypatch.setattr(prove_container, "SOCKET", str(daemon.socket))
        monkeypatch.setattr(prove_container, "_which", lambda name: str(root / "usr/bin/docker"))
        return daemon

    yield start
    for daemon in started:
        daemon.remove()


def prove(timeout: float = 60.0, **args: object) -> tuple[str, str, list[str], str | None, dict[str, float]]:
    row = prove_container.prove_docker({"docker": True, **args}, False, timeout)
    said = judge(Measured(id="container.run[docker]", **row), Bounds())
    return said.status, said.message, said.evidence, said.hint, said.numbers


def left(daemon: RealDocker) -> list[str]:
    """Containers and images that are there."""
    return (daemon.docker("ps", "-aq").stdout + daemon.docker("images", "-q").stdout).split()


def test_a_container_sees_the_cards_and_nothing_stays(make: Callable[..., RealDocker]) -> None:
    daemon = make()
    status, message, evidence, _, numbers = prove(gpus=2)
    assert (status, message) == ("pass", "docker run --gpus all: 2 GPUs"), evidence
    assert numbers["gpus"] == 2 and numbers["start_s"] > 0
    assert evidence[0] == "image of the host's own C library"
    assert left(daemon) == []


def test_fewer_cards_than_the_host_has(make: Callable[..., RealDocker]) -> None:
    make('/usr/bin/echo "GPU 0: SIMULATED"')
    status, message, *_ = prove(gpus=2)
    assert status == "warn" and "sees 1 GPUs, the host has 2" in message


def test_a_daemon_without_the_toolkit(make: Callable[..., RealDocker]) -> None:
    daemon = make(None)
    status, message, evidence, hint, _ = prove()
    assert status == "fail" and "does not know NVIDIA's toolkit" in message, evidence
    assert hint and "systemctl restart docker" in hint
    assert left(daemon) == []


def test_a_program_that_hangs_is_ended_with_its_container(make: Callable[..., RealDocker]) -> None:
    daemon = make("/usr/bin/busybox sleep 300")
    status, message, *_ = prove(timeout=12.0)
    assert status == "fail" and "did not end in time" in message
    assert left(daemon) == []


def test_an_image_that_cannot_be_had_is_no_broken_gpu(make: Callable[..., RealDocker]) -> None:
    daemon = make()
    status, message, *_ = prove(image="registry.invalid/cuda:12")
    assert status == "skip" and "cannot be pulled" in message
    assert left(daemon) == []


def test_an_image_that_is_here_is_taken_and_stays(make: Callable[..., RealDocker]) -> None:
    daemon = make('/usr/bin/busybox echo "GPU 0: SIMULATED"')
    daemon.add_image("local:1")
    before = left(daemon)
    status, _, evidence, *_ = prove(image="local:1", gpus=1)
    assert status == "pass" and evidence[0] == "image local:1", evidence
    assert left(daemon) == before
