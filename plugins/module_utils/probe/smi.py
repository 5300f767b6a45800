# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ask nvidia-smi once, beside other work, and never wait for it longer than asked.

``nvidia-smi -q -x`` is the one call that has the driver's version, CUDA's version and every GPU. Exit codes
that were measured on real drivers: 9 no module, 18 library and module differ, 6 no devices.
"""

from __future__ import annotations

import os
import re
import signal
import time

ARGUMENTS = ["-q", "-x"]
_MOST_BYTES = 16 << 20
# What a sound card does not say Yes to (provision.parts.driver.verdict); older drivers have fewer.
FLAGS = (
    "sram_threshold_exceeded",
    "unrepairable_memory",
    "remapped_row_failure",
    "remapped_row_pending",
    "pending_retirement",
    "channel_repair_pending",
    "tpc_repair_pending",
)
FOLDERS = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/local/bin")


def find(tree):
    """Path of nvidia-smi as the host sees it, or None: PATH first (on a running host), then usual places."""
    path = os.environ.get("PATH", "").split(":") if tree.live else []
    for folder in list(path) + list(FOLDERS):
        if folder.startswith("/") and os.access(tree.real(folder + "/nvidia-smi"), os.X_OK):
            return folder.rstrip("/") + "/nvidia-smi"
    return None


def start(tree, run, timeout):
    """Start the query and return an object with result() -> facts.Smi as a dict, and abandon()."""
    path = find(tree)
    if run is not None:
        return _Injected(run, path, timeout)
    if path is None or not tree.live:
        return _Nothing(path)
    try:
        return Query(path, timeout)
    except OSError as error:
        # Of another architecture, damaged, no memory: the rest of the host is still worth reading.
        return _Nothing(path, "%s cannot be started: %s" % (path, error.strerror))


class _Nothing(object):
    def __init__(self, path, error=None):
        self.path, self.error = path, error

    def result(self):
        return dict(_empty(), path=self.path, error=self.error)

    def abandon(self):
        """Nothing was started."""


class _Injected(_Nothing):
    def __init__(self, run, path, timeout):
        _Nothing.__init__(self, path)
        self.run, self.timeout = run, timeout

    def result(self):
        if self.path is None:
            return _empty()
        rc, out, err = self.run([self.path] + ARGUMENTS, self.timeout)
        return parse(self.path, rc, out, err)


class Query(object):
    """A running nvidia-smi in its own process group; its output goes to memory, so it never waits for us."""

    def __init__(self, path, timeout):
        self.path, self.deadline = path, time.monotonic() + timeout
        self.out, self.err = _memory(), _memory()
        environment = dict(os.environ, LC_ALL="C")
        self.pid = os.posix_spawn(
            path,
            [path] + ARGUMENTS,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, self.out, 1),
                (os.POSIX_SPAWN_DUP2, self.err, 2),
            ],
            setpgroup=0,
            setsigdef=[signal.SIGPIPE, signal.SIGINT],
        )

    def result(self):
        """Wait until it ends or its time is over, and return facts.Smi as a dict."""
        pause, status = 0.001, None
        while status is None:
            done, value = os.waitpid(self.pid, os.WNOHANG)
            if done:
                status = value
            elif time.monotonic() >= self.deadline or self._writes_on():
                break
            else:
                time.sleep(pause)
                pause = min(pause * 1.5, 0.02)
        if status is None:
            self.abandon()
            return dict(
                _empty(), path=self.path, ran=True, timed_out=True, error="nvidia-smi did not end and was stopped"
            )
        out, err = _content(self.out), _content(self.err)
        rc = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        return parse(self.path, rc, out, err)

    def _writes_on(self):
        """More than hundreds of GPUs would have to say: it does not end."""
        return any(os.fstat(handle).st_size > _MOST_BYTES for handle in (self.out, self.err))

    def abandon(self):
        """Kill the group. What hangs in the driver may stay until that lets it go: it is not awaited."""
        # Not yet reaped, so the group is still there.
        os.killpg(self.pid, signal.SIGKILL)
        for _ in range(20):
            if os.waitpid(self.pid, os.WNOHANG)[0]:
                break
            time.sleep(0.005)
        for handle in (self.out, self.err):
            os.close(handle)


def parse(path, rc, out, err):
    """Turn exit code and output of ``nvidia-smi -q -x`` into facts.Smi as a dict."""
    result = dict(_empty(), path=path, ran=True, rc=rc)
    result["driver_version"] = _tag(out, "driver_version")
    result["cuda_version"] = _tag(out, "cuda_version")
    for index, part in enumerate(out.split('<gpu id="')[1:]):
        bus_id, _, body = part.partition("</gpu>")[0].partition('">')
        memory = re.search(r"<fb_memory_usage>\s*<total>\s*([0-9]{1,18})\s*MiB", body)
        persistence = _tag(body, "persistence_mode")
        result["gpus"].append(
            {
                "index": index,
                "name": _tag(body, "product_name") or "",
                "uuid": _tag(body, "uuid"),
                "bus_id": bus_id or None,
                "driver_version": result["driver_version"],
                "memory_mib": int(memory.group(1)) if memory else None,
                "persistence": {"Enabled": True, "Disabled": False}.get(persistence),
                "mig": _tag(body, "current_mig"),
                "mig_pending": _tag(body, "pending_mig"),
                "ecc": _tag(body, "current_ecc"),
                "virtualization": _tag(body, "virtualization_mode"),
                "license": _tag(body, "license_status"),
                "recovery": _tag(body, "gpu_recovery_action"),
                "flags": [name for name in FLAGS if "<%s>Yes</%s>" % (name, name) in body],
            }
        )
    if rc != 0 or not result["gpus"]:
        before, mark, log = out.partition("<?xml")
        words = before + (mark + log).rpartition("</nvidia_smi_log>")[2] + "\n" + err
        lines = [line.strip() for line in words.splitlines()]
        plain = [line for line in lines if line and not line.startswith("<")]
        result["error"] = " ".join(plain[:6]) or (
            "nvidia-smi lists no GPU" if rc == 0 else "nvidia-smi ended with %s" % rc
        )
    return result


def _empty():
    return {
        "path": None,
        "ran": False,
        "rc": None,
        "timed_out": False,
        "driver_version": None,
        "cuda_version": None,
        "gpus": [],
        "error": None,
    }


def _tag(text, name):
    value, _, after = text.partition("<%s>" % name)[2].partition("<")
    value = value.strip() if after.startswith("/%s>" % name) else ""
    return None if value in ("", "N/A", "[N/A]", "Not Supported") else value


def _memory():
    """A file without a name: memory where the kernel has it (Linux 3.17), else a temporary file."""
    try:
        return os.memfd_create("nvidia-smi", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        import tempfile

        handle, path = tempfile.mkstemp()
        os.unlink(path)
        return handle


def _content(handle):
    size = os.fstat(handle).st_size
    data = os.pread(handle, min(size, _MOST_BYTES), 0)
    os.close(handle)
    return data.decode("utf-8", "replace")
