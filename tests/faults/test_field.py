"""Hosts as people found them (field scenarios), and every configuration that is accepted: simulated, with the real apt and dpkg."""

import pytest
import yaml

from tests import sample
from tests.faults.conftest import Command, driver_packages, holds
from tests.lab import Lab

pytestmark = pytest.mark.lab

CUDA = "/compute/cuda/repos/"


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """One fleet for the whole file; each test has hosts of its own in it."""
    hosts = [spec for specs in HOSTS.values() for spec in specs if sample.THOROUGH or spec["name"] in FOUND]
    with Lab.start(hosts) as lab:
        yield Command(lab, tmp_path_factory.mktemp("state"))


def configure(command, name, **values):
    """Set a host's nvidia_driver_* variables in host_vars, as its owner would."""
    folder = command.lab.inventory.parent / "host_vars"
    folder.mkdir(exist_ok=True)
    text = yaml.safe_dump({f"nvidia_driver_{key}": value for key, value in values.items()})
    (folder / f"{name}.yml").write_text(text)


def converge(command, *names, apply_rc=0):
    """Apply, then look: nothing is left to do, for the command and for plain Ansible's own judgement of the host."""
    limit = ["-l", ",".join(names)]
    command.run("apply", "--yes", *limit, rc=apply_rc, timeout=600)
    planned = command.json("plan", *limit)["hosts"]
    assert {name: row["status"] for name, row in planned.items()} == dict.fromkeys(names, "converged"), planned
    again = command.json("apply", "--yes", *limit)
    assert again["run_dir"] is None, "a second run started a playbook"


def moved_by_updates(host):
    """Names that a full upgrade and unattended-upgrades would touch, as apt says."""
    host.run("apt-get update -qq")
    lines = host.run("apt-get -s dist-upgrade").stdout.splitlines()
    moved = {line.split()[1] for line in lines if line.startswith(("Inst", "Remv"))}
    said = host.run("unattended-upgrade --dry-run --verbose 2>&1", timeout=300).stdout
    for line in said.splitlines():
        if "Packages that will be upgraded" in line:
            moved |= set(line.split(":", 1)[1].split())
    return moved


HOSTS = {
    "wishes": [
        {"name": "w1", "gpus": ["RTX 4090"], "nouveau": False},
        {"name": "w2", "gpus": ["A100 x2"], "nouveau": False},
        {"name": "w3", "gpus": ["RTX 4090"], "nouveau": False, "sources": ["archive", "cuda"]},
        {"name": "w4", "gpus": ["H100 x8"], "nouveau": False, "nvswitch": 4},
    ],
    "releases": [
        {"name": "jammy", "gpus": ["A100"], "ubuntu": "22.04"},
        {"name": "resolute", "gpus": ["RTX 4090"], "ubuntu": "26.04"},
    ],
    "found": [
        # A1, G2: a hold by pattern, which misses libnvidia-* and leaves holds on what is not installed
        {
            "name": "a1",
            "gpus": ["A100"],
            "nouveau": False,
            "installed": ["580-server open signed"],
            "run": ["apt-mark hold 'nvidia-*' >/dev/null", "echo libnvidia-gl-570 hold | dpkg --set-selections"],
        },
        # B2: DKMS, and headers of the older kernel only
        {
            "name": "b2",
            "gpus": ["A100"],
            "nouveau": False,
            "kernels": ["6.8.0-44-generic"],
            "installed": ["580-server open dkms held"],
        },
        # D1: a block that no initramfs knows, with a date from a clock that was wrong
        {
            "name": "d1",
            "gpus": ["A100"],
            "installed": ["580-server open signed held"],
            "run": [
                "printf 'blacklist nouveau\\n' >/etc/modprobe.d/zz-ours.conf",
                "touch -d '+1 hour' /etc/modprobe.d/zz-ours.conf",
            ],
        },
        # F7: NVIDIA's repository at a priority of 600 beside the archive's driver
        {
            "name": "f7",
            "gpus": ["A100"],
            "nouveau": False,
            "sources": ["archive", "cuda"],
            "installed": ["580-server open signed held"],
        },
        # G1, G4: a branch that is held, with more of it than is asked for
        {
            "name": "g1",
            "gpus": ["RTX 4090"],
            "nouveau": False,
            "installed": ["550 open dkms held"],
            "run": ["apt-get install -y -q libnvidia-decode-550 libnvidia-gl-550"],
        },
        # the kernel that runs is not the one that boots next
        {
            "name": "old-kernel",
            "gpus": ["A100"],
            "nouveau": False,
            "kernels": ["6.8.0-44-generic", "6.8.0-45-generic"],
            "saved": "6.8.0-44-generic",
        },
        {"name": "busy", "gpus": ["A100"], "nouveau": False, "installed": ["550 open dkms held"], "busy": True},
        # F1: NVIDIA's repository twice, with and without a key: apt reads nothing any more
        {
            "name": "f1",
            "gpus": ["A100"],
            "nouveau": False,
            "sources": ["archive", "cuda"],
            "run": ["sed 's/ .*]//' /etc/apt/sources.list.d/cuda-ubuntu*.list >/etc/apt/sources.list.d/cuda.list"],
        },
        # F3: the package cuda-keyring owns entry, key and pin
        {
            "name": "f3",
            "gpus": ["A100"],
            "nouveau": False,
            "sources": ["archive", "cuda"],
            "run": [
                "mkdir -p /tmp/k/DEBIAN /tmp/k/etc/apt/sources.list.d /tmp/k/etc/apt/preferences.d /tmp/k/usr/share/keyrings",
                "cp /etc/apt/sources.list.d/cuda-ubuntu*.list /tmp/k/etc/apt/sources.list.d/",
                "cp /etc/apt/preferences.d/cuda-repository-pin-600 /tmp/k/etc/apt/preferences.d/",
                "cp /usr/share/keyrings/cuda-archive-keyring.gpg /tmp/k/usr/share/keyrings/",
                "printf 'Package: cuda-keyring\\nVersion: 1.1-1\\nArchitecture: all\\nMaintainer: x <x@example.org>\\n"
                "Description: x\\n' >/tmp/k/DEBIAN/control",
                "(cd /tmp/k; find etc -type f | sed 's,^,/,') >/tmp/k/DEBIAN/conffiles",
                "dpkg-deb -b /tmp/k /tmp/k.deb && dpkg --force-confnew -i /tmp/k.deb && rm -r /tmp/k /tmp/k.deb",
            ],
        },
        # Secure Boot: without a key only signed modules, with one DKMS too
        {"name": "sb", "gpus": ["RTX 4090"], "secure_boot": True},
        {
            "name": "sb-key",
            "gpus": ["RTX 4090"],
            "secure_boot": "enrolled",
            "nouveau": False,
            "installed": ["550 open dkms held"],
        },
        {"name": "desk", "gpus": ["RTX 4090"], "nouveau": False, "desktop": True},
    ],
}

