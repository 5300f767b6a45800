"""How far a change of packages is: apt's status lines as people read them, and who is asked for them."""

import os
import threading
from types import SimpleNamespace

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.apt import progress as apt_progress
from provision.errors import UnreachableError
from provision.runs import following
from provision.runs.fleet import Silent


@pytest.mark.parametrize(
    ("line", "total", "seconds", "text"),
    [
        (
            "dlstatus:3:34.2:Retrieving file 3 of 9 (12s remaining)",
            1_200_000_000,
            20,
            "downloading 410 MB of 1.2 GB (34 %, 21 MB/s)",
        ),
        ("dlstatus:3:34.2:Retrieving file 3 of 9", 1_200_000_000, 0.2, "downloading 410 MB of 1.2 GB (34 %)"),
        ("dlstatus:3:34.2:Retrieving file 3 of 9", 0, 20, "downloading file 3 of 9 (34 %)"),
        ("dlstatus:1:0.0:Waiting for headers", 0, 20, "downloading (0 %)"),
        (
            "pmstatus:libnvidia-gl-580:43.9:Unpacking libnvidia-gl-580 (amd64)",
            7,
            9,
            "unpacking libnvidia-gl-580 (amd64) (44 %)",
        ),
        (
            "pmstatus:initramfs-tools:99:Running post-installation trigger initramfs-tools",
            7,
            9,
            "running post-installation trigger initramfs-tools (99 %)",
        ),
        ("lock:unattended-upgr:0:", 0, 0, "waiting for apt's lock, which unattended-upgr has"),
        ("pmstatus:dpkg-exec:0.0:", 0, 0, None),
        ("pmerror:/x.deb:43.9:trying to overwrite", 0, 0, None),
        ("pmstatus:x:1e99:Unpacking x", 0, 0, None),
        ("pmstatus:x:900:Unpacking x", 0, 0, "unpacking x (100 %)"),
        ("", 0, 0, None),
    ],
)
def test_a_status_line(line, total, seconds, text):
    assert following.described(line, total, seconds) == text


def test_the_file_is_there_while_a_change_runs_and_its_last_whole_line_counts(monkeypatch, tmp_path):
    monkeypatch.setattr(apt_progress, "PATH", str(tmp_path / "run/apt.progress"))
    assert apt_progress.main({}) == {"line": None}
    with apt_progress.written() as handle:
        assert apt_progress.options(handle) == (f"APT::Status-Fd={handle}",)
        assert apt_progress.main({}) == {"line": None}
        apt_progress.waiting(handle, {"comm": "a:b"})
        assert apt_progress.main({}) == {"line": "lock:a b:0:"}
        os.write(handle, b"pmstatus:x:1:A\n" * 900 + b"pmstatus:y:2:B\npmstatus:z")
        assert apt_progress.main({}) == {"line": "pmstatus:y:2:B"}
    assert not (tmp_path / "run/apt.progress").exists() and apt_progress.main({}) == {"line": None}


def test_a_change_goes_on_where_the_file_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "run").write_text("")
    monkeypatch.setattr(apt_progress, "PATH", str(tmp_path / "run/apt.progress"))
    with apt_progress.written() as handle:
        assert handle is None and apt_progress.options(handle) == ()
        apt_progress.waiting(handle, {"comm": "apt"})


class Talk(Silent):
    live = True

    def __init__(self):
        self.said, self.heard = [], threading.Event()

    def host(self, name, text, *, state="running"):
        self.said.append((name, text, state))
        self.heard.set()


def start(action, host="gpu01"):
    return {"event": "host_start", "host": host, "task": "x", "action": action}


@pytest.fixture
def play(monkeypatch):
    """Play events on gpu01; returns what was said of it, and which programs it was asked for."""
    asked, closed = [], []

    class Session:
        def call(self, module, args, *, timeout):
            asked.append(module)
            return {"line": "pmstatus:x:50:Unpacking x"}

        def close(self):
            closed.append(True)

    monkeypatch.setattr(following, "_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(following.remote, "open_session", lambda host: Session())
    fleet = SimpleNamespace(hosts=[SimpleNamespace(name="gpu01")])

    def run(events, talk, wait=5.0):
        events_seen = []
        with following.following(fleet, talk, events_seen.append) as on_event:
            for event in events:
                on_event(event)
            talk.heard.wait(wait)
        assert events_seen == events
        return talk.said, asked, closed

    return run


# The modules by which site.yml and rescue.yml change packages.
@pytest.mark.parametrize("module", ["host_packages", "apt_transaction"])
def test_a_host_that_changes_packages_is_asked_beside_the_play(play, module):
    said, asked, _ = play([start(f"gpu.provision.{module}")], Talk())
    assert said[0] == ("gpu01", "unpacking x (50 %)", "step") and set(asked) == {"apt.progress"}


@pytest.mark.parametrize(
    "events",
    [
        [start("gpu.provision.cuda_environment")],
        [
            start("gpu.provision.apt_transaction"),
            {"event": "ok", "host": "gpu01", "action": "gpu.provision.apt_transaction"},
        ],
        [start("gpu.provision.apt_transaction", "gpu99")],
        [{"event": "task_start", "task": "x", "action": "gpu.provision.apt_transaction"}],
    ],
)
def test_no_other_is(play, events):
    assert play(events, Talk(), wait=0.1)[0] == []


def test_nobody_is_asked_where_nobody_looks(play):
    talk = Talk()
    talk.live = False
    assert play([start("gpu.provision.apt_transaction")], talk, wait=0.1) == ([], [], [])


def test_a_host_that_cannot_be_asked_is_no_failure(play, monkeypatch):
    def refuse(host):
        raise UnreachableError("connect.refused", "x", host="gpu01")

    monkeypatch.setattr(following.remote, "open_session", refuse)
    assert play([start("gpu.provision.apt_transaction")], Talk(), wait=0.1)[0] == []
