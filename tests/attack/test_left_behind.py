"""The lock of a run that was interrupted, on a host that is as wanted: proven, told, removed, recorded; others stay."""

import json
import subprocess
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock
from ansible_collections.gpu.provision.plugins.module_utils.run import record as run_record
from ansible_collections.gpu.provision.plugins.plugin_utils import runlock
from provision import inventory, remote
from provision.commands import apply
from provision.commands import plan as planning
from provision.commands.history import of_runs
from provision.documents import PlanDocument
from provision.facts import Facts
from provision.parts.plan import HostPlan, PackageChange
from provision.rollout.state import Process, RunState
from provision.runs import history, left_behind
from provision.runs import run_lock as locks
from provision.runs.fleet import fleet_of

RUN = "20260101T000000Z-apply-abcdef"
INSTALLED = {
    "nvidia-utils-595": {"version": "595.1", "status": "ii"},
    "libnvidia-x": {"version": "590.0", "status": "ii"},
}
CHANGES = [("nvidia-utils-595", "590.0", "595.1"), ("libnvidia-x", "590.0", "595.1"), ("other", None, "2")]


@pytest.fixture
def dead():
    child = subprocess.Popen(["sleep", "60"])
    found = runlock.holder("provision apply", RUN, [child.pid], Path("/"))
    child.kill()
    child.wait()
    return found


class Host:
    """A host of this machine's kernel, with its own folder in the place of /var/lib/gpu-provision."""

    def __init__(self, folder):
        self.lock, self.history, self.calls = str(folder / "lock.json"), str(folder / "history"), []

    def facts(self):
        path = Path(self.lock)
        return {"run_lock": path.read_text() if path.exists() else None, "host": {}, "packages": INSTALLED}

    def call(self, module, args, *, timeout=60):
        self.calls.append(module)
        if module == "probe.facts":
            return self.facts()
        if module == "run.lock":
            return run_lock.read(self.lock)
        if module == "run.tasks":
            return {"running": ["the change of packages (process 5 (apt-get) of root)"]}
        if args["op"] == "read":
            return {**run_record.read(None, self.history), "lock": run_lock.read(self.lock)}
        return run_record.leave(args["record"], args["run"], self.history, self.lock)

    def close(self):
        return


@pytest.fixture
def host(tmp_path, monkeypatch):
    (tmp_path / "host").mkdir()
    found = Host(tmp_path / "host")
    monkeypatch.setattr(remote, "open_session", lambda one: found)
    return found


@pytest.fixture
def base(tmp_path):
    """Folder of runs of this machine, with the one that was interrupted."""
    folder = tmp_path / "runs" / RUN
    folder.mkdir(parents=True)
    packages = [PackageChange(action="upgrade", name=n, from_version=f, version=t) for n, f, t in CHANGES]
    plan = PlanDocument(hosts={"a": HostPlan(host="a", status="changes", packages=packages)})
    (folder / "plan.json").write_text(plan.to_json())
    (folder / "history.json").write_text(history.Run(run=RUN, planned=["a"]).model_dump_json(by_alias=True))
    return folder.parent


def test_a_plan_says_what_still_runs_of_it(host, dead, monkeypatch):
    run_lock.acquire(dead, 600, path=host.lock)
    monkeypatch.setattr(
        planning,
        "plan_host",
        lambda name, call, *rest: call("probe.facts", {}) and HostPlan(host=name, status="converged"),
    )
    (left,) = planning.run(fleet_of(inventory.load(["a,"]))).hosts["a"].warnings
    assert "has ended" in left.because[0]
    assert left.because[1] == "the change of packages (process 5 (apt-get) of root) still runs there until it ends"


def end(host, base):
    fleet = fleet_of(inventory.load(["a,"]))
    left = locks.left_behind("a", Facts.of_host(host.facts()))
    plan = PlanDocument(hosts={"a": HostPlan(host="a", status="converged", warnings=[left] if left else [])})
    return left, apply.run(fleet, plan, run_base=base)


