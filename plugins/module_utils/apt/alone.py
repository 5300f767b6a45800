# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""apt that knows our own sources only, for as long as a transaction takes: what a host with a mirror of ours needs.

The sources of the host stay as they are; they are only not asked. A host without internet would wait minutes for each of
them, and what their old lists name is nowhere to be had. Standard library only, any Python from 3.8.
"""

from __future__ import annotations

import contextlib
import io
import os

from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import sources as apt_sources
from ansible_collections.gpu.provision.plugins.module_utils.lib import scratch


def config(folder):
    """Text of an apt.conf by which only the sources in folder count. Lists of other sources stay where they are."""
    return 'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "%s";\nAPT::Get::List-Cleanup "0";\n' % folder


@contextlib.contextmanager
def within(wanted):
    """In this context every apt that aptcommon starts reads the files gpu-provision-*.sources and no others.

    wanted: false changes nothing. The files are looked for when the context begins: write them before.
    """
    if not wanted:
        yield
        return
    work = scratch.make("alone")
    before = os.environ.get(apt_common.ALONE)
    try:
        parts = os.path.join(work, "sources.list.d")
        os.mkdir(parts)
        prefix = os.path.basename(apt_files.sources_path(""))[: -len(".sources")]
        for name in os.listdir(apt_sources.PARTS) if os.path.isdir(apt_sources.PARTS) else ():
            if name.startswith(prefix) and name.endswith(".sources"):
                os.symlink(os.path.join(apt_sources.PARTS, name), os.path.join(parts, name))
        path = os.path.join(work, "apt.conf")
        with io.open(path, "w", encoding="utf-8") as handle:
            handle.write(config(parts))
        os.environ[apt_common.ALONE] = path
        yield
    finally:
        if before is None:
            os.environ.pop(apt_common.ALONE, None)
        else:
            os.environ[apt_common.ALONE] = before
        scratch.remove(work)
