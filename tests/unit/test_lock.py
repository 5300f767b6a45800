"""The lock: its file, what is made of hosts, what it makes of wishes, and plans that are held to it (tests/cases/lock.yml)."""

import os
from pathlib import Path

import pytest

from ansible_collections.gpu.provision.plugins.plugin_utils import lockfile
from provision.errors import UsageError
from provision.lib import yaml_reader
from provision.lock.compare import changes
from provision.lock.make import make
from provision.lock.model import NAME, VARIABLE, HostLock, Lock, LockedHost, LockError, dump, load, parse, save
from provision.lock.pin import alike, find, not_available, path_of, pin, place, restrict
from provision.parts.candidates import Candidate, Candidates
from provision.parts.desired import Desired
from provision.parts.registry import by_name
from provision.planning import plan_from_facts
from tests.unit.candidates import CANDIDATES, archive, signed
from tests.unit.fleethosts import changed, entry_of, healthy, lock_of_hosts
from tests.unit.test_openpgp import ARMORED, FPR4, FPR6
from tests.unit.test_planning import CHANGES, FakeHost

CASES = yaml_reader.load((Path(__file__).parents[1] / "cases/lock.yml").read_text())


def named(kind):
    return pytest.mark.parametrize("case", CASES[kind], ids=[case["name"] for case in CASES[kind]])


# --- the file -----------------------------------------------------------------------------------------------------------


@named("read")
def test_what_is_wrong_with_a_file_is_said_with_its_line(case):
    with pytest.raises(LockError) as wrong:
        parse(case["text"], "fleet.lock.yml")
    told = [issue for issue in wrong.value.issues if case["message"] in issue.message]
    assert told, [issue.message for issue in wrong.value.issues]
    assert told[0].message.startswith("fleet.lock.yml")
    assert f"line {case.get('line', '')}" in told[0].message or "line" not in case
    assert case.get("hint", "") in (told[0].hint or "") and told[0].hint
    assert wrong.value.exit_code == 64


@pytest.mark.parametrize("version", ["1:30", "2026-11-28", "2026-13-45", "580.95.05-0ubuntu1"])
def test_versions_need_no_quotes(version):
    toolkit = f"{{version: '1', packages: {{pkg: {version}}}}}"
    text = f"schema: provision/lock/1\ngroups:\n  a: {{ubuntu: '24.04', arch: amd64, containers: {toolkit}}}\n"
    assert parse(text).groups["a"].packages == {"pkg": version}


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["a folder", "a pipe"])
def test_only_a_file_is_replaced_by_a_lock(make, tmp_path):
    make(tmp_path / NAME)
    before = (tmp_path / NAME).stat()
    with pytest.raises(UsageError, match="cannot write"):
        save(Lock(), tmp_path / NAME)
    assert os.path.samestat(before, (tmp_path / NAME).stat())


def test_what_a_link_leads_to_is_written_and_its_mode_stays(tmp_path):
    real = tmp_path / "real.yml"
    real.write_text("")
    real.chmod(0o600)
    (tmp_path / NAME).symlink_to(real)
    save(Lock(), tmp_path / NAME)
    assert (tmp_path / NAME).is_symlink() and load(real) == Lock()
    assert real.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == [NAME, "real.yml"]


def test_a_lock_is_the_same_text_whatever_the_order_in_which_hosts_answer(tmp_path):
    hosts = {name: healthy(name) for name in ("gpu10", "gpu2", "gpu1")}
    one, other = lock_of_hosts(hosts), lock_of_hosts(dict(reversed(hosts.items())))
    assert dump(one) == dump(other)
    assert list(yaml_reader.load(dump(one))["hosts"]) == ["gpu1", "gpu2", "gpu10"]
    save(one, tmp_path / NAME)
    assert load(tmp_path / NAME) == one
    assert [file.name for file in tmp_path.iterdir()] == [NAME]


def test_a_file_that_is_not_there_or_not_text_is_an_error_with_a_way_out(tmp_path):
    with pytest.raises(LockError) as missing:
        load(tmp_path / NAME)
    assert "--no-lock" in (missing.value.issue.hint or "")
    (tmp_path / NAME).write_bytes(b"\xff\xfe")
    with pytest.raises(LockError):
        load(tmp_path / NAME)
    with pytest.raises(UsageError):
        save(Lock(), tmp_path / "no" / NAME)


