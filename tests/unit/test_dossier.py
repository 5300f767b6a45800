"""The dossier of a card: what stands in it, which rules it names, and that --anonymous leaves names and numbers out."""

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.probe import machine as probe_machine
from provision.commands import dossier
from provision.commands.dossier import Machine, masked, names_of
from provision.inventory import Connection, Host
from provision.lib.findings import Check
from provision.render.dossier import markdown
from provision.runs.cards import Card, Memory, Sample, Tried
from tests.unit import provecases
from tests.unit.hosts import host

UUID = "GPU-00000000-0000-0000-0000-00000000000a"
SERIAL = "1654823001234"
DMI = {"sys_vendor": "Supermicro", "product_name": "SYS-421GE", "product_serial": "S4711X9"}
XID = "NVRM: Xid (PCI:0000:10:00): 95, pid=4711, name=train, Uncontained: LTC TAG. RST: Yes, D-RST: No"
NAME = provecases.H100


def made(tmp_path, *, tried=(), **change):
    """The dossier of a host with two H100, of which the first has what ``change`` says."""
    numbers = {
        "gflops": 27000.0,
        "memory_gb_per_s": 1900.0,
        "host_to_card_gb_per_s": 50.0,
        "card_to_host_gb_per_s": 50.0,
    }
    cards = [
        provecases.card(0, uuid=UUID, serial=SERIAL, bus_id="0000:10:00.0", **change),
        provecases.card(1, bus_id="0000:11:00.0"),
    ]
    computed = [
        [{"index": n, "mig": False}, {"result": {"wrong": [], "numbers": dict(numbers, gflops=figure)}}]
        for n, figure in ((0, 27000.0), (1, 30000.0))
    ]
    found = {
        "gpu.count": {"survey": {"result": {"cards": cards, "driver": "580.126.20"}}},
        "gpu.compute": {"computed": computed},
    }
    proofs = {"measured": [{"id": name, "found": row} for name, row in found.items()]}
    memory = Memory(tmp_path)
    past = [Sample(when=f"2026-11-{day:02d}T10:00:00Z", host="gpu01", numbers={"gflops": 30100.0}) for day in (1, 2, 3)]
    memory.keep(Card(uuid=UUID, name=NAME, samples=past, tried=list(tried)))
    facts = host(
        ["H100", "H100"],
        smi={"path": "/usr/bin/nvidia-smi", "driver_version": "580.126.20"},
        trouble={"boot": {"log": [XID], "errors": {"now": 1.0e9, "lines": [{"boot": 0, "when": 1.0e9, "text": XID}]}}},
    )
    checks = [Check(id="gpu.health", status="warn", message="card 0: [x](http://evil) | y")]
    machine = Machine(dmi=DMI, slots={"0000:10:00": "GPU3"})
    return dossier.of_host("gpu01", facts, {}, checks, proofs, machine, memory, "2026-11-29T13:00:00Z"), facts


def test_what_stands_in_it(tmp_path):
    document, _ = made(
        tmp_path, **{"ecc.remapped": {"corrected": 1, "uncorrected": 9, "pending": False, "failed": True}}
    )
    sick, well = document.cards
    assert (sick.serial, sick.slot, sick.firmware, sick.sick, well.sick) == (
        SERIAL,
        "GPU3",
        "96.00.DA.00.0C",
        True,
        False,
    )
    assert sick.numbers["gflops"] == (27000.0, 30100.0, 30000.0)
    assert [rule.split(" (")[0] for rule in sick.rules] == [
        "a faulty memory row could not be remapped",
        "9 rows were remapped after uncorrectable errors, 8 or more",
    ]
    text = markdown(document)
    for words in (SERIAL, "S4711X9", "SYS-421GE", "Xid 95", "nvidia-smi --gpu-reset", "27,000", "30,100", "GPU3"):
        assert words in text, words
    assert "[x](http" not in text, "what comes from hosts is only text"


def tries(*rows):
    return [
        Tried(when="2026-11-20T10:00:00Z", host="gpu01", finding="gpus.xid", action=action, ok=ok, slot="0000:10:00.0")
        for action, ok in rows
    ]


