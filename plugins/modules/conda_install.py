#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ansible module: one conda prefix, as it should be. The work is in module_utils/conda/install.py."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: conda_install
short_description: Install, finish, repair or update one Miniconda or Miniforge
version_added: "0.1.0"
description:
  - Tells three states of a prefix apart by its files, absent, whole and partial, and does only what is missing. A whole
    one is never installed again.
  - Fetches the installer into a folder of its own, continuing an interrupted download, and checks its checksum before
    it is run. A wrong one is an error that leaves nothing behind. A file on the host or a mirror works the same.
  - Runs the installer in its batch mode as the owner of the prefix, with that user's rights, home and umask.
  - While the installer works, the prefix has a marker. A run that was killed is recognised by it, and the next one
    finishes it. Any other partial prefix is repaired only when O(action=repair).
  - Sets keys of the prefix's C(.condarc) and keeps all others. Accepts terms of service only on request.
  - Proxies are those of the task's environment.
attributes:
  check_mode:
    description: Says what would be done; nothing is fetched.
    support: full
  diff_mode:
    description: Shows the state of the prefix, and files before and after.
    support: full
options:
  prefix:
    description: The prefix of conda, as an absolute path without spaces; C(~USER/) is written out.
    type: str
    required: true
  action:
    description:
      - V(install) for an absent prefix, and for one whose installation by gpu-provision was interrupted.
      - V(update) runs the installer over a whole one (C(-u)), when it is newer.
      - V(repair) runs it over a partial one that is not ours.
      - V(configure) only takes care of its settings.
      - The module checks the host itself, and does not change what is as it should be, whatever was planned.
    type: str
    choices: [install, update, repair, configure]
    default: install
  distribution:
    description: For the record.
    type: str
    choices: [miniconda, miniforge]
    default: miniconda
  version:
    description: Version of the installer, or V(latest).
    type: str
    default: ""
  installer:
    description: Name of the installer's file.
    type: str
    default: ""
  url:
    description: Where the host fetches the installer.
    type: str
    default: ""
  file:
    description: The installer on the host, instead of O(url).
    type: str
    default: ""
  sha256:
    description: Checksum of the installer. Empty only for V(latest), which moves.
    type: str
    default: ""
  owner:
    description: User who runs the installer and owns the prefix.
    type: str
    default: root
  group:
    description: Group of the files; empty takes the owner's own.
    type: str
    default: ""
  umask:
    description: Three octal digits; V(002) lets the group write.
    type: str
    default: "022"
  condarc:
    description: Keys to set in C(PREFIX/.condarc).
    type: dict
    default: {}
  accept_tos:
    description: Channels whose terms are accepted, for everyone who uses the prefix. The owner's explicit word.
    type: list
    elements: str
    default: []
  profile:
    description: Write C(/etc/profile.d/gpu-provision-conda.sh), which makes C(conda) reachable and activates nothing.
    type: bool
    default: false
  shell_init:
    description: Users for whom C(conda init) is run, as themselves.
    type: list
    elements: str
    default: []
  cache_dir:
    description: Where installers are kept. Only root may write there, since the installers are run.
    type: str
    default: /var/cache/gpu-provision/conda
  timeout:
    description: Seconds that the installer may take.
    type: int
    default: 3600
author:
  - the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Miniforge for everyone, by its checksum
  gpu.provision.conda_install:
    prefix: /opt/miniforge3
    distribution: miniforge
    version: 26.3.2-3
    installer: Miniforge3-26.3.2-3-Linux-x86_64.sh
    url: https://github.com/conda-forge/miniforge/releases/download/26.3.2-3/Miniforge3-26.3.2-3-Linux-x86_64.sh
    sha256: 848194851a98903134187fbb4ab50efe87b003e0c0f808f97644b7524a62bf2c
    profile: true
"""

RETURN = r"""
done:
  description: What was done (in check mode, what would be), in order.
  returned: success
  type: list
  elements: str
  sample: [installed miniforge 26.3.2-3 at /opt/miniforge3, wrote /etc/profile.d/gpu-provision-conda.sh]
state:
  description: State of the prefix afterwards (in check mode, before), V(absent), V(whole) or V(partial).
  returned: success
  type: str
  sample: whole
version:
  description: Version of conda in it, or null.
  returned: success
  type: str
  sample: 26.3.2
code:
  description: Stable name of the failure, such as C(conda.checksum) or C(conda.disk_full).
  returned: failure
  type: str
  sample: conda.checksum
"""

from ansible_collections.gpu.provision.plugins.module_utils.conda import install as conda_install
from ansible_collections.gpu.provision.plugins.module_utils.conda.common import CondaError
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule


def main():
    module = HostModule(
        argument_spec={
            "prefix": {"type": "str", "required": True},
            "action": {"type": "str", "choices": ["install", "update", "repair", "configure"], "default": "install"},
            "distribution": {"type": "str", "choices": ["miniconda", "miniforge"], "default": "miniconda"},
            "version": {"type": "str", "default": ""},
            "installer": {"type": "str", "default": ""},
            "url": {"type": "str", "default": ""},
            "file": {"type": "str", "default": ""},
            "sha256": {"type": "str", "default": ""},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": ""},
            "umask": {"type": "str", "default": "022"},
            "condarc": {"type": "dict", "default": {}},
            "accept_tos": {"type": "list", "elements": "str", "default": []},
            "profile": {"type": "bool", "default": False},
            "shell_init": {"type": "list", "elements": "str", "default": []},
            "cache_dir": {"type": "str", "default": conda_install.CACHE},
            "timeout": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    try:
        answer = conda_install.run(module.params, module.check_mode)
    except CondaError as error:
        module.fail_json(msg=error.message, **error.as_dict())
    for warning in answer.pop("warnings"):
        module.warn(warning)
    module.exit_json(**answer)


if __name__ == "__main__":
    main()
