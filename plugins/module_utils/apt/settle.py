# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Waits for a transaction of ours that goes on although its run was killed: a host is not planned for in the middle of it."""

from __future__ import annotations

import fcntl
import os
import time

from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_state

_POLL = 0.5


def main(args):
    """Return {"settled", "seconds"}. args: "timeout" in seconds."""
    return settle(apt_transaction.LOCK, float(args["timeout"]))


def settle(path, timeout, clock=time.monotonic, sleep=time.sleep):
    """Wait until nobody holds the lock of a transaction; settled is false where it is held still, by is who holds it, as text."""
    begun = clock()
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except PermissionError:
        raise AptError("apt.not_root", "%s can be read by root only" % path, hint="become: true") from None
    except OSError:
        # it is never removed: no transaction was begun here
        return {"settled": True, "seconds": 0.0}
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return {"settled": True, "seconds": round(clock() - begun, 1)}
            except BlockingIOError:
                if clock() - begun >= timeout:
                    by = " and ".join(holder["words"] for holder in own_state.lock_holders(lock))
                    return {"settled": False, "seconds": round(clock() - begun, 1), "by": by}
            sleep(_POLL)
    finally:
        os.close(lock)
