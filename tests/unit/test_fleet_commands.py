"""lock and drift as commands: many hosts, one read each, exit codes, what is printed."""

import io
import json
import os
import stat
import time
from dataclasses import replace

import pytest
from rich.console import Console

from provision.cli import fleet as cli_fleet
from provision.cli.base import Settings
from provision.cli.schemas import schemas
from provision.commands import drift, lock, plan
from provision.errors import HostFailedError, UnreachableError, UsageError
from provision.lock.model import NAME, LockError, load, save
from provision.lock.pin import find
from provision.render import Renderer
from provision.render import drift as drift_view
from provision.render import lock as lock_view
from provision.render.base import put
from tests.unit.candidates import CANDIDATES
from tests.unit.fakefleet import fake_fleet
from tests.unit.fleethosts import changed, healthy, lock_of_hosts
from tests.unit.test_lock import BOTH
from tests.unit.test_planning import rows

GONE = UnreachableError("connect.refused", "nobody answers", hint="is it switched on?")


def printed(view, document, verbosity=0):
    console = Console(file=io.StringIO(), width=200, color_system=None)
    for thing in view(document, verbosity):
        put(console, thing)
    return console.file.getvalue()


def names(count):
    return [f"gpu{number:03d}" for number in range(1, count + 1)]


@pytest.fixture
def locked(monkeypatch, tmp_path):
    """locked(facts by host) writes the lock of healthy hosts of these names, and gives a fleet with the facts."""

    def make(facts, before=None, **values):
        hosts = before or {name: healthy(name) for name in facts}
        first, _ = fake_fleet(monkeypatch, tmp_path, hosts)
        assert lock.run(first, tmp_path / NAME).written
        return fake_fleet(monkeypatch, tmp_path, facts, **values)

    return make


# --- drift ------------------------------------------------------------------------------------------------------------


def test_a_hundred_hosts_are_read_once_each_and_those_that_drifted_are_named(locked):
    odd = {
        "gpu007": {"packages/libnvidia-compute-580": {"status": "ii"}},
        "gpu042": {"gpus/0/pcie": {"width": 8}},
        "gpu099": {"containers/docker": {"version": "29.9"}},
    }
    facts = {
        name: changed(healthy(name), odd.get(name, {"containers/docker": {"version": "28.2"}})) for name in names(100)
    }
    fleet, asked = locked(facts)
    begun = time.process_time()
    document = drift.run(fleet)
    spent = time.process_time() - begun
    assert sorted(asked) == [(name, "probe.facts") for name in names(100)], "one read a host, and no apt"
    found = {name: [item.code for item in host.items] for name, host in document.hosts.items() if host.items}
    assert found == {"gpu007": ["holds.driver"], "gpu042": ["hardware.pcie_width"], "gpu099": ["containers.peers"]}
    assert document.exit_code == 2 and not document.ok
    assert spent < 20, "tens of milliseconds a host, not more"


def test_hosts_that_cannot_be_read_do_not_hide_the_others(locked):
    before = {name: healthy(name) for name in names(3)}
    broken = HostFailedError("host.read_failed", "the probe fell over", hint="look")
    drifted = changed(healthy("gpu001"), {"gpus/0/pcie": {"width": 8}})
    fleet, _ = locked({"gpu001": drifted, "gpu002": GONE, "gpu003": broken}, before)
    document = drift.run(fleet)
    assert {name: host.status for name, host in document.hosts.items()} == {
        "gpu001": "drifted",
        "gpu002": "unreachable",
        "gpu003": "failed",
    }
    assert document.exit_code == 4
    assert [issue.host for issue in document.errors] == ["gpu002", "gpu003"]
    told = printed(drift_view.view, document)
    assert "x8; expected: x16" in told and "1 drifted, 1 unreachable, 1 could not be read" in told


def test_a_fleet_as_it_should_be_ends_with_0(locked):
    fleet, _ = locked({name: healthy(name) for name in names(3)})
    document = drift.run(fleet)
    assert document.exit_code == 0 and document.ok
    assert "gpu001 to gpu003 (3 hosts)  as it should be" in printed(drift_view.view, document)


def test_without_a_lock_that_is_said(monkeypatch, tmp_path):
    fleet, _ = fake_fleet(monkeypatch, tmp_path, {"gpu001": healthy()})
    document = drift.run(fleet)
    assert document.lock is None and document.exit_code == 0
    assert "there is no lock" in printed(drift_view.view, document)


@pytest.mark.parametrize("command", [drift, plan, lock])
@pytest.mark.parametrize("text", ["schema: [", "schema: provision/lock/1\ninventory: gone.yml\n"])
def test_a_lock_that_cannot_be_used_is_said_once_before_any_host_is_asked(command, text, monkeypatch, tmp_path):
    (tmp_path / NAME).write_text(text)
    fleet, asked = fake_fleet(monkeypatch, tmp_path, {name: healthy(name) for name in names(3)})
    with pytest.raises(LockError):
        command.run(fleet)
    assert asked == []


