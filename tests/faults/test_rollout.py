"""A few hosts at a time, end to end on simulated hosts: canaries, hooks, what is left alone, a killed controller, a lost host."""

import json
import os
import signal
import time
from collections import Counter

import pytest
import yaml

from provision.lib import yaml_reader
from tests import sample
from tests.faults.conftest import Command, driver_packages, holds
from tests.lab import Lab

pytestmark = pytest.mark.lab

OLD = ["550 open dkms held"]
HOSTS = [
    {"name": "a1", "gpus": ["A100"], "nouveau": False},
    {"name": "a2", "gpus": ["A100"], "nouveau": False},
    {"name": "a3", "gpus": ["A100"], "nouveau": False},
    {"name": "broken", "gpus": ["A100"], "nouveau": False},
    {"name": "h1", "gpus": ["H100 PCIe"], "nouveau": False},
    {"name": "h2", "gpus": ["H100 PCIe"], "nouveau": False},
    {"name": "busy", "gpus": ["A100 x2"], "nouveau": False, "installed": OLD, "busy": True},
    {"name": "b1", "gpus": ["A100 x2"], "nouveau": False},
    {"name": "r1", "gpus": ["RTX 4090"], "nouveau": False},
    {"name": "r2", "gpus": ["RTX 4090"], "nouveau": True},
    {"name": "gone", "gpus": ["RTX 4090"], "nouveau": False},
    {"name": "v1", "gpus": ["V100"], "nouveau": False},
]
# Beside the twelve: hosts that need a reboot, for a rollout of their own.
MORE = [{"name": name, "gpus": ["RTX 4090"], "nouveau": True} for name in ("x1", "x2", "x3")]
if not sample.THOROUGH:
    # One of each fate, four kinds, and enough for a third wave.
    USUAL = ("a1", "a2", "a3", "broken", "h1", "busy", "r2", "gone")
    HOSTS, MORE = [host for host in HOSTS if host["name"] in USUAL], []
NAMES = [host["name"] for host in HOSTS]
KINDS = {host["name"]: tuple(host["gpus"]) for host in HOSTS}
BRANCH = ["-e", "nvidia_driver_branch=580-server"]
# A stand-in for scontrol on the controller, one for a service manager on hosts: each writes down that it was called.
SCONTROL = """#!/bin/sh
printf '%s %s %s\\n' "$GPU_ROLLOUT_PHASE" "$GPU_ROLLOUT_HOST" "$*" >> "$(dirname "$0")/called"
"""


def hooks(log):
    """Hooks of the groups: Slurm's on the controller, a service's on the host."""
    slurm = str(log / "scontrol")
    return {
        "slurm": {
            "hosts": dict.fromkeys(["a1", "a2", "a3", "broken"]),
            "vars": {
                "gpu_rollout_drain": {
                    "command": [slurm, "update", "nodename={{ inventory_hostname }}", "state=drain"],
                    "on": "controller",
                    "timeout": 20,
                },
                "gpu_rollout_resume": {
                    "command": [slurm, "update", "nodename={{ inventory_hostname }}", "state=resume"],
                    "on": "controller",
                },
            },
        },
        "services": {
            "hosts": dict.fromkeys(["h1", "r2"]),
            "vars": {
                "gpu_rollout_drain": {"command": ["/usr/local/bin/service-hook", "stop", "$(touch /tmp/shell)"]},
                "gpu_rollout_resume": {"command": ["/usr/local/bin/service-hook", "start"]},
            },
        },
    }


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rollout")
    with Lab.start([*HOSTS, *MORE]) as lab:
        inventory = yaml_reader.load(lab.inventory.read_text())
        inventory["all"]["children"].update(hooks(folder))
        lab.inventory.write_text(yaml.safe_dump(inventory, sort_keys=False))
        (folder / "scontrol").write_text(SCONTROL)
        (folder / "scontrol").chmod(0o755)
        for name in ("h1", "r2"):
            lab.host(name).run(
                "printf '#!/bin/sh\\necho $GPU_ROLLOUT_PHASE $1 >> /var/log/service-hook\\n' > /usr/local/bin/service-hook && "
                "chmod 755 /usr/local/bin/service-hook"
            )
        lab.host("broken").fail_postinst("nvidia-kernel-common-580-server")
        lab.host("gone").stop()
        started = Command(lab, folder / "state")
        started.folder = folder
        yield started


