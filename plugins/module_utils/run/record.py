# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What a host itself keeps of the runs that changed it: one small file a run, the newest fifty.

A host outlives the machines that it is changed from, and is changed from more than one of them.

Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import json
import os

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re, own_files, own_state
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock

FOLDER = own_state.FOLDER + "/history"
KEEP = 50
_MOST_BYTES = 1 << 20
_SHAPE = {"run": str}
# Names of runs begin with the time (engine.new_run_dir), so their order is that of time.
_NAME = lazy_re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,120}$")
_FILE = lazy_re.compile(r"^[0-9]{8}T[0-9]{6}Z-[A-Za-z0-9._-]+\.json$")


def main(args):
    """The fast read's way in: args["op"] is leave or read."""
    if args["op"] == "read":
        return dict(read(args.get("newest")), lock=run_lock.read())
    return leave(args.get("record"), args.get("run"))


def leave(record, run, folder=FOLDER, lock=run_lock.PATH):
    """End a run on this host: write its record (where there is one) and give its lock back (where run has it).

    Returns {"released", "held": record of who has the lock instead, or None, "trouble": why the record is not written, or
    None}. The lock is given back whether or not the record could be written.
    """
    problem = None
    if record:
        try:
            write(record, folder)
        except own_files.FileError as error:
            problem = error.message
        except ValueError as error:
            problem = str(error)
    answer = run_lock.release(run, lock) if run else {"released": False, "held": None}
    return dict(answer, trouble=problem)


def is_name(run):
    """True for what can be the name of a run, and so of a file and of a folder."""
    return isinstance(run, str) and bool(_NAME.match(run))


def write(record, folder=FOLDER):
    """Write a record as ``<its run>.json`` (0644, in one step), and remove those beyond the newest KEEP.

    Raises ownfiles.FileError, and ValueError for a run whose name is no name of a file.
    """
    if not is_name(record.get("run")):
        raise ValueError("%r is no name of a run" % record.get("run"))
    # A line a key: short enough to keep, and a person with a pager finds the words.
    lines = ",\n".join("%s: %s" % (json.dumps(key), json.dumps(record[key])) for key in sorted(record))
    own_state.move(os.path.dirname(folder))
    own_files.write(os.path.join(folder, record["run"] + ".json"), ("{\n%s\n}\n" % lines).encode("utf-8"))
    for name in _files(folder)[:-KEEP]:
        try:
            os.unlink(own_state.place(os.path.join(folder, name)))
        except FileNotFoundError:
            # another run's record was written at this moment
            continue
        except OSError as error:
            raise own_files.FileError(os.path.join(folder, name), "remove", error) from None


def read(newest=None, folder=FOLDER):
    """Return {"runs": [records, newest first], "unreadable": [names]}; newest: so many of them at most."""
    runs, unreadable = [], []
    for name in _files(folder)[::-1][:newest]:
        try:
            runs.append(own_state.read(own_state.place(os.path.join(folder, name)), _SHAPE, _MOST_BYTES))
        except own_state.Damaged:
            unreadable.append(name)
    return {"runs": runs, "unreadable": unreadable}


def _files(folder):
    return [name for name in own_state.names(folder) if _FILE.match(name)]