# Those that make test has: a stale hold, a kernel without headers, each kind of NVIDIA's repository that was there before.
FOUND = ["a1", "b2", "f1", "f3", "g1", "desk"]
if sample.THOROUGH:
    FOUND += ["d1", "f7", "old-kernel", "sb", "sb-key"]

ASKED = {
    **dict.fromkeys(("a1", "b2", "d1", "f7"), {"branch": "580-server"}),
    "f1": {"channel": "cuda", "branch": "580"},
    "f3": {"channel": "cuda", "branch": "595"},
    "g1": {"branch": "580"},
    "sb-key": {"build": "dkms", "branch": "580"},
}

# Round by round what the owner asks of each host; after each of them nothing may be left to do.
ROUNDS = [
    {"w1": {}, "w2": {"branch": "580-server"}, "w3": {"channel": "cuda", "branch": "580"}, "w4": {}},
    {
        "w1": {"branch": "580", "build": "dkms"},
        "w2": {"branch": "580-server", "hold": False},
        "w3": {"channel": "cuda", "branch": "595"},
        "w4": {"fabric_manager": "never", "branch": "595-server"},
    },
    {
        "w1": {"branch": "580", "build": "signed", "variant": "desktop"},
        "w2": {"branch": "580-server", "hold_kernel": "always", "modules": "proprietary"},
        "w3": {"channel": "cuda", "branch": "620"},
        "w4": {"branch": "580-server", "fabric_manager": "always"},
    },
    {
        "w1": {"branch": "580", "variant": "headless", "persistence": False},
        "w2": {"branch": "580-server", "hold_kernel": "never", "fabric_manager": "always"},
        "w3": {"channel": "ubuntu", "branch": "580"},
        "w4": {"manage": False},
    },
    {
        "w1": {"branch": "550"},
        "w2": {"channel": "cuda", "branch": "580"},
        "w3": {"channel": "cuda", "branch": "580", "version": "580.95.05"},
        "w4": {"branch": "580-server"},
    },
]


# Each wish is a row of tests/cases/driver.yml and plan.yml; a board with NVSwitch: the Molecule scenario.
@pytest.mark.thorough
@pytest.mark.parametrize("number", range(len(ROUNDS)))
def test_every_wish_converges(command, number):
    asked = ROUNDS[number]
    for name, values in asked.items():
        configure(command, name, **values)
    converge(command, *asked)
    for name, values in asked.items():
        host = command.lab.host(name)
        installed = driver_packages(host)
        if values.get("manage", True):
            held = values.get("hold", True)
            assert (set(installed) <= holds(host)) is held, (name, set(installed) - holds(host))
            assert host.run("nvidia-smi -L").stdout.startswith("GPU 0")
            versions = {
                v.split("-")[0] for n, v in installed.items() if n.startswith(("libnvidia-compute", "nvidia-utils"))
            }
            assert len(versions) == 1, installed


