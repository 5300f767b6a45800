"""The spine, end to end on simulated hosts: from nothing to a held driver, and what may go wrong on the way."""

import json
import re
import signal
import time

import pytest

from tests import sample
from tests.faults.conftest import driver_packages, holds, transactions, what_runs
from tests.lab import repos
from tests.lab.conda import publish

pytestmark = pytest.mark.lab


def test_from_nothing_to_verified_and_then_nothing_more(fleet):
    command = fleet(
        {"name": "gpu01", "gpus": ["H100 PCIe x2"], "nouveau": True},
        {"name": "gpu02", "gpus": ["RTX 4090"], "nouveau": True},
    )
    lab = command.lab
    before = command.json("plan", rc=2)
    assert {host["status"] for host in before["hosts"].values()} == {"changes"}
    boots = {name: lab.host(name).run("cat /proc/sys/kernel/random/boot_id").stdout for name in ("gpu01", "gpu02")}

    applied = command.json("apply", "--yes")
    assert {host["status"] for host in applied["hosts"].values()} == {"done"}
    assert applied["run_dir"]
    for name in ("gpu01", "gpu02"):
        host = lab.host(name)
        assert host.run("cat /proc/sys/kernel/random/boot_id").stdout != boots[name], "nouveau had the GPU: a reboot"
        assert host.run("nvidia-smi -L").stdout.count("GPU ") == (2 if name == "gpu01" else 1)
        assert set(driver_packages(host)) <= holds(host)
        installed = {f"{p['name']}" for p in before["hosts"][name]["packages"] if p["action"] == "install"}
        assert installed <= set(host.run("dpkg-query -W -f '${Package}\\n'").stdout.split())

    checks = command.json("verify")
    assert all(v["status"] in ("pass", "skip") for host in checks["hosts"].values() for v in host["checks"])

    # A second run: no playbook, no change; the plan agrees; plain Ansible agrees.
    again = command.json("apply", "--yes")
    assert again["run_dir"] is None
    assert {host["status"] for host in again["hosts"].values()} == {"unchanged"}
    assert {host["status"] for host in command.json("plan")["hosts"].values()} == {"converged"}
    plain = command.ansible("site.yml")
    assert plain.returncode == 0, plain.stdout + plain.stderr
    assert plain.stdout.count("changed=0") == 2, plain.stdout

    # Newer versions appear: everything else moves, nothing of NVIDIA's.
    lab.publish("drivers", "security")
    for name in ("gpu01", "gpu02"):
        host = lab.host(name)
        host.run("apt-get update -qq")
        simulated = host.run("apt-get -s dist-upgrade").stdout.splitlines()
        moved = [line.split()[1] for line in simulated if line.startswith("Inst")]
        assert moved, "the security updates must move"
        assert not [package for package in moved if "nvidia" in package]
        unattended = host.run("unattended-upgrade --dry-run --verbose 2>&1", timeout=300).stdout
        upgraded = [line for line in unattended.splitlines() if "Packages that will be upgraded" in line]
        assert upgraded and "nvidia" not in upgraded[0], unattended
    assert {host["status"] for host in command.json("plan")["hosts"].values()} == {"converged"}


# What a host is after a run: files with mode and hash, links, packages with their holds and marks, units, modules' options.
STATE = r"""
find /etc /usr/local /opt /lib/systemd/system /usr/share/keyrings -path /etc/sim -prune -o -name __pycache__ -prune -o -type f \
    -printf '%p %m %U:%G ' -exec sha256sum {} \;
find /etc /usr/local /opt /dev/char -type l -printf '%p %l\n'
dpkg-query -W -f '${Package} ${Version} ${Status}\n'
apt-mark showauto
systemctl list-unit-files --no-legend --no-pager --state=enabled,disabled,masked,static,indirect
find /var/lib/gpu-provision -printf '%p %m\n'
"""
# A machine's own, and the names of runs and their times.
OWN = re.compile(
    r"^/etc/(?:host(?:name|s) |machine-id |ssh/ssh_host_|resolv\.conf |ld\.so\.cache )|"
    r"^/var/lib/gpu-provision/(?:history|snapshots)/.|/conda-meta/(?:history|gpu-provision) "
)


