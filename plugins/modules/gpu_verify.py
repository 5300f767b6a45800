#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_verify
short_description: Prove that the GPUs of a host work, and will work after the next boot
description:
  - Reads the host once and judges it check by check, each with its evidence and a hint; then has every card compute.
    Changes nothing and leaves nothing behind.
  - The action plugin of the same name reads the host and judges, on the controller, by what follows from its role
    variables, and fails the task where a check fails, with the code C(verify.failed). The module itself measures what has to
    be measured on the host.
options:
  expect:
    description:
      - The expected state of the host, over what follows from the role variables. Keys are C(version), C(branch), C(flavour),
        C(manage), C(hold), C(persistence), C(fabric_manager), C(gpus) and C(cuda).
    type: dict
    default: {}
  only:
    description: Names or patterns of the checks to run, all when empty.
    type: list
    elements: str
    default: []
  deep:
    description: Take the time to test most of each card's memory and to measure longer.
    type: bool
    default: false
  strict:
    description: Treat warnings as failures; without it as C(gpu_verify_strict) says.
    type: bool
  prove:
    description: Filled in by the action plugin, for the checks that run something; null for none.
    type: dict
attributes:
  check_mode:
    description: Changes nothing, so it does the same in check mode.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
author: the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Prove that the driver works
  gpu.provision.gpu_verify:

- name: Check whether the host can be rebooted
  gpu.provision.gpu_verify:
    only: [boot.next]
"""

RETURN = r"""
checks:
  description: One verdict a check.
  returned: always
  type: list
  elements: dict
  sample:
    - {id: driver.versions, status: pass, message: "580.126.20 everywhere", evidence: ["loaded module: 580.126.20"], hint: null}
"""

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule
from ansible_collections.gpu.provision.plugins.module_utils.prove import proofs


def main():
    module = HostModule(
        argument_spec={
            "expect": {"type": "dict", "default": {}},
            "only": {"type": "list", "elements": "str", "default": []},
            "deep": {"type": "bool", "default": False},
            "strict": {"type": "bool"},
            "prove": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    wanted = module.params["prove"]
    module.exit_json(changed=False, measured=[] if wanted is None else proofs.main(wanted)["measured"])


if __name__ == "__main__":
    main()
