#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
module: host_may_reboot
short_description: Say whether a host may be rebooted now
description:
  - Reads the host once more, right before a reboot; a plan may be hours old. Changes nothing.
  - No for the machine that the play runs on, however it is connected to (one kernel has one boot_id); no for GPUs that
    are in use, unless O(policy) allows that; no where O(policy) leaves the reboot to the owner.
options:
  policy:
    description: The C(nvidia_driver_reboot) of the host.
    type: str
    choices: [when_idle, always, never]
    default: when_idle
attributes:
  check_mode:
    description: Changes nothing; in check mode the answer is no.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
author: the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Check whether the host may be rebooted now
  gpu.provision.host_may_reboot:
    policy: when_idle
  register: look

- name: Reboot
  ansible.builtin.reboot:
  when: look.may | bool
"""

RETURN = r"""
may:
  description: Whether it may.
  returned: success
  type: bool
reasons:
  description: Why not, where that is not the owner's own setting.
  returned: success
  type: list
  elements: str
look:
  description: What was seen there, with C(gpu_users), C(boot_id) and C(machine_id).
  returned: success
  type: dict
"""

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule
from ansible_collections.gpu.provision.plugins.module_utils.probe import gpu_users


def main():
    module = HostModule(
        argument_spec={"policy": {"type": "str", "choices": ["when_idle", "always", "never"], "default": "when_idle"}},
        supports_check_mode=True,
    )
    module.exit_json(changed=False, look=gpu_users.main({}))


if __name__ == "__main__":
    main()
