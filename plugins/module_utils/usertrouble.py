# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What diagnose reads of a host beyond the probe: provision.trouble.UserTrouble. Standard library only, Python 3.8."""

from __future__ import annotations


def read(tree, facts):
    """Return the fields of the model as a dict. tree: HostTree; facts: what the probe said of the same host."""
    return {}
