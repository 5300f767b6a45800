"""Compile and run: what nvcc says, for which architectures it is asked, and the whole job with programs in nvcc's place."""

import re

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import compile as prove_compile
from provision.parts.cuda import proofs as cuda_proofs
from tests.unit.provecases import outcome, says, table


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
    status, message, _, hint, _ = cuda_proofs.judge_compile("11.8", done, None)
    assert status == "warn"
    says(["/usr/bin/g++-11", "newer than 11", "-ccbin"], message, hint)
