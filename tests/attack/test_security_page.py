"""SECURITY.md promises what tests hold: each that it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()


def test_every_test_that_the_page_names_is_there():
    named = re.findall(r"`((?:tests/|lab/)?[\w/]*test_\w+\.py)(?:::(test_\w+))?`", PAGE)
    assert len(named) > 30
    for file, test in named:
        path = ROOT / file if file.startswith("tests/") else ROOT / "tests/attack" / file
        assert path.is_file(), file
        assert not test or f"def {test}(" in path.read_text(), f"{file}::{test}"


def test_every_row_that_says_cannot_names_a_test():
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]
    cannot = [row for row in rows if len(row) == 3 and row[1].strip() not in ("", "cannot", "---")]
    assert len(cannot) > 15
    assert [row for row in cannot if "test_" not in row[2]] == []
