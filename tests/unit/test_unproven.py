"""A check that could not run where the bus shows cards is a failure, unless it is excused or the cards are in use."""

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import count, proofs, topology
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job
from ansible_collections.gpu.provision.plugins.module_utils.prove.names import NAMES
from provision.catalog import load_catalog
from provision.facts import Facts
from provision.parts.check import Expect
from provision.parts.proof import Bounds
from provision.parts.proofs import judged
from provision.planning.verification import bounds, driven_gpus, select
from tests.unit.provecases import card, outcome, table
from tests.unit.test_proveframework import TORCH

CHECKS = (
    "gpu.count",
    "gpu.compute",
    "gpu.health",
    "gpu.p2p",
    "gpu.nccl",
    "gpu.cudnn",
    "gpu.dcgm",
    "cuda.compile",
    "python.framework",
)
# A diagnostic with one test that passed.
DCGM = {
    "timeout_s": 90.0,
    "engine": {"rc": 0, "out": "", "err": "", "ended": None},
    "diag": {
        "ended": None,
        "answer": {
            "DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "x", "results": [{"status": "Pass"}]}]}]}
        },
    },
}
NUMBERS = {
    "gflops": 1.0,
    "memory_gb_per_s": 1.0,
    "host_to_card_gb_per_s": 1.0,
    "card_to_host_gb_per_s": 1.0,
    "jit_ms": 1.0,
}


def ended(value, result):
    """How a job of a case ended: with a result, an error (text), or what a mapping says."""
    if isinstance(value, str):
        return outcome(message=value)
    if isinstance(value, dict):
        return outcome(message=value.get("message", "CudaError: x"), status=value.get("status"), code=value.get("code"))
    return outcome(result)


class Host:
    """What the jobs of a case answer."""

    def __init__(self, case):
        self.case, here = case, case.get("nvml", [0, 1])
        mode = {"mig": {"current": True, "pending": True}} if case.get("mig") else {}
        users = case.get("users", {})
        cards = [card(index, users=[users[index]] if index in users else [], **mode) for index in (0, 1)]
        self.cards = [row for row in cards if not isinstance(here, list) or row["index"] in here]

    def answer(self, job):
        case = self.case
        seen = [self.cards[index] for index in case["cuda"]] if isinstance(case.get("cuda"), list) else self.cards
        if job.function == "survey":
            return ended(case.get("nvml"), {"cards": self.cards, "lost": [], "pairs": []})
        if job.function == "visible":
            shown = [{"uuid": row["uuid"].split("-", 1)[1], "cc": "9.0"} for row in seen]
            return ended(case.get("cuda"), {"cards": shown})
        if job.function == "compute":
            done = {"card": {"name": "H100"}, "wrong": [], "load": [], "numbers": NUMBERS}
            return ended(case.get("compute"), done)
        if job.function == "which":
            if job.args["names"][0] in case.get("shadowed", {}) and job.env.get("LD_LIBRARY_PATH"):
                return outcome(message=case["shadowed"][job.args["names"][0]])
            there = case.get("libraries", True)
            return outcome(
                {"name": "x", "path": "/x"} if there else None, None if there else "NotThere: the loader finds no x"
            )
        if job.function == "build":
            runs = [
                {"label": row["label"], "cc": "9.0", "rc": 0, "said": "OK", "seconds": 1.0} for row in job.args["cards"]
            ]
            built = {"how": {"9.0": "native"}, "compiler": None, "said": "", "nvcc_s": 1.0, "default_too_new": None}
            return outcome({"built": True, **built, "runs": runs})
        if job.function == "find":
            return outcome({"python": "3.12.3", "prefix": "/v", "frameworks": ["torch"]})
        if job.function == "look":
            change = case.get("torch", {})
            cards = [{"index": index, "name": "x", "cc": "9.0", "wrong": None} for index in job.args["compute_on"]]
            found = {**TORCH, "count": len(seen), "cards": cards, **change}
            return ended(change if "status" in change else None, found)
        if job.function == "matrix":
            fields = {"access": True, "gb_per_s": 380.0, "us": 7.0, "wrong": 0, "wrong_direct": 0}
            return outcome({"pairs": [{"from": 0, "to": 1, **fields}, {"from": 1, "to": 0, **fields}]})
        if job.function == "allreduce":
            rows = [{"bytes": 1 << 30, "us": 3000.0, "bus_gb_per_s": 330.0}]
            return outcome({"version": "2.28.3", "cards": len(self.cards), "rows": rows, "wrong": [], "init_ms": 1})
        if job.function == "cards_by_smi":
            return outcome({"cards": []})
        assert job.function == "convolve"
        return outcome({"version": "9.14.0", "wrong": None})


