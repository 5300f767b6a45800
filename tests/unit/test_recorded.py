"""A real machine (one H200, driver 580.159.04 outside apt, no systemd): its recorded facts lead to what was printed there.

tests/fixtures/h200x1 holds what `provision -i localhost, scan|plan|verify` printed on it in 2026-11, as text and as JSON;
names and UUIDs are replaced.
"""

import json
import re
from pathlib import Path

import pytest

from provision.facts import Facts
from provision.planning import plan_from_facts
from provision.verify import verify_host

RECORDED = Path(__file__).parents[1] / "fixtures/h200x1"


def document(name):
    return json.loads((RECORDED / f"{name}.json").read_text())["hosts"]["localhost"]


def facts():
    return document("scan")["facts"]


def never(program, args):
    raise AssertionError(f"asked the host for {program} {args}")


def test_its_driver_is_refused_and_accepted_when_that_is_said():
    plan = plan_from_facts("localhost", Facts.model_validate(facts()), never, {})
    printed = document("plan")
    assert plan.status == printed["status"] == "blocked"
    assert [(issue.code, issue.because) for issue in plan.blockers] == [
        (issue["code"], issue["because"]) for issue in printed["blockers"]
    ]
    accepted = plan_from_facts(
        "localhost", Facts.model_validate(facts()), never, {"nvidia_driver_manage": False}
    )
    assert (accepted.status, accepted.steps, accepted.blockers) == ("converged", [], [])


@pytest.mark.parametrize("manage", [True, False])
def test_it_is_judged_as_it_was_there(manage):
    found = verify_host(
        lambda program, args: facts(), {"nvidia_driver_manage": manage, "gpu_verify_run": False}
    )
    # Checks of CUDA came later: what they say of a real machine is in h100x1.
    verdicts = [verdict for verdict in found if not verdict["id"].startswith("cuda.")]
    printed = (RECORDED / "printed.txt").read_text().split("$ provision -i localhost, ")
    session = printed[5] if not manage else printed[3]
    assert session.startswith("verify" if manage else "verify -e nvidia_driver_manage=false")
    for verdict in verdicts:
        assert f"  {verdict['status']}  {verdict['id']}  {verdict['message']}\n" in session
    statuses = [verdict["status"] for verdict in verdicts]
    assert ("fail" in statuses) is manage


def test_nothing_private_is_in_the_recording():
    text = "".join(path.read_text() for path in RECORDED.iterdir())
    assert set(re.findall(r"GPU-[0-9a-f-]{36}", text)) == {"GPU-" + "0" * 8 + "-0000-0000-0000-" + "0" * 12}
    assert set(re.findall(r'"boot_id": "([0-9a-f-]{36})"', text)) == {"0" * 8 + "-0000-0000-0000-" + "0" * 12}
