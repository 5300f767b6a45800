"""The OpenSSH client, for what paramiko cannot honour. The same frames on its stdin; secrets never in argv."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

from provision.errors import ProvisionError, UnreachableError
from provision.inventory import Host
from provision.lib import load, scratch
from provision.remote import explain
from provision.remote.stream import ProcessStream, Stream
from provision.remote.target import Target

# ssh runs it with the question as its argument. Only the ssh that we started is answered, not one that it starts itself for a
# jump host (ProxyJump), which inherits all of this: that host's question is its own, whatever it says. Questions other than
# for a password get no answer.
_ASKPASS = """#!/bin/sh
[ "$PPID" = "$GPU_PROVISION_SSH" ] || exit 1
case "$1" in
  *assword*) exec cat "$GPU_PROVISION_ASKPASS" ;;
  *) exit 1 ;;
esac
"""
# The shell becomes ssh, so that ssh's own process id stands in its environment.
_KNOWN = ("sh", "-c", 'GPU_PROVISION_SSH=$$; export GPU_PROVISION_SSH; exec "$@"', "sh")


class OpenSsh:
    """Starts commands on one host through ``ssh``."""

    def __init__(self, host: Host, goal: Target) -> None:
        self._host, self._target = host, goal

    def user(self) -> str:
        """Who logs in, by ssh's own reading of its configuration (which may be what paramiko cannot read)."""
        command = [self._program(), *self._arguments(), "-G", "--", self._host.connection.address]
        try:
            output = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout
        except subprocess.TimeoutExpired:
            # a Match exec that hangs; the connection itself says so
            return self._target.user
        found = [line.split(" ", 1)[1] for line in output.splitlines() if line.startswith("user ")]
        return found[0] if found else self._target.user

    def start(self, argv: list[str]) -> Stream:
        connection = self._host.connection
        command = [self._program(), *self._arguments(), "--", connection.address, shlex.join(argv)]
        if connection.password is None:
            return ProcessStream(command)
        return _with_password(command, connection.password)

    def _program(self) -> str:
        connection = self._host.connection
        program = shutil.which(connection.ssh_executable)
        if program is None:
            raise UnreachableError(
                "connect.no_ssh",
                f"there is no program {connection.ssh_executable} here",
                host=self._host.name,
                because=[f"it is needed for: {', '.join(self._target.reasons)}"],
                hint="apt-get install openssh-client",
            )
        return program

    def _arguments(self) -> list[str]:
        """The order of Ansible: the first value of an option wins."""
        connection = self._host.connection
        found = [*connection.ssh_args]
        if not connection.host_key_checking:
            found += ["-o", "StrictHostKeyChecking=no"]
        if connection.port is not None:
            found += ["-o", f"Port={connection.port}"]
        if connection.key_file is not None:
            found += ["-o", f"IdentityFile={connection.key_file}"]
        if connection.user is not None:
            found += ["-o", f"User={connection.user}"]
        found += ["-o", f"ConnectTimeout={load.stretched(connection.timeout):.0f}", *connection.ssh_extra_args]
        if connection.pkcs11_provider:
            found += ["-o", f"PKCS11Provider={connection.pkcs11_provider}"]
        if connection.password is None:
            found += ["-o", "BatchMode=yes"]
        else:
            found += ["-o", "NumberOfPasswordPrompts=1"]
        # A question about a host key has nobody to answer it: ask means refuse.
        return [*found, "-T"]

    def lost(self, text: str, status: int) -> ProvisionError | None:
        """ssh says 255 for its own failures."""
        if status != 255:
            return None
        return explain.ssh_failed(text, host=self._host.name, address=self._host.connection.address)


def _with_password(command: list[str], password: str) -> Stream:
    """Start ssh with an askpass program that reads the password from a pipe only it and we can open."""
    folder = Path(tempfile.mkdtemp(prefix="askpass-", dir=scratch.folder()))
    fifo, helper = folder / "answer", folder / "askpass"
    os.mkfifo(fifo, 0o600)
    helper.write_text(_ASKPASS)
    helper.chmod(0o700)
    environment = {
        **os.environ,
        "SSH_ASKPASS": str(helper),
        "SSH_ASKPASS_REQUIRE": "force",
        "DISPLAY": os.environ.get("DISPLAY", ":0"),
        "GPU_PROVISION_ASKPASS": str(fifo),
    }
    done = threading.Event()
    threading.Thread(target=_answer, args=(fifo, password, done), daemon=True).start()

    def clean() -> None:
        done.set()
        shutil.rmtree(folder, ignore_errors=True)

    return ProcessStream([*_KNOWN, *command], environment, clean)


def _answer(fifo: Path, password: str, done: threading.Event) -> None:
    """Write the password each time that somebody opens the pipe to read, until the session ends."""
    while not done.wait(0.02):
        try:
            out = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            # nobody reads yet, or the folder is gone
            continue
        try:
            os.write(out, password.encode() + b"\n")
        finally:
            os.close(out)
        return
