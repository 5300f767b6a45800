"""From what sudo, a shell or ssh printed to a message that a person understands. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.errors import HostFailedError, ProvisionError, UnreachableError
from provision.lib import load

# (pattern, code, message, hint). {user} is the login user; the first match decides.
_BECOME: Sequence[tuple[str, str, str, str]] = (
    (
        r"^su: Authentication (?:token manipulation error|failure)",
        "become.password_wrong",
        "su did not accept the password",
        "ansible_become_password (-K) is the password of the account to become here: root's, not {user}'s",
    ),
    (
        r"^su: (?:Permission denied|cannot set groups|must be run from a terminal)",
        "become.not_allowed",
        "{user} may not use su here",
        "pam_wheel may allow it to a group alone (/etc/pam.d/su); sudo with a rule for {user} is the usual way",
    ),
    (
        r"^su: user .* does not exist",
        "become.not_allowed",
        "su does not know the user to become",
        "check ansible_become_user",
    ),
    (
        r"^doas: (?:Authentication (?:required|failed)|a tty is required)",
        "become.password_needed",
        "doas wants a password, which it reads from a terminal only",
        "permit nopass {user} in /etc/doas.conf on the host, or use sudo",
    ),
    (
        r"^doas: (?:Operation not permitted|doas is not enabled)",
        "become.not_allowed",
        "{user} may not use doas here",
        "allow it in /etc/doas.conf on the host: permit nopass {user}",
    ),
    (
        r"^doas: unknown user",
        "become.not_allowed",
        "doas does not know the user to become",
        "check ansible_become_user",
    ),
    (
        r"doas['’]?: (?:(?:command )?not found|No such file)|unknown command: doas",
        "become.not_allowed",
        "there is no doas on this host",
        "install doas there, or use another method (ansible_become_method)",
    ),
    (
        r"not in the sudoers file|is not allowed to (?:execute|run)|may not run sudo|not allowed to run sudo",
        "become.not_allowed",
        "{user} may not use sudo here",
        "allow it in /etc/sudoers.d on the host, or log in as a user who may (ansible_user)",
    ),
    (
        r"must have a tty|a terminal is required to read the password.*askpass|you must have a tty",
        "become.not_allowed",
        "sudo on this host wants a terminal",
        "give the password (-K or ansible_become_password), or remove requiretty from the host's sudoers",
    ),
    (
        r"Sorry, try again|incorrect password attempt|no password was provided|Authentication failure",
        "become.password_wrong",
        "wrong sudo password for {user}",
        "check ansible_become_password in the inventory or vault, or type it with -K",
    ),
    (
        r"a password is required|password is required|no tty present and no askpass",
        "become.password_needed",
        "sudo wants a password for {user}",
        "give it with -K (--ask-become-pass) or ansible_become_password; ansible_become: false reads without root",
    ),
    (
        r"sudo: (?:account|password) .*expired|account validation failure",
        "become.not_allowed",
        "the account {user} is locked or expired for sudo",
        "renew the account on the host",
    ),
    (r"sudo: unknown user", "become.not_allowed", "sudo does not know the user to become", "check ansible_become_user"),
    (
        r"(?:sudo: (?:command )?not found|sudo['’]?: No such file|exec: \"?sudo\"?: |unknown command: sudo)",
        "become.not_allowed",
        "there is no sudo on this host",
        "install sudo there, or log in as root (ansible_user: root)",
    ),
)
_LINE = 300
_NO_PYTHON = re.compile(
    r"python[0-9.]*['’]?: (?:command )?not found|python[0-9.]*['’]?: No such file|"
    r"unknown command:? .*python|Unknown command.*python|command not found: \S*python",
    re.IGNORECASE,
)
# Of a host that was reached and did not answer in time: it may be slow, or this machine, and it is not unreachable.
SLOW = "host.slow"
_SUDO_SLOW = re.compile(r"Timeout \((\d+)s\) waiting for privilege escalation prompt")
_SSH: Sequence[tuple[str, str, str, str | None]] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for .* has changed",
        "connect.host_key_changed",
        "THE HOST KEY HAS CHANGED: this may be another machine, or someone between",
        "if the host was reinstalled: ssh-keygen -R {address}, then accept the new key",
    ),
    (
        r"Host key verification failed|No .* host key is known for",
        "connect.host_key_unknown",
        "the host key is not known",
        "check it and accept it once: ssh {address}",
    ),
    (r"Connection refused", "connect.refused", "connection refused", "is sshd running there, and is the port right?"),
    (
        r"timed out during banner exchange|Timeout, server|Timeout \(\d+s\) waiting for privilege escalation|"
        r"Timed out waiting for become success",
        SLOW,
        "the host was reached and answers too slowly",
        None,
    ),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        "connect.timeout",
        "no answer from the host",
        "is it switched on, and does a firewall block it?",
    ),
    (
        r"Could not resolve hostname|Name or service not known|Temporary failure in name resolution",
        "connect.dns",
        "the name cannot be resolved",
        "check ansible_host, or add the name to DNS or ~/.ssh/config",
    ),
    (
        r"Permission denied|Too many authentication failures|no mutual signature|Load key .* invalid|"
        r"authentication methods",
        "connect.auth",
        "login refused",
        "check ansible_user and the key or password",
    ),
    (
        r"Connection (?:closed|reset)|kex_exchange_identification|banner",
        "connect.closed",
        "the host closed the connection",
        "see the host's sshd log; MaxStartups or a firewall can do that",
    ),
)


def lacks_python(text: str) -> bool:
    """True when a shell or sudo said that there is no such Python."""
    return bool(_NO_PYTHON.search(text))


def become_failed(text: str, *, host: str, user: str) -> ProvisionError | None:
    """Return what sudo's messages mean, or None when sudo did not complain."""
    for pattern, code, message, hint in _BECOME:
        if re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
            return UnreachableError(
                code, message.format(user=user), host=host, because=tail(text), hint=hint.format(user=user)
            )
    return None


