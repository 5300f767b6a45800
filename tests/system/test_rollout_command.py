"""apply with waves as people type it: what is shown, what is kept, how it goes on, and what a signal leaves behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provision import cli
from provision.cli import applying
from provision.collection import ROOT
from provision.commands import actions
from provision.commands import plan as plan_command
from provision.commands import verify as verify_command
from provision.parts.plan import HostPlan, Step
from tests.sample import share

# Hosts of this machine, without ssh. A host is as wanted when its file is there; "bad" in the folder makes b fail.
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Break
      ansible.builtin.fail: {msg: it broke}
      when: inventory_hostname == 'b' and (lookup('env', 'FOLDER') ~ '/bad') is exists
    - name: Do it
      ansible.builtin.copy: {content: x, dest: "{{ lookup('env', 'FOLDER') }}/{{ inventory_hostname }}", mode: "0600"}
    - name: Take long
      ansible.builtin.wait_for: {path: "{{ lookup('env', 'FOLDER') }}/slow", state: absent, timeout: 60}
"""
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}


def plan_host(name, *rest):
    there = (Path(os.environ["FOLDER"]) / name).exists()
    steps = [] if there else [Step(id="packages", title="Install", because="nothing is there")]
    return HostPlan(
        host=name, status="converged" if there else "changes", gpus=["1 x A100"], summary="driver 1", steps=steps
    )


def prepare(folder):
    """Fake what would read and change a host; used here and in processes of their own."""
    (folder / "site.yml").write_text(PLAY)
    actions._PLAYBOOK = folder / "site.yml"
    plan_command.plan_host = plan_host
    verify_command.verify_host = lambda call, values, catalog, look: []
    applying.observers = lambda *args: []


@pytest.fixture
def folder(monkeypatch, tmp_path):
    for module, name in (
        (actions, "_PLAYBOOK"),
        (plan_command, "plan_host"),
        (verify_command, "verify_host"),
        (applying, "observers"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    prepare(tmp_path)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    hosts = {name: {} for name in "abcd"}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": LOCAL}}))
    return tmp_path


def run(capsys, *words):
    code = cli.run(["-i", "hosts.json", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_waves_are_shown_kept_stopped_and_gone_on_with(capsys, folder):
    (folder / "bad").touch()
    code, out, err = run(capsys, "apply", "--yes", "--canary", "1", "--batch", "2")
    assert code == 1
    assert "wave 1 of 3 (canary): a\n" in out and "wave 2 of 3: b, c (2 hosts)\n" in out, "shown before it begins"
    assert "stops when one fails\n" in out
    assert re.search(r"^wave 1 of 3 \(canary\): 1 done in \d+ s$", err, re.MULTILINE)
    assert re.search(r"^wave 2 of 3, batch +done in \d+ s, 1 failed: b, c \(2 hosts\)$", out, re.MULTILINE)
    assert re.search(r"^wave 3 of 3, batch +not begun: d$", out, re.MULTILINE)
    assert all(len(line) <= 80 for line in out.splitlines()), out
    assert "error: the rollout was stopped: 1 failed, none may (b)\n" in err
    assert (
        "because: done: a, c (2 hosts)\n" in err
        and "because: half-way: b\n" in err
        and "because: not begun: d\n" in err
    )
    assert re.search(r"hint: fix what failed, .*provision apply --resume \S+-apply-[0-9a-f]{6}\n", err)
    assert not (folder / "d").exists()

    (folder / "bad").unlink()
    made = (folder / "a").stat().st_mtime_ns
    document = json.loads(run(capsys, "apply", "--resume", "last", "--yes", "--json", "-l", "d")[1])
    statuses = {name: host["status"] for name, host in document["hosts"].items()}
    assert (document["exit_code"], statuses) == (2, {"a": "done", "b": "failed", "c": "done", "d": "done"})
    document = json.loads(run(capsys, "apply", "--resume", "last", "--yes", "--json")[1])
    assert document["exit_code"] == 0, document["errors"]
    assert {name: host["status"] for name, host in document["hosts"].items()} == dict.fromkeys("abcd", "done")
    assert [wave["hosts"] for wave in document["waves"]] == [["a"], ["b", "c"], ["d"]]
    assert (folder / "a").stat().st_mtime_ns == made, "what is done is not done again"
    assert json.loads((Path(document["run_dir"]) / "result.json").read_text()) == document
    code, _, err = run(capsys, "apply", "--resume", "last", "--yes")
    assert code == 0 and "4 of 4 hosts done" in err


def test_runs_that_cannot_be_gone_on_with(capsys, folder):
    code, _, err = run(capsys, "apply", "--resume", "last")
    assert code == 64 and "there is no run yet" in err and "hint:" in err
    assert run(capsys, "apply", "--yes", "-l", "a", "-e", "gpu_any=secret")[0] == 0
    text = "".join(path.read_text() for path in folder.rglob("state.json"))
    assert "gpu_any" in text and "secret" not in text
    for words, said in (
        (["--resume", "nope"], "no run has that name"),
        (["--resume", "last", "--batch", "2"], "the options of the run"),
        (["--resume", "last", "--check"], "the options of the run"),
        (["--resume", "last"], "-e gpu_any"),
        (["--batch", "many"], "--batch many"),
    ):
        code, _, err = run(capsys, "apply", *words)
        assert code == 64 and said in err and "hint:" in err, err


def test_what_is_agreed_to_is_asked_again(capsys, folder, monkeypatch):
    (folder / "bad").touch()
    run(capsys, "apply", "--yes", "--batch", "1")
    monkeypatch.setattr(sys, "stdin", type("No", (), {"isatty": lambda self: True, "readline": lambda self: "n\n"})())
    code, out, err = run(capsys, "apply", "--resume", "last")
    assert code == 2 and "Change 3 hosts? [y/N]" in err and "nothing was changed" in err
    assert "wave 2 of 4: b\n" in out, "as the run planned them"


PROGRAM = """
import sys
from pathlib import Path
from tests.system.test_rollout_command import prepare
prepare(Path.cwd())
from provision.cli import run
sys.exit(run(["-i", "hosts.json", "apply", "--yes", "--batch", "1", "--run-dir", "runs"]))
"""


@pytest.mark.parametrize("number", share([signal.SIGINT, signal.SIGTERM, signal.SIGHUP], 2))
def test_a_signal_ends_it_in_order_and_hosts_are_resumed(folder, number):
    """Ctrl-C, a service manager's stop, a closed terminal: hosts that were drained are put back."""
    inventory = json.loads((folder / "hosts.json").read_text())
    hook = {
        phase: {"command": ["sh", "-c", f"echo {phase} $GPU_ROLLOUT_HOST >> called"], "on": "controller"}
        for phase in ("drain", "resume")
    }
    inventory["all"]["vars"].update(gpu_rollout_drain=hook["drain"], gpu_rollout_resume=hook["resume"])
    (folder / "hosts.json").write_text(json.dumps(inventory))
    (folder / "slow").touch()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    deadline = time.monotonic() + 60
    while not (folder / "a").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    assert (folder / "called").read_text().splitlines() == ["drain a", "resume a"], said
    (state,) = (json.loads(path.read_text()) for path in folder.glob("runs/*/state.json"))
    assert state["hosts"]["a"]["status"] == "interrupted" and state["hosts"]["b"]["status"] == "not_started"
    assert "--resume" in said and "Traceback" not in said
