"""The fast read against a real sshd: keys, host keys, jumps, passwords, sudo, and the words for what goes wrong."""

import os
import shlex
import shutil
import socket
import subprocess
import uuid
from pathlib import Path

import pytest

from provision.errors import ProvisionError
from provision.inventory import Connection, Host
from provision.remote import bundle, client, for_each, keys, knownhosts, open_session, target
from tests.system import sshd

pytestmark = pytest.mark.skipif(sshd.PROGRAM is None, reason=sshd.MISSING)

ECHO = """
import os, getpass
def main(args):
    return {"args": args, "uid": os.geteuid(), "parent": os.environ.get("SSH_CONNECTION", ""), "path": os.environ["PATH"]}
"""


@pytest.fixture(scope="module")
def server():
    running = sshd.Sshd()
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    """No ssh configuration, agent or remembered file of the machine or of another test."""
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "echo.py").write_text(ECHO)
    for name in bundle.needed("lib.redact"):
        # What the server itself needs.
        path = modules / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(bundle.source(name))
    monkeypatch.setattr(bundle, "MODULE_UTILS", modules)
    monkeypatch.setattr(target, "_USER_CONFIG", str(tmp_path / "ssh_config"))
    monkeypatch.setattr(target, "_SYSTEM_CONFIG", "/nonexistent")
    monkeypatch.setattr(target, "_GLOBAL_KNOWN_HOSTS", ())
    monkeypatch.setattr(target, "_USER_KNOWN_HOSTS", (str(tmp_path / "known_hosts"),))
    monkeypatch.setattr(target, "_DEFAULT_KEYS", ())
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    caches = (
        target._config,
        knownhosts.read,
        knownhosts._index,
        keys._load,
        keys.agent,
        bundle.source,
        bundle.needed,
        bundle._encode,
    )
    for cache in caches:
        cache.cache_clear()
    yield
    client.close_jumps()
    for cache in caches:
        cache.cache_clear()


def host_of(server, **connection):
    options = {
        "address": server.address,
        "port": server.port,
        "user": server.user,
        "key_file": str(server.key),
        "become": False,
        "ssh_extra_args": ("-o", f"UserKnownHostsFile={server.known_hosts}"),
    }
    return Host(name="gpu01", connection=Connection(**{**options, **connection}))


def ask(host, **args):
    session = open_session(host)
    try:
        return session.call("echo", args)
    finally:
        session.close()


def refusal(host):
    with pytest.raises(ProvisionError) as caught:
        ask(host)
    issue = caught.value.issue
    assert issue.host == "gpu01"
    assert issue.hint
    return caught.value


def through_openssh(server, **connection):
    """An option that is understood by OpenSSH only, and changes nothing."""
    extra = (
        "-o",
        f"UserKnownHostsFile={server.known_hosts}",
        "-o",
        "NoHostAuthenticationForLocalhost=no",
        "-F",
        "none",
    )
    return host_of(server, ssh_extra_args=extra, **connection)


def test_a_call_comes_back_with_what_was_asked(server):
    answer = ask(host_of(server), text="grüße'\"$(x)", number=3)
    assert answer["args"] == {"text": "grüße'\"$(x)", "number": 3}
    assert answer["parent"]
    assert {"/usr/sbin", "/sbin", "/usr/bin"} <= set(answer["path"].split(":"))


def test_several_calls_use_one_program(server):
    session = open_session(host_of(server))
    try:
        assert [session.call("echo", {"n": n})["args"]["n"] for n in range(3)] == [0, 1, 2]
    finally:
        session.close()


def test_openssh_gives_the_same(server):
    host = through_openssh(server)
    assert target.resolve(host.connection).reasons == ("ssh option nohostauthenticationforlocalhost",)
    assert ask(host, n=1)["args"] == {"n": 1}


def test_many_hosts_in_order(server):
    hosts = [Host(name=f"gpu{n:02d}", connection=host_of(server).connection) for n in range(12)]
    seen = []
    answers = for_each(
        hosts, lambda host: ask(host, name=host.name), forks=6, on_done=lambda host, _: seen.append(host.name)
    )
    assert list(answers) == [host.name for host in hosts]
    assert [answer["args"]["name"] for answer in answers.values()] == list(answers)
    assert sorted(seen) == sorted(answers)


# ---- host keys ----------------------------------------------------------------------------------------------


def test_unknown_host_key(server, tmp_path):
    error = refusal(host_of(server, ssh_extra_args=("-o", f"UserKnownHostsFile={tmp_path / 'none'}")))
    assert error.issue.code == "connect.host_key_unknown"
    assert f"ssh -p {server.port}" in error.issue.hint
    assert "SHA256:" in error.issue.because[0]
    assert not (tmp_path / "none").exists()


