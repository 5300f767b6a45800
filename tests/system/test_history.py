"""Runs and what hosts keep of them: written, read back, shown; and what a rollback is made of."""

import json
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock
from ansible_collections.gpu.provision.plugins.module_utils.run import record as run_record
from ansible_collections.gpu.provision.plugins.plugin_utils import runlock, runrecord
from provision import inventory, remote
from provision.commands import history as command
from provision.documents import AppliedHost, ApplyDocument, PlanDocument
from provision.errors import UnreachableError, UsageError
from provision.lib.findings import Check
from provision.lock.model import load
from provision.parts.plan import HostPlan, PackageChange
from provision.render import history as history_view
from provision.rollout.state import HostState, RunState
from provision.runs import engine, history, rollback
from provision.runs import run_lock as locks
from provision.runs.fleet import Silent, fleet_of
from tests.unit.hosts import host

ROWS = [
    ("nvidia-utils-580", "580.95.05-0ubuntu0.24.04.1", "580.126.20-0ubuntu0.24.04.1"),
    ("nvidia-firmware-580-580.95.05", "580.95.05-0ubuntu0.24.04.1", None),
    ("linux-modules-nvidia-580-open-generic", "6.8.0-45.45", "6.8.0-48.48"),
]


# ---- on a host ------------------------------------------------------------------------------------------------------


def record(number=1, **more):
    run = {"run": f"20260101T{number:06d}Z-apply-abcdef", "command": "provision apply", "who": "ada@desk"}
    return runrecord.record(
        run, "done", [dict(zip(("name", "from_version", "version"), row, strict=True)) for row in ROWS], **more
    )


def test_a_host_keeps_the_newest(tmp_path):
    folder = tmp_path / "history"
    for number in range(run_record.KEEP + 5):
        run_record.write(record(number), str(folder))
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == run_record.KEEP and names[0].startswith("20260101T000005Z")
    (folder / "somebody's.txt").write_text("x")
    (folder / "20260101T999999Z-apply-broken.json").write_text("{")
    told = run_record.read(3, str(folder))
    assert [run["run"] for run in told["runs"]] == [f"20260101T0000{n}Z-apply-abcdef" for n in (54, 53)]
    assert told["unreadable"] == ["20260101T999999Z-apply-broken.json"]
    assert (folder / "somebody's.txt").exists()
    assert run_record.read(folder=str(tmp_path / "none")) == {"runs": [], "unreadable": []}


def test_a_record_is_small_and_readable_by_all(tmp_path):
    run_record.write(record(), str(tmp_path))
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o644
    assert json.loads(path.read_text())["packages"] == [list(row) for row in ROWS]
    assert len(path.read_text()) < 1000


@pytest.mark.parametrize("name", ["../x", "", None, "a/b", ".hidden"])
def test_a_run_whose_name_is_no_files_is_not_written(tmp_path, name):
    with pytest.raises(ValueError, match="no name"):
        run_record.write({"run": name}, str(tmp_path))


def test_the_lock_is_given_back_although_the_run_has_no_name_for_a_file(tmp_path):
    lock = str(tmp_path / "lock.json")
    run_lock.acquire({"run": "a/b", "controller": {}}, 600, path=lock)
    answer = run_record.leave({**record(), "run": "a/b"}, "a/b", str(tmp_path / "history"), lock)
    assert answer["released"] and "a/b" in answer["trouble"] and not Path(lock).exists()


def test_the_lock_is_given_back_although_the_record_cannot_be_written(tmp_path):
    path = str(tmp_path / "lock.json")
    mine = record()
    run_lock.acquire({"run": mine["run"], "command": "c", "who": "w", "git": None, "controller": None}, 60, path=path)
    (tmp_path / "history").write_text("in the way")
    answer = run_record.leave(mine, mine["run"], str(tmp_path / "history"), path)
    assert answer["released"] and "history" in answer["trouble"]
    assert not Path(path).exists()


