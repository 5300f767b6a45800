"""Locks and processes of this machine: who holds what, and what is left of those that were killed."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import apt_diagnostics
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock
from ansible_collections.gpu.provision.plugins.plugin_utils import runlock
from provision.commands import apply
from provision.errors import RefusedError
from provision.rollout.state import Process
from provision.runs.fleet import Silent
from tests.unit import trees
from tests.unit.test_rollout import stored


@pytest.mark.skipif(os.geteuid() != 0, reason="others than root may not ask for a lock")
def test_a_lock_is_told_with_its_holder(tmp_path):
    path = trees.write(tmp_path, "/var/lib/dpkg/lock-frontend", "")
    code = (
        "import fcntl, sys, time; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX);"
        "print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        (lock,) = apt_diagnostics.read(HostTree(tmp_path), probe_facts.collect(root=str(tmp_path)))["locks"]
        assert (lock["path"], lock["pid"]) == ("/var/lib/dpkg/lock-frontend", holder.pid) and lock["comm"].startswith(
            "python"
        )
    finally:
        holder.kill()
        holder.wait()
    assert apt_diagnostics.read(HostTree(tmp_path), probe_facts.collect(root=str(tmp_path)))["locks"] == []


HOLDER = """
import fcntl, os, sys, time
handle = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.lockf(handle, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def held(tmp_path):
    """A file that another process has locked as apt does, and that process."""
    path = tmp_path / "var/lib/dpkg/lock-frontend"
    path.parent.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield path, process
    process.kill()
    process.wait()
    process.stdout.close()


def test_lock_is_asked_for_and_not_taken(held):
    path, process = held
    assert probe_facts._locked_by(str(path)) == process.pid
    with open(path, "r+") as file, pytest.raises(BlockingIOError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_process_is_known_by_its_start():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    (known,) = run_lock.controller([process.pid])["processes"]
    assert run_lock.is_alive(known["pid"], known["started"])
    assert not run_lock.is_alive(known["pid"], known["started"] + 1)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not run_lock.is_alive(known["pid"], known["started"]), "a zombie has ended"
    process.wait()
    process.stdin.close()
    assert not run_lock.is_alive(known["pid"], known["started"])


def test_the_address_is_sshds_word_through_sudo():
    code = f"import sys; sys.path[:0] = {sys.path!r}; import provision.collection\n"
    code += "from ansible_collections.gpu.provision.plugins.module_utils.run import lock as hostlock; print(hostlock.origin())"
    env = {**os.environ, "SSH_CONNECTION": "10.1.2.3 50000 10.0.0.9 22"}
    # As sudo does: the command's environment is clean, its parent's is not.
    argv = ["sh", "-c", 'env -u SSH_CONNECTION "$0" -c "$1"; exit $?', sys.executable, code]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "10.1.2.3"


def test_no_machine_id_in_a_record():
    machine = Path("/etc/machine-id")
    text = json.dumps(runlock.holder("provision apply", "r", [os.getpid()], Path("/")))
    known = machine.read_text().strip() if machine.is_file() else ""
    assert not known or known not in text


def test_git_tells_people_apart_who_share_an_account(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    assert runlock.git_identity(tmp_path) is None
    (tmp_path / "gitconfig").write_text("[user]\nname = Ada Lovelace\n")
    assert runlock.git_identity(tmp_path) == "Ada Lovelace"
    (tmp_path / "gitconfig").write_text("[user]\nname = Ada Lovelace\nemail = ada@example.org\n")
    assert runlock.git_identity(tmp_path) == "Ada Lovelace <ada@example.org>"


def test_a_killed_process_leaves_its_folder_to_the_next(tmp_path):
    code = (
        "import os, sys, provision.lib.scratch as s\n"
        "print(s.folder(), flush=True)\n"
        "(s.folder() / 'x').touch()\n"
        "sys.stdin.read() or os.kill(os.getpid(), 9)\n"
    )

    def start():
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return process, process.stdout.readline().strip()

    first, one = start()
    second, two = start()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([Path(one).name, Path(two).name])
    first.communicate()
    assert first.returncode == -9
    third, three = start()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([Path(two).name, Path(three).name])
    second.communicate("end")
    third.communicate("end")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_still_goes_on_is_not_gone_on_with(tmp_path):
    store = stored(tmp_path, "run-1", a="waiting")
    assert store.state.process.alive(), "this process"
    with subprocess.Popen(["sleep", "60"]) as other:
        with store.change() as state:
            state.process = Process.of(other.pid)
        with pytest.raises(RefusedError, match="is still running"):
            apply.reopen("last", tmp_path, Silent())
        other.kill()
    assert apply.reopen("last", tmp_path, Silent()).state.run == "run-1"
    old = Process.of(os.getpid())
    assert not old.model_copy(update={"started": "1"}).alive(), "another process by that number"
    assert not old.model_copy(update={"boot_id": "another"}).alive()
