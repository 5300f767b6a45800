"""Our own state on a host, damaged in every way, and locks: nothing hangs, nothing ends in a traceback, all of it is told."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import changes as apt_changes
from ansible_collections.gpu.provision.plugins.module_utils.apt import common as apt_common
from ansible_collections.gpu.provision.plugins.module_utils.apt import detached as apt_detached
from ansible_collections.gpu.provision.plugins.module_utils.apt import files as apt_files
from ansible_collections.gpu.provision.plugins.module_utils.apt import settle as apt_settle
from ansible_collections.gpu.provision.plugins.module_utils.apt import transaction as apt_transaction
from ansible_collections.gpu.provision.plugins.module_utils.conda import fetch as conda_fetch
from ansible_collections.gpu.provision.plugins.module_utils.conda import install as conda_install
from ansible_collections.gpu.provision.plugins.module_utils.conda import read as conda_read
from ansible_collections.gpu.provision.plugins.module_utils.containers import files as containers_files
from ansible_collections.gpu.provision.plugins.module_utils.containers import host as containers_host
from ansible_collections.gpu.provision.plugins.module_utils.containers import probe as containers_probe
from ansible_collections.gpu.provision.plugins.module_utils.lib import own_files, own_state
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from ansible_collections.gpu.provision.plugins.module_utils.mirror import store as mirror_store
from ansible_collections.gpu.provision.plugins.module_utils.rescue import common as rescue_common
from ansible_collections.gpu.provision.plugins.module_utils.rescue import purge as rescue_purge
from ansible_collections.gpu.provision.plugins.module_utils.rescue import snapshot as rescue_snapshot
from ansible_collections.gpu.provision.plugins.module_utils.run import lock as run_lock
from ansible_collections.gpu.provision.plugins.module_utils.run import record as run_record
from provision.pull import run as pull

GIB = 1 << 30


def _content(data: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(data)


def _large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(GIB)


def _link(path: Path) -> None:
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_text('{"run": "x"}')
    path.symlink_to(elsewhere)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": _content(b""),
    "cut off": _content(b'{"hold": tr'),
    "a brace": _content(b"{"),
    "a list": _content(b"[]"),
    "a number": _content(b"7"),
    "null": _content(b"null"),
    "another object": _content(b'{"pid": 1}'),
    "another schema": _content(b'{"schema": 99, "hold": true, "release": false, "extra_hold": [], "held_before": []}'),
    "texts for numbers": _content(b'{"schema": "1", "hold": "yes", "release": 0, "last_success": "now", "files": 3}'),
    "texts for lists": _content(b'{"hold": true, "release": false, "extra_hold": "sudo", "held_before": "sudo"}'),
    "numbers in lists": _content(b'{"hold": true, "release": false, "extra_hold": [1], "held_before": [null]}'),
    "a lone surrogate": _content(b'{"hold": true, "release": false, "extra_hold": ["\\ud800"], "held_before": []}'),
    "NUL bytes": _content(bytes(4096)),
    "not UTF-8": _content(b'{"hold": "\xff\xfe"}'),
    "too deep": _content(b"[" * 100_000),
    "a number of 10,000 digits": _content(b'{"run": ' + b"9" * 10_000 + b"}"),
    "1 GiB": _large,
    "a folder": lambda path: path.mkdir(),
    "a folder with something in it": lambda path: (path / "x").mkdir(parents=True),
    "a FIFO": lambda path: os.mkfifo(path),
    "a link to elsewhere": _link,
    "a link to nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
    "a link to itself": lambda path: path.symlink_to(path.name),
}
damaged = pytest.mark.parametrize("how", DAMAGES.values(), ids=list(DAMAGES))
# What may come out of this is not a shape that every reader refuses.
LINKS = pytest.mark.parametrize(
    "how", [how for name, how in DAMAGES.items() if "link" in name or "folder" in name or "FIFO" in name]
)


@pytest.fixture(autouse=True)
def nothing_hangs() -> Iterator[None]:
    """An open that waits for the other end of a FIFO would wait for ever."""

    def over(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def aside(path: Path) -> list[Path]:
    return sorted(path.parent.glob(path.name + ".damaged-*"))


def as_told(path: Path, told: list[str]) -> None:
    """The file was put aside whole, under a name that was told."""
    (kept,) = aside(path)
    (line,) = told
    assert f"{path} is damaged: " in line
    assert f"renamed to {kept.name}" in line
    assert not os.path.lexists(path)


# --- the reader and the writer


@damaged
def test_damage_is_put_aside_and_told(tmp_path: Path, how: Callable[[Path], object]) -> None:
    path, told = tmp_path / "state.json", list[str]()
    how(path)
    before = os.lstat(path)
    shape = {"schema": 1, "hold": bool, "held_before": [str]}
    assert own_state.take(str(path), shape, told, "it goes on") is None
    as_told(path, told)
    assert told[0].endswith("; it goes on")
    after = os.lstat(aside(path)[0])
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)


def test_what_was_put_aside_is_never_overwritten(tmp_path: Path) -> None:
    path, told = tmp_path / "state.json", list[str]()
    for number in range(5):
        path.write_text(f"damage {number}")
        assert own_state.take(str(path), {}, told) is None
    assert sorted(kept.read_text() for kept in aside(path)) == [f"damage {number}" for number in range(5)]
    assert len(set(told)) == 5


@damaged
def test_a_reader_changes_nothing(tmp_path: Path, how: Callable[[Path], object]) -> None:
    path = tmp_path / "state.json"
    how(path)
    names = sorted(tmp_path.iterdir())
    with pytest.raises(own_state.Damaged, match="state.json is damaged: "):
        own_state.read(str(path), {"schema": 1, "hold": bool, "held_before": [str]})
    assert sorted(tmp_path.iterdir()) == names


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(_JSON)
def test_what_passes_has_the_shape(value: Any) -> None:
    journal = apt_transaction._JOURNAL
    if own_state.fits(value, journal):
        apt_changes.restore_holds(value, [], lambda selections: None)
    for shape in (rescue_snapshot._SHAPE, mirror_store._SHAPE, apt_detached._RESULT, containers_files.MARKS):
        assert own_state.fits(value, shape) in (True, False)


@given(st.binary())
def test_any_bytes_are_damage_or_of_the_shape(data: bytes) -> None:
    with contextlib.suppress(own_state.Damaged):
        assert own_state.fits(own_state.parse(data, {"a": int}, "/x"), {"a": int})


def test_a_file_is_replaced_whole_and_both_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def spy(module: Any, name: str, told: Callable[..., str]) -> None:
        real = getattr(module, name)

        def call(*args: Any, **more: Any) -> Any:
            steps.append(told(*args))
            return real(*args, **more)

        monkeypatch.setattr(module, name, call)

    spy(os, "fsync", lambda handle: "sync " + Path(f"/proc/self/fd/{handle}").readlink().name)
    spy(os, "rename", lambda old, new: "rename " + Path(new).name)
    target = tmp_path / "here/state.json"
    own_state.write(str(target), {"a": 1})
    assert steps == ["sync .state.json~", "rename state.json", "sync here"]
    assert target.stat().st_mode & 0o777 == 0o600
    steps.clear()
    (tmp_path / "there").mkdir()
    own_files.rename(str(target), str(tmp_path / "there/state.json"))
    assert steps == ["rename state.json", "sync here", "sync there"]


@pytest.mark.parametrize("how", ["file", "link"])
def test_what_lies_under_the_temporary_name_is_not_written_through(tmp_path: Path, how: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    temporary = tmp_path / ".state.json~"
    if how == "link":
        temporary.symlink_to(victim)
    else:
        os.link(victim, temporary)
    own_state.write(str(tmp_path / "state.json"), {"a": 1})
    assert victim.read_text() == "precious"
    assert json.loads((tmp_path / "state.json").read_text()) == {"a": 1}
    assert not os.path.lexists(temporary)


# --- the journal of a transaction


def _status(**wants: str) -> list[apt_common.Installed]:
    return [
        apt_common.Installed(
            {
                "Package": name.replace("_", "-"),
                "Architecture": "amd64",
                "Version": "1",
                "Status": f"{want} ok installed",
            }
        )
        for name, want in wants.items()
    ]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of transactions; libnvidia, NCCL and sudo lost their holds to a run that was interrupted."""
    folder = tmp_path / "gpu-provision"
    folder.mkdir()
    for name, file in {
        "STATE": "",
        "JOURNAL": "transaction.json",
        "COPY": "transaction-copy.json",
        "LOCK": "transaction.lock",
    }.items():
        monkeypatch.setattr(apt_transaction, name, str(folder / file).rstrip("/"))
    monkeypatch.setattr(apt_detached, "RESULT", str(folder / "transaction-result.json"))
    monkeypatch.setattr(apt_files, "UNATTENDED", str(tmp_path / "52gpu-provision"))
    packages = _status(libnvidia_compute_580="install", libnccl2="install", sudo="install", bash="install")
    monkeypatch.setattr(apt_common, "read_status", lambda: packages)
    return folder


