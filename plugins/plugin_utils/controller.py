# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""What our action plugins share: they decide on the controller with the Python package ``provision``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.template import Templar

from ansible_collections.gpu.provision.plugins.plugin_utils.advice import with_playbook
from ansible_collections.gpu.provision.plugins.plugin_utils.lockfile import of_play

# host program of the fast read -> (Ansible module that is the same code, key of its answer)
_MODULES = {
    "probe.facts": ("gpu.provision.gpu_facts", "gpu_facts"),
    "apt.query": ("gpu.provision.apt_query", "result"),
    "probe.diagnostics": ("gpu.provision.gpu_diagnostics", "gpu_diagnostics"),
}
_PLAN = ("gpu.provision.host_plan", "host_plan")
# What roles report to the play, and no setting: see tasks/reboot.yml of nvidia_driver and gpu_rescue, and container_toolkit.
_REPORTED = {
    "nvidia_driver_reboot_required",
    "nvidia_driver_reboot_because",
    "gpu_rescue_reboot_required",
    "gpu_rescue_reboot_because",
    "container_toolkit_restart_required",
    "container_toolkit_restart_because",
}


def import_provision():
    """Make ``provision`` importable: installed beside Ansible, or lying in this collection (ansible-galaxy)."""
    root = str(Path(__file__).resolve().parents[2])
    try:
        import provision.planning
    except ImportError as error:
        if (error.name or "").startswith("provision.") and error.name != "provision.planning":
            # a defect of ours: no package that somebody could install mends it
            raise
        if error.name not in ("provision", "provision.planning"):
            raise AnsibleActionFail(
                "the controller lacks the Python package %s: pip install pydantic PyYAML" % error.name
            ) from error
        sys.path.insert(0, root)
        import provision.planning  # noqa: F401


def preload():
    """Load what our actions decide with while Ansible loads an action, in its own process: a worker for each host is a fork of it.

    No command of ours needs that: it hands its plans over.
    """
    if "GPU_PROVISION_EVENTS" in os.environ:
        return
    try:
        import_provision()
        from provision.catalog import load_catalog
        from provision.planning import verification  # noqa: F401

        load_catalog()
    except Exception:  # noqa: BLE001, S110 - the action meets the same, and says it
        pass


def role_values(templar, task_vars):
    """Return the roles' variables of this host: templated, converted to their types, checked as the command does.

    Raises VariablesError for a variable that no role knows.
    """
    from provision.inventory import PREFIXES, Host
    from provision.inventory.variables import effective

    found = {
        key: templar.template(value)
        for key, value in task_vars.items()
        if key.startswith(PREFIXES) and key not in _REPORTED
    }
    values = effective(Host(name=task_vars["inventory_hostname"], vars=found))
    values["inventory_dir"] = task_vars.get("inventory_dir") or task_vars.get("playbook_dir")
    values["inventory_source"] = of_play(task_vars)
    if task_vars.get("gpu_provision_lock"):
        values["gpu_provision_lock"] = templar.template(task_vars["gpu_provision_lock"])
    return values


def roles_to_run(task, role, task_vars):
    """Return {role: its own variables}: the role of ``task``, and those of ours that run after it in this play.

    A role is planned with the first one only if Ansible will run it: its plan task comes later in the play, its tags
    are selected, and its conditions hold, each judged by Ansible's own code with the variables that the role will see.
    A role is left to a plan of its own where that cannot be known yet: a condition has no answer so far or asks for
    what another role of ours reports, or the role is included while the play runs.
    """
    found = {role: {}}
    play = task.get_play()
    variables = play.get_variable_manager()
    host = variables._inventory.get_host(task_vars["inventory_hostname"])
    tasks = [each for block in play.compile() for each in block.get_tasks()]
    own = [at for at, each in enumerate(tasks) if each._uuid == task._uuid]
    for each in tasks[own[0] + 1 :] if own else ():
        if each.action not in _PLAN or each._role is None:
            continue
        seen = variables.get_vars(play=play, host=host, task=each)
        if each.evaluate_tags(play.only_tags, play.skip_tags, all_vars=seen) and _holds(each, seen):
            found[each.args["role"]] = {
                key: value for key, value in seen.items() if key.startswith(each.args["role"] + "_")
            }
    return found


def _holds(task, variables):
    """Return whether the conditions of a task, its role and its blocks are true already."""
    conditions = list(task.when)
    if any(name in str(condition) for name in _REPORTED for condition in conditions):
        return False
    try:
        templar = Templar(loader=task.get_loader(), variables=variables)
        return all(templar.evaluate_conditional(condition) for condition in conditions)
    except AnsibleError:
        # It asks for a variable that does not exist yet; the role itself says so if it never does.
        return False


def module_call(action, task_vars):
    """Return call(program, args) for planning: runs the module that is the program's code."""
    from provision.errors import HostFailedError

    def call(program, args):
        module, key = _MODULES[program]
        # the module's defaults
        args = {name: value for name, value in args.items() if value is not None}
        answer = action._execute_module(module_name=module, module_args=args, task_vars=task_vars)
        if answer.get("failed") or key not in answer:
            said = answer.get("module_stderr") or answer.get("msg") or "no answer"
            raise HostFailedError(
                answer.get("code", "host.read_failed"),
                answer.get("msg", "the host could not be read"),
                because=answer.get("because") or str(said).strip().splitlines()[-3:],
                hint=answer.get("hint"),
            )
        return answer[key]

    return call


def error_result(issue, task_vars):
    """Return a failed task result that carries an error's code, reasons and hint."""
    return {
        "failed": True,
        "msg": issue.message,
        "code": issue.code,
        "because": issue.because,
        "hint": with_playbook(issue.hint, task_vars),
    }
