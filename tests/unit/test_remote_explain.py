"""What the words of ssh, sudo and shells mean: each as the programs themselves write it."""

import pytest

from provision.remote import explain

SSH = {
    "@@@@@@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key verification failed.": (
        "connect.host_key_changed"
    ),
    "Host key for gpu01 has changed and you have requested strict checking.": "connect.host_key_changed",
    "Host key verification failed.": "connect.host_key_unknown",
    "No ED25519 host key is known for gpu01 and you have requested strict checking.": "connect.host_key_unknown",
    "ssh: connect to host gpu01 port 22: Connection refused": "connect.refused",
    "ssh: connect to host gpu01 port 22: Connection timed out": "connect.timeout",
    "Timeout, server gpu01 not responding.": "host.slow",
    "Connection timed out during banner exchange\nConnection to 10.0.0.1 port 22 timed out": "host.slow",
    "Timeout (12s) waiting for privilege escalation prompt": "host.slow",
    "Timed out waiting for become success.": "host.slow",
    "ssh: connect to host gpu01 port 22: No route to host": "connect.timeout",
    "ssh: connect to host gpu01 port 22: Network is unreachable": "connect.timeout",
    "ssh: connect to host gpu01 port 22: Host is down": "connect.timeout",
    "ssh: Could not resolve hostname gpu01: Name or service not known": "connect.dns",
    "ssh: Could not resolve hostname gpu01: Temporary failure in name resolution": "connect.dns",
    "ada@gpu01: Permission denied (publickey,password).": "connect.auth",
    "Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures": "connect.auth",
    "sign_and_send_pubkey: no mutual signature supported": "connect.auth",
    'Load key "/home/ada/.ssh/id": invalid format': "connect.auth",
    "Connection closed by 10.0.0.1 port 22": "connect.closed",
    "Connection reset by 10.0.0.1 port 22": "connect.closed",
    "kex_exchange_identification: read: Connection reset by peer": "connect.closed",
    "ssh: something that nobody has written yet": "connect.failed",
}


@pytest.mark.parametrize(("text", "code"), SSH.items())
def test_words_of_ssh(text, code):
    error = explain.ssh_failed(text, host="gpu01", address="10.0.0.1")
    # A host that was reached and was too slow is not unreachable.
    assert (error.issue.code, error.issue.host, int(error.exit_code)) == (
        code,
        "gpu01",
        1 if code == "host.slow" else 4,
    )
    said = [
        line.replace("Timeout (12s) waiting for privilege escalation prompt", "sudo did not answer within 12 s")
        for line in explain.tail(text)
    ]
    assert error.issue.because[: len(said)] == said and "{" not in str(error.issue)
    assert ("the load of this machine is" in str(error.issue.because)) is (code == "host.slow")
    assert error.issue.hint or code == "connect.failed"


SUDO = {
    "Sorry, try again.\nsudo: 3 incorrect password attempts": "become.password_wrong",
    "sudo: no password was provided": "become.password_wrong",
    "su: Authentication failure": "become.password_wrong",
    "sudo: sorry, you must have a tty to run sudo": "become.not_allowed",
    "Sorry, user ada may not run sudo on gpu01.": "become.not_allowed",
    "sudo: a password is required": "become.password_needed",
    "sudo: no tty present and no askpass program specified": "become.password_needed",
    "ada is not in the sudoers file.": "become.not_allowed",
    "Sorry, user ada is not allowed to execute '/usr/bin/python3' as root on gpu01.": "become.not_allowed",
    "sudo: account validation failure, is your account locked?": "become.not_allowed",
    "sudo: password expired, contact your system administrator": "become.not_allowed",
    "sudo: unknown user nobody1": "become.not_allowed",
    "bash: line 1: sudo: command not found": "become.not_allowed",
    "sh: 1: sudo: not found": "become.not_allowed",
    "env: ‘sudo’: No such file or directory": "become.not_allowed",
    "Welcome to Ubuntu 24.04.3 LTS": None,
}


@pytest.mark.parametrize(("text", "code"), SUDO.items())
def test_words_of_sudo(text, code):
    error = explain.become_failed(text, host="gpu01", user="ada")
    assert (error.issue.code if error else None) == code
    assert error is None or (error.issue.host == "gpu01" and error.issue.hint and "{" not in str(error.issue))


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("sh: 1: /usr/bin/python3: not found", True),
        ("bash: line 1: /usr/bin/python3.11: No such file or directory", True),
        ("zsh:1: command not found: python3", True),
        ("fish: Unknown command: python3", True),
        ("sudo: /usr/bin/python3: command not found", True),
        ("Python 3.12.3", False),
        ("sh: 1: sudo: not found", False),
    ],
)
def test_a_python_that_is_not_there(text, lacks):
    assert explain.lacks_python(text) is lacks


def test_the_last_lines_without_ornaments():
    text = "@@@@\n first \n\n" + "x" * 400 + "\n@  @\r\nlast\n"
    assert explain.tail(text) == ["first", "x" * 300, "last"]
    assert explain.tail(text, 1) == ["last"]
