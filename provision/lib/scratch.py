"""The folder of this process for temporary files: made when it is first asked for, removed at the end.

What a killed process left is removed by the next one that makes such a folder (module_utils/lib/scratch.py).
"""

from __future__ import annotations

import atexit
import shutil
import threading
from pathlib import Path

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import scratch

_made: list[Path] = []
_lock = threading.Lock()


def folder() -> Path:
    """Return the folder; only this user can look into it."""
    with _lock:
        # Programs that tidy up /tmp may have taken it from a run of days.
        if not _made or not _made[-1].is_dir():
            _made.append(Path(scratch.make("command")))
            atexit.register(shutil.rmtree, _made[-1], ignore_errors=True)
        return _made[-1]
