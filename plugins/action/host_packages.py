# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Hand a plan's apt section to the module apt_transaction; see plugins/modules/host_packages.py."""

from __future__ import annotations

from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    """One module on the host for everything of apt's: its files, packages and holds."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars)
        return dict(
            result,
            **self._execute_module(
                module_name="gpu.provision.apt_transaction",
                module_args=self._task.args["apt"],
                task_vars=task_vars,
            ),
        )
