"""A session with a host: one Python process there that answers calls, as root where that is wanted.

How it goes: ``python3 -c BOOTSTRAP`` prints the token and the number of its bytecode, reads one frame (the server,
compressed) and runs it. It, and what a call imports there, is sent as bytecode where that is the controller's own, else as sources.
Then frames go both ways on the same channel: a decimal length, a newline, zlib data with JSON inside. Answers have the
token before the length, so that anything a login shell or sudo prints is recognised.

Nothing is written to the host, and no secret is ever part of a command: a password goes to the stdin of sudo or su,
and only after it has asked.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Callable
from importlib.util import MAGIC_NUMBER
from typing import Any, Protocol

from provision.errors import HostFailedError, ProvisionError, UnreachableError
from provision.inventory import Host
from provision.lib import load
from provision.remote import answers, become, bundle, explain, shapes
from provision.remote.stream import Stream

# No single quotes and no exclamation mark: every login shell takes it inside single quotes.
_BOOTSTRAP = (
    'import sys,zlib;m=sys.modules.get("_frozen_importlib_external");m=getattr(m,"MAGIC_NUMBER",b"").hex();o=sys.stdout;'
    'o.write("\\n{token}-ready "+m+"\\n");o.flush();b=sys.stdin.buffer;'
    "exec(zlib.decompress(b.read(int(b.readline()))).decode())"
)
# -I: no surprises from the environment; -S: no site-packages, only the standard library is used; -B: leaves no files.
_PYTHON_FLAGS = ("-I", "-S", "-B")
_FIND_PYTHON = (
    "for p in python3 /usr/bin/python3 /usr/local/bin/python3 /usr/libexec/platform-python /opt/python/bin/python3; "
    "do command -v $p && exit 0; done; exit 127"
)
_PATH = re.compile(r"/[A-Za-z0-9._/+-]{1,200}")
# One for the whole process: the frames are then the same for every host and made once.
TOKEN = "gpu-provision-" + secrets.token_hex(8)
# Programs that end what takes too long by themselves, and say it better: apt's refresh of the lists has 300 s there.
_AT_LEAST = {"apt.query": 360.0}
_HINTS = {
    "apt.query": "does a repository or a name server of that host not answer? apt-get update there says which one it waits for"
}
# A host that sends while we send is listened to in between: it may wait for that.
_SEND_SECONDS = 0.1


class Session(Protocol):
    """A host that can be asked."""

    host: Host

    def call(self, module: str, args: dict[str, Any], *, timeout: float = 60) -> Any:
        """Run ``plugins/module_utils/<module>.py``'s main(args) on the host and return its result.

        timeout counts from now to the answer, whether the host is silent or not, and is longer while this machine is busy, and
        for a program that ends by itself what takes too long (apt.query).
        UnreachableError: no session (network, host key, login, sudo). HostFailedError: it failed, took too long (host.timeout)
        or sent no answer (host.bad_answer).
        """
        ...

    def close(self) -> None: ...


class ProgramSession:
    """A Session over anything that can start a command.

    start: takes the argument list of a command and returns its Stream (raises UnreachableError).
    user: who logs in, for messages and to know whether root already exists.
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
        self._known: set[tuple[str, str]] = set()
        self._takes_code = False
        self._incoming = answers.Incoming(TOKEN)
        self._python: str | None = host.connection.python
        self._broken: ProvisionError | None = None

    def call(self, module: str, args: dict[str, Any], *, timeout: float = 60) -> Any:
        if self._broken is not None:
            # a caller that cleans up after a failure sees the failure, not its echo
            raise self._broken
        timeout = load.stretched(max(timeout, _AT_LEAST.get(module, 0)))
        deadline = time.monotonic() + timeout
        try:
            answer = self._ask(module, args, timeout, deadline)
            found = answers.result(answer, self.host.name)
            shapes.check(module, args, found)
            return found
        except TimeoutError as error:
            raise self._end(
                HostFailedError(
                    "host.timeout",
                    f"no answer from the program on the host within {timeout:.0f} s ({module})",
                    host=self.host.name,
                    because=[load.described()],
                    hint=_HINTS.get(module, "is the host overloaded, or does a disk or a GPU command hang there?"),
                )
            ) from error
        except answers.BadAnswer as error:
            # Nothing more is read from such a host: what it sends next may be worse.
            text = explain.tail(self._incoming.text())
            raise self._end(
                answers.error(self.host.name, f"{error} ({module})", [f"it sent: {line}" for line in text])
            ) from error
        except UnreachableError as error:
            self._broken = error
            raise

    def _end(self, error: ProvisionError) -> ProvisionError:
        self.close()
        self._broken = error
        return error

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._on_close()

    def _ask(self, module: str, args: dict[str, Any], timeout: float, deadline: float) -> Any:
        if self._stream is not None:
            self._incoming.forget()
            self._send(bundle.request(module, args, timeout, self._known, self._takes_code), deadline)
            return self._answer(deadline)
        try:
            return self._first(module, args, timeout, deadline)
        except _NoPython as error:
            if self.host.connection.python is not None or self._python is not None:
                raise self._no_python(error.text) from None
            self._python = self._find_python(deadline)
            try:
                return self._first(module, args, timeout, deadline)
            except _NoPython as again:
                raise self._no_python(again.text) from None

    def _first(self, module: str, args: dict[str, Any], timeout: float, deadline: float) -> Any:
        """Start the server, with sudo's question answered where there is one, and return the first answer."""
        argv, prompt = self._command()
        self._incoming = answers.Incoming(TOKEN)
        self._stream = self._start(argv)
        # Nothing is sent before it is known who reads: sudo, or Python because sudo did not ask; and which Python.
        bytecode = self._wait(prompt, deadline)
        self._known.clear()
        self._takes_code = bytecode == MAGIC_NUMBER.hex().encode()
        request = bundle.request(module, args, timeout, self._known, self._takes_code)
        self._send(bundle.server(TOKEN, self._takes_code) + request, deadline)
        return self._answer(deadline)

    def _command(self) -> tuple[list[str], bytes | None]:
        """Return the command and, when a password may be asked for, the prompt to wait for."""
        connection = self.host.connection
        python = [*shlex.split(self._python or "python3"), *_PYTHON_FLAGS, "-c", _BOOTSTRAP.format(token=TOKEN)]
        wanted = connection.become if connection.become is not None else not self._is_root
        if not wanted or (self._is_root and connection.become_user == "root"):
            return python, None
        return become.command(self.host.name, connection, python)

    def _wait(self, prompt: bytes | None, deadline: float) -> bytes:
        """Wait for Python, and answer what asks for a password first; return the number of its bytecode."""
        password = self.host.connection.become_password
        asked = False
        while (bytecode := self._incoming.ready()) is None:
            if prompt is not None and self._incoming.take(prompt):
                if password is None:
                    self.close()
                    raise explain.password_needed(self.host.name, self._user, self.host.connection.become_method)
                if asked:
                    self.close()
                    raise explain.wrong_password(self.host.name, self._user)
                asked = True
                self._send(password.encode() + b"\n", deadline)
            else:
                self._more(deadline)
        return bytecode

    def _answer(self, deadline: float) -> Any:
        while (frame := self._incoming.frame()) is None:
            self._more(deadline)
        return answers.unpack(frame)

    def _more(self, deadline: float) -> None:
        """Read more, or raise what the end of the program means."""
        stream = self._running()
        data = stream.recv(_left(deadline))
        if data:
            self._incoming.add(data)
            return
        status = stream.status()
        text = self._incoming.text()
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
        raise explain.ended(re.sub(f"{TOKEN}-ready[ 0-9a-f]*", "", text), status, host=self.host.name)

    def _send(self, data: bytes, deadline: float) -> None:
        """Send, and take what arrives meanwhile where the host does not read on."""
        stream, rest = self._running(), memoryview(data)
        while rest:
            seconds = min(_SEND_SECONDS, _left(deadline))
            try:
                rest = rest[stream.send(rest, seconds) :]
            except TimeoutError:
                # Its end, and an answer to what it has not read, are judged where answers are.
                if self._incoming.complete():
                    return
                try:
                    more = stream.recv(0)
                except TimeoutError:
                    continue
                self._incoming.add(more)
                if not more:
                    return
            except OSError:
                # it ended already; what it said is read next and explains it
                return

    def _running(self) -> Stream:
        if self._stream is None:
            raise RuntimeError("no program runs in this session")
        return self._stream

    def _find_python(self, deadline: float) -> str:
        stream = self._start(["sh", "-c", _FIND_PYTHON])
        said = bytearray()
        try:
            while data := stream.recv(_left(deadline)):
                said += data
                if len(said) > answers.NOISE:
                    raise answers.BadAnswer(f"more than {answers.NOISE >> 10} KiB came before it")
            status = stream.status()
        finally:
            stream.close()
        text = said.decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if status != 0 or not lines:
            raise self._no_python(text)
        if not _PATH.fullmatch(lines[-1]):
            raise answers.BadAnswer("the path of its Python is none")
        return lines[-1]

    def _no_python(self, text: str) -> ProvisionError:
        wanted = self.host.connection.python
        return HostFailedError(
            "host.no_python",
            f"there is no Python at {wanted} (ansible_python_interpreter)" if wanted else "there is no Python 3",
            host=self.host.name,
            because=explain.tail(text),
            hint="on the host: apt-get install python3-minimal; a Python elsewhere: ansible_python_interpreter",
        )


def _left(deadline: float) -> float:
    """Seconds that are left; TimeoutError when there are none, however much a host is sending."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


class _NoPython(Exception):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
