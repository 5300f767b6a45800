# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read a host that may be broken: everything that the probe says, and beside it what only diagnose reads.

The one call of ``provision diagnose``. ``collect`` returns the probe's dict with one more key, ``trouble``: {"boot",
"apt", "user"}, in the shape of provision.facts.diagnostics.Diagnostics. Nothing is changed. Files are read; the few programs that
are started (boot_diagnostics.py says which) are given up after seconds. Standard library only, Python 3.8 and later.
"""

from __future__ import annotations

from ansible_collections.gpu.provision.plugins.module_utils.lib import redact
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import (
    apt_diagnostics,
    boot_diagnostics,
    user_diagnostics,
)
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts


def main(args):
    """Entry of the fast read; returns facts with trouble, which the server redacts. args: as those of the probe."""
    return collect_all(
        root=args.get("root") or "/",
        smi_timeout=float(args.get("smi_timeout") or probe_facts.SMI_TIMEOUT),
        conda_prefixes=args.get("conda_prefixes") or (),
    )


def collect(root="/", run=None, smi_timeout=probe_facts.SMI_TIMEOUT, conda_prefixes=()):
    """Read a host and return its facts as a dict, with ``trouble``.

    root: folder that stands for ``/``. run: callable(list, timeout) -> (rc, stdout, stderr) that answers in place of
    every program; without it programs are started on the running host, and none for a recorded one. Passwords and tokens
    of what is read are left out (redact).
    """
    return redact.data(collect_all(root, run, smi_timeout, conda_prefixes))


def collect_all(root="/", run=None, smi_timeout=probe_facts.SMI_TIMEOUT, conda_prefixes=(), tree=None):
    """As collect, with passwords and tokens. tree: the HostTree of root to read by."""
    facts = probe_facts.collect_all(root, run, smi_timeout, conda_prefixes, tree)
    tree = tree or HostTree(root)
    facts["trouble"] = {
        "boot": probe_facts.read_part(tree, "trouble.boot", boot_diagnostics.read, facts, run),
        "apt": probe_facts.read_part(tree, "trouble.apt", apt_diagnostics.read, facts),
        "user": probe_facts.read_part(tree, "trouble.user", user_diagnostics.read, facts),
    }
    facts["unreadable"] = sorted(set(facts["unreadable"]) | set(tree.unreadable))
    return facts