def state_of(command):
    *_, path = sorted((command.folder / "state/gpu-provision/runs").glob("*/state.json"))
    return json.loads(path.read_text())


def wait_for(what, process, seconds=300):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        if what():
            return
        time.sleep(0.1)
    raise AssertionError("it did not come to that")


def test_killed_in_the_middle_and_gone_on_with(command):
    """Hosts of several kinds: one breaks, one is in use, one is off; the controller is killed in the third wave."""
    lab = command.lab
    canary, batch = len(set(KINDS.values())), 4 if sample.THOROUGH else 3
    sizes = ["--canary", str(canary), "--batch", str(batch), "--max-failures", "1"]
    words = ["apply", "--yes", *BRANCH, *sizes, "-l", ",".join(NAMES)]
    process = command.start(*words)
    runs = command.folder / "state/gpu-provision/runs"

    def in_the_middle():
        if not list(runs.glob("*/state.json")):
            return False
        state = state_of(command)
        hosts = state["hosts"]
        third = list(state["waves"][2]["hosts"]) if len(state["waves"]) > 2 else []
        return any(hosts[name]["status"] == "running" for name in third)

    wait_for(in_the_middle, process)
    time.sleep(1.5)
    os.kill(process.pid, signal.SIGKILL)
    said = process.communicate()[0]
    state = state_of(command)
    assert [wave["kind"] for wave in state["waves"]][:3] == ["canary", "canary", "batch"], said
    canaries = [name for wave in state["waves"] if wave["kind"] == "canary" for name in wave["hosts"]]
    kinds = {KINDS[name] for name in NAMES if name not in ("busy", "gone")}
    assert {KINDS[name] for name in canaries} == kinds, "one canary of each kind"
    assert max(len(wave["hosts"]) for wave in state["waves"]) <= batch
    assert state["ended"] is None
    drained = [name for name, host in state["hosts"].items() if host["resume"] == "due"]
    assert drained, "killed while hosts were drained"

    done = command.run("apply", "--resume", "last", "--yes", *BRANCH, "--json", rc=4)
    document = json.loads(done.stdout)
    statuses = {name: host["status"] for name, host in document["hosts"].items()}
    fates = {"broken": "failed", "busy": "busy", "gone": "unreachable"}
    assert statuses == {**dict.fromkeys(NAMES, "done"), **fates}, done.stdout
    assert document["hosts"]["busy"]["because"], "the processes are named"
    assert document["hosts"]["r2"]["rebooted"] is True or "r2" in canaries
    for name, status in statuses.items():
        if status == "done":
            host = lab.host(name)
            assert host.run("nvidia-smi -L").stdout.startswith("GPU 0")
            assert set(driver_packages(host)) <= holds(host)
    assert {v for n, v in driver_packages(lab.host("busy")).items() if n.startswith("libnvidia-compute")} == {
        version for version in driver_packages(lab.host("busy")).values() if version.startswith("550")
    }
    called = Counter(
        line.split()[0] + " " + line.split()[1] for line in (command.folder / "called").read_text().splitlines()
    )
    begun = [name for name in NAMES if name in ("a1", "a2", "a3", "broken")]
    assert called == {f"{phase} {name}": 1 for name in begun for phase in ("drain", "resume")}, called
    for name in ("h1", "r2"):
        host = lab.host(name)
        assert host.run("cat /var/log/service-hook").stdout.split("\n")[:-1] == ["drain stop", "resume start"]
        assert not host.run("ls /tmp/shell", check=False).stdout, "a hook went through a shell"
    assert state_of(command)["ended"] and not [h for h in state_of(command)["hosts"].values() if h["resume"] == "due"]

    # What is left is named, and nothing that is done is done again.
    before = driver_packages(lab.host("a1")), lab.host("a1").run("cat /var/log/apt/history.log").stdout
    lab.host("broken").fail_postinst()
    again = command.run("apply", "--resume", "last", "--yes", *BRANCH, "--json", rc=4)
    document = json.loads(again.stdout)
    assert document["hosts"]["broken"]["status"] == "done"
    assert before == (driver_packages(lab.host("a1")), lab.host("a1").run("cat /var/log/apt/history.log").stdout)


