"""Hosts that answer late, or break off, are neither unreachable nor given up: the fast read and the engine, with stand-ins.

The limits on time are scaled down, and the stand-ins are late by more than Ansible's own scaled limit. What stands in for
ssh and sudo here are scripts; for the fast read it is a real sshd behind a port that passes bytes on late.
"""

import contextlib
import select
import socket
import sys
import threading
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from provision import inventory, remote
from provision.errors import ProvisionError
from provision.inventory import Connection, Host
from provision.lib import load
from provision.remote import client, target
from provision.runs import engine
from provision.runs.fleet import Fleet, Silent, ask_all
from tests.sample import THOROUGH
from tests.system import sshd

needs_sshd = pytest.mark.skipif(sshd.PROGRAM is None, reason=sshd.MISSING)


# ---- the engine ------------------------------------------------------------------------------------------------------

SSH = """#!/bin/sh
# Runs what ssh would run, here. The host's name is the last word but one.
[ $# -gt 2 ] || exit 0
for word; do host=$command; command=$word; done
echo "$host" >> {folder}/calls
{more}
exec /bin/sh -c "$command"
"""
SUDO = """#!/bin/sh
sleep {seconds}
while [ "$1" != /bin/sh ]; do shift; done
exec "$@"
"""
PLAY = "- hosts: all\n  gather_facts: false\n  tasks:\n    - name: Ask\n      ansible.builtin.ping:\n"
CHANGE = PLAY.replace("  tasks:\n", "  tasks:\n    - name: Change\n      ansible.builtin.command: 'true'\n")
BREAKS = """
echo x >> {folder}/$host
if [ "$(wc -l < {folder}/$host)" -eq {call} ]; then
  echo "kex_exchange_identification: read: Connection reset by peer" >&2; exit 255
fi
"""


