# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""A site's own check: a program of the site, as a given user, bounded in time and output. What it says is judged elsewhere.

It reads one JSON object (see docs/prove.md) and writes one. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess

from ansible_collections.gpu.provision.plugins.module_utils.lib import run_as
from ansible_collections.gpu.provision.plugins.module_utils.prove import program

MOST_BYTES = 64 << 10
_LONGEST_S = 300.0


def run(row, about):
    """What a check of the site did: {"rc", "out", "err", "ended": None, timeout or size, "timeout_s"} or {"refused": why}.

    row: {"name", "command", "user", "timeout"}; about: what it reads.
    """
    timeout = min(_LONGEST_S, max(1.0, float(row.get("timeout") or 10)))
    command, user = [str(word) for word in row["command"]], row.get("user") or "nobody"
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        return {"refused": "there is no user %s" % user}
    if os.geteuid() not in (0, account.pw_uid):
        return {"refused": "only root can run it as %s" % user}
    # Whoever may change what root runs is root.
    if account.pw_uid == 0 and run_as.strangers(command[0]):
        return {"refused": "others than root may change %s, and it is to run as root" % command[0]}
    groups = os.getgrouplist(account.pw_name, account.pw_gid)

    try:
        ran = program.run(
            command,
            timeout,
            MOST_BYTES,
            user=(account.pw_uid, account.pw_gid) if os.geteuid() == 0 else None,
            groups=groups,
            env={"HOME": account.pw_dir, "USER": user},
            data=json.dumps(dict(about, check=row["name"])).encode(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {"refused": "%s cannot be started: %s" % (command[0], getattr(error, "strerror", None) or error)}
    return dict(ran, timeout_s=timeout)
