"""The kill harness without a lab: which points a seed gives, when one is due, what counts as lost."""

import collections
import dataclasses
import json

from tests.attack.kill import judge
from tests.attack.kill.kinds import FOREIGN, KINDS
from tests.attack.kill.moments import VICTIMS, Moment, Timeline, point

TIMELINE = Timeline(
    [("start", 0.0), ("lock", 3.0), ("journal", 8.0), ("dpkg", 8.5), ("journal-gone", 12.0), ("record", 19.0)], 20.0, 80
)


def points(number=100, kind="fresh"):
    return [point(kind, seed, VICTIMS, TIMELINE) for seed in range(number)]


def test_a_seed_gives_the_same_point_every_time():
    assert points() == points()
    assert points(kind="purge") != points()


def test_a_hundred_points_hit_every_victim_in_every_phase():
    found = collections.defaultdict(set)
    for item in points():
        found[item.victim].add("dpkg" if item.moment.line else item.moment.phase)
    assert set(found) == set(VICTIMS)
    for victim in set(VICTIMS) - {"apt"}:
        assert found[victim] == {name for name, _ in TIMELINE.marks}, victim
    lines = sorted(item.moment.line for item in points() if item.moment.line)
    assert lines[0] < 10 and lines[-1] > 70 and max(b - a for a, b in zip(lines, lines[1:], strict=False)) < 10
    assert {item.apt_part for item in points() if item.victim == "apt"} == {"all", "programs", "worker", "dpkg"}
    assert sum(item.again is not None for item in points()) == 20


def test_a_moment_stays_within_its_phase():
    half = Moment("journal", 0.5)
    assert not half.is_due({"start": 100.0, "lock": 103.0}, 0, TIMELINE, 104.0)
    assert not half.is_due({"start": 100.0, "lock": 103.0, "journal": 108.0}, 0, TIMELINE, 108.2)
    assert half.is_due({"start": 100.0, "lock": 103.0, "journal": 108.0}, 0, TIMELINE, 108.3)
    late = {"start": 100.0, "lock": 106.0, "journal": 116.0}
    assert not half.is_due(late, 0, TIMELINE, 116.4) and half.is_due(late, 0, TIMELINE, 116.6), (
        "a run that is twice as slow"
    )
    assert half.is_due({"start": 100.0, "lock": 103.0, "dpkg": 108.1}, 0, TIMELINE, 108.1), "the next phase has begun"
    assert Moment("dpkg", 0.0, 7).is_due({}, 7, TIMELINE, 0.0) and not Moment("dpkg", 0.0, 7).is_due(
        {}, 6, TIMELINE, 0.0
    )


HOST = judge.Host(
    audit="",
    holds=frozenset({"sudo", "nvidia-utils-580"}),
    packages=frozenset({"nvidia-utils-580:amd64 1 hold installed ok"}),
    smi="rc 0",
    litter=[],
    etc={"etc/fstab": "100644 0:0 aa"},
    foreign=dict.fromkeys(FOREIGN, "100644 0:0 aa 1"),
    locks=[],
    damaged=[],
    records=1,
)


def lost(**changes):
    return set(judge.of_host(KINDS["fresh"], HOST, dataclasses.replace(HOST, **changes), HOST))


def test_every_kind_of_loss_is_seen():
    assert lost() == set()
    assert lost(audit="The following packages are only half configured") == {"dpkg"}
    assert lost(holds=frozenset({"sudo"})) == {"holds"}
    assert lost(packages=frozenset()) == {"packages"}
    path = "/etc/profile.d/foreign.sh"
    assert lost(foreign={**HOST.foreign, path: "100644 0:0 aa 2"}) == {"foreign files"}, "rewritten with the same bytes"
    assert lost(etc={}) == {"files"}
    assert lost(etc={**HOST.etc, "etc/apt/apt.conf.d/x.new": "100644 0:0 aa"}) == {"files"}
    assert lost(locks=["var/lib/gpu-provision/lock.json"]) == {"lock stays"}
    assert lost(damaged=["var/lib/gpu-provision/transaction.json"]) == {"own state"}
    assert lost(records=0) == {"no record"}
    assert lost(litter=["/tmp/gpu-provision-x"]) == {"left on the host"}
    assert lost(smi="rc 9") == {"nvidia-smi"}


def said(status, *errors, code=0):
    return judge.of_document(
        json.dumps({"hosts": {"k1": {"status": status}}, "errors": list(errors)}), code, "k1", frozenset({"done"})
    )


def test_a_wrong_cause_and_an_error_are_seen():
    assert said("done") == {}
    moved = {"host": "k1", "code": "apt.plan_moved", "message": "the repository changed since the plan"}
    assert set(said("failed", moved, code=1)) == {"not done", "wrong cause"}
    assert set(said("done", {"host": None, "code": "internal.error", "message": "x"})) == {"errors", "wrong cause"}
    assert said("done", {"host": "k2", "code": "apt.failed", "message": "another host's"}) == {}
    assert set(judge.of_document("Traceback (most recent call last):", 1, "k1", frozenset())) == {"no answer"}
