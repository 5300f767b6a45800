#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
---
module: container_runtime
short_description: Register NVIDIA's runtime with docker, containerd and podman, and lose nothing of what is configured
version_added: "0.1.0"
description:
  - Changes single keys of docker's C(daemon.json) after the daemon itself has judged the result, in one step,
    with mode and owner kept and the old file saved.
  - What cannot be read is refused with line and column, and never overwritten. A key that is a flag of dockerd too is
    refused as well, since the daemon would not start.
  - A daemon that applies a change on a reload is reloaded, which affects no container. Only what it
    applies when it starts waits for a restart, and a restart for O(restart).
  - The truth is what the daemon says, so a run that was interrupted is finished by the next one.
  - Calls C(systemctl daemon-reload), which takes GPUs from running containers without O(device_links), for a proxy only.
options:
  docker:
    description: The system's docker. Without it docker is not changed.
    type: dict
    suboptions:
      runtime:
        description: Register the runtime C(nvidia).
        type: bool
        default: true
      default_runtime:
        description: Runtime of containers that name none. Empty leaves it as it is.
        type: str
        default: ""
      cdi:
        description: The feature C(cdi) of the daemon. Not given, it is left as it is.
        type: bool
      shm_size:
        description: Size of C(/dev/shm) in containers that name none, such as V(8G). Empty leaves it as it is.
        type: str
        default: ""
      cgroup_driver:
        description: Driver of cgroups. Empty leaves it as it is.
        type: str
        default: ""
        choices: ["", cgroupfs, systemd]
      proxy:
        description:
          - The proxy through which docker pulls images, in a drop-in of its unit. Docker has to be restarted for it, and
            systemd reads its units again before. With empty values our drop-in goes. Not given, it is left as it is.
          - A proxy in C(daemon.json), in a flag or in a file of C(EnvironmentFile) overrides it and is not changed.
        type: dict
        suboptions:
          http:
            description: For http addresses, C(http://HOST:PORT). No user and no password, everyone can read it.
            type: str
            default: ""
          https:
            description: For https addresses, likewise.
            type: str
            default: ""
          no_proxy:
            description: Hosts, domains and networks that are reached without it, with commas between them.
            type: str
            default: ""
      users:
        description: Accounts to put into the group C(docker). Each of them can become root.
        type: list
        elements: str
        default: []
  rootless:
    description: Users whose own rootless docker gets the same, as far as it is a user's business.
    type: list
    elements: str
    default: []
  containerd:
    description: containerd's CRI, which Kubernetes uses. Without it containerd is not changed.
    type: dict
    suboptions:
      default_runtime:
        description: Runtime of pods that name none. Empty leaves it as it is.
        type: str
        default: ""
  cdi:
    description:
      - Keep the CDI specification current, by the toolkit's own units or, where it has none, by ours. This is all that
        podman needs. V(false) removes our units. Not given, nothing is done about it.
    type: bool
  device_links:
    description:
      - Have a link in C(/dev/char) for every device of NVIDIA's, now and whenever the driver is loaded. V(false) removes
        our rule. Not given, nothing is done about it.
    type: bool
  restart:
    description:
      - When a daemon may be restarted for what it reads only when it starts. V(when_idle) when none of its containers
        would end, because none runs or C(live-restore) is on.
    type: str
    default: when_idle
    choices: [when_idle, always, never]
  backup:
    description: Folder on the host for files as they were before.
    type: path
    default: /var/lib/gpu-provision/backup
attributes:
  check_mode:
    description: Says what would be done.
    support: full
  diff_mode:
    description: Shows files before and after.
    support: full
author: the gpu-provision founders (@gpu-provision)
"""

EXAMPLES = r"""
- name: GPUs for docker, with shared memory for training on several of them
  gpu.provision.container_runtime:
    docker:
      shm_size: 8G
    device_links: true

- name: GPUs for podman
  gpu.provision.container_runtime:
    cdi: true
"""

RETURN = r"""
done:
  description: What was done (in check mode, what would be), in order.
  returned: always
  type: list
  elements: str
  sample: [changed /etc/docker/daemon.json, had docker read /etc/docker/daemon.json again]
notes:
  description: What a person should know. They are shown as warnings too.
  returned: success
  type: list
  elements: str
  sample: []
backups:
  description: Files that were changed, and where they are as they were.
  returned: success
  type: dict
  sample: {/etc/docker/daemon.json: /var/lib/gpu-provision/backup/etc/docker/daemon.json.20261128T064500Z}
restart_required:
  description: A daemon has to be restarted, and that was not done for want of consent.
  returned: success
  type: bool
  sample: false
restart_because:
  description: What it has to apply.
  returned: success
  type: list
  elements: str
  sample: [docker applies exec-opts only when it starts]
in_the_way:
  description: Containers that the restart would end.
  returned: success
  type: list
  elements: dict
  sample: [{runtime: docker, id: 7d64db074abf, name: training, image: "pytorch:2.6", gpu: true,
            title: "training (docker, pytorch:2.6, uses a GPU)"}]
code:
  description:
    - Stable name of the failure, one of C(containers.cdi), C(containers.cdi_unit), C(containers.containerd_config),
      C(containers.containerd_down), C(containers.containerd_version), C(containers.daemon_json),
      C(containers.device_links), C(containers.docker_down), C(containers.docker_silent), C(containers.dockerd_refuses),
      C(containers.file), C(containers.flag_conflict), C(containers.foreign_file), C(containers.group),
      C(containers.no_cgroups), C(containers.no_containerd), C(containers.no_docker), C(containers.no_rootless),
      C(containers.no_toolkit), C(containers.no_user), C(containers.not_registered).
  returned: failure
  type: str
  sample: containers.daemon_json
"""

from ansible_collections.gpu.provision.plugins.module_utils.containers import runtime as containers_runtime
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_module import HostModule


def main():
    module = HostModule(
        argument_spec={
            "docker": {
                "type": "dict",
                "options": {
                    "runtime": {"type": "bool", "default": True},
                    "default_runtime": {"type": "str", "default": ""},
                    "cdi": {"type": "bool"},
                    "shm_size": {"type": "str", "default": ""},
                    "cgroup_driver": {"type": "str", "default": "", "choices": ["", "cgroupfs", "systemd"]},
                    "proxy": {
                        "type": "dict",
                        "options": {
                            "http": {"type": "str", "default": ""},
                            "https": {"type": "str", "default": ""},
                            "no_proxy": {"type": "str", "default": ""},
                        },
                    },
                    "users": {"type": "list", "elements": "str", "default": []},
                },
            },
            "rootless": {"type": "list", "elements": "str", "default": []},
            "containerd": {"type": "dict", "options": {"default_runtime": {"type": "str", "default": ""}}},
            "cdi": {"type": "bool"},
            "device_links": {"type": "bool"},
            "restart": {"type": "str", "default": "when_idle", "choices": ["when_idle", "always", "never"]},
            "backup": {"type": "path", "default": "/var/lib/gpu-provision/backup"},
        },
        supports_check_mode=True,
    )
    try:
        result = containers_runtime.apply(module.params, module.check_mode)
    except containers_runtime.ContainerError as error:
        module.fail_json(
            msg=error.message,
            code=error.code,
            because=error.because,
            hint=error.hint,
            done=error.done,
            changed=bool(error.done),
        )
    for words in result["notes"]:
        module.warn(words)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
