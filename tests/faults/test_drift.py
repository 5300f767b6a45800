"""Twelve hosts that drift in twelve ways: all are named, and nothing else; apply and a person bring them back.

A simulation: kernel, cards, conda and NVIDIA's programs are stand-ins; apt, dpkg, systemd, ssh and docker are real.
"""

import json

import pytest
import yaml

from tests.bench.__main__ import CONVERGED
from tests.faults.conftest import Command
from tests.lab import Lab, engine, repos
from tests.lab.conda import publish
from tests.lab.containers import debian
from tests.lab.containers.daemons import NoDaemonsError

pytestmark = pytest.mark.lab

PLAIN = ("hold", "source", "card", "unattended", "kernel", "pcie", "persistence")
CUDA = ("ahead", "profile", "pin")
NEXT = "6.8.0-48-generic"
TOOLKIT = {"nouveau": False, "gpus": ["H100 PCIe"], "toolkits": ["12.8 held"]}
HOSTS = [
    *(
        {"name": name, **CONVERGED, "nouveau": False, "gpus": ["H100 PCIe x2"] if name == "card" else CONVERGED["gpus"]}
        for name in PLAIN
    ),
    *({"name": name, **TOOLKIT, "installed": CONVERGED["installed"]} for name in CUDA),
    {
        "name": "conda",
        **CONVERGED,
        "nouveau": False,
        "extra": {**CONVERGED["extra"], "/etc/pip.conf": publish.PIP_CONF},
    },
]
DOCKER = {"name": "docker", **CONVERGED, "nouveau": False}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """The twelve, as the inventory wants them, and locked."""
    with Lab.start(HOSTS) as lab:
        with pytest.MonkeyPatch.context() as patch:
            flags = engine.Engine.boot_flags.fget
            private = property(lambda self: [*dict.fromkeys([*flags(self), "--cgroupns=private"])])
            # docker inside needs a cgroup namespace of its own
            patch.setattr(engine.Engine, "boot_flags", private)
            lab.add([DOCKER])
        try:
            debian.install_docker(lab.host("docker"))
        except NoDaemonsError as error:
            pytest.skip(str(error))
        folder = lab.inventory.parent / "host_vars"
        folder.mkdir(exist_ok=True)
        for name in CUDA:
            (folder / f"{name}.yml").write_text(yaml.safe_dump({"cuda_toolkit_versions": ["12.8"]}))
        (folder / "docker.yml").write_text(
            yaml.safe_dump(
                {
                    # the stand-in mounts no nvidia-smi
                    "container_toolkit_runtimes": ["docker"],
                    "gpu_verify_run": False,
                    "container_toolkit_repo_url": repos.toolkit_url(),
                    "container_toolkit_repo_key": "{{ nvidia_driver_repo_key }}",
                    "container_toolkit_repo_key_fingerprint": "{{ nvidia_driver_repo_key_fingerprint }}",
                }
            )
        )
        config = {**publish.variables(), "miniconda_environments": [{"name": "tools", "python": "3.11"}]}
        (folder / "conda.yml").write_text(yaml.safe_dump(config))
        command = Command(lab, tmp_path_factory.mktemp("state"))
        command.run("apply", "--yes", timeout=600)
        command.run("lock")
        yield command


def codes(document):
    """{host: codes of its items}, of the hosts that drifted."""
    return {name: [item["code"] for item in host["items"]] for name, host in document["hosts"].items() if host["items"]}


def test_hosts_that_nobody_touched_did_not_drift(fleet):
    document = fleet.json("drift")
    assert {host["status"] for host in document["hosts"].values()} == {"clean"}, document
    assert len(document["hosts"]) == 12
    assert document["lock"] == str(fleet.lab.inventory.parent / "fleet.lock.yml")