# ---- what a play leaves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "status", "packages"),
    [
        ({"__gpu_verify": {"checks": [{"id": "a", "status": "pass"}]}}, "done", 1),
        ({"__gpu_verify": {"checks": [{"id": "a", "status": "fail"}], "failed": True}}, "check_failed", 1),
        ({"nvidia_driver_reboot_required": True}, "reboot_needed", 1),
        ({}, "failed", 0),
    ],
)
def test_the_record_of_a_play(tmp_path, more, status, packages):
    plan = {
        "steps": [{"id": "packages"}],
        "reboot": {"needed": True},
        "packages": [{"name": "x", "version": "1", "from_version": None}],
    }
    (tmp_path / "fleet.lock.yml").write_text("a lock")
    (tmp_path / "hosts.yml").write_text("")
    found = runrecord.of_play(
        {"run": "r"},
        {
            "ansible_facts": runlock.keep("gpu_provision_play_plan", {"plan": plan}),
            "inventory_dir": str(tmp_path),
            "ansible_inventory_sources": [str(tmp_path / "hosts.yml")],
            **more,
        },
    )
    assert (found["status"], len(found["packages"])) == (status, packages)
    assert found["rebooted"] is (status in ("done", "check_failed"))
    assert len(found["lock"]["sha256"]) == 64
    plan["steps"] = []
    assert runrecord.of_play({"run": "r"}, runlock.keep("gpu_provision_play_plan", {"plan": plan})) is None
    assert runrecord.of_play({"run": "r"}, {}) is None, "no role of ours has planned"


def test_which_inventory_it_was(tmp_path):
    def git(*words):
        env = {"GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=b", *words], cwd=tmp_path, env=env, check=True)

    assert runrecord.inventory_state(tmp_path)["commit"] is None
    git("init", "-q")
    (tmp_path / "hosts.yml").write_text("x")
    git("add", ".")
    git("commit", "-qm", "one")
    clean = runrecord.inventory_state(tmp_path)
    assert len(clean["commit"]) == 40 and clean["dirty"] is False
    (tmp_path / "hosts.yml").write_text("y")
    assert runrecord.inventory_state(tmp_path) == {**clean, "dirty": True}


# ---- on this machine -------------------------------------------------------------------------------------------------------


class Host:
    """A host with its own folder in the place of /var/lib/gpu-provision."""

    def __init__(self, folder):
        self.lock, self.history = str(folder / "lock.json"), str(folder / "history")
        self.packages = {name: {"version": old} for name, old, _ in ROWS if old}

    def change(self, count):
        """Carry out the first so many of ROWS."""
        for name, old, new in ROWS[:count]:
            self.packages[name] = {"version": new} if new else {"version": old, "status": "rc"}

    def call(self, module, args, *, timeout=60):
        args = dict(args)
        if module == "run.lock":
            op = {"acquire": run_lock.acquire, "renew": run_lock.renew}[args.pop("op")]
            return op(**args, path=self.lock)
        if module == "probe.facts":
            return {"host": {}, "packages": self.packages}
        if args["op"] == "read":
            told = run_record.read(args["newest"], self.history)
            return {**told, "lock": run_lock.read(self.lock)}
        return run_record.leave(args["record"], args["run"], self.history, self.lock)

    def close(self):
        return


@pytest.fixture
def hosts(tmp_path, monkeypatch):
    found = {name: Host(tmp_path / name) for name in ("a", "b", "c")}

    def open_session(one):
        if one.name == "gone":
            raise UnreachableError("connect.refused", "connection refused", host="gone")
        return found[one.name]

    monkeypatch.setattr(remote, "open_session", open_session)
    monkeypatch.setattr(engine, "make_ready", lambda inventory: None)
    monkeypatch.setattr(engine, "processes", list)
    return found


def plans(*names):
    changes = [PackageChange(action="upgrade", name=n, from_version=f, version=t) for n, f, t in ROWS]
    return {name: HostPlan(host=name, status="changes", packages=changes) for name in names}


def folder(base, name="20260101T000000Z-apply-abcdef"):
    (base / name).mkdir(parents=True)
    return base / name


def recorder(names, **more):
    fleet = fleet_of(inventory.load([",".join([*names, ""])]))
    return history.Recorder(fleet, plans(*names), "provision apply", Silent(), **more)


