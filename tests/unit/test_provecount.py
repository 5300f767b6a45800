"""How many cards there are, and who says so."""

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.prove import count as prove_count
from provision.parts.proof import Bounds, Measured
from provision.parts.proofs import judge
from tests.unit.provecases import H100, card, outcome, says, table


@pytest.mark.parametrize("case", table("count"), ids=lambda case: case["name"])
def test_count(case):
    names = case.get("names", [H100, H100])
    mig = case.get("mig", {})
    cards = []
    for index, name in enumerate(names):
        on = index in mig
        instances = [{"uuid": f"MIG-{index}-{n}", "name": "1g.10gb"} for n in range(mig.get(index, 0))]
        ids = case.get("pci_ids", ["2330"] * len(names))
        cards.append(
            card(index, name=name, pci_id=ids[index], mig={"current": on, "pending": on}, mig_instances=instances)
        )
    if "survey" in case:
        survey = outcome(message=case["survey"])
    else:
        survey = outcome({"cards": cards, "lost": case.get("lost", []), "pairs": []})
    visible = [cards[index] for index in case.get("visible", range(len(cards)))]
    seen = outcome({"cards": [{"uuid": row["uuid"].split("-", 1)[1]} for row in visible]})
    if "seen_code" in case:
        seen = outcome(message="CudaError: cuInit", code=case["seen_code"])
    if "seen_said" in case:
        seen = outcome(message=case["seen_said"])
    bus = case.get("bus", ["0000:00:00.0", "0000:01:00.0"])
    found = {"survey": survey.plain(), "bus": bus, "seen": seen.plain(), "hidden_by": case.get("hidden_by")}
    gpus = case.get("gpus", 2 if bus and "survey" in case or not names else 0)
    bounds = Bounds(cards=str(case.get("expected") or ""), gpus=gpus, excused=case.get("excused", ()))
    check = judge(Measured(id="gpu.count", found=found), bounds)
    assert check.status == case["expect"][0], check
    says(case["expect"][1:], check.message, check.evidence, check.hint or "")
    assert check.hint or check.status in ("pass", "skip")
    assert bool(check.not_run) is (check.status == "skip" and gpus > 0)


def test_the_bus_is_read_from_sysfs(tmp_path):
    for slot, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030200"),
        ("0000:02:00.0", "0x10de", "0x030000"),
        ("0000:02:00.1", "0x10de", "0x040300"),
        ("0000:03:00.0", "0x8086", "0x030000"),
        ("0000:04:00.0", "0x10de", "0x030200"),
        ("0000:05:00.0", "0x10de", "0x068000"),
    ):
        (tmp_path / slot).mkdir()
        (tmp_path / slot / "vendor").write_text(vendor + "\n")
        (tmp_path / slot / "class").write_text(kind + "\n")
    # a virtual function
    (tmp_path / "0000:04:00.0" / "physfn").mkdir()
    assert prove_count.bus_cards(str(tmp_path)) == ["0000:01:00.0", "0000:02:00.0"]
    assert prove_count.bus_cards(str(tmp_path / "absent")) == []
