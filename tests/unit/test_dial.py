"""Logins that begin while the program loads: where the inventory is at hand, and right."""

import pytest

from provision import inventory
from provision.cli import base
from provision.errors import UsageError
from provision.inventory import Host, Inventory
from provision.runs import fleet


class Loading:
    def __init__(self, at_hand, **values):
        self.at_hand, self._values = at_hand, values

    def result(self):
        return Inventory(hosts=[Host("a", vars=self._values)], sources=["a,"])


@pytest.fixture
def opened(monkeypatch):
    """Open a fleet with a Loading; returns the names of hosts that were dialled, and how many were when commands loaded."""

    def go(loading, dial=True):
        dialled = []
        monkeypatch.setattr(inventory, "start", lambda *given, **more: loading)
        monkeypatch.setattr(fleet, "dial", lambda found: dialled.extend(host.name for host in found.hosts))
        monkeypatch.setattr(fleet, "warm_up", lambda: order.append(list(dialled)))
        order = []
        try:
            base.open_fleet(base.Settings(json=True), "plan", dial=dial)
        except UsageError as error:
            return error.issue.code, dialled
        return order[0], dialled

    return go


def test_hosts_of_an_inventory_at_hand_are_dialled_before_the_rest_is_loaded(opened):
    assert opened(Loading(True)) == (["a"], ["a"])


def test_nobody_is_dialled_before_the_inventory_is_read_or_by_a_command_that_may_ask_few(opened):
    assert opened(Loading(False)) == ([], [])
    assert opened(Loading(True), dial=False) == ([], [])


def test_nobody_is_dialled_with_a_wrong_variable(opened):
    code, dialled = opened(Loading(True, nvidia_driver_brunch="580"))
    assert code.startswith("vars.") and not dialled