def _keepers():
    return sum(thread.name == "host locks" for thread in threading.enumerate())


def test_a_run_from_its_beginning_to_its_end(hosts, tmp_path):
    base = tmp_path / "runs"
    observer = recorder("abc")
    observer.begin(folder(base))
    assert history.runs(base)[0].state == "cut off", "nothing says that it has ended"
    assert observer.before_wave(1, ["a", "b"]) == {}
    assert run_lock.read(hosts["a"].lock)["held"]["run"] == "20260101T000000Z-apply-abcdef"
    observer.after_host(
        "a", AppliedHost(status="done", checks=[Check(id="x", status="pass", message="m")], rebooted=True)
    )
    observer.after_host("b", AppliedHost(status="busy"))
    assert run_lock.read(hosts["a"].lock)["held"] is None and run_lock.read(hosts["b"].lock)["held"] is None
    observer.before_wave(2, ["c"])
    assert _keepers() == 1, "one thread renews, however many waves there are"
    observer.after_host("c", AppliedHost(status="failed"))
    document = ApplyDocument(exit_code=1)
    observer.at_end(document)
    assert _keepers() == 0
    (run,) = history.runs(base)
    assert (run.state, run.exit_code, run.planned, run.left_alone) == ("failed", 1, ["a", "b", "c"], {"b": "busy"})
    assert run.hosts["a"].packages == ROWS and run.hosts["a"].verify.passed == 1 and run.hosts["a"].rebooted
    assert run.hosts["c"].packages == [], "of a host that failed only that is recorded which is there"
    assert run_record.read(folder=hosts["a"].history)["runs"][0]["status"] == "done"
    assert run_record.read(folder=hosts["b"].history)["runs"] == []
    assert document.warnings == []


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_a_run_that_goes_on_keeps_what_its_first_session_did_and_found(hosts, tmp_path, monkeypatch, how):
    """a: packages changed, and interrupted; b: not begun, and moved by somebody else before it is."""
    where = folder(tmp_path / "runs")
    old = {name: rollback.entry_before(name, before(), {}) for name in "ab"}
    first = recorder("ab", before=old)
    (where / "plan.json").write_text(PlanDocument(hosts=plans("a", "b")).to_json())
    first.begin(where)
    first.before_wave(1, ["a"])
    hosts["a"].change(1)
    if how == "ended":
        first.after_host("a", AppliedHost(status="interrupted", rebooted=True))
        first.at_end(ApplyDocument(exit_code=130, hosts={"a": AppliedHost(status="interrupted")}))
        (run,) = history.runs(where.parent)
        assert run.state == "interrupted" and run.hosts["a"].packages == ROWS[:1]
    states = {"a": HostState(status="running", began=True), "b": HostState()}
    (where / "state.json").write_text(RunState(hosts=states, sessions=2).model_dump_json(by_alias=True))

    hosts["a"].change(3)
    now = {name: rollback.entry_before(name, host(["H100"], "580-server 580.142 open signed"), {}) for name in "ab"}
    second = recorder("ab", before=now)
    second._plans = {"a": HostPlan(host="a", status="changes", reboot={"needed": True}), **plans("b")}
    (where / "plan-2.json").write_text(PlanDocument(hosts=second._plans).to_json())
    second.begin(where)
    second.before_wave(1, ["a", "b"])
    hosts["b"].change(3)
    done = {name: AppliedHost(status="done") for name in "ab"}
    for name, result in done.items():
        second.after_host(name, result)
    second.at_end(ApplyDocument(hosts=done))
    (run,) = history.runs(where.parent)
    assert run.state == "done" and {name: run.hosts[name].packages for name in "ab"} == {"a": ROWS, "b": ROWS}
    assert run.hosts["a"].rebooted is (how == "ended") and not run.left_alone
    assert run_record.read(folder=hosts["a"].history)["runs"][0]["packages"] == [list(row) for row in ROWS]
    assert [session.exit_code for session in run.sessions] == [130 if how == "ended" else None, 0]
    assert run.sessions[1].hosts == dict.fromkeys("ab", "done") and run.started == run.sessions[0].started
    lock = load(where / history.BEFORE)
    versions = {name: lock.for_host(name).group.driver.version for name in "ab"}
    assert versions == {"a": "580.126.20", "b": "580.142"}, "what each had before the run touched it"
    shown = _shown(command.one_run("last", where.parent))
    assert "session 1" in shown and "session 2" in shown and ("not finished" in shown) is (how == "killed"), shown


