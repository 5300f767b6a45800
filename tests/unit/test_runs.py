"""What became of a host in a run, and which hosts can go back before one."""

from contextlib import contextmanager

import pytest

from provision.collection import ROOT
from provision.commands import actions
from provision.commands.actions import idle_roles
from provision.documents import AppliedHost, ApplyDocument, PlanDocument
from provision.errors import Exit, RefusedError, UnreachableError, UsageError
from provision.facts import Package
from provision.lib import yaml_reader
from provision.lock.model import dump, parse
from provision.parts.plan import HostPlan, PackageChange
from provision.rollout.state import HostState, RunState
from provision.runs import history
from provision.runs.engine import HostOutcome
from provision.runs.fleet import Silent
from provision.runs.history import HostRecord, Run, merged, present
from provision.runs.rollback import BEFORE, installed_toolkits, of_run
from tests.unit import fleetplans
from tests.unit.fakefleet import fake_fleet
from tests.unit.fleethosts import healthy
from tests.unit.hosts import host


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ({"status": "ok"}, Exit.OK),
        ({"status": "changed"}, Exit.OK),
        ({"status": "changed", "reboot_required": True}, Exit.REBOOT_NEEDED),
        ({"status": "changed", "restart_required": []}, Exit.REBOOT_NEEDED),
        ({"status": "unreachable", "reboot_required": True}, Exit.UNREACHABLE),
        ({"status": "interrupted", "reboot_required": True}, Exit.INTERRUPTED),
        ({"status": "failed", "reboot_required": True}, Exit.FAILED),
        ({"status": "not_started"}, Exit.FAILED),
    ],
)
def test_what_a_host_ends_with(outcome, code):
    assert HostOutcome(**outcome).exit_code == code


LOCK = """\
schema: provision/lock/1
groups:
  driver:
    ubuntu: "24.04"
    arch: amd64
    driver: {version: "580.142", series: "580", flavour: open, build: signed, channel: ubuntu, variant: headless}
  cuda: {ubuntu: "24.04", arch: amd64, cuda: {releases: {"12.8": 12.8.1}, default: "12.8"}}
  containers: {ubuntu: "24.04", arch: amd64, containers: {version: 1.18.0}}
  nothing: {ubuntu: "24.04", arch: amd64}
hosts: {a: {group: driver}, b: {group: cuda}, c: {group: containers}, d: {group: nothing}}
"""
CHANGED = {name: HostRecord(run="r", status="done", packages=[("x", None, "1")]) for name in "abcde"}


def run_of(folder, **hosts):
    return Run(run="r", folder=str(folder), hosts={**CHANGED, **hosts})


def test_a_host_goes_back_to_whatever_it_had_whole(tmp_path):
    """A driver, toolkits, or a container toolkit; f and g: nothing changed, and it broke off before a package did."""
    (tmp_path / BEFORE).write_text(dump(parse(LOCK)))
    also = {"f": HostRecord(run="r", status="done"), "g": HostRecord(run="r", status="failed")}
    back = of_run(run_of(tmp_path, **also))
    assert back.hosts == ["a", "b", "c"]
    assert {name: error.issue.code for name, error in back.impossible.items()} == dict.fromkeys(
        "deg", "rollback.nothing_before"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "does not say what its hosts had before"),
        ({"hosts": {"a": HostRecord(run="r", status="done")}}, "changed no package"),
    ],
)
def test_a_run_that_nobody_can_go_back_before_says_why(changes, words, tmp_path):
    with pytest.raises(UsageError, match=words) as refused:
        of_run(run_of(tmp_path).model_copy(update=changes))
    assert type(refused.value) is UsageError and refused.value.issue.hint


def planned(name, *changes):
    rows = [PackageChange(action="upgrade", name=n, from_version=old, version=new) for n, old, new in changes]
    return HostPlan(host=name, status="changes" if rows else "converged", packages=rows)


