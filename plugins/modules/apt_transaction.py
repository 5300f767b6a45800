#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""Ansible module: one apt transaction that keeps a box alive. The work is in module_utils/apt/transaction.py."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: apt_transaction
short_description: Change packages in one judged apt transaction, and hold them
version_added: "0.1.0"
description:
  - Simulates with apt's own solver, judges the answer, lifts the holds, changes everything in one call of apt-get,
    and holds again, also when the change failed.
  - Refuses before anything is touched when a package would go that was not named, when kernels, the container
    toolkit, the desktop or essential packages would be touched, when the packages of the driver would not end at one
    version, or when the disks are too full.
  - Waits for a program that holds apt's or dpkg's lock, and names it.
  - Never asks and never hangs. debconf, needrestart and scripts that read a terminal get no terminal.
  - The change runs to its end when the connection or Ansible is killed; the next run restores the holds of a run
    that a power cut ended, and finishes half-configured packages. What that changed is not held against O(expect).
  - A damaged journal is renamed to C(transaction.json.damaged-TIME), with a warning; the holds come back from its copy, or
    from what is installed.
  - Starts no program at all when dpkg's status file shows that nothing has to change.
attributes:
  check_mode:
    description: Simulates and judges, changes nothing. Lists are not refreshed; where the host's apt does not know
      the packages yet, the changes of O(expect) are shown.
    support: full
  diff_mode:
    description: Shows versions and holds before and after.
    support: full
options:
  configure:
    description:
      - Files of apt's configuration to write first, as the module M(gpu.provision.apt_sources) does; C(repositories)
        is a list of its repositories, C(preferences) and C(unattended_blacklist) are as there. C(proxy) is the text of
        our file with apt's proxy; empty removes it.
    type: dict
  environment:
    description:
      - The proxy, as C(http_proxy), C(https_proxy) and C(no_proxy), for apt and for the download of keys. Without it, that
        of the task's environment.
    type: dict
  alone:
    description:
      - apt reads no other sources than those in files named C(gpu-provision-*). For hosts whose own sources cannot be
        reached, and that get everything from a mirror.
    type: bool
    default: false
  before:
    description:
      - C(install) and C(remove) of a transaction of its own first, for packages that ship apt preferences. Not done in
        check mode.
    type: dict
  install:
    description:
      - Packages to have, as C(name=version). A name alone means that any installed version is right.
    type: list
    elements: str
    default: []
  remove:
    description:
      - Packages that may and must go. Nothing else is removed. Packages that the machine cannot do without and kernels
        stay even when they are named.
    type: list
    elements: str
    default: []
  expect:
    description:
      - The changes that were planned, each with C(action), C(name) and C(version). When the simulation differs, the
        transaction is refused with the code C(apt.plan_moved).
    type: list
    elements: dict
  family_version:
    description:
      - Upstream version at which every package of the driver must end, for example C(580.126.20).
    type: str
  hold:
    description:
      - Hold every installed package of the driver, by exact names.
      - When false, packages of the driver that were on hold before are on hold afterwards, and no others.
    type: bool
    default: true
  release:
    description:
      - Lift the holds of the driver's packages for good. Overrides O(hold).
    type: bool
    default: false
  extra_hold:
    description:
      - Names of more packages to hold where they are installed.
    type: list
    elements: str
    default: []
  extra_release:
    description:
      - Names of more packages whose holds are lifted for good.
    type: list
    elements: str
    default: []
  update_cache:
    description:
      - Refresh the lists, at most once, and only when packages have to change.
      - Lists that are younger than six hours and than every sources file are taken as they are, where a simulation with
        them gives exactly O(expect).
      - The failure of a repository of somebody else is a warning as long as everything asked for is found.
    type: bool
    default: false
  own_uris:
    description:
      - Repositories whose failure is fatal, besides those in files named C(gpu-provision-*).
    type: list
    elements: str
    default: []
  lock_run:
    description:
      - The run that has the lock of the host (M(gpu.provision.host_lock)); its lease is renewed. Where another run has it,
        nothing is touched, and the module fails with the code C(host.locked).
    type: str
  lock_timeout:
    description: Seconds to wait for other programs that hold apt's locks.
    type: int
    default: 600
  timeout:
    description: Seconds that the change may take. DKMS builds take minutes for each kernel.
    type: int
    default: 3600
  reserve_mib:
    description:
      - Space that must stay free on /, /var and /boot, in MiB. Without it 512, 256 and 64.
    type: int
