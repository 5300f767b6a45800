"""State that an earlier version left in another folder: read where it lies, moved by the first change, whole after every cut."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_state
from ansible_collections.gpu.provision.plugins.module_utils.probe import facts as probe_facts
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock
from ansible_collections.gpu.provision.plugins.module_utils.run import record as run_record

RUNS = ["20260101T000000Z-apply-aaaaaa", "20260102T000000Z-apply-bbbbbb"]
HOLDER = {"run": RUNS[1], "command": "provision apply", "who": "ada@desk", "git": None, "controller": {}}
STEPS = ("link", "rename", "unlink", "rmdir")


class Place:
    """A host below a folder, with its state in the folder of today, or in that of earlier versions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.new, self.old = (root / path.lstrip("/") for path in (own_state.FOLDER, own_state.OLDER))
        self.lock, self.history = str(self.new / "lock.json"), str(self.new / "history")
        status = root / "var/lib/dpkg/status"
        status.parent.mkdir(parents=True, exist_ok=True)
        status.write_text("Package: dpkg\nStatus: install ok installed\nVersion: 1\n")

    def fill(self, runs: list[str] = RUNS) -> Place:
        assert run_lock.acquire(HOLDER, 600, path=self.lock)["taken"]
        for run in runs:
            run_record.write({"run": run, "host": "a"}, self.history)
        rescue_snapshot.take("first", root=str(self.root), resume=False)
        return self

    def age(self) -> Place:
        """What is there now, as an earlier version left it."""
        self.new.rename(self.old)
        return self

    def seen(self) -> dict[str, Any]:
        host = rescue_snapshot.Host(str(self.root))
        return {
            "lock": run_lock.read(self.lock)["held"],
            "runs": run_record.read(folder=self.history),
            "snapshots": rescue_snapshot.listing(str(self.root)),
            "packages": [host.text(id_, "packages.tsv") for id_ in host.ids()],
        }

    def names(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in (self.root / "var/lib").rglob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path).fill()


def _both(root: Path) -> Place:
    """An earlier version was used again after the move: each folder has a run and a snapshot of its own."""
    place = Place(root).fill(RUNS[:1]).age()
    (place.old / "lock.json").unlink()
    kept = place.old.rename(root / "kept")
    place.fill(RUNS[1:])
    kept.rename(place.old)
    return place


def test_what_reads_sees_it_and_moves_nothing(place: Place) -> None:
    before = place.seen()
    assert before["lock"]["run"] == RUNS[1]
    assert [len(before[key]) for key in ("snapshots", "packages")] == [1, 1]
    there = place.age().names()
    assert place.seen() == before
    assert RUNS[1] in probe_facts.collect(root=str(place.root))["run_lock"]
    assert rescue_snapshot.take("second", root=str(place.root), check=True)["resumed"]
    assert run_lock.acquire(HOLDER, 600, path=place.lock, check=True)["taken"]
    assert place.names() == there


def _transaction(place: Place) -> None:
    task = apt_transaction._Task({}, False, "/nowhere")
    task._take_turn()
    task.close()


