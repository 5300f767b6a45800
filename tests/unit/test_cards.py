"""The memory of cards: what a host's answer becomes, what counts as a loss, and what a lying host cannot do."""

import json

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import proofs
from provision.runs import cards
from provision.runs.cards import Card, CardError, Memory, Sample, Seen
from tests.unit.provecases import FIXTURES
from tests.unit.test_prove import replay

UUID = "GPU-00000000-0000-0000-0000-{:012d}"


def sample(gflops=30000.0, memory=3800.0, day=1, **more):
    numbers = {"gflops": gflops, "memory_gb_per_s": memory}
    return Sample(
        **{"when": f"2026-11-{day:02d}T10:00:00Z", "host": "gpu01", "slot": "0000:9b:00.0", "numbers": numbers, **more}
    )


def seen(number, now, name="NVIDIA H100 PCIe", **more):
    return Seen(uuid=UUID.format(number), name=name, sample=now, **more)


def test_what_a_recorded_machine_measured(monkeypatch):
    note = json.loads((FIXTURES / "h200x4/scenes.json").read_text())
    scene = note["scenes"]["everything"]
    answers = []
    real = proofs.main
    monkeypatch.setattr(proofs, "main", lambda args: answers.append(real(args)) or answers[0])
    replay(monkeypatch, note, scene)
    found = cards.seen(
        "gpu01", json.loads(json.dumps(answers[0], default=lambda o: o.plain())), "6.8.0-48-generic", "now"
    )
    assert [one.name for one in found] == ["NVIDIA H200"] * 4
    assert len({one.uuid for one in found}) == 4
    assert all(25_000 < one.sample.numbers["gflops"] < 35_000 for one in found)
    assert (found[0].sample.kernel, found[0].sample.pcie, found[0].sample.ecc) == ("6.8.0-48-generic", "5x16", True)


@pytest.mark.parametrize(
    ("now", "past", "twins", "words"),
    [
        (
            sample(28000),
            [sample(30000, day=n) for n in range(1, 6)],
            [],
            ["28000 GFLOP/s, 6.7 % below its own median of 5 runs"],
        ),
        (sample(29000), [sample(30000, day=n) for n in range(1, 6)], [], []),
        (sample(28000), [sample(30000), sample(30000)], [], []),
        # it always was so
        (
            sample(28000),
            [sample(28100, day=n) for n in range(1, 4)],
            [sample(30000)] * 3,
            ["below the median (30000) of 3 identical cards"],
        ),
        # its own figures spread by more
        (sample(28000), [sample(x) for x in (26000, 28000, 30000, 32000, 34000)], [], []),
        (sample(memory=3500), [sample(), sample(), sample()], [sample()] * 2, ["3500 GB/s of memory, 7.9 % below"]),
        # some of the runs, and of the twins, measured nothing
        (
            sample(28000),
            [Sample(), *(sample(day=n) for n in range(1, 4))],
            [Sample(), *[sample()] * 3],
            ["below its own median of 3 runs", "of 3 identical cards"],
        ),
        (Sample(), [sample()] * 3, [sample()] * 3, []),
    ],
)
def test_what_is_a_loss(now, past, twins, words):
    told, _ = cards.slower(now, past, twins)
    assert len(told) == len(words) and all(word in line for word, line in zip(words, told, strict=True))


def test_what_changed_in_between_is_told(tmp_path):
    memory = Memory(tmp_path)
    for day in range(1, 5):
        now = sample(30000 + day, day=day, driver="580.126.20", kernel="6.8.0-48-generic", power_limit_w=350.0)
        cards.compared(memory, {"gpu01": [seen(1, now)]})
    now = sample(27000, day=9, driver="580.142", kernel="6.8.0-48-generic", power_limit_w=300.0)
    check = cards.compared(memory, {"gpu01": [seen(1, now)]})["gpu01"]
    assert check.status == "warn"
    assert check.message == (
        "card 0000:9b:00.0: 27000 GFLOP/s, 10.0 % below its own median of 4 runs (30002); since 2026-11-04: "
        "driver 580.126.20 -> 580.142; power limit (W) 350 -> 300"
    )
    card = memory.read(UUID.format(1))
    assert [one.numbers["gflops"] for one in card.samples] == [30001, 30002, 30003, 30004, 27000]


