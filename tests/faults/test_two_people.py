"""Two people at once on simulated hosts: who has a host's lock, when it is stale, and what is left of it and of the run."""

import json
import re
import shlex
import signal
import time

import pytest

from tests.faults.conftest import driver_packages, holds

pytestmark = pytest.mark.lab

LOCK = "/var/lib/gpu-provision/lock.json"
# Somebody at another machine, whose run is at work: nothing here can tell that it has ended.
ELSEWHERE = {
    "schema": 1,
    "run": "20260101T000000Z-apply-abcdef",
    "command": "provision apply",
    "who": "ada@laptop",
    "git": None,
    "from": "10.1.2.3",
    "since": "2026-01-01T00:00:00Z",
    "lease": 600,
    "controller": {"name": "laptop", "machine": "x", "boot_id": "y", "namespace": "pid:[4026531836]", "processes": []},
}


def until(what, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds} s: {what}")


def lock(host):
    """The record of the lock, {} without one."""
    text = host.run(f"cat {LOCK} 2>/dev/null", check=False).stdout
    return json.loads(text) if text else {}


def records(host):
    names = host.run("ls -r /var/lib/gpu-provision/history").stdout.split()
    return [json.loads(host.run(f"cat /var/lib/gpu-provision/history/{name}").stdout) for name in names]


def boot(host):
    return host.run("cat /proc/sys/kernel/random/boot_id", check=False).stdout.strip()


class DpkgBusy:
    """Another program holds dpkg's lock, so that a run waits where its changes would begin."""

    def __init__(self, host):
        self.host = host

    def __enter__(self):
        self.host.run(
            "systemd-run --quiet --unit=dpkg-busy python3 -c "
            + shlex.quote(
                "import fcntl, time; f = open('/var/lib/dpkg/lock-frontend', 'w'); "
                "fcntl.lockf(f, fcntl.LOCK_EX); time.sleep(600)"
            )
        )
        return self

    def __exit__(self, *_):
        self.host.run("systemctl stop dpkg-busy")


def put(host, **more):
    """Write somebody else's lock; renewed: seconds ago."""
    ago = more.pop("renewed", 5)
    uptime = float(host.run("cat /proc/uptime").stdout.split()[0])
    now = {"renewed": time.time() - ago, "uptime": uptime - ago, "boot_id": boot(host)}
    text = json.dumps({**ELSEWHERE, **now, **more})
    host.run(f"mkdir -p /var/lib/gpu-provision && printf %s {shlex.quote(text)} > {LOCK}")


def test_the_second_is_refused_and_the_third_takes_over_from_the_killed_one(fleet):
    command = fleet({"name": "gpu01", "gpus": ["RTX 4090"], "nouveau": True})
    host = command.lab.host("gpu01")
    with DpkgBusy(host):
        first = command.start("apply", "--yes")
        record = until(lambda: lock(host))
        assert record["lease"] == 600 and record["from"]
        second = command.run("apply", "--yes", rc=5)
        for word in (record["who"], record["since"], record["from"], record["run"], "provision apply", "hint: wait"):
            assert word in second.stderr, word
        assert "  blocked  " in second.stdout
        assert lock(host)["run"] == record["run"], "the refused run leaves the lock as it is"
        # The other way to take part: plain Ansible is refused too.
        plain = command.ansible("site.yml")
        assert plain.returncode != 0 and record["run"] in plain.stdout and "host.locked" in plain.stdout
        first.send_signal(signal.SIGKILL)
        first.communicate()
        assert lock(host)["run"] == record["run"], "nobody was left to give it back"
        before = boot(host)
        third = command.start("apply", "--yes")
        taken = until(lambda: lock(host).get("run") not in (record["run"], None) and lock(host))
        assert taken["took"] == {"run": record["run"], "who": record["who"], "forced": False}
    until(lambda: boot(host) not in ("", before))
    assert lock(host)["run"] == taken["run"], "a reboot inside of a run is no end of it"
    said, _ = third.communicate(timeout=200)
    assert third.returncode == 0, said
    assert "took over the stale lock of" in said and "has ended" in said
    assert lock(host) == {}
    (last, *others) = records(host)
    assert last["run"] == taken["run"] and last["status"] == "done" and last["rebooted"]
    assert last["took_lock_of"]["run"] == record["run"]
    assert not [other for other in others if other["run"] == record["run"]]
    told = command.json("history", "gpu01")
    assert told["hosts"]["gpu01"]["runs"][0]["run"] == taken["run"]
    assert told["hosts"]["gpu01"]["locked_by"] is None
    runs = {run["run"]: run for run in told["runs"]}
    assert runs[taken["run"]]["exit_code"] == 0 and runs[record["run"]]["ended"] is None


