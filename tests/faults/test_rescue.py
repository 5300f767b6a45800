"""Broken hosts, brought back by the smallest repair: simulated, broken by what breaks them in the field, with real apt and dpkg.

Each host says what its right fix may touch: packages, reboots. More than that is a failure.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import sample
from tests.faults.conftest import Command, driver_packages, holds, transactions
from tests.lab import Lab

pytestmark = pytest.mark.lab

SIGNED = "580-server open signed held"
LISTS = "/etc/apt/sources.list.d"
LIBRARY = "libnvidia-compute-580-server"
# Somebody else's file, and a hold of theirs: never lost, whatever is cut off.
FOREIGN = ["echo '# ours' >/etc/modprobe.d/site.conf", "echo jq hold | dpkg --set-selections"]
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


# ---- what breaks them: first with the lists of before, then after newer versions were published


def half(host):
    """B4: a maintainer script fails in the middle; its cause goes away, the packages stay as they are."""
    host.fail_postinst("nvidia-utils-580-server")
    host.run(
        "apt-get update -qq; apt-get install -y -q --reinstall --allow-change-held-packages nvidia-utils-580-server",
        check=False,
    )
    host.fail_postinst()


def busy(host):
    """P4: the same, while unattended-upgrades holds the lock."""
    half(host)
    lock = "import fcntl,time; f=open('/var/lib/dpkg/lock-frontend','w'); fcntl.lockf(f,fcntl.LOCK_EX); time.sleep(600)"
    host.run(["systemd-run", "--unit=unattended-upgr", "python3", "-c", lock])


def twice(host):
    """F1: one repository in two files, with a key and without one: apt reads nothing any more."""
    key, entry = ("/usr/share/keyrings/ubuntu-archive-keyring.gpg", "http://archive.sim.internal/ubuntu noble main")
    host.run(f"echo 'deb [signed-by={key}] {entry}' >{LISTS}/a.list; echo 'deb {entry}' >{LISTS}/b.list")


def absent(host):
    """G2: holds on names that are not installed."""
    host.run("apt-get update -qq; apt-mark hold libnvidia-gl-580-server nvidia-dkms-580-server >/dev/null")


def headers(host):
    """B2: a new kernel without its headers."""
    host.run("apt-get update -qq; apt-get install -y -q --no-install-recommends linux-image-6.8.0-45-generic")


def nouveau(host):
    """D1: nouveau runs from an initramfs that does not know that it is blocked."""
    ours = "/usr/lib/modprobe.d/nvidia-graphics-drivers.conf"
    host.run(f"mv {ours} /root/; update-initramfs -u -k all")
    host.restart()
    host.run(f"lsmod | grep -q ^nouveau && sleep 1 && mv /root/{Path(ours).name} {ours} && touch {ours}")


def stale(host):
    """A2: an update replaced everything on the disk, the module of before runs on."""
    host.run("apt-mark unhold $(apt-mark showhold) >/dev/null; apt-mark hold jq >/dev/null; apt-get update -qq")
    host.run("DEBIAN_FRONTEND=noninteractive apt-get -y -q dist-upgrade", timeout=300)


def mess(host):
    """A1, G1: a hold by pattern, on what is there and what is not; then one library of a newer driver by hand."""
    host.run(
        "apt-mark unhold $(apt-mark showhold) >/dev/null; apt-mark hold 'nvidia-*' jq >/dev/null 2>&1; apt-get update -qq",
        check=False,
    )
    host.run(f"cd /tmp && apt-get download -q {LIBRARY} && dpkg -i {LIBRARY}_*.deb", check=False)
    assert host.run("apt-get check", check=False).rc == 100


def slow(host):
    """As mess, and dpkg takes its time: it can be met at work."""
    mess(host)
    host.run('printf \'pre-invoke="sleep 2"\\npost-invoke="sleep 4"\\n\' >/etc/dpkg/dpkg.cfg.d/slow')


# Packages to finish, to add and to exchange; the other causes are repaired by tests/faults/test_broken.py and tests/apt too.
BEFORE, AFTER = {"half": half, "headers": headers}, {"mess": mess}
if sample.THOROUGH:
    BEFORE |= {"busy": busy, "twice": twice, "absent": absent, "nouveau": nouveau}
    AFTER |= {"stale": stale, "plain": mess, "cut-run": slow, "cut-apt": slow, "cut-ssh": slow}
HOSTS = [
    {
        "name": name,
        "gpus": ["A100"],
        "nouveau": name == "nouveau",
        "run": FOREIGN,
        "kernels": ["6.8.0-44-generic"] if name == "headers" else ["6.8.0-45-generic"],
        "installed": ["580-server open dkms held" if name == "headers" else SIGNED],
    }
    for name in [*BEFORE, *AFTER, "well"]
]

# What diagnose names, and what the right fix touches: packages (in dpkg's record), reboots.
RIGHT = {
    "half": ("dpkg.unfinished", 0, 0),
    "twice": ("apt.signed_by_conflict", 0, 0),
    "absent": ("holds.not_installed", 0, 0),
    "headers": ("kernel.headers_missing", 2, 0),
    "nouveau": ("nouveau.", 0, 1),
    "stale": ("driver.stale_module", 0, 0),
    "mess": ("driver.mixed_versions", 1, 0),
}
RIGHT = {name: fix for name, fix in RIGHT.items() if name in {**BEFORE, **AFTER}}


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    with Lab.start(HOSTS) as lab:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda name: BEFORE[name](lab.host(name)), BEFORE))
            lab.publish("drivers")
            list(pool.map(lambda name: AFTER[name](lab.host(name)), AFTER))
        yield Command(lab, tmp_path_factory.mktemp("state"))


def versions(host):
    """{package: version} of everything that dpkg has, by its own record."""
    rows = host.run("dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'").stdout.split("\n")
    return {
        row.split()[1]: row.split()[2]
        for row in rows
        if not row.startswith(("not-", "config-")) and len(row.split()) == 3
    }


def is_as_its_owner_left_it(host):
    assert "jq" in holds(host), "somebody's hold was lost"
    assert host.run("cat /etc/modprobe.d/site.conf").stdout == "# ours\n"


def is_whole(host):
    """Working and at rest, by dpkg, apt and nvidia-smi themselves."""
    assert not host.run("dpkg --audit").stdout
    host.run("apt-get check -qq && apt-get update -qq")
    assert host.run("nvidia-smi -L").stdout.startswith("GPU 0")
    assert set(driver_packages(host)) <= holds(host)
    is_as_its_owner_left_it(host)


def test_hosts_are_brought_back_by_no_more_than_the_right_fix(command):
    hosts = {name: command.lab.host(name) for name in RIGHT}
    limit = ",".join(RIGHT)
    found = command.json("diagnose", "-l", limit, rc=3)["hosts"]
    for name, (code, _, _) in RIGHT.items():
        assert [f["code"] for f in found[name]["findings"] if f["code"].startswith(code)], (name, found[name])
    before = {name: versions(host) for name, host in hosts.items()}
    boots = {name: host.run(BOOT_ID).stdout for name, host in hosts.items()}

    refused = command.run("rescue", "half", rc=64)
    assert "--yes" in refused.stderr
    assert {name: versions(host) for name, host in hosts.items()} == before, "it was not agreed to"

    done = command.json("rescue", "--yes", *RIGHT)

    for name, (_, packages, reboots) in RIGHT.items():
        told, host = done["hosts"][name], hosts[name]
        now = versions(host)
        moved = {p for p in {*now, *before[name]} if now.get(p) != before[name].get(p)}
        assert told["status"] == "rescued", (name, told)
        assert len(moved) == packages, (name, moved)
        assert {change["name"] for change in told["packages"]} == moved, name
        rebooted = host.run(BOOT_ID).stdout != boots[name]
        assert (rebooted, told["reboots"]) == (bool(reboots), reboots), (name, told)
        assert told["snapshot"], name
        is_whole(host)
    assert done["hosts"]["half"]["configured"] == ["nvidia-utils-580-server"]
    hosts["headers"].restart()
    command.run("verify", "-l", "headers")
    again = command.json("rescue", "--yes", *RIGHT)
    assert {name: host["status"] for name, host in again["hosts"].items()} == dict.fromkeys(RIGHT, "well")
    assert again["run_dir"] is None, "a second run started a playbook"


def test_nothing_to_rescue(command):
    count = transactions(command.lab.host("well"))
    said = command.run("rescue", "well").stdout
    assert "nothing to rescue" in said
    assert transactions(command.lab.host("well")) == count


@pytest.mark.thorough
def test_plain_ansible_does_the_same(command):
    host = command.lab.host("plain")
    first = command.ansible("rescue.yml", "-l", "plain")
    assert first.returncode == 0, first.stdout + first.stderr
    is_whole(host)
    second = command.ansible("rescue.yml", "-l", "plain")
    assert second.returncode == 0 and "changed=0" in second.stdout, second.stdout + second.stderr


# tests/apt/test_transaction.py and tests/system/test_rescue_command.py have the lock too.
@pytest.mark.thorough
def test_a_held_lock_is_waited_for_and_its_holder_named(command):
    host = command.lab.host("busy")
    short = ["-e", "nvidia_driver_lock_timeout=3"]
    told = command.json("rescue", "--yes", "busy", *short, rc=5)
    (error,) = told["errors"]
    assert error["code"] == "apt.lock_timeout" and "python3" in error["message"] and error["hint"]
    host.run("systemctl stop unattended-upgr")
    command.run("rescue", "--yes", "busy")
    is_whole(host)


# ---- cut off


def until(true, seconds=240, every=0.05):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(every)


def dpkg_runs(host):
    return bool(host.run("pgrep -x dpkg", check=False).stdout)


def in_the_middle(command, name):
    """Start a rescue, and return it when dpkg is at work on the host."""
    host = command.lab.host(name)
    process = command.start("rescue", "--yes", name)
    until(lambda: dpkg_runs(host) or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]
    return host, process


def finishes(command, host):
    """The next rescue finds what is left, and finishes; holds of all kinds are as they were."""
    until(lambda: not dpkg_runs(host))
    is_as_its_owner_left_it(host)
    host.run("rm /etc/dpkg/dpkg.cfg.d/slow")
    told = command.json("rescue", "--yes", host.name)["hosts"][host.name]
    assert told["status"] in ("rescued", "well"), told
    is_whole(host)
    assert not host.run("ls /var/lib/gpu-provision/transaction.json", check=False).stdout


# tests/apt/test_transaction.py kills the run, tests/faults/test_two_people.py the controller.
@pytest.mark.thorough
def test_the_controller_is_killed(command):
    host, process = in_the_middle(command, "cut-run")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    finishes(command, host)


@pytest.mark.thorough
def test_apt_is_killed(command):
    host, process = in_the_middle(command, "cut-apt")
    host.run("pkill -9 -x apt-get; pkill -9 -x dpkg", check=False)
    said, _ = process.communicate(timeout=200)
    assert "Traceback" not in said
    finishes(command, host)


@pytest.mark.thorough
def test_the_connection_drops(command):
    host, process = in_the_middle(command, "cut-ssh")
    host.run("pkill -9 -f '^sshd: lab'", check=False)
    said, _ = process.communicate(timeout=200)
    assert "Traceback" not in said
    finishes(command, host)


def test_an_unreachable_host_is_told_the_way(command):
    command.lab.host("well").stop()
    done = command.run("rescue", "--yes", "well", rc=4)
    assert "--offline-script" in done.stderr