def _recover(params: dict[str, Any] | None = None) -> tuple[apt_transaction._Task, dict[str, str]]:
    written: dict[str, str] = {}
    task = apt_transaction._Task(params or {}, False, "/nowhere")
    task._set_selections = written.update  # type: ignore[method-assign]
    task._recover()
    return task, written


_LOST = {
    "schema": 1,
    "hold": True,
    "release": False,
    "extra_hold": ["libnccl2"],
    "extra_release": [],
    "held_before": ["sudo"],
    "started": "2026-11-28T03:12:00Z",
    "log": "/log",
    "pid": 1,
}
_ALL = dict.fromkeys(("libnvidia-compute-580", "libnccl2", "sudo"), "hold")


@damaged
def test_holds_come_back_from_the_copy_of_a_damaged_journal(state: Path, how: Callable[[Path], object]) -> None:
    journal = state / "transaction.json"
    how(journal)
    own_state.write(apt_transaction.COPY, _LOST)
    if ownstate_reads(journal):
        pytest.fail("the damage is none")
    task, written = _recover()
    assert written == _ALL
    as_told(journal, task.warnings)
    assert "its holds were restored from its copy" in task.warnings[0]
    assert not (state / "transaction-copy.json").exists()
    assert task.recovered is not None
    assert task.recovered["started"] == _LOST["started"]


