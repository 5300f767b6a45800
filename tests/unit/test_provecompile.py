"""Compile and run: what nvcc says, for which architectures it is asked, and the whole job with programs in nvcc's place."""

import re

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import compile as prove_compile
from ansible_collections.gpu.provision.plugins.module_utils.prove import job as prove_job
from tests.unit.provecases import outcome, says, table

CARDS = [{"label": "0", "uuid": "GPU-0", "cc": "9.0"}, {"label": "1", "uuid": "GPU-1", "cc": "9.0"}]


@pytest.mark.parametrize("case", table("nvcc"), ids=lambda case: case["name"])
def test_what_nvcc_says(case):
    kind, sentence, hint = prove_compile.read_nvcc(case["said"])
    assert kind == case["kind"]
    says(case["words"], sentence, hint or "")


@pytest.mark.parametrize(
    ("cc", "known", "code", "how"),
    [
        ("9.0", ["8.0", "9.0"], "arch=compute_90,code=sm_90", "native"),
        ("9.0", ["7.0", "8.0", "8.6"], "arch=compute_86,code=compute_86", "jit"),
        ("12.0", ["9.0", "10.0"], "arch=compute_100,code=compute_100", "jit"),
        ("6.1", ["7.5", "8.0", "9.0"], None, "none"),
        ("9.0", [], "arch=compute_90,code=sm_90", "native"),
    ],
)
def test_the_code_that_is_asked_for(cc, known, code, how):
    assert prove_compile.code_for(cc, known) == (code, how)


def test_what_a_toolkit_compiles_for():
    def answers(rc, said):
        return lambda command: (rc, said)

    known = prove_compile.known_architectures
    assert known("nvcc", "13.0", answers(0, "compute_75\ncompute_90\ncompute_100\ncompute_103a\n")) == [
        "7.5",
        "9.0",
        "10.0",
        "10.3",
    ]
    # Toolkits before 11 do not have the option.
    assert known("nvcc", "10.2", answers(1, "nvcc fatal   : Unknown option '-list-gpu-arch'")) == ["7.5"]
    assert known("nvcc", "12.4", answers(1, "")) == []


def test_the_newest_host_compiler_that_fits():
    there = {"/usr/bin/g++-9", "/usr/bin/g++-11", "/usr/bin/g++-13"}
    assert prove_compile.older_compiler(12, there.__contains__) == "/usr/bin/g++-11"
    assert prove_compile.older_compiler(8, there.__contains__) is None


def test_the_source_names_what_it_prints():
    expected = re.findall(r"// gpu-provision-expect: (.*)", prove_compile.SOURCE)
    assert expected == ["OK"]
    assert 'printf("OK\\n")' in prove_compile.SOURCE


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
    status, message, _, hint, numbers = prove_compile.judge("12.4", done, None)
    assert (status, message, hint) == ("pass", "compiled for 9.0 and run on 2", None)
    assert set(numbers) == {"nvcc_s", "gpu0_run_s", "gpu1_run_s"}


def test_a_card_that_is_newer_than_the_toolkit_gets_ptx(build):
    done = build(cards=[{"label": "0", "uuid": "GPU-0", "cc": "12.0"}])
    assert done.result["how"] == {"12.0": "jit"}
    status, message, *_ = prove_compile.judge("12.4", done, None)
    assert status == "pass"
    assert "by PTX for compute capability 12.0" in message


def test_a_card_that_the_toolkit_has_given_up(build):
    done = build(cards=[{"label": "0", "uuid": "GPU-0", "cc": "7.0"}])
    assert prove_compile.judge("13.0", done, None)[:2] == (
        "fail",
        "CUDA 13.0 no longer compiles for compute capability 7.0",
    )
    mixed = build(cards=[*CARDS, {"label": "2", "uuid": "GPU-2", "cc": "7.0"}])
    assert [run["label"] for run in mixed.result["runs"]] == ["0", "1"]
    assert prove_compile.judge("13.0", mixed, None)[0] == "fail"


def test_no_card_to_run_on(build):
    done = build(cards=[])
    assert done.result["built"]
    assert prove_compile.judge("12.4", done, "no NVIDIA GPU")[:2] == ("skip", "compiled, not run: no NVIDIA GPU")


def test_a_host_compiler_that_is_too_new(build, monkeypatch):
    done = build(compiling=TOO_NEW)
    result = done.result
    status, message, evidence, hint, _ = prove_compile.judge("11.8", done, None)
    assert result["default_too_new"] == 11
    # this machine has no older one
    if result["compiler"] is None:
        assert status == "fail"
        says(["newer than 11", "apt-get install g++-11"], message, evidence, hint)
    else:
        assert status == "warn"
        says([result["compiler"]], message, hint)


def test_an_older_compiler_serves():
    done = outcome(
        {
            "built": True,
            "how": {"9.0": "native"},
            "compiler": "/usr/bin/g++-11",
            "said": "",
            "default_too_new": 11,
            "nvcc_s": 1.0,
            "runs": [{"label": "0", "cc": "9.0", "rc": 0, "said": "OK\n", "seconds": 0.3}],
        }
    )
    status, message, _, hint, _ = prove_compile.judge("11.8", done, None)
    assert status == "warn"
    says(["/usr/bin/g++-11", "newer than 11", "-ccbin"], message, hint)


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
    status, message, evidence, hint, _ = prove_compile.judge("12.4", build(program=program), None)
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
    status, message, _, hint, _ = prove_compile.judge("12.4", done, None)
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
