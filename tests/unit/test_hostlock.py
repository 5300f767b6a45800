"""The lock on a host: when it is stale, by a table; and what taking, renewing and giving back do to the file."""

import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock
from ansible_collections.gpu.provision.plugins.plugin_utils import runlock
from provision.lib import yaml_reader

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/hostlock.yml").read_text())
DESK = {"name": "desk", "machine": "aaaa", "boot_id": "boot-of-desk", "namespace": "pid:[4026531836]"}
STARTED = 90


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_when_a_lock_is_stale(case, monkeypatch):
    there = set(case.get("alive", ()))
    monkeypatch.setattr(run_lock, "is_alive", lambda pid, started: pid in there and started >= STARTED)
    record = {
        "run": "r",
        "lease": 600,
        "renewed": 1700000000,
        "uptime": 0,
        "boot_id": "boot-of-host",
        "controller": {**DESK, "processes": [{"pid": 4711, "started": STARTED}], **case.get("controller", {})},
        **case.get("lock", {}),
    }
    at = {"renewed": 1700000010, "uptime": 10, "boot_id": "boot-of-host", **case.get("at", {})}
    here = {**DESK, "processes": [], **case.get("here", {})}
    why = run_lock.stale(record, at, here)
    assert (why or "").startswith(case.get("stale", "")) and bool(why) is ("stale" in case), why
    # What a controller alone can tell, without the host's clocks: rules 1 and 2.
    assert run_lock.stale(record, None, here) == (None if "renewed" in (why or "") else why)


def holder(run="run-1", **more):
    return {
        "run": run,
        "command": "provision apply",
        "who": "ada@desk",
        "git": None,
        "controller": {**run_lock.controller(), "boot_id": "elsewhere", "machine": None},
        **more,
    }


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "provision/lock.json")


def take(path, run="run-1", **more):
    return run_lock.acquire(holder(run), 600, path=path, **more)


def test_taken_told_and_given_back(path):
    assert take(path) == {"taken": True, "held": None, "replaced": None, "why": None}
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o644
    assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o755
    second = take(path, "run-2")
    assert not second["taken"]
    told = run_lock.describe(second["held"])
    assert "ada@desk" in told and "provision apply" in told and "run-1" in told and second["held"]["since"] in told
    assert second["held"]["from"] in told
    assert take(path)["taken"], "its own run takes it again: one that goes on after it was cut off"
    assert run_lock.release("run-2", path) == {"released": False, "held": run_lock.read(path)["held"]}
    assert run_lock.release("run-1", path)["released"]
    assert not Path(path).exists()
    assert run_lock.release("run-1", path) == {"released": False, "held": None}


def test_stale_by_its_lease(path, monkeypatch):
    take(path)
    clocks = run_lock.now()
    monkeypatch.setattr(run_lock, "now", lambda: {**clocks, "uptime": clocks["uptime"] + 500})
    assert run_lock.renew("run-1", path) == {"kept": True, "held": None}
    monkeypatch.setattr(run_lock, "now", lambda: {**clocks, "uptime": clocks["uptime"] + 1000})
    assert not take(path, "run-2")["taken"], "it was renewed"
    monkeypatch.setattr(run_lock, "now", lambda: {**clocks, "uptime": clocks["uptime"] + 1200})
    answer = take(path, "run-2")
    assert answer["taken"] and answer["replaced"]["run"] == "run-1" and "renewed" in answer["why"]
    assert run_lock.renew("run-1", path)["held"]["run"] == "run-2", "the first one is told that it has lost it"
    assert run_lock.read(path)["held"]["took"] == {"run": "run-1", "who": "ada@desk", "forced": False}


def test_proven_stale_by_the_controller_and_broken(path):
    take(path)
    assert not take(path, "run-2", over="run-0")["taken"], "the proof was about another run"
    assert take(path, "run-2", over="run-1")["why"]
    forced = take(path, "run-3", force=True)
    assert forced["taken"] and forced["why"] is None and forced["replaced"]["run"] == "run-2"
    assert run_lock.read(path)["held"]["took"]["forced"] is True


def test_a_change_is_admitted_for_the_run_that_has_the_lock(path, monkeypatch):
    run_lock.admit("run-1", path)
    assert not Path(path).exists(), "without a lock everybody may, and nothing is written"
    take(path)
    clocks = run_lock.now()
    monkeypatch.setattr(run_lock, "now", lambda: {**clocks, "uptime": clocks["uptime"] + 500})
    run_lock.admit("run-1", path)
    assert run_lock.read(path)["held"]["uptime"] == clocks["uptime"] + 500, "its lease is renewed"
    for run in ("run-2", None):
        with pytest.raises(run_lock.LockError) as caught:
            run_lock.admit(run, path)
        assert caught.value.code == "host.locked" and "ada@desk" in str(caught.value)
    monkeypatch.setattr(run_lock, "now", lambda: {**clocks, "uptime": clocks["uptime"] + 2000})
    run_lock.admit(None, path)
    assert run_lock.read(path)["held"]["run"] == "run-1", (
        "a stale lock is in nobody's way; who takes locks takes it over"
    )


