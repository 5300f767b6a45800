"""The protocol of a session, over a local process: calls, errors, noise, time limits, sudo's questions."""

import marshal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provision import remote
from provision.errors import HostFailedError, ProvisionError, UnreachableError
from provision.inventory import Connection, Host
from provision.remote import bundle, explain, for_each
from provision.remote import session as protocol

MODULES = {
    "add": """
from ansible_collections.gpu.provision.plugins.module_utils import words
from ansible_collections.gpu.provision.plugins.module_utils.numbers import (
    double,  # a comment
    triple as thrice,
)
CALLS = []
def main(args):
    CALLS.append(1)
    return {"sum": double(args["a"]) + thrice(args["b"]), "word": words.WORD, "calls": len(CALLS)}
""",
    "words": 'WORD = "grün"\n',
    "numbers": "def double(n):\n    return 2 * n\ndef triple(n):\n    return 3 * n\n",
    "other": "from ansible_collections.gpu.provision.plugins.module_utils import words\ndef main(args):\n    return words.WORD\n",
    "broken": "def main(args):\n    return {}['missing']\n",
    "refuses": """
class Refused(Exception):
    code, because, hint = "apt.locked", ["pid 1"], "wait"
def main(args):
    raise Refused("the lock is held")
""",
    "noisy": """
import os, subprocess, sys
def main(args):
    print("printed"); os.write(1, b"written\\n"); os.write(2, b"complained\\n")
    subprocess.call(["echo", "from a child"])
    return os.environ["LC_ALL"]
""",
    "sleeps": "import time\ndef main(args):\n    time.sleep(args['s'])\n    return True\n",
    "dies": "import os\ndef main(args):\n    os._exit(7)\n",
    "big": "def main(args):\n    return 'x' * args['n']\n",
}


@pytest.fixture(autouse=True)
def modules(monkeypatch, tmp_path):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    for name in bundle.needed("lib.redact"):
        # What the server itself needs.
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(bundle.source(name))
    monkeypatch.setattr(bundle, "MODULE_UTILS", tmp_path)
    caches = (bundle.source, bundle.needed, bundle._encode, bundle._code)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.fixture
def local():
    sessions = []

    def start(**connection):
        options = {"kind": "local", "become": False, "python": sys.executable, **connection}
        sessions.append(remote.open_session(Host(name="gpu01", connection=Connection(**options))))
        return sessions[-1]

    yield start
    for session in sessions:
        session.close()


@pytest.mark.parametrize("same_python", [True, False])
def test_calls_share_a_process_and_sources_are_sent_once(local, monkeypatch, same_python):
    if not same_python:
        monkeypatch.setattr(protocol, "MAGIC_NUMBER", b"another")
    session = local()
    assert session.call("add", {"a": 1, "b": 2}) == {"sum": 8, "word": "grün", "calls": 1}
    assert session.call("other", {}) == "grün"
    assert session.call("add", {"a": 0, "b": 1})["calls"] == 2
    assert {"add", "numbers", "words"} <= set(bundle.needed("add"))


def test_what_is_sent_fits_what_is_known():
    for takes_code, kind in ((False, "text"), (True, "code")):
        known: set[tuple[str, str]] = set()
        first = bundle.request("add", {}, 60, known, takes_code)
        assert {(kind, name) for name in ("add", "words", "numbers")} <= known
        assert {sent for sent, _ in known} == {kind}
        assert len(bundle.request("add", {}, 60, known, takes_code)) < len(first)


def test_bytecode_names_no_folder_of_this_machine(tmp_path):
    assert str(tmp_path).encode() not in marshal.dumps(bundle._code("add"))
    assert bundle._code("add").co_filename == "<add.py>"


def test_what_runs_in_other_processes_is_sent_as_text_too(monkeypatch):
    monkeypatch.setattr(bundle, "_SENDS_ON", "words")
    known: set[tuple[str, str]] = set()
    bundle.request("add", {}, 60, known, True)
    assert {("text", "add"), ("code", "add"), ("text", "words"), ("code", "lib.redact")} <= known


def test_a_failure_in_the_module_says_where(local):
    with pytest.raises(HostFailedError) as caught:
        local().call("broken", {})
    issue = caught.value.issue
    assert (issue.code, issue.host) == ("host.probe_failed", "gpu01")
    assert "KeyError" in issue.message
    assert any("broken.py:2" in line for line in issue.because)


def test_a_modules_own_words_are_kept(local):
    with pytest.raises(HostFailedError) as caught:
        local().call("refuses", {})
    issue = caught.value.issue
    assert (issue.code, issue.message, issue.because, issue.hint) == (
        "apt.locked",
        "the lock is held",
        ["pid 1"],
        "wait",
    )


def test_a_session_goes_on_after_a_failure(local):
    session = local()
    with pytest.raises(HostFailedError):
        session.call("broken", {})
    assert session.call("other", {}) == "grün"


