# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Decide on the controller which repairs of a host come next; see plugins/modules/rescue_round.py."""

from __future__ import annotations

import json
from pathlib import Path

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

from ansible_collections.gpu.provision.plugins.plugin_utils import runlock
from ansible_collections.gpu.provision.plugins.plugin_utils.controller import (
    error_result,
    import_provision,
    module_call,
    preload,
    role_values,
)

# Fact of the host: the plan of this play, as host_plan hands it to the roles.
_FACT = "gpu_provision_play_plan"


preload()


class ActionModule(ActionBase):
    """Take the round that the command has shown, or read the host and choose one."""

    TRANSFERS_FILES = False
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        shown = task_vars.get("gpu_provision_rescue_file")
        orders = self._shown(shown, task_vars) if shown else self._chosen(task_vars)
        if orders.get("failed"):
            return dict(result, **orders)
        plan = orders.pop("plan")
        if plan:
            # Every role of ours finds this plan; those that it is not for are not run.
            orders["ansible_facts"] = runlock.keep(
                _FACT, {"plan": plan, "left": plan["spec"]["roles"], "play": self._task.get_play()._uuid}
            )
        return dict(result, changed=False, **orders)

    def _shown(self, file, task_vars):
        host = task_vars["inventory_hostname"]
        hosts = json.loads(Path(self._templar.template(file)).read_text(encoding="utf-8"))["hosts"]
        if host not in hosts:
            raise AnsibleActionFail("the rescue %s has no host %s" % (file, host))
        return hosts[host]

    def _chosen(self, task_vars):
        import_provision()
        from provision.catalog import load_catalog
        from provision.errors import ProvisionError
        from provision.rescue.model import History
        from provision.rescue.orders import left_text, orders, record
        from provision.rescue.session import inspect_host, limits_of

        args = self._task.args
        host = task_vars["inventory_hostname"]
        history = History.model_validate(args.get("history") or {})
        record(history, args.get("done") or [])
        local = task_vars.get("ansible_connection") == "local"
        try:
            values = role_values(self._templar, task_vars)
            limits = limits_of(values, local=local, stop_holders=bool(args.get("stop_holders")))
            seen = inspect_host(host, module_call(self, task_vars), values, load_catalog(), history, limits)
        except ProvisionError as error:
            return error_result(error.issue, task_vars)
        if seen.round is not None and seen.round.blockers:
            return error_result(seen.round.blockers[0], task_vars)
        given = orders(seen.round, values, limits)
        left = left_text(seen.diagnosis, history) if seen.round is None else []
        if seen.round is not None:
            history.rounds.append(seen.round)
        return dict(
            given,
            left=left,
            history=history.model_dump(mode="json"),
            again=seen.round is not None and not self._task.check_mode,
        )
