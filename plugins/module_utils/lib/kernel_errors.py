# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Lines of the kernel's log about errors of GPUs and NVSwitches, and those that end such errors, over the boots of two weeks.

Every line is [boot, seconds, text]: boot 0 is this one, -1 the one before; seconds since 1970, None where nobody knows.
Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import json
import re

from ansible_collections.gpu.provision.plugins.module_utils.lib import fabric_log

_WORDS = r"Xid \(|Linux version [0-9]|NVRM: loading NVIDIA UNIX|GPU [0-9A-Fa-f:.]+ was successfully reset"
_WANTED = re.compile(_WORDS)
# The kernel's own lines and those of fabric manager's units: anybody may write others to the journal.
JOURNAL = [
    "journalctl",
    "-q",
    "--no-pager",
    "-o",
    "json",
    "--output-fields=MESSAGE,_BOOT_ID,_SYSTEMD_UNIT,UNIT",
    "--since=-14d",
    "--grep=" + _WORDS + "|" + fabric_log.WORDS,
    "_TRANSPORT=kernel",
] + fabric_log.MATCHES
MOST = 2000
_LONGEST = 500
_STAMP = re.compile(r"^\s*(?:<[0-9]+>)?\[\s*([0-9]+\.[0-9]+)\]")


def wanted(line):
    return _WANTED.search(line) is not None


def of_journal(text, boot_id):
    """(lines of earlier boots, of this boot, of fabric manager in this boot) of what JOURNAL prints.

    boot_id: /proc/sys/kernel/random/boot_id.
    """
    rows, boots, fabric = [], [], []
    now = boot_id.replace("-", "")
    for entry in text.splitlines():
        try:
            fields = json.loads(entry)
            boot, when, line = fields["_BOOT_ID"], int(fields["__REALTIME_TIMESTAMP"]) / 1e6, fields["MESSAGE"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        unit = fabric_log.unit_of(fields)
        if unit and boot == now and isinstance(line, str):
            fabric.append(fabric_log.line(unit, when, line))
        elif unit:
            # an earlier boot's
            continue
        elif isinstance(boot, str) and isinstance(line, str) and wanted(line):
            if boot not in boots:
                boots.append(boot)
            rows.append((boot, when, line[:_LONGEST]))
    earlier = [boot for boot in boots if boot != now]
    number = {boot: place - len(earlier) for place, boot in enumerate(earlier)}
    return (
        [[number[boot], when, line] for boot, when, line in rows if boot != now][-MOST:],
        [[0, when, line] for boot, when, line in rows if boot == now][-MOST:],
        [row for row in fabric if row][-fabric_log.MOST :],
    )


def of_log(lines, started):
    """Lines of a log of this boot, or of a file with several. started: when this boot began, None where that is not known.

    A file's lines are of boot 0 as far as the last start of a kernel in it.
    """
    rows = []
    for line in lines:
        if wanted(line):
            stamp = _STAMP.match(line)
            when = started + float(stamp.group(1)) if stamp and started is not None else None
            rows.append([0, when, line.strip()[:_LONGEST]])
    boot = 0
    for row in reversed(rows):
        row[0] = boot
        if "Linux version " in row[2]:
            boot -= 1
    return rows[-MOST:]


def fuller(one, other):
    """Of two records of this boot the one that reaches further: the kernel keeps a few thousand lines, a journal may be young."""
    return one if len(one) >= len(other) else other
