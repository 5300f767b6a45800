"""The scripts of ``provision completion`` in the shells themselves: commands, options, and hosts of an inventory."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from provision import cli

BIN = Path(sys.executable).parent
LINES = {
    "provision pl": "plan",
    "provision plan --fork": "--forks",
    "provision -i {inventory} plan -l gpu0": "gpu01",
    "provision -i {inventory} plan -l gpu01,la": "gpu01,lab",
}


@pytest.fixture
def typed(tmp_path):
    """Lines to complete -> what they become; the inventory that they name is there."""
    (tmp_path / "hosts.yml").write_text("all: {children: {lab: {hosts: {gpu01: {}}}}}\n")
    return {line.format(inventory=tmp_path / "hosts.yml"): word for line, word in LINES.items()}


@pytest.fixture
def script(tmp_path, capsys):
    def write(shell):
        assert cli.run(["completion", shell]) == 0
        path = tmp_path / f"completion.{shell}"
        path.write_text(capsys.readouterr().out)
        return path

    return write


def run(shell, *argv):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    return subprocess.run([shell, *argv], capture_output=True, text=True, env=env, check=True).stdout


def test_bash(typed, script):
    for line, word in typed.items():
        body = (
            f"source {script('bash')}; COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({line}); "
            'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); $(complete -p provision | sed "s/.*-F \\([^ ]*\\).*/\\1/") provision; '
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        assert run("bash", "--norc", "-c", body).split() == [word], line


def test_fish(typed, script):
    for line, word in typed.items():
        out = run("fish", "--no-config", "-c", f"source {script('fish')}; complete -C '{line}'")
        assert [found.split("\t")[0] for found in out.splitlines()] == [word], line


def test_zsh(typed, script, tmp_path):
    if not shutil.which("zsh"):
        pytest.skip("no zsh here")
    path = script("zsh")
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "> ", "HOME": str(tmp_path)}
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (40, 250))
    with (
        subprocess.Popen(
            ["zsh", "-f", "-i"], stdin=end, stdout=end, stderr=end, env=env, start_new_session=True
        ) as shell,
        contextlib.ExitStack() as stack,
    ):
        os.close(end)
        stack.callback(shell.kill)
        os.write(terminal, f"autoload -Uz compinit; compinit -u -D; source {path}; echo loa''ded\n".encode())
        assert "loaded" in until(terminal, "loaded")
        for line, word in typed.items():
            whole = line.rpartition(" ")[0] + " " + word
            os.write(terminal, line.encode() + b"\t")
            assert whole in until(terminal, whole), line
            os.write(terminal, b"\x15")
    os.close(terminal)


def until(terminal, text, seconds=30.0):
    """What a terminal shows until a text is there, or until time is up."""
    shown, end = "", time.monotonic() + seconds
    while text not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


def test_a_shell_that_is_not_known_is_named(capsys):
    assert cli.run(["completion", "tcsh"]) == 64
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in capsys.readouterr().err