def password_needed(host: str, user: str, method: str) -> ProvisionError:
    """The error of a program that asks and has no password to be given."""
    row = next(row for row in _BECOME if row[1] == "become.password_needed" and row[2].startswith("sudo"))
    whose = "the password of the account to become" if method == "su" else f"a password for {user}"
    return UnreachableError(row[1], f"{method} wants {whose}", host=host, hint=row[3])


def wrong_password(host: str, user: str) -> ProvisionError:
    """The error of a sudo that asks a second time."""
    _, code, message, hint = next(row for row in _BECOME if row[1] == "become.password_wrong" and "sudo" in row[2])
    return UnreachableError(code, message.format(user=user), host=host, hint=hint)


def ssh_failed(text: str, *, host: str, address: str) -> ProvisionError:
    """Return what the OpenSSH client's messages mean."""
    for pattern, code, message, hint in _SSH:
        if re.search(pattern, text):
            if code == SLOW:
                return slow(
                    host, message, [_SUDO_SLOW.sub(r"sudo did not answer within \1 s", line) for line in tail(text)]
                )
            advice = None if hint is None else hint.format(address=address)
            return UnreachableError(code, message, host=host, because=tail(text), hint=advice)
    return UnreachableError("connect.failed", "no ssh connection", host=host, because=tail(text))


def slow(host: str, message: str, because: Sequence[str] = ()) -> ProvisionError:
    """Return the error of a host that was reached and did not answer in time."""
    return HostFailedError(
        SLOW,
        message,
        host=host,
        because=[*because, load.described()],
        hint="check the load of the host and of this machine; --forks N runs fewer hosts at a time",
    )


def ended(text: str, status: int, *, host: str) -> ProvisionError:
    """Return the error for a program that ended before it answered."""
    return HostFailedError(
        "host.probe_failed",
        f"the program on the host ended without an answer (status {status})",
        host=host,
        because=tail(text),
        hint="does the login shell print or exit in a non-interactive login? try: ssh HOST python3 --version",
    )


def tail(text: str, lines: int = 3) -> list[str]:
    """Return the last lines of what was printed, without empty ones and ornaments, each up to a limit."""
    return [line.strip()[:_LINE] for line in text.splitlines() if line.strip(" @\r\t")][-lines:]