def test_a_host_of_another_run_is_left_alone_and_a_lock_can_be_broken(hosts, tmp_path):
    theirs = {"run": "theirs", "command": "provision apply", "who": "bob@laptop", "git": None, "controller": None}
    run_lock.acquire(theirs, 600, path=hosts["a"].lock)
    observer = recorder("ab")
    observer.begin(folder(tmp_path / "runs"))
    refused = observer.before_wave(1, ["a", "b", "a"])
    assert list(refused) == ["a"] and refused["a"].code == "host.locked" and "bob@laptop" in refused["a"].message
    observer.after_host("b", AppliedHost(status="done"))
    observer.at_end(ApplyDocument())
    assert run_lock.read(hosts["a"].lock)["held"]["run"] == "theirs"

    observer = recorder("a", force=True)
    observer.begin(folder(tmp_path / "runs", "20260102T000000Z-apply-abcdef"))
    assert observer.before_wave(1, ["a"]) == {}
    observer.after_host("a", AppliedHost(status="done"))
    document = ApplyDocument()
    observer.at_end(document)
    assert [issue.code for issue in document.warnings] == ["host.lock_broken"]
    assert run_record.read(folder=hosts["a"].history)["runs"][0]["took_lock_of"] == {
        "run": "theirs",
        "who": "bob@laptop",
    }


def test_a_lock_that_was_taken_away_is_told(hosts, tmp_path):
    observer = recorder("a")
    observer.begin(folder(tmp_path / "runs"))
    observer.before_wave(1, ["a"])
    run_lock.acquire(
        {"run": "theirs", "command": "c", "who": "bob@laptop", "git": None, "controller": None},
        600,
        force=True,
        path=hosts["a"].lock,
    )
    observer.after_host("a", AppliedHost(status="done"))
    document = ApplyDocument()
    observer.at_end(document)
    assert [issue.code for issue in document.warnings] == ["host.lock_lost"]
    assert "bob@laptop" in document.warnings[0].message
    assert run_lock.read(hosts["a"].lock)["held"]["run"] == "theirs"


def test_a_host_that_is_not_reached_and_one_that_is_lost(hosts, tmp_path, monkeypatch):
    observer = recorder(["a", "gone"])
    observer.begin(folder(tmp_path / "runs"))
    assert observer.before_wave(1, ["a", "gone"])["gone"].code == "connect.refused"
    monkeypatch.setattr(
        remote, "open_session", lambda one: (_ for _ in ()).throw(UnreachableError("connect.lost", "no route"))
    )
    observer.after_host("a", AppliedHost(status="unreachable"))
    document = ApplyDocument()
    observer.at_end(document)
    assert [issue.code for issue in document.warnings] == ["host.lock_left"]
    assert run_lock.read(hosts["a"].lock)["held"], "the lock lies there; the next run sees that this one has ended"


def test_leases_are_renewed_while_a_run_lasts(hosts, tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "RENEW_EVERY", 0.01)
    fleet = fleet_of(inventory.load(["a,b,"]))
    held = locks.HostLocks(fleet, "provision apply", "run", Silent())
    assert held.take(["a"]) == {}
    before = run_lock.read(hosts["a"].lock)["held"]["uptime"]
    with held.kept():
        for _ in range(500):
            if run_lock.read(hosts["a"].lock)["held"]["uptime"] > before:
                break
            time.sleep(0.01)
        else:
            raise AssertionError("nobody renews it")
    assert run_lock.read(hosts["b"].lock)["held"] is None
    assert held.give_back() == [] and held.taken == set()


