"""A real machine (one H200, driver 580.159.04 outside apt, no systemd): its recorded facts lead to what was printed there.

tests/fixtures/h200x1 holds what `provision -i localhost, scan|plan|verify` printed on it in 2026-11, as text and as JSON;
names and UUIDs are replaced.
"""

import json
import re
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.facts import Facts
from provision.layers.cuda import cuda_lines, cudnn_lines, describe_cuda, nccl_lines
from provision.planning import plan_from_facts
from provision.planning.verification import verify_host

FIXTURES = Path(__file__).parents[1] / "fixtures"
RECORDED = FIXTURES / "h200x1"


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
    accepted = plan_from_facts("localhost", Facts.model_validate(facts()), never, {"nvidia_driver_manage": False})
    assert (accepted.status, accepted.steps, accepted.blockers) == ("converged", [], [])


@pytest.mark.parametrize("manage", [True, False])
def test_it_is_judged_as_it_was_there(manage):
    found = verify_host(lambda program, args: facts(), {"nvidia_driver_manage": manage, "gpu_verify_run": False})
    # Checks of CUDA and containers came later: what those of CUDA say of a real machine is in h100x1.
    assert {v.level for v in found if v.area in ("conda", "container")} == {"skip"}
    found = [verdict for verdict in found if not verdict.not_run]
    verdicts = [verdict for verdict in found if verdict.area not in ("cuda", "conda", "container")]
    printed = (RECORDED / "printed.txt").read_text().split("$ provision -i localhost, ")
    session = printed[5] if not manage else printed[3]
    assert session.startswith("verify" if manage else "verify -e nvidia_driver_manage=false")
    for verdict in verdicts:
        assert f"  {verdict.status}  {verdict.code}  {verdict.message}\n" in session
    statuses = [verdict.status for verdict in verdicts]
    assert ("fail" in statuses) is manage


def words(text):
    """Text without the breaks of lines that a terminal needs."""
    return " ".join(text.split())


@pytest.mark.parametrize("machine", ["h100x1", "h100x2"])
def test_cuda_of_a_real_h100_machine(machine):
    """h100x1/printed.txt is what was printed on it in 2026-11; the tree beside it is what the probe read there."""
    tree = Facts.model_validate(probe_facts.collect(root=str(FIXTURES / machine / "root")))
    # One wording has changed since.
    recorded = (FIXTURES / "h100x1/printed.txt").read_text()
    assert recorded.count("cuda.libraries  18, each once\n") == 1
    printed = words(recorded.replace("18, each once", "18 libraries, each in one place"))
    assert describe_cuda(tree) == "CUDA 13.0, cuDNN 9.14.0.64, NCCL 2.28.3"
    for title, lines in (("CUDA", cuda_lines(tree)), ("cuDNN", cudnn_lines(tree)), ("NCCL", nccl_lines(tree))):
        assert f"{title} {words(' '.join(lines))} " in printed
    values = {"nvidia_driver_manage": False, "gpu_verify_run": False}
    found = verify_host(lambda program, args: tree.model_dump(), values)
    # The recording is older than cuda.origin.
    verdicts = [v for v in found if v.area == "cuda" and not v.not_run and v.code != "cuda.origin"]
    assert {verdict.status for verdict in verdicts} == {"pass", "skip"}
    for verdict in verdicts:
        lines = [verdict.status, verdict.code, verdict.message, *verdict.evidence]
        assert words(" ".join(lines)) in printed


def test_nothing_private_is_in_the_recording():
    text = "".join(path.read_text() for path in RECORDED.iterdir())
    assert set(re.findall(r"GPU-[0-9a-f-]{36}", text)) == {"GPU-" + "0" * 8 + "-0000-0000-0000-" + "0" * 12}
    assert set(re.findall(r'"boot_id": "([0-9a-f-]{36})"', text)) == {"0" * 8 + "-0000-0000-0000-" + "0" * 12}
