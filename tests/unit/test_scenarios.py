"""The register of field reports (tests/cases/scenarios.yml): all of them, each recognised, each with a test of the behaviour."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import provision.collection  # noqa: F401  (makes the collection importable)
from ansible_collections.gpu.provision.plugins.module_utils.probe import gpu_users
from provision.diagnose import pages
from provision.diagnose.text import matches
from provision.lib import yaml_reader

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests/cases"
ENTRIES = yaml_reader.load((CASES / "scenarios.yml").read_text(encoding="utf-8"))
# The numbers of the reports; some numbers between them were never given.
ALL = {
    "A": (1, 2, 3, 4),
    "B": (1, 2, 4, 5),
    "C": (1, 3),
    "D": (1, 2),
    "E": (1, 2, 3),
    "F": (1, 2, 3, 4, 5, 7, 8),
    "X": (1,),
    "G": (1, 2, 3, 4, 6, 8),
    "H": (1, 2, 3, 5, 6),
    "I": (1, 2, 4),
    "J": (1, 2, 4, 5),
    "K": (1, 2, 3, 5, 6),
    "L": (1, 2, 3, 5, 7, 8),
    "M": (1, 2, 3, 4),
    "N": (1, 2, 4, 5),
    "O": (1, 2, 3),
    "P": (1, 2, 4),
    "Q": (1, 2, 4),
    "R": (1, 2, 4),
    "S": (1, 3, 4, 5),
}


def ids_of(case):
    """The reports that a host was made from: its ``id``, and those that its name begins with."""
    named = re.match(r"^([A-Z][0-9]+(?:, [A-Z][0-9]+)*)\b", case["name"])
    return {*([case["id"]] if "id" in case else []), *(named.group(1).split(", ") if named else [])}


@cache
def hosts():
    """{report: codes that its hosts get} over all tables of hosts."""
    found = {}
    for path in sorted(CASES.glob("diagnose_*.yml")):
        data = yaml_reader.load(path.read_text(encoding="utf-8"))
        for case in data["cases"] if isinstance(data, dict) else ():
            codes = [*case.get("errors", []), *case.get("also", []), *case.get("codes", []), *case.get("notes", [])]
            codes += [code for under in case.get("folded", {}).values() for code in under]
            for name in ids_of(case):
                found.setdefault(name, set()).update(codes)
    return found


@cache
def functions(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_report_is_there_once():
    wanted = [f"{letter}{number}" for letter, numbers in ALL.items() for number in numbers]
    assert len(wanted) == 76
    assert sorted(entry["id"] for entry in ENTRIES) == sorted(wanted)


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["id"] for entry in ENTRIES])
def test_a_report_is_recognised(entry):
    shown = set(hosts().get(entry["id"], set()))
    if "text" in entry:
        shown |= {match.page.code for match in matches(entry["text"])}
    if "healthy" in entry:
        cases = yaml_reader.load((CASES / "diagnose_healthy.yml").read_text(encoding="utf-8"))["cases"]
        (case,) = (case for case in cases if case["name"] == entry["healthy"])
        shown |= set(case.get("also", []))
    assert set(entry["codes"]) <= shown, shown
    assert set(entry["codes"]) <= set(pages.codes())


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry["id"] for entry in ENTRIES])
def test_a_report_has_a_test_of_its_behaviour(entry):
    for node in entry["behaviour"]:
        path, _, name = node.partition("::")
        assert name in functions(path), node


def test_a_table_names_no_report_that_is_not_registered():
    assert set(hosts()) <= {entry["id"] for entry in ENTRIES}


def _playbook(role):
    return yaml_reader.load((ROOT / "roles" / role / "tasks/reboot.yml").read_text(encoding="utf-8"))


def _tasks(tasks):
    for task in tasks:
        yield task
        yield from _tasks(task.get("block", []))


ROLES_THAT_REBOOT = sorted(path.parts[-3] for path in (ROOT / "roles").glob("*/tasks/reboot.yml"))


@pytest.mark.parametrize("policy", ["always", "when_idle"])
def test_p1_the_machine_that_it_runs_on_is_never_rebooted(policy):
    here = {"machine_id": "m", "boot_id": "b", "gpu_users": []}
    assert gpu_users.reasons(here, here, policy) == [gpu_users.OWN_MACHINE]
    assert gpu_users.reasons({**here, "boot_id": "c"}, here, policy) == []


@pytest.mark.parametrize("role", ROLES_THAT_REBOOT)
def test_p2_another_boot_id_proves_a_reboot(role):
    (reboot,) = [t["ansible.builtin.reboot"] for t in _tasks(_playbook(role)) if "ansible.builtin.reboot" in t]
    assert reboot["boot_time_command"] == "cat /proc/sys/kernel/random/boot_id"
    assert "timeout" in reboot["reboot_timeout"], "the time comes from the inventory"


@pytest.mark.parametrize("role", ROLES_THAT_REBOOT)
def test_s5_no_reboot_that_was_not_allowed(role):
    tasks = list(_tasks(_playbook(role)))
    first = next(task for task in tasks if "gpu.provision.host_may_reboot" in task)
    assert tasks.index(first) == 0
    for task in _playbook(role):
        if any("ansible.builtin.reboot" in inner for inner in _tasks([task])):
            assert "reboot_required" in str(task["when"])
