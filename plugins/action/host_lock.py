# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Take the lock of a host for this run of ansible-playbook, or give it back; see plugins/modules/host_lock.py."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

from ansible_collections.gpu.provision.plugins.plugin_utils import runlock, runrecord

# Fact of the host: this run, as the lock knows it.
_FACT = "gpu_provision_host_lock"


class ActionModule(ActionBase):
    """Who we are and whether another run has ended is known here; the record lies on the host."""

    TRANSFERS_FILES = False
    _requires_connection = True

    def run(self, tmp=None, task_vars=None):
        task_vars = task_vars or {}
        result = super().run(tmp, task_vars)
        if self._task.args.get("state", "present") == "absent":
            return dict(result, **self._give_back(task_vars))
        return dict(result, **self._take(task_vars))

    def _take(self, task_vars):
        run = (runlock.fact(task_vars, _FACT) or {}).get("run") or runlock.new_run()
        job = task_vars.get("awx_job_id") or task_vars.get("tower_job_id")
        user = task_vars.get("awx_user_name") or task_vars.get("tower_user_name")
        holder = runlock.holder(
            "ansible-playbook (%s)" % task_vars.get("ansible_play_name", "a play"),
            run,
            [runlock.process()],
            task_vars.get("inventory_dir") or task_vars.get("playbook_dir") or Path.cwd(),
            "%s@AWX (job %s)" % (user or "somebody", job) if job else None,
        )
        force = boolean(self._templar.template(task_vars.get("gpu_provision_break_lock", False)))
        args = {"op": "acquire", "holder": holder, "lease": runlock.LONG_LEASE, "force": force}
        answer = self._module(args, task_vars)
        why = None if answer.get("failed") else runlock.proven(answer)
        if why:
            answer = dict(self._module(dict(args, over=answer["held"]["run"]), task_vars), why=why)
        if answer.get("failed"):
            return answer
        if not answer["taken"]:
            issue = runlock.refused(answer["held"])
            # nothing is changed: whoever is at work is not disturbed
            if self._task.check_mode:
                return dict(answer, changed=False, warnings=[issue["message"]])
            return dict(answer, failed=True, msg=issue.pop("message"), **issue)
        if answer["replaced"]:
            issue = runlock.took(answer["replaced"], answer["why"])
            answer["warnings"] = ["%s: %s" % (issue["message"], "; ".join(issue["because"]))]
        fact = {key: holder[key] for key in ("run", "who", "git", "command")}
        fact["started"] = runrecord.now()
        return dict(answer, changed=False, ansible_facts=runlock.keep(_FACT, fact))

    def _give_back(self, task_vars):
        mine = runlock.fact(task_vars, _FACT)
        if not mine or self._task.check_mode:
            return {"changed": False, "released": False, "held": None}
        args = {"op": "leave", "run": mine["run"], "record": runrecord.of_play(mine, task_vars)}
        answer = self._module(args, task_vars)
        if answer.get("held"):
            answer["warnings"] = ["during this run the lock was taken by %s" % answer["held"].get("who")]
        if answer.get("trouble"):
            answer["warnings"] = ["the host has no record of this run: %s" % answer["trouble"]]
        return answer

    def _module(self, args, task_vars):
        return self._execute_module(module_name="gpu.provision.host_lock", module_args=args, task_vars=task_vars)