@pytest.fixture
def play(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ANSIBLE_CONFIG", raising=False)
    # The user of this machine may be root already.
    monkeypatch.setenv("ANSIBLE_BECOME_ALLOW_SAME_USER", "true")
    monkeypatch.chdir(tmp_path)
    # Ansible's 10 s, scaled down.
    (tmp_path / "ansible.cfg").write_text("[defaults]\ntimeout = 1\n")

    def run(hosts, text=PLAY, script="", sudo=None, limit=30, more=None):
        monkeypatch.setattr(engine, "_ANSWER_SECONDS", limit)
        monkeypatch.setattr(load, "patience", lambda parallel=1: 1)
        engine._patience.cache_clear()
        variables = {"ansible_python_interpreter": sys.executable, "ansible_ssh_executable": str(tmp_path / "ssh")}
        scripts = {"ssh": SSH.format(folder=tmp_path, more=script)}
        if sudo is not None:
            scripts["sudo"] = SUDO.format(seconds=sudo)
            variables |= {"ansible_become": True, "ansible_become_exe": str(tmp_path / "sudo")}
        for name, content in scripts.items():
            (tmp_path / name).write_text(content)
            (tmp_path / name).chmod(0o755)
        (tmp_path / "play.yml").write_text(text)
        fleet = inventory.load([",".join(hosts) + ","], None, {**variables, **(more or {})})
        run_dir = engine.new_run_dir("test", tmp_path / "runs")
        return engine.run_playbook(tmp_path / "play.yml", fleet, hosts, {}, run_dir).hosts

    yield run
    engine._patience.cache_clear()


def test_many_hosts_that_answer_late_are_done(play):
    hosts = [f"gpu{number:02d}" for number in range(1, 41 if THOROUGH else 21)]
    found = play(hosts, sudo=5)
    assert {name: (host.status, host.issue) for name, host in found.items()} == dict.fromkeys(hosts, ("ok", None))


def test_a_limit_of_the_user_that_is_larger_stays(play, tmp_path):
    (tmp_path / "ansible.cfg").write_text("[defaults]\ntimeout = 20\n")
    assert play(["a"], sudo=5, limit=1)["a"].status == "ok"


def test_a_slow_sudo_of_this_machine_is_waited_for(play):
    """The connection "local" has a limit of its own, 10 s, which nothing but a variable of the host changes."""
    local = {"ansible_connection": "local"}
    assert play(["a"], sudo=3, limit=1, more=local)["a"].issue.code == "host.slow"
    assert play(["a"], sudo=3, more=local)["a"].status == "ok"


def test_a_host_that_was_reached_and_is_too_slow_has_failed(play):
    host = play(["a"], sudo=60, limit=1)["a"]
    assert (host.status, host.issue.code, host.untouched) == ("failed", "host.slow", True)
    assert host.issue.message == "Ask: the host was reached and answers too slowly"
    assert host.issue.because[0] == "sudo did not answer within 3 s"
    assert host.issue.because[1].startswith("the load of this machine is ")
    assert "--forks" in host.issue.hint


def test_a_connection_that_broke_before_anything_was_changed_is_tried_once_more(play, tmp_path):
    hosts = [f"gpu{number}" for number in range(1, 5)]
    found = play(hosts, script=BREAKS.format(folder=tmp_path, call=1))
    assert {host.status for host in found.values()} == {"ok"}
    assert sorted((tmp_path / "calls").read_text().split()) == sorted(hosts * 2)


def test_it_is_not_tried_again_after_a_change(play, tmp_path):
    host = play(["a"], CHANGE, BREAKS.format(folder=tmp_path, call=2))["a"]
    assert (host.status, host.issue.code, host.untouched) == ("unreachable", "connect.closed", False)
    assert (tmp_path / "calls").read_text().split() == ["a", "a"]


# ---- the fast read ---------------------------------------------------------------------------------------------------


class Late:
    """A port that passes connections on to another one: the first ones not at all, the others late."""

    def __init__(self, port, seconds=0.0, broken=0):
        self._port, self._seconds, self._broken, self.count = port, seconds, broken, 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                self.count += 1
                if self.count <= self._broken:
                    near.close()
                else:
                    threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near):
        time.sleep(self._seconds)
        far = socket.create_connection(("127.0.0.1", self._port))
        with near, far, contextlib.suppress(OSError):
            while True:
                for end in select.select([near, far], [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    (far if end is near else near).sendall(data)

    def close(self):
        self._listening.close()


@pytest.fixture(scope="module")
def server():
    running = sshd.Sshd()
    yield running
    running.stop()


def host_of(server, port, **more):
    options = ("UserKnownHostsFile=/dev/null", "StrictHostKeyChecking=no", "IdentitiesOnly=yes")
    return Host(
        name="gpu01",
        connection=Connection(
            address="127.0.0.1",
            port=port,
            user=server.user,
            key_file=str(server.key),
            become=False,
            ssh_extra_args=tuple(word for option in options for word in ("-o", option)),
            **more,
        ),
    )


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch):
    monkeypatch.setattr(target, "_USER_CONFIG", "/nonexistent")
    monkeypatch.setattr(target, "_SYSTEM_CONFIG", "/nonexistent")
    target._config.cache_clear()
    yield
    target._config.cache_clear()


def boot_id(session):
    return session.call("probe.gpu_users", {})["boot_id"]


@needs_sshd
def test_a_host_that_is_slow_to_say_hello_is_read(server):
    late = Late(server.port, seconds=2)
    with closing(late), closing(remote.open_session(host_of(server, late.port, timeout=1))) as session:
        assert boot_id(session)


def test_a_port_that_says_nothing_was_reached(monkeypatch):
    monkeypatch.setattr(client, "_LOGIN_SECONDS", 0.1)
    own = SimpleNamespace(user="ada", key="/nonexistent")
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(ProvisionError) as caught:
        remote.open_session(host_of(own, mute.getsockname()[1], timeout=1))
    issue = caught.value.issue
    assert (caught.value.host_status, issue.code) == ("failed", "host.slow")
    assert "accepts connections and does not answer as an ssh server" in issue.message
    assert issue.because[-1].startswith("the load of this machine is ") and issue.hint


@needs_sshd
@pytest.mark.parametrize(("broken", "status"), [(1, "read"), (2, "unreachable")])
def test_a_connection_that_broke_is_tried_once_more(server, broken, status, monkeypatch):
    monkeypatch.setattr("provision.runs.fleet._PAUSE_SECONDS", 0.01)
    with closing(Late(server.port, broken=broken)) as late:
        host = host_of(server, late.port)
        answers = ask_all(Fleet(None, {}), [host], "reading", lambda host, session: boot_id(session), Silent())
        answer = answers["gpu01"]
        assert (answer.host_status if isinstance(answer, ProvisionError) else "read") == status
        assert late.count == 2


def test_what_changes_a_host_is_begun_once(monkeypatch):
    """A connection that breaks after something may have been changed is not tried again, unless the work only reads."""
    error = client.UnreachableError("connect.lost", "the connection broke")
    monkeypatch.setattr("provision.runs.fleet._PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(remote, "open_session", lambda host: SimpleNamespace(close=lambda: None))
    calls = []

    def ask(host, session):
        calls.append(host.name)
        raise error

    for reads, count in ((True, 2), (False, 1)):
        calls.clear()
        ask_all(Fleet(None, {}), [Host(name="a", connection=Connection())], "t", ask, Silent(), reads=reads)
        assert len(calls) == count


def test_on_a_busy_machine_the_time_of_a_host_begins_with_its_turn(monkeypatch):
    """Eight hosts, one login at a time, each takes a minute of a made-up clock: nobody's time is over."""
    clock, left, inside = [0.0], [], []

    def handshake(host, goal, sock):
        inside.append(host)
        assert len(inside) == 1, "one at a time"
        clock[0] += 60
        return SimpleNamespace(close=lambda: None)

    def login(host, goal, transport, deadline, password_allowed):
        left.append(deadline - clock[0])
        inside.remove(host.name)

    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    for name, fake in {
        "_open": lambda host, goal: None,
        "_handshake": handshake,
        "_check_host_key": lambda *args: True,
        "_login": login,
        "_LOGINS_PER_CORE": 1,
    }.items():
        monkeypatch.setattr(client, name, fake)
    monkeypatch.setattr(load, "patience", lambda parallel=1: 2)
    monkeypatch.setattr(load, "cores", lambda: 1)
    hosts = [Host(name=f"gpu{number}", connection=Connection()) for number in range(8)]
    goal = SimpleNamespace(connect_timeout=10.0, alive_interval=0)
    remote.for_each(hosts, lambda host: client.connect(host, goal))
    assert left == [2 * 40.0 - 60.0] * 8
