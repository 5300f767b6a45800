#!/usr/bin/python
# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_verify
short_description: Prove that the NVIDIA driver of a host works, and will work after the next boot
description:
  - Reads the host once and judges it check by check, each with its evidence and a hint. Changes nothing.
  - Used from a play, an action plugin of the same name fills in O(expect) from the role variables of the host.
options:
  expect:
    description:
      - What the host is held to. Keys are C(version), C(branch), C(flavour), C(manage), C(hold), C(persistence),
        C(fabric_manager) and C(gpus); missing ones take the defaults of the role nvidia_driver.
    type: dict
    default: {}
  only:
    description: Identifiers of the checks to run, all when empty.
    type: list
    elements: str
    default: []
  strict:
    description: Treat warnings as failures.
    type: bool
    default: false
attributes:
  check_mode:
    description: Changes nothing, so it does the same in check mode.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: none
author: the gpu-provision founders
"""

EXAMPLES = r"""
- name: Prove that the driver works
  gpu.provision.gpu_verify:

- name: Look whether the host can be rebooted
  gpu.provision.gpu_verify:
    only: [boot.next]
"""

RETURN = r"""
checks:
  description: One verdict a check.
  returned: always
  type: list
  elements: dict
  sample:
    - {id: driver.versions, status: pass, message: "580.126.20 everywhere", evidence: ["loaded module: 580.126.20"], hint: null}
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpu.provision.plugins.module_utils import checks, probe


def main():
    module = AnsibleModule(
        argument_spec={
            "expect": {"type": "dict", "default": {}},
            "only": {"type": "list", "elements": "str", "default": []},
            "strict": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    only, strict = module.params["only"], module.params["strict"]
    verdicts = checks.run(probe.collect(), module.params["expect"])
    unknown = sorted(set(only) - {verdict["id"] for verdict in verdicts})
    if unknown:
        module.fail_json(msg="no such check: %s" % ", ".join(unknown), code="verify.unknown_check")
    verdicts = [verdict for verdict in verdicts if not only or verdict["id"] in only]
    bad = [v for v in verdicts if v["status"] == "fail" or (strict and v["status"] == "warn")]
    if bad:
        module.fail_json(
            msg="; ".join("%s: %s" % (verdict["id"], verdict["message"]) for verdict in bad),
            code="verify.failed", because=[line for verdict in bad for line in verdict["evidence"]][:12],
            hint=bad[0]["hint"], checks=verdicts,
        )  # fmt: skip
    module.exit_json(changed=False, checks=verdicts)


if __name__ == "__main__":
    main()
