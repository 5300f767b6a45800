#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
module: host_packages
short_description: Carry out what a plan asks of apt, in one transaction
description:
  - Runs M(gpu.provision.apt_transaction) with the arguments that M(gpu.provision.host_plan) worked out.
options:
  apt:
    description: The C(apt) that M(gpu.provision.host_plan) returned.
    type: dict
    required: true
attributes:
  check_mode:
    description: As M(gpu.provision.apt_transaction).
    support: full
  diff_mode:
    description: As M(gpu.provision.apt_transaction).
    support: full
author: the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Change packages and holds
  gpu.provision.host_packages:
    apt: "{{ driver.apt }}"
  when: driver.apt is not none
"""

RETURN = r"""
changes:
  description: As M(gpu.provision.apt_transaction).
  returned: success
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    AnsibleModule(argument_spec={"apt": {"type": "dict", "required": True}}, supports_check_mode=True).fail_json(
        msg="host_packages is an action plugin: it does not run on hosts"
    )


if __name__ == "__main__":
    main()
