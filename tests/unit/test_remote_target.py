"""Inventory + ssh configuration -> target, from a table; and known_hosts."""

from pathlib import Path

import pytest

from provision.inventory import Connection
from provision.lib import yaml_reader
from provision.remote import knownhosts, target

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/ssh_target.yml").read_text())
KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIKZ0hZ3m"


@pytest.fixture(autouse=True)
def own_configuration(monkeypatch, tmp_path):
    monkeypatch.setattr(target, "_USER_CONFIG", str(tmp_path / "config"))
    monkeypatch.setattr(target, "_SYSTEM_CONFIG", str(tmp_path / "system"))
    monkeypatch.setattr(target, "has_kerberos_ticket", lambda: False)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    target._config.cache_clear()
    knownhosts.forget()
    yield
    target._config.cache_clear()
    knownhosts.forget()


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_target(case, tmp_path):
    if "config" in case:
        (tmp_path / "config").write_text(case["config"])
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in case["connection"].items()}
    found = target.resolve(Connection(**given))
    for key, value in case.get("want", {}).items():
        have = getattr(found, key)
        if isinstance(have, tuple):
            have = list(have)
        if isinstance(have, dict):
            have = {name: list(item) for name, item in have.items()}
        assert have == value, key
    expected = case.get("reasons", [])
    assert len(found.reasons) == len(expected), found.reasons
    for text, reason in zip(expected, found.reasons, strict=True):
        assert text in reason


def test_gssapi_with_a_ticket_is_a_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(target, "has_kerberos_ticket", lambda: True)
    (tmp_path / "config").write_text("Host *\n  GSSAPIAuthentication yes\n")
    assert target.resolve(Connection(address="gpu01")).reasons == ("GSSAPIAuthentication",)


def test_system_configuration_comes_second_and_starts_outside_of_blocks(tmp_path):
    (tmp_path / "config").write_text("Host other\n  User nobody\n")
    (tmp_path / "system").write_text("Port 77\nHost *\n  User admin\n")
    found = target.resolve(Connection(address="gpu01"))
    assert (found.port, found.user) == (77, "admin")


def test_include_ends_with_its_file(tmp_path):
    (tmp_path / "inc.conf").write_text("Host somewhere\n  Port 1\n")
    (tmp_path / "config").write_text(f"Host gpu01\n  Include {tmp_path}/*.conf\n  Port 3\n")
    assert target.resolve(Connection(address="gpu01")).port == 3


@pytest.mark.parametrize("line", ["Include {0}/a.conf {0}/b.conf", "include = {0}/[ab].conf", "Include a.conf b.conf"])
def test_what_is_included_counts_where_it_is_included(tmp_path, line):
    (tmp_path / "a.conf").write_text("# Include {0}/c.conf\n\nPort 7\n")
    (tmp_path / "b.conf").write_text("User admin\n")
    (tmp_path / "config").write_text(f"Host gpu01\n  {line.format(tmp_path)}\n  Port 3\n")
    found = target.resolve(Connection(address="gpu01"))
    assert (found.port, found.user) == (7, "admin")


@pytest.mark.parametrize(
    ("text", "want"),
    [("bastion", ("bastion", 22)), ("me@bastion:2222", ("bastion", 2222)), ("me@[fe80::1]:22", ("fe80::1", 22))],
)
def test_jump_names(text, want):
    found = target.resolve_name(text)
    assert (found.address, found.port) == want
    assert ("@" in text) is (found.user == "me")


@pytest.mark.parametrize(
    ("line", "name", "port", "hit"),
    [
        (f"gpu01 ssh-ed25519 {KEY}", "gpu01", 22, True),
        (f"gpu01,10.0.0.1 ssh-ed25519 {KEY}", "10.0.0.1", 22, True),
        (f"gpu01 ssh-ed25519 {KEY}", "gpu02", 22, False),
        (f"gpu* ssh-ed25519 {KEY}", "gpu02", 22, True),
        (f"gpu*,!gpu02 ssh-ed25519 {KEY}", "gpu02", 22, False),
        (f"[gpu01]:2222 ssh-ed25519 {KEY}", "gpu01", 2222, True),
        (f"[gpu01]:2222 ssh-ed25519 {KEY}", "gpu01", 22, False),
        # OpenSSH's second look, without the port
        (f"gpu01 ssh-ed25519 {KEY}", "gpu01", 2222, True),
        (f"GPU01 ssh-ed25519 {KEY}", "gpu01", 22, True),
        ("# gpu01 ssh-ed25519 x", "gpu01", 22, False),
        ("gpu01 broken", "gpu01", 22, False),
    ],
)
def test_known_hosts_lines(tmp_path, line, name, port, hit):
    (tmp_path / "kh").write_text(line + "\n")
    assert bool(knownhosts.lookup((str(tmp_path / "kh"),), name, port)) is hit


def test_known_hosts_markers_and_places(tmp_path):
    (tmp_path / "kh").write_text(f"\n@revoked * ssh-ed25519 {KEY}\n")
    (entry,) = knownhosts.lookup((str(tmp_path / "absent"), str(tmp_path / "kh")), "gpu01", 22)
    assert (entry.marker, entry.line, entry.file) == ("@revoked", 2, str(tmp_path / "kh"))


def test_who_vouches_for_host_keys_where_nothing_else_is_said():
    """The defaults of UserKnownHostsFile and GlobalKnownHostsFile (man ssh_config)."""
    own = [str(Path.home() / ".ssh" / name) for name in ("known_hosts", "known_hosts2")]
    everyone = ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"]
    assert list(target.resolve(Connection(address="gpu01")).known_hosts) == own + everyone


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("port", [22, 2222])
def test_a_key_that_was_accepted_is_found_again(tmp_path, hashed, port):
    file = str(tmp_path / "new/kh")
    knownhosts.add(file, "gpu01", port, "ssh-ed25519", KEY, hashed=hashed)
    assert ("gpu01" in Path(file).read_text()) is not hashed
    (entry,) = knownhosts.lookup((file,), "gpu01", port)
    assert (entry.type, entry.blob) == ("ssh-ed25519", KEY)
    assert knownhosts.lookup((file,), "gpu02", port) == []


@pytest.mark.parametrize("file", ["/dev/null", "none"])
def test_who_keeps_no_host_keys_gets_none(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    knownhosts.add(file, "gpu01", 22, "ssh-ed25519", KEY, hashed=False)
    assert list(tmp_path.iterdir()) == []
