"""Which packages belong to the driver, from a table: what is held and purged, and what shares the prefix only."""

from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.lib import driver_names
from provision.lib import yaml_reader

NAMES = yaml_reader.load((Path(__file__).parents[1] / "cases/driver_names.yml").read_text())


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_names(kind, name):
    assert driver_names.is_driver_package(name) is (kind != "foreign")
    assert driver_names.is_version_locked(name) is (kind == "locked")
