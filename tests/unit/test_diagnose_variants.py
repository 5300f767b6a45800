"""diagnose on variants of known faults (tests/cases/diagnose_variants.yml), written before the rules were looked at.

errors: codes of level error, exactly; in the order of repair where ``ordered`` is true · warnings: the same of warnings, folded
ones too, where it is given · also: codes that must be found at any level · never: codes that must not be found
folded: {code: [codes that must be under it]} · say: {code: [texts in its message, evidence or repairs]}
repairs: {code: [actions]} · level: {code: its level}
"""

import pytest

from provision.catalog import load_catalog
from provision.diagnose.text import matches, traps
from provision.lib import yaml_reader
from tests.unit import apthosts, brokenhosts

HOSTS_OF = ("diagnose_boot", "diagnose_user", "diagnose_apt", "diagnose_variants")
HOSTS = {name: host for file in HOSTS_OF for name, host in brokenhosts.load(file)[0].items()}
CASES = brokenhosts.load("diagnose_variants")[1]
TEXTS = yaml_reader.load((brokenhosts.CASES / "diagnose_texts_variants.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_variant(case, tmp_path):
    _, found = apthosts.diagnosed(case, HOSTS, tmp_path / "host")
    every = {finding.code: finding for finding in brokenhosts.flat(found.findings)}
    said = (
        "\n\n".join(f"{f.level} {f.code}\n{brokenhosts.words(f)}" for f in found.findings)
        + f"\n\nunknown: {found.unknown}"
    )
    errors, wanted = [finding.code for finding in found.errors], case.get("errors", [])
    assert (errors if case.get("ordered") else sorted(errors)) == (wanted if case.get("ordered") else sorted(wanted)), (
        said
    )
    if "warnings" in case:
        assert sorted(f.code for f in every.values() if f.level == "warning") == sorted(case["warnings"]), said
    assert set(case.get("also", [])) <= set(every), said
    assert not set(case.get("never", [])) & set(every), said
    for code, under in case.get("folded", {}).items():
        assert set(under) <= {f.code for f in brokenhosts.flat(every[code].folded)}, said
    for code, level in case.get("level", {}).items():
        assert every[code].level == level, said
    for code, texts in case.get("say", {}).items():
        for text in texts:
            assert text in brokenhosts.words(every[code]), (text, said)
    for code, actions in case.get("repairs", {}).items():
        assert [repair.action for repair in every[code].repairs] == actions, said
    if not wanted:
        assert not found.unknown, said


@pytest.mark.parametrize("row", TEXTS, ids=[row["text"][:60] for row in TEXTS])
def test_text(row):
    found = [match.page.code for match in matches(row["text"])]
    if "trap" in row:
        assert row["trap"] in [trap.id for trap, _ in traps(row["text"], load_catalog())]
    elif row.get("none"):
        assert not found
    else:
        assert found[:1] == [row["code"]], found
