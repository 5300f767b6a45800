#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ansible module: remove every trace of a driver. The work is in module_utils/rescue/purge.py."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rescue_purge
short_description: Remove every trace of the NVIDIA driver, by exact names
version_added: "0.1.0"
description:
  - Runs the uninstaller of a C(.run) file, removes the packages of every driver in one judged transaction, purges their
    configuration, removes DKMS trees and the files that no package owns, then brings loader cache, module lists and
    initramfs up to date.
  - Refuses before anything is touched when apt would take or install anything else. Kernels (also C(linux-*-nvidia)), the
    container toolkit, CUDA and the desktop stay. Nothing is auto-removed.
  - What is deleted is in the snapshot first where it is small, and listed there where it is not.
  - A run that was interrupted is finished by the next one.
attributes:
  check_mode:
    description: Says what would go.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
options:
  snapshot:
    description: The snapshot that deleted files go into, from M(gpu.provision.rescue_snapshot).
    type: str
    required: true
  allow:
    description: Names of packages besides the driver's that may go.
    type: list
    elements: str
    default: []
  expect:
    description: Names of the packages that the plan showed. Others are refused.
    type: list
    elements: str
  lock_timeout:
    description: Seconds to wait for other programs that hold apt's locks.
    type: int
    default: 600
  timeout:
    description: Seconds that the packages may take.
    type: int
    default: 3600
author:
  - the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Remove every trace of the driver
  gpu.provision.rescue_purge:
    snapshot: "{{ snapshot.id }}"
"""

RETURN = r"""
done:
  description: What was done, in order.
  returned: success
  type: list
  elements: str
  sample: [ran /usr/bin/nvidia-uninstall -s, removed 11 packages]
removed:
  description: Packages that were removed (in check mode, that would be).
  returned: success
  type: list
  elements: str
deleted:
  description: Files and folders that were removed (in check mode, that would be).
  returned: success
  type: list
  elements: str
left:
  description: What was seen and left, or deleted without a copy, each with C(path) and C(why).
  returned: success
  type: list
  elements: dict
code:
  description: Stable name of the failure, such as C(purge.removes), C(purge.protected), C(apt.dpkg_failed).
  returned: failure
  type: str
because:
  description: The cause.
  returned: failure
  type: list
  elements: str
hint:
  description: What to do about it.
  returned: failure
  type: str
"""

from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule
from ansible_collections.gpu.provision.plugins.module_utils.rescue import purge as rescue_purge
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot


def main():
    module = HostModule(
        argument_spec={
            "snapshot": {"type": "str", "required": True},
            "allow": {"type": "list", "elements": "str", "default": []},
            "expect": {"type": "list", "elements": "str"},
            "lock_timeout": {"type": "int", "default": 600},
            "timeout": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        result = rescue_purge.run(
            params["snapshot"],
            params["allow"],
            params["expect"],
            params["lock_timeout"],
            params["timeout"],
            check=module.check_mode,
        )
    except (AptError, rescue_snapshot.SnapshotError) as error:
        module.fail_json(msg=error.message, **error.as_dict())
    except (own_files.FileError, OSError) as error:
        module.fail_json(
            msg="the purge stopped: %s" % error,
            code="purge.file",
            because=[],
            hint="check with df -h and mount whether there is space; the next run continues from here",
        )
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