def test_changed_host_key_says_where_the_old_one_stands(server, tmp_path):
    sshd.keygen(tmp_path / "other")
    known = tmp_path / "kh"
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    known.write_text(f"# a comment\n[{server.address}]:{server.port} {other}\n")
    host = host_of(server, ssh_extra_args=("-o", f"UserKnownHostsFile={known}"))
    error = refusal(host)
    assert error.issue.code == "connect.host_key_changed"
    assert "CHANGED" in error.issue.message
    assert f"{known}:2" in error.issue.because[0]
    assert f"ssh-keygen -f {known} -R" in error.issue.hint


def test_changed_host_key_never_gets_a_password(server, tmp_path):
    sshd.keygen(tmp_path / "other")
    known = tmp_path / "kh"
    known.write_text(f"[{server.address}]:{server.port} {' '.join((tmp_path / 'other.pub').read_text().split()[:2])}\n")
    host = host_of(
        server,
        ssh_extra_args=("-o", f"UserKnownHostsFile={known}"),
        host_key_checking=False,
        key_file=None,
        password="x",
    )
    error = refusal(host)
    assert error.issue.code == "connect.auth"
    assert not any("password" in line and "refused" in line for line in error.issue.because)


def test_openssh_says_unknown_and_changed_too(server, tmp_path):
    sshd.keygen(tmp_path / "other")
    known = tmp_path / "kh"
    options = ("-o", f"UserKnownHostsFile={known}", "-o", "NoHostAuthenticationForLocalhost=no", "-F", "none")
    assert refusal(host_of(server, ssh_extra_args=options)).issue.code == "connect.host_key_unknown"
    known.write_text(f"[{server.address}]:{server.port} {' '.join((tmp_path / 'other.pub').read_text().split()[:2])}\n")
    assert refusal(host_of(server, ssh_extra_args=options)).issue.code == "connect.host_key_changed"


def test_revoked_host_key(server, tmp_path):
    known = tmp_path / "kh"
    known.write_text(f"@revoked * {server.host_key}\n[{server.address}]:{server.port} {server.host_key}\n")
    error = refusal(host_of(server, ssh_extra_args=("-o", f"UserKnownHostsFile={known}")))
    assert error.issue.code == "connect.host_key_revoked"


