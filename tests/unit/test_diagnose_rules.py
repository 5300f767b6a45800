"""The rules as a whole: codes, references between them, their pages, and the texts that lead to them."""

import re
from pathlib import Path

import pytest
import yaml

from provision.catalog import load_catalog
from provision.diagnose import diagnose, judge, page, registry
from provision.diagnose.finding import ACTIONS, Finding
from provision.diagnose.rule import Case
from provision.diagnose.rules import symptoms
from provision.diagnose.text import matches
from provision.errors import UsageError
from provision.facts import Facts

ROOT = Path(__file__).parents[2]
RULES = registry.all_rules()
TEXTS = yaml.safe_load((ROOT / "tests/cases/diagnose_texts.yml").read_text(encoding="utf-8"))
IDS = [rule.code for rule in RULES]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_rule_is_whole(rule):
    assert re.fullmatch(r"[a-z0-9]+\.[a-z0-9_]+", rule.code)
    for words in (rule.title, rule.explain, rule.breaks, rule.repair):
        assert words.strip() and "TODO" not in words
    assert "|" not in rule.title, "titles stand in a table"
    assert len(rule.explain) >= 40
    for pattern in rule.texts:
        assert not re.compile(pattern, re.I).search(""), "a pattern that matches everything"


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_a_rule_names_rules_that_exist(rule):
    known = registry.by_code()
    assert not {code for code in (*rule.after, *rule.symptom_of) if code not in known}
    assert rule.code not in (*rule.after, *rule.symptom_of)


@pytest.mark.parametrize("field", ["after", "symptom_of"])
def test_no_circle_among_rules(field):
    known = registry.by_code()

    def walk(code, path):
        assert code not in path, f"a circle: {' -> '.join([*path, code])}"
        for other in getattr(known[code], field):
            walk(other, [*path, code])

    for code in known:
        walk(code, [])


def test_symptoms_are_rules_and_their_areas_have_rules():
    known = registry.by_code()
    assert set(symptoms.EXPLAINED_BY) == {rule.code for rule in symptoms.RULES} <= set(known)
    areas = {registry.area(code) for code in known}
    assert {area for sets in symptoms.EXPLAINED_BY.values() for names in sets for area in names} <= areas


def test_areas_are_in_an_order():
    assert {registry.area(code) for code in registry.by_code()} <= set(registry.AREAS)


@pytest.mark.usefixtures("real_catalog")
def test_pages_are_current():
    written = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs/findings").glob("*.md")}
    assert written == page.pages(), "run: make docs"


@pytest.mark.usefixtures("real_catalog")
def test_links_of_pages_lead_somewhere():
    pages = page.pages()
    for name, text in pages.items():
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert target in pages or (ROOT / "docs/findings" / target).exists(), f"{name}: {target}"


@pytest.mark.parametrize("case", TEXTS, ids=[case["text"].strip().splitlines()[0][:60] for case in TEXTS])
def test_a_pasted_text_leads_to_its_code(case):
    found = [match.rule.code for match in matches(case["text"])]
    if "first" in case:
        assert found[:1] == [case["first"]], found
    assert set(case.get("also", [])) <= set(found), found


@pytest.mark.parametrize("text", ["", "\n\n", "hello", "everything is fine", "nvidia", "error", "\x00\xff"])
def test_a_text_that_says_nothing_leads_nowhere(text):
    assert matches(text) == []


def test_a_text_in_a_long_log_is_found_in_its_last_lines():
    log = "Nov 27 10:00:00 h kernel: [1.0] something else\n" * 100_000
    assert [m.rule.code for m in matches(log + "NVRM: GPU 0000:01:00.0: RmInitAdapter failed!\n")] == [
        "gpus.init_failed"
    ]


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("driver.stale_modul", "driver.stale_module"),
        ("stale_module", "driver.stale_module"),
        ("DRIVER.STALE_MODULE", None),
    ],
)
def test_a_mistyped_code_names_the_nearest(typed, near):
    if near is None:
        assert registry.rule_named(typed).code == typed.lower()
        return
    with pytest.raises(UsageError) as error:
        registry.rule_named(typed)
    assert near in error.value.issue.hint


def _finding(code, level="error"):
    return Finding(code=code, level=level, message=code)


def test_what_has_to_be_mended_first_stands_first():
    rule = next(rule for rule in RULES if rule.code == "driver.stale_module")
    first = rule.after[0]
    ordered = judge.in_order([_finding("driver.stale_module"), _finding(first)])
    assert [f.code for f in ordered] == [first, "driver.stale_module"]


def test_errors_stand_before_warnings_and_notes():
    ordered = judge.in_order(
        [_finding("reboot.pending", "note"), _finding("driver.persistence_off", "warning"), _finding("gpus.xid")]
    )
    assert [f.level for f in ordered] == ["error", "warning", "note"]


def test_a_cause_is_as_grave_as_what_follows_from_it():
    top = judge.folded([_finding("driver.two_installers", "warning"), _finding("driver.stale_module")])
    assert [(f.code, f.level, [g.code for g in f.folded]) for f in top] == [
        ("driver.two_installers", "error", ["driver.stale_module"])
    ]


def test_an_empty_host_has_nothing():
    found = diagnose(Facts(), {}, load_catalog())
    assert not found.findings and not found.unknown and not found.unread


def test_what_could_not_be_read_is_told():
    assert diagnose(Facts(unreadable=["/etc/x"]), {}, load_catalog()).unread == ["/etc/x"]


def test_every_repair_is_one_that_rescue_knows():
    source = "".join(path.read_text() for path in (ROOT / "provision/diagnose").rglob("*.py"))
    named = set(re.findall(r'action="([a-z.]+)"', source))
    assert named <= set(ACTIONS), named - set(ACTIONS)


def test_a_case_reads_whether_the_driver_is_managed():
    assert Case(Facts(), {}, load_catalog()).driver_managed
    assert not Case(Facts(), {"nvidia_driver_manage": False}, load_catalog()).driver_managed
