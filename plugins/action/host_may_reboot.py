# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Judge on the controller what the module host_may_reboot saw on the host."""

from __future__ import annotations

from ansible.plugins.action import ActionBase

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.probe import gpu_users


class ActionModule(ActionBase):
    """The module sees; who the controller is, and what the policy makes of it, is known here."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        result = super().run(tmp, task_vars or {})
        policy = self._task.args.get("policy", "when_idle")
        if policy == "never" or self._task.check_mode:
            return dict(result, changed=False, may=False, reasons=[])
        if self._connection.transport == "local":
            return dict(result, changed=False, may=False, reasons=[gpu_users.OWN_MACHINE])
        answer = self._execute_module(module_args={"policy": policy}, task_vars=task_vars)
        if answer.get("failed"):
            return dict(result, **answer)
        reasons = gpu_users.reasons(answer["look"], gpu_users.inspect(HostTree("/")), policy)
        return dict(result, changed=False, may=not reasons, reasons=reasons, look=answer["look"])