@pytest.mark.parametrize("case", table("unproven"), ids=lambda case: case["name"])
def test_what_could_not_run(case, monkeypatch, tmp_path):
    host, nvcc = Host(case), tmp_path / "bin/nvcc"
    nvcc.parent.mkdir()
    nvcc.touch(0o755)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(prove_job, "run_all", lambda jobs: [host.answer(job) for job in jobs])
    monkeypatch.setattr(count, "bus_cards", lambda: [f"0000:0{n}:00.0" for n in range(case.get("bus", 2))])
    monkeypatch.setattr(topology, "host_hints", list)
    monkeypatch.setattr(proofs.run_as, "account", lambda *paths: None)
    monkeypatch.setattr(proofs.prove_dcgm, "missing", lambda: None)
    monkeypatch.setattr(proofs.prove_dcgm, "run", lambda level, timeout: {**DCGM, "level": level})
    args = {"toolkits": [{"version": "13.0", "path": str(tmp_path)}], "python": [str(nvcc)], "skip": ["gpu.xid"]}
    if "hidden_by" in case:
        args["environment"] = {"CUDA_VISIBLE_DEVICES": case["hidden_by"]}
    bounds = Bounds(gpus=case.get("gpus", 2), excused=case.get("excused", ()))
    found = {check.code.split("[")[0]: check for check in judged(proofs.main({**args, **case.get("args", {})}), bounds)}
    assert tuple(found) == CHECKS
    for name, check in found.items():
        status, *words = case["expect"].get(name, case["expect"].get("all", ["pass"]))
        assert all(word in f"{check.message} | {check.hint}" for word in words), check
        assert check.status == status, check
        assert check.hint or check.status in ("pass", "skip"), check
        why = case.get("not_run", {})
        why = why.get(name, why.get("all"))
        assert bool(check.not_run) is (why is not None), check
        assert why is None or any(why in line for line in check.not_run), check


@pytest.mark.parametrize(
    ("change", "gpus"),
    [
        ({}, 2),
        ({"gpus": []}, 0),
        ({"gpus": [{"slot": "0000:1b:00.0", "device": "2330", "driver": "vfio-pci"}]}, 0),
        ({"host": {"container": "docker"}, "devices": ["/dev/nvidia1", "/dev/nvidiactl"]}, 1),
        # a container that was given no card, and one whose card has no node
        ({"host": {"container": "docker"}}, 0),
        ({"host": {"container": "docker"}, "smi": {"path": "/usr/bin/nvidia-smi"}}, 1),
        # WSL
        ({"gpus": [], "smi": {"path": "/usr/lib/wsl/lib/nvidia-smi", "gpus": [{"index": 0, "name": "RTX 4090"}]}}, 1),
    ],
)
def test_the_cards_that_a_driver_should_have(change, gpus):
    cards = [{"slot": f"0000:{bus}:00.0", "device": "2330", "driver": "nvidia"} for bus in ("1b", "43")]
    assert driven_gpus(Facts.model_validate({"gpus": cards, **change})) == gpus


def test_cards_of_virtual_machines_are_counted_on_the_bus_alone():
    cards = [{"slot": f"0000:{bus}:00.0", "device": "2330", "driver": "nvidia"} for bus in ("1b", "43")]
    values = {"gpu_verify_expect": "2x H100"}
    for driver, expected in (("nvidia", "2x H100"), ("vfio-pci", "")):
        facts = Facts.model_validate({"gpus": [cards[0], {**cards[1], "driver": driver}]})
        assert bounds(facts, values, Expect(), load_catalog()).cards == expected


@pytest.mark.parametrize(
    ("values", "left"),
    [
        ({}, set()),
        ({"gpu_verify_run": False}, set(NAMES)),
        ({"gpu_verify_skip": ["gpu.n*", "container.run"]}, {"gpu.nccl", "container.run"}),
    ],
)
def test_what_is_left_out_is_reported(values, left):
    found = select([], values)
    assert {check.code for check in found} == left
    assert all(check.status == "skip" and "left out (gpu_verify_" in check.not_run[0] for check in found)


def test_what_can_be_excused_is_every_check_that_needs_a_card():
    from provision.inventory.variables import known
    from tests.lab.lab import EXCUSED

    assert known()["gpu_verify_excuse"].choices == CHECKS == EXCUSED
