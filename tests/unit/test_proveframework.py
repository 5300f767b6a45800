"""Frameworks of an interpreter: coverage, shadowed libraries, CPU builds; with real interpreters and stand-in frameworks."""

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import framework as prove_framework
from provision.parts.conda import proofs as conda_proofs
from tests.unit.provecases import outcome, proven, says, table

TORCH = {
    "version": "2.6.0+cu124",
    "cuda": "12.4",
    "available": True,
    "count": 1,
    "architectures": ["sm_80", "sm_90"],
    "cudnn": "9.1.0",
    "nccl": "2.21.5",
    "cards": [{"index": 0, "name": "NVIDIA H100", "cc": "9.0", "wrong": None}],
    "libraries": {
        "libcudnn.so.9": "/v/nvidia/cudnn/lib/libcudnn.so.9",
        "libnvJitLink.so.12": "/v/nvidia/nvjitlink/libnvJitLink.so.12",
    },
    "why": None,
}


@pytest.mark.parametrize("case", table("covers"), ids=lambda case: f"{case['list']} {case['cc']}")
def test_covers(case):
    assert conda_proofs.covers(case["list"], case["cc"]) == case["how"]


@pytest.mark.parametrize("case", table("framework"), ids=lambda case: case["name"])
def test_judge(case):
    def as_outcome(value):
        return outcome({**TORCH, **value}) if isinstance(value, dict) else outcome(message=value)

    count, path = case.get("count", 1), case.get("library_path", "")
    seen, plain = as_outcome(case["seen"]), as_outcome(case["plain"]) if "plain" in case else None
    there = set(case.get("there", [])).__contains__
    shadowed = not seen.ok and plain is not None and plain.ok
    culprit = prove_framework.culprit(seen.message, path, plain.result["libraries"], there) if shadowed else None
    status, message, evidence, hint = conda_proofs.judge_one(
        "torch", seen, plain, path, {"count": count, "ccs": ["9.0"] if count else []}, culprit
    )
    assert status == case["expect"][0], (message, evidence)
    says(case["expect"][1:], message, evidence, hint or "")
    assert hint or status in ("pass", "skip", "not_run", "no_card")


def test_a_crash_while_importing_is_no_shadow():
    crashed = outcome(message="ended by signal SIGILL", status="killed", at="importing torch")
    status, message, _, hint = conda_proofs.judge_one("torch", crashed, None, "", {"count": 1, "ccs": ["9.0"]})
    assert status == "fail"
    says(["torch", "SIGILL", "importing torch"], message, hint)


def test_versions_of_cudnn():
    assert [prove_framework.cudnn_text(number) for number in (91400, 8902, 90100)] == ["9.14.0", "8.9.2", "9.1.0"]


def test_libraries_are_read_from_maps(tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 123 /v/lib/libcudart-9335f6a2.so.12\n"
        "7f01-7f02 r-xp 00000000 08:01 124 /a path/libcudnn.so.9\n7f02-7f03 rw-p 0 00:00 0\n"
        "7f03-7f04 r-xp 00000000 08:01 125 /v/lib/libcublasLt.so.12.4.5.8\n7f05-7f06 r-xp 0 08:01 1 /lib/libm.so.6\n"
    )
    assert prove_framework.loaded_libraries(str(maps)) == {
        "libcudart-9335f6a2.so.12": "/v/lib/libcudart-9335f6a2.so.12",
        "libcudnn.so.9": "/a path/libcudnn.so.9",
        "libcublasLt.so.12.4.5.8": "/v/lib/libcublasLt.so.12.4.5.8",
    }


# --- whole interpreters, with a stand-in for torch -----------------------------------------------------------------


def proved(path, **args):
    (verdict,) = proven({"python": [path], "only": ["python.framework"], "timeout_s": 20, **args})
    return verdict


def test_an_interpreter_that_is_not_there(tmp_path):
    verdict = proved(str(tmp_path / "python3"))
    assert verdict["status"] == "fail"
    assert "cannot be started" in verdict["message"]
