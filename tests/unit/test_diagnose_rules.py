"""The findings as a whole: pages and rules, references between pages, and the texts that lead to them."""

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from ansible_collections.gpu.provision.plugins.module_utils.probe import boot_diagnostics
from provision.catalog import load_catalog
from provision.diagnose import diagnose, judge, pages, rules
from provision.diagnose import rule as rule_module
from provision.diagnose.finding import ACTIONS, Cause
from provision.diagnose.rule import Case, finders, rule
from provision.diagnose.rules import symptoms
from provision.diagnose.text import matches
from provision.errors import UsageError
from provision.facts import Facts
from provision.lib import yaml_reader

ROOT = Path(__file__).parents[2]
PAGES = pages.all_pages()
TEXTS = yaml_reader.load((ROOT / "tests/cases/diagnose_texts.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=pages.codes())
def test_a_page_is_whole(page):
    assert re.fullmatch(r"[a-z0-9]+\.[a-z0-9_]+", page.code) and pages.area(page.code) in pages.AREAS
    for words in (page.title, page.explain, page.breaks, page.repair):
        assert words.strip() and "TODO" not in words
    assert "|" not in page.title, "titles stand in a table"
    for pattern in page.texts:
        assert not re.compile(pattern, re.I).search(""), "a pattern that matches everything"


def test_every_page_has_a_rule_but_those_that_are_known_by_their_texts():
    only_text = {page.code for page in PAGES if page.only_text}
    assert set(finders()) | only_text == set(pages.codes()) and not set(finders()) & only_text
    assert all(page.texts for page in PAGES if page.only_text)


WHOLE = """\
---
level: note
after: [a.other]
---

# a title

Forty letters and more of how it comes about.

## What it breaks

this

## The smallest repair

that
"""


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A folder with two pages in place of ours."""
    monkeypatch.setattr(pages, "page", pages.page.__wrapped__)
    monkeypatch.setattr(pages, "codes", pages.codes.__wrapped__)
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    (tmp_path / "a.other.md").write_text(WHOLE.replace("after: [a.other]\n", ""), encoding="utf-8")
    (tmp_path / "a.code.md").write_text(WHOLE, encoding="utf-8")
    return tmp_path


def test_lines_of_a_page_are_joined(folder):
    text = WHOLE.replace("of how it", "of\nhow it").replace("this\n", "this\nand that\n\nand more\n")
    (folder / "a.code.md").write_text(text, encoding="utf-8")
    page = pages.page("a.code")
    assert (page.code, page.title, page.after) == ("a.code", "a title", ("a.other",))
    assert page.explain == "Forty letters and more of how it comes about."
    assert (page.breaks, page.repair, page.prevent) == ("this and that\n\nand more", "that", "")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("level: note", "levle: note", "levle"),
        ("level: note", "level: grave", "level"),
        ("level: note\n", "", "level"),
        ("after: [a.other]", "after: [a.othre]", "after: .*a.othre"),
        ("after: [a.other]", "symptom_of: [a.code]", "symptom_of: .*a.code"),
        ("after: [a.other]", "beside: [a.code]", "beside: .*a.code"),
        ("after: [a.other]", "after: a.other", "after"),
        ("after: [a.other]", "after: [a.other", "line 3"),
        ("# a title\n", "", "title"),
        ("## What it breaks", "## What it brakes", "What it brakes"),
        ("## The smallest repair\n\nthat\n", "", "repair"),
        ("---\nlevel", "level", "front matter"),
    ],
)
def test_a_page_that_is_not_as_it_should_be_is_refused_by_file_and_key(folder, old, new, key):
    assert old in WHOLE
    (folder / "a.code.md").write_text(WHOLE.replace(old, new), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"(?s)a\.code\.md: .*{key}"):
        pages.page("a.code")


def test_a_page_that_is_missing_is_named(folder):
    with pytest.raises(ValueError, match=r"a\.none\.md: no such page"):
        pages.page("a.none")


def test_a_rule_without_a_page_or_of_a_code_that_has_one_is_refused(monkeypatch):
    monkeypatch.setattr(rule_module, "_FINDERS", dict(finders()))
    with pytest.raises(ValueError, match="driver.missing"):
        rule("driver.missing")(lambda case: ())
    rule("a.new")(lambda case: ())
    with pytest.raises(ValueError, match=r"no page .*a\.new"):
        finders.__wrapped__()


@pytest.mark.parametrize("field", ["after", "symptom_of", "beside"])
def test_no_circle_among_pages(field):
    def walk(code, path):
        assert code not in path, f"a circle: {' -> '.join([*path, code])}"
        for other in getattr(pages.page(code), field):
            walk(other, [*path, code])

    for code in pages.codes():
        walk(code, [])


def test_symptoms_are_rules_and_their_areas_have_pages():
    of_module = {code for code, find in finders().items() if find.__module__ == symptoms.__name__}
    assert set(symptoms.EXPLAINED_BY) == of_module
    areas = {pages.area(code) for code in pages.codes()}
    assert {area for sets in symptoms.EXPLAINED_BY.values() for names in sets for area in names} <= areas


@pytest.mark.parametrize("case", TEXTS, ids=[case["text"].strip().splitlines()[0][:60] for case in TEXTS])
def test_a_pasted_text_leads_to_its_code(case):
    found = [match.page.code for match in matches(case["text"])]
    if "first" in case:
        assert found[:1] == [case["first"]], found
    assert set(case.get("also", [])) <= set(found), found


@pytest.mark.parametrize("text", ["", "\n\n", "hello", "everything is fine", "nvidia", "error", "\x00\xff"])
def test_a_text_that_says_nothing_leads_nowhere(text):
    assert matches(text) == []


def test_a_text_in_a_long_log_is_found_in_its_last_lines():
    log = "Nov 27 10:00:00 h kernel: [1.0] something else\n" * 100_000
    assert [m.page.code for m in matches(log + "NVRM: GPU 0000:01:00.0: RmInitAdapter failed!\n")] == [
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
        assert pages.page_named(typed).code == typed.lower()
        return
    with pytest.raises(UsageError) as error:
        pages.page_named(typed)
    assert near in error.value.issue.hint


def _finding(code, level="error"):
    return Cause(code=code, level=level, message=code)


def test_what_has_to_be_mended_first_stands_first():
    first = pages.page("driver.stale_module").after[0]
    ordered = judge.ordered([_finding("driver.stale_module"), _finding(first)])
    assert [f.code for f in ordered] == [first, "driver.stale_module"]


def test_errors_stand_before_warnings_and_notes():
    ordered = judge.ordered(
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


# What the kernel prints where a rule looks, with the parts that vary filled in: the reader must keep each line.
KERNEL_LINES = (
    "Loading of module with unavailable key is rejected",
    "Loading of unsigned module is rejected",
    "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
    "systemd-modules-load[300]: Failed to insert module 'nvidia': Key was rejected by service",
    "modprobe: ERROR: could not insert 'nvidia': Required key not available",
    "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7",
    "PKCS#7 signature not signed with a trusted key",
    "NVRM: API mismatch: the client has the version 580.126.20, but",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.126.20  Wed Jan 21 19:12:50 UTC 2026",
    "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x24:0x65:1429)",
    "NVRM: GPU 0000:1b:00.0: rm_init_adapter failed, device minor number 0",
    "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:1b:00): 169, pid=1234, name=python3",
    "NVRM: GPU 0000:1b:00.0: RmFetchGspRmImages: No firmware image found",
    "NVRM: _kgspRpcRecvPoll: Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76",
    "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:1b:00.0)",
    "nvidia 0000:1b:00.0: BAR 1: can't assign; no space",
    "NVRM: This can occur when Resizable BAR is off in the firmware",
    "NVRM: The NVIDIA probe routine was not called for 1 device(s).",
    "NVRM: installed in this system is not supported by open",
    "NVRM: GPU installed in this system is supported through the NVIDIA 470.xx Legacy",
    "NVRM: driver release",
    "NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced instead.",
    "nvidia: unknown parameter 'NVreg_Nothing' ignored",
    "nvidia: `abc' invalid for parameter `NVreg_DeviceFileMode'",
    "nvidia_uvm: Unknown symbol nvidia_p2p_get_pages (err -2)",
    "systemd-modules-load[300]: failed to load module 'nvidia'",
    "INFO: task nvidia-smi:1234 blocked for more than 120 seconds.",
    "Initramfs unpacking failed: invalid magic at start of compressed archive",
)


def _log_patterns():
    """(place, pattern) of all that rules look for in the kernel's log; what they make of a host's own words is left out."""
    for info in pkgutil.iter_modules(rules.__path__):
        module = importlib.import_module(f"{rules.__name__}.{info.name}")
        for call in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("log_lines", "log_block"):
                for arg in call.args[1:]:
                    tree = ast.fix_missing_locations(ast.Expression(arg.value if isinstance(arg, ast.Starred) else arg))
                    try:
                        value = eval(compile(tree, module.__file__, "eval"), vars(module))  # noqa: S307
                    except NameError:
                        continue
                    for pattern in [value] if isinstance(value, str) else value if isinstance(value, tuple) else ():
                        yield f"{info.name}:{arg.lineno}", pattern


@pytest.mark.parametrize("line", KERNEL_LINES)
def test_the_reader_keeps_what_programs_print(line):
    assert boot_diagnostics.interesting([f"[    9.123456] {line}"]) == [line]


@pytest.mark.parametrize(("place", "pattern"), list(_log_patterns()))
def test_a_rule_looks_only_for_what_the_reader_keeps(place, pattern):
    assert any(re.search(pattern, line, re.I) for line in KERNEL_LINES), (
        f"{place}: no line of KERNEL_LINES has {pattern}"
    )