# 22.04: tests/faults/test_cuda.py; what a release has: tests/cases/driver.yml and plan.yml.
@pytest.mark.thorough
def test_other_releases(command):
    converge(command, "jammy", "resolute")
    command.run("verify", "-l", "jammy,resolute")


def test_hosts_as_they_were_found(command):
    for name in FOUND:
        configure(command, name, **ASKED.get(name, {}))
    # Somebody else works with dpkg meanwhile: that is waited for.
    lock = "import fcntl,time; f=open('/var/lib/dpkg/lock-frontend','w'); fcntl.lockf(f,fcntl.LOCK_EX); time.sleep(12)"
    command.lab.host("desk").run(["systemd-run", "--unit=unattended-upgr", "python3", "-c", lock])
    converge(command, *FOUND)
    command.run("verify", "-l", ",".join(FOUND))
    a1 = command.lab.host("a1")
    assert set(driver_packages(a1)) <= holds(a1)
    assert "libnvidia-gl-570" not in holds(a1)
    for name in ("f1", "f3"):
        host = command.lab.host(name)
        lists = host.run(f"grep -rl {CUDA} /etc/apt/sources.list /etc/apt/sources.list.d").stdout.split()
        assert lists == ["/etc/apt/sources.list.d/gpu-provision-cuda.sources"]
        host.run("apt-get update -qq")
    assert command.lab.host("f3").run("dpkg --verify cuda-keyring; dpkg --audit").stdout.count("missing") <= 1
    g1 = driver_packages(command.lab.host("g1"))
    assert {"libnvidia-decode-580", "libnvidia-gl-580"} <= set(g1)
    assert not [name for name in g1 if "550" in name]
    assert "nvidia-driver-580-open" not in g1, "GL libraries alone make no desktop"
    if sample.THOROUGH:
        assert "nouveau" not in command.lab.host("d1").run("lsmod").stdout
        versions = driver_packages(command.lab.host("f7")).values()
        assert not [version for version in versions if "ubuntu1" in version and "0ubuntu0" not in version]


@pytest.mark.thorough
def test_plain_ansible_agrees(command):
    """Neither undoes what the other did, whatever the settings of the controller."""
    names = "w1,w2,w3,f7,jammy,resolute"
    for words in (["--check", "--diff"], []):
        command.env["ANSIBLE_INJECT_FACT_VARS"] = "false"
        done = command.ansible("site.yml", "-l", names, *words)
        del command.env["ANSIBLE_INJECT_FACT_VARS"]
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("changed=0") == len(names.split(",")), done.stdout
    assert {row["status"] for row in command.json("plan", "-l", names)["hosts"].values()} == {"converged"}


# tests/faults/test_rollout.py has a host in use.
@pytest.mark.thorough
def test_work_on_the_gpus_is_left_alone(command):
    configure(command, "busy", branch="580-server")
    before = driver_packages(command.lab.host("busy"))
    for policy in ("when_idle", "never"):
        configure(command, "busy", branch="580-server", reboot=policy)
        done = command.run("apply", "--yes", "-l", "busy", rc=5)
        assert "in use" in done.stderr and "hint:" in done.stderr
    assert driver_packages(command.lab.host("busy")) == before


@pytest.mark.thorough
def test_newer_versions_move_nothing_of_nvidia(command):
    """Last, since it publishes: everything else moves, kernels of signed hosts wait, DKMS hosts follow."""
    names = ["w1", "w2", "w3", "w4", "a1", "b2", "f7", "g1", "jammy", "resolute"]
    command.lab.publish("drivers", "security", "kernel")
    for name in names:
        moved = moved_by_updates(command.lab.host(name))
        assert moved, f"{name}: security updates must move"
        assert not [package for package in moved if "nvidia" in package], (name, moved)
    # DKMS and a new kernel: the module is built for it, and a reboot into it is safe.
    b2 = command.lab.host("b2")
    b2.run("apt-get -y -q dist-upgrade", timeout=300)
    planned = command.json("plan", "-l", "b2")["hosts"]["b2"]
    assert planned["status"] == "converged", planned
    b2.restart()
    command.run("verify", "-l", "b2")
    # X1, A2: an update is asked for; every host ends at the same version, and rests there.
    for name in ("a1", "f7"):
        configure(command, name, branch="580-server", update=True)
    converge(command, "a1", "f7")
    ends = [
        {v for n, v in driver_packages(command.lab.host(h)).items() if n.startswith("libnvidia-compute")}
        for h in ("a1", "f7")
    ]
    assert ends[0] == ends[1]
