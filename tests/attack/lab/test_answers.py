"""A real scan of two hosts, one of which sends what is no answer: time, memory and words of each; the other's result comes at once.

``pytest -s`` prints a line for each.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from tests.attack.test_answers import _PROGRAM
from tests.faults.conftest import ROOT

pytestmark = pytest.mark.lab

# Where a plain user can put it, and root's sudo finds it first.
PYTHON = "/usr/local/bin/python3"
ANSWERS = {
    "64 MB": ("ready()\nframe(os.urandom(64 << 20))", "more than 16 MiB"),
    "bomb": (
        "one = zlib.compressobj(9)\npiece = lambda: one.compress(bytes(1 << 20)) + one.flush(zlib.Z_FULL_FLUSH)\n"
        "first, more = piece(), piece()\nready()\nframe(first + more * 2047)",
        "unpacks to more than 32 MiB",
    ),
    "list": ("ready()\nanswer([])", "neither a result nor an error"),
}
OPENSSH = ("-e", '{"ansible_ssh_extra_args": "-o Ciphers=chacha20-poly1305@openssh.com"}')


@pytest.fixture(scope="module")
def pair(lab):
    evil, good = lab.add([{"name": "evil", "gpus": ["H100"]}, {"name": "good", "gpus": ["H100"]}])
    yield evil, good
    lab.remove(evil.name, good.name)


def scan(lab, state, *words):
    """Return (exit code, output, seconds, seconds until the good host was told of, peak memory in MiB)."""
    argv = [sys.executable, "-m", "provision", "-i", str(lab.inventory), "scan", "-l", "evil,good", *words]
    env = {**os.environ, "XDG_STATE_HOME": str(state), "NO_COLOR": "1", "COLUMNS": "200"}
    begun, lines, told = time.monotonic(), [], []
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=ROOT, bufsize=1
    )

    def read():
        for line in process.stdout:
            lines.append(line)
            if line.startswith("good"):
                told.append(time.monotonic() - begun)

    reader = threading.Thread(target=read)
    reader.start()
    _, status, usage = os.wait4(process.pid, 0)
    reader.join()
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - begun
    return process.returncode, "".join(lines), seconds, told[0] if told else None, usage.ru_maxrss >> 10


def report(what, found):
    code, said, seconds, told, memory = found
    error = next((line for line in said.splitlines() if line.startswith("error")), "")
    print(
        f"\n{what}: exit {code}, {seconds:.1f} s, the other host after {told and round(told, 1)} s, {memory} MiB: {error}"
    )


def judge(what, found, message, code=1):
    report(what, found)
    assert found[0] == code, found[1]
    assert message in found[1]
    assert "error: evil: " in found[1] and "hint: " in found[1] and "defect" not in found[1]
    assert any(line.startswith("good") and "H100" in line for line in found[1].splitlines()), found[1]
    # A child counts the memory of the process that forked it.
    assert found[4] < 400 + (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)


@pytest.mark.parametrize("way", [(), OPENSSH], ids=["paramiko", "OpenSSH"])
def test_yes_in_the_login_users_bashrc(lab, pair, tmp_path, way):
    evil = pair[0]
    home = evil.ssh("pwd").stdout.strip()
    evil.run(f"cp {home}/.bashrc /root/bashrc; sed -i '1i yes GARBAGE' {home}/.bashrc")
    try:
        judge("yes in .bashrc", scan(lab, tmp_path, *way), "more than 64 KiB came before it")
    finally:
        evil.run(f"cp /root/bashrc {home}/.bashrc; pkill -x yes", check=False)


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_that_is_none(lab, pair, tmp_path, what):
    evil, (body, message) = pair[0], ANSWERS[what]
    program = _PROGRAM.format(python="/usr/bin/python3", body=textwrap.indent(body, "    "))
    evil.run(f"cat > {PYTHON} <<'END'\n{program}\nEND\nchmod 755 {PYTHON}")
    try:
        judge(what, scan(lab, tmp_path), message)
    finally:
        evil.run(f"rm {PYTHON}")


@pytest.mark.thorough
def test_one_byte_a_second(lab, pair, tmp_path):
    """Its own deadline is over after a minute, or two where this machine is busy; the other host is told of after seconds."""
    evil = pair[0]
    home = evil.ssh("pwd").stdout.strip()
    evil.run(f"cp {home}/.bashrc /root/bashrc; sed -i '1i while sleep 1; do printf x; done' {home}/.bashrc")
    try:
        found = scan(lab, tmp_path)
        judge("a byte a second", found, "no answer from the program on the host within ")
        assert found[3] < found[2] - 30
    finally:
        evil.run(f"cp /root/bashrc {home}/.bashrc")
