"""The engine with the real ansible-playbook, against this machine without ssh; tiny playbooks."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from provision import inventory
from provision.errors import Exit
from provision.runs import engine
from provision.runs.engine import HostOutcome

LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Change something
      ansible.builtin.copy:
        content: "{{ gpu_text }}"
        dest: "{{ gpu_folder }}/{{ inventory_hostname }}"
        mode: "0600"
    - name: Break on b
      ansible.builtin.fail:
        msg: "it broke\\nfor two reasons"
      when: inventory_hostname == 'b'
    - name: Hidden failure on c
      ansible.builtin.fail:
        msg: "{{ gpu_secret }}"
      no_log: true
      when: inventory_hostname == 'c'
    - name: Forgiven on d
      ansible.builtin.fail: {msg: never mind}
      ignore_errors: true
      when: inventory_hostname == 'd'
    - name: Rescued on e
      when: inventory_hostname == 'e'
      block:
        - name: Fails in a block
          ansible.builtin.fail: {msg: caught}
      rescue:
        - name: Mend it
          ansible.builtin.set_fact:
            nvidia_driver_reboot_required: true
"""


@pytest.fixture(autouse=True)
def own_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)


def play(tmp_path, text, hosts="a,", names=None, extra=None, on_event=lambda event: None, **options):
    (tmp_path / "play.yml").write_text(text)
    fleet = inventory.load([hosts], None, LOCAL)
    run_dir = engine.new_run_dir("test", tmp_path / "runs")
    names = names or [host.name for host in fleet.hosts]
    return engine.run_playbook(tmp_path / "play.yml", fleet, names, extra or {}, run_dir, on_event, **options)


def test_a_restart_that_waits_for_containers_is_no_success(tmp_path):
    text = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Say that a daemon has to be restarted
      ansible.builtin.set_fact:
        container_toolkit_restart_required: true
        container_toolkit_restart_because: [the runtime is new, "training (pid 42) uses a GPU"]