CHANGES: dict[str, Callable[[Place], object]] = {
    "the lock": lambda place: run_lock.acquire(HOLDER, 600, path=place.lock),
    "a lease": lambda place: run_lock.renew(RUNS[1], place.lock),
    "a task of the run": lambda place: run_lock.admit(RUNS[1], place.lock),
    "a record": lambda place: run_record.write({"run": RUNS[1], "host": "a"}, place.history),
    "a snapshot": lambda place: rescue_snapshot.take("first", root=str(place.root)),
    "a transaction": _transaction,
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_first_change_moves_it(place: Place, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATE", "LOCK"):
        path = str(place.root) + getattr(apt_transaction, name)
        monkeypatch.setattr(apt_transaction, name, path)
    before = place.seen()
    place.age()
    CHANGES[change](place)
    assert not place.old.exists()
    after = place.seen()
    assert after["lock"]["run"] == before["lock"]["run"]
    assert {**after, "lock": None} == {**before, "lock": None}
    assert place.new.stat().st_mode & 0o777 == 0o755
    assert run_record.leave(None, RUNS[1], place.history, place.lock)["released"]
    assert place.seen()["lock"] is None


def test_given_back_where_it_lies(place: Place) -> None:
    place.age()
    assert run_lock.release("another", place.lock)["held"]["run"] == RUNS[1]
    assert place.old.exists()
    assert run_lock.release(RUNS[1], place.lock) == {"released": True, "held": None}
    assert place.seen()["lock"] is None


def test_the_lock_of_an_earlier_version_is_honoured_and_left(place: Place) -> None:
    place.age()
    other = {**HOLDER, "run": RUNS[0]}
    answer = run_lock.acquire(other, 600, path=place.lock)
    assert not answer["taken"]
    assert answer["held"]["run"] == RUNS[1]
    with pytest.raises(run_lock.LockError):
        run_lock.admit(RUNS[0], place.lock)
    assert (place.old / "lock.json").exists()
    assert run_lock.acquire(other, 600, force=True, path=place.lock)["replaced"]["run"] == RUNS[1]
    assert place.seen()["lock"]["run"] == RUNS[0]
    assert not place.old.exists()


def test_given_back_after_a_cut_between_both_names(place: Place) -> None:
    place.age()
    place.new.mkdir()
    os.link(place.old / "lock.json", place.new / "lock.json")
    assert run_lock.renew(RUNS[1], place.lock)["kept"]
    assert run_lock.release(RUNS[1], place.lock)["released"]
    assert place.seen()["lock"] is None
    assert not (place.old / "lock.json").exists()


def test_a_damaged_lock_is_somebodys_where_it_lies(place: Place) -> None:
    place.age()
    (place.old / "lock.json").write_text("{")
    answer = run_lock.acquire(HOLDER, 600, path=place.lock)
    assert not answer["taken"]
    assert str(place.old / "lock.json") in run_lock.describe(answer["held"])
    assert run_lock.acquire(HOLDER, 600, force=True, path=place.lock)["taken"]
    assert [path.name[:18] for path in place.new.glob("lock.json.*")] == ["lock.json.damaged-"]
    assert place.seen()["lock"]["run"] == RUNS[1]


class Cut(BaseException):
    """The power."""


def _cut(monkeypatch: pytest.MonkeyPatch, at: int, after: bool) -> None:
    """Have the power cut before (or after) the step of this number that changes names."""
    count = itertools.count()

    def patch(name: str, real: Callable[..., None]) -> None:
        def call(*args: Any, **more: Any) -> None:
            now = next(count)
            if now >= at and not after:
                raise Cut
            real(*args, **more)
            if now >= at:
                raise Cut

        monkeypatch.setattr(os, name, call)

    for name in STEPS:
        patch(name, getattr(os, name))


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("make", [lambda root: Place(root).fill().age(), _both], ids=["older alone", "both"])
def test_cut_off_at_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Place], after: bool
) -> None:
    for at in itertools.count():
        place = make(tmp_path / str(at))
        before = place.seen()
        with monkeypatch.context() as patched:
            _cut(patched, at, after)
            try:
                own_state.move(str(place.new))
                whole = True
            except Cut:
                whole = False
        assert place.seen() == before, at
        told: list[str] = []
        own_state.move(str(place.new), told)
        assert place.seen() == before, at
        assert not place.old.exists() or list(place.old.iterdir()) == [], at
        assert told == []
        if whole:
            break
    assert at > 4