def test_it_is_told_removed_and_recorded(host, base, dead):
    run_lock.acquire(dead, 600, path=host.lock)
    left, document = end(host, base)
    assert left.code == "host.lock_stale" and RUN in left.message and "has ended" in left.because[0]
    (said,) = document.warnings
    assert said.message.startswith("removed the lock of a run that has ended: ") and said.host == "a"
    assert said.because[1] == "it changed driver 590.0 to 595.1, 2 packages"
    assert document.exit_code == 0 and document.hosts["a"].status == "unchanged"
    assert not Path(host.lock).exists()
    (record,) = run_record.read(folder=host.history)["runs"]
    assert (record["run"], record["status"]) == (RUN, "interrupted")
    # What it had planned and is not there was not changed by it.
    assert [row[0] for row in record["packages"]] == ["nvidia-utils-595", "other"]
    (run,) = of_runs(base, 5).runs
    assert run.state == "cut off" and run.hosts["a"].ended_by == runlock.who()
    assert end(host, base)[1].warnings == []


def test_its_own_record_stays(host, base, dead):
    run_lock.acquire(dead, 600, path=host.lock)
    run_record.write({"run": RUN, "status": "done", "packages": [["x", None, "1"]]}, host.history)
    _, document = end(host, base)
    assert document.warnings[0].because[1] == "it changed 1 package"
    assert run_record.read(folder=host.history)["runs"][0]["status"] == "done"
    assert not Path(host.lock).exists()


def test_of_a_run_from_elsewhere_nothing_is_made_up(host, tmp_path, dead):
    run_lock.acquire(dead, 600, path=host.lock)
    _, document = end(host, tmp_path / "none")
    assert document.warnings[0].because[1] == "what it changed is not known here"
    assert run_record.read(folder=host.history)["runs"][0]["packages"] == []


@pytest.mark.parametrize("name", ["../runs/" + RUN, "/etc", "..", ".", "x/y", "20260101T000000Z-apply-other1"])
def test_a_host_names_no_folder_of_this_machine(host, base, dead, name):
    other = base / "20260101T000000Z-apply-other1"
    other.mkdir()
    for file in (base / RUN).iterdir():
        (other / file.name).write_text(file.read_text().replace('"a"', '"b"'))
    before = {path: path.read_text() for path in base.glob("*/*")}
    run_lock.acquire({**dead, "run": name}, 600, path=host.lock)
    _, document = end(host, base)
    assert document.warnings[0].because[1] == "what it changed is not known here"
    assert {path: path.read_text() for path in base.glob("*/*")} == before


@pytest.mark.parametrize("content", ["", "{", "[]", "\0\0", '{"run": 5}', "[" * 9000])
def test_a_damaged_plan_of_the_run_is_no_obstacle(host, base, dead, content):
    run_lock.acquire(dead, 600, path=host.lock)
    (base / RUN / "plan.json").write_text(content)
    _, document = end(host, base)
    assert document.warnings[0].because[1] == "what it changed is not known here"
    assert not Path(host.lock).exists()


def test_locks_of_living_runs_and_of_others_stay(host, base, dead):
    for holder in (
        runlock.holder("provision apply", RUN, None, Path("/")),
        {**dead, "controller": {**dead["controller"], "boot_id": "elsewhere", "machine": "x"}},
    ):
        run_lock.acquire(holder, 600, path=host.lock, force=True)
        left, document = end(host, base)
        assert left is None and document.warnings == [] and host.calls == []
        assert Path(host.lock).exists()


def test_a_lock_that_was_taken_meanwhile_stays(host, base, dead):
    run_lock.acquire(dead, 600, path=host.lock)
    left = locks.left_behind("a", Facts.of_host(host.facts()))
    run_lock.acquire(runlock.holder("provision apply", "mine", None, Path("/")), 600, over=RUN, path=host.lock)
    plan = PlanDocument(hosts={"a": HostPlan(host="a", status="converged", warnings=[left])})
    names = left_behind.of_plan(plan)
    assert names == {"a"}
    assert left_behind.end(fleet_of(inventory.load(["a,"])), names, base) == []
    assert run_lock.read(host.lock)["held"]["run"] == "mine"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"run": 5}',
        '{"run": "x", "controller": 7, "lease": "x"}',
        "[" * 16000,
        '{"run": "\\ud800"}',
        json.dumps({"run": "x", "controller": {"boot_id": "b", "processes": [{"pid": -(10**40), "started": 1}]}}),
    ],
)
def test_what_a_host_says_in_a_lock_proves_nothing_by_itself(text):
    assert locks.left_behind("a", Facts.of_host({"run_lock": text, "host": {"uptime_s": 5.0, "boot_id": "ab"}})) is None


def test_a_cut_off_run_is_not_active(base):
    state = RunState(run=RUN, process=Process(pid=4194303, started="1", boot_id="x"))
    (base / RUN / "state.json").write_text(state.model_dump_json(by_alias=True))
    assert history.read(base / RUN).active is False
