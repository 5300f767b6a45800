"""Drift of one host (tests/cases/drift.yml), of hosts against each other, and the metrics."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import provision.collection  # noqa: F401 - makes the collection importable
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.cuda import files as cuda_files
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from provision.catalog import load_catalog
from provision.drift import inventory, judge_host, metrics
from provision.drift.item import Item, without_echoes
from provision.drift.peers import compare, peer_of
from provision.errors import Issue, UsageError
from provision.facts import Facts
from provision.lib import yaml_reader
from provision.lock.make import make
from provision.lock.model import NAME, Lock, dump, parse
from provision.parts.plan import HostPlan, Step
from tests.unit import trees
from tests.unit.fleethosts import changed, entry_of, healthy, lock_of_hosts
from tests.unit.test_planning import CUDA_13, with_cuda

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/drift.yml").read_text())


def facts_of(case):
    """The host of a case as it is now."""
    facts = healthy()
    for path, values in case.get("replace", {}).items():
        facts = changed(facts, {path: values})
    for path, gone in case.get("remove", {}).items():
        kept = {name: value for name, value in facts.model_dump()[path].items() if name not in gone}
        facts = Facts.model_validate({**facts.model_dump(), path: kept})
    if case.get("uuids") == "other":
        facts = healthy("other")
    return changed(facts, case.get("change", {}))


def written(lock, case, folder):
    """Write the lock of a case; its data may be changed like facts."""
    data = yaml_reader.load(dump(lock))
    for path, value in case.get("lock_change", {}).items():
        at = data
        *above, last = path.split("/")
        for word in above:
            at = at[int(word) if isinstance(at, list) else word]
        at[last] = value
    (folder / NAME).write_text(yaml.safe_dump(data))
    assert isinstance(parse((folder / NAME).read_text()), Lock)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_drift(case, tmp_path):
    if case.get("lock", True):
        written(lock_of_hosts({"gpu01": healthy()}, case.get("lock_wish")), case, tmp_path)
    values = {**case.get("config", {}), "inventory_source": str(tmp_path / "hosts.yml")}
    items, _ = judge_host(case.get("as", "gpu01"), facts_of(case), values, load_catalog())
    told = [f"{item.code}: {item.what} {item.expected} {item.found}" for item in items]
    assert [item.code for item in items] == [text.split(": ")[0] for text in case["expect"]], told
    for line, expected in zip(told, case["expect"], strict=True):
        for words in expected.split(": ", 1)[1].split(" "):
            assert words in line, f"{words!r} is not in {line!r}"
    assert "".join(told).endswith(case.get("end", "")), told
    assert all(item.hint for item in items), "every item has a way out"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"smi/gpus/1": {"uuid": "GPU-new"}}, "hardware.card_exchanged"),
        ({"gpus/1": {"device": "2204"}}, "hardware.card_other"),
        ({"smi/gpus/0": {"mig": "Enabled"}}, "hardware.mig"),
        ({"kernels": {"running": "6.8.0-45-generic", "next": "6.8.0-45-generic"}}, "boot.kernel"),
        ({"apt/sources/+": {"file": "/etc/apt/sources.list.d/mine.list", "uris": ["http://x.test"]}}, "sources.added"),
        ({"apt/sources": []}, "sources.gone"),
    ],
)
def test_what_is_of_one_host_is_accepted_by_the_lock_alone(change, code, tmp_path):
    """A new card or kernel is no reason to move the versions of a group, which --update does."""
    before = changed(healthy(), {"smi/gpus/0": {"mig": "Disabled"}})
    values = {"inventory_source": str(tmp_path / "hosts.yml")}
    now = changed(before, change)

    def items(lock):
        (tmp_path / NAME).write_text(dump(lock))
        found, _ = judge_host("gpu01", now, values, load_catalog())
        return {item.code: item.hint for item in found}

    old = lock_of_hosts({"gpu01": before})
    hint = items(old)[code]
    assert "provision lock" in hint and "--update" not in hint
    made = make([entry_of("gpu01", now)], old)
    assert not made.issues and made.lock.groups == old.groups
    assert code not in items(made.lock)


# --- recorded hosts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recorded", ["h100x1", "h100x2"])
def test_a_real_machine_as_its_image_has_it_did_not_drift(recorded, tmp_path):
    """Files and nvidia-smi of real machines with one and two H100, whose driver and CUDA came with the image."""
    root = trees.build(tmp_path / "root", {"base": recorded})
    xml = (trees.FIXTURES / recorded / "nvidia-smi.xml").read_text()
    facts = Facts.model_validate(probe_facts.collect(str(root), run=lambda *words, **options: (0, xml, "")))
    values = {"nvidia_driver_manage": False, "inventory_source": str(tmp_path / "hosts.yml")}
    assert judge_host("gpu01", facts, values, load_catalog())[0] == []
    (tmp_path / NAME).write_text(dump(lock_of_hosts({"gpu01": facts}, {"nvidia_driver_manage": False})))
    assert judge_host("gpu01", facts, values, load_catalog())[0] == []
    narrow = changed(facts, {"smi/gpus/0": {"mig": "Enabled"}})
    assert [item.code for item in judge_host("gpu01", narrow, values, load_catalog())[0]] == ["hardware.mig"]


def test_toolkits_that_are_undecided_do_not_make_our_files_look_unwanted():
    """A part of the toolkit is gone: apt would have to be asked, and until then our files stay what they are."""
    there = with_cuda("hi", own_files={cuda_files.LD_SO_CONF: "00", apt_files.UNATTENDED: "00"})
    broken = changed(there, {"packages/cuda-nvcc-13-0": None})
    codes = [item.code for item in judge_host("gpu01", broken, CUDA_13, load_catalog())[0]]
    # The made-up host has no driver that works, which checks tell.
    assert [code for code in codes if not code.startswith("check.")] == ["packages.cuda"], codes


def test_a_daemon_json_that_lost_the_runtime_is_one_item(monkeypatch):
    """What is to be written, and that the daemon is to read it, are one thing."""
    steps = [
        Step(
            id="containers", part="containers", title="give GPUs", because="", details=["daemon.json: runtimes.nvidia"]
        ),
        Step(id="restart", part="containers", title="have docker read its file again", because="without a restart"),
    ]
    plan = HostPlan(host="gpu01", status="changes", steps=steps)
    monkeypatch.setattr(inventory, "plan_without_apt", lambda *_: (plan, []))
    found = inventory.against_inventory("gpu01", healthy(), {}, load_catalog())
    assert [(item.code, item.what) for item in found] == [("containers.containers", "daemon.json: runtimes.nvidia")]
    plan.steps = steps[1:]
    found = inventory.against_inventory("gpu01", healthy(), {}, load_catalog())
    assert [item.code for item in found] == ["containers.restart"]


def test_holds_that_come_with_a_new_driver_are_no_item(monkeypatch):
    step = Step(id="hold", part="driver", title="hold", because="", details=["kernel: linux-generic"])
    plan = HostPlan(host="gpu01", status="changes", steps=[step])
    monkeypatch.setattr(inventory, "plan_without_apt", lambda *_: (plan, []))
    assert inventory.against_inventory("gpu01", healthy(), {}, load_catalog()) == []


def test_what_stops_a_plan_is_an_item_of_its_area(monkeypatch):
    """What contradicts the lock is an item of the lock already."""
    codes = ("driver.next_boot", "driver.too_old", "lock.contradicts")
    plan = HostPlan(host="gpu01", status="blocked", blockers=[Issue(code=code, message="no") for code in codes])
    monkeypatch.setattr(inventory, "plan_without_apt", lambda *_: (plan, []))
    found = inventory.against_inventory("gpu01", healthy(), {}, load_catalog())
    assert [item.code for item in found] == ["boot.next_boot", "blocked.too_old"]


# --- peers ------------------------------------------------------------------------------------------------------------


def fleet(number, **odd):
    """{name: facts} of alike hosts; odd: name -> change."""
    hosts = {f"gpu{i:02d}": healthy(f"gpu{i:02d}") for i in range(1, number + 1)}
    return {name: changed(facts, odd.get(name, {})) for name, facts in hosts.items()}


def against_peers(hosts, told=None):
    peers = {name: peer_of(facts, None, load_catalog()) for name, facts in hosts.items()}
    found = compare(peers, told or {})
    return {name: [(item.code, item.what, item.found) for item in items] for name, items in found.items()}


NEW = {"containers/docker": {"version": "29.0.1"}}
OLD = {"containers/docker": {"version": "28.2.2"}}


def test_the_one_that_is_otherwise_than_most_is_named():
    hosts = fleet(4, gpu01=OLD, gpu02=OLD, gpu03=OLD, gpu04=NEW)
    assert against_peers(hosts) == {"gpu04": [("containers.peers", "docker", "29.0.1")]}


def test_alike_hosts_have_nothing_to_tell():
    assert against_peers(fleet(5)) == {}


def test_two_hosts_have_no_majority_and_neither_have_two_against_two():
    assert against_peers(fleet(2, gpu01=OLD, gpu02=NEW)) == {}
    assert against_peers(fleet(4, gpu01=OLD, gpu02=OLD, gpu03=NEW, gpu04=NEW)) == {}


def test_what_is_told_already_is_not_told_again():
    hosts = fleet(4, gpu01=OLD, gpu02=OLD, gpu03=OLD, gpu04=NEW)
    assert against_peers(hosts, {"gpu04": {"containers"}}) == {}


def test_without_a_lock_cards_kernels_and_drivers_are_compared():
    gone = {"gpus/1": None, "smi/gpus/1": None}
    kernel = {"kernels/next": "6.8.0-45-generic"}
    found = against_peers(fleet(5, gpu02=gone, gpu04=kernel))
    assert found == {
        "gpu02": [("hardware.peers", "cards", "1 x GeForce RTX 4090")],
        "gpu04": [("boot.peers", "kernel that boots next", "6.8.0-45-generic")],
    }


def test_toolkits_are_compared_by_release_where_it_is_known():
    def toolkit(release, version="12.8"):
        return {"cuda/toolkits": [{"path": "/usr/local/cuda-12.8", "version": version, "release": release}]}

    same = {name: toolkit("12.8.1") for name in ("gpu01", "gpu02", "gpu03")}
    found = against_peers(fleet(4, **same, gpu04=toolkit("12.8.0")))
    assert found["gpu04"] == [("packages.peers", "toolkits", "12.8.0")]
    found = against_peers(fleet(4, **same, gpu04=toolkit(None, "13.0")))
    assert found["gpu04"] == [("packages.peers", "toolkits", "13.0")]
    found = against_peers(fleet(4, **same, gpu04=toolkit(None, None)))
    assert found["gpu04"] == [("packages.peers", "toolkits", "none")], "a folder without a toolkit in it"


def test_with_a_lock_its_own_word_counts(tmp_path):
    hosts = fleet(3, gpu02={"kernels/next": "6.8.0-45-generic"})
    lock = lock_of_hosts(hosts)
    peers = {name: peer_of(facts, lock.for_host(name), load_catalog()) for name, facts in hosts.items()}
    assert compare(peers, {}) == {}


def test_hosts_of_different_groups_of_a_lock_are_not_compared():
    hosts = fleet(4, gpu01=OLD, gpu02=OLD, gpu03=OLD, gpu04=NEW)
    peers = {name: peer_of(facts, lock_of_hosts(hosts).for_host(name), load_catalog()) for name, facts in hosts.items()}
    assert "gpu04" in compare(peers, {})
    apart = {name: replace(peer, kind=("group", "other")) if name == "gpu04" else peer for name, peer in peers.items()}
    assert compare(apart, {}) == {} and {peer.kind[0] for peer in peers.values()} == {"group"}


@pytest.mark.parametrize("part", ["driver", "cuda", "containers"])
@pytest.mark.parametrize("code", ["packages.changed", "lock.version"])
def test_packages_that_have_to_change_are_said_once(part, code):
    """The plan's step says that packages change; what says which ones stands for it."""
    echo = Item(code=f"packages.{part}", what=part, expected="a", found="b", against="inventory")
    named = Item(code=code, what="libfoo", expected="1", found="2", against="lock")
    assert without_echoes([echo, named]) == [named] and without_echoes([echo]) == [echo]


