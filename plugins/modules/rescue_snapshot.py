#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ansible module: snapshots of a host before a rescue. The work is in module_utils/rescue/snapshot.py."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: rescue_snapshot
short_description: Snapshot of packages, holds, sources and files before a rescue
version_added: "0.1.0"
description:
  - Writes a folder below C(/var/lib/gpu-provision/snapshots) that root alone can enter, with the versions, selections and holds of
    all packages, apt's configuration and keys, module options, and every file that the repairs name. Takes a second or two.
  - A run that was interrupted within the last day is continued, in the same snapshot.
  - The newest ten are kept, and the one of an unfinished rescue whatever its age.
  - C(/etc/apt/auth.conf) is not copied.
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: Nothing to show.
    support: none
options:
  action:
    description:
      - C(take) makes a snapshot, or continues the unfinished one; C(mark) notes the state after a step as ours;
        C(finish) says that the rescue is done; C(list) tells what there is; C(undo) goes back to one, after a snapshot of
        its own.
    type: str
    choices: [take, mark, finish, list, undo]
    default: take
  id:
    description: Which snapshot, for C(mark), C(finish) and C(undo). Without it the newest.
    type: str
  reason:
    description: One line for people, for C(take).
    type: str
    default: rescue
  paths:
    description: Files that will be written, moved or removed, for C(take).
    type: list
    elements: path
    default: []
  resume:
    description: Continue the snapshot of a run that was interrupted.
    type: bool
    default: true
  keep:
    description: How many are kept.
    type: int
    default: 10
  expect:
    description: For C(undo), the changes of packages that the plan showed. Others are refused.
    type: list
    elements: dict
  lock_timeout:
    description: For C(undo), seconds to wait for other programs that hold apt's locks.
    type: int
    default: 600
  timeout:
    description: For C(undo), seconds that the packages may take.
    type: int
    default: 3600
author:
  - the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Keep what there is before anything is touched
  gpu.provision.rescue_snapshot:
    reason: "rescue: apt.signed_by_conflict"
    paths: [/etc/apt/sources.list.d/cuda.list]
  register: snapshot

- name: Say that what changed since then is ours
  gpu.provision.rescue_snapshot:
    action: mark
    id: "{{ snapshot.id }}"
"""

RETURN = r"""
id:
  description: The snapshot; null in check mode where none is there yet.
  returned: take, mark, finish
  type: str
  sample: 20261128T093012Z-1f2e3d
path:
  description: Its folder on the host.
  returned: take
  type: str
  sample: /var/lib/gpu-provision/snapshots/20261128T093012Z-1f2e3d
resumed:
  description: True where an unfinished rescue is continued.
  returned: take
  type: bool
left_out:
  description: Files that are not in it, each with C(path) and C(why).
  returned: take
  type: list
  elements: dict
pruned:
  description: Old snapshots that were removed.
  returned: take
  type: list
  elements: str
done:
  description: What was done, in order.
  returned: undo
  type: list
  elements: str
left:
  description: What does not go back, each with C(what) and C(why).
  returned: undo
  type: list
  elements: dict
snapshot:
  description: The snapshot that undoes the undo.
  returned: undo
  type: str
snapshots:
  description: Every snapshot, newest first, with C(id), C(made), C(reason), C(whole), C(finished).
  returned: list
  type: list
  elements: dict
"""

from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot
from ansible_collections.gpu.provision.plugins.module_utils.rescue import undo as rescue_undo


def act(params, check):
    """Carry out one action; returns the module's answer."""
    action = params["action"]
    if action == "list":
        return {"changed": False, "snapshots": rescue_snapshot.listing()}
    if action == "take":
        return rescue_snapshot.take(
            params["reason"], params["paths"], resume=params["resume"], keep=params["keep"], check=check
        )
    if action == "undo":
        return rescue_undo.run(params["id"], params["expect"], check, params["lock_timeout"], params["timeout"])
    if check:
        return {"changed": action == "finish", "id": params["id"]}
    if action == "mark":
        return dict(rescue_snapshot.mark(params["id"]), changed=False)
    return rescue_snapshot.finish(params["id"])


def main():
    module = HostModule(
        argument_spec={
            "action": {"type": "str", "choices": ["take", "mark", "finish", "list", "undo"], "default": "take"},
            "id": {"type": "str"},
            "reason": {"type": "str", "default": "rescue"},
            "paths": {"type": "list", "elements": "path", "default": []},
            "resume": {"type": "bool", "default": True},
            "keep": {"type": "int", "default": 10},
            "expect": {"type": "list", "elements": "dict"},
            "lock_timeout": {"type": "int", "default": 600},
            "timeout": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    try:
        result = act(module.params, module.check_mode)
    except (rescue_snapshot.SnapshotError, AptError) as error:
        module.fail_json(msg=error.message, **error.as_dict())
    except OSError as error:
        module.fail_json(
            msg="the snapshot could not be written: %s" % error,
            code="snapshot.write",
            because=[],
            hint="check with df -h /var whether there is space; nothing else was changed",
        )
    for warning in result.pop("warnings", []):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
