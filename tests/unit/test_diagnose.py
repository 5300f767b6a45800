"""diagnose on broken hosts (tests/cases/diagnose_*.yml), read by the real host program from a folder.

errors: codes of level error, in order, all of them · also: further codes that must be found (any level, folded too)
never: codes that must not be found · folded: {code: [codes under it]} · evidence: texts in what is said of the first error
(or of the first of ``also`` where there is no error) · repairs: its actions · reboot: whether its repair ends with one
words: texts in the words of its repairs · unknown: texts that must be told as unknown
"""

import json

import pytest

from provision.catalog import load_catalog
from provision.diagnose import diagnose
from provision.facts.diagnostics import Diagnosed
from tests.unit import brokenhosts

FILES = ("diagnose_boot",)
ALL = [(name, case) for name in FILES for case in brokenhosts.load(name)[1]]
HOSTS = {name: brokenhosts.load(name)[0] for name in FILES}


@pytest.mark.parametrize(("name", "case"), ALL, ids=[case["name"] for _, case in ALL])
def test_host(name, case, tmp_path):
    _, found = brokenhosts.diagnosed(case, HOSTS[name], tmp_path)
    said = (
        "\n\n".join(f"{f.level} {f.code}\n{brokenhosts.words(f)}" for f in found.findings)
        + f"\n\nunknown: {found.unknown}"
    )
    assert [f.code for f in found.errors] == case.get("errors", []), said
    brokenhosts.check_agreement(found)
    codes = {f.code for f in brokenhosts.flat(found.findings)}
    assert set(case.get("also", [])) <= codes, said
    assert not set(case.get("never", [])) & codes, said
    for code, under in case.get("folded", {}).items():
        cause = next(f for f in found.findings if f.code == code)
        assert sorted(f.code for f in brokenhosts.flat(cause.folded)) == sorted(under), said
    first = next((f for f in found.errors), None)
    if first is None and case.get("also"):
        first = next(f for f in brokenhosts.flat(found.findings) if f.code == case["also"][0])
    for text in case.get("evidence", []):
        assert text in brokenhosts.words(first), said
    for text in case.get("unsaid", []):
        assert text not in brokenhosts.words(first), said
    if "args" in case:
        assert [repair.args for repair in first.repairs] == case["args"], said
    if "repairs" in case:
        assert [repair.action for repair in first.repairs] == case["repairs"], said
    for text in case.get("words", []):
        assert text in " ".join(repair.words for repair in first.repairs), said
    if "reboot" in case:
        assert first.reboot is case["reboot"], said
    for text in case.get("unknown", []):
        assert text in "\n".join(found.unknown), said
    if "unknown" not in case:
        assert not found.unknown, said
    assert all(f.evidence for f in brokenhosts.flat(found.findings)), "a finding without evidence"
    assert all(f.repairs for f in found.errors), "an error without a repair"


HEALTHY = brokenhosts.load("diagnose_healthy")[1]


@pytest.mark.parametrize("case", HEALTHY, ids=[case["name"] for case in HEALTHY])
def test_an_odd_host_that_is_well_gets_no_error(case, tmp_path):
    _, found = brokenhosts.diagnosed(case, {}, tmp_path)
    said = "\n\n".join(f"{f.level} {f.code}\n{brokenhosts.words(f)}" for f in found.findings)
    assert not found.errors and not found.unknown, f"{said}\n{found.unknown}"
    codes = {f.code for f in brokenhosts.flat(found.findings)}
    assert set(case.get("also", [])) <= codes, said
    assert not set(case.get("never", [])) & codes, said
    assert not case.get("silent") or not codes, said


@pytest.mark.parametrize("name", ["h100x1", "h100x2"])
def test_a_recorded_machine_that_works_gets_no_error(name, tmp_path):
    case = {"tree": {"base": name, "smi": "works"}, "smi": {"xml": name}, "values": {"nvidia_driver_manage": False}}
    _, found = brokenhosts.diagnosed(case, {}, tmp_path)
    assert not found.errors and not found.unknown, found
    # Its toolkit has a compat folder with a libcuda.so.1, which the loader is not to find.
    assert "cuda.loader_blind" not in {finding.code for finding in brokenhosts.flat(found.findings)}


def test_the_recorded_h200_gets_no_error():
    recorded = json.loads((brokenhosts.trees.FIXTURES / "h200x1" / "scan.json").read_text())["hosts"]["localhost"][
        "facts"
    ]
    found = diagnose(Diagnosed.model_validate(recorded), {"nvidia_driver_manage": False}, load_catalog())
    assert not found.errors and not found.unknown, found
