"""The hosts of broken.py and broken_user.py: each named by its cause, and each that a program can mend brought back.

What only a person can do is told, and nothing is touched; done as told, it is well.

Without BROKEN only one of each kind is built (CI's budget for this file is 90 s); BROKEN=all, or BROKEN=G6,G8, builds the
others. ``pytest -s`` prints for each what was found, touched and rebooted.
"""

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import yaml

from tests.faults import broken_user
from tests.faults.broken import BROKEN as OF_THE_DRIVER
from tests.faults.broken import name_of
from tests.faults.conftest import Command, driver_packages, holds
from tests.lab import Lab, engine
from tests.lab.containers.daemons import NoDaemonsError

BROKEN = {**OF_THE_DRIVER, **broken_user.BROKEN}

pytestmark = pytest.mark.lab
# Each of another kind; BROKEN=all has all of them, BROKEN=B4,E2 only these.
USUAL = ("A4", "B4", "C1", "D2", "E1", "K1", "K5", "M1", "N2", "O1", "O2")
ASKED = os.environ.get("BROKEN", "")
ONLY = list(BROKEN) if ASKED == "all" else [name for name in ASKED.split(",") if name] or list(USUAL)
JOB = "systemctl show -p MainPID --value sim-job.service"
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
# All that a rescue which may do nothing must leave as it is: packages, holds, files of people and of the system, the boot.
STATE = (
    "dpkg-query -W -f '${Package} ${Version} ${Status}\\n'; find /etc /home /usr/local /lib/modprobe.d -path /etc/sim -prune "
    f"-o -type f -print0 | sort -z | xargs -0 sha256sum; {BOOT_ID}"
)


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    if any(BROKEN[report].docker for report in ONLY):
        # A docker inside needs a cgroup namespace of its own.
        flags = engine.Engine.boot_flags.fget
        private = "--cgroupns=private"
        patch.setattr(engine.Engine, "boot_flags", property(lambda self: [*dict.fromkeys([*flags(self), private])]))
    with Lab.start([{"name": name_of(report), **BROKEN[report].spec} for report in ONLY]) as lab:
        patch.undo()
        for report in ONLY:
            if BROKEN[report].config:
                (lab.inventory.parent / "host_vars").mkdir(exist_ok=True)
                (lab.inventory.parent / "host_vars" / f"{name_of(report)}.yml").write_text(
                    yaml.safe_dump(BROKEN[report].config)
                )
        with ThreadPoolExecutor(3) as pool:
            todo = [report for report in ONLY if BROKEN[report].breaks]
            try:
                list(pool.map(lambda report: BROKEN[report].breaks(lab.host(name_of(report))), todo))
            except NoDaemonsError as error:
                pytest.skip(str(error))
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
        if BROKEN[report].level == "well":
            continue
        at = [finding for finding in host["findings"] if finding["level"] == BROKEN[report].level]
        assert BROKEN[report].code in [finding["code"] for finding in at], said
        assert set(BROKEN[report].folded) <= {code for finding in host["findings"] for code in codes(finding)}, said
        assert not host["unknown"], said
        assert all(finding["evidence"] and finding["repairs"] for finding in at), said


def show_event(name, broken, told):
    """What docs and reports quote: pytest -s prints it."""
    checks = [check["status"] for check in told["checks"]]
    print(
        f"\n{name.upper()}: {broken.code}: {told['status']}: {told['summary']}; {len(told['packages'])} packages, "
        f"{len(told['configured'])} set up, {told['reboots']} reboots; "
        f"checks: {checks.count('pass')} pass, {checks.count('fail')} fail"
    )
    for package in told["packages"]:
        print(f"  {package['action']} {package['name']}")


def test_each_is_rescued(command, capsys):
    names = {name_of(report): BROKEN[report] for report in ONLY if BROKEN[report].rescued and not BROKEN[report].person}
    if not names:
        pytest.skip("none of those that were asked for")
    boots = {name: command.lab.host(name).run(BOOT_ID).stdout for name in names}
    done = json.loads(command.run("rescue", "--yes", *names, "--json", timeout=900).stdout)["hosts"]
    with capsys.disabled():
        for name, told in done.items():
            print(
                f"\n{name}: {told['status']}, {len(told['packages'])} packages changed, {told['reboots']} reboots",
                end="",
            )
    for name, broken in names.items():
        host, told = command.lab.host(name), done[name]
        show_event(name, broken, told)
        assert told["status"] == "rescued", (name, told)
        assert told["reboots"] <= broken.reboots, (name, told)
        assert (host.run(BOOT_ID).stdout != boots[name]) == bool(told["reboots"]), name
        assert host.run("nvidia-smi -L").stdout.startswith("GPU 0"), name
        assert not host.run("dpkg --audit").stdout, name
        assert set(driver_packages(host)) <= holds(host), name
        if broken.proves:
            broken.proves(host)
    verified = json.loads(command.run("verify", "-l", ",".join(names), "--json", timeout=600).stdout)["hosts"]
    for name, host in verified.items():
        passed = [check for check in host["checks"] if check["status"] == "pass"]
        print(f"{name.upper()}: verify {host['status']}, {len(passed)} checks passed")
        for check in host["checks"]:
            if check["status"] == "warn":
                print(f"  warn {check['id']}: {check.get('message')}")
    well = command.json("diagnose", "-l", ",".join(names))
    assert {
        name: row["status"] for name, row in well["hosts"].items() if row["status"] in ("broken", "unexplained")
    } == {}


