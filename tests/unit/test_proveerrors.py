"""Error codes of CUDA: found in words, and explained."""

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import errors as prove_errors
from tests.unit.provecases import outcome, says, table


@pytest.mark.parametrize("case", table("errors"), ids=lambda case: case["text"][:50])
def test_code_in_words(case):
    code = prove_errors.code_in(case["text"])
    assert code == case["code"]
    if code is not None:
        says(case["words"], *filter(None, prove_errors.explain(code)))


def test_an_unknown_code_is_named():
    assert "4242" in prove_errors.explain(4242)[0]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ("timeout", ["did not end", "vector add", "power cycle"]),
        ("killed", ["SIGSEGV", "Xid"]),
        ("memory", ["GiB", "free -h"]),
    ],
)
def test_endings(status, words):
    message = {
        "timeout": "no answer within 9 s",
        "killed": "ended by signal SIGSEGV",
        "memory": "took 9 GiB of memory",
    }[status]
    said = prove_errors.ending(outcome(message=message, status=status, at="vector add"), "card 0")
    says([*words, "card 0"], *said)


def test_a_code_speaks_before_the_words():
    sentence, hint = prove_errors.ending(outcome(message="CudaError: cuInit returned 802", code=802), "card 0")
    assert "802" in sentence
    assert "fabric_manager" in hint