@pytest.mark.parametrize(("more", "read"), [(0, True), (1, False)])
def test_a_lock_that_nobody_can_have_written_is_not_read(more, read, tmp_path):
    (tmp_path / NAME).touch()
    os.truncate(tmp_path / NAME, (16 << 20) + more)
    with pytest.raises(LockError) as error:
        load(tmp_path / NAME)
    assert ("not YAML" in error.value.issue.message) is read and (
        "cannot read" in error.value.issue.message
    ) is not read


def test_a_lock_lies_beside_the_inventory_or_above_its_folder_or_where_it_is_named(tmp_path):
    inside = tmp_path / "inventory"
    inside.mkdir()
    folder = {"inventory_source": str(inside), "inventory_dir": str(inside)}
    file = {"inventory_source": str(inside / "hosts.yml"), "inventory_dir": str(inside)}
    assert path_of(folder) is None and find(folder) is None
    (inside / NAME).write_text(dump(Lock()))
    assert path_of(folder) is None and path_of(file) == inside / NAME
    (inside / NAME).rename(tmp_path / NAME)
    assert path_of(folder) == tmp_path / NAME
    assert path_of(file) is None, "above a file is the lock of something else"
    assert path_of({**folder, VARIABLE: "none"}) is None
    assert path_of({**folder, VARIABLE: "other.yml"}) == inside / "other.yml", "named: it must be there"


def test_two_inventories_in_one_folder_have_two_locks(tmp_path):
    values = {}
    for name in ("brk", "pw"):
        (tmp_path / f"{name}.yml").write_text("")
        values[name] = {"inventory_source": str(tmp_path / f"{name}.yml")}
        save(Lock(inventory=f"{name}.yml"), place(values[name]))
    assert path_of(values["brk"]) == tmp_path / NAME
    assert path_of(values["pw"]) == tmp_path / "pw.lock.yml"
    (tmp_path / "pw.lock.yml").unlink()
    assert find(values["pw"]) is None and find(values["brk"]) is not None


@pytest.mark.parametrize("how", ["named", "renamed", "of a host list"])
def test_the_lock_of_another_inventory_is_refused_with_both_paths(how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "brk.yml").write_text("")
    save(Lock(inventory="brk.yml"), tmp_path / NAME)
    mine = "gpu01," if how == "of a host list" else str(tmp_path / "pw.yml")
    values = {"inventory_source": mine, "inventory_dir": str(tmp_path), VARIABLE: NAME}
    if how == "renamed":
        (tmp_path / "brk.yml").rename(tmp_path / "pw.yml")
        values[VARIABLE] = ""
    with pytest.raises(LockError) as refused:
        find(values)
    issue = refused.value.issue
    assert (issue.code, refused.value.exit_code) == ("lock.other_inventory", 64)
    assert str(tmp_path / NAME) in issue.message or issue.message.startswith(NAME)
    assert issue.because == [f"it was written for {tmp_path}/brk.yml", f"this inventory is {mine}"]
    assert f"inventory: {Path(mine).name} " in issue.hint