def test_prints_do_not_disturb(local):
    assert local().call("noisy", {}) == "C.UTF-8"


def test_large_answers(local):
    assert len(local().call("big", {"n": 3_000_000})) == 3_000_000


def test_time_limit(local):
    started = time.monotonic()
    session = local()
    # a second call, from a caller that cleans up, tells of the same failure
    for _ in range(2):
        with pytest.raises(HostFailedError) as caught:
            session.call("sleeps", {"s": 30}, timeout=1)
        assert caught.value.issue.code == "host.timeout"
    assert time.monotonic() - started < 25, "the program itself takes 30 s"


def test_a_program_that_ends(local):
    with pytest.raises(HostFailedError) as caught:
        local().call("dies", {})
    assert caught.value.issue.code == "host.probe_failed"
    assert "status 7" in caught.value.issue.message


OTHERS = sorted(
    str(path)
    for folder, pattern in (("~/.pyenv/versions", "*/bin/python3"), ("/usr/bin", "python3.?*[0-9]"))
    for path in Path(folder).expanduser().glob(pattern)
)


@pytest.mark.parametrize("python", OTHERS)
def test_every_python_of_this_machine(local, python):
    version = subprocess.run(
        [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=True
    )
    session = local(python=python)
    if tuple(map(int, version.stdout.split())) >= (3, 8):
        assert session.call("add", {"a": 1, "b": 1})["sum"] == 5
        return
    with pytest.raises(HostFailedError) as caught:
        session.call("add", {})
    assert caught.value.issue.code == "host.no_python"
    assert "too old" in caught.value.issue.message


def test_no_python(local):
    with pytest.raises(HostFailedError) as caught:
        local(python="/nonexistent/python3").call("other", {})
    assert caught.value.issue.code == "host.no_python"


def test_python_is_found_where_the_path_has_none(local, monkeypatch, tmp_path):
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(bare))
    if not Path("/usr/bin/python3").exists():
        pytest.skip("no /usr/bin/python3 to be found")
    assert local(python=None).call("other", {}) == "grün"


def test_unknown_connection():
    with pytest.raises(UnreachableError) as caught:
        remote.open_session(Host(name="c", connection=Connection(kind="docker")))
    assert caught.value.issue.code == "connect.unsupported"


# A stand-in that asks and refuses in sudo's words (those of the real one: test_remote_ssh.py).
SUDO = """#!/bin/sh
prompt= ; interactive=yes
while [ $# -gt 0 ]; do
  case "$1" in
    -n) interactive=no ;;
    -p) prompt=$2; shift ;;
    -u) shift ;;
    --) shift; break ;;
  esac
  shift
done
{body}
exec "$@"
"""
ASKS = """
if [ $interactive = no ]; then echo "sudo: a password is required" >&2; exit 1; fi
for try in 1 2 3; do
  printf '%s' "$prompt" >&2
  IFS= read -r password || { echo "sudo: no password was provided" >&2; exit 1; }
  echo "$password" >>"$0.tries"
  [ "$password" = 'right one' ] && break
  echo "Sorry, try again." >&2
  [ $try = 3 ] && { echo "sudo: 3 incorrect password attempts" >&2; exit 1; }
done
"""


@pytest.fixture
def sudo(local, tmp_path):
    def start(body, **connection):
        path = tmp_path / "sudo"
        path.write_text(SUDO.replace("{body}", body))
        path.chmod(0o755)
        return local(become=True, become_exe=str(path), become_user="other", **connection)

    return start


@pytest.mark.parametrize(
    ("body", "password", "code"),
    [
        (ASKS, None, "become.password_needed"),
        (ASKS, "wrong one", "become.password_wrong"),
        ('echo "gpu is not in the sudoers file." >&2; exit 1', None, "become.not_allowed"),
        (
            'echo "gpu is not in the sudoers file.  This incident will be reported." >&2; exit 1',
            "x",
            "become.not_allowed",
        ),
        ('echo "sudo: sorry, you must have a tty to run sudo" >&2; exit 1', None, "become.not_allowed"),
        ('echo "sudo: python3: command not found" >&2; exit 1', None, "host.no_python"),
    ],
)
def test_sudo_says_no(sudo, body, password, code):
    with pytest.raises(ProvisionError) as caught:
        sudo(body, become_password=password).call("other", {})
    assert caught.value.issue.code == code
    assert caught.value.issue.host == "gpu01"
    assert caught.value.issue.hint


def test_a_wrong_password_is_sent_once(sudo, tmp_path):
    """Three tries of each command lock an account: pam_faillock."""
    with pytest.raises(ProvisionError):
        sudo(ASKS, become_password="wrong one").call("other", {})
    assert (tmp_path / "sudo.tries").read_text() == "wrong one\n"


def test_sudo_asks_and_gets_its_answer(sudo):
    assert sudo(ASKS, become_password="right one").call("other", {}) == "grün"


