"""Checks that run, each job a process: stand-ins for nvcc and for container runtimes, and real interpreters."""

import os
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.lib import kernel_errors
from ansible_collections.gpu.provision.plugins.module_utils.prove import count as prove_count
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job
from provision.catalog import load_catalog
from provision.parts.cuda import proofs as cuda_proofs
from provision.parts.driver import xid
from tests.lab.contents import NVML
from tests.unit.provecases import proven, says
from tests.unit.test_prove import BANDWIDTH

CARDS = [{"label": "0", "uuid": "GPU-0", "cc": "9.0"}, {"label": "1", "uuid": "GPU-1", "cc": "9.0"}]


NVCC = r"""#!/usr/bin/env python3
import os, sys
words = sys.argv[1:]
if words == ["--list-gpu-arch"]:
    print("compute_80\ncompute_90")
    sys.exit(0)
assert os.path.isdir(os.environ["TMPDIR"]) and os.environ["TMPDIR"] == os.getcwd()
source = open(words[-1]).read()
assert "gpu-provision-expect" in source
%s
out = words[words.index("-o") + 1]
with open(out, "w") as file:
    file.write("#!/bin/sh\n%s\n")
os.chmod(out, 0o755)
"""


TOO_NEW = """
if "-ccbin" not in words:
    print("#error -- unsupported GNU version! gcc versions later than 11 are not supported!")
    sys.exit(1)
"""


@pytest.fixture
def build(tmp_path):
    def run(compiling="", program="echo OK", cards=CARDS, **more):
        nvcc = tmp_path / "nvcc"
        nvcc.write_text(NVCC % (compiling, program))
        nvcc.chmod(0o755)
        folder = tmp_path / "work"
        folder.mkdir(exist_ok=True)
        args = {"nvcc": str(nvcc), "version": "12.4", "folder": str(folder), "cards": list(cards), **more}
        env = prove_job.clean_environment(None, {"TMPDIR": str(folder)})
        return prove_job.run(prove_job.Job("prove.compile", "build", args, env, timeout_s=20))

    return run


def test_compiled_and_run_on_every_card(build):
    done = build(program="echo $CUDA_VISIBLE_DEVICES; echo OK")
    assert [run["said"].split() for run in done.result["runs"]] == [["GPU-0", "OK"], ["GPU-1", "OK"]]
    assert done.result["how"] == {"9.0": "native"}
    status, message, _, hint, numbers = cuda_proofs.judge_compile("12.4", done, None)
    assert (status, message, hint) == ("pass", "compiled for 9.0 and run on 2", None)
    assert set(numbers) == {"nvcc_s", "gpu0_run_s", "gpu1_run_s"}


def test_a_card_that_is_newer_than_the_toolkit_gets_ptx(build):
    done = build(cards=[{"label": "0", "uuid": "GPU-0", "cc": "12.0"}])
    assert done.result["how"] == {"12.0": "jit"}
    status, message, *_ = cuda_proofs.judge_compile("12.4", done, None)
    assert status == "pass"
    assert "by PTX for compute capability 12.0" in message


def test_a_card_that_the_toolkit_has_given_up(build):
    done = build(cards=[{"label": "0", "uuid": "GPU-0", "cc": "7.0"}])
    assert cuda_proofs.judge_compile("13.0", done, None)[:2] == (
        "fail",
        "CUDA 13.0 no longer compiles for compute capability 7.0",
    )
    mixed = build(cards=[*CARDS, {"label": "2", "uuid": "GPU-2", "cc": "7.0"}])
    assert [run["label"] for run in mixed.result["runs"]] == ["0", "1"]
    assert cuda_proofs.judge_compile("13.0", mixed, None)[0] == "fail"


def test_no_card_to_run_on(build):
    done = build(cards=[])
    assert done.result["built"]
    assert cuda_proofs.judge_compile("12.4", done, "no NVIDIA GPU")[:2] == (
        "no_card",
        "compiled, not run: no NVIDIA GPU",
    )


