#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Read what a host has of NVIDIA GPUs and their driver, layer by layer
description:
  - Reads GPUs on the PCI bus, the loaded kernel module, modules on disk for every kernel, packages and their
    states, libraries, repositories and pins, holds, the next kernel, Secure Boot, traces of other installers,
    processes that use a GPU, and what C(nvidia-smi) says.
  - Reads files and starts no program but C(nvidia-smi). Changes nothing. Works without root; what only root
    may read is then listed under C(unreadable) and reported as unknown.
  - Facts are returned as a result and not put among the host's variables, because a play reads them more than
    once (before and after a change) and must not mix the two.
options:
  smi_timeout:
    description: Seconds after which a C(nvidia-smi) that does not answer is stopped and reported.
    type: float
    default: 20
  conda_prefixes:
    description: Conda installations to read besides those in the usual places.
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
notes:
  - Needs nothing on the host but Python 3.8 or later.
author: the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Read the host
  gpu.provision.gpu_facts:
  register: __gpu

- name: Say which driver is loaded
  ansible.builtin.debug:
    msg: "{{ __gpu.gpu_facts.module.loaded.version | default('none', true) }}"
  when: __gpu.gpu_facts.module.loaded is not none

- name: Read a host whose driver may hang
  gpu.provision.gpu_facts:
    smi_timeout: 5
"""

RETURN = r"""
gpu_facts:
  description:
    - What the host has, in the layout of the model C(Facts) of the command C(provision scan --json).
    - A value that is C(null) is not known.
  returned: always
  type: dict
  contains:
    host:
      description: Name, operating system, architecture, boot id, container or virtual machine.
      returned: always
      type: dict
      sample: {hostname: gpu01, os: {id: ubuntu, version_id: "24.04"}, arch: amd64, container: null}
    gpus:
      description: NVIDIA GPUs on the PCI bus and the kernel driver that each is bound to.
      returned: always
      type: list
      elements: dict
      sample: [{slot: "0000:1b:00.0", device: "2330", pci_class: "0302", driver: nvidia}]
    module:
      description: The module that is loaded, and the modules on disk of every kernel, in modprobe's order.
      returned: always
      type: dict
      sample:
        loaded: {version: 580.126.20, flavour: open}
        on_disk: [{kernel: 6.8.0-45-generic, version: 580.126.20, flavour: open, signed: true}]
    kernels:
      description: Running, installed and next kernel, and why it is the next.
      returned: always
      type: dict
      sample: {running: 6.8.0-45-generic, next: 6.8.0-45-generic, next_because: "GRUB starts 'Ubuntu'"}
    packages:
      description: Packages of NVIDIA, CUDA, kernels and containers; C(status) as C(dpkg -l) prints it.
      returned: always
      type: dict
      sample: {nvidia-utils-580-server: {version: 580.126.20-0ubuntu0.24.04.1, status: hi}}
    smi:
      description: What nvidia-smi answered, or its own words when it failed.
      returned: always
      type: dict
      sample: {ran: true, rc: 0, timed_out: false, driver_version: 580.126.20, cuda_version: "13.0"}
    apt:
      description: Sources, preferences, unattended-upgrades, age of the lists and the holder of apt's lock.
      returned: always
      type: dict
      sample: {lock_holder: "pid 812 (unattended-upgr)", errors: []}
    unreadable:
      description: Paths that only root may read.
      returned: always
      type: list
      elements: str
      sample: ["/proc/*/fd"]
"""

from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts


def main():
    module = HostModule(
        argument_spec={
            "smi_timeout": {"type": "float", "default": probe_facts.SMI_TIMEOUT},
            "conda_prefixes": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    if module.params["smi_timeout"] <= 0:
        module.fail_json(msg="smi_timeout must be more than 0", code="facts.bad_timeout", hint="leave it out for 20")
    facts = probe_facts.collect(
        smi_timeout=module.params["smi_timeout"], conda_prefixes=module.params["conda_prefixes"]
    )
    module.exit_json(changed=False, gpu_facts=facts)


if __name__ == "__main__":
    main()
