# Copyright (c) the gpu-provision founders
# Apache-2.0 (see LICENSE)
# ruff: noqa: E402 - DOCUMENTATION comes before the imports
"""Writes what a run does as JSON lines to the file named by GPU_PROVISION_EVENTS, for ``provision`` to show."""

from __future__ import annotations

DOCUMENTATION = """
name: gpu_provision_events
type: notification
short_description: JSON lines of a run, for the command provision
description:
  - One object a line, with the key C(event) (play_start, task_start, host_start, ok, failed, unreachable, skipped, stats).
  - Results of tasks with C(no_log) carry no message.
requirements:
  - GPU_PROVISION_EVENTS in the environment names the file; without it nothing is written.
"""

import json
import os
import time

from ansible.plugins.callback import CallbackBase

from ansible_collections.gpu.provision.plugins.module_utils.lib import redact

# What our modules say beside their message: fields of an Issue.
ISSUE_FIELDS = ("code", "because", "hint")
# What the steps of a rescue say, for its report: module -> keys of its answer.
REPORTS = {"rescue_step": ("steps",), "rescue_snapshot": ("path",)}
# What a host says may be of any type and size.
TEXT = 2000
LINES = 40
REPORT = 1000000


def text(value):
    """Return one text of a host, cut."""
    return value[:TEXT] if isinstance(value, str) else str(value)[:TEXT]


def lines(value):
    """Return texts of a host, cut; one text is one line."""
    found = value[:LINES] if isinstance(value, (list, tuple)) else [value]
    return [text(line) for line in found]


def mapping(value):
    return value if isinstance(value, dict) else {}


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "gpu.provision.gpu_provision_events"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        path = os.environ.get("GPU_PROVISION_EVENTS")
        # Appended to, a line at a time: whoever reads it while it grows sees whole lines.
        self._out = open(path, "a", encoding="utf-8", buffering=1) if path else None  # noqa: SIM115 - open for the whole run
        self._started = {}

    def _write(self, event, **fields):
        if self._out is not None:
            # Not all modules are ours.
            record = redact.data(dict(fields, event=event, time=time.time()))
            self._out.write(json.dumps(record, default=str) + "\n")

    def _result(self, event, result, **fields):
        task, host, data = result.task, result.host.get_name(), result.result
        started = self._started.pop((host, task._uuid), None)
        fields.update(
            host=host,
            task=task.get_name(),
            role=task._role.get_name() if task._role else None,
            action=task.action,
            changed=bool(data.get("changed")),
            duration=round(time.time() - started, 3) if started else None,
        )
        if not (task.no_log or data.get("_ansible_no_log")) and event in ("failed", "unreachable"):
            # Of a loop it is the item that failed that says why.
            results = data.get("results")
            items = results if isinstance(results, list) else []
            said = next((item for item in items if isinstance(item, dict) and item.get("failed")), data)
            fields["message"] = text(said.get("msg") or said.get("stderr") or said.get("module_stderr") or "")
            fields.update(
                {
                    word: lines(said[word]) if word == "because" else text(said[word])
                    for word in ISSUE_FIELDS
                    if said.get(word)
                }
            )
        if not (task.no_log or data.get("_ansible_no_log")) and task.action.startswith("gpu.provision."):
            # What a module found out of order on the host and went on with, such as damaged state of an earlier run.
            fields["warnings"] = lines([warning.event.msg for warning in result.warnings])
        reported = REPORTS.get(task.action.rpartition(".")[2], ())
        fields.update(
            {
                key: data[key]
                for key in reported
                if data.get(key) is not None and len(json.dumps(data[key], default=str)) <= REPORT
            }
        )
        facts = mapping(data.get("ansible_facts"))
        if any(key.endswith("_reboot_required") and facts[key] is True for key in facts):
            fields["reboot_required"] = True
            fields["reboot_because"] = [
                line for key in facts if key.endswith("_reboot_because") for line in lines(facts[key])
            ]
        if any(key.endswith("_restart_required") and facts[key] is True for key in facts):
            fields["restart_required"] = [
                line for key in facts if key.endswith("_restart_because") for line in lines(facts[key])
            ]
        self._write(event, **fields)

    def v2_playbook_on_play_start(self, play):
        self._write("play_start", play=play.get_name())

    def v2_playbook_on_task_start(self, task, is_conditional):
        self._write("task_start", task=task.get_name(), role=task._role.get_name() if task._role else None)

    def v2_playbook_on_handler_task_start(self, task):
        self.v2_playbook_on_task_start(task, False)

    def v2_runner_on_start(self, host, task):
        self._started[(host.get_name(), task._uuid)] = time.time()
        self._write("host_start", host=host.get_name(), task=task.get_name(), action=task.action)

    def v2_runner_on_ok(self, result):
        self._result("ok", result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        self._result("failed", result, ignored=bool(ignore_errors))

    def v2_runner_on_unreachable(self, result):
        self._result("unreachable", result)

    def v2_runner_on_skipped(self, result):
        self._result("skipped", result)

    def v2_playbook_on_stats(self, stats):
        self._write("stats", hosts={host: stats.summarize(host) for host in sorted(stats.processed)})