def test_a_host_that_an_earlier_session_changed_goes_back_whatever_the_last_one_recorded(tmp_path):
    """a: interrupted in the first session, recorded as done without packages by the second; b: as wanted; c: never begun."""
    (tmp_path / BEFORE).write_text(dump(parse(LOCK)))
    first = {name: planned(name, ("nvidia-x", "1", "2"), ("cuda-toolkit-13-0", None, "13.0.2-1")) for name in "abc"}
    (tmp_path / "plan.json").write_text(PlanDocument(hosts={**first, "b": planned("b")}).to_json())
    (tmp_path / "plan-2.json").write_text(PlanDocument(hosts={"a": planned("a")}).to_json())
    hosts = {"a": HostState(status="done", began=True), "b": HostState(status="unchanged"), "c": HostState()}
    (tmp_path / "state.json").write_text(RunState(hosts=hosts).model_dump_json(by_alias=True))
    run = Run(run="r", folder=str(tmp_path), planned=["a", "c"], hosts={"a": HostRecord(run="r", status="done")})
    back = of_run(run)
    assert back.hosts == ["a"] and ("cuda-toolkit-13-0", "13.0.2-1") in back.brought["a"]
    assert back.left_out == dict.fromkeys("bc", "the run did not change it")

    (tmp_path / "plan-2.json").write_text("{")
    back = of_run(run.model_copy(update={"hosts": {"a": HostRecord(run="r", status="interrupted")}}))
    assert back.hosts == ["a"], "where the plans cannot be read, a host that was begun may have been changed"
    with pytest.raises(RefusedError, match="is still running"):
        of_run(run.model_copy(update={"active": True}))


def test_what_sessions_changed_together():
    """From what the first found to what the last wanted; what came back to where it was is no change."""
    sessions = [
        planned("a", ("x", "1", "2"), ("y", "1", "2"), ("z", "1", "2")),
        planned("a", ("y", "2", "3"), ("z", "2", "1"), ("new", None, "1")),
    ]
    rows = [(row["name"], row["from_version"], row["version"]) for row in merged(sessions)]
    assert rows == [("x", "1", "2"), ("y", "1", "3"), ("new", None, "1")]


@pytest.mark.parametrize(
    ("whole", "expected"), [(False, ["nvidia-a", "nvidia-gone"]), (True, ["nvidia-a", "nvidia-gone", "bc"])]
)
def test_of_what_was_planned_only_that_is_recorded_which_is_there(whole, expected):
    plan = planned(
        "a",
        ("nvidia-a", "1", "2"),
        ("nvidia-b", "1", "2"),
        ("nvidia-c", None, "2"),
        ("nvidia-gone", "1", None),
        ("bc", None, "2"),
    )
    found = {
        "nvidia-a": Package(version="2"),
        "nvidia-b": Package(version="1"),
        "nvidia-c": Package(version="2", status="rc"),
        "nvidia-gone": Package(version="1", status="rc"),
    }
    assert [row["name"] for row in present(merged([plan]), found, whole=whole)] == expected


def test_reboots_are_those_of_the_newest_run_that_rebooted_the_host(tmp_path):
    event = '{{"host": "{}", "task": "x : Reboot", "action": "ansible.builtin.{}", "duration": {}, "event": "{}", "time": 1.5}}\n'
    told = {
        "20261101T000000Z-apply-a": [("a", "reboot", 90.5, "ok"), ("b", "reboot", 300, "ok")],
        "20261102T000000Z-apply-b": [
            ("a", "reboot", 40, "ok"),
            ("c", "reboot", 900, "failed"),
            ("c", "shell", 7, "ok"),
        ],
    }
    for name, events in told.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / history.FILE).write_text("{}")
        (folder / "events.jsonl").write_text("".join(event.format(*one) for one in events))
    assert history.reboots(tmp_path, ["a", "c"]) == {"a": 40.0}
    (folder / "events.jsonl").write_bytes(b"\xff")
    assert history.reboots(tmp_path, ["a", "b"]) == {"a": 90.5, "b": 300.0}, "events that cannot be read tell nothing"
    assert history.reboots(tmp_path / "none", ["a"]) == {}