def test_locks_of_others_and_every_way_to_end(fleet):
    command = fleet({"name": "gpu01", "gpus": ["RTX 4090"], "nouveau": False})
    host = command.lab.host("gpu01")
    put(host)
    refused = command.json("apply", "--yes", rc=5)
    (issue,) = refused["errors"]
    assert issue["code"] == "host.locked" and "ada@laptop" in issue["message"]
    assert refused["hosts"]["gpu01"]["status"] == "blocked"
    assert not driver_packages(host)
    checked = command.ansible("site.yml", "--check")
    assert checked.returncode == 0 and "ada@laptop" in checked.stdout + checked.stderr, "nothing is changed: no refusal"

    # A failure gives it back: apt fails in the middle. The lock was stale by its lease.
    put(host, renewed=700)
    host.fail_postinst("nvidia-utils-580")
    failed = command.run("apply", "--yes", rc=1)
    assert "took over the stale lock of ada@laptop" in failed.stderr and "renewed" in failed.stderr
    assert lock(host) == {}
    assert records(host)[0]["status"] == "failed"
    host.fail_postinst()

    # Broken by name.
    put(host)
    broken = command.json("apply", "--yes", "--break-lock")
    codes = [warning["code"] for warning in broken["warnings"]]
    assert "host.lock_broken" in codes and set(codes) <= {"host.lock_broken", "host.warning"}, broken["warnings"]
    assert any("ada@laptop" in warning["message"] for warning in broken["warnings"]), broken["warnings"]
    assert lock(host) == {}
    assert records(host)[0]["took_lock_of"] == {"run": ELSEWHERE["run"], "who": "ada@laptop"}

    # Ctrl-C gives it back.
    with DpkgBusy(host):
        process = command.start("apply", "--yes", "-e", "nvidia_driver_branch=595")
        until(lambda: lock(host))
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert lock(host) == {}
        assert records(host)[0]["status"] == "interrupted"

    # Plain Ansible: with its own words, and given back where a role fails.
    put(host)
    plain = command.ansible("site.yml", "-e", "gpu_provision_break_lock=true", "-e", "nvidia_driver_branch=999")
    assert plain.returncode != 0
    assert "broke the lock of ada@laptop" in plain.stdout + plain.stderr
    assert lock(host) == {}


def test_rollback_brings_back_what_was_there(fleet):
    command = fleet({"name": "gpu01", "gpus": ["RTX 4090"], "nouveau": False, "installed": ["595 open signed held"]})
    host = command.lab.host("gpu01")
    command.run("apply", "--yes")
    before, held = driver_packages(host), holds(host)
    command.lab.publish("drivers")
    command.run("apply", "--yes", "-e", "nvidia_driver_update=true")
    assert driver_packages(host) != before
    planned = command.json("history", "last")
    assert planned["runs"][0]["hosts"]["gpu01"]["packages"]
    command.run("apply", "--rollback", "last", "--yes")
    assert driver_packages(host) == before
    assert holds(host) == held
    command.run("verify")
    command.run("plan")
    assert "--rollback" in records(host)[0]["command"]


@pytest.mark.thorough
def test_interrupted_gone_on_with_and_taken_back(fleet):
    """Three hosts: Ctrl-C in the first one's transaction, which goes on; resumed; each host has its packages of before again."""
    names = ("gpu01", "gpu02", "gpu03")
    command = fleet(
        *(
            {"name": name, "gpus": ["RTX 4090"], "nouveau": False, "installed": ["595 open signed held"]}
            for name in names
        )
    )
    hosts = {name: command.lab.host(name) for name in names}
    command.run("apply", "--yes")
    before = {name: (driver_packages(host), holds(host)) for name, host in hosts.items()}
    command.lab.publish("drivers")
    process = command.start("apply", "--yes", "--canary", "1", "--batch", "1", "-e", "nvidia_driver_update=true")
    deadline = time.monotonic() + 180
    first = None
    while first is None and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        first = next((name for name, host in hosts.items() if host.run("pgrep -x dpkg", check=False).stdout), None)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130 and said.count("error: ") == 1, said
    flat = " ".join(said.split())
    assert (
        f"in the middle: {first}: in 'Change packages and holds, in one transaction'; the change of packages" in flat
    ), said
    assert "still runs there" in flat and "not begun: " in flat, said
    hint = re.search(r"to continue: provision (apply --resume \S+)", flat)
    assert hint, said

    command.run(*hint[1].split(), "--yes")
    after = {name: (driver_packages(host), holds(host)) for name, host in hosts.items()}
    assert all(after[name] != before[name] for name in names)
    (run,) = command.json("history", "last")["runs"]
    assert len(run["sessions"]) == 2 and {host["status"] for host in run["hosts"].values()} == {"done"}
    for name in names:
        moved = {row[0] for row in run["hosts"][name]["packages"]}
        assert {n for n, version in after[name][0].items() if before[name][0].get(n) != version} <= moved
    document = command.json("apply", "--rollback", "last", "--yes")
    assert {host["status"] for host in document["hosts"].values()} == {"done"} and set(document["hosts"]) == set(names)
    assert {name: (driver_packages(host), holds(host)) for name, host in hosts.items()} == before
