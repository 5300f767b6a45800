"""diagnose on ten inputs for each kind of fault, by somebody who had not read the rules (tests/cases/diagnose_independent.yml)."""

import re

import pytest

from provision.catalog import load_catalog
from provision.diagnose.text import matches, traps
from tests.unit import apthosts, brokenhosts

HOSTS, CASES = brokenhosts.load("diagnose_independent")
_LEVELS = ("note", "warning", "error")


@pytest.mark.parametrize("case", [case for case in CASES if "text" in case], ids=lambda case: case["name"])
def test_text(case):
    want, found = case["want"], matches(case["text"])
    codes = [match.page.code for match in found]
    known = [trap for trap, _ in traps(case["text"], load_catalog())]
    if want.get("none"):
        assert not codes, codes
        return
    if "first" in want:
        assert codes and codes[0] in want["first"], (codes, [trap.id for trap in known])
    assert not set(codes) & set(want.get("never", []))
    said = "\n".join([*(str(match) for match in found[:1]), *(str(trap) for trap in known)])
    for pattern in want.get("words", []):
        assert re.search(pattern, said), said


@pytest.mark.parametrize("case", [case for case in CASES if "text" not in case], ids=lambda case: case["name"])
def test_host(case, tmp_path):
    _, found = apthosts.diagnosed(case, HOSTS, tmp_path / "host")
    want = case["want"]
    said = "\n\n".join(f"{f.level} {f.code}\n{brokenhosts.words(f)}" for f in found.findings)
    first = next(iter(found.findings), None)
    brokenhosts.check_agreement(found)
    codes = {f.code for f in brokenhosts.flat(found.findings)}
    if want.get("none"):
        assert not codes, said
    if "first" in want:
        assert first and first.code in want["first"], said
    for pattern in want.get("words", []):
        assert first and re.search(pattern, brokenhosts.words(first)), f"{pattern}\n{said}"
    if "actions" in want:
        assert first and {repair.action for repair in first.repairs} & set(want["actions"]), said
    assert not codes & set(want.get("never", [])), said
    assert set(want.get("also", [])) <= codes, said
    if "max_level" in want:
        top = max((_LEVELS.index(f.level) for f in found.findings), default=0)
        assert top <= _LEVELS.index(want["max_level"]), said