def test_what_killed_runs_leave_is_taken_over_with_the_proof(hosts, monkeypatch):
    child = subprocess.Popen(["sleep", "60"])
    dead = runlock.holder("provision apply", "killed", [child.pid], Path("/"))
    child.kill()
    child.wait()
    run_lock.acquire(dead, 600, path=hosts["a"].lock)
    # The host is another machine: it cannot tell that the process has ended, this one can.
    real = run_lock.stale

    def stale(held, at, here):
        return real(held, at, here if at is None else {**here, "boot_id": "another", "machine": None})

    monkeypatch.setattr(run_lock, "stale", stale)
    mine = locks.HostLocks(fleet_of(inventory.load(["a,"])), "provision apply", "mine", Silent())
    assert mine.take(["a"]) == {}
    assert [note.code for note in mine.notes] == ["host.lock_stale"]
    assert str(child.pid) in mine.notes[0].because[0] and "killed" in mine.notes[0].message


# ---- telling it -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ([], ""),
        (ROWS, "driver 580.95.05 to 580.126.20, 3 packages"),
        ([("libnvidia-compute-580", None, "580.126.20-0ubuntu1")], "driver 580.126.20, 1 package"),
        ([("libnvidia-compute-580", "580.126.20-0ubuntu1", None)], "driver 580.126.20 removed, 1 package"),
        ([("cuda-toolkit-12-8", None, "12.8.1-1"), ("cuda-nvcc-12-8", None, "12.8.93-1")], "CUDA 12.8, 2 packages"),
        ([("libnccl2", "2.25.1-1+cuda12.8", "2.26.2-1+cuda12.8")], "NCCL 2.25.1 to 2.26.2, 1 package"),
        ([("gcc-13", None, "13.3.0-6ubuntu2~24.04")], "1 package"),
    ],
)
def test_what_changed_in_words(packages, expected):
    assert history.describe_changes(packages) == expected


def test_runs_are_found_by_a_part_of_their_name(tmp_path):
    for name in ("20260101T000000Z-apply-aaaaaa", "20260102T000000Z-apply-bbbbbb"):
        run = history.Run(run=name, folder=str(folder(tmp_path, name)), ended="x", exit_code=0)
        (tmp_path / name / history.FILE).write_text(run.model_dump_json(by_alias=True))
    (folder(tmp_path, "20260103T000000Z-apply-cccccc") / history.FILE).write_text("{")
    known = history.runs(tmp_path)
    assert [(run.run[-6:], run.unreadable) for run in known] == [("cccccc", True), ("bbbbbb", False), ("aaaaaa", False)]
    assert history.find("last", tmp_path).run.endswith("cccccc")
    assert history.find("apply-aa", tmp_path).run.endswith("aaaaaa")
    assert history.find("nothing", tmp_path) is None
    assert history.find("last", tmp_path / "none") is None
    with pytest.raises(UsageError) as caught:
        history.find("apply", tmp_path)
    assert len(caught.value.issue.because) == 3


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"", b'{"run": "20', b"[]", None], ids=str)
def test_a_record_that_is_broken_hides_no_other_and_is_named(tmp_path, content):
    whole = folder(tmp_path, "20260101T000000Z-apply-aaaaaa")
    (whole / history.FILE).write_text(
        history.Run(run=whole.name, ended="x", exit_code=0).model_dump_json(by_alias=True)
    )
    broken = folder(tmp_path, "20260102T000000Z-apply-bbbbbb") / history.FILE
    broken.mkdir() if content is None else broken.write_bytes(content)
    document = command.of_runs(tmp_path, 20)
    assert [run.run for run in document.runs] == [whole.name] and document.exit_code == 0
    assert broken.parent.name in document.warnings[0].because and document.warnings[0].hint
    one = command.one_run("last", tmp_path)
    assert one.exit_code == 1 and one.errors and not list(history_view.view(one, 0))
    assert not list(history_view.view(command.of_runs(tmp_path, 1), 0)), "not: no run yet"
    last = history.find("last", tmp_path)
    assert last.run == broken.parent.name, "not: an older one"
    with pytest.raises(UsageError, match="cannot be read"):
        rollback.of_run(last)