@pytest.mark.thorough
def test_a_host_in_use_is_waited_for(command):
    """The job ends while it is waited for; what was agreed to is done then, and not before."""
    host = command.lab.host("busy")
    words = ["apply", "--yes", *BRANCH, "--wait", "2m", "-l", "busy"]
    done = command.run("apply", "--yes", *BRANCH, "--wait", "3s", "-l", "busy", rc=5)
    assert "in use after 3 s of waiting" in done.stderr and "python3" in done.stderr
    process = command.start(*words)
    said = ""
    while "waiting for GPUs that are in use: busy: python3" not in said:
        line = process.stdout.readline()
        assert line, said
        said += line
    assert {version[:3] for version in driver_packages(host).values() if version.startswith("5")} == {"550"}
    host.run("systemctl stop sim-job.service")
    host.machine(busy=False)
    said += process.communicate(timeout=200)[0]
    assert process.returncode == 0, said
    assert {version[:3] for version in driver_packages(host).values() if version.startswith("5")} == {"580"}
    assert [wave["kind"] for wave in state_of(command)["waves"]] == ["waited"]


# tests/unit/test_rollout.py; with a real kernel: tests/metal.
@pytest.mark.thorough
def test_a_host_that_does_not_come_back_stops_it(command):
    """The other of its wave is finished, the third is not begun; once it is up, the run goes on to its end."""
    lost, limit = command.lab.host("x1"), ["-e", "nvidia_driver_reboot_timeout=20"]
    lost.run("systemctl mask ssh.service ssh.socket")
    words = ["apply", "--yes", "--batch", "2", "--max-failures", "100%", "-l", "x1,x2,x3", *limit]
    document = json.loads(command.run(*words, "--json", rc=4).stdout)
    assert {name: host["status"] for name, host in document["hosts"].items()} == {
        "x1": "unreachable",
        "x2": "done",
        "x3": "not_started",
    }
    issues = {issue["code"]: issue for issue in document["errors"]}
    assert issues["reboot.not_back"]["host"] == "x1" and "within 20 s" in issues["reboot.not_back"]["message"]
    assert document["stopped"] == "x1 did not come back from the reboot"
    assert document["hosts"]["x2"]["rebooted"] is True
    assert issues["rollout.stopped"]["because"] == ["done: x2", "half-way: x1", "not begun: x3"]

    lost.run("systemctl unmask ssh.service ssh.socket && systemctl start ssh.service")
    boot = command.lab.host("x2").run("cat /proc/sys/kernel/random/boot_id").stdout
    document = json.loads(command.run("apply", "--resume", "last", "--yes", "--json").stdout)
    assert {host["status"] for host in document["hosts"].values()} == {"done"}
    assert command.lab.host("x2").run("cat /proc/sys/kernel/random/boot_id").stdout == boot
    assert document["hosts"]["x1"]["checks"], "it was proven"


def test_plain_ansible_drains_and_resumes_too(command):
    """The playbook rolling.yml: the same hooks around the same roles; a host that is not drained is not touched, and resumed."""
    host = command.lab.host("h1")
    words = ["-l", "h1,v1" if sample.THOROUGH else "h1", *BRANCH, "-e", "gpu_provision_serial=1"]
    done = command.ansible("rolling.yml", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert host.run("tail -n 2 /var/log/service-hook").stdout.splitlines() == ["drain stop", "resume start"]
    assert driver_packages(host), "the roles ran in between"

    before = host.run("cat /var/log/service-hook").stdout
    history = host.run("cat /var/log/apt/history.log").stdout
    refuses = json.dumps({"gpu_rollout_drain": {"command": ["sh", "-c", "echo no >&2; exit 4"]}})
    failed = command.ansible("rolling.yml", "-l", "h1", "-e", refuses, "-e", "nvidia_driver_branch=595-server")
    assert failed.returncode != 0 and "the drain hook sh ended with 4" in failed.stdout, failed.stdout
    assert host.run("cat /var/log/service-hook").stdout == before + "resume start\n"
    assert host.run("cat /var/log/apt/history.log").stdout == history