def test_check_mode_takes_nothing(path):
    assert take(path, check=True)["taken"]
    assert not Path(path).parent.exists()
    take(path)
    assert not take(path, "run-2", check=True)["taken"]
    assert run_lock.read(path)["held"]["run"] == "run-1"


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"who": "x"}'])
def test_a_file_that_says_nothing_is_somebodys(path, text):
    Path(path).parent.mkdir()
    Path(path).write_text(text)
    answer = take(path)
    assert not answer["taken"] and path in run_lock.describe(answer["held"])
    assert take(path, force=True)["taken"]


@pytest.mark.parametrize(
    "odd",
    [
        {"lease": "long"},
        {"lease": float("inf")},
        {"renewed": True},
        {"uptime": "x"},
        {"uptime": -5},
        {"who": {"a": 1}},
        {"since": 5},
        {"boot_id": []},
        {"controller": "desk"},
        {"controller": {"name": 5, "boot_id": {}, "processes": ["x"]}},
        {"controller": {**run_lock.controller(), "processes": [{"pid": "1"}]}},
        {"controller": {"processes": {"pid": 1}}},
    ],
    ids=str,
)
def test_a_record_of_another_making_stops_nobody_and_proves_nothing(path, odd):
    Path(path).parent.mkdir()
    sound = {**holder("run-0"), **run_lock.now(), "lease": 600, "since": "2026-11-28T09:00:00Z"}
    Path(path).write_text(json.dumps({**sound, **odd}))
    answer = take(path)
    assert not answer["taken"] and answer["held"]["run"] == "run-0"
    assert runlock.proven(answer) is None and runlock.refused(answer["held"])["message"]
    assert run_lock.read(path)["stale"] is None
    with pytest.raises(run_lock.LockError):
        run_lock.admit("run-1", path)
    assert run_lock.renew("run-0", path)["kept"], "whose it is, it stays"


def test_a_place_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(run_lock.LockError) as caught:
        take(str(tmp_path / "file/lock.json"))
    assert caught.value.code == "host.lock_unusable" and caught.value.hint
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(run_lock.LockError) as caught:
        take(str(tmp_path / "file/lock.json"))
    assert "become" in caught.value.hint


def _compete(path, run, start, won):
    start.wait()
    if take(path, run)["taken"]:
        won.put(run)


def test_of_many_at_once_one_gets_it(path):
    context = multiprocessing.get_context("fork")
    start, won = context.Event(), context.SimpleQueue()
    runs = [context.Process(target=_compete, args=(path, f"run-{n}", start, won)) for n in range(12)]
    for run in runs:
        run.start()
    start.set()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0] * len(runs)
    assert won.get() == run_lock.read(path)["held"]["run"]
    assert won.empty()


@pytest.mark.parametrize(
    ("environment", "expected"), [({"SUDO_USER": "ada"}, "ada@"), ({"SUDO_USER": "", "LOGNAME": "bob"}, "bob@")]
)
def test_who_runs_it(monkeypatch, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert runlock.who().startswith(expected)


def test_a_refusal_says_all_of_it():
    held = {**holder(), "from": "10.0.0.7", "since": "2026-11-28T09:30:00Z", "lease": 600}
    words = runlock.refused(held)
    for part in ("ada@desk", "10.0.0.7", "2026-11-28T09:30:00Z", "provision apply", "run-1"):
        assert part in words["message"]
    assert "10 min" in words["because"][0] and "--break-lock" in words["hint"]


def test_a_fact_that_another_run_left_in_a_cache_is_not_this_ones(monkeypatch):
    kept = runlock.keep("x", {"run": "r"})
    assert runlock.fact(kept, "x") == runlock.fact({"ansible_facts": kept}, "x") == {"run": "r"}
    assert runlock.fact({"x": {"run": "r"}}, "x") is runlock.fact({}, "x") is runlock.fact({"x": "r"}, "x") is None
    name = runlock.new_run()
    with multiprocessing.get_context("fork").Pool(1) as worker:
        assert worker.apply(runlock.fact, (kept, "x")) == {"run": "r"}, "a worker asks for its ansible-playbook"
        assert worker.apply(runlock.new_run)[-6:] == name[-6:]
    # The same number in another container, the same number later.
    real = run_lock.controller
    for other in ({"name": "other"}, {"namespace": "pid:[1]"}, {"processes": [{"pid": os.getpid(), "started": 1}]}):
        monkeypatch.setattr(run_lock, "controller", lambda pids, other=other: {**real(pids), **other})
        assert runlock.fact(kept, "x") is None and runlock.new_run()[-6:] != name[-6:]
