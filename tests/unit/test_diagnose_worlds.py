"""diagnose on hosts of tests/cases/diagnose_worlds.yml: other worlds are told as what they are, and nothing is wrong with them."""

import re

import pytest

from tests.unit import brokenhosts

HOSTS, CASES = brokenhosts.load("diagnose_worlds")
_HARDWARE = re.compile(r"seating|power-cycle|power cables|reseat|BIOS", re.I)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_host(case, tmp_path):
    _, found = brokenhosts.diagnosed(case, HOSTS, tmp_path)
    said = "\n\n".join(f"{f.level} {f.code}\n{brokenhosts.words(f)}" for f in found.findings)
    if "broken" in case:
        code, words = case["broken"]
        assert found.findings and found.findings[0].code == code, said
        assert re.search(words, brokenhosts.words(found.findings[0])), said
    else:
        assert not [f for f in found.findings if f.level != "note"] and not found.unknown, f"{said}\n{found.unknown}"
    assert not _HARDWARE.search(said), said
    assert re.search(case.get("told", ""), said), said
