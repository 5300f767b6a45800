"""What a command loads: each module costs every user a moment, in every command."""

import os
import subprocess
import sys

import pytest

from provision import inventory
from provision.inventory import _read as started
from tests import forked
from tests.forked import ROOT

# Together they take longer to load than all modules of a plan itself.
NOT_FOR_A_PLAN = (
    "asyncio",
    "invoke",
    "http.client",
    "packaging",
    "provision.facts.diagnostics",
    "ssl",
    "urllib.request",
)
LOAD = f"""
import sys
import provision.cli, provision.commands.plan, provision.remote.client, provision.render, provision.runs.fleet
print(*sorted(set({NOT_FOR_A_PLAN!r}) & set(sys.modules)))
"""


def test_drift_loads_no_program_that_proves():
    """It judges by the facts alone; of the checks that run something it needs their names."""
    load = (
        "import provision.commands.drift, sys; print(*(name for name in sys.modules if name.endswith('.prove.proofs')))"
    )
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_plan_loads_nothing_that_it_does_not_need():
    done = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


RESOLVE = """
import sys
from provision.inventory import Connection
from provision.remote import target
target._USER_CONFIG, target._SYSTEM_CONFIG = sys.argv[1], "/nowhere"
found = target.resolve(Connection(address="gpu01"))
print(found.user, found.port, found.reasons)
"""


def test_match_exec_of_ssh_is_carried_out(tmp_path):
    (tmp_path / "config").write_text('Match exec "true"\n  User yes\nMatch exec "false"\n  Port 77\n')
    argv = [sys.executable, "-c", RESOLVE, str(tmp_path / "config")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    assert done.stdout.split() == ["yes", "22", "()"]


@pytest.mark.parametrize("words", [["--version"], ["compat", "--gpu", "H100", "--json"], ["plan", "--nope"], ["lock"]])
def test_a_forked_command_is_as_one_that_was_started(words, tmp_path):
    """tests/forked.py, which the tests on simulated hosts have."""
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "COLUMNS": "70"}
    argv = [sys.executable, "-m", "provision", *words]
    real = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL)
    twin = forked.run(words, env, tmp_path, 60)
    assert (twin.returncode, twin.stdout, twin.stderr) == (real.returncode, real.stdout, real.stderr)
    assert real.stdout + real.stderr


def test_a_forked_reader_is_as_one_that_was_started(tmp_path, monkeypatch):
    """Under the settings of its own time: they are another's by the second time."""
    (tmp_path / "hosts").write_text('a ansible_host=127.0.0.1\nb ansible_port="{{ 20 + 2 }}"\n[gpu]\na\n')
    (tmp_path / "ansible.cfg").write_text("[defaults]\ntimeout = 7\n[privilege_escalation]\nbecome = true\n")
    for config in ("", str(tmp_path / "ansible.cfg")):
        monkeypatch.setenv("ANSIBLE_CONFIG", config)
        with monkeypatch.context() as patch:
            patch.setattr(inventory, "_read", started)
            real = inventory.load([str(tmp_path / "hosts")], "gpu,b", {"x": 1})
        assert inventory.load([str(tmp_path / "hosts")], "gpu,b", {"x": 1}) == real
        assert real.hosts[0].connection.timeout == (7 if config else 10)


def test_a_forked_command_that_hangs_is_ended(tmp_path):
    (tmp_path / "slow").write_text("#!/bin/sh\nsleep 60\n")
    (tmp_path / "slow").chmod(0o755)
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run(["scan", "-i", str(tmp_path / "slow")], env, tmp_path, 1)
    assert forked.run(["--version"], env, tmp_path, 60).returncode == 0, "the next one has its own answer"
