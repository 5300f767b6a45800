# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Decide on the controller what has to change on a host; see plugins/modules/host_plan.py."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gpu.provision.plugins.plugin_utils.advice import with_playbook
from ansible_collections.gpu.provision.plugins.plugin_utils.controller import (
    error_result,
    import_provision,
    module_call,
    preload,
    role_values,
    roles_to_run,
)
from ansible_collections.gpu.provision.plugins.plugin_utils.runlock import fact, keep

# Fact of the host: the plan of this play, and the roles that have not asked for their part yet.
_FACT = "gpu_provision_play_plan"


preload()


class ActionModule(ActionBase):
    """Read the host, resolve, simulate; or take the plan that was made already: by the command, or by an earlier role.

    Without a role: plan for everything, and only say it.
    """

    TRANSFERS_FILES = False
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        host, role = task_vars["inventory_hostname"], self._task.args.get("role")
        made = fact(task_vars, _FACT)
        # The fact outlives the play: another play plans anew.
        play = self._task.get_play()._uuid
        first = not role or not made or made["play"] != play or role not in made["left"]
        plan = self._first_plan(host, role, task_vars) if first else made["plan"]
        if "failed" in plan:
            return dict(result, **plan)
        if plan["blockers"]:
            issue = plan["blockers"][0]
            return dict(
                result,
                failed=True,
                msg=issue["message"],
                code=issue["code"],
                because=issue["because"],
                hint=with_playbook(issue["hint"], task_vars),
                blockers=plan["blockers"],
                plan=plan,
            )
        if not role:
            import_provision()
            from provision.parts.plan import HostPlan

            return dict(result, changed=False, plan=plan, lines=HostPlan.model_validate(plan).lines())
        left = [other for other in (plan["spec"]["roles"] if first else made["left"]) if other != role]
        return dict(
            result,
            changed=False,
            plan=plan,
            apt=plan["spec"]["apt"] if first else None,
            spec=plan["spec"]["parts"][role],
            environment=plan["spec"]["environment"],
            ansible_facts=keep(_FACT, {"plan": plan, "left": left, "play": play}),
        )

    def _first_plan(self, host, role, task_vars):
        """Return the plan as data, or a failed task result."""
        shown = task_vars.get("gpu_provision_plan_file")
        if shown:
            hosts = json.loads(Path(self._templar.template(shown)).read_text(encoding="utf-8"))["hosts"]
            if host not in hosts:
                raise AnsibleActionFail("the plan %s has no host %s" % (shown, host))
            return hosts[host]
        # Half a second of imports, only where nobody has planned yet.
        import_provision()
        from provision.errors import ProvisionError
        from provision.parts.registry import roles
        from provision.planning import plan_host

        together = roles_to_run(self._task, role, task_vars) if role else {}
        parts = [part for part, name in roles().items() if name in together] if role else None
        try:
            values = role_values(
                self._templar, {**task_vars, **{k: v for each in together.values() for k, v in each.items()}}
            )
            plan = plan_host(host, module_call(self, task_vars), values, parts=parts)
        except ProvisionError as error:
            return error_result(error.issue, task_vars)
        return plan.model_dump(mode="json")
