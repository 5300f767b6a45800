"""The role container_toolkit on a simulated GPU host with a real docker (Debian's): install, consent, second run, reboot.

The toolkit is a stand-in (packages.py), docker, apt, dpkg and systemd are real. What passes here has passed in a simulation.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, LabHost, engine, repos
from tests.lab.containers import debian
from tests.lab.containers.daemons import NoDaemonsError

ROOT = Path(__file__).parents[3]
PLAY = """\
- hosts: all
  gather_facts: false
  become: true
  roles: [gpu.provision.container_toolkit]
"""


@pytest.fixture(scope="module")
def host(request: pytest.FixtureRequest) -> Iterator[LabHost]:
    """A host with a driver and docker, both there before us; docker inside needs a cgroup namespace of its own."""
    patch = pytest.MonkeyPatch()
    flags = engine.Engine.boot_flags.fget  # type: ignore[attr-defined]
    patch.setattr(
        engine.Engine, "boot_flags", property(lambda self: [*dict.fromkeys([*flags(self), "--cgroupns=private"])])
    )
    spec = {"name": "dock", "gpus": ["A100 x2"], "installed": ["580-server open signed held"], "nouveau": False}
    try:
        with Lab.start([spec]) as lab:
            try:
                debian.install_docker(lab.host("dock"))
            except NoDaemonsError as error:
                pytest.skip(str(error))
            debian.add_image(lab.host("dock"))
            yield lab.host("dock")
    finally:
        patch.undo()


def play(host: LabHost, folder: Path, *words: str, **variables: Any) -> dict[str, Any]:
    """Run the role; returns {changed, failed, tasks: {name: result}}."""
    (folder / "play.yml").write_text(PLAY)
    values = {
        "container_toolkit_runtimes": ["docker"],
        "container_toolkit_repo_url": repos.toolkit_url(),
        "container_toolkit_repo_key": "{{ nvidia_driver_repo_key }}",
        "container_toolkit_repo_key_fingerprint": "{{ nvidia_driver_repo_key_fingerprint }}",
        **variables,
    }
    (folder / "vars.json").write_text(json.dumps(values))
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(
        [
            "ansible-playbook",
            "-i",
            str(host.lab.inventory),
            str(folder / "play.yml"),
            "-e",
            f"@{folder / 'vars.json'}",
            "-v",
            *words,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
        cwd=ROOT,
    )
    recap = next((line for line in done.stdout.splitlines() if line.startswith(f"{host.name} ")), "")
    numbers = dict(word.split("=") for word in recap.split() if "=" in word)
    return {"rc": done.returncode, "out": done.stdout + done.stderr, "changed": int(numbers.get("changed", -1))}


@pytest.mark.thorough
def test_docker_of_the_archive_on_request(own_lab: Lab, tmp_path: Path) -> None:
    """container_toolkit_install_docker: docker and the toolkit come in one transaction, and docker knows --gpus at once."""
    try:
        own_lab.served.add_release("24.04")
        own_lab.publish(packages=debian.packages("noble"))
    except NoDaemonsError as error:
        pytest.skip(str(error))
    spec = {"name": "bare", "gpus": ["H100"], "installed": ["580-server open signed held"], "nouveau": False}
    (host,) = own_lab.add([spec])
    done = play(host, tmp_path, container_toolkit_install_docker=True)
    assert done["rc"] == 0, done["out"]
    last = host.run("cat /var/log/apt/history.log").stdout.split("Start-Date")[-1]
    assert "docker.io:amd64" in last and "nvidia-container-toolkit:amd64" in last
    info = json.loads(host.run("docker info --format '{{json .}}'").stdout)
    assert info["Runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    again = play(host, tmp_path, container_toolkit_install_docker=True)
    assert (again["rc"], again["changed"]) == (0, 0), again["out"]


def test_from_nothing_to_gpus_in_containers(host: LabHost, tmp_path: Path) -> None:
    host.run("docker run -d --name job --network none tiny:1 /bin/sleep 600")
    before = host.run("cat /etc/docker/daemon.json; systemctl show docker -p MainPID").stdout

    # The toolkit comes under a running docker with a running job: everything but what needs a restart is done.
    first = play(host, tmp_path)
    assert first["rc"] == 0, first["out"]
    assert '"restart_required": true' in first["out"]
    assert '"name": "job"' in first["out"]
    assert "container_toolkit_restart_required" in first["out"]
    assert "it would end job (docker, tiny:1)" in first["out"], "words, not a row of the module"
    assert "job" in host.run("docker ps --format '{{.Names}}'").stdout
    pid = before.splitlines()[-1]
    assert pid in host.run("systemctl show docker -p MainPID").stdout, "docker was not restarted"
    value = json.loads(host.run("cat /etc/docker/daemon.json").stdout)
    assert value["labels"] == ["rack=7"]
    assert "nvidia" in host.run("docker info --format '{{json .Runtimes}}'").stdout
    held = host.run("apt-mark showhold").stdout.split()
    assert {
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container-tools",
        "libnvidia-container1",
    } <= set(held)
    assert "nvidia.com/gpu=1" in host.run("nvidia-ctk cdi list").stdout
    assert "/dev/nvidia" in host.run("ls -l /dev/char").stdout

    # Still in the way: nothing changes, and it says so again.
    second = play(host, tmp_path)
    assert (second["rc"], second["changed"]) == (0, 0), second["out"]
    assert '"restart_required": true' in second["out"]

    # The job is over: docker is restarted, --gpus reaches NVIDIA's hook.
    host.run("docker rm -f job")
    third = play(host, tmp_path)
    assert third["rc"] == 0 and '"restarted docker"' in third["out"], third["out"]
    host.run("docker run --rm --gpus all --network none tiny:1 /bin/true")
    assert host.run("cat /run/sim/nvidia-container-runtime-hook.log").stdout == "prestart\n"

    # And from then on nothing.
    last = play(host, tmp_path)
    assert (last["rc"], last["changed"]) == (0, 0), last["out"]


def test_no_daemon_reload_and_no_restart_by_the_module(host: LabHost, tmp_path: Path) -> None:
    """What is changed later is taken up without a restart, under a job, and systemd is not reloaded."""
    host.run("docker run -d --name job --network none tiny:1 /bin/sleep 600")
    since = host.run("date +%s").stdout.strip()
    pid = host.run("systemctl show docker -p MainPID").stdout
    done = play(host, tmp_path, container_toolkit_shm_size="1G")
    assert (done["rc"], done["changed"]) == (0, 1), done["out"]
    assert "1024" in host.run("docker run --rm --network none tiny:1 /bin/df -m /dev/shm").stdout
    assert host.run("systemctl show docker -p MainPID").stdout == pid
    assert "Reloading" not in host.run(f"journalctl -b --since @{since} _PID=1 -o cat").stdout
    host.run("docker rm -f job")


def test_a_broken_file_is_refused_before_anything(host: LabHost, tmp_path: Path) -> None:
    good = host.run("cat /etc/docker/daemon.json").stdout
    broken = good.rstrip().rstrip("}").rstrip() + ",\n}\n"
    host.run(f"cat > /etc/docker/daemon.json <<'EOF'\n{broken}EOF")
    done = play(host, tmp_path, container_toolkit_default_runtime="nvidia")
    assert done["rc"] != 0
    assert "a comma after the last entry" in done["out"]
    assert host.run("cat /etc/docker/daemon.json").stdout == broken
    host.run(f"cat > /etc/docker/daemon.json <<'EOF'\n{good}EOF")


# The rules: tests/cases/containers.yml; docker with one: tests/system/test_container_docker.py.
@pytest.mark.thorough
def test_n4_docker_gets_the_proxy_of_the_inventory_and_loses_it(host: LabHost, tmp_path: Path) -> None:
    """With a restart, under the same consent as every other; a second run does nothing."""
    proxy = {"gpu_proxy_http": "http://192.0.2.1:3128", "gpu_proxy_no_proxy": ["nvidia.sim.internal"]}
    host.run("docker run -d --name job --network none tiny:1 /bin/sleep 600")
    waits = play(host, tmp_path, **proxy)
    assert waits["rc"] == 0 and "it would end job (docker, tiny:1)" in waits["out"], waits["out"]
    assert "HTTP Proxy" not in host.run("docker info").stdout
    host.run("docker rm -f job")
    done = play(host, tmp_path, **proxy)
    assert done["rc"] == 0 and '"restarted docker"' in done["out"], done["out"]
    assert "HTTP Proxy: http://192.0.2.1:3128" in host.run("docker info").stdout
    again = play(host, tmp_path, **proxy)
    assert (again["rc"], again["changed"]) == (0, 0), again["out"]
    gone = play(host, tmp_path)
    assert gone["rc"] == 0, gone["out"]
    assert "HTTP Proxy" not in host.run("docker info").stdout


def test_it_holds_over_a_reboot(host: LabHost) -> None:
    host.restart()
    host.run("rm -f /var/run/cdi/nvidia.yaml && systemctl restart nvidia-cdi-refresh.service")
    assert host.run("systemctl is-enabled nvidia-cdi-refresh.path").stdout.strip() == "enabled"
    assert "nvidia.com/gpu=all" in host.run("nvidia-ctk cdi list").stdout
