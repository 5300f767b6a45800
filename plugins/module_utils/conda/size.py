# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""How much of the disk conda's folders take. Walks, so it is not part of the fast read; bounded by time.

conda links the files of a package from its cache into environments: such a file lies on the disk once. ``own`` is
what would be free if a folder went and nothing else; ``total`` is what it holds.
"""

from __future__ import annotations

import os
import time

SECONDS = 30.0


def main(args):
    """args {"paths": [folder], "seconds": budget for all, optional}; return {folder: {"total", "own"} or None}.

    Sizes in bytes of disk. None: there is no such folder, or the time was over before it was walked through.
    """
    end = time.monotonic() + float(args.get("seconds") or SECONDS)
    return {path: size(path, end) for path in args.get("paths") or []}


def size(path, end):
    """Return {"total", "own"} of one folder, or None when it is not there or the time is over."""
    if not os.path.isdir(path):
        return None
    total, links, todo = 0, {}, [path]
    while todo:
        if time.monotonic() > end:
            return None
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                        total += found.st_blocks * 512
                    elif found.st_nlink == 1:
                        total += found.st_blocks * 512
                    else:
                        seen, _, _ = links.get((found.st_dev, found.st_ino), (0, 0, 0))
                        links[found.st_dev, found.st_ino] = (seen + 1, found.st_nlink, found.st_blocks * 512)
        except OSError:
            # A folder that went while we looked, or that we may not look into: what is seen counts.
            continue
    shared = sum(blocks for seen, count, blocks in links.values() if seen < count)
    total += sum(blocks for _, _, blocks in links.values())
    return {"total": total, "own": total - shared}
