"""A lock on simulated hosts: plans are held to it, a new host gets exactly it, it moves on, and an old one brings back.

Real apt and dpkg against the lab's repositories, which get newer drivers in between. The tests go in order.
"""

import shutil

import pytest

from tests.bench.__main__ import CONVERGED
from tests.faults.conftest import Command, driver_packages
from tests.lab import Lab

pytestmark = pytest.mark.lab

HOSTS = [{"name": "gpu01", **CONVERGED, "nouveau": False}, {"name": "new", "gpus": CONVERGED["gpus"], "nouveau": False}]
FIRST, LATER = "595.58.03", "595.71.05"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with Lab.start(HOSTS) as lab:
        yield Command(lab, tmp_path_factory.mktemp("state"))


def versions(host):
    """Upstream versions of the version-locked driver packages."""
    return {version.split("-")[0] for version in driver_packages(host).values() if version.startswith("595.")}


def test_only_what_verifies_is_locked(fleet):
    refused = fleet.json("lock", rc=5)
    assert {name: host["status"] for name, host in refused["hosts"].items()} == {"gpu01": "locked", "new": "refused"}
    (error,) = refused["errors"]
    assert error["code"] == "lock.not_verified" and error["host"] == "new" and error["hint"]
    assert refused["written"] and fleet.json("lock", "-l", "gpu01")["written"] is False


def test_newer_versions_do_not_move_a_locked_host(fleet):
    fleet.lab.publish("drivers")
    assert fleet.json("plan", "-l", "gpu01")["hosts"]["gpu01"]["status"] == "converged"
    refused = fleet.json("plan", "-l", "gpu01", "-e", "nvidia_driver_update=true", rc=5)
    assert [error["code"] for error in refused["errors"]] == ["lock.contradicts"]
    plain = fleet.ansible("site.yml", "-l", "gpu01", "-e", "nvidia_driver_update=true")
    assert plain.returncode == 2 and "nvidia_driver_update asks for newer versions" in plain.stdout, plain.stdout
    free = fleet.json("plan", "--no-lock", "-l", "gpu01", "-e", "nvidia_driver_update=true", rc=2)
    assert LATER in free["hosts"]["gpu01"]["summary"]


def test_a_new_host_of_the_kind_gets_exactly_what_is_locked(fleet):
    told = fleet.json("plan", "-l", "new", rc=2)["hosts"]["new"]
    assert told["decisions"][0]["what"] == "lock"
    fleet.run("apply", "--yes", "-l", "new")
    one, other = (driver_packages(fleet.lab.host(name)) for name in ("gpu01", "new"))
    assert one == other and versions(fleet.lab.host("new")) == {FIRST}
    assert fleet.json("lock")["written"]
    assert fleet.json("drift")["exit_code"] == 0


# The rules of what follows: tests/unit/test_lock.py; a lock that moves on: tests/faults/test_drift.py.
@pytest.mark.thorough
def test_the_lock_moves_on_by_the_part_that_is_named_and_says_why(fleet):
    path = fleet.lab.inventory.parent / "fleet.lock.yml"
    shutil.copy(path, path.with_name("old.lock.yml"))
    moved = fleet.json("lock", "--update", "--only", "driver")
    driver = next(change for change in moved["changes"] if change["what"] == "driver")
    assert driver["old"].startswith(FIRST) and driver["new"].startswith(LATER) and driver["because"]
    behind = fleet.json("drift", rc=2)["hosts"]["gpu01"]["items"]
    assert {item["against"] for item in behind} == {"lock"}
    fleet.run("apply", "--yes")
    assert versions(fleet.lab.host("gpu01")) == versions(fleet.lab.host("new")) == {LATER}
    assert fleet.json("drift")["exit_code"] == 0
    assert fleet.json("lock")["written"] is False
    assert fleet.json("lock", "--update")["changes"] == []


@pytest.mark.thorough
def test_an_old_lock_brings_the_old_versions_back(fleet):
    old = str(fleet.lab.inventory.parent / "old.lock.yml")
    fleet.run("apply", "--yes", "--lock", old, "-l", "new")
    assert versions(fleet.lab.host("new")) == {FIRST}
    assert fleet.json("drift", "--lock", old, "-l", "new")["exit_code"] == 0


@pytest.mark.thorough
def test_a_version_that_the_repositories_lost_is_said_in_the_plan(fleet):
    path = fleet.lab.inventory.parent / "fleet.lock.yml"
    path.write_text(path.read_text().replace(LATER, "595.99.01"))
    plan = fleet.json("plan", "-l", "gpu01", rc=5)
    (error,) = plan["errors"]
    assert error["code"] == "lock.not_offered" and "provision mirror" in error["hint"]
    assert any(LATER in line for line in error["because"]), error
