#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
module: rollout_hook
short_description: Run a drain or resume hook
description:
  - Runs a command of the owner's with a limit of time, never through a shell. The same code as C(provision apply) uses.
options:
  command:
    description: The program and its arguments.
    type: list
    elements: str
    required: true
  phase:
    description: What it is for; the command finds it in GPU_ROLLOUT_PHASE.
    type: str
    choices: [drain, resume]
    required: true
  host:
    description: Name of the host that is drained or resumed; the command finds it in GPU_ROLLOUT_HOST.
    type: str
    required: true
  timeout:
    description: Seconds after which it has failed and is ended.
    type: int
    default: 600
attributes:
  check_mode:
    description: Nothing is run in check mode.
    support: full
  diff_mode:
    description: There is nothing to show a difference of.
    support: none
author: the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Drain the node
  gpu.provision.rollout_hook:
    command: [scontrol, update, "nodename={{ inventory_hostname }}", state=drain, reason=gpu-provision]
    phase: drain
    host: "{{ inventory_hostname }}"
  delegate_to: localhost
"""

RETURN = r"""
rc:
  description: What the command ended with; null where it was ended, or could not be started.
  returned: always
  type: int
output:
  description: The end of what it said.
  returned: always
  type: str
seconds:
  description: How long it took.
  returned: always
  type: float
"""

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule
from ansible_collections.gpu.provision.plugins.module_utils.run import hook as run_hook


def main():
    module = HostModule(
        argument_spec={
            "command": {"type": "list", "elements": "str", "required": True},
            "phase": {"type": "str", "choices": ["drain", "resume"], "required": True},
            "host": {"type": "str", "required": True},
            "timeout": {"type": "int", "default": 600},
        },
        supports_check_mode=True,
    )
    args = module.params
    if not args["command"]:
        module.fail_json(msg="the command is empty", hint="a list, the program first")
    if module.check_mode:
        module.exit_json(changed=True, rc=None, output="", seconds=0.0)
    environment = {"GPU_ROLLOUT_HOST": args["host"], "GPU_ROLLOUT_PHASE": args["phase"]}
    answer = run_hook.run(args["command"], environment, args["timeout"])
    if answer["rc"] == 0:
        module.exit_json(changed=True, **answer)
    how = "did not end within %d s" % args["timeout"] if answer["timed_out"] else "ended with %s" % answer["rc"]
    if answer["rc"] is None and not answer["timed_out"]:
        how = "could not be started"
    module.fail_json(
        msg="the %s hook %s %s" % (args["phase"], args["command"][0], how),
        code="rollout.%s_failed" % args["phase"],
        because=answer["output"].strip().splitlines()[-6:],
        **answer,
    )


if __name__ == "__main__":
    main()
