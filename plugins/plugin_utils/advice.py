# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Hints for people who run playbooks: what a command does, a playbook does too."""

from __future__ import annotations

import re

# Commands that are a playbook, too; lock, scan and diagnose are none, nor are options such as rescue --undo.
_ADVICE = re.compile(r"\bprovision (?:-\S+ \S+ )*(apply|plan|verify|drift|rescue)\b(?! (?:\S+ )?--)")
_PLAYBOOKS = {"apply": "site"}


def with_playbook(hint, task_vars):
    """Return a hint that names the playbook beside the command: who runs plain Ansible may not have the command."""
    names = [] if "gpu_provision_run" in task_vars else list(dict.fromkeys(_ADVICE.findall(hint or "")))
    if not names:
        return hint
    playbooks = " and ".join("ansible-playbook gpu.provision.%s" % _PLAYBOOKS.get(name, name) for name in names)
    return "%s (with plain Ansible: %s)" % (hint, playbooks)
