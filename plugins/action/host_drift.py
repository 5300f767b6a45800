# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read a host, and say on the controller what of it is not as inventory, lock and its hardware before say."""

from __future__ import annotations

from ansible.plugins.action import ActionBase

from ansible_collections.gpu.provision.plugins.plugin_utils.advice import with_playbook
from ansible_collections.gpu.provision.plugins.plugin_utils.controller import (
    error_result,
    import_provision,
    module_call,
    preload,
    role_values,
)

preload()


class ActionModule(ActionBase):
    """One read of the host; the lock is the one beside the inventory, or C(gpu_provision_lock)."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        import_provision()
        from provision.catalog import load_catalog
        from provision.drift import judge_host
        from provision.errors import ProvisionError
        from provision.planning import read_facts

        host = task_vars["inventory_hostname"]
        try:
            values = role_values(self._templar, task_vars)
            facts = read_facts(module_call(self, task_vars), values)
            items, lock = judge_host(host, facts, values, load_catalog())
        except ProvisionError as error:
            return dict(result, **error_result(error.issue, task_vars))
        lines = ["%s: %s: expected %s, found %s" % (i.code, i.what, i.expected, i.found) for i in items]
        result.update(
            changed=False,
            drifted=bool(items),
            found=[item.model_dump() for item in items],
            group=lock.group_name if lock else None,
        )
        if items and self._task.args.get("fail", True):
            count = "1 thing" if len(items) == 1 else "%d things" % len(items)
            result.update(
                failed=True,
                code="drift.drifted",
                msg="%s drifted: %s" % (count, "; ".join(lines[:6])),
                because=lines,
                hint=with_playbook(items[0].hint, task_vars),
            )
        return result