@pytest.mark.parametrize(
    ("change", "tried", "rules"),
    [
        ({}, (), 0),
        ({"flags": ["sram_threshold_exceeded"]}, (), 1),
        ({"flags": ["unrepairable_memory", "invented"]}, (), 1),
        ({"ecc.remapped": {"corrected": 99, "uncorrected": 7, "pending": True, "failed": False}}, (), 0),
        ({"ecc.remapped": None}, (), 0),
        ({}, (("gpu.reset", True),), 0),
        ({}, (("gpu.reset", True), ("reboot", True)), 1),
        ({}, (("gpu.reset", False), ("reboot", True)), 0),
    ],
)
def test_which_rules_are_met(tmp_path, change, tried, rules):
    document, _ = made(tmp_path, tried=tries(*tried), **change)
    assert len(document.cards[0].rules) == rules


def test_a_card_that_is_gone_is_told_from_memory(tmp_path):
    memory = Memory(tmp_path)
    sample = Sample(when="2026-11-01T10:00:00Z", host="gpu01", slot="0000:10:00.0", numbers={"gflops": 30000.0})
    memory.keep(Card(uuid=UUID, serial=SERIAL, name=NAME, samples=[sample]))
    log = ["NVRM: GPU at PCI:0000:10:00: GPU-x", "NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus."]
    facts = host([], trouble={"boot": {"log": log}})
    document = dossier.of_host("gpu01", facts, {}, [], {}, Machine(), memory, "now")
    (card,) = document.cards
    assert (card.serial, card.name, card.numbers["gflops"]) == (SERIAL, NAME, (None, 30000.0, None))
    assert "fell off the bus" in card.findings[0]


def told(tmp_path, values=None, **facts):
    """A dossier without any proof, as of a card that the driver cannot use; and its text."""
    facts = host(["H100", "H100"], module={"loaded": {"version": "580.126.20", "open": True}}, **facts)
    document = dossier.of_host("gpu01", facts, values or {}, [], {}, Machine(), Memory(tmp_path), "now")
    return document, markdown(document)


def test_a_card_that_the_driver_cannot_initialise_has_something_against_it(tmp_path):
    log = ["NVRM: GPU 0000:11:00.0: RmInitAdapter failed! (0x62:0x1a:2631)"]
    smi = {"path": "/usr/bin/nvidia-smi", "gpus": [{"index": 0, "name": "H100", "bus_id": "00000000:10:00.0"}]}
    document, text = told(tmp_path, smi=smi, trouble={"boot": {"log": log}})
    assert [(card.bus_id, card.sick) for card in document.cards] == [("0000:10:00.0", False), ("0000:11:00.0", True)]
    assert document.cards[1].name.startswith("H100") and text.startswith("# Dossier of gpu01: H100")
    assert "gpus.init" in document.cards[1].findings[0]


def test_a_card_of_which_only_the_driver_knows_has_its_own_part(tmp_path):
    document, _ = told(tmp_path, trouble={"boot": {"driver_gpus": ["0000:10:00.0", "0000:11:00.0", "0000:41:00.0"]}})
    assert [card.bus_id for card in document.cards if card.sick] == ["0000:41:00.0"]


def test_cards_that_nobody_can_name_are_told_of_the_machine(tmp_path):
    document, text = told(tmp_path, {"gpu_verify_expect": "4"})
    assert any(line.startswith("gpus.missing: 2 of 4") for line in document.findings)
    assert "What diagnose says of the machine" in text and "2 of 4 GPUs are on the PCI bus" in text


def test_nobody_is_named_where_that_is_asked(tmp_path):
    document, facts = made(tmp_path)
    known = Host(name="gpu01", connection=Connection(address="10.20.30.40", user="ann"))
    own = {
        "hosts": ["gpu01.lab.example.net"],
        "users": ["train"],
        "addresses": [],
        "serials": ["S4711X9", 5],
        "odd": [1],
    }
    text = markdown(masked(document, names_of(known, facts, own, document)))
    for word in (SERIAL, "S4711X9", UUID, "gpu01", "ann", "name=train"):
        assert word not in text, word
    assert "0000:10:00.0" in text and "Xid 95" in text and "27,000" in text


def test_the_labels_of_a_machine(tmp_path):
    for path, text in {
        "sys/class/dmi/id/product_serial": "S4711X9\n",
        "sys/class/dmi/id/modalias": "no label",
        "sys/bus/pci/slots/GPU3/address": "0000:10:00\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = probe_machine.main({"root": str(tmp_path)})
    assert found["dmi"] == {"product_serial": "S4711X9"} and found["slots"] == {"0000:10:00": "GPU3"}
    assert "S4711X9" in found["own"]["serials"]
