#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ansible module: one repository of ours in apt's configuration, and nobody else's entry for it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: apt_sources
short_description: Configure one apt repository with its key, and remove other entries for it
version_added: "0.1.0"
description:
  - Writes C(/etc/apt/sources.list.d/gpu-provision-NAME.sources) and C(/etc/apt/keyrings/gpu-provision-NAME.gpg).
  - The key's fingerprint is checked before anything is written.
  - Entries for the same repository in other files are removed, because two entries with different keys break every
    call of apt. The files are saved under C(/var/lib/gpu-provision/backup) first.
  - Writes our preferences and our list for unattended-upgrades as well, so that one task does all configuration.
  - Needs nothing on the host but Python.
attributes:
  check_mode:
    description: Changes nothing; a key that would be fetched is not.
    support: full
  diff_mode:
    description: Shows every file before and after.
    support: full
options:
  name:
    description:
      - Short name of the repository. Without it only O(preferences) and O(unattended_blacklist) are looked after.
    type: str
  state:
    description:
      - V(absent) removes the files of this repository; with O(preferences) or O(unattended_blacklist) given as empty,
        those too.
    type: str
    choices: [present, absent]
    default: present
  uris:
    description: Address of the repository.
    type: str
  suites:
    description: Suites, or C(/) for a flat repository.
    type: str
    default: /
  components:
    description: Components; empty for a flat repository.
    type: str
    default: ""
  architectures:
    description: Architectures, if not all.
    type: str
  key:
    description: The key, armored or as base64 of the binary form.
    type: str
  key_url:
    description:
      - Where the host fetches the key, through the proxies of the environment. Needs O(fingerprint). Nothing is fetched
        when the installed key has that fingerprint.
    type: str
  fingerprint:
    description: Full fingerprints, one of which every key in the file must have.
    type: list
    elements: str
  migrate:
    description: Remove entries for the same repository in other files.
    type: bool
    default: true
  legacy_uris:
    description:
      - Regular expressions. An entry of another file is removed too when its normalised URI (no scheme for http and
        https, no slash at the end) matches one from the start.
    type: list
    elements: str
    default: []
  legacy_keys:
    description:
      - Full fingerprints of keys that apt is no longer to trust for every repository. They are removed from
        C(/etc/apt/trusted.gpg) and C(/etc/apt/trusted.gpg.d), other keys stay; a keybox, and an armored file with other keys
        in it, are not changed.
    type: list
    elements: str
    default: []
  preferences:
    description: Content for C(/etc/apt/preferences.d/gpu-provision.pref); empty removes the file.
    type: str
  unattended_blacklist:
    description:
      - Names or regular expressions of packages that unattended-upgrades must not touch, for
        C(/etc/apt/apt.conf.d/52gpu-provision). An empty list removes the file.
    type: list
    elements: str
author:
  - the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: NVIDIA's repository, by its key
  gpu.provision.apt_sources:
    name: cuda
    uris: https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/
    key_url: https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/3bf863cc.pub
    fingerprint: EB693B3035CD5710E231E123A4B469963BF863CC
    legacy_uris:
      - developer\.download\.nvidia\.com/compute/machine-learning/repos/
    unattended_blacklist: ["nvidia-", "libnvidia-"]

- name: Take the repository out again
  gpu.provision.apt_sources:
    name: cuda
    state: absent
"""

RETURN = r"""
files:
  description: What was done to which file.
  returned: success
  type: list
  elements: dict
  sample:
    - {path: /etc/apt/sources.list.d/gpu-provision-cuda.sources, action: written}
    - {path: /etc/apt/sources.list.d/cuda.list, action: moved away}
migrated:
  description: Entries that were removed.
  returned: success
  type: list
  elements: dict
  sample: [{file: /etc/apt/sources.list, line: 7, uris: ["http://example.org/ubuntu2404/x86_64"]}]
backup:
  description: Folder with the files as they were, or null.
  returned: success
  type: str
  sample: /var/lib/gpu-provision/backup/20261128T031200Z
code:
  description: Stable name of the failure, C(apt.key), C(apt.usage) or C(apt.file).
  returned: failure
  type: str
  sample: apt.key
"""

from ansible_collections.gpu.provision.plugins.module_utils.apt import configure as apt_configure
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule


def main():
    module = HostModule(
        argument_spec={
            "name": {"type": "str"},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "uris": {"type": "str"},
            "suites": {"type": "str", "default": "/"},
            "components": {"type": "str", "default": ""},
            "architectures": {"type": "str"},
            "key": {"type": "str", "no_log": False},
            "key_url": {"type": "str", "no_log": False},
            "fingerprint": {"type": "list", "elements": "str"},
            "migrate": {"type": "bool", "default": True},
            "legacy_uris": {"type": "list", "elements": "str", "default": []},
            "legacy_keys": {"type": "list", "elements": "str", "default": [], "no_log": False},
            "preferences": {"type": "str"},
            "unattended_blacklist": {"type": "list", "elements": "str"},
        },
        mutually_exclusive=[("key", "key_url")],
        required_one_of=[("name", "preferences", "unattended_blacklist")],
        supports_check_mode=True,
    )
    try:
        module.exit_json(**apt_configure.apply(as_configuration(module.params), module.check_mode))
    except AptError as error:
        module.fail_json(msg=error.message, **error.as_dict())


def as_configuration(params):
    """The module's parameters, one repository, in the form of apt.configure.apply."""
    configuration = {name: params[name] for name in ("preferences", "unattended_blacklist")}
    repository = {name: value for name, value in params.items() if name not in configuration}
    return dict(configuration, repositories=[repository] if params["name"] else [])


if __name__ == "__main__":
    main()
