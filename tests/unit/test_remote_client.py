"""What is asked of ssh: algorithms as they are configured, and the arguments of the OpenSSH client."""

import pytest

from provision.errors import UnreachableError
from provision.inventory import Connection, Host
from provision.remote import client, target
from provision.remote.client import NeedsOpenSsh
from provision.remote.openssh import OpenSsh


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