@pytest.mark.parametrize(
    ("before", "now", "kept"),
    [
        ([], Sample(driver="580.142"), 1),
        ([Sample(driver="580.142")], Sample(driver="580.142"), 1),
        ([Sample(driver="580.142")], Sample(driver="590.44"), 2),
        ([sample()], sample(), 2),
    ],
    ids=["the first", "the same", "another driver", "measured"],
)
def test_what_was_not_measured_is_kept_where_it_says_something_new(before, now, kept, tmp_path):
    memory = Memory(tmp_path)
    for one in [*before, now]:
        cards.compared(memory, {"gpu01": [seen(1, one)]})
    assert len(memory.read(UUID.format(1)).samples) == kept


def test_errors_and_the_serial_number_of_a_card_are_kept_once(tmp_path):
    memory, first, second = Memory(tmp_path), *(CardError(when=f"2026-11-0{n}", name="Xid 79") for n in (1, 2))
    for errors, serial in (([first], "123"), ([first, second], None)):
        cards.compared(memory, {"gpu01": [seen(1, sample(), serial=serial, errors=errors)]})
    card = memory.read(UUID.format(1))
    assert (card.serial, card.errors) == ("123", [first, second])


@pytest.mark.parametrize(("past", "twins", "judged"), [(2, 2, 0), (3, 2, 2), (2, 3, 2), (3, 3, 4)])
def test_three_others_are_something_to_compare_with(past, twins, judged):
    assert cards.slower(sample(), [sample()] * past, [sample()] * twins) == ([], judged)


def test_a_loss_is_told_since_the_last_sound_measurement():
    rows = [(30000, "570.1"), (30000, "580.1"), (30000, "580.2"), (28000, "590.1")]
    past = [sample(figure, day=day, driver=driver) for day, (figure, driver) in enumerate(rows, 1)]
    (line,), _ = cards.slower(sample(28000, day=9, driver="590.1"), past, [])
    assert line.endswith("since 2026-11-03: driver 580.2 -> 590.1")


def test_twins_of_the_fleet(tmp_path):
    hosts = {f"gpu{n:02d}": [seen(n, sample(27000 if n == 3 else 30000))] for n in range(1, 6)}
    found = cards.compared(Memory(tmp_path), hosts)
    assert {name: check.status for name, check in found.items() if check.status != "pass"} == {"gpu03": "warn"}
    assert "below the median (30000) of 4 identical cards" in found["gpu03"].message
    hosts["gpu03"] = [seen(3, sample(27000, power_limit_w=250.0))]
    assert cards.compared(Memory(tmp_path / "b"), hosts)["gpu03"].status == "pass", "it is allowed less"


def test_a_card_that_two_hosts_claim_keeps_its_past(tmp_path):
    memory = Memory(tmp_path)
    cards.compared(memory, {"gpu01": [seen(1, sample())]})
    found = cards.compared(memory, {"gpu01": [seen(1, sample(day=2))], "liar": [seen(1, sample(1.0, day=2))]})
    assert "seen more than once" in found["liar"].evidence[0]
    assert len(memory.read(UUID.format(1)).samples) == 1


ODD = [
    None,
    {"measured": 5},
    {"measured": [{"id": "gpu.count", "found": {"survey": {"result": {"cards": [5, {}, {"uuid": "../../etc"}]}}}}]},
    {"measured": [{"id": "gpu.xid", "found": {"outcome": {"result": {"lines": [[0], 5, {"a": 1}]}}}}]},
]


@pytest.mark.parametrize("answer", ODD)
def test_a_host_that_answers_nonsense(answer):
    assert cards.seen("gpu01", answer, {}, "now") == []


def test_a_damaged_memory_is_no_memory(tmp_path):
    memory = Memory(tmp_path)
    memory.keep(Card(uuid=UUID.format(1)))
    (tmp_path / "cards" / f"{UUID.format(1)}.json").write_text("{")
    assert memory.read(UUID.format(1)) is None
    with pytest.raises(ValueError, match="no UUID"):
        memory.read("../../etc/passwd")


def test_what_is_kept_has_an_end(tmp_path):
    memory = Memory(tmp_path)
    memory.keep(Card(uuid=UUID.format(1), samples=[sample(day=1)] * 500))
    assert len(memory.read(UUID.format(1)).samples) == 60
    assert (tmp_path / "cards" / f"{UUID.format(1)}.json").stat().st_mode & 0o777 == 0o600