def test_a_lock_names_its_inventory_and_an_older_one_is_not_taken_from_another(monkeypatch, tmp_path):
    fleet, asked = fake_fleet(monkeypatch, tmp_path, {"gpu001": healthy("gpu001")})
    fleet = replace(fleet, inventory=replace(fleet.inventory, groups={"all": ["gpu001"]}))
    save(lock_of_hosts({"gpu001": healthy("gpu001")}), tmp_path / NAME)
    assert lock.run(fleet).written, "an older lock of these hosts is taken up"
    assert load(tmp_path / NAME).inventory == "hosts.yml"
    assert not lock.run(fleet).written
    save(lock_of_hosts({"gpu001": healthy("gpu001")}), tmp_path / "shared.yml")
    assert not lock.run(fleet, tmp_path / "shared.yml").written, "it is for several inventories, and stays so"
    save(lock_of_hosts({"other": healthy("other")}), tmp_path / NAME)
    asked.clear()
    with pytest.raises(UsageError, match="none of its hosts is in this one"):
        lock.run(fleet)
    assert asked == []


def test_a_lock_for_other_hosts_only(locked):
    before = {"old1": healthy("old1")}
    fleet, _ = locked({"gpu001": changed(healthy(), {"host/os": {"version_id": "22.04"}})}, before)
    document = drift.run(fleet)
    assert [item.code for item in document.hosts["gpu001"].items][:1] == ["lock.not_listed"]


def test_one_host_is_told_item_by_item_with_a_way_out(locked):
    facts = changed(healthy("gpu001"), {"packages/libnvidia-compute-580": {"status": "ii"}})
    fleet, _ = locked({"gpu001": facts})
    told = printed(drift_view.view, drift.run(fleet))
    assert "holds.driver" in told and "hint: provision apply" in told and "by the inventory" in told


def test_metrics_of_a_document(locked, tmp_path):
    fleet, _ = locked({"gpu001": changed(healthy("gpu001"), {"gpus/0/pcie": {"width": 8}})})
    document = drift.run(fleet)
    drift.write_metrics(document, tmp_path / "drift.prom")
    assert 'gpu_provision_drift_items{host="gpu001",against="hardware"} 1' in (tmp_path / "drift.prom").read_text()


# --- lock -------------------------------------------------------------------------------------------------------------


def test_what_does_not_verify_is_no_example_for_others(monkeypatch, tmp_path):
    sick = changed(healthy("gpu002"), {"gpus/0": {"driver": None}})
    fleet, _ = fake_fleet(monkeypatch, tmp_path, {"gpu001": healthy("gpu001"), "gpu002": sick, "gpu003": GONE})
    document = lock.run(fleet, tmp_path / NAME)
    assert {name: host.status for name, host in document.hosts.items()} == {
        "gpu001": "locked",
        "gpu002": "refused",
        "gpu003": "unreachable",
    }
    assert document.exit_code == 4 and list(load(tmp_path / NAME).hosts) == ["gpu001"]
    errors = {issue.host: issue for issue in document.errors}
    assert errors["gpu002"].code == "lock.not_verified" and any(
        "driver.bound" in line for line in errors["gpu002"].because
    )
    told = printed(lock_view.view, document)
    assert "wrote" in told and "2 hosts left out: gpu002, gpu003" in told


def test_no_host_no_file(monkeypatch, tmp_path):
    fleet, _ = fake_fleet(monkeypatch, tmp_path, {"gpu001": GONE})
    document = lock.run(fleet, tmp_path / NAME)
    assert not document.written and not (tmp_path / NAME).exists()
    assert "nothing was written" in printed(lock_view.view, document)


def test_a_second_time_nothing_changes_and_the_file_is_not_touched(locked, tmp_path):
    fleet, _ = locked({"gpu001": healthy("gpu001")})
    text = (tmp_path / NAME).read_text() + "# a note of ours\n"
    (tmp_path / NAME).write_text(text)
    document = lock.run(fleet, tmp_path / NAME)
    assert not document.written and document.exit_code == 0 and document.changes == []
    assert (tmp_path / NAME).read_text() == text
    assert "up to date: nothing changes" in printed(lock_view.view, document)


def test_words_of_the_command_that_mean_nothing_are_refused(monkeypatch, tmp_path):
    fleet, _ = fake_fleet(monkeypatch, tmp_path, {"gpu001": healthy("gpu001")})
    for words in ({"update": True}, {"only": ["driver"]}, {"update": True, "only": ["drivers"]}):
        with pytest.raises(UsageError):
            lock.run(fleet, tmp_path / NAME, **words)


