# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""How far a change of packages is: apt's own status lines in a file, which another session reads while the change runs.

Source: apt's doc/progress-reporting.md (APT::Status-Fd): ``dlstatus:FILE:PERCENT:TEXT`` while it downloads and
``pmstatus:PACKAGE:PERCENT:TEXT`` while dpkg works. ``lock:PROGRAM:0:`` is ours: apt's locks are waited for.
Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import contextlib
import os

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree

PATH = "/run/gpu-provision/apt.progress"
_LAST_BYTES = 4096


@contextlib.contextmanager
def written():
    """The descriptor of the file, made anew, or None; the file goes at the end. Without it the change is not shown, no more."""
    try:
        os.makedirs(os.path.dirname(PATH), 0o755, exist_ok=True)
        handle = os.open(
            PATH, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except OSError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(PATH)


def options(handle):
    """What tells apt to write there."""
    return () if handle is None else ("APT::Status-Fd=%d" % handle,)


def waiting(handle, busy):
    """Say whose lock is waited for. busy: {"comm"} of its holder."""
    if handle is not None:
        os.write(handle, b"lock:%s:0:\n" % busy["comm"].replace(":", " ").encode("utf-8", "replace"))


def main(args):
    """Return {"line": the last status line, None without a change that runs}."""
    lines = (HostTree().tail(PATH, _LAST_BYTES) or b"").decode("utf-8", "replace").split("\n")[:-1]
    return {"line": lines[-1][:300] if lines else None}
