"""Hosts that drift, each in a way of its own: all are named, and nothing else; apply and a person bring them back.

A simulation: kernel, cards, conda and NVIDIA's programs are stand-ins; apt, dpkg, systemd, ssh and docker are real.
"""

import json

import pytest
import yaml

from tests import sample
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
# Twelve in make test-all. Each way is a rule of tests/cases/drift.yml; here is one of each end: apply's, a person's, the lock's.
NAMES = (*PLAIN, *CUDA, "conda", "docker") if sample.THOROUGH else ("hold", "card", "kernel", "ahead", "pin")
HOSTS = [host for host in HOSTS if host["name"] in NAMES]


def add_docker(lab):
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


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """The hosts, as the inventory wants them, and locked."""
    with Lab.start(HOSTS) as lab:
        if "docker" in NAMES:
            add_docker(lab)
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
    assert set(document["hosts"]) == set(NAMES)
    assert document["lock"] == str(fleet.lab.inventory.parent / "fleet.lock.yml")


def new_library(host):
    host.run(
        "apt-get update -qq && apt-get install -y -qq --allow-change-held-packages libnccl2 libnccl-dev"
        " && apt-mark hold libnccl2 libnccl-dev"
    )


def no_runtimes(host):
    edited = json.loads(host.run("cat /etc/docker/daemon.json").stdout)
    del edited["runtimes"]
    host.run(["sh", "-c", 'printf %s "$0" > /etc/docker/daemon.json', json.dumps(edited)])


def lost_card(host):
    host.machine(gpus=host.machine()["gpus"][:1])
    host.restart()


# What is done to each host, and what is told of it.
DRIFT = {
    "hold": ("apt-mark unhold libnvidia-compute-595-server", ["holds.driver"]),
    "ahead": (new_library, ["packages.ahead"]),
    "source": (
        "echo 'deb [trusted=yes] http://other.test/ubuntu noble main' > /etc/apt/sources.list.d/mine.list",
        ["sources.added"],
    ),
    "docker": (no_runtimes, ["containers.containers"]),
    "card": (lost_card, ["hardware.card_missing"]),
    "profile": ("echo 'export PATH=/opt/mine:$PATH' >> /etc/profile.d/gpu-provision-cuda.sh", ["files.own"]),
    "unattended": ("sed -i '/nvidia-/d' /etc/apt/apt.conf.d/52gpu-provision", ["sources.own"]),
    "kernel": (f"apt-get update -qq && apt-get install -y -qq linux-image-{NEXT}", ["boot.kernel", "boot.module"]),
    "conda": ("/opt/miniconda3/bin/conda install -y -n tools mkl", ["conda.packages"]),
    "pcie": ("echo 8 > /sys/bus/pci/devices/0000:1b:00.0/current_link_width", ["hardware.pcie_width"]),
    "persistence": (": > /run/sim/persistence", ["services.unit"]),
    "pin": ("rm /etc/apt/preferences.d/gpu-provision.pref", ["sources.own"]),
}


def test_all_ways_to_drift_are_named_and_nothing_else(fleet, tmp_path):
    lab = fleet.lab
    lab.publish("kernel", "cuda")
    for name in NAMES:
        how, _ = DRIFT[name]
        how(lab.host(name)) if callable(how) else lab.host(name).run(how)
    metrics = tmp_path / "drift.prom"
    document = fleet.json("drift", "--metrics", str(metrics), rc=2)
    found = codes(document)
    assert found == {name: DRIFT[name][1] for name in NAMES}
    assert 'gpu_provision_drift_host_drifted{host="card"} 1' in metrics.read_text()
    table = fleet.run("drift", rc=2).stdout
    assert all(name in table for name in found)


def test_apply_brings_back_what_software_can_and_a_person_the_rest(fleet):
    lab = fleet.lab
    fleet.run("apply", "--yes", timeout=600)
    left = {
        "source": ["sources.added"],
        "card": ["hardware.card_missing"],
        "pcie": ["hardware.pcie_width"],
        "kernel": ["boot.kernel"],
        "conda": ["conda.packages"],
    }
    assert codes(fleet.json("drift", rc=2)) == {name: told for name, told in left.items() if name in NAMES}
    if "source" in NAMES:
        lab.host("source").run("rm /etc/apt/sources.list.d/mine.list")
    if "pcie" in NAMES:
        lab.host("pcie").run("echo 16 > /sys/bus/pci/devices/0000:1b:00.0/current_link_width")
    card = lab.host("card").machine()["gpus"][0]
    lab.host("card").machine(gpus=[card, {**card, "slot": "0000:43:00.0", "uuid": "GPU-0", "numa": 1}])
    lab.host("card").restart()
    lab.host("kernel").restart()
    # taken over, not undone
    limit = ",".join(name for name in ("kernel", "conda") if name in NAMES)
    said = fleet.run("lock", "--update", "--only", "conda", "-l", limit).stdout
    assert NEXT in said and ("mkl" in said or "conda" not in NAMES)
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