def test_a_host_that_is_well_is_left_alone(command):
    """S1, S3: reports of a tool's own faults. Nothing is changed nor restarted, job or not; a wished change is one step."""
    names = [name_of(report) for report in ONLY if report in ("S1", "S3")]
    if not names:
        pytest.skip("none of those that were asked for")
    hosts = {name: command.lab.host(name) for name in names}
    before = {name: host.run(STATE).stdout for name, host in hosts.items()}
    done = json.loads(command.run("rescue", "--yes", *names, "--json").stdout)["hosts"]
    for name, told in done.items():
        show_event(name, BROKEN[name.upper()], told)
        assert (told["status"], told["packages"], told["reboots"], told["rounds"]) == ("well", [], 0, []), told
        assert hosts[name].run(STATE).stdout == before[name], name
    if "s1" in hosts:
        old = driver_packages(hosts["s1"])
        config = json.dumps({"nvidia_driver_update": True, "nvidia_driver_branch": "580-server"})
        command.run("apply", "--yes", "-l", "s1", "-e", config, timeout=400)
        new = driver_packages(hosts["s1"])
        moved = {version.split("-")[0] for name, version in new.items() if not name.startswith("linux-")}
        assert len(moved) == 1 and not moved & {version.split("-")[0] for version in old.values()}, new
        assert set(new) <= holds(hosts["s1"])
    if "s3" in hosts:
        job, boot = hosts["s3"].run(JOB).stdout, hosts["s3"].run(BOOT_ID).stdout
        command.run("apply", "--yes", "-l", "s3")
        again = command.json("apply", "--yes", "-l", "s3")
        assert (again["run_dir"], again["hosts"]["s3"]["status"]) == (None, "unchanged"), again
        assert (hosts["s3"].run(JOB).stdout, hosts["s3"].run(BOOT_ID).stdout) == (job, boot)
    for name, host in command.json("verify", "-l", ",".join(names))["hosts"].items():
        passed = [check["id"] for check in host["checks"] if check["status"] == "pass"]
        print(f"{name.upper()}: verify {host['status']}, {len(passed)} checks passed")


def test_what_only_a_person_can_do_is_told_and_nothing_touched(command):
    names = {name_of(report): BROKEN[report] for report in ONLY if BROKEN[report].person}
    if not names:
        pytest.skip("none of those that were asked for")
    limit = ",".join(names)
    before = {name: command.lab.host(name).run(STATE).stdout for name in names}
    named = command.json("diagnose", "-l", limit, rc=3 if any(one.level == "error" for one in names.values()) else 0)
    for name, broken in names.items():
        errors = broken.level == "error"
        # One that is broken stays so, and says what to do; one that works is left to its owner.
        done = json.loads(command.run("rescue", "--yes", name, "--json", rc=3 if errors else 0).stdout)
        told = done["hosts"][name]
        show_event(name, broken, told)
        assert told["status"] == ("left" if errors else "well"), told
        assert (told["packages"], told["reboots"], told["rounds"]) == ([], 0, []), told
        assert command.lab.host(name).run(STATE).stdout == before[name], name
        (finding,) = [one for one in named["hosts"][name]["findings"] if one["code"] == broken.code]
        words = [repair["words"] for repair in finding["repairs"]]
        assert any(broken.told in text for text in words), words
        assert not errors or broken.told in told["next"], told
        broken.person(command.lab.host(name))
    after = command.json("diagnose", "-l", limit)["hosts"]
    for name, broken in names.items():
        assert broken.code not in [finding["code"] for finding in after[name]["findings"]], after[name]
    verified = command.json("verify", "-l", limit)["hosts"]
    for name, host in verified.items():
        passed = [check["id"] for check in host["checks"] if check["status"] == "pass"]
        print(f"{name.upper()}: verify {host['status']}, {len(passed)} checks passed")


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
