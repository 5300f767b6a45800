"""What is asked of ssh: algorithms as they are configured, and the arguments of the OpenSSH client."""

import subprocess
from types import SimpleNamespace

import pytest

from provision.errors import UnreachableError
from provision.inventory import Connection, Host
from provision.remote import client, target
from provision.remote.client import NeedsOpenSsh
from provision.remote.openssh import OpenSsh
from provision.remote.stream import ProcessStream
from provision.remote.target import Target


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        (("b",), ("b",)),
        (("c", "a", "x"), ("c", "a")),
        (("+x",), ("a", "b", "c")),
        (("-b", "c"), ("a",)),
        (("^c",), ("c", "a", "b")),
    ],
)
def test_lists_of_algorithms_mean_what_ssh_means_by_them(wanted, left):
    """Ciphers, MACs and KexAlgorithms of man ssh_config: a list, or +, - and ^ for the default list."""
    assert client._as_configured(("a", "b", "c"), wanted) == left


@pytest.mark.parametrize("wanted", [("x",), ("-a", "b", "c")])
def test_where_no_algorithm_is_left_ssh_itself_is_asked(wanted):
    with pytest.raises(NeedsOpenSsh):
        client._as_configured(("a", "b", "c"), wanted)


def test_a_proxy_command_is_told_where_to_go(monkeypatch):
    """Tokens of ProxyCommand (man ssh_config)."""
    monkeypatch.setattr(client.paramiko, "ProxyCommand", lambda text: text)
    goal = Target("10.0.0.7", 2222, "ada", proxy_command="nc -X %% %h %p # %r %%h", proxy_jump="bastion")
    assert client._open("gpu01", goal) == "nc -X % 10.0.0.7 2222 # ada %h"
    monkeypatch.setattr(client, "_through", lambda host, goal: f"through {goal.proxy_jump}")
    assert client._open("gpu01", Target("10.0.0.7", 22, "ada", proxy_jump="bastion")) == "through bastion"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "connect.refused", "connection refused by gpu01 port 22"),
        (TimeoutError("timed out"), "connect.timeout", "no answer from gpu01 port 22 within 10 s"),
        (OSError(113, "No route to host"), "connect.unreachable", "gpu01 port 22 cannot be reached"),
    ],
)
def test_why_there_is_no_connection(error, code, words):
    issue = client._not_connected("gpu01", "gpu01 port 22", error, 10.0).issue
    assert (issue.code, issue.message) == (code, words) and issue.because and issue.hint


def test_a_jump_host_is_connected_once_and_again_where_it_was_lost(monkeypatch):
    monkeypatch.setattr(client, "_jumps", {})
    made = []

    def connect(names):
        transport = SimpleNamespace(is_active=lambda: True)
        made.append(client.Client(names[-1], transport, Target(names[-1], 22, "ada")))
        return made[-1]

    monkeypatch.setattr(client, "_connect_jump", connect)
    assert client._jump(["b"]) is client._jump(["b"]) is made[0]
    assert client._jump(["a", "b"]) is made[1], "another way there"
    made[0].transport.is_active = lambda: False
    assert client._jump(["b"]) is client._jump(["b"]) is made[2]
    refused = UnreachableError("connect.refused", "no")
    monkeypatch.setattr(client, "_connect_jump", lambda names: made.append(names) or refused)
    assert client._jump(["c"]) is client._jump(["c"]) is refused and len(made) == 4, "a failure is not tried again"


def started(monkeypatch, **connection):
    """What is started for one host, as (option, value) and the words at its end."""
    monkeypatch.setattr(target, "_config", lambda file: None)
    commands = []
    monkeypatch.setattr("provision.remote.openssh.ProcessStream", commands.append)
    monkeypatch.setattr("provision.remote.openssh.shutil.which", lambda name: f"/usr/bin/{name}")
    given = Connection(address="gpu01", **connection)
    OpenSsh(Host("gpu01", connection=given), target.resolve(given)).start(["python3", "-c", "x y"])
    (command,) = commands
    end = command.index("--")
    return command, command[end + 1 :]


