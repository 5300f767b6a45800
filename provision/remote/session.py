"""A session with a host: one Python process there that answers calls, as root where that is wanted.

How it goes: ``python3 -c BOOTSTRAP`` prints the token, reads one frame (the server, compressed) and runs it. Then
frames go both ways on the same channel: a decimal length, a newline, zlib data with JSON inside. Answers have the
token before the length, so that anything a login shell or sudo prints is told apart.

Nothing is written to the host, and no secret is ever part of a command: the sudo password goes to sudo's stdin,
and only after sudo has asked with a prompt made for this session.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from provision.errors import HostFailedError, ProvisionError, UnreachableError
from provision.inventory import Host
from provision.remote import bundle, explain
from provision.remote.stream import Stream

# No single quotes and no exclamation mark: every login shell takes it inside single quotes.
_BOOTSTRAP = (
    'import sys,zlib;o=sys.stdout;o.write("\\n{token}-ready\\n");o.flush();b=sys.stdin.buffer;'
    "exec(zlib.decompress(b.read(int(b.readline()))).decode())"
)
# -I: no surprises from the environment; -S: no site-packages, only the standard library is used; -B: leaves no files.
_PYTHON_FLAGS = ("-I", "-S", "-B")
_FIND_PYTHON = (
    "for p in python3 /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python /opt/python/bin/python3; "
    "do command -v $p && exit 0; done; exit 127"
)
# One for the whole process: the frames are then the same for every host and made once.
TOKEN = "gpu-provision-" + secrets.token_hex(8)
_NOISE = 16384


class Session(Protocol):
    """A host that can be asked."""

    host: Host

    def call(self, module: str, args: dict[str, Any], *, timeout: float = 60) -> Any:
        """Run ``plugins/module_utils/<module>.py``'s main(args) on the host and return its result.

        UnreachableError: no session (network, host key, login, sudo). HostFailedError: it failed or took too long.
        """
        ...

    def close(self) -> None: ...


class ProgramSession:
    """A Session over anything that can start a command.

    start: takes the argument list of a command and returns its Stream (raises UnreachableError).
    user: who logs in, for messages and to know whether root is there already.
    """

    def __init__(
        self,
        host: Host,
        start: Callable[[list[str]], Stream],
        *,
        user: str,
        is_root: bool,
        on_close: Callable[[], None] = lambda: None,
        lost: Callable[[str, int], ProvisionError | None] = lambda text, status: None,
    ) -> None:
        self.host = host
        self._start, self._user, self._is_root = start, user, is_root
        self._on_close, self._lost = on_close, lost
        self._stream: Stream | None = None
        self._known: set[str] = set()
        self._buffer = b""
        self._python: str | None = host.connection.python
        self._broken: ProvisionError | None = None

    def call(self, module: str, args: dict[str, Any], *, timeout: float = 60) -> Any:
        if self._broken is not None:
            raise self._broken  # a caller that cleans up after a failure sees the failure, not its echo
        deadline = time.monotonic() + timeout
        try:
            answer = self._ask(module, args, timeout, deadline)
        except TimeoutError as error:
            self.close()
            self._broken = HostFailedError(
                "host.timeout",
                f"no answer from the program on the host within {timeout:.0f} s ({module})",
                host=self.host.name,
                hint="is the host overloaded, or does a disk or a GPU command hang there?",
            )
            raise self._broken from error
        except UnreachableError as error:
            self._broken = error
            raise
        if answer["ok"]:
            return answer["result"]
        wrong = answer["error"]
        raise HostFailedError(
            wrong["code"], wrong["message"], host=self.host.name, because=wrong["because"], hint=wrong["hint"]
        )

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._on_close()

    def _ask(self, module: str, args: dict[str, Any], timeout: float, deadline: float) -> dict[str, Any]:
        if self._stream is not None:
            self._send(bundle.request(module, args, timeout, self._known))
            return self._answer(deadline)
        self._known.clear()
        frames = bundle.server(TOKEN) + bundle.request(module, args, timeout, self._known)
        try:
            return self._first(frames, deadline)
        except _NoPython as error:
            if self.host.connection.python is not None or self._python is not None:
                raise self._no_python(error.text) from None
            self._python = self._find_python(deadline)
            try:
                return self._first(frames, deadline)
            except _NoPython as again:
                raise self._no_python(again.text) from None

    def _first(self, frames: bytes, deadline: float) -> dict[str, Any]:
        """Start the server, with sudo's question answered where there is one, and return the first answer."""
        argv, prompt = self._command()
        self._buffer = b""
        self._stream = self._start(argv)
        if prompt is not None:
            # Only once it is known who reads: sudo, or Python because sudo did not ask.
            self._answer_sudo(prompt, deadline)
        self._send(frames)
        return self._answer(deadline)

    def _command(self) -> tuple[list[str], bytes | None]:
        """Return the command and, when a password may be asked for, the prompt to wait for."""
        connection = self.host.connection
        python = [
            *shlex.split(self._python or "python3"),
            *_PYTHON_FLAGS,
            "-c",
            _BOOTSTRAP.format(token=TOKEN),
        ]
        become = connection.become if connection.become is not None else not self._is_root
        if not become or (self._is_root and connection.become_user == "root"):
            return python, None
        if connection.become_method != "sudo":
            raise UnreachableError(
                "become.unsupported",
                f"become method {connection.become_method} is not supported",
                host=self.host.name,
                hint="use sudo (ansible_become_method: sudo), or log in as root",
            )
        # In sudo's own language, whatever the host's; env is there in every shell.
        sudo = ["env", "LC_ALL=C", *shlex.split(connection.become_exe), "-H", "-u", connection.become_user]
        if connection.become_password is None:
            return [*sudo, "-n", "--", *python], None
        prompt = f"[sudo {TOKEN}] password: "
        return [*sudo, "-S", "-p", prompt, "--", *python], prompt.encode()

    def _answer_sudo(self, prompt: bytes, deadline: float) -> None:
        password = self.host.connection.become_password or ""
        ready = f"\n{TOKEN}-ready\n".encode()
        asked = False
        while True:
            if ready in self._buffer:
                return
            if prompt in self._buffer:
                if asked:
                    self.close()
                    raise explain.wrong_password(self.host.name, self._user)
                asked = True
                self._buffer = self._buffer.replace(prompt, b"")
                self._send(password.encode() + b"\n")
            self._more(deadline)

    def _answer(self, deadline: float) -> dict[str, Any]:
        head = f"\n{TOKEN} ".encode()
        while True:
            at = self._buffer.find(head)
            if at >= 0:
                line, newline, rest = self._buffer[at + len(head) :].partition(b"\n")
                if newline and len(rest) >= int(line):
                    size = int(line)
                    self._buffer = rest[size:]
                    answer: dict[str, Any] = json.loads(zlib.decompress(rest[:size]))
                    return answer
            self._more(deadline)

    def _more(self, deadline: float) -> None:
        """Read more, or raise what the end of the program means."""
        stream = self._running()
        data = stream.recv(deadline - time.monotonic())
        if data:
            self._buffer += data
            return
        status = stream.status()
        text = self._text()
        ready = f"{TOKEN}-ready" in text
        stream.close()
        self._stream = None
        lost = self._lost(text, status)
        if lost is not None:
            raise lost
        if not ready:
            refused = explain.become_failed(text, host=self.host.name, user=self._user)
            if refused is not None:
                raise refused
            if explain.lacks_python(text) or status == 127:
                raise _NoPython(text)
        raise explain.ended(text.replace(f"{TOKEN}-ready", ""), status, host=self.host.name)

    def _send(self, data: bytes) -> None:
        try:
            self._running().send(data)
        except TimeoutError:
            raise
        except OSError:
            return  # it ended already; what it said is read next and explains it

    def _running(self) -> Stream:
        if self._stream is None:
            raise RuntimeError("no program runs in this session")
        return self._stream

    def _text(self) -> str:
        return self._buffer[-_NOISE:].decode("utf-8", "replace")

    def _find_python(self, deadline: float) -> str:
        stream = self._start(["sh", "-c", _FIND_PYTHON])
        text = b""
        try:
            while data := stream.recv(deadline - time.monotonic()):
                text += data
            status = stream.status()
        finally:
            stream.close()
        if status != 0 or not text.strip():
            raise self._no_python(text.decode("utf-8", "replace"))
        return text.decode("utf-8", "replace").split("\n")[-2].strip()

    def _no_python(self, text: str) -> ProvisionError:
        wanted = self.host.connection.python
        return HostFailedError(
            "host.no_python",
            f"there is no Python at {wanted} (ansible_python_interpreter)"
            if wanted
            else "there is no Python 3",
            host=self.host.name,
            because=explain.tail(text),
            hint="on the host: apt-get install python3-minimal; a Python elsewhere: ansible_python_interpreter",
        )


class _NoPython(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
