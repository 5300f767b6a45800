"""Own state on the controller, damaged in every way: told in one line, and nothing hangs, is lost or ends in a traceback."""

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from provision.commands import apply
from provision.commands import history as history_command
from provision.documents import PlanDocument
from provision.errors import ProvisionError, UsageError
from provision.lib import own_state
from provision.lock.model import load
from provision.pull import run as pull
from provision.pull.source import Source, fetch
from provision.rollout import state as rollout
from provision.rollout.options import RolloutOptions
from provision.runs import history
from provision.runs.fleet import Silent

WHOLE = {
    "state.json": rollout.RunState(run="r", hosts={"a": rollout.HostState()}).model_dump_json(by_alias=True),
    "history.json": history.Run(run="r", planned=["a"]).model_dump_json(by_alias=True),
    "plan.json": PlanDocument().to_json(),
    "pull": json.dumps({"last_success": 5.0, "code": 0, "state": ""}),
}
SECONDS = 20


def _folder(path, whole):
    path.mkdir()
    (path / "inside").write_text("kept")


def _fifo(path, whole):
    os.mkfifo(path)


def _link(path, whole):
    path.symlink_to("/dev/zero")


def _huge(path, whole):
    path.touch()
    os.truncate(path, 1 << 30)


DAMAGES = {
    "empty": "",
    "blank": " \n\t\n",
    "NUL": "\0" * 500,
    "cut off": lambda whole: whole[: len(whole) // 2],
    "a list": "[]",
    "a string": '"text"',
    "a number": "17",
    "null": "null",
    "another schema": lambda whole: json.dumps({**json.loads(whole), "schema": "provision/other/9"}),
    "a list for an object": lambda whole: json.dumps(
        {**json.loads(whole), "hosts": [], "run": [1], "last_success": []}
    ),
    "a string for a number": lambda whole: json.dumps(
        {**json.loads(whole), "sessions": "x", "exit_code": "x", "hosts": {"a": "x"}, "last_success": "x"}
    ),
    "a process of no number": lambda whole: json.dumps(
        {**json.loads(whole), "process": {"pid": 10**30}, "planned": 5, "hosts": 1, "last_success": None}
    ),
    "nested": "[" * 200_000,
    "not UTF-8": b'{"run": "\xff\xfe"}',
    "half a surrogate": '{"run": "\\ud800", "last_success": "\\ud800", "hosts": "\\ud800"}',
    "a folder": _folder,
    "a FIFO": _fifo,
    "a link to a device": _link,
    "1 GB": _huge,
}

# Files that have no schema.
OTHERS = [name for name in DAMAGES if name != "another schema"]


def damage(path, name, kind):
    made, whole = DAMAGES[name], WHOLE[kind]
    if made in (_folder, _fifo, _link, _huge):
        made(path, whole)
    else:
        text = made(whole) if callable(made) else made
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


def within(call):
    """Return what a call gives or raises; an error where it hangs."""
    found = []

    def body():
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - it is what is tested
            found.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert found, "it hangs"
    return found[0]


class Said(Silent):
    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


@pytest.fixture
def base(tmp_path):
    (tmp_path / "20261128T090000Z-apply-aaaaaa").mkdir()
    (tmp_path / "20261128T080000Z-apply-bbbbbb").mkdir()
    older = tmp_path / "20261128T080000Z-apply-bbbbbb"
    (older / "state.json").write_text(WHOLE["state.json"])
    (older / "history.json").write_text(WHOLE["history.json"])
    return tmp_path


def newest(base):
    return base / "20261128T090000Z-apply-aaaaaa"


@pytest.mark.parametrize("name", DAMAGES)
def test_the_state_of_a_run(base, name):
    damage(newest(base) / "state.json", name, "state.json")
    for word in ("last", "aaaaaa", str(newest(base))):
        error = within(lambda word=word: apply.reopen(word, base, Silent()))
        assert isinstance(error, UsageError), error
        assert "state.json" in str(error.issue.because) or "no run" in error.issue.message
        assert error.issue.hint
    error = within(lambda: rollout.find("nowhere", base))
    assert isinstance(error, UsageError)
    assert "cannot be read" in str(error.issue.because)
    assert "20261128T080000Z-apply-bbbbbb: 0 of 1 hosts done" in error.issue.because
    assert os.path.lexists(newest(base) / "state.json"), "nothing is lost"


@pytest.mark.parametrize("name", DAMAGES)
def test_the_record_of_a_run(base, name):
    damage(newest(base) / "history.json", name, "history.json")
    document = within(lambda: history_command.of_runs(base, 10))
    assert [run.run for run in document.runs] == ["r"]
    assert document.warnings[0].code == "history.unreadable"
    assert within(lambda: history.runs(base))[0].unreadable
    assert within(lambda: history_command.one_run("aaaaaa", base)).exit_code == 1


@pytest.mark.parametrize("name", DAMAGES)
def test_a_plan_that_was_agreed_to_before(base, name):
    damage(newest(base) / "plan.json", name, "plan.json")
    state = rollout.new_state("r", RolloutOptions(), rollout.Where(), [], {"a": rollout.HostState(began=True)})
    state.sessions = 2
    said = Said()
    assert within(lambda: apply._agreed_before(rollout.Store(newest(base), state), said)) == {}
    (line,) = said.lines
    assert "plan.json is damaged: " in line
    aside = [path.name for path in newest(base).iterdir()]
    assert [item.startswith("plan.json.damaged-2") for item in aside] == [True]
    assert aside[0] in line


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_host_that_pulls_keeps(tmp_path, name, capsys):
    damage(tmp_path / "state.json", name, "pull")
    assert within(lambda: pull._last_success(tmp_path)) == 0.0
    assert "state.json is damaged: " in capsys.readouterr().out
    outcome = pull.report.Outcome("a", 0, 1.0, 1.0, "x", None, 7.0)
    pull._keep(pull.Config(Source("/nowhere"), "a", folder=tmp_path), outcome)
    assert pull._last_success(tmp_path) == 7.0
    assert len(list(tmp_path.iterdir())) == 2, "the damaged one is kept"


@pytest.mark.parametrize("name", OTHERS)
def test_the_configuration_of_a_host_that_pulls(tmp_path, name):
    damage(tmp_path / "pull.json", name, "pull")
    error = within(lambda: pull.read_config(tmp_path / "pull.json"))
    assert isinstance(error, UsageError), error
    assert str(tmp_path / "pull.json") in error.issue.message
    assert os.path.lexists(tmp_path / "pull.json"), "a file of the role is not moved"


@pytest.mark.parametrize("made", [_folder, _fifo, _link])
def test_the_lock_file_of_a_host_that_pulls(tmp_path, made, capsys):
    made(tmp_path / "lock", "")

    def take():
        with pull._alone(tmp_path), pytest.raises(ProvisionError) as caught, pull._alone(tmp_path):
            raise AssertionError("two at once")
        return caught.value.issue.code

    assert within(take) == "pull.running"
    assert "renamed to lock.damaged-" in capsys.readouterr().out


@pytest.mark.parametrize("name", DAMAGES)
def test_a_lock_of_versions_is_a_persons(tmp_path, name):
    path = tmp_path / "fleet.lock.yml"
    damage(path, name, "state.json")
    before = sorted(tmp_path.iterdir())
    error = within(lambda: load(path))
    assert isinstance(error, UsageError), error
    assert error.issue.code == "lock.invalid"
    assert str(path) in error.issue.message
    assert error.issue.hint
    assert sorted(tmp_path.iterdir()) == before
    if name == "not UTF-8":
        assert "line 1" in str(error.issue.because)


@pytest.mark.parametrize("name", DAMAGES)
def test_what_cannot_be_read_is_put_aside_and_written_anew(tmp_path, name):
    path = tmp_path / "history.json"
    damage(path, name, "history.json")
    said = []
    assert within(lambda: own_state.take(path, history.Run, said.append)) is None
    assert len(said) == 1
    own_state.write(path, WHOLE["history.json"])
    assert own_state.read(path, history.Run).planned == ["a"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 2


def test_an_old_text_or_the_new_one(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    own_state.write(path, "old")
    synced = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.append(Path(f"/proc/self/fd/{handle}").readlink()), real(handle))
    )
    own_state.write(path, "new")
    assert tmp_path in synced, "the folder too"
    (tmp_path / "file").write_text("")
    with pytest.raises(ProvisionError) as caught:
        own_state.write(tmp_path / "file" / "state.json", "x")
    assert caught.value.issue.hint


# ---- the copy of a repository of a host that pulls ------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path):
    made = tmp_path / "source"
    made.mkdir()
    (made / "hosts.yml").write_text("all:\n")
    for words in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(made), *words], check=True, capture_output=True)
    return Source(str(made))


