#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rescue_step
short_description: Carry out the smallest repairs of a broken GPU host
version_added: "0.1.0"
description:
  - Reloads modules, finishes half-configured packages, makes room in /boot, builds initramfs images, lifts holds, repairs
    apt's sources and lists, and renames files. Each step first checks whether there is anything to do.
  - A step that cannot be done does not fail the task. Its result says why, and a larger repair may follow.
options:
  steps:
    description: What to do, in order, as C(provision diagnose) names it.
    type: list
    elements: dict
    required: true
    suboptions:
      action:
        description: One of the actions of levels 0 to 2; docs/rescue.md explains them.
        type: str
        required: true
      words:
        description: The step in words, for people.
        type: str
        default: ""
      args:
        description: What the action is about; see docs/rescue.md.
        type: dict
        default: {}
  stop_holders:
    description:
      - Whether services that hold the kernel modules (a display, DCGM) may be stopped while modules are reloaded. Processes
        that are no service are never ended.
    type: bool
    default: false
  lock_timeout:
    description: Seconds to wait for another program that holds dpkg's lock.
    type: int
    default: 600
  environment:
    description: Proxy of the host, for what fetches something.
    type: dict
    default: {}
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
author: the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Finish what dpkg left half-done, and clear holds on packages that are not installed
  gpu.provision.rescue_step:
    steps:
      - action: dpkg.configure
      - action: holds.clear
        args:
          packages: [libnvidia-gl-570]
"""

RETURN = r"""
steps:
  description: Every step with C(action), C(ok), C(changed), C(said), and C(code) and C(hint) of what could not be done.
  returned: success
  type: list
  elements: dict
  sample: [{action: dpkg.configure, ok: true, changed: true, said: [finished nvidia-dkms-580-open]}]
backup:
  description: The folder on the host with changed files as they were; null where none was.
  returned: success
  type: str
  sample: /var/lib/gpu-provision/backup/20261128T093012Z
"""

from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule
from ansible_collections.gpu.provision.plugins.module_utils.rescue import step as rescue_step


def main():
    module = HostModule(
        argument_spec={
            "steps": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "action": {"type": "str", "required": True},
                    "words": {"type": "str", "default": ""},
                    "args": {"type": "dict", "default": {}},
                },
            },
            "stop_holders": {"type": "bool", "default": False},
            "lock_timeout": {"type": "int", "default": 600},
            "environment": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    try:
        result = rescue_step.run(module.params, module.check_mode)
    except AptError as error:
        module.fail_json(msg=error.message, **error.as_dict())
    module.exit_json(**result)


if __name__ == "__main__":
    main()
