# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Run one job in a process of its own: a hang, a crash or a full memory there must not take the caller down.

A job is a function of a module of ours, ``function(args, say) -> dict``. The child is an interpreter started anew
(``-c``, a list, no shell), so that the dynamic loader sees the environment that is asked for; the sources reach it on
stdin, the answer comes on a pipe of its own as lines of JSON, and whatever libraries print goes to files without a
name. The child is bounded in time and in memory, and its whole process group ends with it. When the caller dies, the
kernel ends the child (PR_SET_PDEATHSIG).

Source of the rules: prctl(2), setrlimit(2), proc(5).
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import run_as, scratch
from ansible_collections.gpu.provision.plugins.module_utils.prove.outcome import Outcome

PACKAGE = "ansible_collections.gpu.provision.plugins.module_utils"
GIB = 1 << 30
# How much of what a child printed is kept as evidence.
KEPT = 6000
# Of an answer, which may come from another user's program.
_MOST_PENDING = 4 << 20
# Variables that a child gets which becomes another user.
_PASSED = ("PATH", "LANG", "LC_ALL", "TZ")
FOLDER_PREFIX = scratch.PREFIX + "prove-"

# Starts on the host's interpreter or on one that is judged: Python 3.6 syntax, nothing but the standard library.
BOOT = r"""
import ctypes, importlib, importlib.machinery, json, os, signal, sys
request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != request["parent"]:
    os._exit(3)
PACKAGE, SOURCES = request["package"], request["sources"]
class Finder(object):
    def find_spec(self, name, path=None, target=None):
        short = name[len(PACKAGE) + 1:] if name.startswith(PACKAGE + ".") else ""
        package = (PACKAGE + ".").startswith(name + ".") or short and any(s.startswith(short + ".") for s in SOURCES)
        if package or short in SOURCES:
            return importlib.machinery.ModuleSpec(name, self, is_package=bool(package))
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        short = module.__name__[len(PACKAGE) + 1:]
        if short in SOURCES:
            exec(compile(SOURCES[short], "<%s.py>" % short, "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
out = os.fdopen(request["fd"], "w")
def say(**line):
    out.write(json.dumps(line) + "\n")
    out.flush()
try:
    module = importlib.import_module(PACKAGE + "." + request["module"])
    say(result=getattr(module, request["function"])(request["args"], lambda words: say(at=words)))
except Exception as error:
    from traceback import extract_tb
    where = ["%s:%s in %s" % (f[0].strip("<>"), f[1], f[2]) for f in extract_tb(sys.exc_info()[2])[-2:]]
    say(error={"type": type(error).__name__, "message": str(error), "where": where,
               "code": getattr(error, "code", None), "name": getattr(error, "name", None)})
out.close()
# Libraries that crash while they are unloaded would spoil an answer that is already given.
sys.stdout.flush()
os._exit(0)
"""


class Job(object):
    """What to run and how far it may go.

    module, function: names below module_utils; args: what JSON can carry. env: the whole environment of the child.
    python: interpreter, ours by default. timeout_s: seconds. memory: bytes of resident memory of the whole group.
    user: (uid, gid, home) to become, or None. isolated: without the user's own modules and PYTHON variables.
    """

    def __init__(
        self,
        module,
        function,
        args=None,
        env=None,
        python=None,
        timeout_s=60.0,
        memory=8 * GIB,
        user=None,
        isolated=True,
        cwd="/",
    ):
        self.module, self.function, self.args = module, function, args or {}
        self.env = clean_environment() if env is None else env
        self.python, self.timeout_s, self.memory, self.user = python, timeout_s, memory, user
        self.isolated, self.cwd = isolated, cwd


