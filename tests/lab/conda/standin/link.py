"""Put the packages of an unpacked payload into a prefix; run by the stand-in installer with the host's Python.

link.py PREFIX PAYLOAD first|rest : the first half of the packages, or what is left and conda-meta/history.
"""

from __future__ import annotations

import os
import sys


def main(prefix, payload, part):
    sys.path.insert(0, os.path.join(payload, "lib"))
    import lab_conda

    # Python first: it makes the folder that modules go to.
    archives = sorted(os.listdir(payload + "/pkgs"), key=lambda name: (not name.startswith("python-"), name))
    half = (len(archives) + 1) // 2
    for name in archives[:half] if part == "first" else archives[half:]:
        lab_conda.link_package(prefix, os.path.join(payload, "pkgs", name), "@URL@/linux-64/" + name)
    if part == "rest":
        lab_conda.write_history(prefix, "installer")


main(*sys.argv[1:])