def test_a_host_compiler_that_is_too_new(build, monkeypatch):
    done = build(compiling=TOO_NEW)
    result = done.result
    status, message, evidence, hint, _ = cuda_proofs.judge_compile("11.8", done, None)
    assert result["default_too_new"] == 11
    # this machine has no older one
    if result["compiler"] is None:
        assert status == "fail"
        says(["newer than 11", "apt-get install g++-11"], message, evidence, hint)
    else:
        assert status == "warn"
        says([result["compiler"]], message, hint)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "echo 'error 35: CUDA driver version is insufficient for CUDA runtime version (cudaMalloc)'; exit 1",
            ["card 0", "error 35", "newer driver"],
        ),
        (
            "echo 'error 222: the provided PTX was compiled with an unsupported toolchain. (launch)'; exit 1",
            ["error 222"],
        ),
        ("echo 'error 209: no kernel image is available for execution on the device (launch)'; exit 1", ["error 209"]),
        ("echo 'wrong: sum 7'; exit 1", ["card 0", "wrong: sum 7"]),
        ("exit 3", ["exit code 3"]),
        ("echo NOT OK; exit 1", ["NOT OK"]),
        ("echo nothing", ["nothing"]),
    ],
)
def test_programs_that_fail(build, program, words):
    status, message, evidence, hint, _ = cuda_proofs.judge_compile("12.4", build(program=program), None)
    assert status == "fail"
    says(words, message, evidence, hint or "")


def test_a_compiler_that_hangs_is_stopped(build, tmp_path):
    nvcc = tmp_path / "slow"
    nvcc.write_text("#!/bin/sh\nsleep 60\n")
    nvcc.chmod(0o755)
    folder = tmp_path / "other"
    folder.mkdir()
    args = {"nvcc": str(nvcc), "version": "12.4", "folder": str(folder), "cards": CARDS}
    done = prove_job.run(prove_job.Job("prove.compile", "build", args, timeout_s=1.0))
    status, message, _, hint, _ = cuda_proofs.judge_compile("12.4", done, None)
    assert status == "fail"
    assert "did not end" in message
    assert hint


def test_cards_by_nvidia_smi(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, GPU-1234, 9.0'; echo '1, GPU-5678, [N/A]'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    done = prove_job.run(prove_job.Job("prove.compile", "cards_by_smi"))
    assert done.result == {"cards": [{"label": "0", "uuid": "GPU-1234", "cc": "9.0"}]}
    smi.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    assert prove_job.run(prove_job.Job("prove.compile", "cards_by_smi")).result == {"cards": []}


@pytest.mark.skipif(bool(prove_count.bus_cards()), reason="there is a card here")
def test_without_a_card_every_check_skips_and_says_why():
    checks = proven({"python": []}, BANDWIDTH)
    assert [check["id"] for check in checks] == [
        "gpu.count",
        "gpu.compute",
        "gpu.health",
        "gpu.xid",
        "gpu.p2p",
        "gpu.nccl",
        "gpu.cudnn",
        "gpu.dcgm",
        "cuda.compile",
    ]
    assert {check["status"] for check in checks} == {"skip"}
    assert all(check["message"] for check in checks)
    assert all(
        set(check) == {"id", "status", "message", "evidence", "hint", "seconds", "numbers", "not_run"}
        for check in checks
    )


def test_a_job_that_finds_no_driver_says_so():
    done = prove_job.run(prove_job.Job("prove.cuda", "visible"))
    if not prove_count.bus_cards():
        assert done.status == "error"
        assert "libcuda.so.1" in done.message


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the lab's libraries are for x86-64")
def test_the_nvml_of_simulated_hosts_says_what_it_is(tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_bytes(NVML.data)
    done = prove_job.run(prove_job.Job("prove.nvml", "survey", env=prove_job.clean_environment(str(tmp_path))))
    assert "nvmlInit_v2 returned 999 (SIMULATED: a stand-in of the lab, nothing computes here)" in done.message


def test_libraries_are_really_loaded():
    done = prove_job.run(prove_job.Job("prove.library", "which", {"names": ["libno-such-thing.so.4", "libc.so.6"]}))
    assert done.result["name"] == "libc.so.6"
    assert done.result["path"].endswith("libc.so.6")
    done = prove_job.run(prove_job.Job("prove.library", "which", {"names": ["libno-such-thing.so.4"]}))
    assert done.message.startswith("NotThere: the loader finds no libno-such-thing.so.4")


def test_a_damaged_library_first_on_the_path_is_told(tmp_path):
    (tmp_path / "libc-of-mine.so.6").write_text("not a library\n")
    env = prove_job.clean_environment(str(tmp_path))
    done = prove_job.run(prove_job.Job("prove.library", "which", {"names": ["libc-of-mine.so.6"]}, env))
    assert done.status == "error"
    assert str(tmp_path) in done.message


def test_the_real_log_is_read_or_refused():
    done = prove_job.run(prove_job.Job("prove.xid", "read", timeout_s=30))
    if done.ok:
        assert all(kernel_errors.wanted(line) for _, _, line in done.result["lines"])
    else:
        assert done.status == "error"
        assert not Path("/dev/kmsg").exists() or "kmsg" in done.message or "Operation not permitted" in done.message
    status = xid.judge(done, load_catalog().xids)[0]
    assert status in ("pass", "warn", "fail") if done.ok else status == "not_run"
