# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Lines with Xid and SXid errors in the kernel's log, of this boot and of earlier ones, and fabric manager's: job ``read``."""

from __future__ import annotations

import errno
import os
import time

from ansible_collections.gpu.provision.plugins.module_utils.lib import fabric_log, kernel_errors, outputs
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree

JOURNAL_TIMEOUT = 10.0
JOURNAL_BYTES = 8 << 20


def read(args, say):
    """Job: {"lines": as lib.kernel_errors has them, "fabric": as lib.fabric_log has them, "first": number of the oldest record
    of /dev/kmsg, "now": seconds}.

    Raises OSError where the log cannot be read. A journal that does not answer in time is left out.
    """
    say("reading /dev/kmsg")
    now = time.time()
    started = now - time.clock_gettime(time.CLOCK_BOOTTIME)
    lines, first = _kmsg(now - time.clock_gettime(time.CLOCK_MONOTONIC))
    say("asking the journal")
    answer = outputs.ask(kernel_errors.JOURNAL, JOURNAL_TIMEOUT, JOURNAL_BYTES)
    text = answer[1].decode("utf-8", "replace") if answer and answer[0] == 0 else ""
    with open("/proc/sys/kernel/random/boot_id") as stream:
        earlier, this_boot, fabric = kernel_errors.of_journal(text, stream.read().strip())
    return {
        "lines": earlier + kernel_errors.fuller(lines, this_boot),
        "fabric": fabric + fabric_log.of_file(HostTree(), started),
        "first": first,
        "now": now,
    }


def _kmsg(started):
    lines, first = [], None
    handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                record = os.read(handle, 8192)
            except BlockingIOError:
                # no more: the log has been read
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    # overwritten while it was read: the next one follows
                    continue
                raise
            head, _, text = record.decode("utf-8", "replace").partition(";")
            fields = head.split(",")
            if first is None:
                first = int(fields[1])
            line = text.split("\n", 1)[0]
            if kernel_errors.wanted(line):
                lines.append([0, started + int(fields[2]) / 1e6, line])
    finally:
        os.close(handle)
    return lines, first
