"""apply in a real terminal: the question, live progress, Ctrl-C in the middle, and the terminal as it was."""

import json
import os
import pty
import re
import select
import signal
import sys
import termios
import time
from pathlib import Path

from provision.collection import ROOT

PROGRAM = """
import sys
from pathlib import Path
from provision.commands import actions, plan
from provision.parts.plan import HostPlan, Step
actions._PLAYBOOK = Path("site.yml")
plan.plan_host = lambda name, *rest: HostPlan(
    host=name, status="changes", steps=[Step(id="packages", title="Install", because="nothing is there")]
)
from provision.cli import run
sys.exit(run(["-i", "localhost,", "apply", "--run-dir", "runs"]))
"""
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Quick
      ansible.builtin.copy: {content: x, dest: "{{ lookup('env', 'PWD') }}/made", mode: "0600"}
    - name: Slow
      ansible.builtin.command: sleep 60
"""


def in_a_terminal(tmp_path, keys, words=("-c", PROGRAM), term="xterm"):
    """Run Python in a terminal of its own; return (what it showed, exit code, seconds after the last key, settings as before).

    keys: [(what is waited for, what is typed then)]. After a minute it is killed.
    """
    (tmp_path / "site.yml").write_text(PLAY)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        # The checkout only: what runs on "hosts" here is another Python, which inherits this.
        os.environ.update(PYTHONPATH=str(ROOT), TERM=term, PWD=str(tmp_path), HOME=str(tmp_path))
        os.environ.pop("ANSIBLE_CONFIG", None)
        os.execv(sys.executable, [sys.executable, *words])  # noqa: S606 - the terminal is the point
    before = termios.tcgetattr(terminal)
    shown, typed = b"", time.monotonic()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(terminal, 65536)
        except OSError:
            # Linux: the other side is closed
            break
        shown += data
        if keys and keys[0][0] in shown:
            os.write(terminal, keys.pop(0)[1])
            typed = time.monotonic()
    else:
        os.kill(pid, signal.SIGKILL)
    after = termios.tcgetattr(terminal)
    _, status = os.waitpid(pid, 0)
    text = shown.decode()
    assert not keys, text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor is hidden"
    return text, os.waitstatus_to_exitcode(status), time.monotonic() - typed, before == after


def test_ctrl_c_in_the_middle_of_apply(tmp_path):
    text, code, seconds, as_before = in_a_terminal(tmp_path, [(b"[y/N]", b"y\n"), (b"Slow", b"\x03")])
    assert (code, as_before) == (130, True), text
    assert seconds < 15
    plain = " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).split())
    assert "error: interrupted because: in the middle: localhost: in 'Slow'; " in plain, plain
    # A long path is broken where the line ends.
    go_on = r"hint:tocontinue:provisionapply--resume[\w-]+--run-dir" + re.escape(f"{tmp_path}/runs")
    assert re.search(go_on, plain.replace(" ", "")), plain
    assert plain.count("hint:") == 1, "one way to go on"
    assert re.search(r"did\S* +\S*Quick", text)
    (result,) = Path(tmp_path / "runs").glob("*/result.json")
    document = json.loads(result.read_text())
    assert (document["exit_code"], document["hosts"]["localhost"]["status"]) == (130, "interrupted")


def test_ctrl_c_at_the_question(tmp_path):
    text, code, _, as_before = in_a_terminal(tmp_path, [(b"[y/N]", b"\x03")])
    assert (code, as_before) == (130, True), text
    assert "nothing was changed" in text and "where it stopped" not in text and not (tmp_path / "made").exists()
    assert not (tmp_path / "runs").exists()


SLOW_INVENTORY = '#!/bin/sh\nsleep 2\necho \'{"all": {"hosts": []}}\'\n'


def test_a_slow_inventory_is_no_blank_screen(tmp_path):
    (tmp_path / "slow").write_text(SLOW_INVENTORY)
    (tmp_path / "slow").chmod(0o755)
    shown = in_a_terminal(tmp_path, [], ("-m", "provision", "scan", "-i", "slow"), "dumb")[0]
    said = "reading the inventory"
    assert shown.startswith(f"{said}\r{' ' * len(said)}\r"), shown
