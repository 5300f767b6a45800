"""Every error's first repair, planned on the same host: what a plan refuses by facts alone is told as by hand, with the reason."""

import pytest

from provision.catalog import load_catalog
from provision.diagnose import judge
from provision.planning import plan_without_apt
from tests.unit import brokenhosts

TABLES = ("apt", "boot", "kinds", "user", "variants", "worlds")
ROWS = [(name, *brokenhosts.load(f"diagnose_{name}")) for name in TABLES]
ALL = {name: host for _, hosts, _ in ROWS for name, host in hosts.items()}
CASES = [({**ALL, **hosts}, case) for _, hosts, cases in ROWS for case in cases]
NAMES = [f"{name}: {case['name']}" for name, _, cases in ROWS for case in cases]


@pytest.mark.parametrize(("hosts", "case"), CASES, ids=NAMES)
def test_a_first_repair_is_not_refused(hosts, case, tmp_path):
    facts, found = brokenhosts.diagnosed(case, hosts, tmp_path)
    first = [(finding.code, finding.repairs[0]) for finding in found.errors]
    assert all(repair.words for _, repair in first)
    ours = [(code, repair) for code, repair in first if judge._is_of_driver(repair)]
    if not ours:
        return
    plan, asks = plan_without_apt("", facts, brokenhosts.values_of(case), load_catalog())
    refused = [issue.code for issue in plan.blockers if issue.code in judge._REFUSED]
    assert not refused, (ours, refused)


def test_a_driver_outside_apt_is_repaired_by_hand_and_why(tmp_path):
    case = {
        "smi": "works",
        "gpus": ["0000:1b:00.0 A100"],
        "tree": {
            "kernels": ["6.8.0-45-generic"],
            "pci": ["0000:1b:00.0 10de:20b0 0302 nvidia"],
            "loaded": {"version": "580.126.20", "open": True},
            "packages": ["dpkg 1 ii"],
        },
    }
    _, found = brokenhosts.diagnosed(case, {}, tmp_path)
    (finding,) = [one for one in found.errors if one.code == "gpus.no_device_nodes"]
    assert [repair.action for repair in finding.repairs] == ["manual"]
    assert "a driver that apt does not own" in finding.repairs[0].words
