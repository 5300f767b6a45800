#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
module: host_plan
short_description: Decide what has to change on a host, for the roles of this play
description:
  - Reads the host, decides on the controller what it should have from the role variables, the catalog and apt's candidates
    there, and lets apt simulate the change on the host. Changes nothing.
  - The first role of a play plans for all our roles that the play lists under C(roles), so that their packages change in
    one apt transaction; the others get their part of that plan. A role that is included by a task plans for itself.
  - With C(gpu_provision_plan_file), which the command C(provision apply) sets, it returns the plan that was shown and
    agreed to.
  - Without O(role) it plans for all roles, as C(provision plan) does, and nobody carries it out.
  - Fails with code, reasons and hint when what is asked for cannot work on the host.
options:
  role:
    description: The role that asks. Without it the plan is for all roles.
    type: str
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
- name: Decide what has to change
  gpu.provision.host_plan:
    role: nvidia_driver
  register: driver

- name: Change packages and holds
  gpu.provision.host_packages:
    apt: "{{ driver.apt }}"
  when: driver.apt is not none

- name: Only look
  gpu.provision.host_plan:
  register: plan
"""

RETURN = r"""
plan:
  description: The plan with decisions, steps, packages and warnings.
  returned: success
  type: dict
  sample: {host: gpu01, status: changes, summary: "driver 580.126.20 open, signed modules, from the Ubuntu archive"}
lines:
  description: The plan as text, a line for each thing that would change; C(nothing to change), and warnings.
  returned: without a role
  type: list
  elements: str
  sample: ["+ driver: 580.126.20 open, signed modules", "! reboot: the new driver is loaded by a reboot"]
apt:
  description: What host_packages carries out; null when nothing of apt's changes, and for every role but the first.
  returned: with a role
  type: dict
spec:
  description: What the role itself carries out.
  returned: with a role
  type: dict
environment:
  description: The host's proxy, for tasks that fetch something; empty without one.
  returned: with a role
  type: dict
  sample: {http_proxy: "http://proxy.example.org:3128", https_proxy: "http://proxy.example.org:3128", no_proxy: localhost}
"""

from ansible.module_utils.basic import AnsibleModule


def main():
    AnsibleModule(argument_spec={"role": {"type": "str"}}, supports_check_mode=True).fail_json(
        msg="host_plan is an action plugin: it does not run on hosts"
    )


if __name__ == "__main__":
    main()
