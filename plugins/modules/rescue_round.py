#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rescue_round
short_description: Decide which repairs of a broken GPU host come next
version_added: "0.1.0"
description:
  - Reads the host, names what is broken, and chooses the smallest repairs that can do, on the controller. Changes nothing.
  - With C(gpu_provision_rescue_file), which the command C(provision rescue) sets, it returns the round that was shown and agreed
    to.
  - Fails with code, reasons and hint where a repair must wait, such as for work on the GPUs.
options:
  history:
    description: What an earlier call of this play returned as C(history).
    type: dict
    default: {}
  done:
    description: What the module rescue_step returned as C(steps) since then.
    type: list
    elements: dict
    default: []
  stop_holders:
    description: Whether services that hold the kernel modules may be stopped for a moment.
    type: bool
    default: false
attributes:
  check_mode:
    description: Changes nothing, so it does the same in check mode.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
author: the gpu-provision founders (@gpu-provision)
requirements: [on the controller the Python packages pydantic and PyYAML]
"""

EXAMPLES = r"""
- name: Decide what comes next
  gpu.provision.rescue_round:
  register: round
"""

RETURN = r"""
kind:
  description: C(mend), C(apply) or C(restart); C(none) where nothing is to be done.
  returned: success
  type: str
  sample: mend
steps:
  description: Steps for the module rescue_step.
  returned: success
  type: list
  elements: dict
roles:
  description: Roles that carry the plan of this round out; they find it in a fact.
  returned: success
  type: list
  elements: str
apt:
  description: What host_packages carries out; null when nothing of apt's changes.
  returned: success
  type: dict
reboot:
  description: Whether this round ends with a reboot of its own, why, and whether it is left to the owner.
  returned: success
  type: dict
history:
  description: For the next call.
  returned: success
  type: dict
left:
  description: Findings that stay, each in a line, where nothing more may be done.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    AnsibleModule(
        argument_spec={
            "history": {"type": "dict", "default": {}},
            "done": {"type": "list", "elements": "dict", "default": []},
            "stop_holders": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    ).fail_json(msg="rescue_round is an action plugin: it does not run on hosts")


if __name__ == "__main__":
    main()
