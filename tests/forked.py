"""Starts our programs from processes that have loaded them: the command takes 0.7 processor seconds to load, a fork 0.02.

A program has its own process, environment, folder, input, outputs and exit status, as one that a person started. Only its name
in a list of processes is another: what is found by its name, or is sent a signal, is started in the usual way.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Programs of their own, beside those whose names begin with an underscore.
APART = ("dump", "playbook")
# What the reader of inventories needs of Ansible and has no settings in it: those are read as ansible.constants is loaded, by each
# reader for itself.
WITHOUT_SETTINGS = (
    "ansible.config.manager",
    "ansible.errors",
    "ansible.module_utils.common.yaml",
    "cryptography.hazmat.primitives.ciphers",
    "cryptography.hazmat.primitives.hmac",
    "cryptography.hazmat.primitives.kdf.pbkdf2",
    "cryptography.hazmat.primitives.padding",
    "jinja2.nativetypes",
)


class Fork:
    """A process that was forked as a program of ours, with what of ``subprocess.Popen`` those ask for who start it."""

    def __init__(
        self, program: str, words: Sequence[str], env: Mapping[str, str], cwd: Path, *, asked: bool = False
    ) -> None:
        """asked: it reads what is written to stdin, else that is empty."""
        self._outputs = [tempfile.TemporaryFile(), tempfile.TemporaryFile()]  # noqa: SIM115 - closed in communicate
        self._line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read, write = os.pipe() if asked else (os.open(os.devnull, os.O_RDONLY), None)
        self.stdin = None if write is None else os.fdopen(write, "w", encoding="utf-8")
        request = json.dumps({"words": list(words), "env": dict(env), "cwd": str(cwd)}).encode()
        socket.send_fds(_server(program), [request], [read, *(file.fileno() for file in self._outputs), its.fileno()])
        os.close(read)
        its.close()
        self.pid = int(self._line.recv(64))
        self.returncode: int | None = None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, *_: object) -> None:
        self.communicate()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return what it wrote to its two outputs, when it has ended; subprocess.TimeoutExpired where that takes longer."""
        self._line.settimeout(timeout)
        try:
            self.returncode = os.waitstatus_to_exitcode(int(self._line.recv(64)))
        except TimeoutError as error:
            raise subprocess.TimeoutExpired("a program of ours", timeout or 0) from error
        self._line.close()
        texts = []
        for file in self._outputs:
            file.seek(0)
            texts.append(file.read().decode())
            file.close()
        return texts[0], texts[1]


def run(words: Sequence[str], env: Mapping[str, str], cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run ``provision`` with these words, as ``subprocess.run`` would with its output as text."""
    fork = Fork("command", words, env, cwd)
    try:
        out, err = fork.communicate(timeout)
    except subprocess.TimeoutExpired:
        fork.kill()
        fork.communicate()
        raise
    return subprocess.CompletedProcess(list(words), fork.returncode or 0, out, err)


def reader() -> Fork:
    """Start a reader of inventories, in place of ``provision.inventory._read``."""
    from provision.lib import scratch

    env = {**os.environ, "ANSIBLE_LOCAL_TEMP": str(scratch.folder())}
    return Fork("reader", [], env, Path.cwd(), asked=True)


@cache
def _server(program: str) -> socket.socket:
    """Our end of the line to the process that forks; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-P", "-m", "tests.forked", program, str(its.fileno())]
    subprocess.Popen(argv, cwd=ROOT, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
    its.close()
    return ours


def serve(line: socket.socket) -> None:
    """Fork for each request; of the two that are forked, one returns from here as the program, the other tells how that ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        asked, files, _, _ = socket.recv_fds(line, 1 << 20, 4)
        if not asked:
            os._exit(0)
        if not os.fork():
            break
        for file in files:
            os.close(file)
    line.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, answer = files
    if child := os.fork():
        for file in streams:
            os.close(file)
        with contextlib.suppress(BrokenPipeError), socket.socket(fileno=answer) as asks:
            asks.send(b"%d" % child)
            asks.send(b"%d" % os.waitpid(child, 0)[1])
        os._exit(0)
    os.close(answer)
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    request = json.loads(asked)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.argv = ["provision", *request["words"]]


def command() -> Callable[[], int]:
    """Load all that commands load, and return the command."""
    import provision
    from provision import inventory
    from provision.__main__ import main

    for module in pkgutil.walk_packages(provision.__path__, "provision."):
        name = module.name.rpartition(".")[2]
        if not name.startswith("_") and name not in APART:
            importlib.import_module(module.name)
    _server("reader")
    inventory._read = reader  # type: ignore[assignment]
    return main


def inventory_reader() -> Callable[[], int]:
    """Load what a reader of inventories needs whatever the settings are, and return the reader, which loads the rest."""
    for name in WITHOUT_SETTINGS:
        importlib.import_module(name)
    assert "ansible.constants" not in sys.modules
    spec = spec_from_file_location("dump", ROOT / "provision/inventory/dump.py")
    assert spec is not None and spec.loader is not None
    program = module_from_spec(spec)
    spec.loader.exec_module(program)
    main: Callable[[], int] = program.main
    return main


if __name__ == "__main__":
    gc.disable()
    main = {"command": command, "reader": inventory_reader}[sys.argv[1]]()
    gc.freeze()
    gc.enable()
    serve(socket.socket(fileno=int(sys.argv[2])))
    sys.exit(main())
