#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ansible module: the lock on a host. An action plugin of the same name decides; see module_utils/run/lock.py."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: host_lock
short_description: Let one run at a time change a host
version_added: "0.1.0"
description:
  - Takes a lock on the host for this run of ansible-playbook, or gives it back. The command C(provision) honours the same lock.
  - Where another run holds it, the task fails with the code C(host.locked) and says whose it is, from where and since when.
  - The lock of a run that was killed is taken over, with the proof said. C(plugins/module_utils/run/lock.py) has the rule.
  - With O(state=absent) the host also keeps a short record of what the play did, under C(/var/lib/gpu-provision/history).
  - The variable C(gpu_provision_break_lock) takes the lock whoever has it.
options:
  state:
    description: Take the lock, or give it back.
    type: str
    choices: [present, absent]
    default: present
  op:
    description: What the action plugin asks the module to do on the host.
    type: str
    choices: [acquire, leave]
  holder:
    description: What the lock is to say of this run, filled in by the action plugin.
    type: dict
  lease:
    description: Seconds for which nobody takes the lock away.
    type: int
  over:
    description: The run whose lock was proven to be stale on the controller.
    type: str
  force:
    description: Take the lock whoever has it.
    type: bool
    default: false
  run:
    description: The run that gives its lock back.
    type: str
  record:
    description: What the host keeps of the run.
    type: dict
attributes:
  check_mode:
    description: Says whether the lock is free, takes none.
    support: full
  diff_mode:
    description: A lock is no configuration.
    support: none
author: the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: One run at a time
  block:
    - name: Take the host's lock
      gpu.provision.host_lock:

    - name: Have the driver
      ansible.builtin.import_role:
        name: gpu.provision.nvidia_driver

  always:
    - name: Give the lock back
      gpu.provision.host_lock:
        state: absent
"""

RETURN = r"""
held:
  description: Whose lock is in the way; null where none is.
  returned: always
  type: dict
  sample:
    who: ada@desk
    from: 10.0.0.7
    since: "2026-11-28T09:30:00Z"
    command: provision apply
    run: 20261128T093000Z-apply-4f2a10
replaced:
  description: Whose lock was taken over.
  returned: when the lock was taken
  type: dict
why:
  description: The proof that it was stale.
  returned: when the lock was taken
  type: str
  sample: its process 4711 on desk has ended
released:
  description: Whether this run still had the lock.
  returned: when the lock was given back
  type: bool
"""

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock
from ansible_collections.gpu.provision.plugins.module_utils.run import record as run_record


def main():
    module = HostModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "op": {"type": "str", "choices": ["acquire", "leave"]},
            "holder": {"type": "dict"},
            "lease": {"type": "int"},
            "over": {"type": "str"},
            "force": {"type": "bool", "default": False},
            "run": {"type": "str"},
            "record": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        if params["op"] == "acquire":
            answer = run_lock.acquire(
                params["holder"], params["lease"], params["over"], params["force"], check=module.check_mode
            )
        elif params["op"] == "leave":
            answer = run_record.leave(params["record"], params["run"])
        else:
            module.fail_json(msg="host_lock is an action plugin: it decides on the controller")
    except run_lock.LockError as error:
        module.fail_json(msg=str(error), code=error.code, because=error.because, hint=error.hint)
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()