# Plain Ansible: also the Molecule scenario and tests/package; the other parts have theirs in their own files.
@pytest.mark.thorough
def test_plain_ansible_alone_does_the_same(fleet):
    # A stand-in of podman: it runs on the host what is to run in a container.
    podman = '#!/bin/sh\n[ "$1" != run ] || exec nvidia-smi -L\necho podman version 4.9.3\n'
    files = {"/etc/pip.conf": publish.PIP_CONF, "/usr/bin/podman": podman}
    host = {"gpus": ["RTX 4090"], "nouveau": False, "extra": files, "run": ["chmod 755 /usr/bin/podman"]}
    command = fleet(*({"name": name, **host} for name in ("gpu01", "gpu02")))
    # Something of every part: driver, CUDA, conda, containers.
    values = {
        **publish.variables(),
        "cuda_toolkit_versions": ["12.8"],
        "miniconda_environments": [{"name": "py311cu124", "python": "3.11", "torch": "2.6.0", "cuda": "12.4"}],
        "container_toolkit_runtimes": ["podman"],
        "container_toolkit_repo_url": repos.toolkit_url(),
        "container_toolkit_repo_key": "{{ nvidia_driver_repo_key }}",
        "container_toolkit_repo_key_fingerprint": "{{ nvidia_driver_repo_key_fingerprint }}",
    }
    want = ("-e", json.dumps(values))
    plain = ("-l", "gpu01", *want)
    checked = command.ansible("site.yml", "--check", "--diff", *plain)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "changed=0" not in checked.stdout
    assert not driver_packages(command.lab.host("gpu01")), "check mode changed something"
    first = command.ansible("site.yml", *plain)
    assert first.returncode == 0, first.stdout + first.stderr
    second = command.ansible("site.yml", *plain)
    assert "changed=0" in second.stdout, second.stdout
    assert "failed=0" in second.stdout
    assert command.ansible("verify.yml", *plain).returncode == 0

    command.run("-l", "gpu02", *want, "apply", "--yes")
    command.run(*want, "plan")
    states = [command.lab.host(name).run(STATE, timeout=300).stdout.splitlines() for name in ("gpu01", "gpu02")]
    one, other = ({line for line in state if not OWN.search(line)} for state in states)
    assert sorted(one ^ other) == [] and len(one) > 500


@pytest.mark.thorough
def test_held_550_moves_to_580_in_one_transaction(fleet):
    command = fleet({"name": "gpu01", "gpus": ["A100"], "installed": ["550 open dkms held"]})
    host = command.lab.host("gpu01")
    everything = host.run("dpkg-query -W -f '${Package} ${Version}\\n'").stdout.splitlines()
    before, count = driver_packages(host), int(transactions(host))
    assert all("550" in version for name, version in before.items() if name.startswith("libnvidia-compute"))

    command.run("apply", "--yes", "-e", "nvidia_driver_branch=580-server")

    after = driver_packages(host)
    assert int(transactions(host)) == count + 1
    assert set(after) <= holds(host)
    assert not [name for name in after if "550" in name]
    others = {row for row in everything if row.split()[0] not in before}
    now = set(host.run("dpkg-query -W -f '${Package} ${Version}\\n'").stdout.splitlines())
    assert others <= now, "something else was touched"
    command.run("plan", "-e", "nvidia_driver_branch=580-server")


def test_apt_fails_in_the_middle_and_the_next_run_finishes(fleet):
    command = fleet({"name": "gpu01", "gpus": ["A100"], "installed": ["550 open dkms held"]})
    host = command.lab.host("gpu01")
    host.fail_postinst("nvidia-kernel-common-580-server")
    failed = command.run("apply", "--yes", "-e", "nvidia_driver_branch=580-server", rc=1)
    assert "gpu01" in failed.stderr and "nvidia-kernel-common-580-server" in failed.stderr
    assert "hint:" in failed.stderr
    assert set(driver_packages(host)) <= holds(host), "the holds are back"
    unfinished = host.run("dpkg --audit").stdout
    assert unfinished
    planned = command.json("plan", "-e", "nvidia_driver_branch=580-server", rc=2)
    assert planned["hosts"]["gpu01"]["status"] == "changes"

    host.fail_postinst()
    command.run("apply", "--yes", "-e", "nvidia_driver_branch=580-server")
    assert not host.run("dpkg --audit").stdout
    assert set(driver_packages(host)) <= holds(host)
    command.run("verify", "-e", "nvidia_driver_branch=580-server")


