"""Minutes of load: rounds on a simulated card, readings that are folded, and what is made of them."""

from types import SimpleNamespace

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import cuda, nvml
from ansible_collections.gpu.provision.plugins.module_utils.prove import soak as job
from ansible_collections.gpu.provision.plugins.module_utils.prove.proofs import Proof, longest
from provision.parts.driver import soak
from provision.parts.proof import Bounds
from tests.unit.provecases import card, outcome, says
from tests.unit.test_provehealth import SAMPLE

NUMBERS = {"gflops": 30000.0, "last_gflops": 29900.0, "fp16_tflops": 630.0, "last_fp16_tflops": 629.0}


def found(load=(), after=None, **result):
    done = {
        "rounds": 73,
        "seconds": 303.0,
        "numbers": NUMBERS,
        "wrong": [],
        "wrong_results": 0,
        "load": [dict(SAMPLE, at=60.0 * number, replays=0, **(dict(load))) for number in range(4)],
        **result,
    }
    unit = {"label": "0", "index": 0}
    later = {"cards": [card(0, **(after or {}))]} if after != "lost" else {"cards": []}
    return {
        "soaked": [(unit, outcome(done).plain())],
        "why": [],
        "cards": [card()],
        "after": outcome(later).plain(),
        "seconds": 300.0,
    }


@pytest.mark.parametrize(
    "case, status, words",
    [
        ({}, "pass", ["300 s of load, every result right on 1 of 1", "73 rounds in 303 s", "FP16 630 to 629 TFLOP/s"]),
        (
            {"wrong": ["after 70 s: fp8: x"], "wrong_results": 4},
            "fail",
            ["card 0: 4 wrong results: after 70 s: fp8: x"],
        ),
        ({"after": {"ecc.volatile_uncorrected": 2}}, "fail", ["2 uncorrected memory errors under load"]),
        ({"after": {"ecc.volatile_corrected": 5}}, "warn", ["5 corrected memory errors under load"]),
        ({"after": "lost"}, "fail", ["the driver has lost it under load"]),
        ({"load": {"reasons": 0x40}}, "fail", ["slowed down under load by heat"]),
        ({"load": {"temperature": 88}}, "warn", ["88 C under load, 87 is the most"]),
        ({"numbers": {**NUMBERS, "last_gflops": 20000.0}}, "warn", ["gflops fell from 30000 to 20000"]),
        ({"numbers": {**NUMBERS, "last_gflops": 20000.0}, "load": {"reasons": 0x04}}, "pass", ["every result right"]),
    ],
)
def test_soak_is_judged(case, status, words):
    got, message, evidence, hint, numbers = soak.judge(found(**case), Bounds())
    assert got == status, (message, evidence)
    says(words, message, evidence)
    assert hint or status == "pass"
    assert numbers["gpu0_soak_lowest_sm_mhz"] == 1980


def test_a_job_that_ended_otherwise_fails_with_its_reason():
    row = {
        **found(),
        "soaked": [({"label": "0", "index": 0}, outcome(message="x", status="timeout", at="round 3: fp8").plain())],
    }
    status, message, *_ = soak.judge(row, Bounds())
    assert status == "fail" and "card 0" in message


def test_readings_are_folded_to_the_worst_of_each_stretch():
    load = []
    for at, change in ((0.0, {}), (1.0, {"temperature": 70, "sm_mhz": 1700, "reasons": 4}), (6.0, {"power_w": None})):
        job._fold(
            load,
            [dict(SAMPLE, replays=None, **change)]
            if "temperature" not in change
            else [{**SAMPLE, "replays": 2, **change}],
            at,
            5.0,
        )
    assert [(row["at"], row["temperature"], row["sm_mhz"], row["reasons"]) for row in load] == [
        (0.0, 70, 1700, 4),
        (6.0, 50, 1980, 0),
    ]
    assert load[0]["replays"] == 2 and load[1]["power_w"] is None


class _Part:
    name = "simulated work"

    def __init__(self, clock, wrong):
        self.clock, self.wrong, self.times = clock, wrong, 0

    def run(self, found, watch):
        self.times += 1
        self.clock[0] += 10.0
        watch.samples.append(dict(SAMPLE, replays=0))
        found["numbers"]["gflops"] = 100.0 - self.times
        found["wrong"] += self.wrong


@pytest.mark.parametrize("wrong, kept", [([], 0), (["x"] * 7, 20)])
def test_rounds_go_on_until_the_time_is_over(monkeypatch, wrong, kept):
    clock = [0.0]
    monkeypatch.setattr(job.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(nvml, "Watch", lambda uuid: SimpleNamespace(samples=[]))
    fake = SimpleNamespace(load=lambda: None, describe=dict, close=lambda: None)
    monkeypatch.setattr(cuda, "Driver", lambda: None)
    monkeypatch.setattr(cuda, "Card", lambda driver, index: fake)
    part = _Part(clock, wrong)
    monkeypatch.setattr(job, "_Product", lambda card: part)
    monkeypatch.setattr(job, "_tensors", lambda card: iter(()))
    monkeypatch.setattr(job, "_Copies", lambda card: _Part(clock, []))
    said = []
    result = job.soak({"uuid": None, "seconds": 100.0}, said.append)
    assert result["rounds"] == part.times == 5 and said[-1] == "round 5: simulated work"
    assert (result["numbers"]["gflops"], result["numbers"]["last_gflops"]) == (99.0, 95.0)
    assert len(result["wrong"]) == kept and result["wrong_results"] == 5 * len(wrong)
    assert len(result["load"]) <= job.STRETCHES + 1


def test_soak_runs_only_where_it_is_asked_for_and_is_waited_for():
    assert "gpu.soak" not in [name for name, _ in Proof({}).plan()]
    assert "gpu.soak" in [name for name, _ in Proof({"soak_s": 900}).plan()]
    assert longest({"soak_s": 900}) >= longest({}) + 900