def _truncate_objects(copy):
    for path in copy.glob(".git/objects/*/*"):
        path.chmod(0o644)
        path.write_bytes(b"")


@pytest.mark.parametrize(
    "harm",
    [
        lambda copy: (copy / ".git/index.lock").touch(),
        lambda copy: (copy / ".git/shallow.lock").touch(),
        lambda copy: (copy / ".git/refs/heads/x.lock").touch(),
        lambda copy: (copy / ".git/HEAD").write_text(""),
        lambda copy: (copy / ".git/config").write_text("[broken"),
        lambda copy: (copy / ".git/index").write_bytes(b"\0" * 40),
        _truncate_objects,
    ],
)
def test_a_damaged_copy_is_made_anew(tmp_path, repository, harm):
    folder = tmp_path / "pull"
    first = fetch(repository, folder)
    harm(first[0])
    assert fetch(repository, folder) == first
    assert (first[0] / "hosts.yml").read_text() == "all:\n"


def test_a_whole_copy_stays_where_the_server_is_gone(tmp_path, repository):
    folder = tmp_path / "pull"
    where, _ = fetch(repository, folder)
    (tmp_path / "source").rename(tmp_path / "away")
    (tmp_path / "source").mkdir()
    (tmp_path / "source/.git").mkdir()
    with pytest.raises(ProvisionError):
        fetch(repository, folder)
    assert (where / "hosts.yml").exists()
