#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
module: host_drift
short_description: Say what of a host is not as inventory and lock say
description:
  - Reads the host once and compares it, on the controller, with its role variables, with the lock (C(fleet.lock.yml) beside
    the inventory, or the file that the variable C(gpu_provision_lock) names; C(none) is for none), and its cards with what
    the lock saw of them. Changes nothing.
  - Hosts are not compared with each other here; the command C(provision drift) does.
options:
  fail:
    description: Fail the task, with the code C(drift.drifted), where anything drifted.
    type: bool
    default: true
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
- name: Fail where the host is not as it should be
  gpu.provision.host_drift:

- name: Only look
  gpu.provision.host_drift:
    fail: false
  register: drift
"""

RETURN = r"""
drifted:
  description: Whether anything is not as it should be.
  returned: always
  type: bool
found:
  description: What drifted, the gravest first.
  returned: always
  type: list
  elements: dict
  sample:
    - {code: holds.driver, what: holds of the driver, expected: every package held, found: "not held: nvidia-utils-580",
       against: inventory, hint: provision apply corrects it}
group:
  description: The group of the lock that the host is compared with; null without one.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    module = AnsibleModule(argument_spec={"fail": {"type": "bool", "default": True}}, supports_check_mode=True)
    module.fail_json(msg="host_drift is an action plugin: it does not run on hosts")


if __name__ == "__main__":
    main()