def clean_environment(library_path=None, more=None):
    """Return the environment of a child: the caller's, without what would change which libraries load or what CUDA sees.

    library_path: LD_LIBRARY_PATH to set, None for none. more: dict that is added last.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES") and not name.startswith("PYTHON")
    }
    env.update(
        LC_ALL="C.UTF-8",
        PYTHONDONTWRITEBYTECODE="1",
        # no ~/.nv/ComputeCache is left behind
        CUDA_CACHE_DISABLE="1",
        # as nvidia-smi counts
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
    )
    if library_path:
        env["LD_LIBRARY_PATH"] = library_path
    env.update(more or {})
    return env


def run(job):
    """Run one job and return its Outcome. Raises nothing for what the child does."""
    return run_all([job])[0]


def run_all(jobs):
    """Run jobs side by side and return their Outcomes in the same order; all have ended when this returns."""
    children = []
    try:
        for job in jobs:
            children.append(_Child(job))
        waiting = [child for child in children if not child.finished]
        while waiting:
            _wait(waiting)
            waiting = [child for child in waiting if not child.finished]
        return [child.outcome for child in children]
    finally:
        for child in children:
            child.end()


class _Child(object):
    def __init__(self, job):
        self.job, self.outcome, self.answer, self.at = job, None, None, None
        self.started = time.monotonic()
        self.looked = 0.0
        self.pending = b""
        # what is not sent yet
        self.asked = b""
        self.printed = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by end()
        self.reader, writer = os.pipe()
        try:
            python = job.python or sys.executable
            self.process = subprocess.Popen(
                [python, "-I", "-B", "-c", BOOT] if job.isolated else [python, "-c", BOOT],
                stdin=subprocess.PIPE,
                stdout=self.printed,
                stderr=self.printed,
                env=_own_environment(job),
                pass_fds=[writer],
                cwd=job.cwd,
                start_new_session=True,
                preexec_fn=_limits(job.user),
            )
        except (OSError, subprocess.SubprocessError) as error:
            self.process = None
            self._finish("unstartable", "%s: %s" % (job.python or sys.executable, error))
            return
        finally:
            os.close(writer)
        request = json.dumps(
            {
                "module": job.module,
                "function": job.function,
                "args": job.args,
                "fd": writer,
                "package": PACKAGE,
                "sources": sources(job.module),
                "parent": os.getpid(),
            }
        ).encode("utf-8")
        # A pipe holds 64 KiB: more has to wait until it reads, and it may hang before that.
        os.set_blocking(self.process.stdin.fileno(), False)
        self.asked = memoryview(request)
        self._ask()

    @property
    def finished(self):
        return self.outcome is not None

    def _ask(self):
        try:
            self.asked = self.asked[os.write(self.process.stdin.fileno(), self.asked) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            # It ended before it read: how, its exit status tells.
            self.asked = b""
        if not self.asked:
            self.process.stdin.close()

    def check(self, ready):
        """Send what is left, take what has come, and judge time and memory."""
        if self.asked:
            self._ask()
        if ready:
            self._read()
        if self.finished:
            return
        now = time.monotonic()
        if now - self.started > self.job.timeout_s:
            self._finish("timeout", "no answer within %g s" % self.job.timeout_s)
        elif now - self.looked > 0.5:
            self.looked = now
            used = group_memory(self.process.pid)
            if used > self.job.memory:
                self._finish(
                    "memory",
                    "took %.1f GiB of memory, more than the %.1f GiB it may have" % (used / GIB, self.job.memory / GIB),
                )

    def _read(self):
        data = os.read(self.reader, 65536)
        self.pending += data
        if len(self.pending) > _MOST_PENDING:
            self._finish("garbage", "answered more than %d MiB" % (_MOST_PENDING >> 20))
            return
        lines = self.pending.split(b"\n")
        self.pending = lines.pop()
        for line in lines:
            try:
                said = json.loads(line.decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                # not ours: something wrote to a descriptor that it does not own
                continue
            if isinstance(said, dict) and isinstance(said.get("at"), str):
                self.at = said["at"][:KEPT]
            elif isinstance(said, dict) and isinstance(said.get("result", said.get("error")), dict):
                self.answer = said
        if not data:
            self._ended()

    def _ended(self):
        left = max(0.1, self.started + self.job.timeout_s - time.monotonic())
        try:
            status = self.process.wait(min(left, 5.0))
        except subprocess.TimeoutExpired:
            if self.answer is None:
                self._finish("timeout", "it closed its answer and did not end")
                return
            status = 0
        answer = self.answer or {}
        if "result" in answer:
            self._finish("ok", None, result=answer["result"])
        elif "error" in answer:
            error = answer["error"]
            message = "%s: %s" % (error.get("type"), error.get("message"))
            if error.get("code") is None and isinstance(error.get("where"), list) and error["where"]:
                message += " (%s)" % error["where"][-1]
            self._finish("error", message, code=error.get("code"), name=error.get("name"))
        elif status < 0:
            self._finish("killed", "ended by signal %s" % _signal_name(-status))
        else:
            self._finish("garbage", "ended with exit code %d and without an answer" % status)

    def _finish(self, status, message, **more):
        seconds = time.monotonic() - self.started
        self.outcome = Outcome(status, seconds, message=message, at=self.at, **more)

    def end(self):
        """End the process group, whatever is left of it, and close what was opened."""
        if self.process is not None:
            _end_group(self.process)
            self.process.stdin.close()
        os.close(self.reader)
        if self.outcome is not None:
            size = os.fstat(self.printed.fileno()).st_size
            text = os.pread(self.printed.fileno(), KEPT, max(0, size - KEPT))
            self.outcome.output = text.decode("utf-8", "replace")
        self.printed.close()


def _wait(children):
    asked = [child.process.stdin for child in children if child.asked]
    ready, _, _ = select.select([child.reader for child in children], asked, [], 0.1)
    for child in children:
        child.check(child.reader in ready)
        if child.finished and child.process is not None:
            # A child that is over must not hold a card or memory while others still run.
            _end_group(child.process)


def _end_group(process):
    try:
        # The leader is a zombie until it is waited for, so that the number of the group cannot be another one's.
        if process.returncode is None or _group_lives(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    try:
        process.wait(5.0)
    except subprocess.TimeoutExpired:
        # In the driver, uninterruptible: it ends when the driver lets it go. There is nothing more to do from here.
        pass


def _group_lives(group):
    """True when processes of the session that a child opened are still there (its number is then not reused)."""
    return any(session == group for _, _, session in _processes())


def _processes():
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % name, "rb") as file:
                fields = file.read().rsplit(b")", 1)[1].split()
        except (OSError, IndexError):
            # it has ended
            continue
        yield int(name), int(fields[2]), int(fields[3])


def group_memory(group):
    """Resident memory of every process of a process group, in bytes. GPU memory does not count, mapped files do."""
    total, page = 0, os.sysconf("SC_PAGE_SIZE")
    for pid, pgrp, _ in _processes():
        if pgrp != group:
            continue
        try:
            with open("/proc/%d/statm" % pid, "rb") as file:
                total += int(file.read().split()[1]) * page
        except (OSError, IndexError):
            continue
    return total


def _own_environment(job):
    """The environment of a job. What becomes another user gets none of the caller's variables: they may hold secrets."""
    if job.user is None:
        return job.env
    kept = {
        name: value
        for name, value in job.env.items()
        if os.environ.get(name) != value or name in _PASSED or name.startswith(("CUDA_", "NCCL_"))
    }
    return dict(kept, HOME=job.cwd if job.user[2] == "/" else job.user[2])


