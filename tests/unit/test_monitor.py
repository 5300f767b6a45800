"""verify for a prolog and a monitor: one line at most, and its exit code; and what gpu_verify_site may say."""

import pytest

from provision.commands.verify import for_monitor
from provision.documents import VerifiedHost, VerifyDocument
from provision.errors import Issue
from provision.inventory import site_checks
from provision.lib.findings import Check


def document(*rows, errors=()):
    checks = [Check(id=name, status=status, message=message) for name, status, message in rows]
    return VerifyDocument(hosts={"gpu01": VerifiedHost(status="pass", checks=checks)}, errors=list(errors))


GOOD, WARN = ("driver.smi", "pass", "sees all 8"), ("driver.hold", "warn", "not held | 3")
BAD = ("gpu.xid", "fail", "Xid 95 at 0000:9b:00: an\nuncorrectable error")


@pytest.mark.parametrize(
    ("rows", "slurm", "nagios"),
    [
        ([GOOD], ([], 0), (["GPU OK - 1 checks"], 0)),
        ([GOOD, WARN], ([], 0), (["GPU WARNING - gpu01: driver.hold: not held / 3"], 1)),
        (
            [GOOD, WARN, BAD],
            (["gpu01: gpu.xid: Xid 95 at 0000:9b:00: an uncorrectable error"], 1),
            (["GPU CRITICAL - gpu01: gpu.xid: Xid 95 at 0000:9b:00: an uncorrectable error"], 2),
        ),
        (
            [BAD, BAD],
            (["gpu01: gpu.xid: Xid 95 at 0000:9b:00: an uncorrectable error (and 1 more)"], 1),
            (["GPU CRITICAL - gpu01: gpu.xid: Xid 95 at 0000:9b:00: an uncorrectable error (and 1 more)"], 2),
        ),
    ],
)
def test_one_line_and_its_code(rows, slurm, nagios):
    assert for_monitor(document(*rows), nagios=False) == slurm
    assert for_monitor(document(*rows), nagios=True) == nagios


def test_a_host_that_could_not_be_read():
    found = document(errors=[Issue(code="host.unreachable", message="gpu01 does not answer")])
    assert for_monitor(found, nagios=False) == (["gpu01 does not answer"], 1)
    assert for_monitor(found, nagios=True) == (["GPU UNKNOWN - gpu01 does not answer"], 3)


@pytest.mark.parametrize(
    "rows",
    [
        [{"name": "a b", "command": ["/x"]}],
        [{"name": "a", "command": ["x"]}],
        [{"name": "a", "command": []}],
        [{"name": "a", "command": ["/x"]}, {"name": "a", "command": ["/y"]}],
    ],
)
def test_a_wrong_check_of_the_site_is_refused(rows):
    with pytest.raises(ValueError):
        site_checks.check(rows)
    site_checks.check([{"name": "scratch-2", "command": ["/usr/local/sbin/x", "--quick"]}])
