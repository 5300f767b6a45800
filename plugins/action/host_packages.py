# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Hand a plan's apt section to the module apt_transaction; see plugins/modules/host_packages.py."""

from __future__ import annotations

from ansible.plugins.action import ActionBase

from ansible_collections.gpu.provision.plugins.plugin_utils import runlock


class ActionModule(ActionBase):
    """One module on the host for everything of apt's: its files, packages and holds."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        # The command's run, or the one that host_lock has taken the lock for.
        run = task_vars.get("gpu_provision_run") or (runlock.fact(task_vars, "gpu_provision_host_lock") or {}).get(
            "run"
        )
        return dict(
            result,
            **self._execute_module(
                module_name="gpu.provision.apt_transaction",
                module_args=dict(self._task.args["apt"], lock_run=run),
                task_vars=task_vars,
            ),
        )
