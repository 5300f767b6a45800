"""Fabric manager's log: which errors stand, and whether the service stays. Simulated."""

import json
import re

import pytest

import provision.collection  # noqa: F401
from ansible_collections.gpu.provision.plugins.module_utils.lib import fabric_log, kernel_errors
from ansible_collections.gpu.provision.plugins.module_utils.lib.host_tree import HostTree
from provision.catalog import load_catalog
from provision.commands.diagnose import by_text
from provision.parts.driver import fabric, xid
from provision.parts.proof import Bounds
from provision.parts.proofs import judged
from tests.unit.provecases import outcome, says, table
from tests.unit.test_provexid import NOW

FATAL = "detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 33"
BOOT = "cccccccc-cccc-cccc-cccc-cccccccccccc"


def measured(lines, now=NOW, kernel=()):
    done = outcome({"lines": list(kernel), "fabric": lines, "first": 0, "now": now})
    return judged({"measured": [{"id": "gpu.xid", "found": {"outcome": done.plain()}}]}, Bounds())[0]


@pytest.mark.parametrize("case", table("fabric"), ids=lambda case: case["name"])
def test_lines(case):
    now = NOW + 60 * case.get("later", 0)
    check = measured([[0, NOW - 60 * minutes, line] for minutes, line in case["lines"]], now)
    assert check.status == case["expect"][0], check
    says(case["expect"][1:], check.message, check.evidence, check.hint or "")
    assert bool(check.hint) is (check.status != "pass")


def test_an_error_of_a_card_comes_first():
    fatal = [[0, NOW - 9, f"nvidia-fabricmanager: {FATAL}"]]
    reset = [[0, NOW - 9, "NVRM: Xid (PCI:0000:9b:00): 62, halt"]]
    check = measured(fatal, kernel=reset)
    assert (check.status, check.hint.split()[0]) == ("fail", "nvidia-smi")
    says(["Xid 62 at 0000:9b:00", "; fabric manager: SXid 20034"], check.message)


def test_times_that_no_host_can_mean_are_none():
    check = measured([], kernel=[[0, 1e18, "NVRM: Xid (PCI:0000:9b:00): 62, halt"]])
    assert check.status == "fail"
    says(["Xid 62 at 0000:9b:00: "], check.evidence)


# --- on the host ----------------------------------------------------------------------------------------------------


def entry(message, boot=BOOT, **fields):
    return {"__REALTIME_TIMESTAMP": "5000000", "_BOOT_ID": boot.replace("-", ""), "MESSAGE": message, **fields}


def test_one_call_of_journalctl_brings_both():
    unit = {"_SYSTEMD_UNIT": "nvidia-fabricmanager.service"}
    rows = [
        entry("NVRM: Xid (PCI:0000:9b:00): 62, halt"),
        entry(FATAL, **unit),
        # a service writes what looks like the kernel's words
        entry("NVRM: Xid (PCI:0000:9b:00): 79, gone", **unit),
        entry("Started x.", UNIT="nvlsm.service", _SYSTEMD_UNIT="init.scope"),
        entry("Started x.", boot="a" * 32, **unit),
        entry(["no text"], **unit),
        entry("Started x.", UNIT=["nvlsm.service"]),
    ]
    earlier, now, found = kernel_errors.of_journal("\n".join(map(json.dumps, rows)), BOOT)
    assert (earlier, now) == ([], [[0, 5.0, "NVRM: Xid (PCI:0000:9b:00): 62, halt"]])
    assert found == [[0, 5.0, f"nvidia-fabricmanager: {FATAL}"], [0, 5.0, "nvlsm: Started x."]]
    grep = next(word for word in kernel_errors.JOURNAL if word.startswith("--grep="))
    assert re.search(grep[len("--grep=") :], FATAL)


def test_its_own_file(tmp_path):
    (tmp_path / "var/log").mkdir(parents=True)
    path = tmp_path / "var/log/fabricmanager.log"
    path.write_bytes(
        f"[Jul 21 2024 07:53:55] [ERROR] [tid 841] {FATAL}\n"
        f"[Jul 23 2024 07:53:55] [ERROR] [tid 841] {FATAL}\n"
        "[Jul 23 2024 07:53:56] [INFO] [tid 841] nothing\n"
        f"[Jul 99 2024 07:53:55] [ERROR] [tid 841] {FATAL}\n{FATAL}\n".encode()
        + b"\xff\xfe"
    )
    tree = HostTree(str(tmp_path))
    line = f"nvidia-fabricmanager: [ERROR] [tid 841] {FATAL}"
    # 23 July 2024, 07:53:55 UTC; without the time of the boot the last day of the file counts
    assert fabric_log.of_file(tree, None) == [[0, 1721721235.0, line]]
    assert len(fabric_log.of_file(tree, 1721500000.0)) == 2
    assert fabric_log.of_file(HostTree(str(tmp_path / "var")), None) == []


def test_what_the_host_looks_for_is_known_here():
    xids = load_catalog().xids
    examples = [line for case in table("fabric") for _, line in case["lines"]]
    for pattern in fabric_log.ERRORS.split("|"):
        line = next(
            line
            for line in [*examples, "x: not all local fabric manager instances finished their configuration"]
            if re.search(pattern, line)
        )
        assert fabric.parse(line, xids), pattern
    assert xid.a_time(None) is None


# --- as a text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (f"nv-fabricmanager[812]: {FATAL}", "fabric.errors", ["SXid 20034 of the NVSwitch", "systemctl reboot"]),
        (f"[Jul 23 2024 07:53:55] [ERROR] [tid 841] {FATAL}", "fabric.errors", ["SXid 20034"]),
        (
            "[ERROR] [tid 9] failed to find the GPU handle 541 in the multicast team request setup 613.",
            "fabric.errors",
            ["lost its NVLinks"],
        ),
        (
            "detected number of NVSwitches don't match with any supported system topology, aborting fabric manager",
            "fabric.errors",
            ["is missing"],
        ),
        ("Fabric Manager detected GPU NVL Fatal error on :", "fabric.errors", ["an NVLink of a card has failed"]),
        (
            "systemd[1]: nvidia-fabricmanager.service: Scheduled restart job, restart counter is at 12.",
            "fabric.flapping",
            ["does not stay up"],
        ),
    ],
)
def test_texts(text, code, words):
    first = by_text(text).pages[0]
    assert first.code == code
    says(words, str(first))


@pytest.mark.parametrize(
    "text",
    [
        FATAL.replace("20034", "10005"),
        FATAL.replace("fatal", "non-fatal"),
        "Fabric Manager detected GPU NVL Non Fatal error on :",
        "nvidia-fabricmanager.service: Scheduled restart job, restart counter is at 1.",
    ],
)
def test_texts_that_need_no_repair(text):
    assert not [page for page in by_text(text).pages if page.code.startswith("fabric.")]


def test_a_text_with_several_lines_is_judged_by_its_last_start():
    ignored = FATAL.replace("20034", "10005")
    start = "systemd[1]: Started nvidia-fabricmanager.service - NVIDIA fabric manager service."
    first = by_text(f"{start}\n{FATAL}\n{ignored}").pages[0]
    assert (first.code, first.level) == ("fabric.errors", "error")
    first = by_text(f"{FATAL}\n{start}").pages[0]
    assert (first.code, first.level, first.repair) == (
        "fabric.errors",
        "note",
        "nothing: the service was started since",
    )
