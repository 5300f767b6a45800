"""paramiko, without ``invoke``, which it needs for "Match exec" in ssh's configuration alone: a third of its time to load."""

import importlib
import sys

_loaded = "invoke" in sys.modules
if not _loaded:
    # How Python is told that a module is not there; paramiko does without it then.
    sys.modules["invoke"] = None  # type: ignore[assignment]
import paramiko as paramiko  # noqa: E402, PLC0414 - for those who import it from here
import paramiko.config  # noqa: E402
from paramiko.ssh_exception import IncompatiblePeer as IncompatiblePeer  # noqa: E402, PLC0414

if not _loaded:
    del sys.modules["invoke"]


def load_match_exec() -> None:
    """Have paramiko carry out "Match exec"."""
    paramiko.config.invoke = importlib.import_module("invoke")  # type: ignore[attr-defined]
