"""Pure parts of apttransaction: tables in tests/cases/apt_*.yml."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import changes as apt_changes
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import detached as apt_detached
from ansible_collections.gpu.provision.plugins.module_utils.apt import disk as apt_disk
from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction
from ansible_collections.gpu.provision.plugins.module_utils.apt.common import AptError, Installed, wait_for_locks
from tests.unit.apt_cases import table


def installed(name: str, status: str, version: str = "1-1") -> Installed:
    name, _, arch = name.partition(":")
    return Installed({"Package": name, "Status": status, "Version": version, "Architecture": arch or "amd64"})


def host(status: dict[str, str]) -> list[Installed]:
    return [installed("dpkg", "install ok installed"), *(installed(name, text) for name, text in status.items())]


@pytest.mark.parametrize("case", table("holds"))
def test_holds_from_status(case: dict[str, Any]) -> None:
    options = {key: case[key] for key in ("release", "extra_hold", "extra_release", "held_before") if key in case}
    found = apt_changes.holds_from_status(host(case["status"]), case.get("hold", True), **options)
    assert [list(pair) for pair in found] == case["selections"]


@pytest.mark.parametrize("case", table("failures"))
def test_failure(case: dict[str, Any]) -> None:
    found = apt_transaction.parse_dpkg_failure(case["text"])
    assert found["packages"] == case["packages"]
    for part in ("script", "status", "signal", "make_log", "lines"):
        if part in case:
            assert found[part] == case[part]
    number = case.get("signal_number", 0)
    error = apt_transaction.failure(case["text"], False, 3600, "/var/log/x.log", [], number)
    assert error.code == case["code"]
    assert error.because
    assert error.data["log"] == "/var/log/x.log"


def test_failure_after_the_time_is_over() -> None:
    error = apt_transaction.failure("Setting up nvidia-dkms-580 ...\n", True, 60, "/log", ["nvidia-dkms-580"])
    assert (error.code, error.because) == ("apt.timeout", ["Setting up nvidia-dkms-580 ..."])
    assert error.data["held"] == ["nvidia-dkms-580"]


def test_restore_takes_a_failed_removal_back() -> None:
    journal = {"hold": True, "release": False, "extra_hold": [], "held_before": ["tool"]}
    written: list[tuple[str, str]] = []
    packages = host(
        {"nvidia-utils-550": "deinstall ok installed", "tool": "install ok installed", "x": "hold ok installed"}
    )
    names = apt_changes.restore_holds(journal, packages, written.extend)
    assert written == [("nvidia-utils-550", "hold"), ("tool", "hold")]
    assert names == ["nvidia-utils-550", "tool", "x"]


@pytest.mark.parametrize(
    ("install", "remove", "extra", "done"),
    [
        (["a=1-1"], [], [], True),
        (["a"], ["absent", "rc"], [], True),
        (["a=1-2"], [], [], False),
        (["absent=1"], [], [], False),
        ([], ["a"], [], False),
        ([], [], ["a"], False),
        (["rc=1-1"], [], [], False),
    ],
)
def test_is_done(install: list[str], remove: list[str], extra: list[str], done: bool) -> None:
    packages = host(
        {"a": "install ok installed", "rc": "deinstall ok config-files", "nvidia-prime": "hold ok installed"}
    )
    right = apt_changes.packages_done(packages, install, remove)
    assert (right and not apt_changes.holds_from_status(packages, True, extra_hold=extra)) is done


@pytest.mark.parametrize(
    "state", ["install ok half-configured", "install reinstreq half-installed", "install ok triggers-pending"]
)
def test_unfinished_packages_are_never_done(state: str) -> None:
    assert apt_changes.packages_done(host({"other": state}), [], []) is False


def test_compare_with_plan() -> None:
    plan = [{"action": "install", "name": "a", "version": "1"}, {"action": "remove", "name": "b", "version": None}]
    assert apt_changes.compare_with_plan(plan, [dict(item, origin="x") for item in plan]) == []
    now = [{"action": "install", "name": "a", "version": "2"}, {"action": "upgrade", "name": "c", "version": "3"}]
    assert apt_changes.compare_with_plan(plan, now) == [
        "a: planned install 1, now install 2",
        "b: planned remove, now nothing",
        "c: planned nothing, now upgrade 3",
    ]


MIB = 1 << 20
FAILED = "dpkg: error processing package nvidia-dkms-580 (--configure):\n old script returned error exit status 10\n"


@pytest.mark.parametrize(
    ("free", "devices", "lines"),
    [
        ({"/": 2000, "/var": 2000, "/boot": 200}, {"/": 1, "/var": 2, "/boot": 3}, []),
        (
            {"/": 2000, "/var": 2000, "/boot": 90},
            {"/": 1, "/var": 2, "/boot": 3},
            ["/boot: 90 MiB free, 60 MiB needed, 64 MiB must stay free"],
        ),
        # One file system for all: what each needs adds up.
        (
            {"/": 1500},
            {"/": 1, "/var": 1, "/boot": 1},
            ["/ and /boot and /var: 1500 MiB free, 1160 MiB needed, 512 MiB must stay free"],
        ),
    ],
)
def test_disk_problems(free: dict[str, int], devices: dict[str, int], lines: list[str]) -> None:
    changes = [{"action": "install", "name": "nvidia-dkms-580-open"}]
    needs = apt_disk.needs(changes, 100 * MIB, 300 * MIB, 60 * MIB)
    assert needs == {"/": 300 * MIB, "/var": 800 * MIB, "/boot": 60 * MIB}

    def statvfs(path: str) -> Any:
        return SimpleNamespace(f_bavail=free[path] * 256, f_frsize=4096)

    assert apt_disk.problems(needs, apt_disk.reserve(), statvfs, devices.get) == lines


def test_removals_need_no_disk() -> None:
    needs = apt_disk.needs([{"action": "remove", "name": "nvidia-dkms-580"}], 0, -5 * MIB, 60 * MIB)
    full = SimpleNamespace(f_bavail=0, f_frsize=4096)
    assert apt_disk.problems(needs, apt_disk.reserve(), lambda path: full, lambda path: 1) == []


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("nvidia-dkms-580-open", {"/": 0, "/var": 710, "/boot": 60}),
        ("nvidia-kernel-source-580:amd64", {"/": 0, "/var": 710, "/boot": 60}),
        ("libnvidia-compute-580", {"/": 0, "/var": 10, "/boot": 60}),
        ("htop", {"/": 0, "/var": 10, "/boot": 0}),
    ],
)
def test_room_for_a_build_and_an_initramfs_is_needed_where_there_is_one(name: str, needs: dict[str, int]) -> None:
    found = apt_disk.needs([{"action": "upgrade", "name": name}], 10 * MIB, -5 * MIB, 60 * MIB)
    assert {path: size // MIB for path, size in found.items()} == needs


@pytest.mark.parametrize(("free", "fits"), [(1160 + 512, True), (1160 + 511, False)])
def test_what_is_left_may_be_just_what_must_stay_free(free: int, fits: bool) -> None:
    needs = apt_disk.needs([{"action": "install", "name": "nvidia-dkms-580"}], 100 * MIB, 300 * MIB, 60 * MIB)
    state = SimpleNamespace(f_bavail=free * 256, f_frsize=4096)
    assert (apt_disk.problems(needs, apt_disk.reserve(), lambda path: state, lambda path: 1) == []) is fits


def test_one_number_stands_for_the_reserve_of_every_file_system() -> None:
    assert apt_disk.reserve(10) == dict.fromkeys(("/", "/var", "/boot"), 10 * MIB)


@pytest.mark.parametrize(
    ("sizes", "largest"), [({}, 0), ({"initrd.img-6.8": 60, "initrd.img-6.5": 50, "vmlinuz-6.8": 99}, 60)]
)
def test_the_largest_initramfs(monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], largest: int) -> None:
    with monkeypatch.context() as host:
        host.setattr(apt_disk.os, "listdir", lambda path: list(sizes))
        host.setattr(apt_disk.os, "stat", lambda path: SimpleNamespace(st_size=sizes[path.rpartition("/")[2]]))
        found = apt_disk.largest_initrd()
    assert found == largest


def test_lock_wait_names_the_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    holders = iter([(24459, "unattended-upgr"), (24459, "unattended-upgr"), None])
    monkeypatch.setattr(
        "ansible_collections.gpu.provision.plugins.module_utils.apt.common.lock_holder", lambda path: next(holders)
    )
    clock = iter(range(0, 1000, 5))
    waited = wait_for_locks(["/lock"], 60, clock=lambda: next(clock), sleep=lambda seconds: None)
    assert waited == {"pid": 24459, "comm": "unattended-upgr", "lock": "/lock", "seconds": 15}


def test_lock_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ansible_collections.gpu.provision.plugins.module_utils.apt.common.lock_holder", lambda path: (7, "apt-get")
    )
    clock = iter(range(0, 1000, 5))
    with pytest.raises(AptError) as error:
        wait_for_locks(["/lock"], 20, clock=lambda: next(clock), sleep=lambda seconds: None)
    assert error.value.code == "apt.lock_timeout"
    assert "process 7 (apt-get)" in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("state", "updates"), [(None, 1), ("install ok unpacked", 0)], ids=["nothing was changed", "dpkg had begun"]
)
def test_lists_are_refreshed_only_while_nothing_was_touched(
    monkeypatch: pytest.MonkeyPatch, state: str | None, updates: int
) -> None:
    """A change that began and failed is told as it is, not as a repository that moved since the plan."""
    now: dict[str, str] = {}
    done: list[str] = []

    def change(*_: Any, whole: bool) -> dict[str, Any]:
        now.update({"cuda-cccl-11-8": state} if state else {})
        return {"rc": 100, "text": "E: Something that nobody has seen\n", "timed_out": False}

    params = {"install": ["cuda-cccl-11-8=1-1"], "expect": [], "update_cache": True}
    transaction = apt_transaction._Task(params, False, "/nowhere")
    monkeypatch.setattr(apt_transaction.apt_common, "read_status", lambda: host(now))
    monkeypatch.setattr(apt_transaction.apt_query, "lists_are_current", lambda: True)
    monkeypatch.setattr(apt_transaction, "_stamp", lambda: 1)
    monkeypatch.setattr(transaction, "_in_worker", change)
    monkeypatch.setattr(transaction, "_simulate", lambda _: [{"action": "install"}])
    monkeypatch.setattr(transaction, "_update", lambda: done.append("update"))
    for name in ("_take_turn", "_recover", "_wait", "_finish_packages"):
        monkeypatch.setattr(transaction, name, lambda: None)
    with pytest.raises(apt_transaction.AptError) as failed:
        transaction.run()
    assert (failed.value.code, len(done)) == ("apt.failed", updates)


@pytest.mark.parametrize(
    ("asked", "there", "updates"), [(True, None, 1), (True, "install ok installed", 0), (False, None, 0)]
)
def test_lists_are_refreshed_where_that_is_asked_for_and_packages_are_to_come(
    monkeypatch: pytest.MonkeyPatch, asked: bool, there: str | None, updates: int
) -> None:
    done: list[str] = []
    params = {"install": ["cuda-cccl-11-8=1-1"], "update_cache": asked}
    transaction = apt_transaction._Task(params, False, "/nowhere")
    now = host({"cuda-cccl-11-8": there} if there else {})
    monkeypatch.setattr(apt_transaction.apt_common, "read_status", lambda: now)
    monkeypatch.setattr(transaction, "_update", lambda: done.append("update"))
    monkeypatch.setattr(transaction, "_is_done", lambda _: False)
    for name in ("_take_turn", "_recover", "_wait", "_finish_packages", "_carry_out"):
        monkeypatch.setattr(transaction, name, lambda: None)
    transaction.run()
    assert len(done) == updates


def test_what_apt_must_unpack_again() -> None:
    """apt takes a package that dpkg only began to unpack for installed: nothing but --reinstall mends it."""
    packages = host(
        {
            "libcufile-12-6": "hold reinstreq half-installed",
            "libcufile-11-8": "install ok half-installed",
            "cuda-nvcc-12-6": "hold ok unpacked",
            "libnvidia-compute-580": "install reinstreq half-installed",
            "cuda-gdb-12-6": "install reinstreq half-installed",
            "somebody-elses": "install reinstreq half-installed",
            "gone": "deinstall ok config-files",
        }
    )
    install = ["libcufile-12-6=1-1", "cuda-nvcc-12-6=1-1", "cuda-gdb-12-6=2-1"]
    ours, foreign = apt_changes.half_unpacked(packages, install, ["libcufile-11-8", "gone"])
    assert sorted(ours) == ["libcufile-11-8=1-1", "libcufile-12-6=1-1", "libnvidia-compute-580=1-1"]
    assert foreign == ["somebody-elses=1-1"]


NEWER = [
    "Package: a\nStatus: deinstall ok not-installed\n",
    "Package: b\nArchitecture: i386\nVersion: 2\n\nPackage: c\nVersion: 1\n",
]


def test_what_dpkg_has_not_merged_yet_counts() -> None:
    first = "Package: a\nArchitecture: amd64\nVersion: 1\nDescription: x\n .\n y"
    status = (
        "\n\n".join([first, *(f"Package: b\nArchitecture: {arch}\nVersion: 1" for arch in ("i386", "amd64"))]) + "\n"
    )
    rows = apt_common.parse_status(apt_common.merged(status, NEWER))
    assert [(p.name, p.arch, p.version, p.present) for p in rows] == [
        ("a", "", None, False),
        ("b", "i386", "2", True),
        ("b", "amd64", "1", True),
        ("c", "", "1", True),
    ]


def test_only_holds_of_ours_and_of_what_was_named_are_lifted() -> None:
    held = ("libnvidia-compute-580", "named", "to-release", "somebody-elses")
    packages = host({**dict.fromkeys(held, "hold ok installed"), "nvidia-utils-580": "install ok installed"})
    task = apt_transaction._Task({"install": ["named=1-1"], "extra_release": ["to-release"]}, False, "/nowhere")
    assert task._may_unhold(packages) == ["libnvidia-compute-580", "named", "to-release"]


@pytest.mark.parametrize(
    ("name", "refused"), [("nvidia-utils-550", None), ("docker.io", "apt.protected"), ("foo", "apt.removes")]
)
def test_a_removal_of_the_plan_is_agreed_to_where_it_is_the_drivers(
    monkeypatch: pytest.MonkeyPatch, name: str, refused: str | None
) -> None:
    gone = {"action": "remove", "name": name, "from_version": "1-1", "version": None}
    come = {"action": "install", "name": "nvidia-utils-580", "from_version": None, "version": "580.2-1"}
    params = {"install": ["nvidia-utils-580=580.2-1"], "expect": [come, gone], "family_version": "580.2"}
    answer = {"ok": True, "changes": [come, gone], "download_bytes": 0, "disk_bytes": 0}
    monkeypatch.setattr(apt_transaction.apt_query, "simulate", lambda **_: answer)
    monkeypatch.setattr(apt_disk, "problems", lambda *_: [])
    task = apt_transaction._Task(params, False, "/nowhere")
    packages = host({name: "install ok installed"})
    if refused is None:
        assert task._simulate(packages) == [come, gone]
        return
    with pytest.raises(AptError) as caught:
        task._simulate(packages)
    assert caught.value.code == refused


def test_check_mode_tells_the_holds_that_a_run_would_write(monkeypatch: pytest.MonkeyPatch) -> None:
    come = {"action": "install", "name": "nvidia-utils-580", "from_version": None, "version": "580.2-1"}
    task = apt_transaction._Task({"install": ["nvidia-utils-580=580.2-1"]}, True, "/nowhere")
    packages = host({"libnvidia-compute-580": "hold ok installed"})
    monkeypatch.setattr(apt_transaction.apt_common, "read_status", lambda: packages)
    monkeypatch.setattr(task, "_simulate", lambda _: [come])
    result = task.run()
    assert (result["held"], result["unheld"]) == (["nvidia-utils-580"], [])
    assert result["holds"] == ["libnvidia-compute-580", "nvidia-utils-580"]


@pytest.mark.parametrize(
    ("rc", "unfinished", "warned"),
    [(0, None, []), (1, FAILED, ["nvidia-dkms-580 could not be finished before the change"])],
)
def test_what_dpkg_cannot_finish_before_a_change_is_told(
    monkeypatch: pytest.MonkeyPatch, rc: int, unfinished: str | None, warned: list[str]
) -> None:
    task = apt_transaction._Task({}, False, "/nowhere")
    packages = host({"nvidia-dkms-580": "install ok half-configured"})
    monkeypatch.setattr(apt_transaction.apt_common, "read_status", lambda: packages)
    monkeypatch.setattr(apt_transaction.apt_common, "interrupted", lambda: False)
    monkeypatch.setattr(task, "_in_worker", lambda body, packages: {"rc": rc, "text": FAILED})
    task._finish_packages()
    assert (task.unfinished, task.warnings) == (unfinished, warned)


def test_only_holds_that_are_in_the_way_are_lifted_to_unpack_again(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, str]] = []
    task = apt_transaction._Task({}, False, "/nowhere")
    monkeypatch.setattr(task, "_set_selections", written.extend)
    monkeypatch.setattr(apt_transaction.apt_common, "run", lambda *_, **__: apt_common.Result(0, "done"))
    packages = host(
        {
            "lost": "hold reinstreq half-installed",
            "waits": "hold ok unpacked",
            "not-held": "install ok unpacked",
            "lost-too": "install reinstreq half-installed",
            "somebody-elses": "hold ok installed",
        }
    )
    assert task._unpack_again(["lost=1-1", "lost-too=1-1"], packages, None) == {"rc": 0, "text": "done"}
    assert written == [("lost", "install"), ("waits", "install")]


def test_the_worker_keeps_its_own_files_open_and_no_other(tmp_path: Path) -> None:
    kept, gone = os.pipe()
    with open(tmp_path / "log", "wb") as log:
        child = os.fork()
        if child == 0:
            try:
                apt_detached._close_all({log.fileno(), kept}, log)
                places = sorted(Path("/proc/self/fd").iterdir())
                os.write(1, json.dumps({p.name: str(p.readlink()) for p in places if p.is_symlink()}).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        found = json.loads((tmp_path / "log").read_text())
        assert found.pop(str(kept)).startswith("pipe:") and str(gone) not in found
        logs = dict.fromkeys(["1", "2", str(log.fileno())], str(tmp_path / "log"))
        assert found == {"0": os.devnull, **logs}
    os.close(kept)
    os.close(gone)