"""
    outcome = play(tmp_path, text).hosts["a"]
    assert outcome.restart_required == ["the runtime is new", "training (pid 42) uses a GPU"]
    assert outcome.exit_code == Exit.REBOOT_NEEDED


def test_outcomes_events_and_files(tmp_path):
    seen = []
    extra = {"gpu_text": "hello", "gpu_folder": str(tmp_path), "gpu_secret": "geheim"}
    result = play(tmp_path, PLAY, "a,b,c,d,e,left", ["a", "b", "c", "d", "e"], extra, seen.append)
    hosts = result.hosts
    assert {name: host.status for name, host in hosts.items()} == {
        "a": "changed",
        "b": "failed",
        "c": "failed",
        "d": "changed",
        "e": "changed",
    }
    assert hosts["a"].changed == ["Change something"]
    assert not (tmp_path / "left").exists()
    issue = hosts["b"].issue
    assert (issue.code, issue.host, issue.message) == ("apply.task_failed", "b", "Break on b: it broke")
    assert issue.because == ["for two reasons"]
    assert str(result.run_dir / "ansible.log") in issue.hint
    assert hosts["c"].issue.message == "Hidden failure on c: failed (its output is not shown: no_log)"
    assert (hosts["d"].issue, hosts["e"].issue) == (None, None)
    assert hosts["e"].reboot_required
    assert [hosts[name].exit_code for name in "abe"] == [0, 1, 6]
    assert not result.interrupted

    # What was shown is what was kept.
    kept = [json.loads(line) for line in (result.run_dir / "events.jsonl").read_text().splitlines()]
    assert kept == seen
    assert kept[-1]["event"] == "stats"
    durations = [event["duration"] for event in kept if event["event"] == "ok"]
    assert all(duration >= 0 for duration in durations)
    assert "geheim" not in (result.run_dir / "events.jsonl").read_text()

    # Nobody else reads it.
    assert stat.S_IMODE(result.run_dir.stat().st_mode) == 0o700
    for file in result.run_dir.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_our_modules_words_become_the_issue(tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "library/refuse.py").write_text(
        "from ansible.module_utils.basic import AnsibleModule\n"
        "AnsibleModule(argument_spec={}).fail_json(msg='held', code='apt.locked', because=['pid 1'], hint='wait')\n"
    )
    result = play(tmp_path, "- hosts: all\n  gather_facts: false\n  tasks:\n    - name: Ask\n      refuse:\n")
    issue = result.hosts["a"].issue
    assert (issue.code, issue.message, issue.because, issue.hint) == ("apt.locked", "Ask: held", ["pid 1"], "wait")


def test_the_item_of_a_loop_that_failed_says_why(tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "library/refuse.py").write_text(
        "from ansible.module_utils.basic import AnsibleModule\n"
        "module = AnsibleModule(argument_spec={'name': {}})\n"
        "if module.params['name'] == 'second':\n"
        "    module.fail_json(msg='no', code='conda.terms', because=['said so'], hint='accept')\n"
        "module.exit_json()\n"
    )
    text = (
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - name: Make\n      refuse:\n        name: '{{ item }}'\n"
        "      loop: [first, second]\n"
    )
    issue = play(tmp_path, text).hosts["a"].issue
    assert (issue.code, issue.message, issue.because, issue.hint) == ("conda.terms", "Make: no", ["said so"], "accept")


def test_a_playbook_that_cannot_be_read_is_no_unreachable_host(tmp_path):
    result = play(tmp_path, "- hosts: all\n  tasks: [unclosed\n")
    assert result.rc == 4, "Ansible's own code says 'unreachable' here"
    host = result.hosts["a"]
    assert (host.status, host.issue.code, host.exit_code) == ("failed", "engine.failed", 1)
    assert any("YAML" in line or "error" in line.lower() for line in host.issue.because)


def test_unreachable_is_told_apart(tmp_path):
    extra = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    text = "- hosts: all\n  gather_facts: false\n  tasks:\n    - name: Reach\n      ansible.builtin.ping:\n"
    result = play(tmp_path, text, extra=extra)
    assert result.hosts["a"].status == "unreachable"
    assert result.hosts["a"].exit_code == 4


WAIT = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Be quick
      ansible.builtin.set_fact: {done: true}
    - name: Be slow
      ansible.builtin.command: sleep 30
      changed_when: false
"""


def test_ctrl_c_is_passed_on_and_told(tmp_path):
    sent = []

    def interrupt_in_the_slow_task(event):
        if event["event"] == "host_start" and event["task"] == "Be slow" and not sent:
            sent.append(time.monotonic())
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

    result = play(tmp_path, WAIT, on_event=interrupt_in_the_slow_task)
    assert time.monotonic() - sent[0] < 15
    assert result.interrupted
    host = result.hosts["a"]
    assert (host.status, host.exit_code) == ("interrupted", 130)
    assert "Be slow" in host.issue.message
    assert not [pid for pid in Path("/proc").glob("[0-9]*") if str(tmp_path / "play.yml") in _cmdline(pid)]


def test_an_interrupt_in_the_middle_of_an_event_loses_none(tmp_path):
    started = [{"event": "host_start", "host": name, "task": "Install"} for name in "ab"]
    (tmp_path / "events").write_text("".join(json.dumps(event) + "\n" for event in started))
    state, ended = engine._State(["a", "b"]), iter([None, 0])
    process = SimpleNamespace(poll=lambda: next(ended, 0))
    with (tmp_path / "events").open() as lines:
        reader = engine._complete_lines(lines.read)
        interrupted = engine._watch(process, reader, state, lambda event: os.kill(os.getpid(), signal.SIGINT))
    assert interrupted
    outcomes = state.outcomes(interrupted, [], tmp_path)
    assert {name: outcome.running_task for name, outcome in outcomes.items()} == {"a": "Install", "b": "Install"}
    assert {outcome.status for outcome in outcomes.values()} == {"interrupted"}


