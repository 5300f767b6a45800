"""Inventories are read by forks here, of a process that has loaded what of Ansible has no settings; see tests/forked.py."""

from collections.abc import Iterator

import pytest

from provision import inventory
from tests import forked


@pytest.fixture(autouse=True, scope="session")
def readers_are_forked() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inventory, "_read", forked.reader)
        yield