@damaged
def test_holds_come_back_from_what_is_installed(state: Path, tmp_path: Path, how: Callable[[Path], object]) -> None:
    how(state / "transaction.json")
    how(state / "transaction-copy.json")
    (tmp_path / "52gpu-provision").write_text(apt_files.render_unattended(["libnvidia-", "libnccl", "[odd"]))
    # The run itself holds nothing: what our list names was held anyway.
    task, written = _recover({"hold": False})
    assert written == dict.fromkeys(("libnvidia-compute-580", "libnccl2"), "hold")
    assert len(task.warnings) == 2
    assert "is on hold again" in task.warnings[-1]
    assert [len(aside(state / name)) for name in ("transaction.json", "transaction-copy.json")] == [1, 1]


def ownstate_reads(path: Path) -> bool:
    try:
        return own_state.read(str(path), apt_transaction._JOURNAL) is not None
    except own_state.Damaged:
        return False


@damaged
def test_a_damaged_result_is_no_result(state: Path, how: Callable[[Path], object]) -> None:
    how(state / "transaction-result.json")
    with (state / "lock").open("w") as lock, (state / "log").open("ab") as log:
        result = apt_detached.detached(lambda: {"rc": 0, "text": "well \x00 done"}, log, lock)
    assert result == {"rc": 0, "text": "well \x00 done"}

    def spoil() -> dict[str, Any]:
        # As a file system does it: after the worker wrote its result.
        own_state.write = lambda path, data: how(Path(path))  # type: ignore[assignment]
        return {}

    with (
        (state / "lock").open("w") as lock,
        (state / "log").open("ab") as log,
        pytest.raises(apt_common.AptError) as failed,
    ):
        apt_detached.detached(spoil, log, lock)
    assert failed.value.code == "apt.worker"
    assert "transaction-result.json is damaged" in failed.value.because[0]


# --- every other file


@damaged
def test_purge_goes_on_with_a_damaged_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Path], object]
) -> None:
    path = tmp_path / "purge.json"
    monkeypatch.setattr(rescue_purge, "JOURNAL", str(path))
    monkeypatch.setattr(rescue_common, "autoremovable", lambda: ["never asked"])
    how(path)
    work = rescue_purge._Purge(None, {"left": [], "kernels": [], "packages": []}, (), 1, 1, str(tmp_path))
    journal = work.begin()
    assert journal["autoremovable"] == []
    assert "purge.json is damaged: " in work.warnings[0]
    assert aside(path)
    assert json.loads(path.read_text()) == journal


