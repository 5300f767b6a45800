#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ansible module: what versions apt has and what it would do. The work is in module_utils/apt/query.py."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: apt_query
short_description: Ask apt which versions it has and what a change would do, without changing the host
version_added: "0.1.0"
description:
  - Asks apt in private folders, with the host's own configuration, proxies, credentials and pins.
  - Works without root. Repositories that the host has fetched already are not fetched again.
attributes:
  check_mode:
    description: Never changes anything.
    support: full
  diff_mode:
    description: There is nothing to compare.
    support: none
options:
  op:
    description:
      - V(offer) lists versions of packages, V(simulate) asks apt's solver what a change would do, V(cleanup) removes the
        folders of V(offer) that no simulation took over.
    type: str
    choices: [offer, simulate, cleanup]
    required: true
  sources:
    description: Sources to add to the host's own, for V(offer).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Short name, as in C(gpu-provision-NAME.sources).
        type: str
        required: true
      uris:
        description: Address of the repository.
        type: str
        required: true
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
        description: Where the key can be fetched; needs O(sources[].fingerprint).
        type: str
      fingerprint:
        description: Full fingerprint that the key must have.
        type: str
      signed_by:
        description: Keyring on the host that the repository is signed by, instead of a key.
        type: path
  omit:
    description: Entries of the host's sources to leave out, each with C(file) and C(line), for V(offer).
    type: list
    elements: dict
    default: []
  patterns:
    description: Regular expressions that names must match as a whole, for V(offer).
    type: list
    elements: str
    default: []
  refresh:
    description: When to fetch lists.
    type: str
    choices: [if_stale, always, never]
    default: if_stale
  max_age_s:
    description: Age in seconds from which lists are stale.
    type: int
    default: 21600
  environment:
    description: The proxy, as C(http_proxy), C(https_proxy) and C(no_proxy), for V(offer).
    type: dict
  alone:
    description: Ask O(sources) alone and not the host's own, for V(offer) on a host that has a mirror of everything.
    type: bool
    default: false
  workdir:
    description: Work folder of an earlier V(offer); without it V(simulate) uses the host's own sources.
    type: str
  workdirs:
    description: Work folders to remove, for V(cleanup).
    type: list
    elements: str
    default: []
  install:
    description: Packages as C(name=version), for V(simulate).
    type: list
    elements: str
    default: []
  remove:
    description: Packages to remove, for V(simulate).
    type: list
    elements: str
    default: []
  unhold:
    description: Names whose hold does not count; V(all_driver) among them stands for every driver package.
    type: list
    elements: str
    default: [all_driver]
  preferences:
    description: What our own preferences file will hold; without it, what it holds now.
    type: str
  keep:
    description: Keep the work folder for one more question.
    type: bool
    default: false
author:
  - the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Which drivers does this host's apt offer
  gpu.provision.apt_query:
    op: offer
    patterns: ["nvidia-headless-.*"]
  register: offer

- name: What would this install do
  gpu.provision.apt_query:
    op: simulate
    workdir: "{{ offer.result.workdir }}"
    install: ["nvidia-utils-580-server=580.126.20-0ubuntu0.24.04.1"]
"""

RETURN = r"""
result:
  description: The answer. For V(offer) workdir, packages, refreshed, errors and problems; for V(simulate) ok, code,
    error, because, unmet, changes, download_bytes and disk_bytes.
  returned: success
  type: dict
  sample:
    ok: true
    changes: [{action: install, name: nvidia-utils-580, version: 580.126.20-0ubuntu1, download_bytes: 1048576}]
code:
  description: Stable name of the failure.
  returned: failure
  type: str
  sample: apt.sources
"""

from ansible_collections.gpu.provision.plugins.module_utils.apt import query as apt_query
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule

SOURCE = {
    "name": {"type": "str", "required": True},
    "uris": {"type": "str", "required": True},
    "suites": {"type": "str", "default": "/"},
    "components": {"type": "str", "default": ""},
    "architectures": {"type": "str"},
    "key": {"type": "str", "no_log": False},
    "key_url": {"type": "str", "no_log": False},
    "fingerprint": {"type": "str"},
    "signed_by": {"type": "path"},
}
_CANDIDATES = ("sources", "omit", "patterns", "refresh", "max_age_s", "environment", "alone")
_SIMULATE = ("workdir", "install", "remove", "unhold", "preferences", "keep")
_CLEANUP = ("workdirs",)


def main():
    module = HostModule(
        argument_spec={
            "op": {"type": "str", "choices": ["offer", "simulate", "cleanup"], "required": True},
            "sources": {"type": "list", "elements": "dict", "default": [], "options": SOURCE},
            "omit": {"type": "list", "elements": "dict", "default": []},
            "patterns": {"type": "list", "elements": "str", "default": []},
            "refresh": {"type": "str", "choices": ["if_stale", "always", "never"], "default": "if_stale"},
            "max_age_s": {"type": "int", "default": 21600},
            "environment": {"type": "dict"},
            "alone": {"type": "bool", "default": False},
            "workdir": {"type": "str"},
            "workdirs": {"type": "list", "elements": "str", "default": []},
            "install": {"type": "list", "elements": "str", "default": []},
            "remove": {"type": "list", "elements": "str", "default": []},
            "unhold": {"type": "list", "elements": "str", "default": ["all_driver"]},
            "preferences": {"type": "str"},
            "keep": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    operation = module.params["op"]
    wanted = {"offer": _CANDIDATES, "simulate": _SIMULATE, "cleanup": _CLEANUP}[operation]
    args = {name: module.params[name] for name in wanted}
    try:
        result = apt_query.main(dict(args, op=operation), session=False)
    except AptError as error:
        module.fail_json(msg=error.message, **error.as_dict())
    module.exit_json(changed=False, result=result)


if __name__ == "__main__":
    main()