@pytest.mark.parametrize(
    ("sources", "source"),
    [
        (["a.yml", "b.yml"], "{here}/a.yml"),
        (["gpu01,gpu02", "b.yml"], "{here}/b.yml"),
        (["folder"], "{here}/folder"),
        (["gpu01,"], "gpu01,"),
        (["gone.yml"], "gone.yml,"),
    ],
)
def test_a_play_has_the_lock_that_the_command_has(sources, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("a.yml", "b.yml"):
        (tmp_path / name).write_text("")
    assert lockfile.of_play({"ansible_inventory_sources": sources}) == source.format(here=tmp_path)
    assert lockfile.source_of(sources) == source.format(here=tmp_path)


def test_a_lock_that_names_no_inventory_is_for_those_beside_it(tmp_path):
    """As version 0.1 wrote them."""
    save(Lock(), tmp_path / NAME)
    for name in ("brk.yml", "pw.yml"):
        assert find({"inventory_source": str(tmp_path / name)}) is not None


@pytest.mark.parametrize(
    "line", ["hosts.yml", "'hosts.yml'", '"hosts.yml"  # ours', "./hosts.yml", "../{folder}/hosts.yml"]
)
def test_the_inventory_of_a_lock_may_be_written_by_hand(line, tmp_path):
    (tmp_path / "hosts.yml").write_text("")
    text = f"schema: provision/lock/1\ninventory: {line.format(folder=tmp_path.name)}\n"
    (tmp_path / NAME).write_text(text)
    assert find({"inventory_source": str(tmp_path / "hosts.yml")}) is not None
    assert path_of({"inventory_source": str(tmp_path / "other.yml")}) is None


def test_a_lock_that_changed_is_read_again(tmp_path):
    values = {"inventory_source": str(tmp_path / "hosts.yml")}
    save(lock_of_hosts({"gpu01": healthy()}), tmp_path / NAME)
    assert list(find(values)[0].hosts) == ["gpu01"]
    save(lock_of_hosts({"gpu01": healthy(), "gpu02": healthy("gpu02")}), tmp_path / NAME)
    assert list(find(values)[0].hosts) == ["gpu01", "gpu02"]


# --- hosts to a lock ------------------------------------------------------------------------------------------------------


def hosts_of(described):
    return [entry_of(name, changed(healthy(name), change)) for name, change in described.items()]


@named("make")
def test_make(case):
    old = make(hosts_of(case["old"])).lock if "old" in case else None
    if "named" in case:
        group = next(iter(old.groups))
        old.groups = {case["named"]: old.groups[group]}
        for host in old.hosts.values():
            host.group = case["named"]
    before = old.model_copy(deep=True) if old else None
    made = make(hosts_of(case["hosts"]), old, **({"update": True} if case.get("update") else {}))
    assert {name: made.lock.members(name) for name in made.lock.groups} == case["groups"]
    told = {issue.host or "": " | ".join(issue.because) for issue in made.issues}
    assert set(told) == set(case.get("refused", {})), told
    for host, words in case.get("refused", {}).items():
        assert words in told[host]
    assert all(issue.hint for issue in made.issues)
    if before is not None:
        assert old == before, "the old lock is not touched"
        lines = [
            f"{', '.join(c.packages) or c.what}: {c.old or 'none'} -> {c.new or 'none'}"
            for c in changes(old, made.lock)
        ]
        assert sorted(lines) == sorted(case.get("changes", []))
    assert parse(dump(made.lock)) == made.lock


def test_the_same_hosts_again_change_nothing():
    entries = hosts_of({"gpu01": {}, "gpu02": {}})
    first = make(entries).lock
    again = make(entries, first)
    assert again.lock == first and changes(first, again.lock) == [] and not again.issues


@pytest.mark.parametrize(
    ("given", "fingerprint"),
    [({"key": ARMORED}, FPR4), ({"key": ARMORED, "key_fingerprint": FPR4}, FPR4), ({"key_fingerprint": FPR6}, FPR6)],
    ids=["a key", "both", "a fingerprint"],
)
def test_a_repository_is_locked_with_the_fingerprint_of_its_key(given, fingerprint):
    """On an Ubuntu for whose repository the catalog has none."""
    uri = "http://mirror.test/cuda/"
    ours = {"file": "/etc/apt/sources.list.d/gpu-provision-cuda.sources", "uris": [uri], "suites": ["/"]}
    values = {f"nvidia_driver_repo_{name}": value for name, value in {"url": uri, **given}.items()}
    facts = changed(healthy(), {"apt/sources/+": ours, "host/os": {"version_id": "26.04"}})
    one = entry_of("gpu01", facts, values)
    assert (one.group.repositories["cuda"].uri, one.group.repositories["cuda"].key) == (uri, fingerprint)


# --- wishes ---------------------------------------------------------------------------------------------------------------

LOCK = """\
schema: provision/lock/1
groups:
  g:
    ubuntu: "24.04"
    arch: amd64
    driver: {version: "580.142", series: "580", flavour: open, build: signed, channel: ubuntu, variant: headless,
             packages: {libnvidia-compute-580: 580.142-0ubuntu0.24.04.1}}
    cuda:
      releases: {"12.8": 12.8.1, "13.0": 13.0.2}
      default: "12.8"
      cudnn: {"12": 9.8.0.87, "13": 9.8.0.87}
      nccl: 2.25.1-1+cuda12.8
      packages: {cuda-nvcc-12-8: 12.8.93-1, cuda-nvcc-13-0: 13.0.88-1, cuda-toolkit-12-config-common: 12.8.90-1,
                 cuda-toolkit-13-config-common: 13.0.96-1, cuda-toolkit-config-common: 13.0.96-1, libcudnn9-cuda-12: 9.8.0.87-1,
                 libnccl2: 2.25.1-1+cuda12.8}
    containers: {version: 1.18.0, packages: {nvidia-container-toolkit: 1.18.0-1}}
hosts:
  gpu01: {group: g}
"""
PARTS = ["driver", "cuda", "conda", "containers"]


@named("hold")
def test_hold(case):
    lock = parse(LOCK)
    if "drop" in case:
        setattr(lock.groups["g"], case["drop"], None)
    pinned = pin(lock.for_host("gpu01"), case["config"], healthy(), PARTS)
    told = [issue.message for issue in pinned.issues]
    assert len(told) == len(case.get("against", [])), told
    for words, message in zip(case.get("against", []), told, strict=True):
        assert words in message
    assert all(
        "provision lock --update" in (issue.hint or "") and "group g" in issue.because[0] for issue in pinned.issues
    )
    for name, value in case.get("exact", {}).items():
        assert pinned.values[name] == value, name
    pins = {name for part in pinned.pins.values() for name in part}
    assert set(case.get("has", [])) <= pins and not set(case.get("lacks", [])) & pins, pins


@pytest.mark.parametrize(
    ("asked", "against"), [("580", False), ("580-server", False), ("570", True), ("590-server", True)]
)
def test_a_branch_alone_is_content_with_its_server_series(asked, against):
    locked = parse(LOCK.replace('series: "580"', "series: 580-server"))
    pinned = pin(locked.for_host("gpu01"), {"nvidia_driver_branch": asked}, healthy(), PARTS)
    assert bool(pinned.issues) is against
    assert pinned.values["nvidia_driver_branch"] == "580-server"


def test_a_package_of_another_architecture_is_looked_for_by_its_bare_name():
    version = "580.142-0ubuntu0.24.04.1"
    text = LOCK.replace("packages: {libnvidia", f'packages: {{"libnvidia-compute-580:i386": {version}, libnvidia')
    pinned = pin(parse(text).for_host("gpu01"), {}, healthy(), PARTS)
    assert not_available(pinned, healthy(), "driver", {"libnvidia-compute-580": {version}}, []) is None
    gone = not_available(pinned, healthy(), "driver", {"libnvidia-compute-580": {"580.159-0ubuntu0.24.04.1"}}, [])
    assert gone and "libnvidia-compute-580:i386" in gone.because[-1]


def test_a_lock_for_another_ubuntu_is_refused():
    pinned = pin(parse(LOCK).for_host("gpu01"), {}, changed(healthy(), {"host/os": {"version_id": "22.04"}}), PARTS)
    assert [issue.code for issue in pinned.issues] == ["lock.other_system"] and not pinned.pins


def test_a_new_host_is_like_the_group_with_its_cards():
    lock = lock_of_hosts({"gpu01": healthy()})
    assert alike(lock, healthy("new")) == list(lock.groups)
    assert alike(lock, changed(healthy("new"), {"gpus/0": {"device": "2330"}})) == []
    assert alike(lock, changed(healthy("new"), {"host/os": {"version_id": "22.04"}})) == []


# --- plans ----------------------------------------------------------------------------------------------------------------

NEWER = {
    name: [*archive_rows, *CANDIDATES["noble"].packages.get(name, [])]
    for name, archive_rows in {
        c.name: [c] for c in [*archive("580", "580.159"), *signed("580", "580.159", "6.8.0-48-generic")]
    }.items()
}
BOTH = Candidates({**CANDIDATES["noble"].packages, **NEWER})
ONLY_NEW = Candidates({**CANDIDATES["noble"].packages, **{name: rows[:1] for name, rows in NEWER.items()}})


def plan(tmp_path, facts, available=CANDIDATES["noble"], name="gpu01", lock=None, **config):
    save(lock or lock_of_hosts({"gpu01": healthy()}), tmp_path / NAME)
    call = FakeHost(available, {**CHANGES, "changes": []})
    made = plan_from_facts(name, facts, call, {**config, "inventory_source": str(tmp_path / "hosts.yml")})
    return made, call


def bare(name="gpu01"):
    """The host before anything was installed."""
    facts = healthy(name)
    kept = {n: row for n, row in facts.packages.items() if n in ("linux-generic", "linux-image-generic")}
    loaded = facts.module.model_copy(update={"loaded": None, "on_disk": []})
    return facts.model_copy(update={"packages": kept, "module": loaded, "libraries": []})


def test_a_host_as_locked_is_as_wanted_and_apt_is_not_asked(tmp_path):
    made, call = plan(tmp_path, healthy())
    assert made.status == "converged" and call.asked == []
    assert made.decisions[0].what == "lock" and "fleet.lock.yml" in made.decisions[0].because


def test_a_bare_host_gets_the_locked_version_though_there_is_a_newer_one(tmp_path):
    made, _ = plan(tmp_path, bare(), BOTH)
    assert made.status == "changes", made.blockers
    install = made.spec["apt"]["install"]
    assert "libnvidia-compute-580=580.142-0ubuntu0.24.04.1" in install
    assert not [item for item in install if "580.159" in item]
    locked = lock_of_hosts({"gpu01": healthy()}).groups["ubuntu-24.04-amd64-580-open-signed"].packages
    assert {f"{name}={version}" for name, version in locked.items()} <= set(install), (
        "exactly what is locked, all of it"
    )


@pytest.mark.parametrize(("facts", "refresh"), [(bare(), ["always"]), (healthy(), [])], ids=["bare", "as locked"])
def test_old_lists_are_not_believed_where_locked_versions_are_missing(tmp_path, monkeypatch, facts, refresh):
    asked = []
    answer = FakeHost.__call__
    monkeypatch.setattr(FakeHost, "__call__", lambda self, op, args: (asked.append(args), answer(self, op, args))[1])
    plan(tmp_path, facts, BOTH)
    assert [args["refresh"] for args in asked if "refresh" in args] == refresh


def test_a_package_that_ran_ahead_is_brought_back(tmp_path):
    ahead = changed(healthy(), {"packages/libnvidia-cfg1-580": {"version": "580.142-0ubuntu0.24.04.9"}})
    made, call = plan(tmp_path, ahead)
    assert made.spec["apt"]["install"] == ["libnvidia-cfg1-580=580.142-0ubuntu0.24.04.1"]
    assert call.asked == ["offer", "simulate"]


def test_a_version_that_is_gone_is_a_blocker_with_the_nearest_and_the_mirror(tmp_path):
    made, _ = plan(tmp_path, bare(), ONLY_NEW)
    assert made.status == "blocked" and [issue.code for issue in made.blockers] == ["lock.not_offered"]
    issue = made.blockers[0]
    assert "provision mirror" in (issue.hint or "")
    assert any("the nearest is 580.159-0ubuntu0.24.04.1" in line for line in issue.because), issue.because


def test_a_repository_that_cannot_be_read_is_the_first_reason_why_a_version_is_gone(tmp_path):
    save(lock_of_hosts({"gpu01": healthy()}), tmp_path / NAME)
    call = FakeHost(ONLY_NEW, CHANGES, ["archive.test: no route"])
    (issue,) = plan_from_facts("gpu01", bare(), call, {"inventory_source": str(tmp_path / "hosts.yml")}).blockers
    assert (issue.code, issue.because[0]) == ("lock.not_offered", "archive.test: no route")


def test_without_the_lock_the_newer_one_is_taken(tmp_path):
    made, _ = plan(tmp_path, bare(), BOTH, gpu_provision_lock="none", nvidia_driver_branch="580")
    assert "libnvidia-compute-580=580.159-0ubuntu0.24.04.1" in made.spec["apt"]["install"]


def test_a_wish_against_the_lock_is_refused_before_apt_is_asked(tmp_path):
    made, call = plan(tmp_path, healthy(), nvidia_driver_branch="570")
    assert made.status == "blocked" and [issue.code for issue in made.blockers] == ["lock.contradicts"]
    assert call.asked == []


def test_a_host_that_is_not_in_the_lock_is_held_to_the_group_that_is_like_it(tmp_path):
    made, _ = plan(tmp_path, bare("gpu09"), BOTH, name="gpu09")
    assert "libnvidia-compute-580=580.142-0ubuntu0.24.04.1" in made.spec["apt"]["install"]
    assert "is like this group alone" in made.decisions[0].because


def test_a_host_like_no_group_is_planned_without_the_lock_and_that_is_said(tmp_path):
    lock = lock_of_hosts({"gpu01": healthy()})
    lock.groups[next(iter(lock.groups))].ubuntu = "22.04"
    made, _ = plan(tmp_path, healthy("gpu09"), name="gpu09", lock=lock)
    assert made.status == "converged"
    assert [issue.code for issue in made.warnings] == ["lock.not_listed"]


def test_a_lock_that_cannot_be_read_is_an_error_of_usage(tmp_path):
    (tmp_path / NAME).write_text("schema: [")
    with pytest.raises(LockError):
        plan_from_facts(
            "gpu01",
            healthy(),
            FakeHost(CANDIDATES["noble"], CHANGES),
            {"inventory_source": str(tmp_path / "hosts.yml")},
        )


def test_what_is_offered_elsewhere_counts(tmp_path):
    lock = lock_of_hosts({"gpu01": healthy()})
    group = next(iter(lock.groups))
    pinned = pin(HostLock("gpu09", group, lock.groups[group], LockedHost(group=group), False), {}, bare(), PARTS)
    there = {name: {version} for name, version in lock.groups[group].packages.items()}
    assert not_available(pinned, bare(), "driver", there, ()) is None
    there.pop("nvidia-utils-580")
    issue = not_available(pinned, bare(), "driver", there, ["archive.test: no route"])
    assert issue.because[0] == "archive.test: no route" and "none is available" in issue.because[-1]


@pytest.mark.parametrize(
    ("pins", "left"), [({"a": "1"}, ["1"]), ({"a": "2"}, ["2"]), ({"a": "3"}, ["2", "1"]), ({"b": "1"}, ["2", "1"])]
)
def test_of_what_apt_has_the_locked_version_counts_alone_where_it_is_there(pins, left):
    found = restrict(Candidates({"a": [Candidate("a", "2"), Candidate("a", "1")]}), pins)
    assert [candidate.version for candidate in found.packages["a"]] == left


@pytest.mark.parametrize(("gone", "last"), [(6, "none is available"), (7, "and 1 more"), (8, "and 2 more")])
def test_six_versions_that_are_gone_are_named_and_the_others_counted(gone, last):
    lock = lock_of_hosts({"gpu01": healthy()})
    pinned = pin(lock.for_host("gpu01"), {}, bare(), PARTS)
    there = {name: {version} for name, version in list(pinned.pins["driver"].items())[gone:]}
    issue = not_available(pinned, bare(), "driver", there, ())
    assert f"{gone} locked versions" in issue.message and issue.because[-1].endswith(last)


@pytest.mark.parametrize(("version", "channel"), [("13.1.1-0ubuntu1", "ubuntu"), ("13.3.1-1", "cuda")])
def test_locked_toolkits_come_from_the_channel_that_has_their_versions(version, channel):
    part = by_name("cuda")
    minor = version.rpartition(".")[0]
    packages = {f"cuda-toolkit-{minor.replace('.', '-')}": version, "nsight-compute-2025.4.1": "2025.4.1.2-1"}
    locked = part.models[0](releases={minor: version.partition("-")[0]}, default=minor, packages=packages)
    assert part.channel_of(locked) == channel
    asked = {"cuda_toolkit_versions": [minor]}
    exact, against = part.exact(locked, Desired(asked))
    assert exact["cuda_toolkit_channel"] == channel and against == []
    other = {"cuda": "ubuntu", "ubuntu": "cuda"}[channel]
    _, against = part.exact(locked, Desired({**asked, "cuda_toolkit_channel": other}))
    assert against == [f"cuda_toolkit_channel asks for {other}, the lock has {channel}"]
