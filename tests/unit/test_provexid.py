"""Xid and SXid in the kernel's log: what each needs, by NVIDIA's catalogue."""

import json
from pathlib import Path

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.lib import kernel_errors
from provision.catalog import load_catalog
from provision.commands.diagnose import by_text
from provision.lib import yaml_reader
from provision.parts.driver import verdict, xid
from tests.unit.provecases import outcome, says, table

NVLINK5 = yaml_reader.load((Path(__file__).parents[1] / "cases/xid_nvlink5.yml").read_text(encoding="utf-8"))
# NVIDIA's buckets -> verdict, and a word of what is advised
BUCKETS = {
    "IGNORE": ("pass", "nothing"),
    "RESTART_APP": ("pass", "start the program again"),
    "WORKFLOW_XID_45": ("pass", "nothing"),
    "RESET_GPU": ("fail", "nvidia-smi --gpu-reset -i 0000:9b:00.0"),
    "CHECK_UVM": ("fail", "nvidia-smi --gpu-reset -i 0000:9b:00.0"),
    "WORKFLOW_XID_48": ("fail", "nvidia-smi --gpu-reset -i 0000:9b:00.0"),
    "WORKFLOW_NVLINK_ERR": ("fail", "nvidia-smi --gpu-reset -i 0000:9b:00.0"),
    "RESTART_VM": ("fail", "systemctl reboot"),
    "RESTART_BM": ("fail", "systemctl reboot"),
    "CHECK_MECHANICALS": ("fail", "cables"),
    "UPDATE_SWFW": ("warn", "driver"),
    "CONTACT_SUPPORT": ("warn", "nvidia-bug-report.sh"),
}
NOW = 1_764_400_000.0


def _event(number, line):
    """A line of a case: its text, or [boot, hours before now, text]."""
    boot, hours, text = line if isinstance(line, list) else (0, 1 - number / 3600, line)
    return [boot, NOW - hours * 3600, text]


@pytest.fixture(scope="module")
def xids():
    return load_catalog().xids


@pytest.mark.parametrize("case", table("xid"), ids=lambda case: case["name"])
def test_lines(case, xids):
    lines = [_event(number, line) for number, line in enumerate(case["lines"])]
    found = outcome({"lines": lines, "first": case.get("first", 0), "now": NOW})
    cards = [(case["recovery"], "0000:9b:00.0")] if "recovery" in case else []
    status, message, evidence, hint, numbers = xid.judge(found, xids, verdict.recovered(cards, xids))
    assert status == case["expect"][0], message
    says(case["expect"][1:], message, evidence, hint or "")
    assert hint or status == "pass"
    assert numbers["xids"] + numbers["sxids"] == sum("Xid (" in line for *_, line in lines)


def test_every_code_of_the_catalogue_leads_to_its_action(xids):
    assert sorted(xids.xid) == list(range(1, 173))
    told = 0
    for number, row in xids.xid.items():
        assert row.immediate or row.judged, f"Xid {number} has no action"
        bucket = row.immediate or row.judged
        if bucket in ("XID_154", "WORKFLOW_NVLINK5_ERR"):
            # decoded from the line
            continue
        told += 1
        line = f"NVRM: Xid (PCI:0000:9b:00): {number}, pid=1, name=x"
        (found,) = xid.read([(0, None, line)], xids)
        status, word = BUCKETS[bucket]
        assert (found.status, word in found.repair) == (status, True), (number, bucket, found.repair)
        assert found.meaning, number
        # a text says the same as a host
        if number != 79:
            page = next(page for page in by_text(line).pages if page.code == "gpus.xid")
            assert (page.title, page.level) == (
                found.told,
                {"fail": "error", "warn": "warning", "pass": "note"}[status],
            )
            assert word in page.repair
    assert told == 164


@pytest.mark.parametrize("line, action", NVLINK5)
def test_nvlink_5_is_decoded(line, action, xids):
    (found,) = xid.read([(0, None, f"NVRM: Xid (PCI:0000:04:00): {line}")], xids)
    assert found.action == action, found.meaning


def test_every_rule_of_nvlink_5_is_met_in_both_layouts(xids):
    """No rule hides another one: a word with a rule's bits leads to that rule's action."""
    for rule in xids.nvlink5:
        for pattern in (rule.before_575, rule.from_575):
            word = int(pattern.replace("-", "0"), 2)
            line = f"NVRM: Xid (PCI:0000:04:00): {rule.xid}, {rule.unit} XC0 (0x{word:08x} 0x{(rule.status or (7,))[0]:08x} 0x0)"
            (found,) = xid.read([(0, None, line)], xids)
            assert found.action == xid._SAME.get(rule.action, rule.action), line


def test_a_log_that_may_not_be_read_is_said(xids):
    failed = outcome(message="PermissionError: [Errno 1] Operation not permitted: '/dev/kmsg'")
    status, message, *_ = xid.judge(failed, xids)
    assert status == "not_run"
    assert "/dev/kmsg" in message


def journal(*rows):
    keys = ("__REALTIME_TIMESTAMP", "_BOOT_ID", "MESSAGE")
    return "\n".join(json.dumps(dict(zip(keys, row, strict=True))) for row in rows)


def test_a_journal_is_read_by_its_boots():
    line = "NVRM: Xid (PCI:0000:9b:00): 62, halt"
    text = journal(
        ("1000000", "a" * 32, line),
        ("2000000", "b" * 32, "Linux version 6.8.0"),
        ("3000000", "b" * 32, line),
        ("4000000", "b" * 32, "something else"),
        ("5000000", "c" * 32, line),
    )
    earlier, this_boot, fabric = kernel_errors.of_journal(text, "cccccccc-cccc-cccc-cccc-cccccccccccc\n".strip())
    assert earlier == [[-2, 1.0, line], [-1, 2.0, "Linux version 6.8.0"], [-1, 3.0, line]]
    assert (this_boot, fabric) == ([[0, 5.0, line]], [])


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{}", '{"MESSAGE": "Xid ("}', journal(("x", "b", "Xid (")), journal(("1", 2, 3))]
)
def test_a_journal_of_rubbish_is_empty(text):
    assert kernel_errors.of_journal(text, "") == ([], [], [])


def test_a_file_with_several_boots():
    lines = ["[9.0] NVRM: Xid (a)", "[0.0] Linux version 6", "[5.5] NVRM: Xid (b)", "[6.0] usb"]
    assert kernel_errors.of_log(lines, None) == [
        [-1, None, "[9.0] NVRM: Xid (a)"],
        [0, None, "[0.0] Linux version 6"],
        [0, None, "[5.5] NVRM: Xid (b)"],
    ]
    assert kernel_errors.of_log(lines[2:], 1000.0) == [[0, 1005.5, "[5.5] NVRM: Xid (b)"]]


def test_other_lines_are_none(xids):
    assert xid.parse("usb 1-1: new device", xids) is None
