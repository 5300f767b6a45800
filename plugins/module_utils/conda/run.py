# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Run the conda or pip of a prefix; as root only where no other user may write to it. Standard library, any Python from 3.8."""

from __future__ import annotations

import glob
import os

from ansible_collections.gpu.provision.plugins.module_utils.conda import common as conda_common
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError
from ansible_collections.gpu.provision.plugins.module_utils.lib import run_as


def run(argv, owner, *args, **more):
    """As condacommon.run, for a program of a prefix."""
    refuse_foreign(argv[0], owner)
    return conda_common.run(argv, owner, *args, **more)


def refuse_foreign(program, owner):
    """Raise CondaError where root would run a program that another user may write to, or what it imports."""
    if owner.uid != 0 or os.geteuid() != 0:
        return
    prefix = os.path.dirname(os.path.dirname(program))
    packages = glob.glob(prefix + "/lib/python3*/site-packages")
    found = run_as.strangers(program, prefix + "/bin/python", *packages, *(folder + "/conda" for folder in packages))
    if found:
        who = ", ".join("everybody" if uid == run_as.EVERYBODY else "uid %d" % uid for uid in sorted(found))
        raise CondaError(
            "conda.foreign_prefix",
            "%s is not run as root: %s may write to it" % (program, who),
            ["whoever can write to a prefix controls its conda"],
            "name its owner with miniconda_owner, or give it to root: chown -R root: %s && chmod -R o-w %s"
            % (prefix, prefix),
        )
