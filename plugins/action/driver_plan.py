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
        import_provision()
        from provision.errors import ProvisionError
        from provision.planning import plan_host

        host = task_vars["inventory_hostname"]
        shown = task_vars.get("gpu_provision_plan_file")
        try:
            if shown:
                plan = json.loads(Path(self._templar.template(shown)).read_text(encoding="utf-8"))["hosts"][
                    host
                ]
            else:
                values = role_values(self._templar, task_vars)
                plan = plan_host(host, module_call(self, task_vars), values).model_dump(mode="json")
        except KeyError:
            raise AnsibleActionFail("the plan %s has no host %s" % (shown, host)) from None
        except ProvisionError as error:
            return dict(result, **error_result(error.issue))
        if plan["blockers"]:
            first = plan["blockers"][0]
            return dict(
                result, failed=True, msg=first["message"], code=first["code"], because=first["because"],
                hint=first["hint"], blockers=plan["blockers"], plan=plan,
            )  # fmt: skip
        return dict(result, changed=False, plan=plan, spec=plan["spec"])
