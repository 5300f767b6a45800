"""README, CONTRIBUTING, docs and the pages of findings stay in plain English, without private words and inversions.

Each row is a pattern, and what to write instead. Code, output and links are not prose, and the front matter of a finding has
regular expressions over the output of programs; docs/checks.md and the table of docs/json.md are generated from messages of
the program. proselint was tried (0.16): 99 of its 103 remarks on these pages were about quotes, ellipses, accents and
repeated words in output, and none was about a sentence of this kind.
"""

import re

import pytest

from provision.collection import ROOT
from provision.diagnose import pages

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(set(ROOT.glob("docs/*.md")) - {ROOT / "docs/checks.md"}),
    *sorted(pages.FOLDER.glob("*.md")),
]

INSTEAD = {
    # words that only this project used
    r"wish(?:es|ed)?": "request, desired state",
    r"box(?:es)?": "host",
    r"troubles?": "fault, error, finding",
    r"told": "reported, listed; tell somebody something",
    r"mend(?:s|ed|ing)?": "repair, fix",
    r"sick": "faulty",
    r"anew": "again",
    r"twins?": "identical cards",
    r"(?:as|is|are) wanted": "needs no change; desired state",
    r"held to": "must match, are compared with",
    r"(?:who|is|are) otherwise": "differ",
    r"(?:is|are|be|was) at work": "is running, is changing the host",
    r"whole way": "complete run",
    # verbs that hide what happens
    r"stands?(?!-| for)|stood": "is, is listed",
    r"lies?|lay": "is",
    r"looks? (?:again|before|first)|look(?:s|ed|ing)? at": "read, check, query",
    r"go(?:es)? (?:on|along|away|before|for the)|gone on": "continues, is removed, overrides",
    r"(?:takes?|taken|took) (?:along|out|up|besides)": "removes, installs, adds",
    r"(?:brings?|brought|comes?|came) along": "installs, is installed with",
    r"cut off": "interrupted, truncated",
    r"put (?:right|aside)": "repair, rename",
    r"left (?:alone|in peace)": "not changed",
    r"has its turn|have their turn": "is tried",
    r"does it, proves it": "applies it, proves the result",
    # idiom and order of words of another language
    r"of (?:yours|ours)": "your, its own",
    r"by (?:itself|themselves)": "automatically",
    r"to the last digit": "exactly",
    r"in silence": "without asking",
    r"the price": "the cost",
    r"as ever": "as usual; say how",
    r"another (?:matter|thing|page)": "say what it is",
    r"that (?:is|are) there": "existing, installed",
    r"(?:needs?|wants?) nothing but": "needs only",
}


def prose(text):
    """Return the text without front matter, code, generated tables, quotes and addresses of links; lines keep their numbers."""
    for kind in (
        r"\A---$.*?^---$",
        r"^ *```.*?^ *```",
        r"<!-- documents:.*<!-- documents:[^>]*>",
        r"`[^`]*`",
        r"\]\([^)]*\)",
        r'"[^"]*"',
    ):
        text = re.sub(kind, lambda found: "\n" * found[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    return text


def found(text):
    lines = prose(text)
    for words, instead in INSTEAD.items():
        pattern = words.replace(" ", r"\s+")
        for match in re.finditer(rf"\b(?:{pattern})\b", lines, re.IGNORECASE):
            line = 1 + lines[: match.start()].count("\n")
            yield f"line {line}: {match[0]!r}: {instead}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_plain_words(page):
    assert list(found(page.read_text())) == []


def test_private_words_would_be_found():
    text = "A wish.\n```\na wish\n```\nThe `wish` of a stand-in,\nlooked\nat again: [x](wish.md)\n"
    assert [line.split(":")[0] for line in found(text)] == ["line 1", "line 6"]


def test_front_matter_is_not_prose():
    assert [line.split(":")[0] for line in found("---\ntexts: [a wish]\n---\n\n# a wish\n")] == ["line 5"]
