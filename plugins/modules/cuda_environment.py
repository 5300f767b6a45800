#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: cuda_environment
short_description: Files for shells, links and the loader's cache of a host with CUDA toolkits
version_added: "0.1.0"
description:
  - Writes files in one step each, removes its own files, has C(/usr/local/cuda) lead where it should through
    update-alternatives, and runs ldconfig where that is needed.
  - One module for all of it, so that a host is asked once. What is as it should be is not changed, and no program is
    started for it.
  - Refuses before anything is changed when a file or folder of somebody else is in the way.
options:
  files:
    description: Files to write, owned by root.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Path of the file. Missing folders are made, 0755.
        type: path
        required: true
      content:
        description: What is in it. One of the first three lines must say C(written by gpu-provision).
        type: str
        required: true
      mode:
        description: Its mode, in octal.
        type: str
        default: "0644"
  absent:
    description: Files to remove, where one of the first three lines says that gpu-provision wrote them.
    type: list
    elements: path
    default: []
  alternatives:
    description:
      - Links that update-alternatives is to keep at a path, in manual mode, so that no installation moves them.
      - A plain link in its place is replaced; where it led is returned in RV(replaced). A folder or file in its place is
        refused and never removed.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the group.
        type: str
        required: true
      link:
        description: The link that people use.
        type: path
        required: true
      path:
        description: The folder that it leads to.
        type: path
        required: true
      priority:
        description: Priority with which the choice is registered where it is not yet.
        type: int
        required: true
  alternatives_gone:
    description: Choices to remove from update-alternatives, where their folder is gone.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the group.
        type: str
        required: true
      path:
        description: The choice.
        type: path
        required: true
  ldconfig:
    description:
      - Run ldconfig in any case. Without it, it runs when a file of C(/etc/ld.so.conf.d) named here changed, or is newer
        than the cache.
    type: bool
    default: false
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: Shows files and groups of alternatives before and after.
    support: full
author: the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Keep /usr/local/cuda at 12.4, whatever else gets installed
  gpu.provision.cuda_environment:
    alternatives:
      - {name: cuda, link: /usr/local/cuda, path: /usr/local/cuda-12.4, priority: 124}
    files:
      - path: /etc/ld.so.conf.d/001_gpu-provision-cuda.conf
        content: |
          # written by gpu-provision
          /usr/local/cuda-12.4/targets/x86_64-linux/lib
"""

RETURN = r"""
done:
  description: What was done (in check mode, what would be), in order.
  returned: always
  type: list
  elements: str
  sample:
    - "/usr/local/cuda leads to /usr/local/cuda-12.4, and stays there"
    - "wrote /etc/profile.d/gpu-provision-cuda.sh"
replaced:
  description: Plain links that were in the place of an alternative, and where they led.
  returned: success
  type: dict
  sample: {/usr/local/cuda: /usr/local/cuda-11.2}
left:
  description: Files that were to be removed and stay, because they do not say that gpu-provision wrote them.
  returned: success
  type: list
  elements: str
  sample: []
code:
  description:
    - Stable name of the failure, one of C(cuda.file), C(cuda.foreign_file), C(cuda.link_is_directory),
      C(cuda.no_toolkit), C(cuda.alternatives_failed), C(cuda.ldconfig_failed), C(cuda.usage).
  returned: failure
  type: str
  sample: cuda.link_is_directory
"""

from ansible_collections.gpu.provision.plugins.module_utils.cuda import environment as cuda_environment
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule


def mode_of(module, item):
    """Mode of a file as a number; fails for what is no octal one."""
    try:
        return int(item["mode"], 8)
    except ValueError:
        module.fail_json(
            msg="%s: the mode %r is not octal" % (item["path"], item["mode"]), code="cuda.usage", hint='mode: "0644"'
        )


def main():
    module = HostModule(
        argument_spec={
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str", "required": True},
                    "mode": {"type": "str", "default": "0644"},
                },
            },
            "absent": {"type": "list", "elements": "path", "default": []},
            "alternatives": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "link": {"type": "path", "required": True},
                    "path": {"type": "path", "required": True},
                    "priority": {"type": "int", "required": True},
                },
            },
            "alternatives_gone": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"name": {"type": "str", "required": True}, "path": {"type": "path", "required": True}},
            },
            "ldconfig": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )

    def start(argv):
        # ldconfig and update-alternatives lie where a user's PATH may not lead.
        program = module.get_bin_path(argv[0], required=True, opt_dirs=["/usr/sbin", "/sbin"])
        return module.run_command([program] + argv[1:], environ_update={"LC_ALL": "C"})

    params = dict(module.params)
    params["files"] = [dict(item, mode=mode_of(module, item)) for item in params["files"]]
    try:
        result = cuda_environment.Environment(start, module.check_mode).apply(**params)
    except cuda_environment.CudaEnvError as error:
        module.fail_json(
            msg=error.message,
            code=error.code,
            because=error.because,
            hint=error.hint,
            done=error.done,
            changed=bool(error.done),
        )
    module.exit_json(**result)


if __name__ == "__main__":
    main()
