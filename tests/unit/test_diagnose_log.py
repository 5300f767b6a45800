"""Errors as they are pasted, and whole logs: what stands before the words, colours, and a line among very many."""

import re
from pathlib import Path

import pytest

from provision.catalog import load_catalog
from provision.diagnose import pages
from provision.diagnose.text import matches, needed, traps
from provision.lib import yaml_reader
from tests.sample import share

CASES = Path(__file__).parents[1] / "cases"
TEXTS = [
    row["text"]
    for name in ("diagnose_texts", "diagnose_texts_apt", "diagnose_texts_variants")
    for row in yaml_reader.load((CASES / f"{name}.yml").read_text(encoding="utf-8"))
]
PATTERNS = sorted({pattern for page in pages.all_pages() for pattern in page.texts})
MISMATCH = (
    "NVRM: API mismatch: the client has the version 580.126.20, but\n"
    "NVRM: this kernel module has the version 580.95.05.  Please\n"
    "NVRM: make sure that this kernel module and all NVIDIA driver\n"
    "NVRM: components have the same version."
)
NOISE = "Nov 28 10:{:02d}:17 node17 systemd[1]: Started Session {} of user alice, device by device."


def codes(text):
    return [match.page.code for match in matches(text)]


def in_a_log(text, before, after):
    """The text with the kernel's stamps, between lines of a system at work."""
    stamped = [
        f"Nov 28 10:00:01 node17 kernel: [ 3412.{number:06d}] {line}" for number, line in enumerate(text.splitlines())
    ]
    noise = [NOISE.format(number % 60, number) for number in range(before + after)]
    return "\n".join([*noise[:before], *stamped, *noise[before:]])


def test_needed_words_stand_in_every_text_that_a_pattern_matches():
    lines = [line for text in TEXTS for line in (*text.splitlines(), " ".join(text.split("\n")))]
    matched = 0
    for pattern in PATTERNS:
        words = needed(pattern)
        for line in lines:
            if words and re.search(pattern, line, re.I):
                matched += 1
                assert any(word in line.lower() for word in words), (pattern, line, words)
    assert matched > len(PATTERNS)


def test_needed_by_example():
    assert needed(r"NVRM: API mismatch") == ("mismatch",)
    assert needed(r"\bXid\b.*?(?:fallen|gone) off") == ("xid",)
    assert needed(r"abcd|efgh\.ij") == ("abcd", "efgh.ij")
    assert needed(r"colou?r") == ("colo",)
    assert needed(r"a{3,500}bcd") == ("bcd",)
    assert needed(r"(?:abc|def).*[xyz]+") == ()
    assert needed(r"abcd|(?:x|y)") == ()


def test_most_of_a_log_is_not_tried():
    """All but a few patterns say what they need: a log of some megabytes takes seconds otherwise."""
    assert sum(not needed(pattern) for pattern in PATTERNS) <= 3


@pytest.mark.parametrize("before", [0, 30, 20_000])
def test_one_message_in_a_log_wherever_it_stands(before):
    assert codes(in_a_log(MISMATCH, before, 20_000))[0] == "driver.stale_module"


@pytest.mark.parametrize("text", share(TEXTS, 6))
def test_a_terminals_colours_and_prompts_change_nothing(text):
    lines = [f"\x1b[01;31m{line[:7]}\x1b[0m{line[7:]}\x1b[K\r" if line.strip() else line for line in text.splitlines()]
    dressed = "\x1b]0;ann@node17: ~\x07\x1b[01;32mann@node17\x1b[00m:~$ \n" + "\n".join(lines)
    assert codes(dressed) == codes(text)


def test_the_line_that_is_told_has_no_orders_to_the_terminal():
    (first, *_) = matches("\x1b[31mNVRM: API mismatch: client version 570.1, kernel module version 570.2\x1b[0m")
    assert first.line == "NVRM: API mismatch: client version 570.1, kernel module version 570.2"


def test_traps_in_a_log():
    catalog = load_catalog()
    text = "Failed to initialize NVML: Driver/library version mismatch"
    alone = [trap.id for trap, _ in traps(text, catalog)]
    found = traps(in_a_log(text, 5000, 5000), catalog)
    assert [trap.id for trap, _ in found] == alone != []
    assert found[0][1].endswith(text)
