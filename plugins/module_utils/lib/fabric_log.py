# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Lines of this boot about fabric manager and nvlsm: errors of the NVLink fabric, starts and ends of the services.

Every line is [0, seconds since 1970, "UNIT: words"] as in kernel_errors, whose one call of journalctl brings them too; fabric
manager's own file has most errors. Standard library only, Python 3.8 and later.

Sources: lines of fabric manager as NVIDIA's guide, gpud's log_matcher.go and public reports print them; systemd's job.c, service.c.
"""

from __future__ import annotations

import calendar
import re
import time

# On most machines fabric manager's own start script starts nvlsm.
UNITS = ("nvidia-fabricmanager", "nvlsm")
FILE = "/var/log/fabricmanager.log"
ERRORS = (
    r"detected NVSwitch fatal error [0-9]|failed to find the GPU handle [0-9]+ in the multicast team|"
    r"number of NVSwitches don't match with any supported system topology|GPU NVL Fatal error on|Trunk port failure detected|"
    r"not all local fabric manager instances finished their configuration|failed to configure all the available GPUs"
)
WORDS = r"^Start(?:ing|ed) |: Scheduled restart job|: Failed with result|" + ERRORS
# Of the services themselves, and of what the first process says of them.
MATCHES = (
    ["+"]
    + ["_SYSTEMD_UNIT=%s.service" % unit for unit in UNITS]
    + ["+", "_PID=1"]
    + ["UNIT=%s.service" % unit for unit in UNITS]
)
MOST = 500
_LONGEST = 300
_FILE_BYTES = 1 << 20
_DAY_S = 86400.0
_WORDS, _ERRORS = re.compile(WORDS), re.compile(ERRORS)
# [Jul 23 2024 07:53:55] [ERROR] [tid 841]
_STAMP = re.compile(r"^\[([A-Z][a-z]{2} [ 0-9][0-9] [0-9]{4} [0-9:]{8})\] ?")


def unit_of(fields):
    """The unit that an entry of the journal is about, or None. fields: mapping of the entry."""
    for name in ("_SYSTEMD_UNIT", "UNIT"):
        unit = fields.get(name)
        if isinstance(unit, str) and unit.endswith(".service") and unit[: -len(".service")] in UNITS:
            return unit[: -len(".service")]
    return None


def line(unit, when, words):
    """A line as this module has it, or None where it says nothing of interest."""
    return [0, when, "%s: %s" % (unit, words[:_LONGEST])] if _WORDS.search(words) else None


def of_file(tree, started):
    """Errors in fabric manager's own file. started: when this boot began; None: the last day of the file counts."""
    rows = []
    for words in (tree.tail(FILE, _FILE_BYTES) or b"").decode("utf-8", "replace").splitlines():
        stamp = _STAMP.match(words)
        try:
            then = time.strptime(stamp.group(1), "%b %d %Y %H:%M:%S") if stamp else None
            # It writes local time, which is not known of a recorded host.
            when = then and float(time.mktime(then) if tree.live else calendar.timegm(then))
        except (ValueError, OverflowError):
            continue
        if when and _ERRORS.search(words):
            rows.append([0, when, "%s: %s" % (UNITS[0], _STAMP.sub("", words)[:_LONGEST])])
    since = started if started is not None else max([row[1] for row in rows] or [0.0]) - _DAY_S
    return [row for row in rows if row[1] >= since][-MOST:]