def test_interrupted_in_the_middle(fleet):
    command = fleet({"name": "gpu01", "gpus": ["A100"], "installed": ["550 open dkms held"]})
    host = command.lab.host("gpu01")
    process = command.start("apply", "--yes", "-e", "nvidia_driver_branch=580-server")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not host.run("pgrep -x dpkg", check=False).stdout:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    # The worker keeps the lock until it held again; in between no driver may be installed, and so none without a hold.
    waited = host.run("flock --timeout 60 /var/lib/gpu-provision/transaction.lock true", check=False)
    assert waited.rc == 0, what_runs(host)
    assert driver_packages(host), said
    assert set(driver_packages(host)) <= holds(host), f"a hold was lost; {said}{what_runs(host)}"
    command.run("apply", "--yes", "-e", "nvidia_driver_branch=580-server")
    assert not host.run("dpkg --audit").stdout
    assert set(driver_packages(host)) <= holds(host)
    command.run("verify", "-e", "nvidia_driver_branch=580-server")


# tests/faults/test_rollout.py has one that is off, tests/system/test_remote_ssh.py one whose password is wrong.
@pytest.mark.thorough
def test_three_hosts_three_fates(fleet):
    command = fleet(
        {"name": "fine", "gpus": ["RTX 4090"], "nouveau": False},
        {"name": "gone", "gpus": ["RTX 4090"]},
        {"name": "wrong", "gpus": ["RTX 4090"], "sudo": "password"},
    )
    command.lab.host("gone").stop()
    inventory = command.lab.inventory
    text = inventory.read_text()
    assert "ansible_become_password: correct horse" in text
    inventory.write_text(text.replace("ansible_become_password: correct horse", "ansible_become_password: nope"))
    done = command.run("apply", "--yes", rc=4)
    assert "error: gone:" in done.stderr and "error: wrong:" in done.stderr
    gone = next(line for line in done.stderr.splitlines() if line.startswith("error: gone:"))
    wrong = next(line for line in done.stderr.splitlines() if line.startswith("error: wrong:"))
    assert "sudo" in wrong and "password" in wrong
    assert "sudo" not in gone and ("refused" in gone or "reach" in gone or "answer" in gone)
    assert "nope" not in done.stdout + done.stderr, "a password was printed"
    assert driver_packages(command.lab.host("fine"))
    assert command.lab.host("fine").run("nvidia-smi -L").stdout.startswith("GPU 0")


# Each refusal is a row of tests/cases/driver.yml; that one touches nothing needs a host.
REFUSALS = [
    (
        "a fabric manager that the repository lacks",
        {"gpus": ["H100 x8"], "nvswitch": 4},
        ["nvidia_driver_branch=595-server", "nvidia_driver_channel=ubuntu"],
        ["fabric manager", "595.58.03"],
    ),
    (
        "a driver from a runfile",
        {"gpus": ["RTX 4090"], "runfile": "570.86.10"},
        [],
        ["nvidia-uninstall", "nvidia_driver_manage: false"],
    ),
]


REFUSALS = REFUSALS if sample.THOROUGH else REFUSALS[-1:]
# Every file that a refused run could have touched, with its content.
EVERYTHING = "find /etc /tmp /boot /var/lib/dpkg /var/lib/apt -type f | sort | xargs -d '\\n' sha256sum"


@pytest.fixture(scope="module")
def refusal_fleet(tmp_path_factory):
    from tests.faults.conftest import Command
    from tests.lab import Lab

    hosts = [{"name": f"host{i}", **spec} for i, (_, spec, _, _) in enumerate(REFUSALS)]
    with Lab.start(hosts) as lab:
        yield Command(lab, tmp_path_factory.mktemp("state"))


@pytest.mark.parametrize("number", range(len(REFUSALS)), ids=[row[0] for row in REFUSALS])
def test_refused_at_plan_time(refusal_fleet, number):
    _, _, variables, words = REFUSALS[number]
    extra = [word for variable in variables for word in ("-e", variable)]
    host = refusal_fleet.lab.host(f"host{number}")
    before = host.run(EVERYTHING).stdout
    done = refusal_fleet.run("plan", "-l", f"host{number}", *extra, rc=5)
    assert all(word in done.stderr + done.stdout for word in words), done.stderr + done.stdout
    assert "hint:" in done.stderr
    refusal_fleet.run("apply", "--yes", "-l", f"host{number}", *extra, rc=5)
    assert host.run(EVERYTHING).stdout == before, "a refusal changed something"