def test_every_part_of_a_connection_is_an_argument(monkeypatch):
    command, words = started(
        monkeypatch, user="ada", port=2222, key_file="/keys/a b", host_key_checking=False, ssh_args=("-C",)
    )
    for option in ("StrictHostKeyChecking=no", "Port=2222", "IdentityFile=/keys/a b", "User=ada", "BatchMode=yes"):
        assert command[command.index(option) - 1] == "-o"
    assert command[:2] == ["/usr/bin/ssh", "-C"] and words == ["gpu01", "python3 -c 'x y'"]


def test_what_is_not_said_is_no_argument(monkeypatch):
    command, _ = started(monkeypatch)
    names = {word.partition("=")[0] for word in command if "=" in word}
    assert not names & {"Port", "IdentityFile", "User", "PKCS11Provider"} and "StrictHostKeyChecking=no" not in command


def test_a_client_that_is_not_there_is_named_with_its_package(monkeypatch):
    given = Connection(address="gpu01", ssh_executable="no-such-ssh")
    with pytest.raises(UnreachableError, match="no program no-such-ssh") as missing:
        OpenSsh(Host("gpu01", connection=given), target.resolve(given)).start(["true"])
    assert missing.value.issue.host == "gpu01" and "openssh-client" in missing.value.issue.hint


def test_a_program_that_does_not_end_has_no_status_that_is_known():
    def wait(timeout):
        raise subprocess.TimeoutExpired("ssh", timeout)

    stream = object.__new__(ProcessStream)
    stream._process = SimpleNamespace(wait=lambda timeout: 255)
    assert stream.status() == 255
    stream._process = SimpleNamespace(wait=wait)
    assert stream.status() == -1


class Key(str):
    def asbytes(self):
        return self.encode()


@pytest.mark.parametrize(
    ("private", "goal", "order", "tried"),
    [
        # ssh's defaults come last, and their absence is nothing to tell
        (None, {}, ["agent", "also in the agent", "file"], ["/keys/locked: it has a passphrase"]),
        (
            None,
            {"explicit_keys": True},
            ["file", "also in the agent", "agent"],
            ["/keys/gone: no such file", "/keys/locked: it has a passphrase"],
        ),
        (None, {"use_agent": False}, ["file", "also in the agent"], ["/keys/locked: it has a passphrase"]),
        (None, {"identities_only": True}, ["also in the agent", "file"], ["/keys/locked: it has a passphrase"]),
        ("own", {"keys": (), "use_agent": False}, ["own"], []),
        ("broken", {"keys": (), "use_agent": False}, [], ["ansible_ssh_private_key: no key"]),
    ],
)
def test_in_which_order_keys_are_tried(private, goal, order, tried, monkeypatch):
    files = {"/keys/a": Key("file"), "/keys/b": Key("also in the agent")}
    files["/keys/locked"] = client.keys.Unusable("/keys/locked", "it has a passphrase")
    texts = {"own": Key("own"), "broken": client.keys.Unusable("ansible_ssh_private_key", "no key")}
    monkeypatch.setattr(client.keys, "load", lambda path, passphrase: files.get(path))
    monkeypatch.setattr(client.keys, "from_text", lambda text, passphrase: texts[text])
    monkeypatch.setattr(client.keys, "agent_keys", lambda: [Key("agent"), Key("also in the agent")])
    monkeypatch.setattr(client, "_named", lambda key, goal: key == "also in the agent")
    host = Host("gpu01", connection=Connection(address="gpu01", private_key=private))
    found = []
    given = Target("gpu01", 22, "ada", **{"keys": ("/keys/a", "/keys/gone", "/keys/locked", "/keys/b"), **goal})
    assert list(client._identities(host, given, found)) == order and found == tried
