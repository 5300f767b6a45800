"""Starts our command from a process that has loaded it: to load it anew takes 0.7 processor seconds each time, a fork 0.02.

The command has its own process, environment, folder, input, outputs and exit status, as one that a person started. Only its
name in a list of processes is another: what is found by its name, or is sent a signal, is started in the usual way.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
# Programs of their own, beside those whose names begin with an underscore.
APART = ("dump", "playbook")
_one_at_a_time = threading.Lock()


def run(words: Sequence[str], env: Mapping[str, str], cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run ``provision`` with these words, as ``subprocess.run`` would with its output as text."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull) as nothing:
        with _one_at_a_time:
            server = _server()
            request = json.dumps({"words": list(words), "env": dict(env), "cwd": str(cwd)}).encode()
            socket.send_fds(server, [request], [nothing.fileno(), out.fileno(), err.fileno()])
            process = int(server.recv(64))
            server.settimeout(timeout)
            try:
                status = int(server.recv(64))
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                server.settimeout(None)
                server.recv(64)
                raise subprocess.TimeoutExpired(list(words), timeout) from None
            server.settimeout(None)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(list(words), os.waitstatus_to_exitcode(status), *texts)


@cache
def _server() -> socket.socket:
    """Our end of the line to the process that forks; it ends with this one."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = [sys.executable, "-m", "tests.forked", str(its.fileno())]
    subprocess.Popen(argv, cwd=ROOT, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL)
    its.close()
    return ours


def serve(line: socket.socket) -> None:
    """Fork for each request, and tell the number of the process and how it ended. A child returns from here as the command."""
    while True:
        asked, files, _, _ = socket.recv_fds(line, 1 << 20, 3)
        if not asked:
            os._exit(0)
        request = json.loads(asked)
        child = os.fork()
        if not child:
            break
        for file in files:
            os.close(file)
        with contextlib.suppress(BrokenPipeError):
            line.send(b"%d" % child)
            line.send(b"%d" % os.waitpid(child, 0)[1])
    line.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    os.chdir(request["cwd"])
    sys.argv = ["provision", *request["words"]]


def main() -> int:
    """Load all that commands load, wait to be forked, and be the command."""
    import gc

    import provision
    from provision.__main__ import main as command

    gc.disable()
    for module in pkgutil.walk_packages(provision.__path__, "provision."):
        name = module.name.rpartition(".")[2]
        if not name.startswith("_") and name not in APART:
            __import__(module.name)
    gc.freeze()
    gc.enable()
    serve(socket.socket(fileno=int(sys.argv[1])))
    return command()


if __name__ == "__main__":
    sys.exit(main())
