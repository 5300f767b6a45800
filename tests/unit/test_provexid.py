"""Xid and SXid in the kernel's log."""

from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job
from ansible_collections.gpu.provision.plugins.module_utils.prove import xid as prove_xid
from tests.unit.provecases import outcome, says, table


@pytest.mark.parametrize("case", table("xid"), ids=lambda case: case["name"])
def test_lines(case):
    lines = [[1000000 * number, line] for number, line in enumerate(case["lines"])]
    status, message, evidence, hint, numbers = prove_xid.judge(outcome({"lines": lines, "first": case.get("first", 0)}))
    assert status == case["expect"][0], message
    says(case["expect"][1:], message, evidence, hint or "")
    assert hint or status == "pass"
    assert numbers["xids"] + numbers["sxids"] == sum("Xid (" in line for line in case["lines"])


def test_a_log_that_may_not_be_read_is_said():
    status, message, *_ = prove_xid.judge(
        outcome(message="PermissionError: [Errno 1] Operation not permitted: '/dev/kmsg'")
    )
    assert status == "skip"
    assert "/dev/kmsg" in message


def test_the_real_log_is_read_or_refused():
    done = prove_job.run(prove_job.Job("prove.xid", "read", timeout_s=30))
    if done.ok:
        assert all("Xid" in line for _, line in done.result["lines"])
    else:
        assert done.status == "error"
        assert not Path("/dev/kmsg").exists() or "kmsg" in done.message or "Operation not permitted" in done.message
    assert prove_xid.judge(done)[0] in ("pass", "warn", "fail") if done.ok else prove_xid.judge(done)[0] == "skip"


def test_other_lines_are_none():
    assert prove_xid.parse("usb 1-1: new device") is None