@pytest.mark.parametrize(
    ("area", "alone"),
    [("services", True), ("packages", True), ("boot", True), ("hardware", True), ("files", False), ("holds", False)],
)
def test_a_service_that_does_not_run_follows_from_what_it_needs(area, alone):
    echo = Item(code="check.service.persistence", what="persistence", expected="on", found="off", against="inventory")
    cause = Item(code=f"{area}.x", what="x", expected="1", found="2", against="lock")
    assert without_echoes([echo, cause]) == ([cause] if alone else [echo, cause])


# --- metrics ----------------------------------------------------------------------------------------------------------

ODD = Item(code="files.own", what='/etc/a "b"\\c\nd\x07', expected="x", found="y", against="inventory")


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_metrics_are_what_prometheus_reads():
    text = metrics.render(
        {"gpu01": ("drifted", "h100", [ODD]), "gpu02": ("clean", None, []), "gpu03": ("unreachable", None, [])},
        1764322000.5,
        1.25,
    )
    found = families(text)
    assert {family.type for family in found.values()} == {"gauge"}
    assert all(family.documentation for family in found.values())
    up = {sample.labels["host"]: sample.value for sample in found["gpu_provision_drift_host_up"].samples}
    assert up == {"gpu01": 1, "gpu02": 1, "gpu03": 0}
    drifted = {s.labels["host"]: s.value for s in found["gpu_provision_drift_host_drifted"].samples}
    assert drifted == {"gpu01": 1, "gpu02": 0}
    (info,) = found["gpu_provision_drift_item_info"].samples
    assert info.labels["what"] == '/etc/a "b"\\c\\nd\\x07' and info.value == 1
    against = {(s.labels["host"], s.labels["against"]): s.value for s in found["gpu_provision_drift_items"].samples}
    assert against["gpu01", "inventory"] == 1 and against["gpu02", "lock"] == 0 and len(against) == 8
    (when,) = found["gpu_provision_drift_last_run_timestamp_seconds"].samples
    assert when.value == 1764322000.5 and when.timestamp is None, "the collector refuses samples with a time"


def test_an_empty_fleet_is_still_a_valid_file():
    assert "gpu_provision_drift_host_up" in families(metrics.render({}, 1.0, 0.0))


def test_metrics_are_written_in_one_step_for_everybody_to_read(tmp_path):
    path = tmp_path / "drift.prom"
    metrics.write("a 1\n", path)
    metrics.write("a 2\n", path)
    assert path.read_text() == "a 2\n" and path.stat().st_mode & 0o777 == 0o644
    assert [file.name for file in tmp_path.iterdir()] == ["drift.prom"], "nothing is left beside it"


def test_a_folder_that_is_not_there_is_an_error_with_a_way_out(tmp_path):
    with pytest.raises(UsageError) as refused:
        metrics.write("a 1\n", tmp_path / "no" / "drift.prom")
    assert "textfile" in (refused.value.issue.hint or "")
