"""Order of Debian versions: a table, and dpkg itself where it is."""

import itertools

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.lib import deb_version
from tests.unit import trees  # noqa: F401 - makes the collection importable

# Strictly rising.
RISING = [
    "0~",
    "0",
    "0.1",
    "1~~",
    "1~rc1",
    "1~rc1-1",
    "1",
    "1a",
    "1+b1",
    "1.0~rc1",
    "1.0-0~",
    "1.0",
    "1.0-1~bpo12+1",
    "1.0-1",
    "1.0-1ubuntu1",
    "1.0-1+cuda11.8",
    "1.0-1+cuda12.2",
    "1.0-1.1",
    "1.0-2",
    "1.0a",
    "1.0+git",
    "1.2-1",
    "1.10-1",
    "470.256.02-0ubuntu0.24.04.1",
    "580.65.06-0ubuntu0.24.04.1",
    "580.65.06-0ubuntu1",
    "580.65.06-1",
    "580.126.20-0ubuntu0.22.04.1",
    "580.126.20-0ubuntu0.24.04.1",
    "580.126.20-1ubuntu1",
    "590.44.01-1",
    "1:0",
    "1:1.0",
    "2:0~",
]
EQUAL = [("1", "1-0"), ("1.0", "0:1.0"), ("1.0-1", "1.0-01"), ("580.65.06-1", "580.65.6-1"), ("1-", "1"), ("1.", "1.0")]


def test_order():
    for low, high in itertools.combinations(RISING, 2):
        assert deb_version.compare(low, high) == -1, (low, high)
        assert deb_version.compare(high, low) == 1, (low, high)


@pytest.mark.parametrize(("one", "other"), EQUAL)
def test_equal(one, other):
    assert deb_version.compare(one, other) == 0 and deb_version.key(one) == deb_version.key(other)


def test_key_sorts():
    falling = RISING[::-1]
    assert sorted(falling, key=deb_version.key) == RISING


@pytest.mark.parametrize("bad", ["", ":", "1:", "x:1", ":1"])
def test_no_version(bad):
    with pytest.raises(ValueError, match="not a Debian version"):
        deb_version.compare(bad, "1")


def test_kernel_releases():
    releases = ["5.15.0-94-generic", "5.15.0-138-generic", "6.8.0-9-generic", "6.8.0-45-generic", "6.18.44"]
    falling = releases[::-1]
    assert sorted(falling, key=deb_version.natural_key) == releases