@damaged
def test_the_lock_of_a_run_is_somebodys_until_it_is_broken(tmp_path: Path, how: Callable[[Path], object]) -> None:
    path = tmp_path / "lock.json"
    holder = {"run": "20261128T031200Z-me", "command": "provision apply", "who": "ada", "git": None, "controller": {}}
    how(path)
    if path.is_symlink() or "run" not in _text(path):
        refused = run_lock.acquire(holder, 600, path=str(path))
        assert refused["taken"] is False
        assert "holds no record of a run" in run_lock.describe(refused["held"])
        assert run_lock.read(str(path))["held"]["run"] is None
    with pytest.raises(run_lock.LockError, match="unknown run"):
        run_lock.admit("another", path=str(path))
    taken = run_lock.acquire(holder, 600, force=True, path=str(path))
    assert taken["taken"] is True
    assert json.loads(path.read_text())["run"] == holder["run"]
    assert aside(path)


def _text(path: Path) -> str:
    return path.read_bytes()[:100].decode("latin-1") if path.is_file() else ""


@damaged
def test_a_damaged_record_of_a_run_is_named(tmp_path: Path, how: Callable[[Path], object]) -> None:
    run_record.write({"run": "20261128T031200Z-one", "command": "apply"}, str(tmp_path))
    how(tmp_path / "20261128T041200Z-two.json")
    found = run_record.read(folder=str(tmp_path))
    assert [run["run"] for run in found["runs"]] == ["20261128T031200Z-one"]
    assert found["unreadable"] == ["20261128T041200Z-two.json"]
    run_record.write({"run": "20261128T051200Z-three"}, str(tmp_path))


@damaged
def test_a_damaged_snapshot_is_put_aside_and_a_new_one_is_made(tmp_path: Path, how: Callable[[Path], object]) -> None:
    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/status").write_text("Package: dpkg\nStatus: install ok installed\nVersion: 1\n")
    root = str(tmp_path)
    first = rescue_snapshot.take("first", root=root)
    folder = tmp_path / "var/lib/gpu-provision/snapshots" / first["id"]
    (folder / "manifest.json").unlink()
    how(folder / "manifest.json")
    assert [row["whole"] for row in rescue_snapshot.listing(root)] == [False]
    with pytest.raises(rescue_snapshot.SnapshotError):
        rescue_snapshot.finish(first["id"], root)
    second = rescue_snapshot.take("second", root=root, keep=1)
    assert second["id"] != first["id"]
    (line,) = second["warnings"]
    assert f"{folder} is damaged: its manifest: " in line
    assert (aside(folder)[0] / "packages.tsv").exists()
    assert [row["id"] for row in rescue_snapshot.listing(root)] == [second["id"]]


@damaged
@pytest.mark.parametrize("name", ["packages.tsv", "extended_states"])
def test_a_snapshot_with_a_damaged_file_is_not_gone_back_to(
    tmp_path: Path, how: Callable[[Path], object], name: str
) -> None:
    for path in ("dpkg/status", "apt/extended_states"):
        (tmp_path / "var/lib" / path).parent.mkdir(parents=True)
        (tmp_path / "var/lib" / path).write_text("Package: dpkg\nStatus: install ok installed\nVersion: 1\n")
    made = rescue_snapshot.take("first", root=str(tmp_path))
    host = rescue_snapshot.Host(str(tmp_path))
    assert "dpkg" in host.text(made["id"], name)
    (Path(host.inside(made["id"])) / name).unlink()
    how(Path(host.inside(made["id"])) / name)
    with pytest.raises(rescue_snapshot.SnapshotError) as failed:
        host.text(made["id"], name)
    assert failed.value.code == "snapshot.damaged"


@pytest.mark.parametrize("how", [how for name, how in DAMAGES.items() if "link" not in name])
def test_damaged_marks_of_daemons(tmp_path: Path, how: Callable[[Path], object]) -> None:
    path = tmp_path / containers_files.PENDING.lstrip("/")
    path.parent.mkdir(parents=True)
    how(path)
    tree = HostTree(str(tmp_path))
    assert containers_probe._pending(tree, None) == {}
    assert [line.partition(": ")[0] for line in tree.unreadable] == [containers_files.PENDING]
    assert containers_host.Host(tree, check=True).pending() == {}
    assert not aside(path)
    host = containers_host.Host(tree)
    assert host.pending() == {}
    assert "restart docker and containerd" in host.warnings[0]
    assert aside(path)
    host.mark("docker", 5, ["features.cdi"])
    assert host.pending() == {"docker": {"started": 5, "keys": ["features.cdi"]}}


