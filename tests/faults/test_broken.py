"""The hosts of broken.py: each named by its cause, and each that a program can mend brought back to a working one."""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.broken import BROKEN, name_of, specs
from tests.faults.conftest import Command, driver_packages, holds
from tests.lab import Lab

pytestmark = pytest.mark.lab
# Each of another kind; BROKEN=all has all of them, BROKEN=B4,E2 only these.
USUAL = ("A4", "C1", "D2", "E1", "K1", "K5", "O2")
ASKED = os.environ.get("BROKEN", "")
ONLY = list(BROKEN) if ASKED == "all" else [name for name in ASKED.split(",") if name] or list(USUAL)
JOB = "systemctl show -p MainPID --value sim-job.service"
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    with Lab.start(specs(ONLY)) as lab:
        with ThreadPoolExecutor(3) as pool:
            todo = [report for report in ONLY if BROKEN[report].breaks]
            list(pool.map(lambda report: BROKEN[report].breaks(lab.host(name_of(report))), todo))
            lab.publish("drivers")
            todo = [report for report in ONLY if BROKEN[report].later]
            list(pool.map(lambda report: BROKEN[report].later(lab.host(name_of(report))), todo))
        yield Command(lab, tmp_path_factory.mktemp("state"))


def codes(finding):
    yield finding["code"]
    for symptom in finding["folded"]:
        yield from codes(symptom)


def test_each_is_named(command):
    broken = [report for report in ONLY if BROKEN[report].level == "error"]
    found = command.json("diagnose", rc=3 if broken else 0)["hosts"]
    for report in ONLY:
        host = found[name_of(report)]
        said = json.dumps(host, indent=1)
        assert (host["status"] == "broken") == (report in broken), said
        at = [finding for finding in host["findings"] if finding["level"] == BROKEN[report].level]
        assert BROKEN[report].code in [finding["code"] for finding in at], said
        assert set(BROKEN[report].folded) <= {
            code for finding in host["findings"] for code in codes(finding)
        }, said
        assert not host["unknown"], said
        assert all(finding["evidence"] and finding["repairs"] for finding in at), said


def test_each_is_rescued(command):
    names = {name_of(report): BROKEN[report] for report in ONLY if BROKEN[report].rescued}
    if not names:
        pytest.skip("none of those that were asked for")
    boots = {name: command.lab.host(name).run(BOOT_ID).stdout for name in names}
    done = json.loads(command.run("rescue", "--yes", *names, "--json", timeout=900).stdout)["hosts"]
    for name, broken in names.items():
        host, told = command.lab.host(name), done[name]
        assert told["status"] == "rescued", (name, told)
        assert told["reboots"] <= broken.reboots, (name, told)
        assert (host.run(BOOT_ID).stdout != boots[name]) == bool(told["reboots"]), name
        assert host.run("nvidia-smi -L").stdout.startswith("GPU 0"), name
        assert not host.run("dpkg --audit").stdout, name
        assert set(driver_packages(host)) <= holds(host), name
    command.run("verify", "-l", ",".join(names), timeout=600)
    well = command.json("diagnose", "-l", ",".join(names))
    assert {
        name: row["status"]
        for name, row in well["hosts"].items()
        if row["status"] in ("broken", "unexplained")
    } == {}


def test_a_job_is_never_ended_for_it(command):
    """O2: the modules are held by a desktop and a job: named, and left alone."""
    if "O2" not in ONLY:
        pytest.skip("not asked for")
    host = command.lab.host("o2")
    job = host.run(JOB).stdout
    told = command.json("diagnose", "-l", "o2", rc=3)["hosts"]["o2"]
    said = json.dumps(told)
    assert "python3" in said, said
    assert host.run(JOB).stdout == job != "0\n"
