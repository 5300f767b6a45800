"""Children that run checks: every way in which one can end, with real processes."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job

JOBS = """
import ctypes, os, signal, subprocess, sys, time
def answer(args, say):
    say("half way")
    print("noise")
    return {"got": args, "path": os.environ.get("LD_LIBRARY_PATH"), "cwd": os.getcwd()}
def hang(args, say):
    say("waiting for nothing")
    child = subprocess.Popen(["sleep", "300"])
    open(args["pid"], "w").write(str(child.pid))
    time.sleep(300)
def crash(args, say):
    say("before the crash")
    ctypes.string_at(0)
def leave(args, say):
    print("last words")
    sys.stdout.flush()
    os._exit(7)
def scribble(args, say):
    for fd in range(3, 12):
        try:
            os.write(fd, b"this is no JSON\\n[1]\\n")
        except OSError:
            pass
    return {"fine": True}
def load(args, say):
    ctypes.CDLL("libthere-is-no-such.so.1")
def eat(args, say):
    kept = bytearray(600 << 20)
    time.sleep(30)
def refuse(args, say):
    error = RuntimeError("no")
    error.code, error.name = 222, "cuModuleLoadData"
    raise error
def big(args, say):
    print("x" * 200000)
    return {"text": "y" * 300000}
def dump(args, say):
    import resource
    return {"core": resource.getrlimit(resource.RLIMIT_CORE)[0], "score": open("/proc/self/oom_score_adj").read().strip()}
