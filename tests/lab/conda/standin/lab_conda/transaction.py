"""Bring a prefix to what the solver chose."""

from __future__ import annotations

import os
import sys
import time

from .prefix import link_package, records, unlink_package, write_history
from .solver import fetch


def transaction(prefix, chosen, command, specs):
    """Bring a prefix to the chosen records, in the order of their names' first mention."""
    there = records(prefix)
    archives = [(record, fetch(record)) for record in chosen.values() if not same(there.get(record["name"]), record)]
    archives.sort(key=lambda pair: pair[0]["name"] != "python")
    os.makedirs(os.path.join(prefix, "conda-meta"), exist_ok=True)
    print("Preparing transaction: done\nVerifying transaction: done")
    for number, (record, archive) in enumerate(archives):
        if number == len(archives) // 2:
            inject("env")
        if record["name"] in there:
            unlink_package(prefix, there[record["name"]])
        link_package(prefix, archive, record["url"])
    print("Executing transaction: done")
    write_history(prefix, command, specs)
    register(prefix)


def same(one, other):
    return one is not None and (one["version"], one["build"]) == (other["version"], other["build"])


def inject(step):
    """What a test wants to happen here: die=STEP or pause=STEP:SECONDS, as in the stand-in installer."""
    path = os.path.expanduser("~/.lab-conda")
    words = os.environ.get("LAB_CONDA", "").split()
    if os.path.isfile(path):
        with open(path) as file:
            words += file.read().split()
    for word in words:
        if word.startswith("pause=%s:" % step):
            time.sleep(float(word.split(":")[1]))
        if word == "die=" + step:
            os.kill(os.getpid(), 9)


def register(prefix):
    path = os.path.expanduser("~/.conda/environments.txt")
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a+") as file:
            file.seek(0)
            if prefix not in file.read().splitlines():
                file.write(prefix + "\n")
    except OSError as error:
        # conda only warns when the list of environments cannot be written.
        print("WARNING conda.core.envs_manager: Unable to register environment. %s" % error, file=sys.stderr)