@pytest.mark.parametrize("after", [False, True])
def test_what_is_moved_between_two_looks_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    before = place.seen()
    place.age()

    def patch(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(module, name, real)
            if not after:
                own_state.move(str(place.new))
            try:
                return real(*args, **more)
            finally:
                own_state.move(str(place.new))

        monkeypatch.setattr(module, name, call)

    patch(own_state, "read")
    assert run_lock.read(place.lock)["held"] == before["lock"]
    assert not place.old.exists()
    place.age()
    patch(os, "listdir")
    assert run_record.read(folder=place.history) == before["runs"]
    place.age()
    patch(os, "listdir")
    assert rescue_snapshot.listing(str(place.root)) == before["snapshots"]


def test_moved_by_several_at_once(tmp_path: Path) -> None:
    place = _both(tmp_path)
    names = {f"2025010{number // 100}T0000{number % 100:02}Z-x.json" for number in range(200)}
    for name in names:
        (place.old / "history" / name).write_text("{}")
    before = place.seen()
    told: list[str] = []
    gate = threading.Barrier(4)

    def move() -> None:
        gate.wait()
        own_state.move(str(place.new), told)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own_state.move(str(place.new), told)
    assert place.seen() == before
    assert names < set(own_state.names(place.history))
    assert told == []
    assert not place.old.exists() or list(place.old.iterdir()) == []


def test_both_are_there(tmp_path: Path) -> None:
    place = _both(tmp_path)
    newer = (place.new / "history" / f"{RUNS[1]}.json").read_text()
    (place.old / "history" / f"{RUNS[1]}.json").write_text('{"run": "older"}')
    before = place.seen()
    assert [run["run"] for run in before["runs"]["runs"]] == RUNS[::-1]
    assert len(before["snapshots"]) == 2
    told: list[str] = []
    own_state.move(str(place.new), told)
    assert place.seen() == before
    assert told == []
    # Of two that differ neither is lost.
    assert [path.name for path in place.old.rglob("*")] == ["history", f"{RUNS[1]}.json"]
    assert (place.new / "history" / f"{RUNS[1]}.json").read_text() == newer


def test_old_records_and_snapshots_are_pruned_wherever_they_lie(tmp_path: Path, no_moves: None) -> None:
    place = _both(tmp_path)
    rescue_snapshot.take("third", root=str(tmp_path), resume=False, keep=1)
    assert len(rescue_snapshot.listing(str(tmp_path))) == 2, "the newest, and that of a rescue that is not finished"
    for number in range(run_record.KEEP):
        run_record.write({"run": f"20270101T0000{number:02}Z-x"}, place.history)
    found = run_record.read(folder=place.history)
    assert [len(found["runs"]), found["unreadable"]] == [run_record.KEEP, []]
    assert list((place.old / "history").iterdir()) == []


@pytest.fixture
def no_moves(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The older folder is a file system of its own."""

    def patch(name: str, real: Callable[..., None]) -> None:
        def call(old: str, new: str, **more: Any) -> None:
            if f"{own_state.OLDER}/" in str(old) and f"{own_state.FOLDER}/" in str(new):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), old)
            real(old, new, **more)

        monkeypatch.setattr(os, name, call)

    patch("link", os.link)
    patch("rename", os.rename)
    yield


def test_what_cannot_be_moved_is_used_where_it_is(place: Place, no_moves: None) -> None:
    before = place.seen()
    place.age()
    taken = rescue_snapshot.take("first", root=str(place.root))
    assert taken["resumed"]
    assert taken["warnings"] == [
        f"{place.old} is used where it is: it cannot be moved to {place.new} ({os.strerror(errno.EXDEV)})"
    ]
    assert place.seen() == before
    rescue_snapshot.finish(taken["id"], str(place.root))
    assert run_lock.release(RUNS[1], place.lock)["released"]
    assert place.seen()["lock"] is None


def _linked(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("elsewhere")


def _a_file(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("{}")


UNSOUND: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link": (_linked, "it is a link"),
    "a file": (_a_file, "it is no folder"),
    "of others": (lambda folder: folder.chmod(0o777), "others than root can write to it"),
}


@pytest.mark.parametrize(("name", "how"), [("", "a link"), ("", "of others"), *(("snapshots", how) for how in UNSOUND)])
def test_what_is_no_folder_of_roots_is_put_aside_and_told(place: Place, how: str, name: str) -> None:
    place.age()
    damage, why = UNSOUND[how]
    damage(place.old / name)
    if not name:
        assert place.seen()["lock"] is None, "it is not followed"
    assert run_lock.acquire(HOLDER, 600, path=place.lock)["taken"]
    assert not (place.new / "snapshots").exists()
    assert os.path.lexists(place.old / name), "who cannot say so leaves it"
    taken = rescue_snapshot.take("second", root=str(place.root))
    (line,) = taken["warnings"]
    assert line.startswith(f"{place.old / name} is damaged: {why}; it was renamed to ")
    assert not os.path.lexists(place.old / name)
    assert [row["reason"] for row in rescue_snapshot.listing(str(place.root))] == ["second"]
    assert rescue_snapshot.take("third", root=str(place.root), resume=False)["warnings"] == []


def test_files_of_others_stay(place: Place) -> None:
    place.age()
    (place.old / "theirs.db").write_text("precious")
    before = place.seen()
    told: list[str] = []
    own_state.move(str(place.new), told)
    assert [path.name for path in place.old.iterdir()] == ["theirs.db"]
    assert place.seen() == before
    assert told == []


@pytest.mark.parametrize("how", UNSOUND)
def test_a_folder_of_another_program_stays_as_it_is(tmp_path: Path, how: str) -> None:
    place = Place(tmp_path)
    place.old.mkdir()
    (place.old / "theirs.db").write_text("precious")
    UNSOUND[how][0](place.old)
    there = [name for name in place.names() if name.startswith("var/lib/provision")]
    assert rescue_snapshot.take("first", root=str(tmp_path))["warnings"] == []
    assert [name for name in place.names() if name.startswith("var/lib/provision")] == there