"""


@pytest.fixture
def job(monkeypatch):
    monkeypatch.setattr(prove_job, "sources", lambda module: {"jobs": JOBS})
    return lambda function, args=None, **more: prove_job.Job("jobs", function, args, **{"timeout_s": 20, **more})


def test_an_answer_comes_back_apart_from_what_is_printed(job):
    env = prove_job.clean_environment("/opt/some lib")
    outcome = prove_job.run(job("answer", {"a": [1, "é"]}, env=env))
    assert outcome.ok
    assert outcome.result == {"got": {"a": [1, "é"]}, "path": "/opt/some lib", "cwd": "/"}
    assert (outcome.at, outcome.lines()) == ("half way", ["noise"])
    assert 0 < outcome.seconds < 20


def test_a_hang_ends_with_everything_that_it_started(job, tmp_path):
    started = time.monotonic()
    outcome = prove_job.run(job("hang", {"pid": str(tmp_path / "pid")}, timeout_s=4.0))
    assert time.monotonic() - started < 30
    assert (outcome.status, outcome.at) == ("timeout", "waiting for nothing")
    assert "4 s" in outcome.message
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat").read_text()
        if state.rsplit(")", 1)[1].split()[0] == "Z":
            # dead, and waited for by init only where there is one
            break
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("function", "status", "words"),
    [
        ("crash", "killed", "SIGSEGV"),
        ("leave", "garbage", "exit code 7"),
        ("load", "error", "libthere-is-no-such.so.1"),
        ("refuse", "error", "RuntimeError: no"),
    ],
)
def test_ways_to_fail(job, function, status, words):
    outcome = prove_job.run(job(function))
    assert outcome.status == status
    assert words in outcome.message
    assert not outcome.ok


def test_what_was_printed_before_the_end_is_kept(job):
    assert prove_job.run(job("leave")).lines() == ["last words"]


def test_a_code_of_cuda_comes_back(job):
    outcome = prove_job.run(job("refuse"))
    assert (outcome.code, outcome.name) == (222, "cuModuleLoadData")


def test_lines_that_are_not_ours_do_no_harm(job):
    outcome = prove_job.run(job("scribble"))
    assert outcome.ok
    assert outcome.result == {"fine": True}


def test_memory_is_bounded(job):
    outcome = prove_job.run(job("eat", memory=200 << 20))
    assert outcome.status == "memory"
    assert outcome.seconds < 15


def test_large_answers_and_much_noise(job):
    outcome = prove_job.run(job("big"))
    assert len(outcome.result["text"]) == 300000
    assert len(outcome.output) <= prove_job.KEPT


def test_no_core_is_dumped_and_this_dies_first(job):
    assert prove_job.run(job("dump")).result == {"core": 0, "score": "1000"}


def test_an_interpreter_that_cannot_start(job, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("not a program")
    broken.chmod(0o755)
    for path in (broken, tmp_path / "absent"):
        outcome = prove_job.run(job("answer", python=str(path)))
        assert outcome.status == "unstartable"
        assert str(path) in outcome.message
    script = tmp_path / "silent"
    script.write_text("#!/bin/sh\nexit 3\n")
    script.chmod(0o755)
    assert prove_job.run(job("answer", python=str(script))).status == "garbage"


def test_side_by_side(job):
    started = time.monotonic()
    outcomes = prove_job.run_all([job("hang", {"pid": "/dev/null"}, timeout_s=1.5), job("answer"), job("crash")])
    assert [outcome.status for outcome in outcomes] == ["timeout", "ok", "killed"]
    assert time.monotonic() - started < 8


def test_an_interpreter_that_hangs_before_it_reads_is_given_up(job, tmp_path):
    """A request that no pipe holds, and a wrapper on a disk that does not answer."""
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\nexec sleep 20\n")
    python.chmod(0o755)
    outcome = prove_job.run(job("answer", {"a": "x" * 200_000}, python=str(python), timeout_s=2))
    assert outcome.status == "timeout", outcome.message
    whole = prove_job.run(job("answer", {"a": "x" * 200_000}))
    assert whole.result["got"]["a"] == "x" * 200_000


def test_descriptors_and_children_do_not_pile_up(job):
    def here():
        # man proc_pid_status; what else this process has started stays as it is
        children = 0
        for path in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                children += f"\nPPid:\t{os.getpid()}\n" in path.read_text()
        return len(list(Path("/proc/self/fd").iterdir())), children

    before = here()
    for _ in range(3):
        prove_job.run_all([job("answer"), job("leave")])
    assert here() == before


def test_the_environment_of_a_child_is_known(monkeypatch):
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "/somewhere")
    env = prove_job.clean_environment()
    assert not {"LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "CUDA_VISIBLE_DEVICES"} & set(env)
    assert env["CUDA_CACHE_DISABLE"] == "1"
    assert prove_job.clean_environment("", {"NCCL_DEBUG": "WARN"})["NCCL_DEBUG"] == "WARN"


def test_sources_are_those_that_are_imported():
    assert set(prove_job.sources("prove.cudnn")) >= {"prove.cudnn", "prove.cuda", "prove.framework", "prove.library"}
    assert set(prove_job.sources("prove.compile")) == {"prove.compile"}
    assert "def survey" in prove_job.sources("prove.cuda")["prove.nvml"]


CALLER = """
import sys, time
sys.path.insert(0, {root!r})
import provision.collection
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as proverun
proverun.sources = lambda module: {{"jobs": {jobs!r}}}
with proverun.signals_end_cleanly(), proverun.Folder() as folder:
    print(folder, flush=True)
    proverun.run(proverun.Job("jobs", "hang", {{"pid": {pid!r}}}, timeout_s=60))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_caller_that_dies_takes_its_children_with_it(tmp_path, number, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pid = tmp_path / "pid"
    root = str(prove_job.__file__).split("/.collections/")[0].split("/plugins/")[0]
    text = textwrap.dedent(CALLER).format(root=root, jobs=JOBS, pid=str(pid))
    caller = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    folder = Path(caller.stdout.readline().strip())
    assert folder.is_dir()
    deadline = time.monotonic() + 15
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    inner = int(pid.read_text())
    parent = int(Path(f"/proc/{inner}/stat").read_text().rsplit(")", 1)[1].split()[1])
    caller.send_signal(number)
    assert caller.wait(15) == -number
    deadline = time.monotonic() + 5
    while Path(f"/proc/{parent}/fd/0").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{parent}/fd/0").exists(), "the child that ran the job has ended"
    if number == signal.SIGTERM:
        assert not folder.exists()
    else:
        # Nobody could remove it: the next run does.
        assert folder.is_dir()
        with prove_job.Folder() as next_folder:
            assert Path(next_folder).is_dir()
        assert not folder.exists()
    if Path(f"/proc/{inner}").exists():
        os.kill(inner, signal.SIGKILL)


def test_a_folder_goes_also_after_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with pytest.raises(ValueError, match="on purpose"), prove_job.Folder() as folder:
        Path(folder, "file").touch()
        raise ValueError("on purpose")
    assert list(tmp_path.iterdir()) == []
