#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ansible module: one conda environment, made as asked and proved. The work is in module_utils/conda/make_environment.py."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: conda_environment
short_description: Make one conda environment, and prove that it is what was asked for
version_added: "0.1.0"
description:
  - Makes C(PREFIX/envs/NAME) with conda, then with pip, as the owner of the prefix and by absolute paths only.
  - Compares what is there afterwards with what was asked for, builds included. A framework that came without CUDA where
    CUDA was asked for is an error, and nothing of it stays.
  - A run that was interrupted is recognised by a marker beside the environment, and the next one rebuilds it.
  - An environment of somebody else is never touched. One that differs is replaced only with O(action=rebuild), after its
    export was saved, and comes back when the new one cannot be made.
  - Proxies are those of the task's environment. An index with a password goes to pip through its environment.
attributes:
  check_mode:
    description: Says what would be done; conda is not asked.
    support: full
  diff_mode:
    description: Shows packages before, and what is asked for.
    support: full
options:
  name:
    description: Name of the environment.
    type: str
    required: true
  prefix:
    description: Conda to make it with, as an absolute path; C(~USER/) is written out.
    type: str
    required: true
  action:
    description:
      - V(create) for an absent one, V(finish) for one that a run before began, V(rebuild) for one that differs,
        V(configure) for the settings of one that is as it should be.
      - The module checks the host itself.
    type: str
    choices: [create, rebuild, finish, configure]
    default: create
  owner:
    description: User who owns the prefix.
    type: str
    default: root
  group:
    description: Group of the files; empty takes the owner's own.
    type: str
    default: ""
  umask:
    description: Three octal digits.
    type: str
    default: "022"
  channels:
    description: Channels, and no others. URLs with a password are refused, since every user can read conda's arguments.
    type: list
    elements: str
    default: []
  packages:
    description: Conda packages, such as C(pytorch=2.5.1=py3.11_cuda12.1_cudnn9.1.0_0), solved together.
    type: list
    elements: str
    default: []
  pip:
    description: Steps of pip, in order.
    type: list
    elements: dict
    default: []
    suboptions:
      packages:
        description: Requirements.
        type: list
        elements: str
        required: true
      index_url:
        description: Index to take them from; empty for pip's own.
        type: str
        default: ""
      extra_index_urls:
        description: Further indexes.
        type: list
        elements: str
        default: []
  file_kind:
    description: V(environment) for an environment.yml, V(explicit) for an explicit list, instead of O(packages).
    type: str
    choices: ["", environment, explicit]
    default: ""
  file_content:
    description: Text of that file.
    type: str
    default: ""
  pip_index_url:
    description: Index of the packages for pip that such a file names. Empty leaves pip's own.
    type: str
    default: ""
  override_cuda:
    description: CUDA that the solve is to assume (C(CONDA_OVERRIDE_CUDA)), for a host whose driver does not run yet.
    type: str
    default: ""
  library_path:
    description: Put the environment's libraries in front of C(LD_LIBRARY_PATH) while it is active.
    type: bool
    default: false
  lib64_link:
    description: Link C(lib64) to C(lib), where extension builds look for it.
    type: bool
    default: false
  export_to:
    description: Where exports are saved before a rebuild.
    type: str
    default: /var/backups/gpu-provision/conda
  wish:
    description: What was asked for, kept in the record; an environment whose record has the same is not changed.
    type: dict
    default: {}
  timeout:
    description: Seconds that conda, and each step of pip, may take.
    type: int
    default: 7200
author:
  - the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: PyTorch 2.6 with CUDA 12.4
  gpu.provision.conda_environment:
    name: py312cu124
    prefix: /opt/miniforge3
    channels: [conda-forge]
    packages: [python=3.12]
    pip:
      - packages: [torch==2.6.0+cu124]
        index_url: https://download.pytorch.org/whl/cu124
    wish: {python: "3.12", torch: 2.6.0, cuda: "12.4"}
"""

RETURN = r"""
done:
  description: What was done (in check mode, what would be), in order.
  returned: success
  type: list
  elements: str
  sample: [made the environment py312cu124]
path:
  description: Path of the environment.
  returned: success
  type: str
  sample: /opt/miniforge3/envs/py312cu124
export:
  description: Folder with the export of what was replaced, or null.
  returned: success
  type: str
  sample: /var/backups/gpu-provision/conda/py312cu124-20261128T031200Z
code:
  description: Stable name of the failure, such as C(conda.terms) or C(conda.environment_wrong).
  returned: failure
  type: str
  sample: conda.unsatisfiable
"""

from ansible_collections.gpu.provision.plugins.module_utils.conda import make_environment
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule


def main():
    texts = {"type": "list", "elements": "str", "default": []}
    module = HostModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "prefix": {"type": "str", "required": True},
            "action": {"type": "str", "choices": ["create", "rebuild", "finish", "configure"], "default": "create"},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": ""},
            "umask": {"type": "str", "default": "022"},
            "channels": texts,
            "packages": texts,
            "pip": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "packages": {"type": "list", "elements": "str", "required": True},
                    "index_url": {"type": "str", "default": ""},
                    "extra_index_urls": texts,
                },
            },
            "file_kind": {"type": "str", "choices": ["", "environment", "explicit"], "default": ""},
            "file_content": {"type": "str", "default": ""},
            "pip_index_url": {"type": "str", "default": ""},
            "override_cuda": {"type": "str", "default": ""},
            "library_path": {"type": "bool", "default": False},
            "lib64_link": {"type": "bool", "default": False},
            "export_to": {"type": "str", "default": make_environment.EXPORTS},
            "wish": {"type": "dict", "default": {}},
            "timeout": {"type": "int", "default": 7200},
        },
        supports_check_mode=True,
    )
    try:
        answer = make_environment.run(module.params, module.check_mode)
    except CondaError as error:
        module.fail_json(msg=error.message, **error.as_dict())
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