def apt_with(available):
    """aptquery of a host: what it offers, and a simulation that does what it is asked."""

    def apt(module, args):
        if args["op"] == "offer":
            return {"workdir": "/tmp/w", "packages": rows(available), "refreshed": True, "errors": []}
        if args["op"] == "cleanup":
            return {"removed": 1}
        have = healthy().packages
        wanted = dict(item.split("=") for item in args["install"])
        changes = [
            {
                "action": "upgrade" if name in have else "install",
                "name": name,
                "version": version,
                "from_version": have[name].version if name in have else None,
            }
            for name, version in wanted.items()
            if name not in have or have[name].version != version
        ]
        changes += [
            {"action": "remove", "name": name, "version": None, "from_version": have[name].version}
            for name in args["remove"]
        ]
        return {"ok": True, "error": None, "download_bytes": 0, "disk_bytes": 0, "changes": changes}

    return apt


def test_the_lock_moves_on_to_what_is_newest_and_says_why(locked, tmp_path):
    fleet, _ = locked({"gpu001": healthy("gpu001")}, apt=apt_with(BOTH), nvidia_driver_branch="580")
    document = lock.run(fleet, tmp_path / NAME, update=True, only=["driver"])
    assert document.exit_code == 0 and document.written, document.errors
    group = next(iter(load(tmp_path / NAME).groups.values()))
    assert group.driver.version == "580.159"
    assert group.packages["libnvidia-compute-580"] == "580.159-0ubuntu0.24.04.1"
    headline = next(change for change in document.changes if change.what == "driver")
    assert headline.old.startswith("580.142") and headline.new.startswith("580.159") and headline.because
    assert "580.142 open, signed, 580 -> 580.159 open, signed, 580" in printed(lock_view.view, document)


def test_without_anything_newer_the_lock_stays(locked, tmp_path):
    available = apt_with(CANDIDATES["noble"])
    fleet, _ = locked({"gpu001": healthy("gpu001")}, apt=available, nvidia_driver_branch="580")
    # The made-up host lacks the objects that its modules are made of: those are new, and told; then nothing is.
    first = lock.run(fleet, tmp_path / NAME, update=True)
    assert {change.what.split("-")[0] for change in first.changes} == {"gpu001 linux"}, first.changes
    document = lock.run(fleet, tmp_path / NAME, update=True)
    assert document.exit_code == 0 and not document.written and document.changes == [], document.errors


def test_a_part_that_is_not_named_stays_as_locked(locked, tmp_path):
    fleet, asked = locked({"gpu001": healthy("gpu001")}, apt=apt_with(BOTH), nvidia_driver_branch="580")
    document = lock.run(fleet, tmp_path / NAME, update=True, only=["cuda"])
    assert not document.written and document.changes == []
    assert [module for _, module in asked] == ["probe.facts"], "nothing of the driver is asked for"


def test_a_wish_that_the_lock_refuses_is_what_update_takes_over(locked, tmp_path):
    config = {"apt": apt_with(CANDIDATES["noble"]), "nvidia_driver_branch": "595"}
    fleet, _ = locked({"gpu001": healthy("gpu001")}, **config)
    document = lock.run(fleet, tmp_path / NAME, update=True)
    assert document.written, document.errors
    values = {"inventory_source": str(tmp_path / "hosts.yml")}
    assert next(iter(find(values)[0].groups.values())).driver.series == "595"


def test_both_documents_have_a_schema():
    assert {"provision/locked/1", "provision/drift/1"} <= set(schemas())


# --- files that are named ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "none/x.prom", "pipe"])
def test_a_file_that_cannot_be_written_is_said_before_any_host_is_asked(place, monkeypatch, tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    fleet, asked = fake_fleet(monkeypatch, tmp_path, {"gpu01": healthy("gpu01")})
    monkeypatch.setattr(cli_fleet, "open_fleet", lambda settings, command, **more: (fleet, Renderer(as_json=True)))
    with pytest.raises(UsageError, match="cannot write"):
        lock.run(fleet, tmp_path / place)
    with pytest.raises(UsageError, match="cannot write"):
        cli_fleet.drift(Settings(json=True), metrics=tmp_path / place)
    assert asked == [] and stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_drift_is_told_and_its_metrics_are_written(monkeypatch, tmp_path, capsys):
    odd = changed(healthy("gpu01"), {"packages/libnvidia-compute-580": {"status": "ii"}})
    fleet, _ = fake_fleet(monkeypatch, tmp_path, {"gpu01": odd})
    monkeypatch.setattr(cli_fleet, "open_fleet", lambda settings, command, **more: (fleet, Renderer(as_json=True)))
    assert cli_fleet.drift(Settings(json=True), metrics=tmp_path / "x.prom") == 2
    assert json.loads(capsys.readouterr().out)["hosts"]["gpu01"]["status"] == "drifted"
    assert 'gpu_provision_drift_host_drifted{host="gpu01"} 1' in (tmp_path / "x.prom").read_text()
