#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_diagnostics
short_description: Read a GPU host that may be broken
version_added: "0.1.0"
description:
  - Everything that M(gpu.provision.gpu_facts) reads, and beside it logs, leftovers and states of repair, as C(provision diagnose)
    reads them. Changes nothing.
options:
  smi_timeout:
    description: Seconds that nvidia-smi may take.
    type: float
    default: 20
  conda_prefixes:
    description: Where conda is looked for besides its usual places.
    type: list
    elements: str
    default: []
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
- name: Read what is wrong
  gpu.provision.gpu_diagnostics:
  register: read
"""

RETURN = r"""
gpu_diagnostics:
  description: The facts of gpu_facts, with C(trouble).
  returned: success
  type: dict
  sample: {packages: {}, trouble: {boot: {}, apt: {}, user: {}}}
"""

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule
from ansible_collections.gpu.provision.plugins.module_utils.probe import diagnostics as probe_diagnostics
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts


def main():
    module = HostModule(
        argument_spec={
            "smi_timeout": {"type": "float", "default": probe_facts.SMI_TIMEOUT},
            "conda_prefixes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    read = probe_diagnostics.collect(
        smi_timeout=module.params["smi_timeout"], conda_prefixes=module.params["conda_prefixes"]
    )
    module.exit_json(changed=False, gpu_diagnostics=read)


if __name__ == "__main__":
    main()