def _limits(user):
    groups = [] if user is None else run_as.groups(user)

    def before_exec():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        # CUDA reserves address space by the terabyte: RLIMIT_AS would stop it, so the caller watches what is resident.
        _soften(resource.RLIMIT_FSIZE, 2 * GIB)
        with open("/proc/self/oom_score_adj", "w") as file:
            # if memory runs out, this goes first
            file.write("1000")
        if user is not None:
            run_as.become(user, groups)

    return before_exec


def _soften(kind, most):
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


# --- sources -----------------------------------------------------------------------------------------------


def sources(module):
    """Return {name: text} of a module of ours and of those that it imports at its top."""
    import re

    found, todo = {}, [module]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        full = PACKAGE + "." + name
        __import__(full)
        spec = sys.modules[full].__spec__
        text = spec.loader.get_source(full)
        found[name] = text
        pattern = r"^from %s(?:\.([\w.]+))? import (?:\(([^)]*)\)|([^\n]*))" % re.escape(PACKAGE)
        for base, many, one in re.findall(pattern, text, re.M):
            listed = re.sub(r"#[^\n]*", "", many or one)
            for part in filter(None, [part.split(" as ")[0].strip() for part in listed.split(",")]):
                inner = base + "." + part if base else part
                todo.append(inner if PACKAGE + "." + inner in sys.modules else base)
    return found


# --- folders -----------------------------------------------------------------------------------------------


class Folder(scratch.Folder):
    """A folder of ours where programs may run, removed when left, also by an error or a signal."""

    def __init__(self, uid=None):
        scratch.Folder.__init__(self, "prove", executable_folder(), uid)


def executable_folder():
    """Return a folder for temporary files from which programs may be started: /tmp is mounted noexec on some hosts."""
    candidates = [os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/run", "/dev/shm"]  # noqa: S108
    usable = [path for path in candidates if path and os.access(path, os.W_OK | os.X_OK)]
    for path in usable:
        if not os.statvfs(path).f_flag & os.ST_NOEXEC:
            return path
    return usable[0] if usable else tempfile.gettempdir()


class Stopped(Exception):
    """A signal asked this process to end: what was opened is closed on the way out."""


class signals_end_cleanly(object):
    """Context in which SIGTERM and SIGHUP raise Stopped, so that children end and folders go; then they act as before."""

    def __enter__(self):
        self.got, self.before = None, {}
        for number in (signal.SIGTERM, signal.SIGHUP):
            try:
                self.before[number] = signal.signal(number, self._raise)
            except ValueError:
                # not the main thread: Python gives signals to that one only
                return self
        return self

    def _raise(self, number, frame):
        self.got = number
        raise Stopped("signal %s" % _signal_name(number))

    def __exit__(self, kind, error, trace):
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.got is not None:
            os.kill(os.getpid(), self.got)
        return False
