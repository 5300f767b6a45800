"""apply in a real terminal: the question, live progress, Ctrl-C in the middle, and the terminal as it was."""

import json
import os
import pty
import re
import select
import sys
import termios
import time
from pathlib import Path

from provision.collection import ROOT

PROGRAM = """
import sys
from pathlib import Path
from provision.commands import apply, plan
from provision.parts.plan import HostPlan, Step
apply._PLAYBOOK = Path("site.yml")
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


def test_ctrl_c_in_the_middle_of_apply(tmp_path):
    (tmp_path / "site.yml").write_text(PLAY)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        # The checkout only: what runs on "hosts" here is another Python, which inherits this.
        os.environ.update(PYTHONPATH=str(ROOT), TERM="xterm", PWD=str(tmp_path), HOME=str(tmp_path))
        os.environ.pop("ANSIBLE_CONFIG", None)
        os.execv(sys.executable, [sys.executable, "-c", PROGRAM])  # noqa: S606 - the terminal is the point
    before = termios.tcgetattr(terminal)
    shown, answered, interrupted = b"", False, 0.0
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
        if b"[y/N]" in shown and not answered:
            os.write(terminal, b"y\n")
            answered = True
        if b"Slow" in shown and not interrupted:
            os.write(terminal, b"\x03")
            interrupted = time.monotonic()
    after = termios.tcgetattr(terminal)
    _, status = os.waitpid(pid, 0)
    text = shown.decode()
    assert answered, text
    assert interrupted, text
    assert os.waitstatus_to_exitcode(status) == 130, text
    assert time.monotonic() - interrupted < 15
    assert before == after
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor is hidden"
    assert "interrupted in task 'Slow'" in text
    assert re.search(r"did\S* +\S*Quick", text)
    (result,) = Path(tmp_path / "runs").glob("*/result.json")
    document = json.loads(result.read_text())
    assert (document["exit_code"], document["hosts"]["localhost"]["status"]) == (130, "interrupted")
