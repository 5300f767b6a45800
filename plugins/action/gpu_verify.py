# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Read a host, judge it on the controller, and have the module gpu_verify run there what has to run."""

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
    """What the host must be follows from the role variables and from what resolve keeps."""

    TRANSFERS_FILES = False

    def run(self, tmp=None, task_vars=None):
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        import_provision()
        from provision.catalog import load_catalog
        from provision.errors import ProvisionError
        from provision.parts import checks
        from provision.parts.proofs import judged
        from provision.planning import read_facts
        from provision.planning.verification import (
            CheckSelection,
            bounds,
            expect_of,
            prove_args,
            refuse_unknown,
            runs,
            select,
        )

        args = self._task.args
        selection = CheckSelection(only=tuple(args.get("only") or ()), deep=bool(args.get("deep")))
        try:
            values, catalog = role_values(self._templar, task_vars), load_catalog()
            if args.get("strict") is not None:
                values["gpu_verify_strict"] = args["strict"]
            facts = read_facts(module_call(self, task_vars), values)
            expect = expect_of(facts, values, catalog).overlaid(args.get("expect") or {})
            prove = prove_args(facts, values, expect, catalog, selection) if runs(values, selection) else None
            found = checks.run(facts, expect)
            if prove is not None:
                answer = self._execute_module(
                    module_name="gpu.provision.gpu_verify", module_args={"prove": prove}, task_vars=task_vars
                )
                if answer.get("failed"):
                    return dict(result, **answer)
                found += judged({"measured": answer.get("measured")}, bounds(facts, values, expect, catalog))
            refuse_unknown(selection, [check.code for check in found])
            found = select(found, values, selection)
        except ProvisionError as error:
            return dict(result, **error_result(error.issue, task_vars))
        verdicts = [check.model_dump() for check in found]
        bad = [check for check in found if check.level == "error"]
        if not bad:
            return dict(result, changed=False, checks=verdicts)
        said = {}
        for check in bad:
            said.setdefault(check.message, []).append(check.code)
        return dict(
            result,
            failed=True,
            msg="; ".join("%s: %s" % (", ".join(codes), message) for message, codes in said.items()),
            code="verify.failed",
            because=[line for check in bad for line in check.evidence][:12],
            hint=with_playbook(bad[0].hint, task_vars),
            checks=verdicts,
        )