def test_of_thousands_of_runs_only_the_shown_ones_are_read(tmp_path, monkeypatch):
    names = [f"20260101T{number:06d}Z-apply-aaaaaa" for number in range(300)]
    for name in names:
        text = history.Run(run=name, ended="x", exit_code=0, planned=["a"]).model_dump_json(by_alias=True)
        (folder(tmp_path, name) / history.FILE).write_text(text)
    opened = []
    monkeypatch.setattr(command, "read", lambda path: opened.append(path.name) or history.read(path))
    document = command.of_runs(tmp_path, 20)
    assert opened == names[:-21:-1] == [run.run for run in document.runs]
    opened.clear()
    assert command.one_run(names[7], tmp_path).runs[0].run == names[7]
    assert command.one_run(f"{tmp_path}/{names[7]}/", tmp_path).runs[0].run == names[7]
    assert opened == [names[7]] * 2


def test_records_on_a_host_that_are_broken_are_named(hosts, tmp_path):
    run_record.write(record(1), hosts["a"].history)
    Path(hosts["a"].history, "20260101T999999Z-apply-broken.json").write_text("{")
    Path(hosts["a"].history, "20260101T999998Z-apply-odd.json").write_text('{"run": "odd", "packages": 5}')
    document = command.of_hosts(fleet_of(inventory.load(["a,"])), tmp_path / "runs")
    assert document.exit_code == 0 and len(document.hosts["a"].runs) == 1
    (told,) = document.warnings
    assert told.host == "a" and sorted(told.because) == ["20260101T999999Z-apply-broken.json", "odd"]


def test_hosts_tell_of_runs_from_elsewhere_too(hosts, tmp_path):
    elsewhere = {**record(2), "who": "bob@laptop"}
    run_record.write(elsewhere, hosts["a"].history)
    observer = recorder("a")
    observer.begin(folder(tmp_path / "runs"))
    observer.before_wave(1, ["a"])
    document = command.of_hosts(fleet_of(inventory.load(["a,gone,"])), tmp_path / "runs")
    assert document.exit_code == 4 and document.hosts["gone"].status == "unreachable"
    assert [run.who for run in document.hosts["a"].runs] == ["bob@laptop"]
    assert document.hosts["a"].locked_by["run"] == document.runs[0].run
    shown = _shown(document)
    assert "bob@laptop" in shown and "run from elsewhere" in shown and "running there now" in shown
    observer.after_host("a", AppliedHost(status="done"))
    observer.at_end(ApplyDocument())
    shown = _shown(command.of_runs(tmp_path / "runs", 20))
    assert "apply-abcdef" in shown and "driver 580.95.05 to 580.126.20" in shown
    one = _shown(command.one_run("last", tmp_path / "runs"))
    assert (
        one.endswith("to go back to the state before it: provision apply --rollback apply-abcdef")
        and "-> none" not in one
    )
    assert "580.95.05-0ubuntu0.24.04.1 -> none" in _shown(command.one_run("last", tmp_path / "runs"), 1)


def _shown(document, verbosity=0):
    from io import StringIO

    from rich.console import Console

    out = Console(file=StringIO(), width=80)
    for thing in history_view.view(document, verbosity):
        out.print(thing)
    text = out.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    return " ".join(text.split())


# ---- rollback ------------------------------------------------------------------------------------------------------------


def before(**more):
    return host(["H100"], "580-server 580.126.20 open signed", **more)


def test_what_a_host_had_is_a_lock(tmp_path):
    found = rollback.entry_before("a", before(), {"nvidia_driver_branch": "595", "cuda_toolkit_versions": ["13.0"]})
    assert found.group.driver.version == "580.126.20" and found.group.cuda is None
    assert found.group.driver.packages["nvidia-utils-580-server"].startswith("580.126.20")
    history.keep_before({"a": found}, tmp_path / "before.lock.yml")
    lock = load(tmp_path / "before.lock.yml")
    assert lock.for_host("a").group.driver == found.group.driver
    assert rollback.entry_before("a", host(["H100"]), {}).group.driver is None, "there was none"


