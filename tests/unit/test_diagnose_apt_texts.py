"""Error texts about apt, CUDA, containers, conda and proxies lead to their codes (tests/cases/diagnose_texts_apt.yml)."""

from pathlib import Path

import pytest

from provision.diagnose.text import matches
from provision.lib import yaml_reader

ROWS = yaml_reader.load((Path(__file__).parents[1] / "cases/diagnose_texts_apt.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", ROWS, ids=[row["text"][:60] for row in ROWS])
def test_text(row):
    found = [match.page.code for match in matches(row["text"])]
    if row.get("none"):
        assert not found
        return
    assert found and found[0] == row["code"], found
    assert row.get("among", row["code"]) in found, found