@damaged
def test_a_damaged_manifest_of_a_mirror(tmp_path: Path, how: Callable[[Path], object]) -> None:
    root = tmp_path / "mirror"
    assert mirror_store.opened(str(root))["warnings"] == []
    (root / "manifest.json").unlink()
    how(root / "manifest.json")
    with pytest.raises(apt_common.AptError) as failed:
        mirror_store.opened(str(root), create=False)
    assert failed.value.code == "mirror.manifest"
    answer = mirror_store.opened(str(root))
    assert answer["manifest"] == {}
    assert "manifest.json is damaged: " in answer["warnings"][0]
    assert aside(root / "manifest.json")
    assert mirror_store.opened(str(root))["warnings"] == []


@damaged
def test_a_damaged_note_of_a_download_begins_it_anew(tmp_path: Path, how: Callable[[Path], object]) -> None:
    part = tmp_path / "installer.sh.part"
    how(part.with_name(part.name + ".json"))
    assert conda_fetch._validator(str(part), "https://conda.example/installer.sh") is None
    conda_fetch._remember(str(part), "https://conda.example/installer.sh", {"ETag": '"1"'})
    assert conda_fetch._validator(str(part), "https://conda.example/installer.sh") == '"1"'


@damaged
def test_damaged_state_of_a_host_that_pulls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], how: Callable[[Path], object]
) -> None:
    how(tmp_path / "state.json")
    assert pull._last_success(tmp_path) == 0.0
    assert "warning: " in capsys.readouterr().out
    assert aside(tmp_path / "state.json")


_CONDA = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("spec", "version", "sha256", "digest", "accept_tos", "aside", "condarc", "moved"), _JSON),
)


@given(_CONDA)
def test_notes_of_conda_are_of_their_shape_or_nothing(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    folder = tmp_path_factory.mktemp("env")
    for name in (conda_read.RECORD, conda_read.MARKER):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(data))
    record, note = conda_read.read_record(str(folder)), conda_read.read_note(str(folder / conda_read.MARKER))
    for config in ({"version": "1-2"}, {"version": "latest"}):
        conda_install._is_newer(config["version"], {"record": record, "version": None})
    assert ((record or {}).get("spec") or {}).get("wish") is None or isinstance(record, dict)
    assert isinstance(note.get("condarc"), (str, type(None)))


# --- locks

_LOCKS: dict[str, Callable[[Path], Any]] = {
    "a transaction's": lambda path: os.close(own_state.open_lock(str(path), [])),
    "the guard of the run's lock": lambda path: (
        run_lock.release("x", str(path.with_name("lock.json")))
        if path.with_name("lock.json").write_text("{}")
        else None
    ),
    "the snapshots'": lambda path: own_state.locked(str(path), 60, AssertionError()).__enter__(),
    "the downloads'": lambda path: conda_fetch.fetch(__file__, str(path.parent), "copy", ""),
    "the pulling host's": lambda path: pull._alone(path.parent).__enter__(),
}
_NAMES = {"the guard of the run's lock": ".guard", "the downloads'": ".lock", "the pulling host's": "lock"}


@pytest.mark.parametrize("whose", _LOCKS)
def test_root_alone_can_open_a_lock(tmp_path: Path, whose: str) -> None:
    path = tmp_path / _NAMES.get(whose, "lock")
    path.touch(mode=0o644)
    path.chmod(0o644)
    _LOCKS[whose](path)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("whose", _LOCKS)
@LINKS
def test_what_lies_in_the_place_of_a_lock_is_put_aside(
    tmp_path: Path, whose: str, how: Callable[[Path], object]
) -> None:
    path = tmp_path / _NAMES.get(whose, "lock")
    how(path)
    _LOCKS[whose](path)
    assert aside(path)
    assert path.stat(follow_symlinks=False).st_mode & 0o777 == 0o600
    elsewhere = path.with_name("elsewhere")
    assert not elsewhere.exists() or elsewhere.read_text() == '{"run": "x"}'


@LINKS
def test_a_host_is_settled_whatever_lies_in_the_place_of_its_lock(
    tmp_path: Path, how: Callable[[Path], object]
) -> None:
    how(tmp_path / "lock")
    assert apt_settle.settle(str(tmp_path / "lock"), 5)["settled"] is True


