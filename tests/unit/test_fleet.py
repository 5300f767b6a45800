"""Sessions that are kept open for the next question."""

import time

import pytest

from provision import remote
from provision.errors import HostFailedError, UnreachableError
from provision.inventory import Host, Inventory
from provision.runs import engine, fleet, run_lock


class Fake:
    def __init__(self, host, wrong=None):
        self.host, self.wrong, self.calls, self.closed = host, wrong, [], False

    def call(self, module, args, *, timeout=60):
        self.calls.append((module, timeout))
        if self.wrong is not None and len(self.calls) > 1:
            raise self.wrong
        return len(self.calls)

    def close(self):
        self.closed = True


@pytest.fixture
def opened(monkeypatch):
    made = []

    def open_session(host):
        made.append(Fake(host))
        return made[-1]

    monkeypatch.setattr(remote, "open_session", open_session)
    return made


def ask(wanted, keep):
    hosts = wanted.hosts
    return fleet.ask_all(
        wanted,
        hosts,
        "reading",
        lambda host, session: session.call("probe.facts", {}),
        fleet.Silent(),
        keep=lambda _: keep,
    )


@pytest.fixture
def one():
    return fleet.Fleet(Inventory(hosts=[Host("a")], sources=[]), {"a": {}})


def test_a_session_is_closed_unless_it_is_to_be_kept(opened, one):
    assert ask(one, False) == {"a": 1}
    assert (opened[0].closed, one.kept) == (True, {})
    ask(one, True)
    assert (opened[1].closed, list(one.kept)) == (False, ["a"])
    fleet.release(one)
    assert (opened[1].closed, one.kept) == (True, {})


def test_nothing_is_kept_where_nobody_says_so(opened, one):
    found = fleet.ask_all(
        one, one.hosts, "reading", lambda host, session: session.call("probe.facts", {}), fleet.Silent()
    )
    assert (found, opened[0].closed, one.kept) == ({"a": 1}, True, {})


def test_not_every_session_of_a_large_fleet_is_kept(opened):
    """Each is a process here, and one there."""
    names = [f"gpu{number}" for number in range(60)]
    many = fleet.Fleet(Inventory(hosts=[Host(name) for name in names], sources=[]), {name: {} for name in names})
    assert len(ask(many, True)) == 60
    assert 10 < len(many.kept) < 50
    assert sum(not session.closed for session in opened) == len(many.kept)
    fleet.release(many)
    assert all(session.closed for session in opened)


def test_a_kept_session_is_asked_again_and_then_closed(opened, one):
    ask(one, True)
    assert ask(one, False) == {"a": 2}
    assert (len(opened), opened[0].closed, one.kept) == (1, True, {})


@pytest.mark.parametrize(
    "wrong", [UnreachableError("connect.lost", "the connection broke"), HostFailedError("host.timeout", "no answer")]
)
def test_a_kept_session_that_is_gone_is_replaced(opened, one, wrong):
    ask(one, True)
    opened[0].wrong = wrong
    assert ask(one, False) == {"a": 1}
    assert [session.closed for session in opened] == [True, True]
    assert opened[0].calls[1][1] < opened[1].calls[0][1]


def test_a_session_that_was_idle_for_long_is_not_trusted(opened, one, monkeypatch):
    ask(one, True)
    session, used = one.kept["a"]
    one.kept["a"] = (session, used - 1000)
    assert ask(one, False) == {"a": 1}
    assert [session.closed for session in opened] == [True, True]
    assert len(opened[0].calls) == 1


@pytest.mark.parametrize(("reads", "calls"), [({}, 2), ({"reads": True}, 2), ({"reads": False}, 1)], ids=str)
def test_only_what_reads_is_asked_again_where_the_connection_broke_meanwhile(one, opened, monkeypatch, reads, calls):
    monkeypatch.setattr(fleet, "_PAUSE_SECONDS", 0)
    asked = []

    def ask_once(host, session):
        asked.append(host.name)
        raise UnreachableError("connect.lost", "the connection broke")

    found = fleet.ask_all(one, one.hosts, "reading", ask_once, fleet.Silent(), **reads)
    assert found["a"].issue.code == "connect.lost" and len(asked) == calls


def test_sessions_that_were_kept_stay_open_over_the_locks(opened, monkeypatch):
    monkeypatch.setattr(engine, "make_ready", lambda inventory: None)
    monkeypatch.setattr(run_lock.runlock, "holder", lambda *_: {})
    monkeypatch.setattr(Fake, "call", lambda *_, **__: {"taken": True, "held": None, "replaced": None})
    two = fleet.Fleet(Inventory(hosts=[Host("a"), Host("b")], sources=[]), {})
    two.kept["a"] = (Fake("a"), time.monotonic())
    locks = run_lock.HostLocks(two, "provision apply", "run")
    assert (locks.take(["a", "b"]), locks.taken, list(two.kept)) == ({}, {"a", "b"}, ["a"])
    assert [session.closed for session in opened] == [True]


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "gpu0 (60 s);"),
        (5, "gpu1 (61 s), gpu0 (60 s);"),
        (6, "gpu1 (61 s) and 1 more;"),
        (9, "gpu4 (64 s) and 4 more;"),
    ],
)
def test_the_slowest_are_named_and_the_others_counted(count, said):
    text = fleet._slow({f"gpu{number}": 60.0 + number for number in range(count)})
    assert text.startswith(f"slow to log in: gpu{count - 1} ({59 + count} s)") and said in text
    assert (" more" in text) is (count > 5)


def test_a_session_that_is_being_opened_is_taken_over(opened, one):
    fleet.dial(one)
    assert ask(one, False) == {"a": 1}
    assert (len(opened), opened[0].closed, one.dialled) == (1, True, {})


def test_only_those_that_are_asked_first_are_dialled(opened):
    many = fleet.Fleet(Inventory(hosts=[Host(f"h{i}") for i in range(5)], sources=[]), {}, forks=2)
    fleet.dial(many)
    assert list(many.dialled) == ["h0", "h1"]
    assert (len(ask(many, False)), len(opened), many.dialled) == (5, 5, {})


@pytest.mark.parametrize(("code", "tries"), [("connect.refused", 1), ("connect.lost", 2)])
def test_why_a_host_cannot_be_dialled_is_said_when_it_is_asked(one, monkeypatch, code, tries):
    tried = []

    def open_session(host):
        tried.append(host.name)
        raise UnreachableError(code, "no", host=host.name)

    monkeypatch.setattr(remote, "open_session", open_session)
    monkeypatch.setattr(fleet, "_PAUSE_SECONDS", 0)
    fleet.dial(one)
    assert ask(one, False)["a"].issue.code == code
    assert len(tried) == tries
