"""A handful of points of the kill harness; all of it at full size: make attack."""

import json

import pytest

from tests.attack.kill.harness import Harness
from tests.attack.kill.kinds import KINDS

pytestmark = pytest.mark.lab


@pytest.mark.parametrize(("kind", "victims"), [("upgrade", ("ssh", "apt", "power")), ("purge", ("tree",))])
def test_nothing_is_lost(kind, victims):
    with Harness(KINDS[kind], batch=3, jobs=1) as harness:
        rows = list(harness.work(range(3), victims))
    assert len(rows) == 3
    assert any(any(row["killed"]) for row in rows), "nothing was killed at all"
    lost = [row for row in rows if row["lost"]]
    assert not lost, json.dumps(lost, indent=1)
