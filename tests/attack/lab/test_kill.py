"""A handful of points of the kill harness; all of it at full size: make attack."""

import json

import pytest

from tests.attack.kill.harness import Harness
from tests.attack.kill.kinds import KINDS

pytestmark = pytest.mark.lab


@pytest.mark.parametrize(
    ("kind", "victims", "seeds"),
    [
        ("upgrade", ("ssh", "apt", "power"), range(3, 6)),
        pytest.param("purge", ("tree",), range(1, 2), marks=pytest.mark.thorough),
    ],
)
# Also make attack; real apt that is killed: tests/apt/test_transaction.py.
@pytest.mark.thorough
def test_nothing_is_lost(kind, victims, seeds):
    with Harness(KINDS[kind], batch=len(seeds), jobs=1) as harness:
        rows = list(harness.work(seeds, victims))
    assert len(rows) == len(seeds)
    assert any(any(row["killed"]) for row in rows), "nothing was killed at all"
    lost = [row for row in rows if row["lost"]]
    assert not lost, json.dumps(lost, indent=1)