def test_ansible_that_was_killed_is_told_as_that(tmp_path):
    def kill(event):
        if event["event"] == "host_start" and event["task"] == "Be slow":
            for child in _children():
                os.kill(int(child), signal.SIGKILL)

    result = play(tmp_path, WAIT, on_event=kill)
    host = result.hosts["a"]
    assert host.status == "failed" and host.issue.because[0] == "it was ended by signal 9 (Killed)"
    assert "memory" in host.issue.because[1]


def _children():
    found = []
    for task in Path("/proc/self/task").iterdir():
        found += (task / "children").read_text().split()
    return [pid for pid in found if "playbook.py" in _cmdline(Path("/proc", pid))]


def _cmdline(pid: Path) -> str:
    try:
        return (pid / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_passwords_and_variables_are_in_no_argument_list(tmp_path):
    found = []

    def look(event):
        if event["event"] == "host_start" and event["task"] == "Be slow" and not found:
            found.extend(_cmdline(pid) for pid in Path("/proc").glob("[0-9]*"))
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    (tmp_path / "play.yml").write_text(WAIT)
    fleet = inventory.load(["a,"], None, LOCAL, become_password="gehe1m", vault_password="gehe2m")
    run_dir = engine.new_run_dir("test", tmp_path / "runs")
    engine.run_playbook(tmp_path / "play.yml", fleet, ["a"], {"x": "gehe3m"}, run_dir, look)
    mine = [line for line in found if str(Path(engine.__file__).with_name("playbook.py")) in line]
    assert mine, "ansible-playbook was not seen"
    assert not [line for line in mine if "gehe" in line]
    assert not [file for file in run_dir.iterdir() if "gehe" in file.read_text()]


STARTER = """
import sys
from pathlib import Path
from provision import inventory
from provision.runs import engine
fleet = inventory.load(["a,"], None, {"ansible_connection": "local", "ansible_python_interpreter": sys.executable})
def look(event):
    if event["event"] == "host_start" and event["task"] == "Be slow":
        print("slow", flush=True)
engine.run_playbook(Path(sys.argv[1]), fleet, ["a"], {}, engine.new_run_dir("test", Path(sys.argv[2])), look)
"""


def test_ansible_ends_when_the_command_was_killed(tmp_path):
    (tmp_path / "play.yml").write_text(WAIT)
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(tmp_path / "play.yml"), str(tmp_path / "runs")], stdout=subprocess.PIPE
    )
    assert starter.stdout.readline() == b"slow\n"
    children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
    assert children
    starter.kill()
    starter.wait()
    starter.stdout.close()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(_is_running(pid) for pid in children):
        time.sleep(0.1)
    assert not [pid for pid in children if _is_running(pid)], "a play went on with nobody to follow it"


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_check_mode_changes_nothing(tmp_path):
    result = play(tmp_path, PLAY, extra={"gpu_text": "x", "gpu_folder": str(tmp_path)}, check=True)
    assert result.hosts["a"].changed == ["Change something"]
    assert not (tmp_path / "a").exists()


def test_settings_of_the_user_are_added_to(tmp_path, monkeypatch):
    (tmp_path / "ansible.cfg").write_text(
        "[defaults]\ncollections_path = /mine\ncallbacks_enabled = ansible.builtin.timer\n"
        "[ssh_connection]\nssh_args = -o ServerAliveInterval=60\n"
    )
    fleet = inventory.load(["a,"])
    made = engine._environment(fleet)
    assert made["ANSIBLE_COLLECTIONS_PATH"].split(":")[1:] == ["/mine"]
    assert made["ANSIBLE_CALLBACKS_ENABLED"] == "gpu.provision.gpu_provision_events,ansible.builtin.timer"
    assert "ANSIBLE_SSH_ARGS" not in made
    assert made["ANSIBLE_PIPELINING"] == "true"
    (tmp_path / "ansible.cfg").write_text("[ssh_connection]\nssh_args = -o ControlMaster=no\npipelining = false\n")
    made = engine._environment(inventory.load(["a,"]))
    assert made["ANSIBLE_SSH_ARGS"].startswith("-o ControlMaster=no -o ServerAliveInterval")
    assert "ANSIBLE_PIPELINING" not in made