def test_half_a_driver_is_nothing_to_go_back_to():
    facts = before()
    other = facts.packages["nvidia-utils-580-server"].model_copy(update={"version": "580.95.05-0ubuntu0.24.04.1"})
    half = facts.model_copy(update={"packages": {**facts.packages, "nvidia-utils-580-server": other}})
    assert rollback.entry_before("a", half, {}).group.driver is None


def rolled(tmp_path, entries, packages=ROWS):
    where = folder(tmp_path)
    history.keep_before(entries, where / history.BEFORE)
    records = {n: history.HostRecord(run="r", status="done", packages=packages) for n in ("a", "b")}
    return history.Run(run="r", folder=str(where), hosts=records)


def test_a_rollback_holds_hosts_to_what_they_had_whatever_is_wished_now(tmp_path):
    entries = {"a": rollback.entry_before("a", before(), {}), "b": rollback.entry_before("b", host(["H100"]), {})}
    back = rollback.of_run(rolled(tmp_path, entries))
    assert back.hosts == ["a"] and back.impossible["b"].issue.code == "rollback.nothing_before"
    fleet = fleet_of(inventory.load(["a,b,c,"], None, {"nvidia_driver_branch": "595", "nvidia_driver_update": True}))
    held = back.fleet(fleet)
    assert [one.name for one in held.hosts] == ["a"]
    values = held.values["a"]
    assert (values["nvidia_driver_branch"], values["nvidia_driver_update"]) == ("recommended", False)
    assert values["gpu_provision_lock"].endswith(history.BEFORE)
    assert fleet.values["a"]["nvidia_driver_branch"] == "595", "the fleet itself is as it was"
    planned = PlanDocument(hosts=plans("a")).conclude([plans("a")["a"].exit_code])
    back.refuse(planned, ["a", "b", "c"])
    assert planned.hosts["b"].status == "blocked" and planned.exit_code == 5
    fine = PlanDocument(hosts=plans("a")).conclude([plans("a")["a"].exit_code])
    back.refuse(fine, ["a"])
    assert [(issue.code, issue.host) for issue in fine.errors] == [("rollback.host_gone", "b")] and fine.exit_code == 5
    chosen = PlanDocument(hosts=plans("a")).conclude([plans("a")["a"].exit_code])
    back.refuse(chosen, ["a"], limited=True)
    assert chosen.errors == [] and chosen.exit_code == 2
    with pytest.raises(UsageError):
        back.fleet(fleet_of(inventory.load(["c,"])))


def test_toolkits_that_a_run_brought_go_again(tmp_path):
    entries = {"a": rollback.entry_before("a", before(), {}), "b": None}
    brought = [("cuda-toolkit-13-0", None, "13.0.2-1")]
    run = rolled(tmp_path, {"a": entries["a"]}, brought)
    fleet = fleet_of(inventory.load(["a,"], None, {"cuda_toolkit_versions": ["13.0"]}))
    values = rollback.of_run(run).fleet(fleet).values["a"]
    assert values["cuda_toolkit_versions"] == [] and values["cuda_toolkit_prune"] is True
    assert (
        rollback.of_run(rolled(tmp_path / "2", {"a": entries["a"]})).fleet(fleet).values["a"]["cuda_toolkit_prune"]
        is False
    )


def test_installed_toolkits_by_their_packages():
    packages = {
        name: SimpleNamespace(installed=True, version="1-1")
        for name in ("cuda-toolkit-12-8", "cuda-nvcc-11-8", "cuda-libraries-9-2", "cuda-libraries-13-1", "libnccl2")
    }
    packages["cuda-toolkit-13-0"] = SimpleNamespace(installed=False, version="1-1")
    assert rollback.installed_toolkits(SimpleNamespace(packages=packages)) == ["9.2", "12.8", "13.1"]


def test_runs_that_cannot_be_undone(tmp_path):
    with pytest.raises(UsageError) as caught:
        rollback.of_run(history.Run(run="r", folder=str(tmp_path)))
    assert "changed no package" in caught.value.issue.message
    records = {"a": history.HostRecord(run="r", status="done", packages=ROWS)}
    with pytest.raises(UsageError) as caught:
        rollback.of_run(history.Run(run="r", folder=str(tmp_path), hosts=records))
    assert "--lock" in caught.value.issue.hint
