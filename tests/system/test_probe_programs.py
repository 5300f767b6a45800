"""What the probe asks of programs, with real ones: answers, failures, hangs, and programs that are not there."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.conda import marker as conda_marker
from ansible_collections.gpu.provision.plugins.module_utils.containers import daemon_flags
from ansible_collections.gpu.provision.plugins.module_utils.containers import host as containers_host
from ansible_collections.gpu.provision.plugins.module_utils.lib import outputs
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import boot_diagnostics
from ansible_collections.gpu.provision.plugins.module_utils.prove import container as prove_container
from ansible_collections.gpu.provision.plugins.module_utils.prove import program as prove_program
from provision.collection import ROOT
from tests.lab import kofile
from tests.unit.test_probe_kmod import OPEN

PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}


def test_a_program_that_hangs_is_given_up(tmp_path, monkeypatch):
    program = tmp_path / "dmesg"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(boot_diagnostics, "TIMEOUT", 0.3)
    started = time.monotonic()
    assert boot_diagnostics._asker(HostTree("/"), None)(["dmesg"]) is None
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "start",
    [
        lambda program: boot_diagnostics._asker(HostTree("/"), None)([program]),
        lambda program: containers_host.start([program], 0.3),
        lambda program: prove_container.run([program], 0.3, dict(os.environ)),
        lambda program: prove_program.run([program], 0.3, 1000),
        lambda program: outputs.Output(subprocess.Popen([program], **PIPES)).end(0.3, grace=0.1),
    ],
    ids=["a log", "a container tool", "a container", "a site's check", "apt, conda, a reset"],
)
def test_what_left_the_session_of_a_program_that_hangs_is_not_waited_for(start, tmp_path, monkeypatch):
    program = tmp_path / "dmesg"
    apart = f"echo $$ > {tmp_path}/pid; sleep 20; touch {tmp_path}/over"
    program.write_text(f"#!/bin/sh\nsetsid sh -c '{apart}' &\nwait\n")
    program.chmod(0o755)
    monkeypatch.setattr(boot_diagnostics, "TIMEOUT", 0.3)
    monkeypatch.setattr(outputs, "LAST_S", 0.1)
    start(str(program))
    assert not (tmp_path / "over").exists(), "it holds the program's outputs, and lives"
    os.killpg(int((tmp_path / "pid").read_text()), signal.SIGKILL)


class InTheDriver(subprocess.Popen):
    """A stand-in for a program that no signal ends: nobody sees its end within a time."""

    def wait(self, timeout=None):
        if timeout is None:
            return super().wait()
        raise subprocess.TimeoutExpired(self.args, timeout)


def test_a_program_that_no_signal_ends_is_left_to_the_driver(monkeypatch):
    monkeypatch.setattr(outputs, "LAST_S", 0.1)
    process = InTheDriver(["sh", "-c", "echo begun; exec sleep 60"], **PIPES)
    assert outputs.Output(process).end(0.3, grace=0.1) == (b"begun\n", b"", True)
    assert process.returncode == -signal.SIGKILL


def test_a_program_that_is_not_there_is_no_error():
    assert boot_diagnostics._asker(HostTree("/"), None)(["no-such-program-here"]) is None


def test_sockets_and_programs() -> None:
    assert containers_host.start(["/nonexistent"])[0] == 127
    assert containers_host.start(["sh", "-c", "sleep 5"], 0.2)[0] == 124
    rc, out, err = containers_host.start(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (rc, out, err) == (3, "out\n", "err\n")
    program, flags = daemon_flags.parse(
        [("dockerd", "x"), ("-H", "x"), ("unix:///a", "x"), ("--debug", "x"), ("rest", "x")]
    )
    assert (program, [flag.key for flag in flags]) == ("dockerd", ["hosts", "debug"])


def test_library_path_leaves_no_empty_element(tmp_path):
    """An empty element of LD_LIBRARY_PATH is the current folder."""
    scripts = dict(conda_marker.library_path_scripts(str(tmp_path)))
    activate, deactivate = sorted(scripts)
    for path, text in scripts.items():
        Path(path).parent.mkdir(parents=True)
        Path(path).write_text(text)
    for before in ("", "/a:/b"):
        out = subprocess.run(
            [
                "sh",
                "-euc",
                '. "$0"; echo "$LD_LIBRARY_PATH"; . "$1"; echo "${LD_LIBRARY_PATH-unset}"',
                activate,
                deactivate,
            ],
            check=True,
            capture_output=True,
            text=True,
            env={"CONDA_PREFIX": "/e", "PATH": os.environ["PATH"], **({"LD_LIBRARY_PATH": before} if before else {})},
        )
        assert out.stdout.split() == ["/e/lib:" + before if before else "/e/lib", before or "unset"]


def test_large_files_are_not_read_whole(tmp_path):
    path = tmp_path / "nvidia.ko"
    path.write_bytes(kofile.build(OPEN))
    # sparse
    os.truncate(path, 400_000_000)
    code = (
        "import re, sys\n"
        f"sys.path.insert(0, {str(ROOT / '.collections')!r})\n"
        "from ansible_collections.gpu.provision.plugins.module_utils.lib import kmod as kmod\n"
        f"assert kmod.info({str(path)!r})['version'] == '580.65.06'\n"
        # Not getrusage: its maximum counts the memory of the process that forked this one.
        "print(re.search(r'VmHWM:\\s+([0-9]+)', open('/proc/self/status').read()).group(1))"
    )
    used = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(used) < 100_000
