"""Hooks of a rollout as they are run: what they get, what they end with, and those of the examples."""

from __future__ import annotations

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.run import hook as run_hook
from provision import inventory
from provision.inventory import variables
from provision.rollout.hooks import Hook, hooks_of, judge
from tests.unit.test_rollout import ROOT


@pytest.mark.parametrize("example", ["hooks-slurm.yml", "hooks-systemd.yml"])
def test_hooks_of_the_examples(example, monkeypatch, tmp_path):
    """What the examples say is what would be run: words, the host's name filled in."""
    monkeypatch.setenv("ANSIBLE_CONFIG", str(tmp_path / "none.cfg"))
    loaded = inventory.load([str(ROOT / "inventory/examples" / example)])
    host = loaded.hosts[0]
    hooks = hooks_of(host.name, variables.effective(host))
    words = {phase: (hook.on, hook.command, hook.timeout) for phase, hook in hooks.items()}
    slurm = ("scontrol", "update", "nodename=node01")
    assert (
        words
        == {
            "hooks-slurm.yml": {
                "drain": ("controller", (*slurm, "state=drain", "reason=gpu-provision"), 60),
                "resume": ("controller", (*slurm, "state=resume"), 60),
            },
            "hooks-systemd.yml": {
                "drain": ("host", ("systemctl", "stop", "inference.service"), 300),
                "resume": ("host", ("systemctl", "start", "inference.service"), 600),
            },
        }[example]
    )


HOOKS = [
    ("does its work", ["true"], 5, None),
    ("ends with a code", ["sh", "-c", "echo why; exit 3"], 5, "ended with 3"),
    ("takes too long", ["sh", "-c", "echo at it; exec sleep 60"], 0.3, "did not end within 0 s"),
    ("does not want to end", ["sh", "-c", "trap '' TERM; echo at it; while :; do sleep 0.1; done"], 0.3, "did not end"),
    ("is not there", ["/nowhere/hook"], 5, "could not be started"),
    ("is killed", ["sh", "-c", "kill -9 $$"], 5, "was ended by signal 9"),
]


@pytest.mark.parametrize(("command", "timeout", "how"), [row[1:] for row in HOOKS], ids=[row[0] for row in HOOKS])
def test_what_a_hook_ends_with(command, timeout, how, monkeypatch):
    monkeypatch.setattr(run_hook, "_GRACE", 0.3)
    hook = Hook(tuple(command), "controller", timeout)
    answer = run_hook.run(command, hook.environment("drain", "gpu01", "run", 1), timeout)
    issue = judge("drain", "gpu01", hook, answer, "run")
    if how is None:
        assert issue is None
        return
    assert issue.code == "rollout.drain_failed" and how in issue.message and "here" in issue.message
    assert issue.because or "echo" not in command[-1]
    assert "STILL DRAINED" in judge("resume", "gpu01", hook, answer, "run").message


def test_a_hook_gets_words_and_no_shell(tmp_path):
    script = tmp_path / "hook"
    script.write_text(
        '#!/bin/sh\nfor word in "$@"; do echo "<$word>"; done; echo $GPU_ROLLOUT_HOST $GPU_ROLLOUT_PHASE; sleep 30 &\n'
    )
    script.chmod(0o755)
    environment = Hook((str(script),)).environment("resume", "gpu01", "run", 2)
    answer = run_hook.run([str(script), "a b", "$(touch x); *"], environment, 10)
    assert answer["output"].splitlines() == ["<a b>", "<$(touch x); *>", "gpu01 resume"]
    assert answer["rc"] == 0 and answer["seconds"] < 9, "what it leaves running is not waited for"
