"""NVIDIA's own diagnostic: what dcgmi answers becomes a verdict. No machine gave these answers, see the cases."""

import pytest

from provision.parts.driver import dcgm
from provision.parts.proof import Bounds
from provision.parts.proofs import judged
from tests.unit.provecases import says, table

UUIDS = ("GPU-00000000-1111-2222-3333-444444444444", "GPU-AAAAAAAA-1111-2222-3333-444444444444")
OTHER = "GPU-aaaaaaaa-1111-2222-3333-444444444444"
# As dcgmi/Query.cpp and DcgmiOutput.cpp of DCGM print it.
DISCOVERY = f"""\
2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:43:00.0                                         |
|        | Device UUID: {OTHER}                |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA H100 80GB HBM3                                          |
|        | PCI Bus ID: 00000000:1B:00.0                                         |
|        | Device UUID: {UUIDS[0]}                |
+--------+----------------------------------------------------------------------+
1 NvSwitches found.
| 2      |
"""


@pytest.mark.parametrize("case", table("dcgm"), ids=lambda case: case["name"])
def test_answers(case):
    diag = case.get("diag", {})
    if diag is not None:
        diag = {"rc": 0, "out": "", "err": "", "ended": None, "answer": case.get("answer"), **diag}
    engine = {"rc": 0, "out": DISCOVERY, "err": "", "ended": None, **case.get("engine", {})}
    uuids = {str(index): uuid for index, uuid in enumerate(UUIDS)}
    found = {"level": 1, "timeout_s": 90.0, "uuids": uuids, "engine": engine, "diag": diag}
    # as it comes over a session
    check = judged({"measured": [{"id": "gpu.dcgm", "found": found}]}, Bounds())[0]
    status, *words = case["expect"]
    assert check.status == status.replace("not_run", "skip"), check
    says(words, check.message, check.evidence)
    assert bool(check.not_run) is (status == "not_run")
    assert bool(check.hint) is (status in ("fail", "warn"))
    assert case.get("numbers", check.numbers) == check.numbers


def test_ids_of_dcgm_are_found_by_uuid():
    assert dcgm.indexes(DISCOVERY, {"0": UUIDS[0], "1": UUIDS[1]}) == {0: "1", 1: "0"}
    assert dcgm.indexes("", {"0": UUIDS[0]}) == {}
