#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
module: driver_plan
short_description: Decide what has to change for the NVIDIA driver of a host
description:
  - Reads the host, decides on the controller which driver it should have from the role variables, the catalog and what
    apt offers there, and lets apt simulate the change on the host. Changes nothing.
  - Takes its wishes from the C(nvidia_driver_*) variables of the host. With C(gpu_provision_plan_file), which the command
    C(provision apply) sets, it returns the plan that was shown and agreed to.
  - Fails with code, reasons and hint when the driver that is asked for cannot work on the host.
attributes:
  check_mode:
    description: Changes nothing, so it does the same in check mode.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
author: the gpu-provision founders
requirements: [on the controller the Python packages pydantic and PyYAML]
"""

EXAMPLES = r"""
- name: Decide what has to change
  gpu.provision.driver_plan:
  register: driver
"""

RETURN = r"""
plan:
  description: The plan with decisions, steps, packages and warnings.
  returned: success
  type: dict
  sample: {host: gpu01, status: changes, summary: "driver 580.126.20 open, signed modules, from the Ubuntu archive"}
spec:
  description: What the role carries out.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    AnsibleModule(argument_spec={}, supports_check_mode=True).fail_json(
        msg="driver_plan is an action plugin: it does not run on hosts"
    )


if __name__ == "__main__":
    main()