def test_a_run_is_found_by_a_part_of_its_name_and_one_that_cannot_be_read_too(tmp_path):
    for name, text in (
        ("1-apply-aaa", Run(run="1-apply-aaa", who="ada").model_dump_json(by_alias=True)),
        ("2-apply-bbb", "{"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / history.FILE).write_text(text)
    found, broken = history.find("aaa", tmp_path), history.find("last", tmp_path)
    assert (found.who, found.unreadable) == ("ada", False)
    assert (broken.run, broken.unreadable) == ("2-apply-bbb", True)
    assert history.find("ccc", tmp_path) is None


class Locks:
    """In the place of HostLocks: everybody gets what is asked for."""

    def __init__(self, *_, **__):
        self.taken, self.notes, self.took, self.log = set(), [], {}, []

    def take(self, hosts):
        self.taken |= set(hosts)
        return {}

    @contextmanager
    def kept(self):
        self.log.append("renewing")
        yield
        self.log.append("no longer")

    def give_back(self, records):
        self.taken.clear()
        return []


@pytest.fixture
def recorder(monkeypatch, tmp_path):
    """record(facts, plans, statuses) -> (what is recorded of each host, what was asked of hosts, the log of the locks)."""
    monkeypatch.setattr(history, "HostLocks", Locks)
    monkeypatch.setattr(history.runlock, "git_identity", lambda place: None)
    monkeypatch.setattr(history.runrecord, "inventory_state", lambda place: None)

    def record(facts, plans, statuses):
        fleet, asked = fake_fleet(monkeypatch, tmp_path, facts)
        made = history.Recorder(fleet, {plan.host: plan for plan in plans}, "provision apply", Silent())
        made.begin(tmp_path / "run")
        for wave, name in enumerate(statuses, start=1):
            made.before_wave(wave, [name])
        for name, status in statuses.items():
            made.after_host(name, AppliedHost(status=status))
        made.at_end(ApplyDocument(hosts={name: AppliedHost(status=status) for name, status in statuses.items()}))
        hosts = history.read(tmp_path / "run").hosts
        return {name: [row[0] for row in host.packages] for name, host in hosts.items()}, asked, made._locks.log

    return record


@pytest.mark.parametrize("status", ["failed", "interrupted", "unreachable"])
def test_of_a_host_that_did_not_end_only_what_is_seen_there_is_recorded(status, recorder):
    changes = [("libnvidia-compute-580", "1", "580.142-0ubuntu0.24.04.1"), ("nvidia-utils-580", "1", "9")]
    plans = [planned(name, *changes) for name in ("whole", "half", "away")]
    there = {"whole": healthy(), "half": healthy(), "away": UnreachableError("connect.refused", "m", host="away")}
    packages, asked, _ = recorder(there, plans, {"whole": "done", "half": status, "away": status})
    both = ["libnvidia-compute-580", "nvidia-utils-580"]
    assert packages == {"whole": both, "half": both[:1], "away": []}
    assert {name for name, _ in asked} == {"half"}, "a host that has all of its plan is not read again"


def test_a_host_that_nothing_was_done_to_has_no_record(recorder):
    statuses = {name: name for name in ("unchanged", "checked", "blocked", "busy", "skipped", "not_started")}
    assert recorder({name: healthy() for name in statuses}, [], statuses)[0] == {}


def test_one_thread_renews_the_locks_of_all_waves(recorder):
    assert recorder(dict.fromkeys("abc", healthy()), [], dict.fromkeys("abc", "done"))[2] == ["renewing", "no longer"]


def test_toolkits_are_those_that_a_package_of_their_profile_stands_for():
    rows = {
        "cuda-toolkit-12-8": ("12.8.1-1", "ii"),
        "cuda-libraries-13-0": ("13.0.2-1", "hi"),
        "cuda-libraries-9-2": ("9.2.1-1", "ii"),
        "cuda-nvcc-12-4": ("12.4.1-1", "ii"),
        "cuda-toolkit-12-6": ("12.6.1-1", "rc"),
        "cuda-toolkit-12-config-common": ("12.8.90-1", "ii"),
    }
    packages = {name: Package(version=version, status=status) for name, (version, status) in rows.items()}
    assert installed_toolkits(healthy().model_copy(update={"packages": packages})) == ["9.2", "12.8", "13.0"]


def test_roles_without_work_are_skipped_by_their_tags():
    site = (ROOT / "playbooks/site.yml").read_text()
    plans = list(fleetplans.unlike().hosts.values())
    for plan in plans:
        assert (plan.spec["parts"]["miniconda"]["prefixes"] != []) == ("miniconda" not in idle_roles([plan])), plan.host
    driver_only = fleetplans.planned("gpu01", host(["T4"]))
    assert idle_roles([driver_only]) == ["cuda_toolkit", "miniconda", "container_toolkit"]
    for role in idle_roles([driver_only]):
        assert f"{{name: gpu.provision.{role}}}\n          tags: [{role}]\n" in site, "skipped by its tag"
    assert "miniconda" not in idle_roles([driver_only, *plans])
    driver_only.spec = {}
    assert idle_roles([driver_only]) == []


def test_what_the_command_does_itself_is_skipped_by_its_tag():
    block = yaml_reader.load(actions._PLAYBOOK.read_text())[0]["tasks"][0]
    alone = [
        task
        for task in block["block"] + block["always"]
        if "gpu_provision_run" in task.get("when", "") or "gpu_provision_plan_file" in task.get("when", "")
    ]
    assert len(alone) == 3 and all(task["tags"] == [actions._OWN] for task in alone)