@pytest.mark.parametrize("hashed", ["no", "yes"])
def test_accept_new_writes_the_key_once(server, tmp_path, hashed):
    known = tmp_path / "kh"
    options = (
        "-o",
        f"UserKnownHostsFile={known}",
        "-o",
        "StrictHostKeyChecking=accept-new",
        "-o",
        f"HashKnownHosts={hashed}",
    )
    ask(host_of(server, ssh_extra_args=options))
    knownhosts.forget()
    ask(host_of(server, ssh_extra_args=("-o", f"UserKnownHostsFile={known}")))
    lines = known.read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("|1|") is (hashed == "yes")
    found = subprocess.run(
        ["ssh-keygen", "-F", f"[{server.address}]:{server.port}", "-f", str(known)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, "OpenSSH does not find what was written"


def test_host_key_checking_off_goes_on(server, tmp_path):
    host = host_of(server, host_key_checking=False, ssh_extra_args=("-o", f"UserKnownHostsFile={tmp_path / 'kh'}"))
    assert ask(host)["args"] == {}


# ---- login ------------------------------------------------------------------------------------------------------


def test_wrong_key(server, tmp_path):
    sshd.keygen(tmp_path / "stranger")
    error = refusal(host_of(server, key_file=str(tmp_path / "stranger")))
    assert error.issue.code == "connect.auth"
    assert any("refused" in line for line in error.issue.because)


def test_missing_key_file_is_named(server, tmp_path):
    error = refusal(host_of(server, key_file=str(tmp_path / "nothere")))
    assert f"{tmp_path / 'nothere'}: no such file" in error.issue.because


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_key_with_passphrase(server, tmp_path, kind):
    sshd.keygen(tmp_path / "locked", "open sesame", kind)
    server.authorize(tmp_path / "locked.pub")
    error = refusal(host_of(server, key_file=str(tmp_path / "locked")))
    assert any("passphrase" in line for line in error.issue.because)
    assert ask(host_of(server, key_file=str(tmp_path / "locked"), key_passphrase="open sesame"))["args"] == {}


def test_key_from_the_inventory_itself(server):
    assert ask(host_of(server, key_file=None, private_key=server.key.read_text()))["args"] == {}


def test_agent_signs_for_many_hosts_at_once(server, monkeypatch, tmp_path):
    started = subprocess.run(
        ["ssh-agent", "-s", "-a", str(tmp_path / "agent")], capture_output=True, text=True, check=True
    ).stdout
    pid = started.split("SSH_AGENT_PID=")[1].split(";")[0]
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
    try:
        subprocess.run(["ssh-add", "-q", str(server.key)], check=True)
        host = host_of(server, key_file=None)
        hosts = [Host(name=f"h{n}", connection=host.connection) for n in range(8)]
        assert all(isinstance(answer, dict) for answer in for_each(hosts, ask).values())
        keys.agent.cache_clear()
        only = (*host.connection.ssh_extra_args, "-o", "IdentitiesOnly=yes", "-o", "IdentityFile=/nonexistent")
        assert refusal(host_of(server, key_file=None, ssh_extra_args=only)).issue.code == "connect.auth"
    finally:
        os.kill(int(pid), 15)


def test_refused_dns(server):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert refusal(host_of(server, port=port)).issue.code == "connect.refused"
    assert refusal(host_of(server, address="gpu01.invalid")).issue.code == "connect.dns"


def test_algorithms_of_the_configuration(server):
    extra = host_of(server).connection.ssh_extra_args
    for options in (
        ("Ciphers=aes256-ctr", "MACs=hmac-sha2-512"),
        ("KexAlgorithms=^ecdh-sha2-nistp256",),
        ("Ciphers=-aes128-ctr",),
    ):
        wanted = tuple(part for option in options for part in ("-o", option))
        assert ask(host_of(server, ssh_extra_args=(*extra, *wanted)))["args"] == {}
    # paramiko has no chacha20: the OpenSSH client does it.
    only = (*extra, "-o", "Ciphers=chacha20-poly1305@openssh.com")
    assert ask(host_of(server, ssh_extra_args=only))["args"] == {}


# ---- jumps and configuration ------------------------------------------------------------------------------------------


def test_proxy_jump_from_the_users_configuration(server, tmp_path):
    (tmp_path / "ssh_config").write_text(
        f"Include {tmp_path}/jump.conf\nHost inner\n  HostName {server.address}\n  Port {server.port}\n  User {server.user}\n"
        f"  IdentityFile {server.key}\n  UserKnownHostsFile {server.known_hosts}\n  ProxyJump bastion\n"
    )
    (tmp_path / "jump.conf").write_text(
        f"Host bastion\n  HostName {server.address}\n  Port {server.port}\n  User {server.user}\n"
        f"  IdentityFile {server.key}\n  UserKnownHostsFile {server.known_hosts}\n"
    )
    hosts = [Host(name=f"h{n}", connection=Connection(address="inner", become=False)) for n in range(5)]
    answers = for_each(hosts, ask)
    assert all(isinstance(answer, dict) for answer in answers.values()), answers
    assert len(client._jumps) == 1, "one connection to the jump host serves all"
    peers = {answer["parent"].split()[0] for answer in answers.values()}
    assert peers == {"127.0.0.1"}


def test_jump_host_that_refuses_is_named(server, tmp_path):
    (tmp_path / "ssh_config").write_text(f"Host bastion\n  HostName {server.address}\n  Port 1\n")
    host = host_of(server, ssh_args=("-J", "bastion"))
    error = refusal(host)
    assert error.issue.code == "connect.refused"
    assert error.issue.message.startswith("jump host bastion: ")


def test_target_behind_the_jump_that_is_down(server, tmp_path):
    (tmp_path / "ssh_config").write_text(
        f"Host bastion\n  HostName {server.address}\n  Port {server.port}\n  User {server.user}\n"
        f"  IdentityFile {server.key}\n  UserKnownHostsFile {server.known_hosts}\n"
    )
    error = refusal(host_of(server, port=1, ssh_args=("-o", "ProxyJump=bastion")))
    assert error.issue.code == "connect.refused"
    assert "from jump host bastion" in error.issue.message


def test_proxy_command(server):
    options = f"-F none -i {server.key} -p {server.port} -o UserKnownHostsFile={server.known_hosts}"
    command = f"ssh {options} -W %h:%p {server.user}@{server.address}"
    host = host_of(server, ssh_args=("-o", f"ProxyCommand={command}"))
    assert ask(host)["args"] == {}


def test_a_live_control_master_is_used(server, tmp_path):
    path = tmp_path / "master"
    base = ["-F", "none", "-o", f"UserKnownHostsFile={server.known_hosts}", "-o", f"ControlPath={path}"]
    place = ["-p", str(server.port), f"{server.user}@{server.address}"]
    subprocess.run(
        ["ssh", *base, "-i", str(server.key), "-o", "ControlMaster=yes", "-o", "ControlPersist=30", "-fN", *place],
        check=True,
    )
    try:
        # No key: only the master lets it in.
        host = host_of(server, key_file=None, ssh_extra_args=tuple(base))
        assert "ControlPath" in target.resolve(host.connection).reasons[0]
        assert ask(host)["args"] == {}
    finally:
        subprocess.run(["ssh", *base, "-O", "exit", *place], check=True, capture_output=True)


# ---- Python -----------------------------------------------------------------------------------------------------------


def test_python_that_is_not_there(server):
    error = refusal(host_of(server, python="/opt/python9"))
    assert error.issue.code == "host.no_python"
    assert "/opt/python9" in error.issue.message


def test_interpreter_of_the_inventory(server):
    assert ask(host_of(server, python="/usr/bin/env python3"))["args"] == {}


# ---- sudo: a user of our own, as root only ------------------------------------------------------------------------------

ROOT_TOOLS = os.geteuid() == 0 and all(shutil.which(tool) for tool in ("sudo", "useradd", "chpasswd", "userdel"))
needs_sudo = pytest.mark.skipif(not ROOT_TOOLS, reason="needs root, sudo and useradd")


@pytest.fixture(scope="module")
def worker(server):
    """A user with a password, who may use sudo with it."""
    name, password = f"gp{uuid.uuid4().hex[:8]}", "pa ss'wo\"rd"
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", name], check=True)
    sudoers = Path("/etc/sudoers.d") / name
    try:
        subprocess.run(["chpasswd"], input=f"{name}:{password}\n", text=True, check=True)
        sudoers.write_text(f"{name} ALL=(ALL) ALL\n")
        sudoers.chmod(0o440)
        yield name, password, sudoers
    finally:
        sudoers.unlink(missing_ok=True)
        # A session of the last test may still be ending; --force removes the user anyway, and says so.
        subprocess.run(["userdel", "--force", name], check=True, capture_output=True)


@needs_sudo
@pytest.mark.parametrize("make", [host_of, through_openssh])
def test_login_and_sudo_with_passwords(server, worker, make):
    name, password, _ = worker
    host = make(server, user=name, key_file=None, password=password, become=True, become_password=password)
    assert ask(host)["uid"] == 0
    assert ask(make(server, user=name, key_file=None, password=password, become=False))["uid"] != 0
    assert refusal(make(server, user=name, key_file=None, password="no", become=False)).issue.code == "connect.auth"


@needs_sudo
def test_sudo_refusals_are_told_apart(server, worker):
    name, password, sudoers = worker

    def code(**options):
        error = refusal(host_of(server, user=name, become=None, **options))
        assert error.exit_code == 4
        assert password not in repr(error.issue)
        return error.issue.code

    assert code() == "become.password_needed"
    assert code(become_password="wrong") == "become.password_wrong"
    allowed = sudoers.read_text()
    try:
        sudoers.write_text("")
        assert code(become_password=password) == "become.not_allowed"
        sudoers.write_text(f"{name} ALL=(ALL) NOPASSWD: ALL\n")
        # sudo does not ask: the password is not sent, Python is not fed with it.
        assert ask(host_of(server, user=name, become_password=password, become=None))["uid"] == 0
        assert ask(host_of(server, user=name, become=None))["uid"] == 0
    finally:
        sudoers.write_text(allowed)


@needs_sudo
def test_secrets_are_in_no_argument_list(server, worker, tmp_path):
    """While a call runs, no process of the machine shows a password."""
    name, password, _ = worker
    (bundle.MODULE_UTILS / "look.py").write_text(
        "import glob\n"
        "def read(path):\n"
        "    try:\n"
        "        return open(path, 'rb').read().replace(b'\\0', b' ').decode('utf-8', 'replace')\n"
        "    except OSError:\n"
        "        return ''  # it ended meanwhile\n"
        "def main(args):\n"
        "    lines = [read(path) for path in glob.glob('/proc/[0-9]*/cmdline')]\n"
        "    assert len(lines) > 3\n"
        "    return [line for line in lines if args['a'] + args['b'] in line]\n"
    )
    half = len(password) // 2
    for make in (host_of, through_openssh):
        session = open_session(
            make(server, user=name, key_file=None, password=password, become=True, become_password=password)
        )
        try:
            assert session.call("look", {"a": password[:half], "b": password[half:]}) == []
        finally:
            session.close()


def test_hint_of_a_changed_key_is_a_command_that_works(server, tmp_path):
    sshd.keygen(tmp_path / "other")
    known = tmp_path / "known hosts"
    known.write_text(f"[{server.address}]:{server.port} {' '.join((tmp_path / 'other.pub').read_text().split()[:2])}\n")
    error = refusal(host_of(server, ssh_extra_args=("-o", f'UserKnownHostsFile="{known}"')))
    command = error.issue.hint.split(": ", 1)[1].split(", then")[0]
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    assert server.address not in known.read_text()
