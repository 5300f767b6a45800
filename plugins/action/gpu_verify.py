# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Fill in on the controller what a host is held to, then run the module gpu_verify there."""

from __future__ import annotations

from ansible.plugins.action import ActionBase

from ansible_collections.gpu.provision.plugins.plugin_utils.controller import (
    error_result,
    import_provision,
    module_call,
    role_values,
)


class ActionModule(ActionBase):
    """Where ``expect`` is not given, it follows from the role variables and from what resolve keeps."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        args = dict(self._task.args)
        if not args.get("expect"):
            import_provision()
            from provision.errors import ProvisionError
            from provision.facts import Facts
            from provision.planning import expect_of

            try:
                facts = Facts.model_validate(module_call(self, task_vars)("probe", {}))
                args["expect"] = expect_of(facts, role_values(self._templar, task_vars))
            except ProvisionError as error:
                return dict(result, **error_result(error.issue))
        return dict(
            result,
            **self._execute_module(
                module_name="gpu.provision.gpu_verify", module_args=args, task_vars=task_vars
            ),
        )