def test_twelve_ways_to_drift_are_all_named_and_nothing_else(fleet, tmp_path):
    lab = fleet.lab
    lab.publish("kernel", "cuda")
    lab.host("hold").run("apt-mark unhold libnvidia-compute-595-server")
    lab.host("ahead").run(
        "apt-get update -qq && apt-get install -y -qq --allow-change-held-packages libnccl2 libnccl-dev"
        " && apt-mark hold libnccl2 libnccl-dev"
    )
    lab.host("source").run(
        "echo 'deb [trusted=yes] http://other.test/ubuntu noble main' > /etc/apt/sources.list.d/mine.list"
    )
    edited = json.loads(lab.host("docker").run("cat /etc/docker/daemon.json").stdout)
    del edited["runtimes"]
    lab.host("docker").run(["sh", "-c", 'printf %s "$0" > /etc/docker/daemon.json', json.dumps(edited)])
    cards = lab.host("card").machine()["gpus"]
    lab.host("card").machine(gpus=cards[:1])
    lab.host("card").restart()
    lab.host("profile").run("echo 'export PATH=/opt/mine:$PATH' >> /etc/profile.d/gpu-provision-cuda.sh")
    lab.host("unattended").run("sed -i '/nvidia-/d' /etc/apt/apt.conf.d/52gpu-provision")
    lab.host("kernel").run(f"apt-get update -qq && apt-get install -y -qq linux-image-{NEXT}")
    lab.host("conda").run("/opt/miniconda3/bin/conda install -y -n tools mkl")
    lab.host("pcie").run("echo 8 > /sys/bus/pci/devices/0000:1b:00.0/current_link_width")
    lab.host("persistence").run(": > /run/sim/persistence")
    lab.host("pin").run("rm /etc/apt/preferences.d/gpu-provision.pref")
    metrics = tmp_path / "drift.prom"
    document = fleet.json("drift", "--metrics", str(metrics), rc=2)
    found = codes(document)
    assert found == {
        "hold": ["holds.driver"],
        "ahead": ["packages.ahead"],
        "source": ["sources.added"],
        "docker": ["containers.containers"],
        "card": ["hardware.card_missing"],
        "profile": ["files.own"],
        "unattended": ["sources.own"],
        "kernel": ["boot.kernel", "boot.module"],
        "conda": ["conda.packages"],
        "pcie": ["hardware.pcie_width"],
        "persistence": ["services.unit"],
        "pin": ["sources.own"],
    }
    assert 'gpu_provision_drift_host_drifted{host="pcie"} 1' in metrics.read_text()
    table = fleet.run("drift", rc=2).stdout
    assert all(name in table for name in found)


def test_apply_brings_back_what_software_can_and_a_person_the_rest(fleet):
    lab = fleet.lab
    fleet.run("apply", "--yes", timeout=600)
    assert codes(fleet.json("drift", rc=2)) == {
        "source": ["sources.added"],
        "card": ["hardware.card_missing"],
        "pcie": ["hardware.pcie_width"],
        "kernel": ["boot.kernel"],
        "conda": ["conda.packages"],
    }
    lab.host("source").run("rm /etc/apt/sources.list.d/mine.list")
    card = lab.host("card").machine()["gpus"][0]
    lab.host("card").machine(gpus=[card, {**card, "slot": "0000:43:00.0", "uuid": "GPU-0", "numa": 1}])
    lab.host("card").restart()
    lab.host("kernel").restart()
    lab.host("pcie").run("echo 16 > /sys/bus/pci/devices/0000:1b:00.0/current_link_width")
    # taken over, not undone
    said = fleet.run("lock", "--update", "--only", "conda", "-l", "kernel,conda").stdout
    assert "mkl" in said and NEXT in said
    assert codes(fleet.json("drift", rc=2)) == {"card": ["hardware.card_exchanged"]}
    fleet.run("lock", "--update", "--only", "conda", "-l", "card")
    assert codes(fleet.json("drift")) == {}


@pytest.mark.thorough
def test_plain_ansible_judges_the_same(fleet):
    lab = fleet.lab
    clean = fleet.ansible("drift.yml", "-l", "hold,ahead")
    assert clean.returncode == 0 and "changed=0" in clean.stdout, clean.stdout
    lab.host("hold").run("apt-mark unhold libnvidia-compute-595-server")
    drifted = fleet.ansible("drift.yml", "-l", "hold,ahead")
    assert drifted.returncode == 2, drifted.stdout + drifted.stderr
    assert "holds of the driver" in drifted.stdout and "failed=1" in drifted.stdout
    assert drifted.stdout.count("failed=1") == 1
