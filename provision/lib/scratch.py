"""The folder of this process for temporary files: made when it is first asked for, removed at the end.

What a killed process left is removed by the next one that makes such a folder (module_utils/lib/scratch.py), or opens a fleet.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
import threading
from pathlib import Path

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import scratch

# The path of a Unix socket has 107 bytes (unix(7)), and Python's multiprocessing, with which ansible-core 2.20 and later serves its
# workers, adds /pymp-XXXXXXXX/listener-XXXXXXXX to the folder.
_LONGEST = 107 - 32
_FOR_SOCKETS = "/tmp"  # noqa: S108 -- folders in it have mode 0700, as the other one

_made: dict[str, Path] = {}
_lock = threading.Lock()


def folder() -> Path:
    """Return the folder; only this user can look into it."""
    return _in(tempfile.gettempdir())


def for_sockets() -> Path:
    """Return the folder, or one in /tmp where $TMPDIR is too deep for sockets."""
    own = folder()
    return own if len(os.fsencode(own)) <= _LONGEST else _in(_FOR_SOCKETS)


def remove_left_behind() -> None:
    """Remove the folders that killed commands left."""
    for base in {tempfile.gettempdir(), _FOR_SOCKETS}:
        with contextlib.suppress(FileNotFoundError):
            scratch.remove_left_behind(base)


def _in(base: str) -> Path:
    with _lock:
        # Programs that tidy up /tmp may have taken it from a run of days.
        if base not in _made or not _made[base].is_dir():
            _made[base] = Path(scratch.make("command", base))
            atexit.register(shutil.rmtree, _made[base], ignore_errors=True)
        return _made[base]