author:
  - the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: Move from branch 550 to 580 in one transaction
  gpu.provision.apt_transaction:
    install:
      - nvidia-headless-no-dkms-580-server-open=580.126.20-0ubuntu0.24.04.1
      - nvidia-utils-580-server=580.126.20-0ubuntu0.24.04.1
    remove:
      - nvidia-headless-no-dkms-550-server-open
      - nvidia-utils-550-server
    family_version: 580.126.20
    update_cache: true

- name: Hold what is there
  gpu.provision.apt_transaction:
    hold: true
    extra_hold: [libnccl2, libnccl-dev]
"""

RETURN = r"""
changes:
  description: What was changed (in check mode, what would be).
  returned: success
  type: list
  elements: dict
  sample:
    - {action: upgrade, name: nvidia-utils-580, version: 580.126.20-0ubuntu1, from_version: 580.95.05-0ubuntu1}
held:
  description: Names that are on hold now and were not before.
  returned: success
  type: list
  elements: str
  sample: [nvidia-utils-580]
unheld:
  description: Names that were on hold before and are not now.
  returned: success
  type: list
  elements: str
  sample: [nvidia-utils-550]
holds:
  description: Every name that is on hold now.
  returned: success
  type: list
  elements: str
  sample: [nvidia-utils-580]
waited_for:
  description: The last program whose lock was waited for.
  returned: success
  type: dict
  sample: {pid: 24459, comm: unattended-upgr, lock: /var/lib/dpkg/lock-frontend, seconds: 12.5}
log:
  description: Path of the log on the host; null when nothing was started.
  returned: success
  type: str
  sample: /var/log/gpu-provision/apt-20261128T031200Z-4711.log
files:
  description: What O(configure) changed, as M(gpu.provision.apt_sources) says it.
  returned: success
  type: list
  elements: dict
  sample: [{path: /etc/apt/preferences.d/gpu-provision.pref, action: written}]
recovered:
  description: What an earlier run that was interrupted had left, and what is on hold again; null in general.
  returned: success
  type: dict
  sample: {started: "2026-11-28T03:12:00Z", log: /var/log/gpu-provision/apt-20261128T031200Z-4711.log, held: []}
code:
  description: Stable name of the failure, such as C(apt.unmet), C(apt.fetch), C(apt.dpkg_failed), C(apt.lock_timeout),
    C(apt.disk_full), C(apt.key), C(apt.plan_moved), C(apt.protected), C(apt.removes), C(apt.family), C(apt.timeout).
  returned: failure
  type: str
  sample: apt.dpkg_failed
because:
  description: The cause, in the words of the program that knows it.
  returned: failure
  type: list
  elements: str
  sample: ["Error! Bad return status for module build on kernel: 6.8.0-45-generic (x86_64)"]
hint:
  description: What to do about it.
  returned: failure
  type: str
  sample: fix the cause, then run it again
"""

from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock


def main():
    module = HostModule(
        argument_spec={
            "configure": {"type": "dict"},
            "environment": {"type": "dict"},
            "alone": {"type": "bool", "default": False},
            "before": {"type": "dict"},
            "install": {"type": "list", "elements": "str", "default": []},
            "remove": {"type": "list", "elements": "str", "default": []},
            "expect": {"type": "list", "elements": "dict"},
            "family_version": {"type": "str"},
            "hold": {"type": "bool", "default": True},
            "release": {"type": "bool", "default": False},
            "extra_hold": {"type": "list", "elements": "str", "default": []},
            "extra_release": {"type": "list", "elements": "str", "default": []},
            "update_cache": {"type": "bool", "default": False},
            "own_uris": {"type": "list", "elements": "str", "default": []},
            "lock_run": {"type": "str"},
            "lock_timeout": {"type": "int", "default": 600},
            "timeout": {"type": "int", "default": 3600},
            "reserve_mib": {"type": "int"},
        },
        supports_check_mode=True,
    )
    try:
        if not module.check_mode:
            run_lock.admit(module.params["lock_run"])
        result = apt_transaction.run(module.params, check=module.check_mode)
    except run_lock.LockError as error:
        module.fail_json(msg=str(error), code=error.code, because=error.because, hint=error.hint)
    except AptError as error:
        module.fail_json(msg=error.message, **error.as_dict())
    for warning in result.pop("warnings"):
        module.warn(warning)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
