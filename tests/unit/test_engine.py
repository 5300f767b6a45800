"""What ansible-playbook is given, and what its events make of a host (provision/runs/engine.py)."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from provision.inventory import Connection, Host, Inventory
from provision.runs import engine

OK = {"event": "ok", "action": "ansible.builtin.command"}
FAILED = {"event": "failed", "action": "ansible.builtin.command", "message": "no"}
LOST = {
    "event": "unreachable",
    "action": "gpu.provision.gpu_facts",
    "message": "ssh: connect to host a: Connection timed out",
}
FINE = {"failures": 0, "unreachable": 0}
EARLY = "ssh: connect to host a port 22: Connection refused"


def state_of(*events):
    state = engine._State(["a"])
    for event in events:
        state.take({"host": "a", "task": "t", "changed": False, **event})
    return state


def outcome(*events, stats=None, interrupted=False):
    state = state_of(*events)
    if stats:
        state.take({"event": "stats", "hosts": {"a": stats}})
    return state.outcomes(interrupted, ["why"], Path("/run"))["a"]


@pytest.mark.parametrize(
    ("events", "stats", "status", "code"),
    [
        ([OK], FINE, "ok", None),
        ([{**OK, "changed": True}], FINE, "changed", None),
        # there was nothing to do
        ([], FINE, "ok", None),
        # a rescue block took care of it
        ([FAILED], FINE, "ok", None),
        ([FAILED], {"failures": 1, "unreachable": 0}, "failed", "apply.task_failed"),
        ([{**FAILED, "ignored": True}], {"failures": 1, "unreachable": 0}, "not_started", None),
        ([LOST], {"failures": 0, "unreachable": 1}, "unreachable", "connect.timeout"),
        # it is there, and was too slow
        (
            [{**OK, "action": "gpu.provision.gpu_facts"}, LOST],
            {"failures": 0, "unreachable": 1},
            "failed",
            "connect.timeout",
        ),
        ([{**OK, "changed": True}, LOST], {"failures": 0, "unreachable": 1}, "failed", "connect.timeout"),
        # it broke in a task, or before one began
        (
            [{**LOST, "message": "Shared connection to a closed."}],
            {"failures": 0, "unreachable": 1},
            "unreachable",
            "connect.lost",
        ),
        ([{**FAILED, "message": EARLY}], {"failures": 1, "unreachable": 0}, "failed", "connect.refused"),
        # an always block that ran afterwards
        ([FAILED, OK], {"failures": 1, "unreachable": 0}, "failed", "apply.task_failed"),
        # it ran on this machine
        ([OK, LOST], {"failures": 0, "unreachable": 1}, "unreachable", "connect.timeout"),
        # ansible-playbook died
        ([OK], None, "failed", "engine.failed"),
        ([], None, "failed", "engine.failed"),
        ([FAILED], None, "failed", "apply.task_failed"),
    ],
)
def test_what_became_of_a_host(events, stats, status, code):
    found = outcome(*events, stats=stats)
    assert (found.status, found.issue and found.issue.code) == (status, code)
    assert found.issue is None or found.issue.hint


@pytest.mark.parametrize(
    ("events", "status", "message"),
    [
        ([], "not_started", "interrupted before it started"),
        ([{"event": "host_start"}], "interrupted", "interrupted in task 't'"),
        ([{"event": "host_start"}, OK], "interrupted", "interrupted between two tasks"),
        ([{"event": "host_start"}, FAILED], "failed", "t: no"),
    ],
)
def test_where_a_host_was_interrupted(events, status, message):
    found = outcome(*events, interrupted=True)
    assert (found.status, found.issue.message) == (status, message)


@pytest.mark.parametrize(
    ("action", "message", "untouched"),
    [
        *(
            (f"gpu.provision.{name}", "no", True)
            for name in ("gpu_facts", "gpu_verify", "host_may_reboot", "host_plan")
        ),
        *((f"ansible.builtin.{name}", "no", True) for name in ("gather_facts", "ping", "setup")),
        *(
            (f"gpu.provision.{name}", EARLY, True)
            for name in ("apt_sources", "apt_transaction", "driver_boot", "host_packages")
        ),
        ("gpu.provision.apt_transaction", "no", False),
        ("ansible.builtin.command", EARLY, False),
    ],
)
def test_nothing_was_changed_where_a_task_only_reads_or_did_not_begin(action, message, untouched):
    failed = {**FAILED, "action": action, "message": message}
    assert outcome(failed).untouched is untouched
    assert outcome({**OK, "changed": True}, failed).untouched is False


def test_what_a_host_tells_of_reboots_and_restarts_is_kept():
    changed = {**OK, "changed": True}
    told = [{**changed, "action": "ansible.builtin.reboot"}, changed]
    told += [{**OK, "reboot_required": True, "reboot_because": ["kernel"]}, {**OK, "restart_required": ["docker"]}]
    found = outcome(*told, {**FAILED, "host": "localhost"}, OK, stats=FINE)
    assert (found.rebooted, found.reboot_required, found.reboot_because) == (True, True, ["kernel"])
    assert (found.restart_required, found.changed) == (["docker"], ["t", "t"])
    plain = outcome(changed, stats=FINE)
    assert (plain.rebooted, plain.reboot_required, plain.restart_required) == (False, False, None)


@pytest.mark.parametrize(
    ("events", "again"),
    [
        ([LOST], True),
        ([{**FAILED, "action": "gpu.provision.apt_sources", "message": "Timed out waiting for become success"}], True),
        ([{**LOST, "action": "ansible.builtin.command"}], False),
        ([{**OK, "changed": True}, LOST], False),
        # a refused connection stays refused
        ([{**LOST, "message": EARLY}], False),
        ([{**FAILED, "action": "gpu.provision.gpu_facts"}], False),
    ],
)
def test_which_hosts_are_played_once_more(events, again):
    assert state_of(*events).begin_again() == (["a"] if again else [])


def test_a_host_whose_connection_broke_before_a_change_is_played_twice_and_no_more(monkeypatch, tmp_path):
    played = []
    ended = SimpleNamespace(pid=1, returncode=4, poll=lambda: 4)
    monkeypatch.setattr(engine, "_start", lambda request, *_: played.append(request["limit"]) or ended)
    monkeypatch.setattr(engine, "_send_password", lambda *_: None)

    def watch(process, reader, state, on_event):
        state.take({"host": "a", "task": "t", "changed": False, **LOST})
        state.take({"host": "b", "task": "t", "changed": False, **FAILED})

    monkeypatch.setattr(engine, "_watch", watch)
    run = engine.run_playbook(tmp_path / "p.yml", Inventory(hosts=[], sources=[]), ["a", "b"], {}, tmp_path)
    assert played == ["a\nb\n", "a\n"]
    assert {name: host.status for name, host in run.hosts.items()} == {"a": "unreachable", "b": "failed"}


def request(inventory=None, check=False, verbosity=0):
    return engine._request(
        Path("p.yml"), inventory or Inventory(hosts=[], sources=["h.yml"]), ["a"], {}, None, check, verbosity, {}, ["x"]
    )["arguments"]


def test_the_words_of_ansible_playbook():
    assert request() == ["p.yml", "-i", "h.yml", "--skip-tags", "x", "--forks", "1"]
    assert request(check=True)[-2:] == ["--check", "--diff"]
    assert (request(verbosity=2)[-1], request(verbosity=9)[-1]) == ("-vv", "-vvvv")
    secrets = Inventory(hosts=[], sources=["h.yml"], vault_ids=["me@prompt"], become_password="secret")  # noqa: S106
    assert request(secrets)[-4:] == ["--vault-id", "me@prompt", "--become-password-file", "-"]


@pytest.mark.parametrize(
    ("own", "python", "variables"),
    [
        ({}, {"path": "/usr/bin/python3", "version": "3.12.3"}, ["ansible_python_interpreter"]),
        # Ansible does not know it, or nobody found one
        ({}, {"path": "/usr/bin/python3", "version": "3.99.0"}, []),
        ({}, {"path": None, "version": "3.12.3"}, []),
        ({}, {}, []),
        # the inventory says which
        ({"python": "/opt/python3"}, {"path": "/usr/bin/python3", "version": "3.12.3"}, []),
        ({"kind": "local"}, {}, [engine._LOCAL_SUDO]),
    ],
)
def test_what_is_known_of_a_host_that_its_inventory_leaves_open(own, python, variables):
    hosts = [Host(name=name, connection=Connection(**own)) for name in ("a", "other")]
    inventory = Inventory(hosts=hosts, sources=[], settings={"pythons": ["python3.12", "python3.11"]})
    found = engine._host_vars(inventory, ["a"], {"a": python, "other": python})
    assert {name: list(values) for name, values in found.items()} == ({"a": variables} if variables else {})


def test_a_limit_on_sudo_of_the_inventory_stays():
    host = Host(name="a", connection=Connection(kind="local"), vars={engine._LOCAL_SUDO: 5})
    assert engine._host_vars(Inventory(hosts=[host], sources=[]), ["a"], {}) == {}
