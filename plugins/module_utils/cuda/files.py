# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Where the files of the role cuda_toolkit lie: for the plan that writes them and the probe that finds them again.

Standard library only, any Python from 3.8.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.lib import lazy_re

PROFILE = "/etc/profile.d/gpu-provision-cuda.sh"
# cuda-select for csh and fish: they evaluate what it prints.
SELECT = "/etc/gpu-provision/cuda-select.sh"
# Every csh and tcsh reads this folder from /etc/csh.cshrc (tcsh 6.21.00-1, Ubuntu 20.04, and later); none reads profile.d.
CSH = "/etc/csh/cshrc.d/gpu-provision-cuda.csh"
FISH = "/etc/fish/conf.d/gpu-provision-cuda.fish"
# Behind NVIDIA's 000_cuda.conf (/usr/local/cuda/targets/…, whatever it leads to: the same folder as our first one) and
# in front of its 98?_cuda-NN.conf, which take the newest toolkit of a major, and of the distribution's files.
LD_SO_CONF = "/etc/ld.so.conf.d/001_gpu-provision-cuda.conf"

FIXED = (PROFILE, SELECT, CSH, FISH, LD_SO_CONF)
# Below a folder for modulefiles: cuda/12.4, cuda/12.4.lua and which of them is the default.
MODULE = lazy_re.compile(r"/cuda/(?:[0-9]+\.[0-9]+(?:\.lua)?|\.version)$")


def is_own(path):
    """True for a path at which the role cuda_toolkit puts files (whoever wrote the one that is there)."""
    return path in FIXED or MODULE.search(path) is not None
