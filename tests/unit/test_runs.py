"""What became of a host in a run, and which hosts can go back before one."""

import pytest

from provision.errors import Exit, UsageError
from provision.lock.model import dump, parse
from provision.runs.engine import HostOutcome
from provision.runs.history import HostRecord, Run
from provision.runs.rollback import BEFORE, of_run


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        ({"status": "ok"}, Exit.OK),
        ({"status": "changed"}, Exit.OK),
        ({"status": "changed", "reboot_required": True}, Exit.REBOOT_NEEDED),
        ({"status": "changed", "restart_required": []}, Exit.REBOOT_NEEDED),
        ({"status": "unreachable", "reboot_required": True}, Exit.UNREACHABLE),
        ({"status": "interrupted", "reboot_required": True}, Exit.INTERRUPTED),
        ({"status": "failed", "reboot_required": True}, Exit.FAILED),
        ({"status": "not_started"}, Exit.FAILED),
    ],
)
def test_what_a_host_ends_with(outcome, code):
    assert HostOutcome(**outcome).exit_code == code


LOCK = """\
schema: provision/lock/1
groups:
  driver:
    ubuntu: "24.04"
    arch: amd64
    driver: {version: "580.142", series: "580", flavour: open, build: signed, channel: ubuntu, variant: headless}
  cuda: {ubuntu: "24.04", arch: amd64, cuda: {releases: {"12.8": 12.8.1}, default: "12.8"}}
  containers: {ubuntu: "24.04", arch: amd64, containers: {version: 1.18.0}}
  nothing: {ubuntu: "24.04", arch: amd64}
hosts: {a: {group: driver}, b: {group: cuda}, c: {group: containers}, d: {group: nothing}}
"""
CHANGED = {name: HostRecord(run="r", status="done", packages=[("x", None, "1")]) for name in "abcde"}


def run_of(folder, **hosts):
    return Run(run="r", folder=str(folder), hosts={**CHANGED, **hosts})


def test_a_host_goes_back_to_whatever_it_had_whole(tmp_path):
    """A driver, toolkits, or a container toolkit; f and g: nothing changed, and it broke off before a package did."""
    (tmp_path / BEFORE).write_text(dump(parse(LOCK)))
    also = {"f": HostRecord(run="r", status="done"), "g": HostRecord(run="r", status="failed")}
    back = of_run(run_of(tmp_path, **also))
    assert back.hosts == ["a", "b", "c"]
    assert {name: error.issue.code for name, error in back.impossible.items()} == dict.fromkeys(
        "deg", "rollback.nothing_before"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "does not say what its hosts had before"),
        ({"hosts": {"a": HostRecord(run="r", status="done")}}, "changed no package"),
    ],
)
def test_a_run_that_nobody_can_go_back_before_says_why(changes, words, tmp_path):
    with pytest.raises(UsageError, match=words) as refused:
        of_run(run_of(tmp_path).model_copy(update=changes))
    assert type(refused.value) is UsageError and refused.value.issue.hint
