# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
"""The base of our modules that work on hosts: no answer of theirs, and nothing that -vvv shows of it, has a secret in it."""

from __future__ import annotations

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.gpu.provision.plugins.module_utils.lib import redact


class HostModule(AnsibleModule):
    """An AnsibleModule whose answer, warnings and arguments (as -vvv shows them) are redacted."""

    def exit_json(self, **answer):
        AnsibleModule.exit_json(self, **self._redacted(answer))

    def fail_json(self, msg, **answer):
        AnsibleModule.fail_json(self, redact.text(str(msg)), **self._redacted(answer))

    def warn(self, warning, **more):
        AnsibleModule.warn(self, redact.text(str(warning)), **more)

    def _redacted(self, answer):
        return redact.data(dict({"invocation": {"module_args": getattr(self, "params", None)}}, **answer))
