"""Xid and SXid in the kernel's log."""

import pytest

import provision.collection  # noqa: F401
from provision.parts.driver import xid
from tests.unit.provecases import outcome, says, table


@pytest.mark.parametrize("case", table("xid"), ids=lambda case: case["name"])
def test_lines(case):
    lines = [[1000000 * number, line] for number, line in enumerate(case["lines"])]
    status, message, evidence, hint, numbers = xid.judge(outcome({"lines": lines, "first": case.get("first", 0)}))
    assert status == case["expect"][0], message
    says(case["expect"][1:], message, evidence, hint or "")
    assert hint or status == "pass"
    assert numbers["xids"] + numbers["sxids"] == sum("Xid (" in line for line in case["lines"])


def test_a_log_that_may_not_be_read_is_said():
    status, message, *_ = xid.judge(outcome(message="PermissionError: [Errno 1] Operation not permitted: '/dev/kmsg'"))
    assert status == "not_run"
    assert "/dev/kmsg" in message


def test_other_lines_are_none():
    assert xid.parse("usb 1-1: new device") is None