# tests/unit/test_variables.py.
@pytest.mark.thorough
def test_a_misspelt_variable(refusal_fleet):
    for verb in ("plan", "apply", "verify"):
        done = refusal_fleet.run(verb, "-e", "nvidia_driver_brnach=580", rc=64)
        assert "nvidia_driver_brnach" in done.stderr and "nvidia_driver_branch" in done.stderr


def test_a_runfile_driver_is_accepted_as_it_is(refusal_fleet):
    last = len(REFUSALS) - 1
    accepted = ["-l", f"host{last}", "-e", "nvidia_driver_manage=false"]
    refusal_fleet.run("plan", *accepted)
    verdicts = refusal_fleet.json("verify", *accepted)["hosts"][f"host{last}"]["checks"]
    judged = {v["id"]: v["status"] for v in verdicts}
    assert judged["driver.versions"] == "pass" and judged["apt.hold"] == "skip"


@pytest.mark.thorough
def test_boards_and_mixed_cards_get_what_they_need(fleet):
    """NVSwitch: fabric manager, at the driver's version; V100 beside RTX 4090: proprietary 580, the one that drives both."""
    command = fleet(
        {"name": "board", "gpus": ["H100 x8"], "nvswitch": 4, "nouveau": False},
        {"name": "mixed", "gpus": ["V100", "RTX 4090"], "nouveau": False},
    )
    command.run("apply", "--yes")
    board, mixed = command.lab.host("board"), command.lab.host("mixed")
    packages = driver_packages(board)
    manager = {version.split("-")[0] for name, version in packages.items() if name.startswith("nvidia-fabricmanager")}
    driver = {version.split("-")[0] for name, version in packages.items() if name.startswith("libnvidia-compute")}
    assert manager == driver != set()
    assert board.run("systemctl is-active nvidia-fabricmanager").stdout.strip() == "active"
    assert mixed.run("nvidia-smi -L").stdout.count("GPU ") == 2
    assert "Open Kernel Module" not in mixed.run("cat /proc/driver/nvidia/version").stdout
    assert not [name for name in driver_packages(mixed) if name.endswith("-open")]


# f3 of tests/faults/test_field.py is such a host; the order: tests/unit/test_planning.py.
@pytest.mark.thorough
def test_nvidias_repository_from_590_on_pins_first(fleet):
    command = fleet({"name": "gpu01", "gpus": ["RTX 4090"], "nouveau": False})
    extra = ["-e", "nvidia_driver_branch=595", "-e", "nvidia_driver_channel=cuda"]
    command.run("apply", "--yes", *extra)
    host = command.lab.host("gpu01")
    installed = driver_packages(host)
    assert "nvidia-driver-pinning-595" in installed
    history = host.run("cat /var/log/apt/history.log").stdout
    order = [history.index("nvidia-driver-pinning-595:"), history.index("nvidia-dkms-open:")]
    assert order == sorted(order)
    command.run("plan", *extra)
    command.lab.publish("drivers")
    host.run("apt-get update -qq")
    simulated = host.run("apt-get -s dist-upgrade").stdout.splitlines()
    assert not [line for line in simulated if line.startswith("Inst") and "nvidia" in line]


# tests/cases/plan.yml, checks.yml and own_files.yml.
@pytest.mark.thorough
def test_a_board_with_nvlink5_switches(fleet):
    command = fleet({"name": "gpu01", "gpus": ["B200 x2"], "nvlink5": True, "nouveau": False})
    host = command.lab.host("gpu01")
    planned = command.run("plan", "-v", rc=2).stdout
    assert "/etc/modules-load.d/gpu-provision.conf: ib_umad" in planned
    command.run("apply", "--yes")
    assert host.run("cat /etc/modules-load.d/gpu-provision.conf").stdout.endswith("\nib_umad\n")
    held = set(driver_packages(host)) & holds(host)
    assert "nvlsm" in held and any(name.startswith("nvidia-fabricmanager") for name in held), held
    assert "service.fabric_manager" in command.run("verify", "-v").stdout
    assert "as requested" in command.run("plan").stdout
    assert "fabric." not in command.run("diagnose").stdout
    host.run("rmmod ib_umad")
    assert "ib_umad is not loaded" in command.run("verify", rc=3).stdout