def test_localhost_in_a_host_list_needs_no_ssh(tmp_path):
    (tmp_path / "play.yml").write_text(
        "- hosts: all\n  gather_facts: false\n  tasks:\n    - name: Ask\n      ansible.builtin.ping:\n"
    )
    fleet = inventory.load(["localhost,"])
    run_dir = engine.new_run_dir("test", tmp_path / "runs")
    result = engine.run_playbook(tmp_path / "play.yml", fleet, ["localhost"], {}, run_dir)
    assert result.hosts["localhost"].status == "ok", result.hosts["localhost"].issue


def test_events_that_come_in_pieces():
    pieces = iter(['{"a": 1}\n{"b"', ": 2}", "\n", ""])
    lines = engine._complete_lines(lambda: next(pieces))
    assert [next(lines) for _ in range(4)] == [['{"a": 1}'], [], ['{"b": 2}'], []]


@pytest.mark.parametrize(
    ("status", "reboot", "code"),
    [
        ("ok", False, 0),
        ("changed", True, 6),
        ("failed", True, 1),
        ("unreachable", False, 4),
        ("interrupted", False, 130),
        ("not_started", False, 1),
    ],
)
def test_exit_codes(status, reboot, code):
    assert HostOutcome(status=status, reboot_required=reboot).exit_code == code


PING = "- hosts: all\n  gather_facts: false\n  tasks:\n    - name: Ask\n      ansible.builtin.ping:\n"


@pytest.mark.parametrize("gone", [False, True])
def test_ansible_that_is_loaded_already_plays(tmp_path, monkeypatch, gone):
    (tmp_path / "play.yml").write_text(PING)
    fleet = inventory.load(["a,"], None, LOCAL)
    engine.make_ready(fleet)
    # one is enough
    engine.make_ready(fleet)
    (loading,) = engine._loading
    if gone:
        loading.process.kill()
        loading.process.wait()
    else:
        monkeypatch.setattr(engine, "_Loading", None)
    run_dir = engine.new_run_dir("test", tmp_path / "runs")
    result = engine.run_playbook(tmp_path / "play.yml", fleet, ["a"], {}, run_dir)
    assert (result.rc, result.hosts["a"].status) == (0, "ok")
    assert "TASK [Ask]" in (run_dir / "ansible.log").read_text()
    assert engine._loading == []
    assert loading.process.poll() is not None


def test_ansible_that_is_loaded_for_nothing_ends(tmp_path):
    engine.make_ready(inventory.load(["a,"], None, LOCAL))
    (loading,) = engine._loading
    engine.dismiss()
    assert loading.process.poll() is not None
    engine.make_ready(inventory.load(["a,"], None, LOCAL))
    (loading,) = engine._loading
    # as when this process dies
    loading.process.stdin.close()
    assert loading.process.wait(30) == 0
    engine.dismiss()


@pytest.mark.parametrize(
    ("line", "python", "given"),
    [
        ("a", {"path": "/usr/bin/python3", "version": "3.12.3"}, "/usr/bin/python3"),
        ("a ansible_python_interpreter=auto", {"path": "/usr/bin/python3", "version": "3.12.3"}, "/usr/bin/python3"),
        ("a ansible_python_interpreter=/opt/python", {"path": "/usr/bin/python3", "version": "3.12.3"}, None),
        # not one that this ansible-core runs with: it finds another, or says so
        ("a", {"path": "/usr/bin/python3", "version": "3.7.3"}, None),
        ("a", {"path": None, "version": None}, None),
        ("a", {}, None),
    ],
)
def test_python_that_read_the_host(tmp_path, line, python, given):
    (tmp_path / "hosts").write_text(f"{line}\nb\n")
    fleet = inventory.load([str(tmp_path / "hosts")])
    found = engine._host_vars(fleet, ["a"], {"a": python, "b": {"path": "/b", "version": "3.12.3"}})
    assert found == ({} if given is None else {"a": {"ansible_python_interpreter": {"__ansible_unsafe": given}}})
