# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""One run of a program that is not ours, bounded in time and output: a site's own check, DCGM's diagnostic.

Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess

from ansible_collections.gpu.provision.plugins.module_utils.lib import outputs, run_as

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(command, timeout, most, user=None, groups=(), env=None, data=b"", grace=0.0):
    """What a program did: {"rc", "out", "err", "ended": None, "timeout" or "size"}. What it leaves running ends with it.

    command: a list, no shell reads it; most: bytes of output; user: (uid, gid, ..) to become, None for none; env: beside PATH and
    LC_ALL; data: what it reads; grace: seconds that SIGTERM gives it to end what it started elsewhere. Raises OSError or
    subprocess.SubprocessError where it cannot be started.
    """
    child = subprocess.Popen(  # noqa: S603 - a list, no shell
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env or {}, PATH=PATH, LC_ALL="C.UTF-8"),
        start_new_session=True,
        cwd="/",
        preexec_fn=None if user is None else lambda: run_as.become(user, groups),
    )
    output = outputs.Output(child, data, most)
    ended = None
    try:
        output.wait(timeout)
    except subprocess.TimeoutExpired:
        ended = "size" if output.left <= 0 else "timeout"
    finally:
        if grace and child.poll() is None:
            outputs.signal_session(child, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(grace)
        out, err = (text.decode("utf-8", "replace") for text in output.kill())
    return {"rc": child.returncode, "out": out, "err": err, "ended": ended}
