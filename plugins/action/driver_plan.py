# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Decide on the controller what has to change for the driver of a host; see plugins/modules/driver_plan.py."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gpu.provision.plugins.plugin_utils.controller import (
    error_result,
    import_provision,
    module_call,
    role_values,
)


class ActionModule(ActionBase):
    """Read the host, resolve, simulate; or take the plan that the command already showed."""

    TRANSFERS_FILES = False
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        host = task_vars["inventory_hostname"]
        shown = task_vars.get("gpu_provision_plan_file")
        if shown:
            hosts = json.loads(Path(self._templar.template(shown)).read_text(encoding="utf-8"))["hosts"]
            if host not in hosts:
                raise AnsibleActionFail("the plan %s has no host %s" % (shown, host))
            plan = hosts[host]
        else:
            plan = self._plan(host, task_vars)
        if "failed" in plan:
            return dict(result, **plan)
        if plan["blockers"]:
            first = plan["blockers"][0]
            return dict(
                result, failed=True, msg=first["message"], code=first["code"], because=first["because"],
                hint=first["hint"], blockers=plan["blockers"], plan=plan,
            )  # fmt: skip
        return dict(result, changed=False, plan=plan, spec=plan["spec"])

    def _plan(self, host, task_vars):
        """Return the plan as data, or a failed task result."""
        # Half a second of imports, only where nobody has planned yet.
        import_provision()
        from provision.errors import ProvisionError
        from provision.planning import plan_host

        try:
            values = role_values(self._templar, task_vars)
            return plan_host(host, module_call(self, task_vars), values).model_dump(mode="json")
        except ProvisionError as error:
            return error_result(error.issue)
