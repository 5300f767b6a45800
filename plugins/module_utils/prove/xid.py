# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Lines with Xid and SXid errors in the kernel's log since boot: job ``read``, from /dev/kmsg."""

from __future__ import annotations

import errno
import os


def read(args, say):
    """Job: {"lines": [[microseconds since boot, text]], "first": number of the oldest record} of /dev/kmsg.

    Lines with Xid are kept, and no others. Raises OSError where the log cannot be read.
    """
    say("reading /dev/kmsg")
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
            if "Xid" in line:
                lines.append([int(fields[2]), line])
    finally:
        os.close(handle)
    return {"lines": lines, "first": first}