def test_the_holder_of_a_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    words = f"import fcntl, time; f = open({str(path)!r}); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); time.sleep(600)"
    handle = own_state.open_lock(str(path), [])
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            (holder,) = own_state.lock_holders(handle)
            comm = Path(f"/proc/{process.pid}/comm").read_text().strip()
            user = "root" if os.geteuid() == 0 else ""
            assert holder["pid"] == str(process.pid)
            assert f"process {process.pid} ({comm}) of {user}" in holder["words"]
        finally:
            process.kill()
    assert own_state.lock_holders(handle) == []
    os.close(handle)


@pytest.mark.parametrize("root", [True, False])
def test_a_stranger_with_the_lock_is_not_waited_for(state: Path, monkeypatch: pytest.MonkeyPatch, root: bool) -> None:
    clock = iter(range(0, 100_000, 5))
    monkeypatch.setattr(apt_transaction.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(apt_transaction.time, "sleep", lambda seconds: None)
    holders = [{"pid": "4711", "root": root, "words": "process 4711 (flock) of lab"}]
    monkeypatch.setattr(own_state, "lock_holders", lambda handle: holders)
    with (state / "transaction.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        task = apt_transaction._Task({"lock_timeout": 600}, False, "/nowhere")
        with pytest.raises(apt_common.AptError) as failed:
            task._take_turn()
        task.close()
    error, waited = failed.value, next(clock)
    assert error.code == "apt.lock_timeout"
    assert "process 4711 (flock) of lab" in " ".join([error.message, *error.because])
    assert (waited > 600) is root
    assert ("kill 4711" in str(error.hint)) is not root


# --- a plan, and what finishing an earlier run has done since

_VERSIONS = st.sampled_from(["1", "2", "3"])
_NAMES_OF_PACKAGES = ["nvidia-a", "nvidia-b", "libnvidia-c", "libnvidia-d:i386"]


@given(
    plan=st.dictionaries(st.sampled_from(_NAMES_OF_PACKAGES), st.none() | _VERSIONS),
    done=st.dictionaries(st.sampled_from(_NAMES_OF_PACKAGES), st.none() | _VERSIONS),
    moved=st.sets(st.sampled_from(_NAMES_OF_PACKAGES)),
)
def test_a_plan_is_compared_with_what_recovery_left(
    plan: dict[str, str | None], done: dict[str, str | None], moved: set[str]
) -> None:
    """plan: name -> version (None: removal). done: what finishing changed. moved: what a repository has changed."""
    expect = [_change(name, version) for name, version in plan.items()]
    now = dict.fromkeys(plan, "0") | done
    packages = [_installed(name, version) for name, version in now.items() if version]
    there = {name for name in plan if name in done and done[name] == plan[name]}
    answer = [_change(name, version) for name, version in plan.items() if name not in there]
    kept = apt_changes.without_finished(expect, {name: {} for name in done}, packages)
    assert apt_changes.compare_with_plan(kept, answer) == []
    # Whoever was not brought to what was planned still counts: away, at another version, or moved by a repository.
    for name in moved & (set(plan) - there):
        other = [_change(n, "9" if n == name else v) for n, v in plan.items() if n not in there]
        assert apt_changes.compare_with_plan(kept, other)
        assert apt_changes.compare_with_plan(kept, [change for change in other if change["name"] != name])
    # Without finishing, a package that is as planned is a difference as before.
    if plan:
        assert apt_changes.without_finished(expect, {}, packages) == expect


def _change(name: str, version: str | None) -> dict[str, Any]:
    return {"action": "install" if version else "remove", "name": name, "version": version}


def _installed(name: str, version: str) -> apt_common.Installed:
    package, _, arch = name.partition(":")
    return apt_common.Installed(
        {"Package": package, "Architecture": arch or "amd64", "Version": version, "Status": "install ok unpacked"}
    )


def test_dpkg_was_interrupted_where_it_left_numbers(tmp_path: Path) -> None:
    assert not apt_common.interrupted(str(tmp_path / "away"))
    (tmp_path / "tmp.i").touch()
    assert not apt_common.interrupted(str(tmp_path))
    (tmp_path / "0003").touch()
    assert apt_common.interrupted(str(tmp_path))
