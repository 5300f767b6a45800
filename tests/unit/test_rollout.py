"""Rollouts by tables: waves, amounts, what was agreed to; and stories of made-up fleets, killed anywhere."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.console import Console

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.probe import gpu_users
from provision.commands import apply
from provision.commands.outcomes import host_outcome
from provision.documents import ApplyDocument, PlanDocument
from provision.errors import Issue, ProvisionError, UsageError
from provision.lib import yaml_reader
from provision.parts.plan import HostPlan, PackageChange, Reboot, Step
from provision.render.results import applied
from provision.rollout import summary as rollout_summary
from provision.rollout.agreed import beyond
from provision.rollout.hooks import hooks_of
from provision.rollout.interrupts import Interrupts
from provision.rollout.options import RolloutOptions, parse, seconds
from provision.rollout.state import DONE, HostState, Process, RunState, Store, WaveState, Where, find, new_state
from provision.rollout.summary import duration
from provision.rollout.waves import Kind, canaries, waves
from provision.runs.engine import HostOutcome
from tests.unit.rollouts import World, plan, session

ROOT = Path(__file__).parents[2]
CASES = yaml_reader.load((ROOT / "tests/cases/rollout.yml").read_text())


def name_of(case):
    return case.get("name") or str(case)


@pytest.mark.parametrize("case", CASES["amounts"], ids=name_of)
def test_amounts(case):
    options = RolloutOptions(**case["options"])
    assert (options.batch_size(case["total"]), options.may_fail(case["total"])) == (case["batch"], case["may_fail"])


@pytest.mark.parametrize(("text", "expected"), CASES["times"].items())
def test_times(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize(("number", "expected"), CASES["told"].items())
def test_how_a_time_is_told(number, expected):
    assert duration(number) == expected


NOTHING = {"canary": None, "batch": None, "max_failures": None, "wait": None}


@pytest.mark.parametrize("case", CASES["parsed"], ids=name_of)
def test_what_the_command_line_means(case):
    assert parse(**{**NOTHING, **case["given"]}) == RolloutOptions(**case["options"])


@pytest.mark.parametrize("case", CASES["refused"], ids=name_of)
def test_what_cannot_be_meant_is_refused_with_a_way_out(case):
    with pytest.raises(UsageError) as caught:
        parse(**{**NOTHING, **case})
    (value,) = case.values()
    assert value in caught.value.issue.message and caught.value.issue.hint


@pytest.mark.parametrize("case", CASES["waves"], ids=name_of)
def test_waves(case):
    kinds = {name: Kind(*kind) for name, kind in case["hosts"].items()}
    hosts = list(kinds)
    found = waves(hosts, kinds, case.get("canary", 0), case.get("size", max(len(hosts), 1)))
    assert [list(wave.hosts) for wave in found] == case["waves"]


def plan_of(row):
    return HostPlan(
        host="a",
        status="changes",
        summary=row.get("summary", "driver"),
        packages=[PackageChange(action=a, name=n, version=v) for a, n, v in row.get("packages", ())],
        steps=[Step(part=p, id=i, title=t, because="b", details=d) for p, i, t, d in row.get("steps", ())],
        reboot=Reboot(needed=row.get("reboot", False), because=["because"]),
    )


@pytest.mark.parametrize("case", CASES["agreed"], ids=name_of)
def test_no_more_than_was_agreed_to(case):
    agreed = [plan_of(case[key]) for key in ("before", "agreed") if key in case]
    assert beyond(agreed, plan_of(case["now"])) == case["beyond"]


@pytest.mark.parametrize("case", CASES["stories"], ids=name_of)
def test_stories(case):
    world = World(case["hosts"], case.get("drains", ()), case.get("locked", ()))
    options = RolloutOptions(**case.get("options", {}))
    store, _, document = session(world, options, planned_ago=case.get("planned_ago", 0.0))
    check_story(case, world, store, document)


@pytest.mark.parametrize(("batch", "told"), [(None, []), ("2", [1, 1, 2, 2]), ("1", [1, 1, 2, 2, 3, 3])])
def test_waves_are_told_as_they_begin_and_end_where_there_is_more_than_one(batch, told):
    _, rollout, _ = session(World({"a": "ok", "b": "ok", "c": "ok"}), RolloutOptions(batch=batch))
    waves_told = [note for note in rollout.actions.notes if note.startswith("wave ")]
    assert [int(note.split()[1]) for note in waves_told] == told
    assert ["done in 0 s" in note for note in waves_told] == [False, True] * (len(told) // 2)


@pytest.mark.parametrize(
    ("batch", "begins", "titles"),
    [
        (None, [], ["", "verifying"]),
        (
            "2",
            ["wave 1 of 2: a, b (2 hosts)", "wave 2 of 2: c"],
            ["wave 1 of 2, ", "wave 1 of 2, verifying", "wave 2 of 2, ", "wave 2 of 2, verifying"],
        ),
    ],
)
def test_work_is_said_to_be_of_a_wave_where_there_is_more_than_one(batch, begins, titles):
    _, rollout, _ = session(World({"a": "ok", "b": "ok", "c": "ok"}), RolloutOptions(batch=batch))
    assert rollout.actions.notes[::2] == begins and rollout.actions.titles == titles


@pytest.mark.parametrize(
    ("count", "waiting", "may_fail", "told"),
    [
        (1, ["b", "c"], 1, ["then, when their GPUs are idle (waiting up to 2 min): b, c (2 hosts)"]),
        (2, [], 0, ["stops when one fails"]),
        (2, [], 1, ["stops when more than 1 fail"]),
        (2, [], None, []),
    ],
)
def test_what_somebody_is_asked_to_agree_to(count, waiting, may_fail, told):
    first = [(1, "canary", ["a", "d"])]
    lines = rollout_summary.preview(first, count, waiting, RolloutOptions(wait=120), may_fail)
    assert lines == [f"wave 1 of {count} (canary): a, d (2 hosts)", *told]


@pytest.mark.parametrize(("number", "last"), [(6, "now also: line 6"), (7, "and 1 more")])
def test_six_lines_of_what_was_not_agreed_to_are_told(number, last):
    more = [f"line {n}" for n in range(1, number + 1)]
    (issue,) = rollout_summary.differs(plan("a"), more, "again").issues
    assert len(issue.because) == number and issue.because[-1] == last


@pytest.mark.parametrize(("fate", "statuses"), [("ok", ["done", "done"]), ("stopped", ["stopped", "not_begun"])])
def test_a_wave_that_was_cut_off_is_not_done(fate, statuses):
    store, rollout, _ = session(World({"a": fate, "b": "ok"}), RolloutOptions(batch="1"))
    assert rollout.interrupted is (fate == "stopped")
    assert [wave.status for wave in store.state.waves] == statuses


@pytest.mark.parametrize("case", CASES["killed"], ids=name_of)
def test_killed_and_gone_on_with(case):
    world = World(case["hosts"], case.get("drains", ()))
    options = RolloutOptions(**case.get("options", {}))
    world.kill_on = tuple(case["killed"])
    store, _, document = session(world, options)
    assert document is None, "it was not killed"
    world.kill_on = None
    store, _, document = session(world, options, store.saved)
    check_story(case, world, store, document)


def test_waves_of_a_run_that_is_gone_on_with_are_those_that_it_planned():
    world = World({"a": "ok", "b": "fails", "c": "ok"})
    options = RolloutOptions(canary=1, batch="1")
    store, _, document = session(world, options)
    assert document.stopped and [wave.status for wave in document.waves] == ["done", "done", "not_begun"]
    world.fates["b"] = "ok"
    store, rollout, document = session(world, options, store.saved)
    assert [note.split(":")[0] for note in rollout.actions.notes] == [
        "wave 2 of 3",
        "wave 2 of 3",
        "wave 3 of 3",
        "wave 3 of 3",
    ]
    assert [(wave.hosts, wave.status) for wave in document.waves] == [([name], "done") for name in "abc"]
    assert {name: host.wave for name, host in document.hosts.items()} == {"a": 1, "b": 2, "c": 3}


def test_a_wave_that_was_cut_off_is_done_once_its_hosts_are_proven():
    world = World({"a": "stopped", "b": "ok"})
    options = RolloutOptions(batch="1")
    store, _, document = session(world, options)
    assert wave_lines(document) == ["wave 1 of 2, batch interrupted", "wave 2 of 2, batch not begun"]
    world.fates["a"] = "ok"
    assert document.hosts["a"].status == "interrupted", "changed, and not proven"
    _, rollout, document = session(world, options, store.saved)
    assert [note.split(":")[0] for note in rollout.actions.notes] == ["wave 2 of 2"] * 2
    assert wave_lines(document) == ["wave 1 of 2, batch done in 0 s", "wave 2 of 2, batch done in 0 s"]


def test_failures_stand_in_the_line_of_their_wave():
    """All fail in the first session; then one of them is not even reached."""
    world = World(dict.fromkeys("abc", "fails"))
    options = RolloutOptions(batch="2", max_failures="3")
    store, _, document = session(world, options)
    assert wave_lines(document) == [
        "wave 1 of 2, batch done in 0 s, 2 failed",
        "wave 2 of 2, batch done in 0 s, 1 failed",
    ]
    world.fates = {"a": "ok", "b": "ok", "c": "away"}
    _, _, document = session(world, options, store.saved)
    assert wave_lines(document) == ["wave 1 of 2, batch done in 0 s", "wave 2 of 2, batch done in 0 s, 1 failed"]


def wave_lines(document):
    console = Console(width=100, file=io.StringIO())
    for line in applied(document, 0):
        console.print(line)
    shown = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    return [line.rpartition(":")[0] for line in shown if line.startswith("wave ")]


def test_a_run_of_one_wave_stays_one():
    world = World({"a": "fails", "b": "ok"})
    store, _, _ = session(world, RolloutOptions())
    world.fates["a"] = "ok"
    _, rollout, document = session(world, RolloutOptions(), store.saved)
    assert (len(document.waves), rollout.actions.notes, wave_lines(document)) == (1, [], [])


def test_others_come_first_in_the_place_of_canaries_that_cannot_be_changed_now():
    waves_ = [WaveState(kind="canary", hosts=["a"]), WaveState(kind="batch", hosts=["b", "c"])]
    hosts = {name: HostState(canary=name == "a", status="failed" if name == "a" else "waiting") for name in "abcd"}
    run = new_state("run", RolloutOptions(canary=1, batch="2"), Where(), waves_, hosts)
    planned = PlanDocument(hosts={name: plan(name) for name in "bcd"})
    staged = apply.stages(SimpleNamespace(values=dict.fromkeys("abcd", {})), planned, run.options, run)
    assert [(wave.kind, wave.hosts) for wave in staged.planned] == [
        ("canary", ["a"]),
        ("canary", ["b"]),
        ("batch", ["c"]),
        ("batch", ["d"]),
    ]
    assert (staged.now, staged.inserted) == ({2: ["b"], 3: ["c"], 4: ["d"]}, (1, 1))


def check_story(case, world, store, document):
    assert {name: host.status for name, host in document.hosts.items()} == case["expect"]
    assert document.exit_code == case["code"]
    plays = [hosts for kind, hosts in world.events if kind == "play"]
    assert plays == case.get("plays", plays)
    hooks = [f"{kind} {hosts[0]}" for kind, hosts in world.events if kind in ("drain", "resume")]
    assert hooks == case.get("hooks", hooks)
    assert document.stopped == case.get("stopped")
    assert store.state.owing() == case.get("owing", [])
    if "order" in case:
        assert [kind for kind, _ in world.events] == case["order"]
    if "kinds" in case:
        assert [wave.kind for wave in document.waves] == case["kinds"]
    issues = {issue.code: issue for issue in document.errors}
    if document.stopped:
        said = "\n".join(issues["rollout.stopped"].because)
        assert "--resume run" in issues["rollout.stopped"].hint
        for word, names in (("half-way", case.get("half_way")), ("not begun", case.get("not_begun"))):
            assert names is None or f"{word}: {', '.join(names)}" in said
    for name, status in case["expect"].items():
        if status == "busy":
            assert document.hosts[name].because == ["python3 (pid 1)"]
            assert any(issue.code == "gpu.in_use" and issue.host == name for issue in document.errors)
    assert bool(case.get("owing")) == ("rollout.still_drained" in issues)


# ---- what must hold for any fleet ------------------------------------------------------------------------------------

names = st.lists(st.integers(1, 30), unique=True, max_size=14).map(lambda ns: [f"h{n}" for n in ns])


@given(names, st.data(), st.integers(0, 8), st.integers(1, 15))
def test_every_host_is_in_one_wave_and_canaries_come_first(hosts, data, canary, size):
    pairs = st.tuples(st.sampled_from("ABCDE"), st.sampled_from("xy"))
    kinds = {name: Kind(*data.draw(pairs)) for name in hosts}
    found = waves(hosts, kinds, canary, size)
    assert sorted(name for wave in found for name in wave.hosts) == sorted(hosts)
    assert all(0 < len(wave.hosts) <= size for wave in found)
    order = [wave.kind for wave in found]
    assert order == sorted(order, key=lambda kind: kind != "canary")
    chosen = [name for wave in found if wave.kind == "canary" for name in wave.hosts]
    assert chosen == canaries(hosts, kinds, canary)
    assert len(chosen) == min(canary, len(hosts))
    hardware = {kind.hardware for kind in kinds.values()}
    assert len({kinds[name].hardware for name in chosen}) == min(len(chosen), len(hardware))
    assert waves(hosts, kinds, canary, size) == found


FATES = [
    "ok",
    "ok",
    "ok",
    "fails",
    "checks",
    "lost",
    "gone",
    "changed",
    "blocked",
    "converged",
    "busy",
    "busy2",
    "busy4",
    "waits",
    "undrained",
    "used at 2",
]
fleets = st.dictionaries(
    st.integers(1, 20).map(lambda n: f"h{n:02d}"),
    st.tuples(st.sampled_from(FATES), st.sampled_from("AB")).map(list),
    min_size=1,
    max_size=7,
)
ways = st.builds(
    RolloutOptions,
    canary=st.integers(0, 3),
    batch=st.sampled_from([None, "1", "2", "50%"]),
    max_failures=st.sampled_from([None, "0", "1", "50%"]),
    wait=st.sampled_from([0, 300]),
)


@given(fleets, ways, st.data(), st.lists(st.integers(0, 40), max_size=3))
def test_killed_anywhere_and_gone_on_with(fleet, options, data, kills):
    """A run that is killed any number of times and gone on with ends like any other, and breaks no promise on the way."""
    drains = [name for name in fleet if data.draw(st.booleans())]
    world = World(fleet, drains)
    saved, done_before = None, set()
    for kill in [*kills, None]:
        first_event = len(world.events)
        world.kill_at = None if kill is None else first_event + kill
        store, rollout, document = session(world, options, saved)
        saved = store.saved
        check_session(world, options, store, world.events[first_event:], done_before)
        done_before |= {name for name, host in store.state.hosts.items() if host.status in DONE}
    assert document is not None
    assert not world.drained, "a host is still drained"
    assert store.state.owing() == []
    assert set(document.hosts) == set(fleet)
    assert all(host.status != "running" for host in store.state.hosts.values())


def check_session(world, options, store, events, done_before):
    # Without --batch a wave has all hosts: also those that were busy when the run began, and are free when it is gone on with.
    size = options.batch_size(store.state.total) if options.batch else len(world.fates)
    limit = options.may_fail(store.state.total)
    failed = set()
    for kind, hosts in events:
        if kind == "play":
            assert 0 < len(hosts) <= size
            assert not set(hosts) & done_before, "a host that is done was done again"
            assert all(world.fates[name] != "busy" for name in hosts), "work was disturbed"
            assert limit is None or len(failed) <= limit, "it went on although too many had failed"
            failed |= {name for name in hosts if world.fates[name] in ("fails", "lost")}
        elif kind == "drain":
            assert not set(hosts) & done_before


@given(fleets, ways)
def test_hooks_of_a_run_that_is_not_killed_come_in_pairs(fleet, options):
    world = World(fleet, fleet)
    session(world, options)
    count = Counter((kind, hosts[0]) for kind, hosts in world.events if kind in ("drain", "resume"))
    for name in fleet:
        assert count["drain", name] == count["resume", name] <= 1


# ---- hooks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"gpu_rollout_drain": {"timeout": 5}}, "no command"),
        ({"gpu_rollout_drain": {"command": [""]}}, "no command"),
        ({"gpu_rollout_drain": {"command": ["x"], "timeout": -1}}, "timeout"),
        ({"gpu_rollout_resume": {"command": ["x"]}}, "without gpu_rollout_drain"),
    ],
)
def test_hooks_that_cannot_work_are_refused(values, word):
    with pytest.raises(UsageError) as caught:
        hooks_of("gpu01", values)
    assert word in caught.value.issue.message and caught.value.issue.hint and caught.value.issue.host == "gpu01"


# ---- the machine that runs it, and work on the GPUs ----------------------------------------------------------------------

ME = {"boot_id": "b1", "machine_id": "m1", "gpu_users": []}
JOB = [{"pid": 7, "comm": "python3", "user": "eva"}]


@pytest.mark.parametrize(
    ("host", "policy", "expected"),
    [
        ({"boot_id": "b2", "machine_id": "m2"}, "when_idle", []),
        ({"boot_id": "b1", "machine_id": "m1"}, "when_idle", [gpu_users.OWN_MACHINE]),
        ({"boot_id": "b1", "machine_id": "m1"}, "always", [gpu_users.OWN_MACHINE]),
        # a controller in a container
        ({"boot_id": "b1", "machine_id": "other"}, "when_idle", [gpu_users.OWN_MACHINE]),
        # images are copied
        ({"boot_id": "b2", "machine_id": "m1"}, "when_idle", []),
        ({"boot_id": None, "machine_id": "m1"}, "when_idle", [gpu_users.OWN_MACHINE]),
        ({"boot_id": None, "machine_id": None}, "when_idle", []),
        (
            {"boot_id": "b2", "machine_id": "m2", "gpu_users": JOB},
            "when_idle",
            ["its GPUs are in use: python3 (pid 7, eva)"],
        ),
        ({"boot_id": "b2", "machine_id": "m2", "gpu_users": JOB}, "always", []),
    ],
)
def test_why_a_host_is_not_rebooted_now(host, policy, expected):
    assert gpu_users.reasons({"gpu_users": [], **host}, ME, policy) == expected


def test_what_is_left_of_a_reboot_says_how_to_go_on():
    left = HostOutcome(status="changed", reboot_required=True, reboot_because=[gpu_users.OWN_MACHINE])
    outcome = host_outcome("gpu01", left, plan("gpu01"), False, "provision apply --resume run-1")
    assert (outcome.status, outcome.code) == ("reboot_needed", 6)
    assert outcome.issues[0].because[0] == gpu_users.OWN_MACHINE
    assert "provision apply --resume run-1" in outcome.issues[0].hint


@pytest.mark.parametrize(
    ("action", "message", "lost"),
    [
        ("ansible.builtin.reboot", "Reboot and wait: Timed out waiting for last boot time check (timeout=900)", True),
        ("ansible.builtin.reboot", "Reboot and wait: Reboot command failed. Error was: 'no', ''", False),
        ("gpu.provision.driver_boot", "Make: Timed out waiting for the module", False),
    ],
)
def test_a_host_that_does_not_come_back_is_told_from_one_that_fails(action, message, lost):
    issue = Issue(code="apply.task_failed", host="gpu01", message=message)
    failed = HostOutcome(status="failed", failed_task="t", failed_action=action, issue=issue)
    outcome = host_outcome("gpu01", failed, plan("gpu01"), False, "run-1")
    assert outcome.lost is lost
    assert (outcome.status, outcome.code) == (("unreachable", 4) if lost else ("failed", 1))
    assert [found.code for found in outcome.issues] == ["reboot.not_back" if lost else "apply.task_failed"]


@pytest.mark.parametrize(
    ("code", "status"), [("host.locked", "blocked"), ("connect.refused", "unreachable"), ("host.slow", "failed")]
)
def test_why_a_host_could_not_be_locked_decides_what_it_is(code, status):
    outcome = rollout_summary.refused(plan("a"), Issue(code=code, message="m"))
    assert (outcome.status, outcome.applied.untouched) == (status, True)


def test_a_host_that_failed_says_how_to_go_on_and_that_nothing_was_changed():
    issue = Issue(code="host.slow", host="a", message="Change packages: too slow", because=["the load"], hint="wait")
    names = ("a", "b")
    outcomes = {
        name: host_outcome(
            name,
            HostOutcome(status="failed", untouched=name == "a", issue=issue),
            plan(name),
            False,
            "provision apply --resume run-1",
        )
        for name in names
    }
    (said,), (other,) = outcomes["a"].issues, outcomes["b"].issues
    assert said.hint == other.hint == "wait; then continue: provision apply --resume run-1"
    assert said.because == ["the load", "nothing was changed on it this time"] and other.because == ["the load"]
    document = ApplyDocument(hosts={name: outcomes[name].applied for name in names})
    assert list(applied(document, 0))[-1].plain == "nothing was changed this time on a"


# ---- the state on disk -----------------------------------------------------------------------------------------------------


def stored(base, name, **hosts):
    folder = base / name
    folder.mkdir(parents=True)
    state = new_state(name, RolloutOptions(), Where(), [], {h: HostState(status=s) for h, s in hosts.items()})
    store = Store(folder, state)
    with store.change():
        return store


def test_runs_are_found_by_last_by_part_and_by_folder(tmp_path):
    first = stored(tmp_path, "20260101T000000Z-apply-aaa111", a="done", b="waiting").folder
    second = stored(tmp_path, "20260102T000000Z-apply-bbb222", a="done").folder
    assert find("last", tmp_path) == second
    assert find("aaa", tmp_path) == find(first.name, tmp_path) == find(str(first), tmp_path / "elsewhere") == first
    for wrong in ("2026", "ccc", "./nothing"):
        with pytest.raises(UsageError) as caught:
            find(wrong, tmp_path)
        issue = caught.value.issue
        assert f"{first.name}: 1 of 2 hosts done" in issue.because and "--resume" in issue.hint
    with pytest.raises(UsageError, match="no run yet"):
        find("last", tmp_path / "empty")


def test_a_state_is_the_whole_old_one_or_the_whole_new_one(tmp_path, monkeypatch):
    store = stored(tmp_path, "run", a="waiting")
    path = tmp_path / "run/state.json"
    before = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr("provision.rollout.state.os.fsync", lambda number: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(ProvisionError, match="disk full"):
        store.mark(["a"], "running")
    assert path.read_text() == before


# ---- interrupted, and gone on with ------------------------------------------------------------------------------------


def test_the_command_that_goes_on_is_whole_and_has_no_secret():
    state = RunState(run="20260101T000000Z-apply-abcdef")
    assert state.again == "provision apply --resume 20260101T000000Z-apply-abcdef"
    state.where = Where(run_dir="/srv/my runs", asks=["-K"], extra_vars=["my_token"])
    said = rollout_summary.interruption(state, {}).hint
    assert said.startswith(
        f"to continue: provision apply --resume {state.run} --run-dir '/srv/my runs' -K -e <my_token="
    )


def test_why_a_session_did_not_end(monkeypatch):
    here = Process.of(os.getpid())
    state = RunState(process=here, controller=socket.gethostname())
    assert state.cut_off() == f"its process ({os.getpid()}) was killed"
    monkeypatch.setattr("provision.rollout.state.own_boot_id", lambda: "another")
    assert "restarted or lost power" in state.cut_off()
    assert "started on desk" in state.model_copy(update={"controller": "desk"}).cut_off()
    assert state.model_copy(update={"ended": "2026-01-01T00:00:00Z"}).cut_off() is None


@pytest.mark.parametrize(("pid", "valid"), [(0, False), (1, True), (1 << 22, True), ((1 << 22) + 1, False)])
def test_a_process_has_a_number_that_linux_gives_out(pid, valid):
    with contextlib.nullcontext() if valid else pytest.raises(ValidationError):
        Process(pid=pid)


def test_an_interruption_is_said_once_with_what_is_done_and_what_still_runs():
    hosts = {
        "a": HostState(status="done", began=True),
        "b": HostState(status="interrupted", began=True),
        "c": HostState(status="running", began=True),
        "d": HostState(status="not_started"),
        "e": HostState(status="waiting"),
    }
    said = rollout_summary.interruption(RunState(run="r", hosts=hosts), {"b": ["in 'Install'", "apt still runs there"]})
    assert said.message == "interrupted" and said.because == [
        "done: a",
        "in the middle: b: in 'Install'; apt still runs there",
        "in the middle: c: its change was begun, and is not proven",
        "not begun: d, e (2 hosts)",
    ]
    begun = {"d": hosts["d"], "e": hosts["e"]}
    assert rollout_summary.interruption(RunState(hosts=begun), {}).message == "interrupted: nothing was changed"
    said = rollout_summary.interruption(RunState(hosts=hosts), {}, check=True)
    assert said.message == "interrupted: nothing was changed" and "--resume" not in said.hint


def test_only_the_main_thread_listens_to_signals():
    """signal.signal() raises ValueError in another thread: a program that uses our API may call from one."""
    done = []

    def work():
        with Interrupts().caught():
            done.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [before]


def test_a_signal_that_was_put_off_ends_it_at_the_next_check_and_not_before():
    interrupts = Interrupts()
    interrupts.check()
    with interrupts.later("the wave"):
        interrupts._take(signal.SIGINT, None)
        interrupts.check()
    with pytest.raises(KeyboardInterrupt):
        interrupts.check()
    interrupts.check()
