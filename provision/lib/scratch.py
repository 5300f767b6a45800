"""The folder of this process for temporary files: made when it is first asked for, removed at the end.

What a killed process left is removed by the next one that makes such a folder (module_utils/lib/scratch.py).
"""

from __future__ import annotations

import atexit
import os
import shutil
import threading
from pathlib import Path

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import scratch

# The path of a Unix socket has 107 bytes (unix(7)), and Python's multiprocessing, with which ansible-core 2.20 and later serves its
# workers, adds /pymp-XXXXXXXX/listener-XXXXXXXX to the folder.
_LONGEST = 107 - 32

_made: list[Path] = []
_lock = threading.Lock()


def folder() -> Path:
    """Return the folder; only this user can look into it. It is below /tmp where $TMPDIR is too deep for sockets."""
    with _lock:
        # Programs that tidy up /tmp may have taken it from a run of days.
        if not _made or not _made[-1].is_dir():
            made = scratch.make("command")
            if len(os.fsencode(made)) > _LONGEST:
                scratch.remove(made)
                made = scratch.make("command", "/tmp")  # noqa: S108 -- made with mode 0700, under a name that is not known before
            _made.append(Path(made))
            atexit.register(shutil.rmtree, _made[-1], ignore_errors=True)
        return _made[-1]