def test_sudo_that_does_not_ask_gets_no_password(sudo):
    session = sudo("", become_password="right one")
    assert session.call("add", {"a": 1, "b": 1})["sum"] == 5


def test_other_become_methods_are_refused(local):
    with pytest.raises(UnreachableError) as caught:
        local(become=True, become_method="pbrun", become_user="other").call("other", {})
    assert caught.value.issue.code == "become.unsupported"
    with pytest.raises(UnreachableError) as caught:
        local(become=True, become_method="doas", become_known=False, become_user="other").call("other", {})
    assert "community.general" in caught.value.issue.hint


# What Linux-PAM's conversation does without a terminal: a prompt on stderr, one line of stdin read byte by byte.
SU = """#!/usr/bin/env python3
import os, sys
user, flag, line = sys.argv[1:]
assert (user, flag) == ("other", "-c"), sys.argv
sys.stderr.write("Password: "); sys.stderr.flush()
got = b""
while not got.endswith(b"\\n"):
    byte = os.read(0, 1)
    if not byte: break
    got += byte
if got != b"right one\\n":
    sys.exit("su: Authentication failure")
os.execvp("sh", ["sh", "-c", line])
"""
DOAS = """#!/bin/sh
[ "$1 $2 $3" = "-n -u other" ] || exit 9
shift 3
{body}
exec "$@"
"""


@pytest.fixture
def becomes(local, tmp_path):
    def start(method, text, password=None):
        path = tmp_path / method
        path.write_text(text)
        path.chmod(0o755)
        options = {"become_method": method, "become_exe": str(path), "become_password": password}
        return local(become=True, become_user="other", **options)

    return start


def test_su_asks_for_the_password_of_the_account_and_gets_it(becomes):
    assert becomes("su", SU, "right one").call("other", {}) == "grün"
    for password, code in (("wrong one", "become.password_wrong"), (None, "become.password_needed")):
        with pytest.raises(UnreachableError) as caught:
            becomes("su", SU, password).call("other", {})
        assert caught.value.issue.code == code and caught.value.issue.hint


def test_doas_runs_without_a_password_and_says_why_not(becomes):
    assert becomes("doas", DOAS.replace("{body}", "")).call("add", {"a": 1, "b": 1})["sum"] == 5
    for said, code in (
        ("doas: Authentication required", "become.password_needed"),
        ("doas: Operation not permitted", "become.not_allowed"),
        ("env: 'doas': No such file or directory", "become.not_allowed"),
    ):
        with pytest.raises(UnreachableError) as caught:
            becomes("doas", DOAS.replace("{body}", f'echo "{said}" >&2; exit 1')).call("other", {})
        assert caught.value.issue.code == code and "doas" in caught.value.issue.message


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ssh: connect to host 10.0.0.1 port 22: Connection refused", "connect.refused"),
        ("ssh: connect to host 10.0.0.1 port 22: Connection timed out", "connect.timeout"),
        ("ssh: connect to host 10.0.0.1 port 22: No route to host", "connect.timeout"),
        ("ssh: Could not resolve hostname x: Name or service not known", "connect.dns"),
        ("No ED25519 host key is known for x and\nHost key verification failed.", "connect.host_key_unknown"),
        (
            "@  WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!  @\nHost key verification failed.",
            "connect.host_key_changed",
        ),
        ("me@x: Permission denied (publickey,password).", "connect.auth"),
        ("kex_exchange_identification: Connection closed by remote host", "connect.closed"),
        ("something new", "connect.failed"),
    ],
)
def test_words_of_the_openssh_client(text, code):
    error = explain.ssh_failed(text, host="gpu01", address="x")
    assert isinstance(error, UnreachableError)
    assert error.issue.code == code


def test_for_each_keeps_failures_apart():
    def work(host):
        if host.name == "b":
            raise UnreachableError("connect.refused", "no")
        if host.name == "c":
            raise ZeroDivisionError("a defect")
        return host.name.upper()

    found = for_each([Host(name=name) for name in "abc"], work, forks=2)
    assert found["a"] == "A"
    assert (found["b"].issue.code, found["b"].issue.host) == ("connect.refused", "b")
    assert found["c"].issue.code == "internal.error"
    assert isinstance(found["c"].__cause__, ZeroDivisionError)


def test_for_each_never_runs_more_than_forks():
    running, most = [], []

    def work(host):
        running.append(host.name)
        most.append(len(running))
        time.sleep(0.02)
        running.remove(host.name)

    for_each([Host(name=str(n)) for n in range(12)], work, forks=3)
    assert max(most) <= 3


def test_for_each_ends_at_once_on_ctrl_c():
    started = []

    def work(host):
        started.append(host.name)
        time.sleep(0.2)

    def interrupt(host, result):
        raise KeyboardInterrupt

    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        for_each([Host(name=str(n)) for n in range(50)], work, forks=2, on_done=interrupt)
    assert time.monotonic() - before < 2
    time.sleep(0.5)
    assert len(started) <= 6
