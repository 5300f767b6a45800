"""diagnose on hosts of tests/cases/diagnose_kinds.yml: one row for each kind of fault, with variants.

want: first: codes, one of which comes first · first_words, words: patterns in what is said of the first finding
actions: repairs, one of which the first finding has · never: codes that must not be found · max_level: no finding is above it
also: codes that must be found · later: the rule is not written yet (the test says when it is)
"""

import re

import pytest

from tests.unit import brokenhosts

HOSTS, CASES = brokenhosts.load("diagnose_kinds")
_LEVELS = ("note", "warning", "error")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_host(case, tmp_path):
    _, found = brokenhosts.diagnosed(case, HOSTS, tmp_path)
    want = case["want"]
    said = "\n\n".join(f"{f.level} {f.code}\n{brokenhosts.words(f)}" for f in found.findings)
    first = next(iter(found.findings), None)
    text = brokenhosts.words(first) if first else ""
    brokenhosts.check_agreement(found)
    codes = {f.code for f in brokenhosts.flat(found.findings)}
    if "first" in want:
        assert first and first.code in want["first"], said
    for pattern in want.get("first_words", []) + want.get("words", []):
        assert re.search(pattern, text), f"{pattern}\n{said}"
    if "actions" in want:
        assert {repair.action for repair in first.repairs} & set(want["actions"]), said
    assert not codes & set(want.get("never", [])), said
    assert set(want.get("also", [])) <= codes, said
    if "max_level" in want:
        top = max((_LEVELS.index(f.level) for f in found.findings), default=0)
        assert top <= _LEVELS.index(want["max_level"]), said
